/* SPDX-License-Identifier: Apache-2.0
 * The context of every layer: options, term, time, randomness, counters, and the remaining budget
 * of the current step. A step is the core's work for one input. The context knows no other module. */
#ifndef KVP_MASTER_CORE_BASE_CTX_H
#define KVP_MASTER_CORE_BASE_CTX_H

#include "common/base.h"
#include "master/core/base/conf.h"

#define KVP_MS(n) ((uint64_t)(n)*1000000u)
#define KVP_TICK_NS KVP_MS(10)
#define KVP_SLICE 1024u /* records that one step may handle; deferrable work waits for the next step: kvp_ctx_spend */
#define KVP_FAULTS_NS KVP_MS(60000) /* a fault that did not recur for this time is over */
#define KVP_DAMAGE_NS KVP_MS(3600000) /* the same for a fault that has lost objects */
#define KVP_STEP_WORK 8192u /* limit of the extents that the search for space may examine in one step */

/* Recent faults of one kind, for /health. A pause of KVP_FAULTS_NS (`damaged`: KVP_DAMAGE_NS) resets the count. */
typedef struct {
    uint64_t n;
    uint64_t last_ns;
    uint32_t segment; /* id of the segment of the last fault */
} kvp_faults_t;

typedef struct {
    kvp_master_conf_t conf;
    kvp_master_stats_t st;
    uint32_t term;
    uint64_t now_ns;
    uint64_t stall_ns; /* total time in which the master's own loop did not run */
    uint64_t rng;
    uint32_t work_left; /* extents that the search for space may still examine in this step */
    uint32_t slice_left; /* records that this step may still touch for deferrable work */
    bool is_behind; /* flag: this step left due work for the next step */
    bool has_space_news; /* flag: space became free or evictable, so the waiting puts are to be tried again */
    uint64_t space_news; /* number of times at which space became free or evictable */
    char log_failure[160]; /* reason why the log could not be written, for answers while st.log_refuses is 1 */
    kvp_faults_t failed_loads; /* failed loads from SSD */
    kvp_faults_t damaged; /* objects that an SSD lost or damaged */
    kvp_faults_t unwritten; /* objects that were evicted before they were written to their node's SSD */
    char note[256]; /* a line for the shell's log; "" = none */
} kvp_ctx_t;

/* kvp_ctx_spend counts n records that this step has touched. Deferrable work checks slice_left first. */
static inline void
kvp_ctx_spend(kvp_ctx_t *ctx, uint32_t n)
{
    ctx->st.work += n;
    ctx->slice_left -= (uint32_t)kvp_min_u64(n, ctx->slice_left);
}
/* kvp_ctx_space_news records that space was freed, or can be evicted or claimed now, so that a waiting put may fit.
 * The waiting puts are tried again before the current input returns (kvp_evict_retry_waiting). */
static inline void
kvp_ctx_space_news(kvp_ctx_t *ctx)
{
    ctx->has_space_news = true;
    ctx->space_news++;
}
static inline bool
kvp_ctx_is_faulty(const kvp_ctx_t *ctx, const kvp_faults_t *faults)
{
    const uint64_t lasts_ns = faults == &ctx->damaged ? KVP_DAMAGE_NS : KVP_FAULTS_NS;

    return faults->n > 0 && ctx->now_ns - faults->last_ns < lasts_ns;
}
static inline void
kvp_ctx_count_fault(kvp_ctx_t *ctx, kvp_faults_t *faults, uint32_t segment)
{
    *faults = (kvp_faults_t){kvp_ctx_is_faulty(ctx, faults) ? faults->n + 1 : 1, ctx->now_ns, segment};
}
uint64_t kvp_ctx_random(kvp_ctx_t *ctx); /* kvp_ctx_random returns evenly spread numbers, which are not secret. */
void kvp_ctx_note(kvp_ctx_t *ctx, const char *fmt, ...) KVP_PRINTF(2, 3);

#endif
