/* SPDX-License-Identifier: Apache-2.0
 * Terms: somebody obeys a higher one, or knows the pool by another name.
 */
#ifndef KVP_MASTER_CORE_RECOVERY_TERM_H
#define KVP_MASTER_CORE_RECOVERY_TERM_H

#include "master/core/master.h"
#include "proto/kvpool.pb-c.h"

/* kvp_term_outdated: somebody obeys that term, so ours has to be higher. Every connection is closed. False where no term is
 * left. */
bool kvp_term_outdated(kvp_master_t *m, uint32_t term);
/* kvp_term_pool_named_by: a node says which pool its memory is of; NULL = it has none. True where the pool had no name, and
 * has that one now: every connection is closed, and who comes again hears it. */
bool kvp_term_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known);

#endif
