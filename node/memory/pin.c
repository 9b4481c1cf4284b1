/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A thread chooses a chunk under the lock and registers the chunk without the lock. It publishes the result by
 *   storing mrs_err with release order, and does not touch the chunk again before the threads are joined.
 * - A chunk that cannot be registered is refused for good. The other chunks are still tried: a scarce resource
 *   (locked memory) may suffice for a smaller chunk, and a refusal is quick.
 * - A registration cannot be interrupted, so stop waits for registrations under way.
 * - Only failures of making write keys are recorded here. The transport knows which keys exist, and voids them with
 *   the fence, at any time. */
#include "node/memory/pin.h"

#include "common/clock.h"
#include "common/thread.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CPUS_A_THREAD 2
/* kvp_node_pin_check registers this number of bytes, more than systems commonly let a process lock */
#define CHECK_BYTES (16ull << 20)
#define NICE 10 /* nice value of the registering threads: a lower priority than the threads that serve */

enum {
    WAITS,
    IS_WANTED,
    IS_TAKEN,
};

uint32_t
kvp_node_pin_threads(long cpus, uint32_t chunk_n)
{
    uint64_t n = kvp_max_u64((uint64_t)(cpus < 0 ? 0 : cpus) / CPUS_A_THREAD, 1);

    return (uint32_t)kvp_min_u64(kvp_min_u64(n, chunk_n), KVP_NODE_PIN_THREADS_MAX);
}

/* ---- one chunk */
static kvp_err_t
register_chunk(kvp_tp_t *tp, kvp_node_chunk_t *c, size_t at)
{
    kvp_err_t err = kvp_mr_create(tp, &c->payload, &c->payload_mrs[at]);

    if (err == KVP_OK) err = kvp_mr_create(tp, &c->meta, &c->meta_mrs[at]);
    if (err == KVP_OK) return KVP_OK;
    kvp_mr_destroy(c->payload_mrs[at]);
    c->payload_mrs[at] = NULL;
    return err;
}

static void
say_refused(kvp_node_pin_t *p, const kvp_tp_t *tp, uint32_t chunk, kvp_err_t err)
{
    const kvp_node_chunk_t *c = &p->mem->chunks[chunk];
    uint32_t missed;

    if (!kvp_log_limit_ok(&p->noise, &missed)) return;
    kvp_log_error(
        "node",
        "chunk %u of %u is not served by %s: its %llu bytes cannot be registered: %s; let the process lock more "
        "memory (ulimit -l unlimited, LimitMEMLOCK=infinity of the service), or give the node less "
        "(--memory) missed=%u",
        chunk, p->mem->chunk_n, tp->ops->name, (unsigned long long)(c->payload.len + c->meta.len), kvp_err_text(err),
        missed);
}

/* Registers a chunk with all transports whose registration is slow, such as rdma. Returns false if a transport refuses
 * the chunk. */
static bool
register_with_all(kvp_node_pin_t *p, uint32_t chunk)
{
    kvp_node_chunk_t *c = &p->mem->chunks[chunk];
    bool is_ok = true;

    for (size_t at = 0; at < KVP_NODE_TPS_MAX; at++) {
        kvp_err_t err = p->tps[at] == NULL ? KVP_OK : register_chunk(p->tps[at], c, at);

        if (err != KVP_OK) say_refused(p, p->tps[at], chunk, err);
        is_ok &= err == KVP_OK;
        if (p->tps[at] != NULL)
            atomic_store_explicit(&c->mrs_err[at], err == KVP_OK ? KVP_OK : KVP_NOTSUP, memory_order_release);
    }
    return is_ok;
}

/* ---- keys of writers. The lock is held, except in make_grant. */
static kvp_node_grant_t *
grant_find(kvp_node_pin_t *p, const kvp_node_grant_t *like)
{
    for (uint32_t i = 0; i < p->grants_n; i++) {
        kvp_node_grant_t *g = &p->grants[i];

        if (g->incarnation == like->incarnation && g->chunk == like->chunk && g->tp == like->tp) return g;
    }
    return NULL;
}

