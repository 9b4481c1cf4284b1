/* SPDX-License-Identifier: Apache-2.0
 * Ticket restore: clients send the tickets that they had from the previous master. */
#ifndef KVP_MASTER_CORE_RECOVERY_RESTORE_H
#define KVP_MASTER_CORE_RECOVERY_RESTORE_H

#include "master/core/session/session.h"

typedef struct kvp_master kvp_master_t;

void kvp_on_present(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
