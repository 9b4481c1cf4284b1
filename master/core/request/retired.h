/* SPDX-License-Identifier: Apache-2.0
 * What nodes say of extents on their way out.
 */
#ifndef KVP_MASTER_CORE_REQUEST_RETIRED_H
#define KVP_MASTER_CORE_REQUEST_RETIRED_H

#include "master/core/session/session.h"

void kvp_retire_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_freed(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
