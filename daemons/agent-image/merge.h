/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Makes one upper of several: copies LAYER over what earlier calls have put into TREE, as overlayfs would show the two.
 * Deletions and opaque marks stay in the result, since it goes on top of a base that is not looked at. Called with the
 * lowest layer first. Tells an error itself.
 */
int merge_layer(int layer, int tree);

/*
 * Takes those deletions out of TREE that delete nothing of BASE, on which it is going to lie: in a directory that
 * only one layer has, overlayfs would list the name and then not find it.
 */
int merge_finish(int tree, int base);
