/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Images, services and small blobs: named things without a life of their own. */
#include "store-sqlite.h"

/* ---- images ---- */

int sq_image_add(Store *s, const StoreImage *image) {
        int r = sq_run(SQLITE_STORE(s),
                       "INSERT INTO images (user, name, digest, size, created_usec) VALUES (?, ?, ?, ?, ?)", "sssuu",
                       image->user, image->name, image->digest, image->size,
                       image->created_usec > 0 ? image->created_usec : sq_now());

        return r < 0 ? r : 0;
}

static int image_from_row(sqlite3_stmt *st, StoreImage *ret) {
        StoreImage i = {
                .size = sq_column_u64(st, 3),
                .created_usec = sq_column_u64(st, 4),
        };
        int r;

        r = sq_column_dup(st, 0, &i.user);
        if (r >= 0)
                r = sq_column_dup(st, 1, &i.name);
        if (r >= 0)
                r = sq_column_dup(st, 2, &i.digest);
        if (r < 0) {
                store_image_done(&i);
                return r;
        }
        *ret = i;
        return 0;
}

int sq_image_find(Store *s, const char *user, const char *name, StoreImage **ret) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_(store_image_freep) StoreImage *i = NULL;
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        i = calloc(1, sizeof(*i));
        if (!i)
                return -ENOMEM;
        r = sq_row(q, &st,
                   "SELECT user, name, digest, size, created_usec FROM images "
                   "WHERE user IN (?1, 'root') AND name = ? ORDER BY user = ?1 DESC LIMIT 1",
                   "ss", user, name);
        if (r < 0)
                return r;
        r = image_from_row(st, i);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(i);
        return 0;
}

int sq_image_remove(Store *s, const char *user, const char *name) {
        int r = sq_run(SQLITE_STORE(s), "DELETE FROM images WHERE user = ? AND name = ?", "ss", user, name);

        return r < 0 ? r : r == 0 ? -ENOENT : 0;
}

int sq_image_list(Store *s, const char *user, StoreImageCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int n = 0, r;

        if (user)
                r = sq_query(q, &st,
                             "SELECT user, name, digest, size, created_usec FROM images WHERE user IN (?, 'root') "
                             "ORDER BY name, user",
                             "s", user);
        else
                r = sq_query(q, &st, "SELECT user, name, digest, size, created_usec FROM images ORDER BY name, user",
                             "");
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                StoreImage i;

                r = image_from_row(st, &i);
                if (r < 0)
                        return r;
                r = callback(&i, userdata);
                store_image_done(&i);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

/* ---- services ---- */

int sq_service_add(Store *s, const char *user, const char *name, const char *definition) {
        int r = sq_run(SQLITE_STORE(s),
                       "INSERT INTO services (user, name, definition, created_usec, changed_usec) "
                       "VALUES (?, ?, ?, ?4, ?4)",
                       "sssu", user, name, definition, sq_now());

        return r < 0 ? r : 0;
}

int sq_service_update(Store *s, const char *user, const char *name, const char *definition) {
        int r = sq_run(SQLITE_STORE(s),
                       "UPDATE services SET definition = ?, changed_usec = ? WHERE user = ? AND name = ?", "suss",
                       definition, sq_now(), user, name);

        return r < 0 ? r : r == 0 ? -ENOENT : 0;
}

int sq_service_remove(Store *s, const char *user, const char *name) {
        int r = sq_run(SQLITE_STORE(s), "DELETE FROM services WHERE user = ? AND name = ?", "ss", user, name);

        return r < 0 ? r : r == 0 ? -ENOENT : 0;
}

static int service_from_row(sqlite3_stmt *st, StoreService *ret) {
        StoreService v = {
                .created_usec = sq_column_u64(st, 3),
                .changed_usec = sq_column_u64(st, 4),
        };
        int r;

        r = sq_column_dup(st, 0, &v.user);
        if (r >= 0)
                r = sq_column_dup(st, 1, &v.name);
        if (r >= 0)
                r = sq_column_dup(st, 2, &v.definition);
        if (r < 0) {
                store_service_done(&v);
                return r;
        }
        *ret = v;
        return 0;
}

int sq_service_get(Store *s, const char *user, const char *name, StoreService **ret) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_(store_service_freep) StoreService *v = NULL;
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        v = calloc(1, sizeof(*v));
        if (!v)
                return -ENOMEM;
        r = sq_row(q, &st,
                   "SELECT user, name, definition, created_usec, changed_usec FROM services "
                   "WHERE user = ? AND name = ?",
                   "ss", user, name);
        if (r < 0)
                return r;
        r = service_from_row(st, v);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(v);
        return 0;
}

int sq_service_list(Store *s, const char *user, StoreServiceCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int n = 0, r;

        if (user)
                r = sq_query(q, &st,
                             "SELECT user, name, definition, created_usec, changed_usec FROM services WHERE user = ? "
                             "ORDER BY name",
                             "s", user);
        else
                r = sq_query(q, &st,
                             "SELECT user, name, definition, created_usec, changed_usec FROM services "
                             "ORDER BY user, name",
                             "");
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                StoreService v;

                r = service_from_row(st, &v);
                if (r < 0)
                        return r;
                r = callback(&v, userdata);
                store_service_done(&v);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

/* ---- blobs ---- */

int sq_blob_put(Store *s, const char *digest, const void *data, size_t size) {
        int r = sq_run(SQLITE_STORE(s), "INSERT OR IGNORE INTO blobs (digest, data, created_usec) VALUES (?, ?, ?)",
                       "sbu", digest, data, size, sq_now());

        return r < 0 ? r : 0;
}

int sq_blob_get(Store *s, const char *digest, char **ret, size_t *ret_size) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_row(q, &st, "SELECT data FROM blobs WHERE digest = ?", "s", digest);
        if (r < 0)
                return r;
        return sq_column_dup_size(st, 0, ret, ret_size);
}
