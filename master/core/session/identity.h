/* SPDX-License-Identifier: Apache-2.0
 * Which pool this is.
 */
#ifndef KVP_MASTER_CORE_SESSION_IDENTITY_H
#define KVP_MASTER_CORE_SESSION_IDENTITY_H

#include "master/core/master.h"
#include "proto/kvpool.pb-c.h"

void kvp_pool_granted(kvp_master_t *m); /* space of it, or a promise: from here on it is the pool that it says it is */
/* kvp_pool_named_by: a node says which pool its memory is of; NULL = it has none. True where the pool had no name, and has
 * that one now: every connection is closed, and who comes again hears it. */
bool kvp_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known);

#endif
