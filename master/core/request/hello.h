/* SPDX-License-Identifier: Apache-2.0
 * Hello and Heartbeat.
 */
#ifndef KVP_MASTER_CORE_REQUEST_HELLO_H
#define KVP_MASTER_CORE_REQUEST_HELLO_H

#include "master/core/session/session.h"

void kvp_on_hello(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_heartbeat(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
