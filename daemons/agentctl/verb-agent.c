/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Agents: their list, their definitions. */

#include "document.h"
#include "exit-status.h"
#include "format.h"
#include "output.h"
#include "properties.h"
#include "verb.h"

typedef struct AgentInfo {
        char *name, *user, *definition, *generation;
        uint64_t created_usec;
} AgentInfo;

static const Property agent_properties[] = {
        { "Name", 's', offsetof(AgentInfo, name) },
        { "User", 's', offsetof(AgentInfo, user) },
        { "Definition", 's', offsetof(AgentInfo, definition) },
        { "Generation", 's', offsetof(AgentInfo, generation) },
        { "CreatedUSec", 't', offsetof(AgentInfo, created_usec) },
        {}
};

static void agent_info_done(AgentInfo *i) {
        free(i->name);
        free(i->user);
        free(i->definition);
        free(i->generation);
}

int verb_agent_list(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "NAME", "name", CELL_STRING },
                { "USER", "user", CELL_STRING },
                { "GENERATION", "generation", CELL_DIGEST },
                { NULL, "path", CELL_STRING },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *name, *user, *generation, *path;
        _cleanup_(table_freep) Table *t = NULL;
        int r;

        r = client_call(c, &manager_target, "ListAgents", &reply, NULL);
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();

        r = sd_bus_message_enter_container(reply, 'a', "(ssso)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(ssso)", &name, &user, &generation, &path)) > 0)
                if (table_add_string(t, name) < 0 || table_add_string(t, user) < 0 ||
                    table_add_string(t, generation) < 0 || table_add_string(t, path) < 0)
                        return fail_oom();
        if (r < 0)
                return client_bad_reply(r);
        return output_table(c, t, "agents");
}

int verb_agent_show(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *definition = NULL, *v = NULL;
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_(agent_info_done) AgentInfo info = {};
        _cleanup_free_ char *path = NULL;
        char buf[FORMAT_MAX];
        int r;

        r = client_call_string(c, "GetAgent", argv[0], &path);
        if (r < 0)
                return r;
        r = properties_get_all(c, path, "org.agentd1.Agent", agent_properties, &info, &error);
        if (r < 0)
                return client_report(&error, r, NULL);
        r = sd_json_parse(strempty(info.definition), 0, &definition, NULL, NULL);
        if (r < 0)
                return client_bad_reply(r);

        if (client_json(c)) {
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("name", strempty(info.name)),
                                   SD_JSON_BUILD_PAIR_STRING("user", strempty(info.user)),
                                   SD_JSON_BUILD_PAIR_STRING("generation", strempty(info.generation)),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("created_usec", info.created_usec),
                                   SD_JSON_BUILD_PAIR_STRING("path", path),
                                   SD_JSON_BUILD_PAIR_VARIANT("definition", definition));
                return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
        }

        printf("      Agent: %s\n       User: %s\n Generation: %s\n    Created: %s\n Definition: ", strempty(info.name),
               strempty(info.user), strempty(info.generation), format_time(info.created_usec, buf));
        r = output_json_value(definition);
        return r < 0 ? r : STATUS_SUCCESS;
}

int verb_agent_create(Client *c, int argc _unused_, char **argv) {
        return document_send(c, "CreateAgent", argv[0], "Agent", "created");
}

int verb_agent_update(Client *c, int argc _unused_, char **argv) {
        return document_send(c, "UpdateAgent", argv[0], "Agent", "updated");
}

int verb_agent_remove(Client *c, int argc _unused_, char **argv) {
        return document_act(c, "RemoveAgent", argv[0], "Agent", "removed");
}
