/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The reason phrase of a status: from a fixed table, never from anybody's text. "Status" where it is unknown. */
const char *http_status_reason(unsigned status);
