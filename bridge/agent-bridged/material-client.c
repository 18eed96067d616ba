/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See material-client.h. */

#include <sys/socket.h>
#include <systemd/sd-varlink.h>

#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "material-client.h"

#define INTERFACE "org.agentd1.Material"
/* The strong room may have to fetch an access token first. */
#define TIMEOUT_USEC (60 * USEC_PER_SEC)

struct MaterialCall {
        Bridge *bridge;
        sd_varlink *link; /* NULL once it went back to the idle ones */
        material_callback_t callback;
        void *userdata;
        bool get;
};

void material_done(Material *m) {
        http_field_list_done(&m->headers);
        for (char **s = m->redact; s && *s; s++)
                explicit_bzero(*s, strlen(*s));
        strv_free(m->redact);
        *m = (Material) {};
}

MaterialCall *material_call_free(MaterialCall *c) {
        if (!c)
                return NULL;

        /* One that still waits for an answer is of no use to others. */
        if (c->link) {
                (void) sd_varlink_bind_reply(c->link, NULL);
                sd_varlink_close_unref(c->link);
        }
        return mfree(c);
}

static int material_read(sd_json_variant *v, Material *ret) {
        sd_json_variant *headers = sd_json_variant_by_key(v, "headers"), *redact = sd_json_variant_by_key(v, "redact"),
                        *generation = sd_json_variant_by_key(v, "generation");
        int r;

        if (!sd_json_variant_is_array(headers) || !sd_json_variant_is_array(redact))
                return -EBADMSG;

        for (size_t i = 0; i < sd_json_variant_elements(headers); i++) {
                sd_json_variant *h = sd_json_variant_by_index(headers, i);
                const char *name = json_string(h, "name"), *value = json_string(h, "value");

                if (!name || !value || !http_field_name_is_valid(name) || !http_field_value_is_valid(value))
                        return -EBADMSG;
                r = http_field_list_add(&ret->headers, name, value);
                if (r < 0)
                        return r;
        }

        for (size_t i = 0; i < sd_json_variant_elements(redact); i++) {
                sd_json_variant *s = sd_json_variant_by_index(redact, i);

                if (!sd_json_variant_is_string(s))
                        return -EBADMSG;
                r = strv_extend(&ret->redact, sd_json_variant_string(s));
                if (r < 0)
                        return r;
        }

        if (generation && sd_json_variant_is_unsigned(generation))
                ret->generation = sd_json_variant_unsigned(generation);
        return 0;
}

static MaterialError error_from_id(const char *id) {
        static const struct {
                const char *id;
                MaterialError error;
        } table[] = {
                { INTERFACE ".TokenRefused", MATERIAL_TOKEN_REFUSED },
                { INTERFACE ".ServiceNotInScope", MATERIAL_NOT_IN_SCOPE },
                { INTERFACE ".NoCredential", MATERIAL_NO_CREDENTIAL },
                { INTERFACE ".CredentialUnusable", MATERIAL_UNUSABLE },
                { INTERFACE ".AccessTokenUnavailable", MATERIAL_NO_ACCESS_TOKEN },
        };

        for (size_t i = 0; i < ELEMENTSOF(table); i++)
                if (streq(id, table[i].id))
                        return table[i].error;
        return MATERIAL_UNAVAILABLE;
}

void material_idle_drop(Bridge *b) {
        while (b->n_material_idle > 0)
                sd_varlink_close_unref(b->material_idle[--b->n_material_idle]);
}

static int on_reply(sd_varlink *link, sd_json_variant *parameters, const char *error_id, sd_varlink_reply_flags_t flags,
                    void *userdata) {
        MaterialCall *c = userdata;
        Material m = {};
        MaterialError error = MATERIAL_OK;

        if (error_id) {
                error = error_from_id(error_id);
                if (error == MATERIAL_UNAVAILABLE) /* the others' other ends may be gone as well */
                        material_idle_drop(c->bridge);
        } else if (c->get) {
                int r = material_read(parameters, &m);
                if (r < 0) {
                        log_warning_errno(r, "The strong room's answer makes no sense: %m");
                        error = MATERIAL_UNAVAILABLE;
                }
        }

        /* A connection takes one call after another; who waits for an access token has his own. While this function
         * runs it takes none. */
        Bridge *b = c->bridge;
        sd_varlink *again = error != MATERIAL_UNAVAILABLE ? TAKE_PTR(c->link) : NULL;

        c->callback(error, &m, c->userdata); /* c may be gone now */
        if (again) {
                /* It may say that its other end is gone: to nobody then. */
                (void) sd_varlink_bind_reply(again, NULL);
                (void) sd_varlink_set_userdata(again, NULL);
        }
        if (again && b->n_material_idle < ELEMENTSOF(b->material_idle))
                b->material_idle[b->n_material_idle++] = again;
        else
                sd_varlink_close_unref(again);
        material_done(&m);
        return 0;
}

