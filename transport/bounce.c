/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/bounce.h"

#include "common/waits.h"

#include <stdlib.h>

#define QUEUES_MAX 64u /* the most device contexts that one bounce buffer copies from or to */

struct kvp_bounce {
    kvp_list_t link; /* link in the list of idle buffers */
    kvp_devmem_t mem; /* the device whose driver pinned the memory */
    uint32_t parts_n;
    uint8_t *parts[KVP_BOUNCE_PARTS_MAX];
    kvp_sum_state_t *sum;
    kvp_device_queue_t *queues[QUEUES_MAX]; /* copy queues, one for each device context; opened when first needed */
    bool is_busy[QUEUES_MAX]; /* true while copies of the queue with this index are under way */
    uint32_t queues_n;
};

void
kvp_bounces_init(kvp_bounces_t *bounces, uint32_t max, uint32_t parts)
{
    *bounces = (kvp_bounces_t){.max = max, .parts = parts};
    pthread_mutex_init(&bounces->lock, NULL);
    kvp_cond_init(&bounces->freed);
    kvp_list_init(&bounces->idle);
}

static void
bounce_destroy(kvp_bounce_t *bounce)
{
    for (uint32_t i = 0; i < bounce->queues_n; i++)
        bounce->queues[i]->ops->queue_close(bounce->queues[i]);
    for (uint32_t i = 0; i < bounce->parts_n; i++)
        bounce->mem.ops->pinned_free(&bounce->mem, bounce->parts[i]);
    if (bounce->sum != NULL) kvp_sum_destroy(bounce->sum);
    free(bounce);
}

static kvp_err_t
bounce_create(const kvp_devmem_t *mem, uint32_t parts, kvp_bounce_t **bounce_out)
{
    kvp_bounce_t *bounce = calloc(1, sizeof *bounce);
    kvp_err_t err = KVP_OK;

    if (bounce == NULL) return KVP_NOMEM;
    bounce->mem = *mem;
    bounce->sum = kvp_sum_create();
    if (bounce->sum == NULL) err = KVP_NOMEM;
    while (err == KVP_OK && bounce->parts_n < parts) {
        void *part;

        err = mem->ops->pinned_alloc(mem, KVP_BOUNCE_PART_BYTES, &part);
        if (err == KVP_OK) bounce->parts[bounce->parts_n++] = part;
    }
    if (err != KVP_OK)
        bounce_destroy(bounce);
    else
        *bounce_out = bounce;
    return err;
}

void
kvp_bounces_fini(kvp_bounces_t *bounces)
{
    while (!kvp_list_is_empty(&bounces->idle)) {
        kvp_bounce_t *bounce = kvp_list_first(&bounces->idle, kvp_bounce_t, link);

        kvp_list_del(&bounce->link);
        bounce_destroy(bounce);
    }
    pthread_cond_destroy(&bounces->freed);
    pthread_mutex_destroy(&bounces->lock);
}

/* Takes an idle buffer, and waits for one until deadline_ns. OK with NULL: there are fewer than max buffers, and the
 * caller may create one. DEADLINE: none was given back in time. */
static kvp_err_t
wait_for_stage(kvp_bounces_t *bounces, uint64_t deadline_ns, kvp_bounce_t **bounce_out)
{
    kvp_err_t err = KVP_OK;

    *bounce_out = NULL;
    pthread_mutex_lock(&bounces->lock);
    while (kvp_list_is_empty(&bounces->idle) && bounces->made == bounces->max && err == KVP_OK) {
        kvp_cond_wait_until(&bounces->freed, &bounces->lock, deadline_ns);
        if (kvp_now_ns() >= deadline_ns) err = KVP_DEADLINE;
    }
    if (!kvp_list_is_empty(&bounces->idle)) {
        err = KVP_OK;
        *bounce_out = kvp_list_first(&bounces->idle, kvp_bounce_t, link);
        kvp_list_del(&(*bounce_out)->link);
    } else if (err == KVP_OK) {
        bounces->made++;
    }
    pthread_mutex_unlock(&bounces->lock);
    return err;
}

void
kvp_bounce_rele(kvp_bounces_t *bounces, kvp_bounce_t *bounce)
{
    pthread_mutex_lock(&bounces->lock);
    if (bounce != NULL)
        kvp_list_add_head(&bounces->idle, &bounce->link);
    else
        bounces->made--;
    pthread_cond_signal(&bounces->freed);
    pthread_mutex_unlock(&bounces->lock);
}

kvp_err_t
kvp_bounce_take(kvp_bounces_t *bounces, const kvp_devmem_t *mem, uint64_t deadline_ns, kvp_bounce_t **bounce_out)
{
    kvp_err_t err = wait_for_stage(bounces, deadline_ns, bounce_out);

    if (err != KVP_OK || *bounce_out != NULL) return err;
    err = bounce_create(mem, bounces->parts, bounce_out);
    if (err != KVP_OK) kvp_bounce_rele(bounces, NULL);
    return err;
}

/* ---- copies */
uint8_t *
kvp_bounce_part(const kvp_bounce_t *bounce, uint32_t part)
{
    return bounce->parts[part];
}

kvp_sum_state_t *
kvp_bounce_sum(const kvp_bounce_t *bounce)
{
    return bounce->sum;
}

bool
kvp_bounce_place(uint64_t left_bytes, size_t *used_io, size_t *at_out, size_t *len_out)
{
    if (*used_io > 0 && left_bytes > KVP_BOUNCE_PART_BYTES - *used_io) return false;
    *at_out = *used_io;
    *len_out = (size_t)kvp_min_u64(left_bytes, KVP_BOUNCE_PART_BYTES);
    *used_io = (size_t)kvp_min_u64(kvp_align_up(*used_io + *len_out, 64), KVP_BOUNCE_PART_BYTES);
    return true;
}

kvp_err_t
kvp_bounce_wait(kvp_bounce_t *bounce)
{
    kvp_err_t err = KVP_OK;

    for (uint32_t i = 0; i < bounce->queues_n; i++) {
        kvp_err_t one = bounce->is_busy[i] ? bounce->queues[i]->ops->wait(bounce->queues[i]) : KVP_OK;

        bounce->is_busy[i] = false;
        if (err == KVP_OK) err = one;
    }
    return err;
}

/* Returns the copy queue for the context of the memory, and opens the queue if needed. */
static kvp_err_t
find_queue(kvp_bounce_t *bounce, const kvp_devmem_t *mem, uint32_t *at_out)
{
    uint32_t at = 0;
    kvp_err_t err;

    while (at < bounce->queues_n && bounce->queues[at]->context != mem->context)
        at++;
    if (at == QUEUES_MAX) return KVP_LIMIT;
    if (at == bounce->queues_n) {
        err = mem->ops->queue_open(mem, &bounce->queues[at]);
        if (err != KVP_OK) return err;
        bounce->is_busy[at] = false;
        bounce->queues_n++;
    }
    *at_out = at;
    return KVP_OK;
}

kvp_err_t
kvp_bounce_copy(kvp_bounce_t *bounce, const kvp_devmem_t *mem, void *dst, const void *src, size_t len)
{
    uint32_t which;
    kvp_err_t err = find_queue(bounce, mem, &which);

    if (err != KVP_OK) return err;
    bounce->is_busy[which] = true;
    return bounce->queues[which]->ops->copy(bounce->queues[which], dst, src, len);
}
