/* SPDX-License-Identifier: Apache-2.0
 * Reads an earlier master's log; a standby reads the leader's log in the same way (ADR 0031). */
#ifndef KVP_MASTER_CORE_RECOVERY_REPLAY_H
#define KVP_MASTER_CORE_RECOVERY_REPLAY_H

#include "common/base.h"

typedef struct kvp_master kvp_master_t;

/* kvp_replay_open and kvp_replay_follow end the reading, as described for kvp_master_open_log. kvp_replay_term
 * returns the term of the log's last record; 0 = there is none. kvp_replay_named: the pool's identity is final now,
 * so that its log can begin. kvp_replay_lead: the followed log is this master's own log from now on, and continues in
 * the term. INVALID: the term is not above all terms in the log. After open and lead, the caller must remove
 * the objects that tenants' bumps removed, if m->base.is_relied_on. */
kvp_err_t kvp_replay_open(kvp_master_t *m, bool is_all_given, uint64_t *end_out) KVP_MUST_USE;
kvp_err_t kvp_replay_follow(kvp_master_t *m, uint64_t *end_out) KVP_MUST_USE;
uint32_t kvp_replay_term(const kvp_master_t *m);
void kvp_replay_named(kvp_master_t *m);
kvp_err_t kvp_replay_lead(kvp_master_t *m, uint32_t term, bool is_level) KVP_MUST_USE;

#endif