static void
grant_forget(kvp_node_pin_t *p, kvp_node_grant_t *g)
{
    memmove(g, g + 1, (size_t)(&p->grants[--p->grants_n] - g) * sizeof *g);
}

static kvp_node_grant_t *
grant_in_state(kvp_node_pin_t *p, uint32_t state)
{
    for (uint32_t i = 0; i < p->grants_n; i++)
        if (p->grants[i].state == state) return &p->grants[i];
    return NULL;
}

/* Adds a pending grant. If all places of the client, or of all clients, are in use, a failed grant that no client has
 * asked for again is dropped; without such a grant nothing is added. */
static void
grant_add(kvp_node_pin_t *p, const kvp_node_grant_t *g)
{
    kvp_node_grant_t *own_failed = NULL, *old = NULL;
    uint32_t own_n = 0;

    for (uint32_t i = 0; i < p->grants_n; i++) {
        kvp_node_grant_t *other = &p->grants[i];

        if (other->incarnation != g->incarnation) continue;
        own_n++;
        if (own_failed == NULL && other->state == KVP_GRANT_FAILED) own_failed = other;
    }
    if (own_n == KVP_NODE_GRANTS_EACH)
        old = own_failed;
    else if (p->grants_n == KVP_NODE_GRANTS_MAX)
        old = grant_in_state(p, KVP_GRANT_FAILED);
    if (old == NULL && (own_n == KVP_NODE_GRANTS_EACH || p->grants_n == KVP_NODE_GRANTS_MAX)) return;
    if (old != NULL) grant_forget(p, old);
    p->grants[p->grants_n++] = *g;
    pthread_cond_signal(&p->work);
}

static kvp_err_t
make_grant(kvp_node_pin_t *p, const kvp_node_grant_t *g)
{
    const kvp_node_chunk_t *c = &p->mem->chunks[g->chunk];
    const kvp_transport_ops_t *ops = p->tps[g->tp]->ops;
    kvp_err_t err = ops->mr_grant(c->payload_mrs[g->tp], g->incarnation);

    return err == KVP_OK ? ops->mr_grant(c->meta_mrs[g->tp], g->incarnation) : err;
}

/* Makes the keys of a pending grant. Called and left with the lock held, which is released in between. The grant of a
 * fenced client is dropped, because the client does not ask again. */
static void
run_grant(kvp_node_pin_t *p, kvp_node_grant_t *taken)
{
    kvp_node_grant_t g = *taken, *now;
    bool has_left;
    kvp_err_t err;

    taken->state = KVP_GRANT_IS_TAKEN;
    pthread_mutex_unlock(&p->lock);
    err = make_grant(p, &g);
    pthread_mutex_lock(&p->lock);
    now = grant_find(p, &g);
    now->state = KVP_GRANT_FAILED;
    now->err = err;
    has_left = now->has_left;
    if (err == KVP_OK || err == KVP_FENCED || has_left) grant_forget(p, now);
    if (has_left) /* peer_left is called under the lock, so that the client cannot attach again meanwhile */
        p->tps[g.tp]->ops->peer_left(p->tps[g.tp], g.incarnation);
}

/* ---- the threads. The lock is held. */
/* take_wanted returns the next chunk that a client asked for, take_rest the next other chunk; chunk_n = none. */
static uint32_t
take_wanted(kvp_node_pin_t *p)
{
    uint32_t chunk = p->mem->chunk_n;

    if (p->wanted_from == p->wanted_to) return chunk;
    chunk = p->wanted[p->wanted_from++];
    p->states[chunk] = IS_TAKEN;
    return chunk;
}

