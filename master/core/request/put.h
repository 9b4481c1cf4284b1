/* SPDX-License-Identifier: Apache-2.0
 * PutBegin, PutCommit, PutAbort.
 */
#ifndef KVP_MASTER_CORE_REQUEST_PUT_H
#define KVP_MASTER_CORE_REQUEST_PUT_H

#include "master/core/session/session.h"

void kvp_on_put_begin(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_put_commit(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_put_abort(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
