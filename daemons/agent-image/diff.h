/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Compares two trees, which strangers made, and writes one JSON document to OUT: paths that were added, removed or
 * changed (in what: type, content, mode, owner, time, xattr), and packages whose version differs where dpkg's status
 * file, a Python *.dist-info or a node_modules/…/package.json tells it. Files of the same size are compared byte by
 * byte: times prove nothing. Nothing of the trees is followed or executed. Tells an error itself.
 */
int diff_trees(int from, int to, int out);
