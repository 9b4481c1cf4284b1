/* SPDX-License-Identifier: Apache-2.0
 * Frees state that is kept only as long as nodes may connect with older memory. */
#ifndef KVP_MASTER_CORE_RECOVERY_FORGET_H
#define KVP_MASTER_CORE_RECOVERY_FORGET_H

#include "master/core/recovery/state.h"

typedef struct kvp_master kvp_master_t;

void kvp_forget_some(kvp_master_t *m); /* within the step's budget */

#endif
