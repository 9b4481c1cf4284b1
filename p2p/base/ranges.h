/* SPDX-License-Identifier: Apache-2.0
 * What an endpoint's owner has registered: ranges of its own memory that peers may read and write, each under a token that is
 * drawn anew at every registration and with a key of each transport. Any thread.
 */
#ifndef KVP_P2P_BASE_RANGES_H
#define KVP_P2P_BASE_RANGES_H

#include "client/kvpool_p2p.h"
#include "p2p/base/wire.h"
#include "transport/regs.h"

typedef struct {
    uint8_t *base;
    size_t len;
    uint64_t token;
    bool is_bounce; /* not told to who does not know it */
    bool is_device; /* no transport reaches it: reached through a bounce buffer alone */
    kvp_mr_t *mr; /* NULL of a device's memory */
    kvp_mr_t *rdma_mr; /* NULL = not reached by rdma */
} kvp_p2p_range_t;

typedef struct {
    kvp_tp_t *tp; /* borrowed; outlives this */
    kvp_tp_t *rdma; /* the same; NULL = there is none */
    bool needs_rdma; /* memory that rdma does not take is refused */
    uint64_t
        writers; /* whom rdma's keys to write are made for: all peers, since who knows a range may write it. Nobody is told */
    kvp_regs_t regs; /* who uses which range at the moment */
    pthread_mutex_t lock; /* a leaf but for the regs' */
    _Atomic bool has_had_devices; /* memory of one was registered once */
    kvp_p2p_range_t *sorted; /* by address, never overlapping; guarded by lock */
    size_t n;
    size_t cap;
} kvp_p2p_ranges_t;

/* rdma may be NULL. needs_rdma: where it does not take a range, add fails; else that range is reached without it. */
void kvp_p2p_ranges_init(kvp_p2p_ranges_t *ranges, kvp_tp_t *tp, kvp_tp_t *rdma, bool needs_rdma);
void kvp_p2p_ranges_fini(kvp_p2p_ranges_t *ranges); /* nobody uses a range any more */

/* kvp_p2p_ranges_add registers under a token that the caller has drawn, never 0: INVALID (empty, wrapping, overlapping, not mapped, of
 * several devices), NOMEM, and what keeps memory that has to be reached by rdma from that. is_bounce: the memory is no
 * application's, and nobody is told it for the first range. */
kvp_err_t kvp_p2p_ranges_add(kvp_p2p_ranges_t *ranges, void *addr, size_t len, uint64_t token, bool is_bounce)
    KVP_MUST_USE;

/* kvp_p2p_ranges_del takes the start of a range: NOT_REGISTERED otherwise. From its begin on no peer begins anything with
 * it, and when it returns nothing of this process, and no adapter, touches it for a peer any more. */
kvp_err_t kvp_p2p_ranges_del(kvp_p2p_ranges_t *ranges, void *addr) KVP_MUST_USE;

/* kvp_p2p_ranges_del_all does so with each range that a byte of [addr, addr + len) lies in; there may be none. */
void kvp_p2p_ranges_del_all(kvp_p2p_ranges_t *ranges, const void *addr, size_t len);

/* kvp_p2p_ranges_find tells of the range that holds what is asked for at one of find's places: OK, NOT_REGISTERED (there is none, it
 * ends before, or it is of another token), NOMEM, NOTSUP (rdma does not reach it, or a bounce buffer alone does, and none is wanted). */
kvp_err_t kvp_p2p_ranges_find(kvp_p2p_ranges_t *ranges, const kvp_peer_find_t *find, const kvp_peer_at_t *at,
                              uint64_t incarnation, kvp_peer_range_t *range_out) KVP_MUST_USE;

/* kvp_p2p_ranges_device tells of which device some range is; false: of none. */
bool kvp_p2p_ranges_device(kvp_p2p_ranges_t *ranges, kvp_devmem_t *mem_out);

/* kvp_p2p_ranges_hold keeps a range from being unregistered until rele, for a moment's work. NULL: not all of it is in one range of
 * that token and kind: a device's, or the host's. */
kvp_reg_t *kvp_p2p_ranges_hold(kvp_p2p_ranges_t *ranges, const kvp_peer_at_t *at, bool is_device);
void kvp_p2p_ranges_rele(kvp_p2p_ranges_t *ranges, kvp_reg_t *reg);

/* The same for many: begin, then hold_next for each, then end, with nothing that waits in between. What hold_next gave is released
 * once for each time that is_new_out was set. */
void kvp_p2p_ranges_begin(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor);
kvp_reg_t *kvp_p2p_ranges_hold_next(kvp_p2p_ranges_t *ranges, kvp_regs_cursor_t *cursor, const kvp_peer_at_t *at,
                                    bool is_device, bool *is_new_out);
void kvp_p2p_ranges_end(kvp_p2p_ranges_t *ranges);

/* kvp_p2p_ranges_hold_local keeps whatever is registered of the local memory of ops from being unregistered until kvp_regs_rele_all: each range
 * that a piece touches, of which there may be none or many. NOMEM, NOT_REGISTERED (memory of a device that is not, all of it; a piece
 * that begins in a range and ends in memory that is not registered), INVALID (there is no memory). */
kvp_err_t kvp_p2p_ranges_hold_local(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n,
                                    kvp_regs_held_t *held_out) KVP_MUST_USE;

/* kvp_p2p_ranges_have_device tells whether some local memory of ops is a device's: also of a range that is being unregistered, and was held
 * before. NOT_REGISTERED: some is, and was never registered, or is not any more. */
kvp_err_t kvp_p2p_ranges_have_device(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *ops, size_t n, bool *has_out)
    KVP_MUST_USE;

/* kvp_p2p_ranges_mem is what memory that is held is made of; NULL: it is the host's, or nobody's. */
const kvp_devmem_t *kvp_p2p_ranges_mem(kvp_p2p_ranges_t *ranges, const void *addr);

/* kvp_p2p_ranges_cover tells of each op whether its local memory is registered, all of it in one range. */
void kvp_p2p_ranges_cover(kvp_p2p_ranges_t *ranges, const kvpool_p2p_op_t *const *ops, uint32_t n, bool *covered_out);

#endif
