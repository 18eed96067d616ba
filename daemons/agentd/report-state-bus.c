/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The part of org.agentd1.Report that keeps something for runs: session state, deductions, and what a run may know of
 * runs. As in report-bus.c all of it may be repeated, and none of it is believed.
 */
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "run.h"

/* Without prices yet: what one run may deduct in all, in micro-credits. */
#define USAGE_MAX UINT64_C(1000000000000)

/* The row of a live run in its attempt, whose bridge is asking. */
static int read_live(Manager *m, sd_bus_message *msg, sd_bus_error *e, StoreRun **ret) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        const char *id;
        uint32_t attempt;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(msg, "su", &id, &attempt);
        if (r < 0)
                return r;
        if (!run_id_is_valid(id))
                return report_error(m, e, -ENOENT, "given");
        r = store_run_get(m->store, id, &row);
        if (r < 0)
                return report_error(m, e, r, id);
        if (row->state == RUN_FINISHED || row->state == RUN_QUEUED || row->attempt != attempt)
                return report_error(m, e, -ESTALE, id);
        *ret = TAKE_PTR(row);
        return 0;
}

int method_report_usage(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        Manager *m = userdata;
        const char *id, *key, *description;
        uint32_t attempt;
        uint64_t amount;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(msg, "susts", &id, &attempt, &key, &amount, &description);
        if (r < 0)
                return r;
        if (!run_id_is_valid(id))
                return report_error(m, e, -ENOENT, "given");
        if (strlen(description) > 255 || string_has_cc(description))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_INPUT, "The description is too long or not printable.");
        r = store_usage_add(m->store, id, attempt, key, amount, description, USAGE_MAX);
        if (r == -EEXIST)
                return sd_bus_error_setf(e, BUS_ERROR_IDEMPOTENCY_CONFLICT,
                                         "The key \"%s\" was used for another amount.", key);
        if (r < 0)
                return report_error(m, e, r, id);
        return sd_bus_reply_method_return(msg, "b", r > 0);
}

static int check_session(const StoreRun *row, sd_bus_error *e) {
        return row->session ? 0 : sd_bus_error_set(e, BUS_ERROR_NO_SUCH_SESSION, "The run has no session.");
}

int method_get_session(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(store_session_freep) StoreSession *state = NULL;
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *tag = NULL;
        Manager *m = userdata;
        int r;

        r = read_live(m, msg, e, &row);
        if (r >= 0)
                r = check_session(row, e);
        if (r < 0)
                return r;
        r = store_session_get(m->store, row->user, row->agent, row->session, &state);
        if (r == -ENOENT)
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_SESSION, "Nothing was put into this session yet.");
        if (r < 0)
                return bus_store_error(m, e, r);
        tag = strprintf("\"%" PRIu64 "\"", state->rev);
        if (!tag)
                return -ENOMEM;
        r = sd_bus_message_new_method_return(msg, &reply);
        if (r >= 0)
                r = sd_bus_message_append(reply, "ss", state->content_type, tag);
        if (r >= 0)
                r = sd_bus_message_append_array(reply, 'y', state->data, state->size);
        return r < 0 ? r : sd_bus_send(NULL, reply, NULL);
}

/* "": whatever there is; a tag that we have given; "*": something must be there, which no number says. */
static int parse_match(const char *match, uint64_t *ret) {
        size_t n = strlen(match);
        _cleanup_free_ char *number = NULL;

        if (n == 0) {
                *ret = STORE_UNKNOWN;
                return 0;
        }
        if (n < 3 || match[0] != '"' || match[n - 1] != '"')
                return -EINVAL;
        number = strndup(match + 1, n - 2);
        return number ? parse_uint64(number, ret) : -ENOMEM;
}

int method_put_session(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        const char *type, *match;
        uint64_t expected, rev;
        Manager *m = userdata;
        const void *data;
        char tag[24];
        size_t size;
        int r;

        r = read_live(m, msg, e, &row);
        if (r >= 0)
                r = check_session(row, e);
        if (r >= 0)
                r = sd_bus_message_read(msg, "ss", &type, &match);
        if (r >= 0)
                r = sd_bus_message_read_array(msg, 'y', &data, &size);
        if (r < 0)
                return r;
        if (strlen(type) > 255 || string_has_cc(type))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_INPUT, "Not a valid content type.");
        r = parse_match(match, &expected);
        if (r < 0)
                return sd_bus_error_set(e, BUS_ERROR_SESSION_CHANGED, "If-Match is not a tag of this session.");
        r = store_session_put(m->store, row->user, row->agent, row->session,
                              &(StoreSession) {
                                      .content_type = (char *) type,
                                      .data = (char *) (data ?: ""),
                                      .size = size,
                              },
                              expected, m->settings->max_sessions_per_user, &rev);
        if (r == -EEXIST)
                return sd_bus_error_set(e, BUS_ERROR_SESSION_CHANGED, "The session was changed meanwhile.");
        if (r < 0)
                return report_error(m, e, r, row->id);
        snprintf(tag, sizeof tag, "\"%" PRIu64 "\"", rev);
        return sd_bus_reply_method_return(msg, "s", tag);
}

int method_get_run_document(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL, *other = NULL;
        _cleanup_json_ sd_json_variant *v = NULL, *posted = NULL;
        _cleanup_free_ char *text = NULL, *result = NULL;
        Manager *m = userdata;
        const char *id;
        int r;

        r = read_live(m, msg, e, &row);
        if (r >= 0)
                r = sd_bus_message_read(msg, "s", &id);
        if (r < 0)
                return r;
        r = run_id_is_valid(id) ? store_run_get(m->store, id, &other) : -ENOENT;
        /* Its own, or one that it has called: of others a run does not even know whether they exist. */
        if (r >= 0 && !streq(other->id, row->id) && !streq_ptr(other->parent, row->id))
                r = -ENOENT;
        if (r == -ENOENT)
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_ARTIFACT,
                                        "There is no such run that this one may know of.");
        if (r < 0)
                return bus_store_error(m, e, r);
        if (other->has_posted && store_run_get_posted(m->store, id, &result) >= 0)
                (void) json_parse(result, strlen(result), &posted, NULL);
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("run", other->id),
                           SD_JSON_BUILD_PAIR_STRING("agent", other->agent),
                           SD_JSON_BUILD_PAIR_STRING("state", run_state_to_string(other->state)),
                           SD_JSON_BUILD_PAIR_CONDITION(other->state == RUN_FINISHED, "result",
                                                        SD_JSON_BUILD_STRING(run_result_to_string(other->result))),
                           SD_JSON_BUILD_PAIR_CONDITION(!isempty(other->message), "message",
                                                        SD_JSON_BUILD_STRING(strempty(other->message))),
                           SD_JSON_BUILD_PAIR_CONDITION(!!posted, "posted", SD_JSON_BUILD_VARIANT(posted)),
                           SD_JSON_BUILD_PAIR_UNSIGNED("attempt", other->attempt),
                           SD_JSON_BUILD_PAIR_UNSIGNED("created_usec", other->created_usec),
                           SD_JSON_BUILD_PAIR_UNSIGNED("started_usec", other->started_usec),
                           SD_JSON_BUILD_PAIR_UNSIGNED("finished_usec", other->finished_usec));
        if (r >= 0)
                r = json_format_canonical(v, &text);
        return r < 0 ? r : sd_bus_reply_method_return(msg, "s", text);
}
