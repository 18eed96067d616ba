/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Agents, their generations, and the head, which moves by compare-and-swap: the new generation and the head that
 * points to it appear in one transaction, or neither does.
 */
#include "store-sqlite.h"

static int agent_id(SqliteStore *q, const char *user, const char *name, uint64_t *ret) {
        return sq_number(q, ret,
                         "SELECT a.id FROM agents a JOIN lanes l ON l.id = a.lane_id JOIN users u ON u.id = l.user_id "
                         "WHERE u.name = ? AND l.agent = ?",
                         "ss", user, name);
}

/* The generation becomes the agent's next one; -EEXIST where it is one of its own already. */
static int add_generation(SqliteStore *q, uint64_t agent, const StoreGeneration *g, uint64_t now) {
        return sq_run(q,
                      "INSERT INTO generations (agent_id, number, digest, parent, created_usec, author, note, "
                      "manifest) VALUES (?1, "
                      "(SELECT COALESCE(MAX(number), 0) + 1 FROM generations WHERE agent_id = ?1), ?, ?, ?, ?, ?, ?)",
                      "ussusss", agent, g->digest, g->parent, g->created_usec > 0 ? g->created_usec : now,
                      strempty(g->author), g->note, g->manifest);
}

/* Within the caller's transaction. */
static int add_agent(SqliteStore *q, const StoreAgent *agent, const StoreGeneration *first, uint64_t now) {
        int64_t lane;
        int r;

        r = sq_lane_id(q, agent->user, agent->name, true, &lane);
        if (r < 0)
                return r;
        r = sq_run(q,
                   "INSERT INTO agents (lane_id, uid, definition, concurrency, created_usec, changed_usec, head, "
                   "head_rev) VALUES (?, ?, ?, ?, ?5, ?5, ?, 1)",
                   "uusuus", (uint64_t) lane, (uint64_t) agent->uid, agent->definition, agent->concurrency, now,
                   first->digest);
        if (r < 0)
                return r; /* the name is taken: -EEXIST */
        return add_generation(q, (uint64_t) sqlite3_last_insert_rowid(q->db), first, now);
}

int sq_agent_add(Store *s, const StoreAgent *agent, const StoreGeneration *first) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = add_agent(q, agent, first, sq_now());
        if (r < 0)
                return r;
        return sq_commit(&t);
}

int sq_agent_update(Store *s, const char *user, const char *name, const char *definition, uint64_t concurrency) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t agent;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = agent_id(q, user, name, &agent);
        if (r < 0)
                return r;
        r = sq_run(q, "UPDATE agents SET definition = ?, concurrency = ?, changed_usec = ? WHERE id = ?", "suuu",
                   definition, concurrency, sq_now(), agent);
        if (r < 0)
                return r;
        return sq_commit(&t);
}

int sq_agent_remove(Store *s, const char *user, const char *name) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t agent, lane, unfinished;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = agent_id(q, user, name, &agent);
        if (r >= 0)
                r = sq_number(q, &lane, "SELECT lane_id FROM agents WHERE id = ?", "u", agent);
        if (r < 0)
                return r;
        r = sq_number(q, &unfinished, "SELECT queued + live FROM lanes WHERE id = ?", "u", lane);
        if (r < 0)
                return r;
        if (unfinished > 0)
                return -EBUSY;
        /* An agent of the same name that is made later is another agent. */
        r = sq_run(q, "DELETE FROM sessions WHERE lane_id = ?", "u", lane);
        if (r < 0)
                return r;
        r = sq_run(q, "DELETE FROM agents WHERE id = ?", "u", agent);
        if (r >= 0)
                r = sq_lane_drop(q, lane);
        if (r < 0)
                return r;
        return sq_commit(&t);
}

#define AGENT_SELECT_WITH(definition)                                                                                  \
        "SELECT u.name, a.uid, l.agent, " definition ", a.concurrency, a.created_usec, a.changed_usec, a.head, "       \
        "a.head_rev FROM agents a JOIN lanes l ON l.id = a.lane_id JOIN users u ON u.id = l.user_id "
#define AGENT_SELECT AGENT_SELECT_WITH("a.definition")
/* A definition may be long, and there may be many. */
#define AGENT_SELECT_SHORT AGENT_SELECT_WITH("NULL")

