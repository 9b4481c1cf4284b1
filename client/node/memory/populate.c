/* SPDX-License-Identifier: Apache-2.0
 * The populating thread.
 *
 * Design notes.
 * - It alone destroys a segment's memory while the node runs, so it may work on one without the lock that guards which one
 *   it is.
 * - It has no lower priority than others. In a step the kernel holds locks for it, of a page and of all the process's
 *   mappings; on busy processors a thread of the lowest priority keeps them for as long as it is not let run, and with
 *   them everybody who maps memory: that was seconds, for an engine that this node is embedded in. It rests instead, for
 *   as long as it has worked, which is the longer the busier the processors are.
 */
#include "client/node/memory/populate.h"

#include "client/transport/shm/mapping.h"
#include "client/net/waits.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>

#define STEP_BYTES (4u << 20)

/* Where the work stands: a chunk's payload from `at` on. */
typedef struct {
    const kvp_node_mem_t *mem;
    uint32_t chunk;
    uint64_t at;
    bool has_no_huge; /* the kernel has no huge pages for shared memory */
    bool is_done;
} cursor_t;

/* The whole huge pages of a step. Where it cannot be, no matter: small ones follow. */
static void
populate_huge(cursor_t *cur, uint8_t *addr, uint64_t n)
{
    n = n / KVP_HUGE_BYTES * KVP_HUGE_BYTES;
    if (n == 0 || cur->has_no_huge || kvp_make_huge(addr, n, &cur->has_no_huge)) return;
    if (cur->has_no_huge) kvp_log_info("node", "shared memory has no huge pages here: %m");
}

/* populate_step returns how many bytes it populated. */
static uint64_t
populate_step(cursor_t *cur)
{
    const kvp_mem_t *payload = &cur->mem->chunks[cur->chunk].payload;
    uint64_t n = kvp_min_u64(STEP_BYTES, payload->len - cur->at);
    uint8_t *addr = (uint8_t *)payload->addr + cur->at;

    populate_huge(cur, addr, n);
    if (!kvp_touch_ahead(addr, n, true) && errno != EAGAIN && errno != EINTR) {
        /* An old kernel, or a limit: pages then come as they are first used. */
        kvp_log_warn("node", "no more memory is populated ahead chunk %u: %m", cur->chunk);
        cur->is_done = true;
        return 0;
    }
    cur->at += n;
    if (cur->at < payload->len) return n;
    cur->at = 0;
    cur->is_done = ++cur->chunk == cur->mem->chunk_n;
    return n;
}

/* next_old takes one segment to destroy, or NULL. Called with the lock held. */
static kvp_node_mem_t *
next_old(kvp_node_populate_t *p)
{
    kvp_node_mem_t *old;

    if (kvp_list_is_empty(&p->old)) return NULL;
    old = kvp_list_first(&p->old, kvp_node_mem_t, link);
    kvp_list_del(&old->link);
    return old;
}

static void *
populate_main(void *arg)
{
    kvp_node_populate_t *p = arg;
    cursor_t cur = {.is_done = true};
    uint64_t rested_ns = 0;

    pthread_mutex_lock(&p->lock);
    while (!p->is_stopping) {
        kvp_node_mem_t *old = next_old(p);
        uint64_t now_ns = kvp_now_ns(), n = 0;

        if (p->mem != cur.mem) cur = (cursor_t){.mem = p->mem, .is_done = p->mem == NULL || p->is_lazy};
        if (old == NULL && cur.is_done) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        if (old == NULL && now_ns < rested_ns) {
            kvp_cond_wait_until(&p->changed, &p->lock, rested_ns);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        if (old != NULL) {
            kvp_node_mem_destroy(old);
        } else {
            n = populate_step(&cur);
            rested_ns = 2 * kvp_now_ns() - now_ns;
        }
        pthread_mutex_lock(&p->lock);
        if (old != NULL && old == cur.mem)
            cur = (cursor_t){.is_done = true}; /* its address may come again */
        else if (cur.mem == p->mem)
            p->populated_bytes += n;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

kvp_err_t
kvp_node_populate_start(kvp_node_populate_t *p, bool is_lazy)
{
    p->is_lazy = is_lazy;
    pthread_mutex_init(&p->lock, NULL);
    kvp_cond_init(&p->changed);
    kvp_list_init(&p->old);
    if (kvp_thread_start(&p->thread, "kvp-populate", populate_main, p) != KVP_OK) return KVP_SYS;
    p->has_thread = true;
    return KVP_OK;
}

void
kvp_node_populate_stop(kvp_node_populate_t *p)
{
    kvp_node_mem_t *old;

    if (!p->has_thread) return;
    pthread_mutex_lock(&p->lock);
    p->is_stopping = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    while ((old = next_old(p)) != NULL)
        kvp_node_mem_destroy(old);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    p->has_thread = false;
}

void
kvp_node_populate_begin(kvp_node_populate_t *p, kvp_node_mem_t *mem)
{
    pthread_mutex_lock(&p->lock);
    p->mem = mem;
    atomic_store(&p->populated_bytes, 0);
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void
kvp_node_populate_end(kvp_node_populate_t *p)
{
    pthread_mutex_lock(&p->lock);
    kvp_list_add_tail(&p->old, &p->mem->link);
    p->mem = NULL;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}
