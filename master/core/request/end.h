/* SPDX-License-Identifier: Apache-2.0
 * The end of a session.
 */
#ifndef KVP_MASTER_CORE_REQUEST_END_H
#define KVP_MASTER_CORE_REQUEST_END_H

#include "master/core/session/session.h"

typedef struct kvp_master kvp_master_t;

void kvp_session_end(kvp_master_t *m, kvp_session_t *s); /* its connection has ended; freed here or in a later step */
void kvp_session_end_some(kvp_master_t *m); /* attempts and tickets of sessions that are over */
void kvp_session_tick(kvp_master_t *m);

#endif
