/* SPDX-License-Identifier: Apache-2.0
 * Memory that an endpoint allocated, in files that peers of the host may map:
 * docs/adr/0021-p2p-mapped.md. ranges.h has the registrations; this file publishes memory to peers,
 * and takes it back. Any thread. */
#ifndef KVP_P2P_BASE_OWN_H
#define KVP_P2P_BASE_OWN_H

#include "transport/transport.h"
#include "proto/wire.h"

#include <pthread.h>

typedef struct {
    kvp_tp_t *shm; /* borrowed */
    pthread_mutex_t making; /* held while the words are made; before `lock` */
    pthread_mutex_t lock; /* a leaf; guards all below */
    pthread_cond_t turn_over;
    kvp_list_t list;
    kvp_mem_t words; /* cells; made with the first memory */
    kvp_mr_t *words_mr;
    uint32_t next; /* where a free cell is looked for */
} kvp_p2p_owns_t;

void kvp_p2p_owns_init(kvp_p2p_owns_t *owns, kvp_tp_t *shm);
/* kvp_p2p_owns_close clears every cell: what peers still store counts for nothing. fini takes all memory away. */
void kvp_p2p_owns_close(kvp_p2p_owns_t *owns);
void kvp_p2p_owns_fini(kvp_p2p_owns_t *owns);

/* One piece of memory. Its changes take turns: registering, unregistering and freeing the same
 * piece never overlap, and different pieces do not wait for each other. */
typedef struct kvp_p2p_own kvp_p2p_own_t;

/* kvp_p2p_owns_alloc allocates one, in the caller's turn: INVALID (0), NOMEM (also more than the
 * machine has), SYS, logged. */
kvp_err_t kvp_p2p_owns_alloc(kvp_p2p_owns_t *owns, size_t len, kvp_p2p_own_t **own_out) KVP_MUST_USE;

/* kvp_p2p_owns_begin waits for a turn of the memory that begins at addr; NULL: none.
 * kvp_p2p_owns_end ends the turn; NULL is legal. kvp_p2p_owns_free, in a turn, frees the memory
 * instead. */
kvp_p2p_own_t *kvp_p2p_owns_begin(kvp_p2p_owns_t *owns, const void *addr) KVP_MUST_USE;
void kvp_p2p_owns_end(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own);
void kvp_p2p_owns_free(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own);
const kvp_mem_t *kvp_p2p_own_mem(const kvp_p2p_own_t *own);

/* The functions below are called in a turn; NULL is legal, and has no effect. kvp_p2p_owns_publish
 * lets peers map the memory, once they know the range that is about to be registered under the
 * token; true: kvp_p2p_owns_hide undoes it. Only a range that covers the whole piece, is not
 * registered yet and was never revoked is published. */
bool kvp_p2p_owns_publish(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own, size_t len, uint64_t token);
void kvp_p2p_owns_hide(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own);

/* kvp_p2p_owns_revoke ends a publication, after the range was hidden and unregistered: adapters
 * must have released the memory's pages, because it gets others. After OK no store of a peer lands
 * in the memory, whose contents stay. NOMEM: some stores still may, until the memory is freed. */
kvp_err_t kvp_p2p_owns_revoke(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own) KVP_MUST_USE;

/* kvp_p2p_owns_share returns the parts for a peer's mapping: duplicates of the descriptors of the
 * memory and of the words, both for the caller to close, and the cell. NOTSUP: not published; SYS. */
kvp_err_t kvp_p2p_owns_share(kvp_p2p_owns_t *owns, uint64_t token, int fds_out[2], uint64_t *cell_out) KVP_MUST_USE;

#endif
