/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * May this call be made? See service-call.h. In this order, each before the next and all of them before the credential
 * is looked up or a byte of the body is read: method and path, size, form, rate and number, a person's approval.
 */

#include "basic/log.h"
#include "basic/string-util.h"
#include "basic/text.h"
#include "exchange.h"
#include "http/problem.h"
#include "service-call.h"

/* True where there is room; else it was answered. */
static bool take_places(ServiceCall *c) {
        const BridgeConfig *config = &c->bridge->config;
        Limit run = { .concurrent = config->run_limit.concurrent };
        Limit service = {
                .rate = c->service->rate, .burst = c->service->burst, .concurrent = c->service->concurrent,
        };
        Exchange *x = exchange_of(c->http);
        char run_buf[64], user_buf[512], service_buf[1024];
        const char *run_key = text_key(run_buf, sizeof(run_buf), "calls ", c->run->id, NULL),
                   *user_key = text_key(user_buf, sizeof(user_buf), "user ", c->live->user, NULL),
                   *service_key = text_key(service_buf, sizeof(service_buf), "service ", c->live->user,
                                           c->service->name);
        uint64_t now = 0, retry_usec = 0;

        int r = run_key && user_key && service_key ? 0 : -ENAMETOOLONG;
        (void) sd_event_now(c->bridge->event, CLOCK_MONOTONIC, &now);
        if (r >= 0)
                r = limit_take(c->bridge->limits, run_key, &run, now, &x->lease, 0, &retry_usec);
        if (r >= 0)
                r = limit_take(c->bridge->limits, user_key, &config->user_limit, now, &x->lease, 1, &retry_usec);
        if (r >= 0)
                r = limit_take(c->bridge->limits, service_key, &service, now, &x->lease, 2, &retry_usec);
        if (r >= 0)
                return true;

        lease_release(&x->lease);
        if (r == -EAGAIN || r == -EBUSY) {
                c->bridge->counters.limited++;
                c->outcome = "denied";
                c->reported_status = 429;
                route_limited(c->http, retry_usec);
        } else
                call_fail(c, 503, "out-of-memory", NULL, "denied");
        return false;
}

static void on_approval(ApprovalVerdict verdict, void *userdata) {
        ServiceCall *c = userdata;

        c->approval = approval_free(c->approval);
        switch (verdict) {
        case APPROVAL_GRANTED:
                call_get_material(c);
                return;
        case APPROVAL_DENIED:
                call_fail(c, 403, "approval-denied", "A person was asked, and said no.", "denied");
                return;
        case APPROVAL_TIMEOUT:
                call_fail(c, 403, "approval-timeout", "A person was asked, and did not answer in time.", "denied");
                return;
        case APPROVAL_UNAVAILABLE:
                call_fail(c, 503, "approval-unavailable", "Nobody can be asked for approval at the moment.", "denied");
                return;
        }
}

void call_check(ServiceCall *c) {
        const HttpHead *head = http_request_head(c->http);
        const char *path = *c->path ? c->path : "/";
        bool approval = false;

        if (c->mode != CALL_PROXY && !service_match(c->service, c->method, path, &approval)) {
                call_fail(c, 403, "not-allowed", "The service's definition does not allow this method and path.",
                          "denied");
                return;
        }
        if (head->length != HTTP_LENGTH_UNKNOWN && head->length > c->body_max) {
                call_fail(c, 413, "body-too-large", "The request's body is larger than the service allows.", "denied");
                return;
        }
        if (streq(c->method, "HEAD") && head->length != 0) {
                call_fail(c, 400, "head-with-body", "A HEAD request has no body.", "denied");
                return;
        }
        /* A token in the URL would travel on, into somebody's log. */
        if (strstr(path, c->token) || (head->query && strstr(head->query, c->token))) {
                call_fail(c, 400, "token-in-url", "The run token does not belong into a URL.", "denied");
                return;
        }
        if (!take_places(c))
                return;
        if (!approval) {
                call_get_material(c);
                return;
        }

        int r = approval_ask(c->bridge, c->live, http_request_id(c->http), c->service->name, c->method, path,
                             on_approval, c, &c->approval);
        if (r < 0) {
                log_warning_limited_errno(r, "Run %s: failed to ask for approval: %m", c->live->run);
                on_approval(APPROVAL_UNAVAILABLE, c);
        }
}
