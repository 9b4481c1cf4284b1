/* SPDX-License-Identifier: Apache-2.0
 * The registration cache: local memory that was lent to the process's RDMA devices. To pin memory takes seconds, and
 * sessions come and go: so it belongs to nobody's instance, and ends with the last loan of it. Any thread.
 *
 * Memory is registered by pieces of a fixed grid of addresses, so what loans have in common they share; in parallel and
 * in the background where it is much. A piece that is not ready, or that cannot be had (memlock), is just not found; nor is
 * one with a device that came back and did not take it any more.
 * Device memory is registered before lend returns, whole or not at all: as dma-bufs, else by its address, as peer memory.
 */
#ifndef KVP_TRANSPORT_RDMA_MRCACHE_H
#define KVP_TRANSPORT_RDMA_MRCACHE_H

#include "transport/gpu/device.h"
#include "transport/rdma/wire.h"

typedef struct kvp_mrcache kvp_mrcache_t;

/* kvp_mrcache_hold gives the cache of a verbs stack, one a process, with its devices open until rele. */
kvp_err_t kvp_mrcache_hold(const kvp_verbs_ops_t *verbs, kvp_mrcache_t **cache_out) KVP_MUST_USE;
void kvp_mrcache_rele(kvp_mrcache_t *cache);

/* The slots of the table, see transport.h; on which devices is said. */
kvp_err_t kvp_mrcache_lend(const kvp_verbs_ops_t *verbs, void *addr, size_t len, const kvp_devmem_t *device,
                           kvp_loan_t **loan_out);
void kvp_mrcache_unlend(kvp_loan_t *loan);

/* Looking up: begin, find as often as wanted, end; of one thread, with nothing that waits in between. find returns how many
 * bytes from addr on, at most len, one registration with a device covers, and its key; 0 = none. Devices are named by
 * kvp_mrcache_dev's number. */
typedef struct {
    kvp_mrcache_t *cache;
    const struct kvp_mrpiece *last;
} kvp_mrcursor_t;

size_t kvp_mrcache_dev(const kvp_mrcache_t *cache, const kvp_rdma_dev_t *dev);
void kvp_mrcache_begin(kvp_mrcache_t *cache, kvp_mrcursor_t *cursor);
size_t kvp_mrcache_find(kvp_mrcursor_t *cursor, size_t dev, const void *addr, size_t len, uint32_t *lkey_out);
void kvp_mrcache_end(kvp_mrcursor_t *cursor);

/* What there is: pieces that are ready, under way or waiting, and could not be had. */
typedef struct {
    size_t ready, waiting, failed;
} kvp_mrcache_state_t;

void kvp_mrcache_state(kvp_mrcache_t *cache, kvp_mrcache_state_t *state_out);

#endif
