/* SPDX-License-Identifier: Apache-2.0
 * What an endpoint's owner has registered: ranges of its own memory that peers may read and write, each under a token that is
 * drawn anew at every registration and with a key of the transport. Any thread.
 */
#ifndef KVP_CLIENT_P2P_RANGES_H
#define KVP_CLIENT_P2P_RANGES_H

#include "client/kvpool_p2p.h"
#include "client/regs.h"
#include "proto/wire.h"

typedef struct {
    uint8_t *base;
    size_t len;
    uint64_t token;
    kvp_mr_t *mr;
} kvp_p2p_range_t;

typedef struct {
    kvp_tp_t *tp; /* borrowed; outlives this */
    kvp_regs_t regs; /* who uses which range at the moment */
    pthread_mutex_t lock; /* a leaf but for the regs' */
    kvp_p2p_range_t *sorted; /* by address, never overlapping; guarded by lock */
    size_t n;
    size_t cap;
} kvp_p2p_ranges_t;

/* Ranges that a transfer of this endpoint's own uses. The zero value is none. */
typedef struct {
    kvp_reg_t **regs;
    size_t n;
    size_t cap;
} kvp_p2p_held_t;

void kvp_p2p_ranges_init(kvp_p2p_ranges_t *ranges, kvp_tp_t *tp);
void kvp_p2p_ranges_fini(kvp_p2p_ranges_t *ranges); /* nobody uses a range any more */

/* kvp_p2p_ranges_add: INVALID (empty, wrapping, overlapping), NOTSUP (memory of a device), NOMEM. *token_out is never 0. */
kvp_err_t kvp_p2p_ranges_add(kvp_p2p_ranges_t *ranges, void *addr, size_t len, uint64_t *token_out) KVP_MUST_USE;

/* kvp_p2p_ranges_del takes the start of a range: NOT_REGISTERED otherwise. From its begin on no peer begins anything with
 * it, and when it returns nothing of this process touches it for a peer any more. */
kvp_err_t kvp_p2p_ranges_del(kvp_p2p_ranges_t *ranges, void *addr) KVP_MUST_USE;

/* kvp_p2p_ranges_find tells of the range that holds what is asked for: OK, NOT_REGISTERED (there is none, it ends before, or it is
 * of another token), NOMEM. */
kvp_err_t kvp_p2p_ranges_find(kvp_p2p_ranges_t *ranges, const kvp_peer_at_t *at, uint64_t incarnation,
                              kvp_peer_range_t *range_out) KVP_MUST_USE;

/* kvp_p2p_ranges_hold keeps a range from being unregistered until rele, for a moment's work. NULL: not all of it is in one range of
 * that token. */
kvp_reg_t *kvp_p2p_ranges_hold(kvp_p2p_ranges_t *ranges, const kvp_peer_at_t *at);
void kvp_p2p_ranges_rele(kvp_p2p_ranges_t *ranges, kvp_reg_t *reg);

/* The same for many: begin, then hold_next for each, then end, with nothing that waits in between. What hold_next gave is released
 * once for each time that is_new_out was set. */
void kvp_p2p_ranges_begin(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor);
kvp_reg_t *kvp_p2p_ranges_hold_next(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor, const kvp_peer_at_t *at,
                                    bool *is_new_out);
void kvp_p2p_ranges_end(kvp_p2p_ranges_t *ranges);

/* kvp_p2p_ranges_hold_local keeps whatever is registered of the local memory of ops from being unregistered until rele_all: each range
 * that a piece touches, of which there may be none or many. NOMEM. rele_all empties held. */
kvp_err_t kvp_p2p_ranges_hold_local(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n,
                                    kvp_p2p_held_t *held_out) KVP_MUST_USE;
void kvp_p2p_ranges_rele_all(kvp_p2p_ranges_t *ranges, kvp_p2p_held_t *held);

/* kvp_p2p_ranges_cover tells of each op whether its local memory is registered, all of it in one range. */
void kvp_p2p_ranges_cover(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *const *ops, uint32_t n, bool *covered_out);

#endif