static int agent_from_row(sqlite3_stmt *st, StoreAgent *ret) {
        StoreAgent a = {
                .uid = (uid_t) sqlite3_column_int64(st, 1),
                .concurrency = sq_column_u64(st, 4),
                .created_usec = sq_column_u64(st, 5),
                .changed_usec = sq_column_u64(st, 6),
                .head_rev = sq_column_u64(st, 8),
        };
        int r;

        r = sq_column_dup(st, 0, &a.user);
        if (r >= 0)
                r = sq_column_dup(st, 2, &a.name);
        if (r >= 0)
                r = sq_column_dup(st, 3, &a.definition);
        if (r >= 0)
                r = sq_column_dup(st, 7, &a.head);
        if (r < 0) {
                store_agent_done(&a);
                return r;
        }
        *ret = a;
        return 0;
}

int sq_agent_get(Store *s, const char *user, const char *name, StoreAgent **ret) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        a = calloc(1, sizeof(*a));
        if (!a)
                return -ENOMEM;
        r = sq_row(q, &st, AGENT_SELECT "WHERE u.name = ? AND l.agent = ?", "ss", user, name);
        if (r < 0)
                return r;
        r = agent_from_row(st, a);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(a);
        return 0;
}

int sq_owned(Store *s, const char *user, StoreOwned *ret) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_row(SQLITE_STORE(s), &st,
                   "SELECT a.n, a.size, s.n, s.size FROM "
                   "(SELECT COUNT(*) AS n, COALESCE(SUM(OCTET_LENGTH(a.definition)), 0) AS size FROM agents a "
                   "JOIN lanes l ON l.id = a.lane_id JOIN users u ON u.id = l.user_id WHERE u.name = ?1) a, "
                   "(SELECT COUNT(*) AS n, COALESCE(SUM(OCTET_LENGTH(definition)), 0) AS size FROM services "
                   "WHERE user = ?1) s",
                   "s", user);
        if (r < 0)
                return r;
        *ret = (StoreOwned) { .agents = sq_column_u64(st, 0), .agents_size = sq_column_u64(st, 1),
                              .services = sq_column_u64(st, 2), .services_size = sq_column_u64(st, 3) };
        return 0;
}

int sq_agent_list(Store *s, const char *user, StoreAgentCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int n = 0, r;

        if (user)
                r = sq_query(q, &st, AGENT_SELECT_SHORT "WHERE u.name = ? ORDER BY l.agent", "s", user);
        else
                r = sq_query(q, &st, AGENT_SELECT_SHORT "ORDER BY u.name, l.agent", "");
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                StoreAgent a;

                r = agent_from_row(st, &a);
                if (r < 0)
                        return r;
                r = callback(&a, userdata);
                store_agent_done(&a);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

int sq_head_swap(Store *s, const char *user, const char *name, uint64_t expected_rev, const StoreGeneration *to,
                 uint64_t *ret_rev) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t agent, rev, number, now = sq_now();
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = agent_id(q, user, name, &agent);
        if (r < 0)
                return r;
        r = sq_number(q, &rev, "SELECT head_rev FROM agents WHERE id = ?", "u", agent);
        if (r < 0)
                return r;
        if (rev != expected_rev)
                return -ESTALE;
        r = sq_number(q, &number, "SELECT number FROM generations WHERE agent_id = ? AND digest = ?", "us", agent,
                      to->digest);
        if (r == -ENOENT && to->manifest)
                r = add_generation(q, agent, to, now);
        if (r < 0)
                return r;
        r = sq_run(q, "UPDATE agents SET head = ?, head_rev = head_rev + 1, changed_usec = ? WHERE id = ?", "suu",
                   to->digest, now, agent);
        if (r < 0)
                return r;
        r = sq_commit(&t);
        if (r < 0)
                return r;
        if (ret_rev)
                *ret_rev = rev + 1;
        return 0;
}

/* Columns: number, digest, parent, created, author, note, is head, manifest (or NULL) */
static int generation_from_row(sqlite3_stmt *st, StoreGeneration *ret) {
        StoreGeneration g = {
                .number = sq_column_u64(st, 0),
                .created_usec = sq_column_u64(st, 3),
                .is_head = sqlite3_column_int(st, 6) != 0,
        };
        int r;

        r = sq_column_dup(st, 1, &g.digest);
        if (r >= 0)
                r = sq_column_dup(st, 2, &g.parent);
        if (r >= 0)
                r = sq_column_dup(st, 4, &g.author);
        if (r >= 0)
                r = sq_column_dup(st, 5, &g.note);
        if (r >= 0)
                r = sq_column_dup(st, 7, &g.manifest);
        if (r < 0) {
                store_generation_done(&g);
                return r;
        }
        *ret = g;
        return 0;
}

