/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The Manager's bus face: the vtable. The methods are in *-bus.c by subject; dbus/org.agentd1.Manager.xml documents
 * them. */
#include "bus-util.h"

static int property_version(sd_bus *bus, const char *path, const char *interface, const char *property,
                            sd_bus_message *reply, void *userdata, sd_bus_error *e) {
        return sd_bus_message_append(reply, "s", AGENTD_VERSION);
}

static int property_runner(sd_bus *bus, const char *path, const char *interface, const char *property,
                           sd_bus_message *reply, void *userdata, sd_bus_error *e) {
        const Runner *current = runner_set_current(&((Manager *) userdata)->runners);

        return sd_bus_message_append(reply, "s", current ? current->digest : "");
}

static int property_signing_key(sd_bus *bus, const char *path, const char *interface, const char *property,
                                sd_bus_message *reply, void *userdata, sd_bus_error *e) {
        return sd_bus_message_append(reply, "s", key_state_to_string(((Manager *) userdata)->key_state));
}

static int property_count(sd_bus *bus, const char *path, const char *interface, const char *property,
                          sd_bus_message *reply, void *userdata, sd_bus_error *e) {
        Manager *m = userdata;
        StoreCounts counts;
        int r;

        r = store_counts(m->store, NULL, NULL, &counts);
        if (r < 0)
                return bus_store_error(m, e, r);
        return sd_bus_message_append(reply, "u", (uint32_t) (streq(property, "NQueued") ? counts.queued : counts.live));
}

#define METHOD(name, args, result, handler)                                                                            \
        SD_BUS_METHOD_WITH_ARGS(name, SD_BUS_ARGS args, SD_BUS_RESULT result, handler, SD_BUS_VTABLE_UNPRIVILEGED)
#define METHOD_NO_RESULT(name, args, handler)                                                                          \
        SD_BUS_METHOD_WITH_ARGS(name, SD_BUS_ARGS args, SD_BUS_NO_RESULT, handler, SD_BUS_VTABLE_UNPRIVILEGED)
#define METHOD_NO_ARGS(name, result, handler)                                                                          \
        SD_BUS_METHOD_WITH_ARGS(name, SD_BUS_NO_ARGS, SD_BUS_RESULT result, handler, SD_BUS_VTABLE_UNPRIVILEGED)

