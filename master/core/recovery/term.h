/* SPDX-License-Identifier: Apache-2.0
 * Terms: a peer obeys a higher one, or knows the pool by another name.
 */
#ifndef KVP_MASTER_CORE_RECOVERY_TERM_H
#define KVP_MASTER_CORE_RECOVERY_TERM_H

#include "master/core/api/master.h"
#include "proto/kvpool.pb-c.h"

#define KVP_TERM_WHY_MAX 192u

/* kvp_term_raise: memory of a node was used in the term, so this master's term has to be higher.
 * OK: it is, and all sessions are closed. LIMIT: the peer may not raise the term (term.c has the
 * conditions); why_out has the reason and the fix. kvp_term_refuse is the answer to a peer that
 * obeys a higher term and has no such memory: LIMIT and why_out; the first one is logged. */
kvp_err_t kvp_term_raise(kvp_master_t *m, uint32_t term, char why_out[KVP_TERM_WHY_MAX]);
kvp_err_t kvp_term_refuse(kvp_master_t *m, uint32_t term, char why_out[KVP_TERM_WHY_MAX]);
/* kvp_term_pool_named_by: a node names the pool of its memory; NULL = no memory. OK: the pool had
 * no name, and has this one now: every connection is closed, and returning clients learn the name.
 * NOT_FOUND: the node is admitted like any other. LIMIT: as above. */
kvp_err_t kvp_term_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known, char why_out[KVP_TERM_WHY_MAX]);
/* kvp_term_begin: this is our term from now on, to be saved before any output; every connection is
 * closed. */
void kvp_term_begin(kvp_master_t *m, uint32_t term);
/* kvp_term_follow sets our term to one above the given term, which is below KVP_TERM_MAX; every
 * connection is closed. */
void kvp_term_follow(kvp_master_t *m, uint32_t term);

/* kvp_term_take_ident returns a changed identity, once, for the shell to save; otherwise *ident_out
 * stays as it is. kvp_term_ident_saved: the identity is durable, or could not be saved.
 * kvp_term_is_mute: no output may leave before the identity, or the term's record, is durable. */
void kvp_term_take_ident(kvp_master_t *m, kvp_master_ident_t *ident_out);
void kvp_term_ident_saved(kvp_master_t *m, const kvp_master_ident_t *ident, bool is_durable);
bool kvp_term_is_mute(const kvp_master_t *m);

#endif
