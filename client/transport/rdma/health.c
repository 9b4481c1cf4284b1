/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/transport/rdma/health.h"

#include "common/clock.h"

#define MIB (1ull << 20)
#define RETRY_FIRST_NS (50 * KVP_NS_PER_MS)
#define RETRY_SHIFT_MAX 7u /* 6.4 s, and as much again by chance */
#define SCORE_PROBE 16u /* the first share after a failure; each batch that goes well doubles it */
#define WEIGHT_MIN 16u /* of one that is slow: it has to be measured to be seen to recover */
#define MEASURED_MIN (64u << 10) /* bytes: what a smaller batch takes is the way there and back */

void
kvp_rdma_health_init(kvp_rdma_health_t *h)
{
    *h = (kvp_rdma_health_t){.score = KVP_RDMA_HEALTH_FULL};
}

void
kvp_rdma_health_failed(kvp_rdma_health_t *h, uint64_t now_ns, uint64_t dice)
{
    uint64_t wait_ns = RETRY_FIRST_NS << kvp_min_u64(h->fails, RETRY_SHIFT_MAX);
    bool was_trusted = h->score == KVP_RDMA_HEALTH_FULL;

    h->score = 0;
    h->ns_per_mib = 0;
    h->fails++;
    h->retry_ns = now_ns + dice % wait_ns + (was_trusted ? 0 : wait_ns);
}

void
kvp_rdma_health_connected(kvp_rdma_health_t *h)
{
    if (h->score == 0) h->score = SCORE_PROBE;
}

/* A connection that stands says little: the failures in a row are forgotten when it is fully trusted again. */
void
kvp_rdma_health_moved(kvp_rdma_health_t *h, uint64_t bytes, uint64_t took_ns)
{
    h->score = (uint32_t)kvp_min_u64(h->score * 2, KVP_RDMA_HEALTH_FULL);
    if (h->score == KVP_RDMA_HEALTH_FULL) h->fails = 0;
    if (bytes < MEASURED_MIN) return;
    took_ns = kvp_max_u64(took_ns * MIB / bytes, 1);
    h->ns_per_mib = h->ns_per_mib == 0 ? took_ns : (3 * h->ns_per_mib + took_ns) / 4;
}

uint32_t
kvp_rdma_health_weight(const kvp_rdma_health_t *h, uint64_t best_ns_per_mib)
{
    uint64_t weight = h->score;

    if (h->ns_per_mib > best_ns_per_mib && best_ns_per_mib > 0)
        weight = kvp_max_u64(weight * best_ns_per_mib / h->ns_per_mib, kvp_min_u64(weight, WEIGHT_MIN));
    return (uint32_t)kvp_max_u64(weight, 1);
}

/* Half as much again as the adapter takes for its verdict, and beyond that four times as long as the bytes usually take:
 * between 10 and 100 MB/s, about, where an adapter gives up after a second. */
uint64_t
kvp_rdma_health_stalled_at(const kvp_rdma_health_t *h, uint64_t give_up_ns, uint64_t since_ns, uint64_t bytes)
{
    uint64_t slowest = give_up_ns / 10;
    uint64_t ns_per_mib =
        h->ns_per_mib == 0 ? slowest : kvp_min_u64(kvp_max_u64(4 * h->ns_per_mib, slowest / 10), slowest);

    return since_ns + give_up_ns + give_up_ns / 2 + bytes * ns_per_mib / MIB;
}
