/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The names of all D-Bus errors of this project, and their errno values for clients that use sd-bus.
 */

#define BUS_ERROR_NO_SUCH_AGENT "org.agentd1.Error.NoSuchAgent"
#define BUS_ERROR_AGENT_EXISTS "org.agentd1.Error.AgentExists"
#define BUS_ERROR_AGENT_BUSY "org.agentd1.Error.AgentBusy"
#define BUS_ERROR_INVALID_NAME "org.agentd1.Error.InvalidName"
#define BUS_ERROR_INVALID_DEFINITION "org.agentd1.Error.InvalidDefinition"
#define BUS_ERROR_INVALID_INPUT "org.agentd1.Error.InvalidInput"
#define BUS_ERROR_INPUT_TOO_LARGE "org.agentd1.Error.InputTooLarge"
#define BUS_ERROR_INVALID_OPTION "org.agentd1.Error.InvalidOption"
#define BUS_ERROR_NO_SUCH_RUN "org.agentd1.Error.NoSuchRun"
#define BUS_ERROR_RUN_NOT_FINISHED "org.agentd1.Error.RunNotFinished"
#define BUS_ERROR_RUN_FINISHED "org.agentd1.Error.RunFinished"
#define BUS_ERROR_NO_SUCH_IMAGE "org.agentd1.Error.NoSuchImage"
#define BUS_ERROR_IMAGE_EXISTS "org.agentd1.Error.ImageExists"
#define BUS_ERROR_IMAGE_IN_USE "org.agentd1.Error.ImageInUse"
#define BUS_ERROR_INVALID_IMAGE "org.agentd1.Error.InvalidImage"
#define BUS_ERROR_NO_SUCH_RUNNER "org.agentd1.Error.NoSuchRunner"
#define BUS_ERROR_RUNNER_IN_USE "org.agentd1.Error.RunnerInUse"
#define BUS_ERROR_NO_SUCH_SERVICE "org.agentd1.Error.NoSuchService"
#define BUS_ERROR_SERVICE_EXISTS "org.agentd1.Error.ServiceExists"
#define BUS_ERROR_SERVICE_IN_USE "org.agentd1.Error.ServiceInUse"
#define BUS_ERROR_QUEUE_FULL "org.agentd1.Error.QueueFull"
#define BUS_ERROR_QUOTA_EXCEEDED "org.agentd1.Error.QuotaExceeded"
#define BUS_ERROR_IDEMPOTENCY_CONFLICT "org.agentd1.Error.IdempotencyConflict"
#define BUS_ERROR_NO_SUCH_OPERATION "org.agentd1.Error.NoSuchOperation"
#define BUS_ERROR_NO_RESULT "org.agentd1.Error.NoResult"
#define BUS_ERROR_NO_SUCH_GENERATION "org.agentd1.Error.NoSuchGeneration"
#define BUS_ERROR_HEAD_MOVED "org.agentd1.Error.HeadMoved"
#define BUS_ERROR_ENVIRONMENT_DAMAGED "org.agentd1.Error.EnvironmentDamaged"
#define BUS_ERROR_EDIT_IN_USE "org.agentd1.Error.EditInUse"
#define BUS_ERROR_NO_SUCH_EDIT "org.agentd1.Error.NoSuchEdit"
#define BUS_ERROR_NOT_FREEZABLE "org.agentd1.Error.NotFreezable"
#define BUS_ERROR_TOO_MANY_OPERATIONS "org.agentd1.Error.TooManyOperations"
#define BUS_ERROR_NO_SPACE "org.agentd1.Error.NoSpace"
#define BUS_ERROR_NO_SUCH_ARTIFACT "org.agentd1.Error.NoSuchArtifact"
#define BUS_ERROR_NO_SUCH_SESSION "org.agentd1.Error.NoSuchSession"
#define BUS_ERROR_SESSION_CHANGED "org.agentd1.Error.SessionChanged"
#define BUS_ERROR_NO_SUCH_APPROVAL "org.agentd1.Error.NoSuchApproval"
#define BUS_ERROR_NO_SUCH_CREDENTIAL "org.agentd1.Error.NoSuchCredential"
#define BUS_ERROR_INVALID_CREDENTIAL "org.agentd1.Error.InvalidCredential"

/* Makes sd_bus_error_get_errno() and sd_bus_message_get_errno() know them. Call once in main(). */
int bus_error_register(void);
