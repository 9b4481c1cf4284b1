/* SPDX-License-Identifier: Apache-2.0
 * The registration cache: local memory registered (lent) with the RDMA devices of the process. Registration pins memory
 * and takes seconds, and a process opens and closes sessions. So a registration belongs to the process, not to a
 * transport instance, and ends with its last loan. Any thread.
 *
 * Memory is registered in pieces, cut at multiples of a fixed size (the grid), so overlapping loans share pieces. Large
 * loans are registered in parallel, in the background. A look-up does not find a piece that is not ready, that could
 * not be registered (RLIMIT_MEMLOCK), or that a returned device no longer accepts. Device memory is registered before
 * lend returns, whole or not at all: as dma-bufs, else by its address, as peer memory. */
#ifndef KVP_TRANSPORT_RDMA_BASE_MRCACHE_H
#define KVP_TRANSPORT_RDMA_BASE_MRCACHE_H

#include "transport/gpu/device.h"
#include "transport/rdma/base/wire.h"

typedef struct kvp_mrcache kvp_mrcache_t;

/* kvp_mrcache_hold returns the cache of a verbs stack. The process has one cache for each verbs stack, whose devices
 * stay open until kvp_mrcache_rele. */
kvp_err_t kvp_mrcache_hold(const kvp_verbs_ops_t *verbs, kvp_mrcache_t **cache_out) KVP_MUST_USE;
void kvp_mrcache_rele(kvp_mrcache_t *cache);

/* kvp_mrcache_lend and kvp_mrcache_unlend are the lend and unlend slots of the transport table (transport.h). verbs
 * is the stack whose devices register the memory. */
kvp_err_t kvp_mrcache_lend(const kvp_verbs_ops_t *verbs, void *addr, size_t len, const kvp_devmem_t *device,
                           kvp_loan_t **loan_out);
void kvp_mrcache_unlend(kvp_loan_t *loan);

/* A cursor for look-ups: kvp_mrcache_begin, then kvp_mrcache_find any number of times, then kvp_mrcache_end, in one
 * thread that does not block in between. find returns the number of bytes from addr on, at most len, that one
 * registration with the device covers, and its key; 0 = none. kvp_mrcache_dev returns the number of a device. */
typedef struct {
    kvp_mrcache_t *cache;
    const struct kvp_mrpiece *last;
} kvp_mrcursor_t;

size_t kvp_mrcache_dev(const kvp_mrcache_t *cache, const kvp_rdma_dev_t *dev);
void kvp_mrcache_begin(kvp_mrcache_t *cache, kvp_mrcursor_t *cursor);
size_t kvp_mrcache_find(kvp_mrcursor_t *cursor, size_t dev, const void *addr, size_t len, uint32_t *lkey_out);
void kvp_mrcache_end(kvp_mrcursor_t *cursor);

/* kvp_mrcache_count returns the numbers of pieces that are registered, that wait for or are in registration, and that
 * failed. For tests. */
void kvp_mrcache_count(kvp_mrcache_t *cache, size_t *ready_out, size_t *waiting_out, size_t *failed_out);

#endif
