/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Typed cells, aligned text and JSON. See table.h. */

#include "table.h"

#include "format.h"

typedef struct Cell {
        char *string;
        uint64_t number;
} Cell;

struct Table {
        const Column *columns;
        size_t n_columns;
        Cell *cells;
        size_t n_cells, n_allocated;
};

Table *table_new(const Column *columns, size_t n_columns) {
        Table *t = malloc(sizeof(*t));

        if (t)
                *t = (Table) { .columns = columns, .n_columns = n_columns };
        return t;
}

Table *table_free(Table *t) {
        if (!t)
                return NULL;
        for (size_t i = 0; i < t->n_cells; i++)
                free(t->cells[i].string);
        free(t->cells);
        return mfree(t);
}

static bool type_is_text(CellType type) {
        return type == CELL_STRING || type == CELL_DIGEST;
}

static Cell *table_next(Table *t) {
        if (t->n_cells == t->n_allocated) {
                size_t n = t->n_allocated * 2 + 64;
                Cell *cells = reallocarray(t->cells, n, sizeof(Cell));

                if (!cells)
                        return NULL;
                t->cells = cells;
                t->n_allocated = n;
        }
        t->cells[t->n_cells] = (Cell) {};
        return t->cells + t->n_cells++;
}

int table_add_string(Table *t, const char *s) {
        Cell *cell;

        assert(type_is_text(t->columns[t->n_cells % t->n_columns].type));
        cell = table_next(t);
        if (!cell)
                return -ENOMEM;
        cell->string = strdup(strempty(s));
        return cell->string ? 0 : -ENOMEM;
}

int table_add_number(Table *t, uint64_t n) {
        Cell *cell;

        assert(!type_is_text(t->columns[t->n_cells % t->n_columns].type));
        cell = table_next(t);
        if (!cell)
                return -ENOMEM;
        cell->number = n;
        return 0;
}

size_t table_rows(const Table *t) {
        return t->n_cells / t->n_columns;
}

/* The cell's text for people. Allocated. */
static char *cell_text(CellType type, const Cell *cell) {
        char buf[FORMAT_MAX];

        switch (type) {

        case CELL_STRING:
                return isempty(cell->string) ? strdup("-") : text_escape(cell->string, strlen(cell->string), false);

        case CELL_DIGEST: {
                const char *s = format_digest(cell->string, buf);
                return isempty(s) ? strdup("-") : text_escape(s, strlen(s), false);
        }

        case CELL_NUMBER:
                snprintf(buf, sizeof(buf), "%" PRIu64, cell->number);
                return strdup(buf);

        case CELL_SIZE:
                return strdup(format_size(cell->number, buf));

        case CELL_TIME:
                return strdup(format_time(cell->number, buf));

        case CELL_SPAN:
                return strdup(cell->number == USEC_INFINITY ? "-" : format_span(cell->number, buf));

        case CELL_BOOL:
                return strdup(cell->number ? "yes" : "");
        }
        assert(false);
}

static int cell_json(CellType type, const Cell *cell, sd_json_variant **ret) {
        if (type_is_text(type))
                return isempty(cell->string) ? sd_json_variant_new_null(ret) :
                                               sd_json_variant_new_string(ret, cell->string);
        if (type == CELL_BOOL)
                return sd_json_variant_new_boolean(ret, cell->number != 0);
        if ((type == CELL_TIME && cell->number == 0) || (type == CELL_SPAN && cell->number == USEC_INFINITY))
                return sd_json_variant_new_null(ret);
        return sd_json_variant_new_unsigned(ret, cell->number);
}

int table_to_json(const Table *t, sd_json_variant **ret) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *array = NULL;
        int r;

        r = sd_json_variant_new_array(&array, NULL, 0);
        if (r < 0)
                return r;

        for (size_t row = 0; row < table_rows(t); row++) {
                _cleanup_(sd_json_variant_unrefp) sd_json_variant *object = NULL;

                for (size_t i = 0; i < t->n_columns; i++) {
                        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;

                        if (!t->columns[i].key)
                                continue;
                        r = cell_json(t->columns[i].type, t->cells + row * t->n_columns + i, &v);
                        if (r < 0)
                                return r;
                        r = sd_json_variant_set_field(&object, t->columns[i].key, v);
                        if (r < 0)
                                return r;
                }
                r = sd_json_variant_append_array(&array, object);
                if (r < 0)
                        return r;
        }

        *ret = TAKE_PTR(array);
        return 0;
}

static void print_padded(FILE *f, const char *s, size_t width, bool right, bool last) {
        size_t pad = width - text_width(s);

        if (right)
                fprintf(f, "%*s", (int) pad, "");
        fputs(s, f);
        if (!right && !last)
                fprintf(f, "%*s", (int) pad, "");
        fputs(last ? "\n" : " ", f);
}

int table_print(const Table *t, FILE *f, bool legend) {
        size_t rows = table_rows(t), n = rows * t->n_columns, last = 0;
        _cleanup_free_ size_t *widths = NULL;
        char **texts;
        int r = 0;

        texts = calloc(n + 1, sizeof(char *));
        widths = calloc(t->n_columns, sizeof(size_t));
        if (!texts || !widths) {
                free(texts);
                return -ENOMEM;
        }

        for (size_t i = 0; i < t->n_columns; i++)
                if (t->columns[i].title) {
                        widths[i] = legend ? text_width(t->columns[i].title) : 0;
                        last = i;
                }
        for (size_t i = 0; i < n; i++) {
                size_t column = i % t->n_columns;

                if (!t->columns[column].title)
                        continue;
                texts[i] = cell_text(t->columns[column].type, t->cells + i);
                if (!texts[i]) {
                        r = -ENOMEM;
                        goto finish;
                }
                widths[column] = MAX(widths[column], text_width(texts[i]));
        }

        if (legend)
                for (size_t i = 0; i < t->n_columns; i++)
                        if (t->columns[i].title)
                                print_padded(f, t->columns[i].title, widths[i],
                                             t->columns[i].type == CELL_NUMBER || t->columns[i].type == CELL_SIZE,
                                             i == last);
        for (size_t i = 0; i < n; i++) {
                size_t column = i % t->n_columns;

                if (texts[i])
                        print_padded(f, texts[i], widths[column],
                                     t->columns[column].type == CELL_NUMBER || t->columns[column].type == CELL_SIZE,
                                     column == last);
        }

finish:
        for (size_t i = 0; i < n; i++)
                free(texts[i]);
        free(texts);
        return r;
}
