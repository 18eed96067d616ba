/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * One spelling for each path. What comes out is both what policy looks at and what goes on the wire, so that no two
 * readers can disagree about it. What could be read in two ways is refused, not repaired.
 */

#include "basic/macro.h"

#define HTTP_PATH_MAX ((size_t) 8192)

/*
 * PATH (LEN bytes, no query) must start with '/'. In the result unreserved characters are bare, all other escapes
 * upper-case, characters that some clients leave bare against the rules ("[]|^") are escaped. -EINVAL for: dot
 * segments in any spelling (also with ";…", also escaped twice), "//", '\', escaped '/', '\', '%' before something
 * that would be such, control characters, escapes that are none, overlong UTF-8. -ENAMETOOLONG beyond HTTP_PATH_MAX.
 * Applied to its own result it changes nothing.
 */
int http_path_canonicalize(const char *path, size_t len, char **ret);
/* The same, but an escaped '/' may be part of a name; what is between two of them is looked at as if it were a segment.
 * It stays escaped. For upstreams that take one "%2F" for a character of a name (object stores, package registries). */
int http_path_canonicalize_slashes(const char *path, size_t len, char **ret);

/* Takes off PREFIX, which ends without '/': for "/a" and "/a/b" gives "/b", for "/a" gives "", for "/ab" NULL. */
const char *http_path_below(const char *path, const char *prefix);

/* A query may hold any printable ASCII but '#'; it is never decoded or rebuilt. */
bool http_query_is_valid(const char *query);
