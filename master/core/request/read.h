/* SPDX-License-Identifier: Apache-2.0
 * Get, Used, Exists, Lookup, Release, List, Status.
 */
#ifndef KVP_MASTER_CORE_REQUEST_READ_H
#define KVP_MASTER_CORE_REQUEST_READ_H

#include "master/core/session/session.h"

void kvp_on_get(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_used(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_exists(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_lookup(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_release(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_list(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_status(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
