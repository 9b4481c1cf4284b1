/* SPDX-License-Identifier: Apache-2.0
 * How much a rail is trusted: a state machine without a clock of its own. It falls to nothing when the rail fails, and
 * comes back by what it then carries; a slow rail is given less. Whoever has the rail tells it what happened.
 */
#ifndef KVP_CLIENT_TRANSPORT_RDMA_HEALTH_H
#define KVP_CLIENT_TRANSPORT_RDMA_HEALTH_H

#include "common/base.h"

#define KVP_RDMA_HEALTH_FULL 256u

typedef struct {
    uint32_t score; /* 0 (failed) to FULL */
    uint32_t fails; /* in a row */
    uint64_t retry_ns; /* not to be connected before */
    uint64_t ns_per_mib; /* what it takes, smoothed; 0 = nothing was measured */
} kvp_rdma_health_t;

/* kvp_rdma_health_init: one that was never tried is trusted. */
void kvp_rdma_health_init(kvp_rdma_health_t *h);

/* kvp_rdma_health_failed: a connect or a connection failed. The rail is left alone for a while, which is a moment where it was
 * trusted, and then doubles up to some seconds: until retry_ns; dice (any number) spreads those who lost theirs together.
 * is_doubtful: it has failed again since. */
void kvp_rdma_health_failed(kvp_rdma_health_t *h, uint64_t now_ns, uint64_t dice);
static inline bool
kvp_rdma_health_is_doubtful(const kvp_rdma_health_t *h)
{
    return h->fails > 1;
}

/* kvp_rdma_health_connected: after a failure it begins with a small share. moved: a batch of so many bytes took so long
 * from the doorbell to the completion: the share grows. */
void kvp_rdma_health_connected(kvp_rdma_health_t *h);
void kvp_rdma_health_moved(kvp_rdma_health_t *h, uint64_t bytes, uint64_t took_ns);

/* kvp_rdma_health_weight is the share of the work that the rail gets, 1 to FULL, next to others of which the fastest takes
 * best_ns_per_mib (0 = not known). */
uint32_t kvp_rdma_health_weight(const kvp_rdma_health_t *h, uint64_t best_ns_per_mib);

/* kvp_rdma_health_stalled_at says when a rail that has shown nothing since then, with so many bytes under way, is as good
 * as dead: later than an adapter that gives up after give_up_ns would say so. Some never do. */
uint64_t kvp_rdma_health_stalled_at(const kvp_rdma_health_t *h, uint64_t give_up_ns, uint64_t since_ns, uint64_t bytes);

#endif
