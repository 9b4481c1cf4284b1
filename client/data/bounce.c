/* SPDX-License-Identifier: Apache-2.0 */
#include "client/data/bounce.h"

#include "client/net/waits.h"

#include <stdlib.h>

#define QUEUES_MAX 64u /* contexts that a stage copies in */

struct kvp_stage {
    kvp_list_t link; /* of the idle ones */
    kvp_devmem_t mem; /* whose pinned memory it is */
    uint32_t parts_n;
    uint8_t *parts[KVP_STAGE_PARTS_MAX];
    kvp_sum_state_t *sum;
    kvp_device_queue_t *queues[QUEUES_MAX]; /* opened when first needed */
    bool is_busy[QUEUES_MAX]; /* there are copies to wait for */
    uint32_t queues_n;
};

void
kvp_stages_init(kvp_stages_t *stages, uint32_t max, uint32_t parts)
{
    *stages = (kvp_stages_t){.max = max, .parts = parts};
    pthread_mutex_init(&stages->lock, NULL);
    kvp_cond_init(&stages->freed);
    kvp_list_init(&stages->idle);
}

static void
stage_destroy(kvp_stage_t *stage)
{
    for (uint32_t i = 0; i < stage->queues_n; i++)
        stage->queues[i]->ops->queue_close(stage->queues[i]);
    for (uint32_t i = 0; i < stage->parts_n; i++)
        stage->mem.ops->pinned_free(&stage->mem, stage->parts[i]);
    if (stage->sum != NULL) kvp_sum_destroy(stage->sum);
    free(stage);
}

static kvp_err_t
stage_create(const kvp_devmem_t *mem, uint32_t parts, kvp_stage_t **stage_out)
{
    kvp_stage_t *stage = calloc(1, sizeof *stage);
    kvp_err_t err = KVP_OK;

    if (stage == NULL) return KVP_NOMEM;
    stage->mem = *mem;
    stage->sum = kvp_sum_create();
    if (stage->sum == NULL) err = KVP_NOMEM;
    while (err == KVP_OK && stage->parts_n < parts) {
        void *part;

        err = mem->ops->pinned_alloc(mem, KVP_STAGE_PART_BYTES, &part);
        if (err == KVP_OK) stage->parts[stage->parts_n++] = part;
    }
    if (err != KVP_OK)
        stage_destroy(stage);
    else
        *stage_out = stage;
    return err;
}

void
kvp_stages_fini(kvp_stages_t *stages)
{
    while (!kvp_list_is_empty(&stages->idle)) {
        kvp_stage_t *stage = kvp_list_first(&stages->idle, kvp_stage_t, link);

        kvp_list_del(&stage->link);
        stage_destroy(stage);
    }
    pthread_cond_destroy(&stages->freed);
    pthread_mutex_destroy(&stages->lock);
}

/* An idle one, or the right to make one (OK with NULL), or DEADLINE. */
static kvp_err_t
wait_for_stage(kvp_stages_t *stages, uint64_t deadline_ns, kvp_stage_t **stage_out)
{
    kvp_err_t err = KVP_OK;

    *stage_out = NULL;
    pthread_mutex_lock(&stages->lock);
    while (kvp_list_is_empty(&stages->idle) && stages->made == stages->max && err == KVP_OK) {
        kvp_cond_wait_until(&stages->freed, &stages->lock, deadline_ns);
        if (kvp_now_ns() >= deadline_ns) err = KVP_DEADLINE;
    }
    if (!kvp_list_is_empty(&stages->idle)) {
        err = KVP_OK;
        *stage_out = kvp_list_first(&stages->idle, kvp_stage_t, link);
        kvp_list_del(&(*stage_out)->link);
    } else if (err == KVP_OK) {
        stages->made++;
    }
    pthread_mutex_unlock(&stages->lock);
    return err;
}

void
kvp_stage_rele(kvp_stages_t *stages, kvp_stage_t *stage)
{
    pthread_mutex_lock(&stages->lock);
    if (stage != NULL)
        kvp_list_add_head(&stages->idle, &stage->link);
    else
        stages->made--;
    pthread_cond_signal(&stages->freed);
    pthread_mutex_unlock(&stages->lock);
}

kvp_err_t
kvp_stage_take(kvp_stages_t *stages, const kvp_devmem_t *mem, uint64_t deadline_ns, kvp_stage_t **stage_out)
{
    kvp_err_t err = wait_for_stage(stages, deadline_ns, stage_out);

    if (err != KVP_OK || *stage_out != NULL) return err;
    err = stage_create(mem, stages->parts, stage_out);
    if (err != KVP_OK) kvp_stage_rele(stages, NULL);
    return err;
}

/* ---- copies */
uint8_t *
kvp_stage_part(const kvp_stage_t *stage, uint32_t part)
{
    return stage->parts[part];
}

kvp_sum_state_t *
kvp_stage_sum(const kvp_stage_t *stage)
{
    return stage->sum;
}

kvp_err_t
kvp_stage_wait(kvp_stage_t *stage)
{
    kvp_err_t err = KVP_OK;

    for (uint32_t i = 0; i < stage->queues_n; i++) {
        kvp_err_t one = stage->is_busy[i] ? stage->queues[i]->ops->wait(stage->queues[i]) : KVP_OK;

        stage->is_busy[i] = false;
        if (err == KVP_OK) err = one;
    }
    return err;
}

/* The queue of that memory's context. */
static kvp_err_t
find_queue(kvp_stage_t *stage, const kvp_devmem_t *mem, uint32_t *at_out)
{
    uint32_t at = 0;
    kvp_err_t err;

    while (at < stage->queues_n && stage->queues[at]->context != mem->context)
        at++;
    if (at == QUEUES_MAX) return KVP_LIMIT;
    if (at == stage->queues_n) {
        err = mem->ops->queue_open(mem, &stage->queues[at]);
        if (err != KVP_OK) return err;
        stage->is_busy[at] = false;
        stage->queues_n++;
    }
    *at_out = at;
    return KVP_OK;
}

kvp_err_t
kvp_stage_copy(kvp_stage_t *stage, const kvp_devmem_t *mem, void *dst, const void *src, size_t len)
{
    uint32_t which;
    kvp_err_t err = find_queue(stage, mem, &which);

    if (err != KVP_OK) return err;
    stage->is_busy[which] = true;
    return stage->queues[which]->ops->copy(stage->queues[which], dst, src, len);
}