static uint32_t
take_rest(kvp_node_pin_t *p)
{
    while (p->next < p->mem->chunk_n && p->states[p->next] != WAITS)
        p->next++;
    if (p->next < p->mem->chunk_n) p->states[p->next] = IS_TAKEN;
    return p->next;
}

static void
note_chunk(kvp_node_pin_t *p, uint32_t chunk, bool is_ok)
{
    uint64_t *bytes = is_ok ? &p->bytes.registered : &p->bytes.refused;

    *bytes += p->mem->chunks[chunk].payload.len;
    if (--p->left_n > 0) return;
    kvp_log_info("node", "memory is registered bytes=%llu of_bytes=%llu ms=%llu threads=%u",
                 (unsigned long long)p->bytes.registered, (unsigned long long)p->bytes.total,
                 (unsigned long long)((kvp_now_ns() - p->began_ns) / KVP_NS_PER_MS), p->threads_n);
}

/* Registers a chunk. Called and left with the lock held, which is released in between. */
static void
run_chunk(kvp_node_pin_t *p, uint32_t chunk)
{
    bool is_ok;

    pthread_mutex_unlock(&p->lock);
    is_ok = register_with_all(p, chunk);
    pthread_mutex_lock(&p->lock);
    note_chunk(p, chunk, is_ok);
}

/* Registers the next chunk, or makes the keys of the next grant. Returns false if there is no work. */
static bool
run_next(kvp_node_pin_t *p)
{
    kvp_node_grant_t *grant = NULL;
    uint32_t chunk = take_wanted(p);

    if (chunk == p->mem->chunk_n) grant = grant_in_state(p, KVP_GRANT_WAITS);
    if (grant != NULL) {
        run_grant(p, grant);
        return true;
    }
    if (chunk == p->mem->chunk_n) chunk = take_rest(p);
    if (chunk == p->mem->chunk_n) return false;
    run_chunk(p, chunk);
    return true;
}

static void *
pin_main(void *arg)
{
    kvp_node_pin_t *p = arg;

    /* For setpriority on Linux, 0 is the calling thread, not the process. */
    if (setpriority(PRIO_PROCESS, 0, NICE) != 0) kvp_log_debug("node", "registering at full priority: %m");
    pthread_mutex_lock(&p->lock);
    while (!p->is_stopping)
        if (!run_next(p)) pthread_cond_wait(&p->work, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- calls of the control thread */
kvp_err_t
kvp_node_pin_check(kvp_tp_t *tp, const kvp_node_mem_t *mem)
{
    const kvp_node_chunk_t *c = &mem->chunks[0]; /* tests the first chunk only, because no chunk is longer */
    uint64_t longest = kvp_max_u64(c->payload.len, c->meta.len);
    kvp_mem_t part = c->payload;
    kvp_mr_t *mr;
    kvp_err_t err;

    if (tp->mr_max_bytes != 0 && longest > tp->mr_max_bytes) {
        kvp_log_error(
            "node",
            "a chunk of %llu bytes, and what describes its objects in %llu, are registered as a whole, and %s "
            "takes no more than %llu here: give --chunk-bytes less",
            (unsigned long long)c->payload.len, (unsigned long long)c->meta.len, tp->ops->name,
            (unsigned long long)tp->mr_max_bytes);
        return KVP_INVALID;
    }
    part.len = kvp_min_u64(part.len, CHECK_BYTES);
    err = kvp_mr_create(tp, &part, &mr);
    if (err == KVP_OK) kvp_mr_destroy(mr);
    return err;
}

static kvp_err_t
start_threads(kvp_node_pin_t *p)
{
    uint32_t n = kvp_node_pin_threads(sysconf(_SC_NPROCESSORS_ONLN), p->mem->chunk_n);
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&p->lock); /* the new threads read threads_n under the lock */
    while (p->threads_n < n && err == KVP_OK) {
        err = kvp_thread_start(&p->threads[p->threads_n], "kvp-pin", pin_main, p);
        if (err == KVP_OK) p->threads_n++;
    }
    pthread_mutex_unlock(&p->lock);
    return p->threads_n > 0 ? KVP_OK : err; /* one thread suffices, but is slower */
}

kvp_err_t
kvp_node_pin_start(kvp_node_pin_t *p, kvp_node_mem_t *mem, kvp_tp_t *const *tps, size_t n)
{
    bool has_work = false;
    kvp_err_t err = KVP_NOMEM;

    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < n; i++) {
        if ((tps[i]->ops->caps & KVP_TP_SLOW_REG) == 0) continue;
        p->tps[i] = tps[i];
        has_work = true;
    }
    if (!has_work) return KVP_OK;
    p->mem = mem;
    p->began_ns = kvp_now_ns();
    p->noise = (kvp_log_limit_t){.burst = 1, .interval_ms = 10000};
    p->left_n = mem->chunk_n;
    p->bytes.total = mem->conf.size_bytes;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    p->states = calloc(mem->chunk_n, sizeof *p->states);
    p->wanted = calloc(mem->chunk_n, sizeof *p->wanted);
    if (p->states != NULL && p->wanted != NULL) err = start_threads(p);
    if (err != KVP_OK) kvp_node_pin_stop(p);
    return err;
}