int sq_generation_get(Store *s, const char *user, const char *name, const char *digest, StoreGeneration **ret) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        uint64_t agent;
        int r;

        g = calloc(1, sizeof(*g));
        if (!g)
                return -ENOMEM;
        r = agent_id(q, user, name, &agent);
        if (r < 0)
                return r;
        r = sq_row(q, &st,
                   "SELECT g.number, g.digest, g.parent, g.created_usec, g.author, g.note, g.digest = a.head, "
                   "g.manifest FROM generations g JOIN agents a ON a.id = g.agent_id "
                   "WHERE g.agent_id = ? AND g.digest = ?",
                   "us", agent, digest);
        if (r < 0)
                return r;
        r = generation_from_row(st, g);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(g);
        return 0;
}

int sq_generation_list(Store *s, const char *user, const char *name, StoreGenerationCallback callback,
                       void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        uint64_t agent;
        int n = 0, r;

        r = agent_id(q, user, name, &agent);
        if (r < 0)
                return r;
        r = sq_query(q, &st,
                     "SELECT g.number, g.digest, g.parent, g.created_usec, g.author, g.note, g.digest = a.head, NULL "
                     "FROM generations g JOIN agents a ON a.id = g.agent_id WHERE g.agent_id = ? "
                     "ORDER BY g.number DESC",
                     "u", agent);
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                StoreGeneration g;

                r = generation_from_row(st, &g);
                if (r < 0)
                        return r;
                r = callback(&g, userdata);
                store_generation_done(&g);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

int sq_generation_walk(Store *s, const char *user, const char *name, StoreGenerationWalk callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int n = 0, r;

        r = sq_query(q, &st,
                     "SELECT g.number, g.digest, g.parent, g.created_usec, g.author, g.note, g.digest = a.head, "
                     "g.manifest, u.name, l.agent FROM generations g JOIN agents a ON a.id = g.agent_id "
                     "JOIN lanes l ON l.id = a.lane_id JOIN users u ON u.id = l.user_id "
                     "WHERE (?1 IS NULL OR u.name = ?1) AND (?2 IS NULL OR l.agent = ?2) "
                     "ORDER BY u.name, l.agent, g.number DESC",
                     "ss", user, name);
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                _cleanup_free_ char *owner = NULL, *agent = NULL;
                StoreGeneration g;

                r = sq_column_dup(st, 8, &owner);
                if (r >= 0)
                        r = sq_column_dup(st, 9, &agent);
                if (r >= 0)
                        r = generation_from_row(st, &g);
                if (r < 0)
                        return r;
                r = callback(owner, agent, &g, userdata);
                store_generation_done(&g);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

int sq_generations_import(Store *s, const StoreAgent *agent, const StoreGeneration *generations, size_t n,
                          bool *ret_made) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t id, number, now = sq_now();
        bool made = false;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = agent_id(q, agent->user, agent->name, &id);
        if (r == -ENOENT) {
                r = add_agent(q, agent, &generations[0], now);
                if (r >= 0)
                        r = agent_id(q, agent->user, agent->name, &id);
                made = true;
        }
        for (size_t i = 0; r >= 0 && i < n; i++) {
                r = sq_number(q, &number, "SELECT number FROM generations WHERE agent_id = ? AND digest = ?", "us", id,
                              generations[i].digest);
                if (r == -ENOENT)
                        r = add_generation(q, id, &generations[i], now);
        }
        if (r >= 0)
                r = sq_run(
                        q,
                        "UPDATE agents SET head = ?1, head_rev = head_rev + 1, changed_usec = ?2 WHERE id = ?3 AND head <> ?1",
                        "suu", generations[n - 1].digest, now, id);
        if (r >= 0)
                r = sq_commit(&t);
        if (r < 0)
                return r;
        *ret_made = made;
        return 0;
}

int sq_generation_remove(Store *s, const char *user, const char *name, char *const *digests) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t agent, is_head;
        int n = 0, r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = agent_id(q, user, name, &agent);
        if (r < 0)
                return r;
        for (char *const *d = digests; d && *d; d++) {
                r = sq_number(q, &is_head, "SELECT head = ? FROM agents WHERE id = ?", "su", *d, agent);
                if (r < 0)
                        return r;
                if (is_head)
                        return -EBUSY;
                r = sq_run(q, "DELETE FROM generations WHERE agent_id = ? AND digest = ?", "us", agent, *d);
                if (r < 0)
                        return r;
                n += r;
        }
        r = sq_commit(&t);
        return r < 0 ? r : n;
}
