/* SPDX-License-Identifier: Apache-2.0
 * Moves to and from device memory, by transports that reach the host's memory only: through a stage, that is pinned memory
 * of the host in two halves. While the bytes of one half travel, the device copies the other. See docs/adr/0015.
 */
#ifndef KVP_CLIENT_STAGING_H
#define KVP_CLIENT_STAGING_H

#include "client/mover.h"
#include "client/regs.h"

#define KVP_STAGE_HALF_BYTES (2u << 20)
#define KVP_STAGES_MAX 8u /* of a handle: so many threads stage at a time, the others wait */

typedef struct kvp_stage kvp_stage_t;

/* A handle's. Made when they are first needed, kept until fini. Any thread. */
typedef struct {
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t freed;
    kvp_list_t idle; /* guarded by lock */
    uint32_t made; /* guarded by lock */
} kvp_stages_t;

void kvp_stages_init(kvp_stages_t *stages);
void kvp_stages_fini(kvp_stages_t *stages); /* nobody stages any more */

/* kvp_staged_run is kvp_mover_run for moves of one kind, READ or FILL, where some span has device memory; which, `regs` knows,
 * and the caller holds those ranges. When it returns, nothing touches that memory any more. Also: SYS, NOMEM where the device
 * cannot copy or no stage can be made; DEADLINE where there was none by then. */
void kvp_staged_run(const kvp_mover_t *mover, kvp_stages_t *stages, kvp_regs_t *regs, kvp_move_t *moves, uint32_t n);

#endif