const sd_bus_vtable manager_vtable[] = {
        SD_BUS_VTABLE_START(0),
        METHOD("ExecuteAgent", ("s", agent, "s", input, "a{sv}", options), ("o", run), method_execute_agent),

        METHOD("CreateAgent", ("s", definition), ("o", agent), method_create_agent),
        METHOD("UpdateAgent", ("s", definition), ("o", agent), method_update_agent),
        METHOD_NO_RESULT("RemoveAgent", ("s", agent), method_remove_agent),
        METHOD("GetAgent", ("s", agent), ("o", path), method_get_agent),
        METHOD_NO_ARGS("ListAgents", ("a(ssso)", agents), method_list_agents),

        METHOD("GetRun", ("s", id), ("o", path), method_get_run),
        METHOD("ListRuns", ("a{sv}", filter), ("a(sosssssttt)", runs), method_list_runs),
        METHOD_NO_RESULT("CancelRun", ("s", id), method_cancel_run),
        METHOD("PruneRuns", ("s", agent, "a{sv}", options), ("u", runs, "t", bytes), method_prune_runs),
        METHOD("GetReceipt", ("s", id), ("s", receipt), method_get_receipt),
        METHOD("GetResult", ("s", id), ("s", result), method_get_result),
        METHOD("OpenRunLog", ("s", id, "b", follow), ("h", fd), method_open_run_log),
        METHOD("ListArtifacts", ("s", id), ("a(sts)", artifacts), method_list_artifacts),
        METHOD("OpenArtifact", ("s", id, "s", name), ("h", fd), method_open_artifact),

        METHOD("ImportImage", ("s", name, "h", fd, "a{sv}", options), ("o", operation), method_import_image),
        METHOD("BuildImage", ("s", name, "a{sv}", options), ("o", operation), method_build_image),
        METHOD_NO_ARGS("ListImages", ("a(sstts)", images), method_list_images),
        METHOD_NO_RESULT("RemoveImage", ("s", name), method_remove_image),

        METHOD("FreezeEnvironment", ("s", agent, "a{sv}", options), ("o", operation), method_freeze_environment),
        METHOD("ListGenerations", ("s", agent), ("a(sstssbt)", generations), method_list_generations),
        METHOD("ShowGeneration", ("s", agent, "s", generation), ("s", document), method_show_generation),
        METHOD("DiffGenerations", ("s", agent, "s", from, "s", to, "a{sv}", options), ("o", operation),
               method_diff_generations),
        METHOD("RollbackEnvironment", ("s", agent, "s", generation, "a{sv}", options), ("s", digest),
               method_rollback_environment),
        METHOD("PruneEnvironments", ("s", agent, "a{sv}", options), ("u", generations, "u", layers, "t", bytes),
               method_prune_environments),
        METHOD("CheckEnvironments", ("a{sv}", options), ("o", operation), method_check_environments),
        METHOD("EditEnvironment", ("s", agent, "as", command, "h", stdin, "h", stdout, "h", stderr, "a{sv}", options),
               ("o", operation), method_edit_environment),
        METHOD("OpenEditTerminal", ("s", agent, "as", command, "a{sv}", options), ("o", operation, "h", terminal),
               method_open_edit_terminal),
        METHOD("CloseEdit", ("s", agent), ("o", operation), method_close_edit),
        METHOD_NO_RESULT("DiscardEdit", ("s", agent), method_discard_edit),
        METHOD_NO_ARGS("ListEdits", ("a(ssstsb)", edits), method_list_edits),
        METHOD("ExportEnvironment", ("s", agent, "s", generation, "h", fd, "a{sv}", options), ("o", operation),
               method_export_environment),
        METHOD("ImportEnvironment", ("s", agent, "h", fd, "a{sv}", options), ("o", operation),
               method_import_environment),
        METHOD_NO_ARGS("GetDiskUsage", ("s", document), method_get_disk_usage),

        METHOD("DeployRunner", ("h", tar, "a{sv}", options), ("o", operation), method_deploy_runner),
        METHOD_NO_ARGS("ListRunners", ("a(sssstssuasa(sbts))", runners), method_list_runners),
        METHOD("RollbackRunner", ("s", digest), ("s", current), method_rollback_runner),
        METHOD_NO_ARGS("PromoteRunner", ("s", current), method_promote_runner),
        METHOD_NO_ARGS("WithdrawRunner", ("s", withdrawn), method_withdraw_runner),
        METHOD_NO_RESULT("RemoveRunner", ("s", digest), method_remove_runner),

        METHOD_NO_RESULT("CreateService", ("s", definition), method_create_service),
        METHOD_NO_RESULT("UpdateService", ("s", definition), method_update_service),
        METHOD_NO_RESULT("RemoveService", ("s", name), method_remove_service),
        METHOD("GetService", ("s", name), ("s", definition), method_get_service),
        METHOD_NO_ARGS("ListServices", ("a(ssss)", services), method_list_services),

        METHOD_NO_ARGS("ListApprovals", ("a(ssssst)", approvals), method_list_approvals),
        METHOD_NO_RESULT("Approve", ("s", id, "b", granted), method_approve),
        METHOD_NO_ARGS("RotateKey", ("s", kid), method_rotate_key),

        SD_BUS_SIGNAL_WITH_ARGS("ApprovalRequested", SD_BUS_ARGS("s", id, "o", run), 0),
        SD_BUS_SIGNAL_WITH_ARGS("ApprovalDecided", SD_BUS_ARGS("s", id, "b", granted), 0),
        SD_BUS_SIGNAL_WITH_ARGS("AgentNew", SD_BUS_ARGS("s", agent, "o", path), 0),
        SD_BUS_SIGNAL_WITH_ARGS("AgentRemoved", SD_BUS_ARGS("s", agent, "o", path), 0),
        SD_BUS_SIGNAL_WITH_ARGS("RunNew", SD_BUS_ARGS("s", id, "o", path), 0),
        SD_BUS_SIGNAL_WITH_ARGS("RunFinished", SD_BUS_ARGS("s", id, "o", path, "s", result, "s", message), 0),
        SD_BUS_SIGNAL_WITH_ARGS("RunnerDeployed", SD_BUS_ARGS("s", digest, "s", state), 0),
        SD_BUS_SIGNAL_WITH_ARGS("RunnerQuarantined", SD_BUS_ARGS("s", digest, "s", node, "s", reason), 0),
        SD_BUS_SIGNAL_WITH_ARGS("OperationFinished", SD_BUS_ARGS("s", id, "o", path, "s", result, "s", detail), 0),

        SD_BUS_PROPERTY("Version", "s", property_version, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("NQueued", "u", property_count, 0, 0),
        SD_BUS_PROPERTY("NLive", "u", property_count, 0, 0),
        SD_BUS_PROPERTY("Runner", "s", property_runner, 0, 0),
        SD_BUS_PROPERTY("SigningKey", "s", property_signing_key, 0, 0),
        SD_BUS_VTABLE_END
};

int manager_export(Manager *m) {
        int r;

        r = sd_bus_add_object_vtable(m->bus, NULL, BUS_PATH, BUS_INTERFACE_MANAGER, manager_vtable, m);
        if (r >= 0)
                r = run_export(m);
        if (r >= 0)
                r = agent_export(m);
        if (r >= 0)
                r = operation_export(m);
        if (r >= 0)
                r = report_export(m);
        if (r >= 0)
                r = sd_bus_add_object_manager(m->bus, NULL, BUS_PATH);
        return r;
}
