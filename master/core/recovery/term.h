/* SPDX-License-Identifier: Apache-2.0
 * Terms: somebody obeys a higher one, or knows the pool by another name.
 */
#ifndef KVP_MASTER_CORE_RECOVERY_TERM_H
#define KVP_MASTER_CORE_RECOVERY_TERM_H

#include "master/core/master.h"
#include "proto/kvpool.pb-c.h"

#define KVP_TERM_WHY_MAX 160u

/* kvp_term_outdated: a peer obeys that term, so ours has to be higher. OK: it is now, and every connection is closed; or this master was
 * elected, and gives up: kvp_master_deposed. LIMIT:
 * peers may not raise it that far, or not so soon again (term.c has the bounds); why_out says so, and what the operator can do. */
kvp_err_t kvp_term_outdated(kvp_master_t *m, uint32_t term, char why_out[KVP_TERM_WHY_MAX]);
/* kvp_term_pool_named_by: a node says which pool its memory is of; NULL = it has none. OK: the pool had no name, and has that
 * one now: every connection is closed, and who comes again hears it. NOT_FOUND: the node is greeted as any other. LIMIT: as above. */
kvp_err_t kvp_term_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known, char why_out[KVP_TERM_WHY_MAX]);
/* kvp_term_begin: this is our term from now on, which is to be saved before anything is said; every connection is closed. */
void kvp_term_begin(kvp_master_t *m, uint32_t term);
/* kvp_term_follow makes ours one above that one, which is below KVP_TERM_MAX; every connection is closed. */
void kvp_term_follow(kvp_master_t *m, uint32_t term);

#endif
