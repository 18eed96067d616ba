/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A listing: typed columns, filled cell by cell, printed as aligned text for people or as a JSON
 * array of objects for programs. One table feeds both, so that they cannot tell different things.
 */

#include <systemd/sd-json.h>

#include "basic/macro.h"

typedef enum CellType {
        CELL_STRING, /* "" is "-" and null */
        CELL_DIGEST, /* cut short for people */
        CELL_NUMBER,
        CELL_SIZE,
        CELL_TIME, /* µs; 0 is "-" and null */
        CELL_SPAN, /* µs; USEC_INFINITY is "-" and null */
        CELL_BOOL, /* "yes" and "" for people */
} CellType;

typedef struct Column {
        const char *title; /* NULL: only in JSON */
        const char *key;   /* NULL: only for people */
        CellType type;
} Column;

typedef struct Table Table;

/* COLUMNS is not copied. */
Table *table_new(const Column *columns, size_t n_columns);
Table *table_free(Table *t);
DEFINE_CLEANUP(Table *, table_free);

/* Cells come in the order of the columns, row by row; after a failure the table is only good for table_free(). */
int table_add_string(Table *t, const char *s);
int table_add_number(Table *t, uint64_t n);

size_t table_rows(const Table *t);
int table_to_json(const Table *t, sd_json_variant **ret);
int table_print(const Table *t, FILE *f, bool legend);
