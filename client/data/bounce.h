/* SPDX-License-Identifier: Apache-2.0
 * Stages: pinned memory of the host, in one part or two, through which bytes go to and from device memory where nothing else
 * reaches that; with the device's copies in and out.
 */
#ifndef KVP_CLIENT_DATA_BOUNCE_H
#define KVP_CLIENT_DATA_BOUNCE_H

#include "client/transport/gpu/device.h"
#include "common/hash.h"
#include "common/list.h"

#include <pthread.h>

#define KVP_STAGE_PART_BYTES (2u << 20)
#define KVP_STAGE_PARTS_MAX 2u
#define KVP_STAGES_MAX 8u /* of a handle: so many threads stage at a time, the others wait */

typedef struct kvp_stage kvp_stage_t;

/* A handle's. Made when they are first needed, kept until fini. Any thread. */
typedef struct {
    uint32_t max; /* stages at a time */
    uint32_t parts; /* of each, up to KVP_STAGE_PARTS_MAX */
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t freed;
    kvp_list_t idle; /* guarded by lock */
    uint32_t made; /* guarded by lock */
} kvp_stages_t;

void kvp_stages_init(kvp_stages_t *stages, uint32_t max, uint32_t parts);
void kvp_stages_fini(kvp_stages_t *stages); /* nobody stages any more */

/* kvp_stage_take waits for a stage, until deadline_ns: DEADLINE, NOMEM, SYS (the device's stack makes none). kvp_stage_rele takes
 * it back, with nothing under way; NULL is the right to make one. A stage is one thread's at a time. */
kvp_err_t kvp_stage_take(kvp_stages_t *stages, const kvp_devmem_t *mem, uint64_t deadline_ns, kvp_stage_t **stage_out)
    KVP_MUST_USE;
void kvp_stage_rele(kvp_stages_t *stages, kvp_stage_t *stage);

/* kvp_stage_part is the memory, of KVP_STAGE_PART_BYTES; kvp_stage_sum a state for sums of what goes through it. */
uint8_t *kvp_stage_part(const kvp_stage_t *stage, uint32_t part);
kvp_sum_state_t *kvp_stage_sum(const kvp_stage_t *stage);

/* kvp_stage_copy begins one copy between the stage and device memory of mem: LIMIT (it is of too many contexts), SYS. kvp_stage_wait
 * ends all that were begun: also where it fails nothing touches their memory any more. */
kvp_err_t kvp_stage_copy(kvp_stage_t *stage, const kvp_devmem_t *mem, void *dst, const void *src, size_t len)
    KVP_MUST_USE;
kvp_err_t kvp_stage_wait(kvp_stage_t *stage) KVP_MUST_USE;

#endif