void
kvp_node_pin_stop(kvp_node_pin_t *p)
{
    if (p->mem == NULL) return;
    pthread_mutex_lock(&p->lock);
    p->is_stopping = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->threads_n; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->states);
    free(p->wanted);
    memset(p, 0, sizeof *p);
}

void
kvp_node_pin_want(kvp_node_pin_t *p, uint32_t chunk)
{
    if (p->mem == NULL) return;
    pthread_mutex_lock(&p->lock);
    if (p->states[chunk] == WAITS) {
        p->states[chunk] = IS_WANTED;
        p->wanted[p->wanted_to++] = chunk;
    }
    pthread_mutex_unlock(&p->lock);
}

kvp_err_t
kvp_node_pin_grant(kvp_node_pin_t *p, uint32_t tp, uint32_t chunk, uint64_t incarnation)
{
    kvp_node_grant_t ask = {.incarnation = incarnation, .chunk = chunk, .tp = tp, .state = KVP_GRANT_WAITS};
    kvp_err_t err = KVP_EAGAIN;
    kvp_node_grant_t *g;

    if (p->mem == NULL) return KVP_EAGAIN;
    pthread_mutex_lock(&p->lock);
    g = grant_find(p, &ask);
    if (g == NULL) {
        grant_add(p, &ask);
    } else if (g->state == KVP_GRANT_FAILED) {
        err = g->err;
        grant_forget(p, g);
    }
    pthread_mutex_unlock(&p->lock);
    return err;
}

void
kvp_node_pin_left(kvp_node_pin_t *p, uint64_t incarnation)
{
    if (p->mem == NULL) return;
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = p->grants_n; i-- > 0;) {
        kvp_node_grant_t *g = &p->grants[i];

        if (g->incarnation != incarnation) continue;
        g->has_left = true;
        if (g->state != KVP_GRANT_IS_TAKEN) grant_forget(p, g);
    }
    pthread_mutex_unlock(&p->lock);
}

void
kvp_node_pin_came(kvp_node_pin_t *p, uint64_t incarnation)
{
    if (p->mem == NULL) return;
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->grants_n; i++)
        if (p->grants[i].incarnation == incarnation) p->grants[i].has_left = false;
    pthread_mutex_unlock(&p->lock);
}

void
kvp_node_pin_bytes(kvp_node_pin_t *p, kvp_node_pinned_t *bytes_out)
{
    *bytes_out = (kvp_node_pinned_t){0};
    if (p->mem == NULL) return;
    pthread_mutex_lock(&p->lock);
    *bytes_out = p->bytes;
    pthread_mutex_unlock(&p->lock);
}
