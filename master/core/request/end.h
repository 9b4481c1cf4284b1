/* SPDX-License-Identifier: Apache-2.0
 * The end of a session. */
#ifndef KVP_MASTER_CORE_REQUEST_END_H
#define KVP_MASTER_CORE_REQUEST_END_H

#include "master/core/session/session.h"

typedef struct kvp_master kvp_master_t;

/* kvp_session_end: the connection of s has ended; s is freed in this call or in a later step */
void kvp_session_end(kvp_master_t *m, kvp_session_t *s);
void kvp_session_end_some(kvp_master_t *m); /* frees attempts and tickets of ended sessions */
void kvp_session_tick(kvp_master_t *m);

#endif
