/* SPDX-License-Identifier: Apache-2.0
 * Terms: a peer has obeyed a higher term, or knows the pool by another identity. */
#ifndef KVP_MASTER_CORE_RECOVERY_TERM_H
#define KVP_MASTER_CORE_RECOVERY_TERM_H

#include "master/core/api/master.h"
#include "proto/kvpool.pb-c.h"

#define KVP_TERM_WHY_MAX 192u

/* kvp_term_raise: a node's memory was used in the term, so this master's term must be higher. OK: it is, and all
 * sessions are closed. LIMIT: the peer may not raise the term (term.c has the conditions); why_out has the reason and
 * the remedy. kvp_term_refuse answers a peer that obeys a higher term but has no such memory: LIMIT and why_out; the
 * first refusal is logged. */
kvp_err_t kvp_term_raise(kvp_master_t *m, uint32_t term, char why_out[KVP_TERM_WHY_MAX]);
kvp_err_t kvp_term_refuse(kvp_master_t *m, uint32_t term, char why_out[KVP_TERM_WHY_MAX]);
/* kvp_term_pool_named_by: a node sends the pool of its memory; NULL = it has no memory. OK: this master had no final
 * identity and takes the node's; every connection is closed, and returning clients learn the identity. NOT_FOUND: the
 * node is admitted like any other. LIMIT: as for kvp_term_raise. */
kvp_err_t kvp_term_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known, char why_out[KVP_TERM_WHY_MAX]);
/* kvp_term_begin sets this master's term, which must be saved before any output; every connection is closed. */
void kvp_term_begin(kvp_master_t *m, uint32_t term);
/* kvp_term_follow sets this master's term to the given term + 1, at most KVP_TERM_MAX; every connection is closed. */
void kvp_term_follow(kvp_master_t *m, uint32_t term);

/* kvp_term_take_ident returns a changed identity, once, for the shell to save; otherwise *ident_out stays as it is.
 * kvp_term_ident_saved: the identity is durable, or could not be saved. kvp_term_is_mute returns true while no output
 * may be sent, because the identity, or the term's record in the log, is not durable yet. */
void kvp_term_take_ident(kvp_master_t *m, kvp_master_ident_t *ident_out);
void kvp_term_ident_saved(kvp_master_t *m, const kvp_master_ident_t *ident, bool is_durable);
bool kvp_term_is_mute(const kvp_master_t *m);

#endif
