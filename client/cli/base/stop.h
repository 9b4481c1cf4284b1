/* SPDX-License-Identifier: Apache-2.0
 * The signals that stop a verb which has daemons as children: taken as something to read, so that the children can be
 * stopped in order first. Main thread only.
 */
#ifndef KVP_CLIENT_CLI_BASE_STOP_H
#define KVP_CLIENT_CLI_BASE_STOP_H

#include "common/base.h"

/* kvp_stop_catch blocks SIGINT, SIGTERM and SIGHUP in this thread and those that it starts, and returns a descriptor that
 * is readable once one has come; -1 with errno. Children that procs.h starts have an empty mask again. */
int kvp_stop_catch(void);

/* kvp_stop_has_come says, without waiting, whether one has come. From then on another one kills as usual. */
bool kvp_stop_has_come(int fd);

#endif
