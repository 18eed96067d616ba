/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Executes a program that cannot get at the processes that were there before it; returns an exit status where it fails.
 */
int apart_exec(char *const argv[]);
