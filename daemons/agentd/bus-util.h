/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What all bus faces of agentd share: who calls, which agent is meant, and may they. */

#include "bus/bus-options.h"
#include "manager.h"

/* Name of a user; the number as text where the system knows none. Never fails but for -ENOMEM. */
int user_name_from_uid(uid_t uid, char **ret);
/* -ENOENT where there is no such user. */
int uid_from_user_name(const char *name, uid_t *ret);
int bus_sender_user(sd_bus_message *m, uid_t *ret_uid, char **ret_name);

/* The answer to MSG that is one array of CONTENTS: opened here, filled by the caller, closed and sent. */
int bus_list_open(sd_bus_message *msg, const char *contents, sd_bus_message **ret);
int bus_list_send(sd_bus_message *reply);

/*
 * "NAME" or "USER/NAME" → owner and name, after the sender's right to ACTION on it was verified; so nothing about other
 * people's agents is told before that. >0 go on; 0 polkit is being asked, return 1; <0 refused.
 */
int bus_resolve_owned(Manager *m, sd_bus_message *msg, const char *ref, const char *action, sd_bus_error *e,
                      char **ret_user, uid_t *ret_uid, char **ret_name);
/* The same where "" means all of the sender's: *RET_NAME stays NULL then, and of root *RET_USER too: everybody's. */
int bus_resolve_one_or_all(Manager *m, sd_bus_message *msg, const char *ref, const char *action, sd_bus_error *e,
                           char **ret_user, char **ret_name);
/* The same for a run by its id; looks it up. */
int bus_resolve_run(Manager *m, sd_bus_message *msg, const char *id, const char *action, sd_bus_error *e,
                    StoreRun **ret);

/* Whether the sender of the message that is being worked on may read what UID owns, who was called USER then. For
 * property getters. */
bool bus_may_read(sd_bus *bus, uid_t uid, const char *user);
/* bus_verify_async() about a thing of UID, who was called USER then. */
int bus_verify_owner(Manager *m, sd_bus_message *msg, const char *action, const char *const *details, uid_t uid,
                     const char *user, sd_bus_error *e);

/* What one user may keep of a kind of thing; root may keep more. */
#define BUS_AGENTS_MAX 1000U
#define BUS_SERVICES_MAX 1000U
#define BUS_DEFINITIONS_SIZE_MAX (16U * 1024U * 1024U) /* of all agents, or of all services */
#define BUS_IMAGES_MAX 100
typedef enum BusDefined {
        BUS_AGENTS,
        BUS_SERVICES,
} BusDefined;

/* Whether USER may have one thing more, defined by TEXT; or in the place of OLD. UID is who asks. */
int bus_check_room(Manager *m, sd_bus_error *e, uid_t uid, const char *user, BusDefined what, const char *text,
                   const char *old);
/* Passes N on, a number of things or an error, unless it is too many. */
int bus_check_number(Manager *m, sd_bus_error *e, uid_t uid, int n, int max, const char *what);
/* Turns an errno of the store into a bus error with a sentence. */
int bus_store_error(Manager *m, sd_bus_error *e, int r);

int agent_object_path(const char *user, const char *name, char **ret);
int run_object_path(const char *id, char **ret);

/* A note that goes with a change: one line of at most 1024 bytes. */
bool bus_note_is_valid(const char *s);

/* Put the objects of one kind on the bus. */
int run_export(Manager *m);
int agent_export(Manager *m);
int operation_export(Manager *m);
int report_export(Manager *m);

/* Report's methods that live beside its file; their callers were not looked at yet. */
int report_check_bridge(Manager *m, sd_bus_message *msg, sd_bus_error *e);
int report_error(Manager *m, sd_bus_error *e, int r, const char *id);
int method_report_usage(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_get_session(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_put_session(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_get_run_document(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_request_approval(sd_bus_message *msg, void *userdata, sd_bus_error *e);

/* Methods that live beside the Manager's file. */
int method_execute_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_get_run(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_runs(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_prune_runs(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_cancel_run(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_get_receipt(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_get_result(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_open_run_log(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_artifacts(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_open_artifact(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_approvals(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_approve(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_rotate_key(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_create_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_update_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_remove_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_get_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_agents(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_generations(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_freeze_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_show_generation(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_rollback_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_diff_generations(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_get_disk_usage(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_prune_environments(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_check_environments(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_edit_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_open_edit_terminal(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_close_edit(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_discard_edit(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_edits(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_export_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_import_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_import_image(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_build_image(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_images(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_remove_image(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_deploy_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_runners(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_rollback_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_promote_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_withdraw_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_remove_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_create_service(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_update_service(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_remove_service(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_get_service(sd_bus_message *msg, void *userdata, sd_bus_error *e);
int method_list_services(sd_bus_message *msg, void *userdata, sd_bus_error *e);

/* An error of a call to the bridge that is being restarted: worth another try. */
bool bus_bridge_is_away(const sd_bus_error *e);
