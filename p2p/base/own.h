/* SPDX-License-Identifier: Apache-2.0
 * Memory that an endpoint allocated, in files that peers of the same host may map: docs/adr/0021-p2p-mapped.md.
 * ranges.h has the registrations; this file publishes memory to peers, and takes it back. Any thread may call. */
#ifndef KVP_P2P_BASE_OWN_H
#define KVP_P2P_BASE_OWN_H

#include "transport/transport.h"
#include "proto/wire.h"

#include <pthread.h>

typedef struct {
    kvp_tp_t *shm; /* the transport for shared memory; borrowed */
    pthread_mutex_t making; /* mutex, held while the file `words` is created; taken before `lock` */
    pthread_mutex_t lock; /* leaf lock: its holder takes no other lock; guards all fields below */
    pthread_cond_t turn_over;
    kvp_list_t list;
    kvp_mem_t words; /* the file of cells, with one cell for each published piece; created with the first piece */
    kvp_mr_t *words_mr;
    uint32_t next; /* index of the cell at which the search for a free cell begins */
} kvp_p2p_owns_t;

void kvp_p2p_owns_init(kvp_p2p_owns_t *owns, kvp_tp_t *shm);
/* kvp_p2p_owns_close clears every cell, which makes copies of peers that end later invalid. kvp_p2p_owns_fini frees all
 * memory. */
void kvp_p2p_owns_close(kvp_p2p_owns_t *owns);
void kvp_p2p_owns_fini(kvp_p2p_owns_t *owns);

/* One piece of the endpoint's memory. Changes of a piece take turns: registering, unregistering and freeing the same
 * piece never overlap. Different pieces do not wait for each other. */
typedef struct kvp_p2p_own kvp_p2p_own_t;

/* kvp_p2p_owns_alloc allocates a piece and begins a turn of the caller with it. Errors: INVALID (length 0), NOMEM (also
 * for more than the machine has), SYS. Failed system calls are logged. */
kvp_err_t kvp_p2p_owns_alloc(kvp_p2p_owns_t *owns, size_t len, kvp_p2p_own_t **own_out) KVP_MUST_USE;

/* kvp_p2p_owns_begin waits for a turn with the piece of memory that begins at addr; NULL: no piece begins at addr.
 * kvp_p2p_owns_end ends the turn; NULL has no effect. kvp_p2p_owns_free ends the turn and frees the piece. */
kvp_p2p_own_t *kvp_p2p_owns_begin(kvp_p2p_owns_t *owns, const void *addr) KVP_MUST_USE;
void kvp_p2p_owns_end(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own);
void kvp_p2p_owns_free(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own);
const kvp_mem_t *kvp_p2p_own_mem(const kvp_p2p_own_t *own);

/* The functions below are called in a turn; NULL has no effect. kvp_p2p_owns_publish lets peers map the piece, once
 * they know the range that is about to be registered under the token. Returns true if kvp_p2p_owns_hide must undo the
 * publication. Only a range that covers the whole piece, is not registered yet and was never revoked is published. */
bool kvp_p2p_owns_publish(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own, size_t len, uint64_t token);
void kvp_p2p_owns_hide(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own);

/* kvp_p2p_owns_revoke ends a publication, after the range was hidden and unregistered. The memory gets other pages, so
 * network adapters must have released the old pages. After OK no store of a peer reaches the memory; its contents stay.
 * NOMEM: a peer's stores may still reach the memory until it is freed. */
kvp_err_t kvp_p2p_owns_revoke(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own) KVP_MUST_USE;

/* kvp_p2p_owns_share returns what a peer needs to map the memory under the token: duplicates of the file descriptors of
 * the memory and of the cells, both for the caller to close, and the index of the cell. NOTSUP: not published; SYS. */
kvp_err_t kvp_p2p_owns_share(kvp_p2p_owns_t *owns, uint64_t token, int fds_out[2], uint64_t *cell_out) KVP_MUST_USE;

#endif
