/* SPDX-License-Identifier: Apache-2.0
 * Memory that an endpoint gave out itself, in files that peers of the host may map: docs/adr/0021-p2p-mapped.md. Which of it is
 * registered, p2p_ranges.h knows; here is what peers are told of it, and how it is taken from under them. Any thread.
 */
#ifndef KVP_CLIENT_P2P_OWN_H
#define KVP_CLIENT_P2P_OWN_H

#include "client/forkguard.h"
#include "client/transport/transport.h"
#include "proto/wire.h"

typedef struct {
    kvp_tp_t *shm; /* borrowed */
    kvp_forkguard_t *guard;
    pthread_mutex_t change; /* held for as long as memory is taken back or away; before `lock` */
    pthread_mutex_t lock; /* a leaf; guards all below */
    kvp_list_t list;
    kvp_mem_t words; /* cells; made with the first memory */
    kvp_mr_t *words_mr;
    uint32_t next; /* where a free cell is looked for */
} kvp_p2p_owns_t;

void kvp_p2p_owns_init(kvp_p2p_owns_t *owns, kvp_tp_t *shm, kvp_forkguard_t *guard);
/* kvp_p2p_owns_close clears every cell: what peers still store counts for nothing. fini takes all memory away. */
void kvp_p2p_owns_close(kvp_p2p_owns_t *owns);
void kvp_p2p_owns_fini(kvp_p2p_owns_t *owns);

/* kvp_p2p_owns_alloc: INVALID (0), NOMEM (also more than the machine has), SYS, logged. */
kvp_err_t kvp_p2p_owns_alloc(kvp_p2p_owns_t *owns, size_t len, void **addr_out) KVP_MUST_USE;

/* kvp_p2p_owns_publish lets peers map the range, which was registered under that token. Of memory that is not ours, or not all of what
 * was given out at once, or was taken back, nothing is told. */
void kvp_p2p_owns_publish(kvp_p2p_owns_t *owns, const void *addr, size_t len, uint64_t token);

/* kvp_p2p_owns_share gives what a peer maps: duplicates of the descriptors of the memory and of the words, both the caller's to
 * close, and the cell. NOTSUP: it is not to be mapped; SYS. */
kvp_err_t kvp_p2p_owns_share(kvp_p2p_owns_t *owns, uint64_t token, int fds_out[2], uint64_t *cell_out) KVP_MUST_USE;

/* kvp_p2p_owns_revoke ends what publish began; it comes before the range is unregistered. When it returns OK nothing that a peer
 * stores lands in the memory, whose contents stay. NOMEM: some of it still may, until the memory is freed. */
kvp_err_t kvp_p2p_owns_revoke(kvp_p2p_owns_t *owns, const void *addr) KVP_MUST_USE;

/* kvp_p2p_owns_take takes memory out of the table, no peer being told of it any more: NULL, there is none that begins at addr; else
 * kvp_p2p_own_destroy unmaps it. */
typedef struct kvp_p2p_own kvp_p2p_own_t;
kvp_p2p_own_t *kvp_p2p_owns_take(kvp_p2p_owns_t *owns, const void *addr) KVP_MUST_USE;
void kvp_p2p_own_destroy(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own);

#endif