static bool link_is_open(sd_varlink *link) {
        int fd = sd_varlink_get_fd(link);
        char c;

        /* Nothing is owed to us: what there is to read is the end. */
        return fd >= 0 && recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static int call_start(Bridge *b, bool get, material_callback_t callback, void *userdata, MaterialCall **ret) {
        MaterialCall *c = calloc(1, sizeof(MaterialCall));
        if (!c)
                return -ENOMEM;
        *c = (MaterialCall) { .bridge = b, .callback = callback, .userdata = userdata, .get = get };

        /* One whose other end went away says so here, or with the first answer. */
        while (b->n_material_idle > 0 && !link_is_open(b->material_idle[b->n_material_idle - 1]))
                sd_varlink_close_unref(b->material_idle[--b->n_material_idle]);
        if (b->n_material_idle > 0) {
                c->link = b->material_idle[--b->n_material_idle];
                (void) sd_varlink_set_userdata(c->link, c);
                int k = sd_varlink_bind_reply(c->link, on_reply);
                if (k < 0) {
                        material_call_free(c);
                        return k;
                }
                *ret = c;
                return 0;
        }

        int r = sd_varlink_connect_address(&c->link, b->paths.material);
        if (r >= 0)
                r = sd_varlink_set_input_sensitive(c->link);
        if (r >= 0)
                r = sd_varlink_set_relative_timeout(c->link, TIMEOUT_USEC);
        if (r >= 0) {
                (void) sd_varlink_set_userdata(c->link, c);
                r = sd_varlink_bind_reply(c->link, on_reply);
        }
        if (r >= 0)
                r = sd_varlink_attach_event(c->link, b->event, SD_EVENT_PRIORITY_NORMAL);
        if (r < 0) {
                material_call_free(c);
                return r;
        }
        *ret = c;
        return 0;
}

int material_get(Bridge *b, const LiveRun *live, const Service *service, const char *token,
                 material_callback_t callback,
                 void *userdata, MaterialCall **ret) {
        MaterialCall *c;

        int r = call_start(b, true, callback, userdata, &c);
        if (r < 0)
                return r;
        r = sd_varlink_invokebo(c->link, INTERFACE ".Get", SD_JSON_BUILD_PAIR("run", SD_JSON_BUILD_STRING(live->run)),
                                SD_JSON_BUILD_PAIR("service", SD_JSON_BUILD_STRING(service->name)),
                                SD_JSON_BUILD_PAIR("token", SD_JSON_BUILD_STRING(token)));
        if (r < 0) {
                material_call_free(c);
                return r;
        }
        *ret = c;
        return 0;
}

int material_invalidate(Bridge *b, const LiveRun *live, const Service *service, const char *token, uint64_t generation,
                        material_callback_t callback, void *userdata, MaterialCall **ret) {
        MaterialCall *c;

        int r = call_start(b, false, callback, userdata, &c);
        if (r < 0)
                return r;
        r = sd_varlink_invokebo(c->link, INTERFACE ".Invalidate",
                                SD_JSON_BUILD_PAIR("run", SD_JSON_BUILD_STRING(live->run)),
                                SD_JSON_BUILD_PAIR("service", SD_JSON_BUILD_STRING(service->name)),
                                SD_JSON_BUILD_PAIR("token", SD_JSON_BUILD_STRING(token)),
                                SD_JSON_BUILD_PAIR("generation", SD_JSON_BUILD_UNSIGNED(generation)));
        if (r < 0) {
                material_call_free(c);
                return r;
        }
        *ret = c;
        return 0;
}
