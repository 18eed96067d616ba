/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The whole program but main(): parses, finds the verb, runs it. Returns the exit status. */
int agentctl_main(int argc, char **argv);
