/* SPDX-License-Identifier: Apache-2.0
 * COPY: the master's order to copy objects from other nodes into this node's memory (ADR 0050).
 *
 * Design notes.
 * - The thread "kvp-fetch" reads objects into buffers, at most BATCH at a time, through the table of functions that
 *   the program gave (node/fetch.h). The first order starts the thread. It ends the session with the pool after IDLE_NS
 *   without an order.
 * - The control thread copies from the buffers into extents, in pieces with other work between them, so that it can
 *   answer RETIRE. Bytes from the network never land in an extent.
 * - An order is answered when all its records are done. The records of an order of an earlier connection fail: the
 *   master has retired their extents since. */
#include "node/priv.h"

#include "common/thread.h"
#include "common/waits.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define ORDER_MAX 1024u /* the most records in one order */
#define ORDERS_MAX 16u /* the most unanswered orders; a master sends at most 4 */
#define BATCH 4u /* the most objects that are read together */
#define BUFFERS_MAX (64ull << 20) /* the most bytes of all buffers, unless one object is longer */
#define PIECE (1u << 20) /* the number of bytes that are copied between two checks of the extent's state word */
#define TURN_NS (2 * KVP_NS_PER_MS) /* the time for which one turn of the loop copies at most */
#define READ_MIN_NS (10 * KVP_NS_PER_S)
/* the time limit for an object is its length at this rate, and at least READ_MIN_NS */
#define READ_BYTES_PER_S (10u << 20)
#define OPEN_NS (2 * KVP_NS_PER_S)
#define IDLE_NS (60 * KVP_NS_PER_S)

typedef struct copy_order copy_order_t;

/* One record of an order. It belongs to the fetching thread while it is on `wanted` or being read, else to the control
 * thread. */
typedef struct {
    kvp_list_t link;
    copy_order_t *order;
    kvp_wire_copy_t rec;
    kvp_fetch_t *fetch; /* the object as it was read; owned; NULL = not read */
    kvp_err_t err; /* why the object could not be read */
    uint64_t stored; /* the number of the payload's bytes that are stored in the extent */
    bool has_begun; /* the extent's word says WRITING */
} copy_job_t;

struct copy_order {
    kvp_list_t link;
    uint64_t began_ns;
    uint64_t link_number;
    uint64_t request_id;
    uint8_t mem_uuid[16]; /* the uuid of the memory that the order is about */
    uint32_t n, left;
    uint8_t *flags; /* n bytes: the answer, KVP_COPY_* */
    copy_job_t *jobs; /* n records */
};

/* ---- the fetching thread */
static bool
can_take(const kvp_node_copying_t *cp)
{
    uint64_t len;

    if (kvp_list_is_empty(&cp->wanted)) return false;
    len = kvp_list_first(&cp->wanted, copy_job_t, link)->rec.len;
    return cp->buffer_bytes == 0 || cp->buffer_bytes + len <= BUFFERS_MAX;
}

/* Takes jobs whose objects fit into the buffers. The caller holds the lock. */
static uint32_t
take_jobs_locked(kvp_node_copying_t *cp, copy_job_t **jobs)
{
    uint32_t n = 0;

    while (n < BATCH && can_take(cp)) {
        jobs[n] = kvp_list_first(&cp->wanted, copy_job_t, link);
        kvp_list_del(&jobs[n]->link);
        cp->buffer_bytes += jobs[n++]->rec.len;
    }
    return n;
}

static kvp_err_t
open_session(kvp_node_t *node)
{
    kvp_node_copying_t *cp = &node->copying;
    const kvp_fetch_conf_t conf = {.masters = cp->masters,
                                   .cluster = cp->cluster,
                                   .name = node->conf.name,
                                   .host_id = node->conf.host_id,
                                   .transports = node->conf.ops,
                                   .transports_n = node->conf.ops_n};
    kvp_fetcher_t *fetcher;
    kvp_err_t err;

    if (cp->fetcher != NULL) return KVP_OK;
    err = cp->ops->open(&conf, kvp_now_ns() + OPEN_NS, &fetcher);
    if (err != KVP_OK) return err;
    pthread_mutex_lock(&cp->lock);
    cp->fetcher = fetcher;
    if (cp->is_stopping) cp->ops->stop(fetcher);
    pthread_mutex_unlock(&cp->lock);
    return KVP_OK;
}

static void
read_jobs(kvp_node_t *node, copy_job_t **jobs, uint32_t n)
{
    const kvp_err_t err = open_session(node);
    kvp_fetch_t *fetches[BATCH];
    uint32_t fetches_n = 0;
    uint64_t ns = READ_MIN_NS;

    for (uint32_t i = 0; i < n; i++) {
        copy_job_t *job = jobs[i];

        if (job->err == KVP_OK) job->err = err;
        if (job->err != KVP_OK) continue;
        job->fetch = aligned_alloc(64, (sizeof *job->fetch + job->rec.len + 63) / 64 * 64);
        if (job->fetch == NULL) {
            job->err = KVP_NOMEM;
            continue;
        }
        job->fetch->rec = job->rec;
        fetches[fetches_n++] = job->fetch;
        ns = kvp_max_u64(ns, job->rec.len * KVP_NS_PER_S / READ_BYTES_PER_S);
    }
    if (fetches_n > 0) node->copying.ops->read(node->copying.fetcher, fetches, fetches_n, kvp_now_ns() + ns);
    for (uint32_t i = 0; i < n; i++)
        if (jobs[i]->fetch != NULL) jobs[i]->err = jobs[i]->fetch->err;
}

static void
close_session(kvp_node_copying_t *cp)
{
    kvp_fetcher_t *fetcher;

    pthread_mutex_lock(&cp->lock);
    fetcher = cp->fetcher;
    cp->fetcher = NULL;
    pthread_mutex_unlock(&cp->lock);
    if (fetcher != NULL) cp->ops->close(fetcher);
}

/* Waits for jobs. Returns false when the thread must end. */
static bool
await_jobs(kvp_node_copying_t *cp, copy_job_t **jobs, uint32_t *n_out)
{
    const uint64_t idle_ns = kvp_now_ns() + IDLE_NS;
    bool is_stopping;

    pthread_mutex_lock(&cp->lock);
    while (!cp->is_stopping && !can_take(cp) && (cp->fetcher == NULL || kvp_now_ns() < idle_ns))
        kvp_cond_wait_until(&cp->changed, &cp->lock, cp->fetcher == NULL ? UINT64_MAX : idle_ns);
    is_stopping = cp->is_stopping;
    *n_out = is_stopping ? 0 : take_jobs_locked(cp, jobs);
    pthread_mutex_unlock(&cp->lock);
    return !is_stopping;
}

static void *
fetch_objects(void *arg)
{
    kvp_node_t *node = arg;
    kvp_node_copying_t *cp = &node->copying;
    copy_job_t *jobs[BATCH];
    uint32_t n;

    while (await_jobs(cp, jobs, &n)) {
        if (n == 0) {
            close_session(cp);
            continue;
        }
        read_jobs(node, jobs, n);
        pthread_mutex_lock(&cp->lock);
        for (uint32_t i = 0; i < n; i++)
            kvp_list_add_tail(&cp->read, &jobs[i]->link);
        pthread_mutex_unlock(&cp->lock);
        kvp_epoll_wake(&node->events.epoll);
    }
    close_session(cp);
    return NULL;
}

/* ---- the life of an order. The following functions run in the control thread. */
static void
order_free(copy_order_t *o)
{
    kvp_list_del(&o->link);
    free(o->flags);
    free(o->jobs);
    free(o);
}

static copy_order_t *
order_make(kvp_node_t *node, uint64_t request_id, uint32_t n)
{
    copy_order_t *o = calloc(1, sizeof *o);

    if (o == NULL) return NULL;
    kvp_list_init(&o->link);
    o->began_ns = kvp_now_ns();
    o->link_number = node->link.number;
    o->request_id = request_id;
    memcpy(o->mem_uuid, node->mem->uuid, sizeof o->mem_uuid);
    o->n = o->left = n;
    o->flags = calloc(n + 1, 1);
    o->jobs = calloc(n + 1, sizeof *o->jobs);
    if (o->flags != NULL && o->jobs != NULL) {
        kvp_list_add_tail(&node->copying.orders, &o->link);
        node->copying.orders_n++;
        return o;
    }
    order_free(o);
    return NULL;
}

static bool
is_current(const kvp_node_t *node, const copy_order_t *o)
{
    return node->link.state != KVP_LINK_DOWN && o->link_number == node->link.number && node->mem != NULL &&
           memcmp(o->mem_uuid, node->mem->uuid, sizeof o->mem_uuid) == 0;
}

static void
answer_order(kvp_node_t *node, copy_order_t *o)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    kvp_node_link_t *l = &node->link;

    kvp_histogram_add(&node->times.works[KVP_NODE_WORK_copy], kvp_now_ns() - o->began_ns);
    msg.n = o->n;
    if (l->state != KVP_LINK_DOWN && o->link_number == l->number)
        kvp_pb_frame(&l->conn.out, KVP_OP_COPY, KVP_FRAME_REPLY, o->request_id, &msg, o->flags, msg.n);
    node->copying.orders_n--;
    order_free(o);
}

/* Ends a job with its byte of the order's answer. After the last job it sends the answer. */
static void
end_job(kvp_node_t *node, copy_job_t *job, uint8_t answer)
{
    copy_order_t *o = job->order;
    uint32_t missed;

    if (answer != KVP_COPY_OK && is_current(node, o) && kvp_log_limit_ok(&node->copying.noise, &missed))
        kvp_log_warn("node", "a copy failed from=%u bytes=%llu cause=\"%s\" missed=%u", job->rec.segment_id,
                     (unsigned long long)job->rec.len,
                     job->err != KVP_OK         ? kvp_err_text(job->err)
                     : answer == KVP_COPY_STALE ? "the source does not have the object any more"
                                                : "the space is not free for the copy any more",
                     missed);
    free(job->fetch);
    job->fetch = NULL;
    o->flags[job - o->jobs] = answer;
    if (--o->left == 0) answer_order(node, o);
}

/* ---- storing */
static uint8_t
answer_of(kvp_err_t err)
{
    switch (err) {
    case KVP_STALE:
    case KVP_NO_SEGMENT:
        return KVP_COPY_STALE;
    case KVP_NODE_LOST:
    case KVP_NOTSUP:
    case KVP_UNREACHABLE:
    case KVP_DENIED:
        return KVP_COPY_AWAY;
    default:
        return KVP_COPY_FAILED;
    }
}

static kvp_wire_stage_t
target_of(const kvp_wire_copy_t *rec)
{
    return (kvp_wire_stage_t){.digest = rec->digest,
                              .version = rec->version,
                              .len = rec->len,
                              .generation = rec->to_generation,
                              .offset = rec->to_offset,
                              .chunk = rec->to_chunk,
                              .slot = rec->to_slot,
                              .key_off = rec->to_key_off};
}

/* Stores the next piece of a copy. After the last piece it seals the extent. Returns true when the job has ended. */
static bool
store_piece(kvp_node_t *node, copy_job_t *job, uint8_t *answer_out)
{
    const kvp_wire_copy_t *rec = &job->rec;
    const kvp_wire_stage_t at = target_of(rec);
    const uint64_t piece = kvp_min_u64(PIECE, rec->len - job->stored);
    kvp_desc_t desc;

    *answer_out = job->err == KVP_OK ? KVP_COPY_FAILED : answer_of(job->err);
    if (job->err != KVP_OK || !is_current(node, job->order)) return true;
    if (!job->has_begun) {
        if (!kvp_node_copy_is_good(rec, &job->fetch->desc, job->fetch->key, job->fetch->sum)) {
            *answer_out = KVP_COPY_STALE;
            return true;
        }
        if (!kvp_node_extent_begin(node, &at, rec->key_len)) return true;
        job->has_begun = true;
    }
    if (!kvp_node_extent_store(node, &at, job->stored, job->fetch->payload + job->stored, piece)) return true;
    job->stored += piece;
    if (job->stored < rec->len) return false;
    desc = kvp_node_copy_desc(node->core, rec, &job->fetch->desc);
    if (kvp_node_extent_seal(node, &at, &desc, job->fetch->key)) *answer_out = KVP_COPY_OK;
    return true;
}

static void
free_buffer(kvp_node_copying_t *cp, uint64_t len)
{
    pthread_mutex_lock(&cp->lock);
    cp->buffer_bytes -= len;
    pthread_cond_signal(&cp->changed);
    pthread_mutex_unlock(&cp->lock);
}

bool
kvp_node_copying_poll(kvp_node_t *node)
{
    kvp_node_copying_t *cp = &node->copying;
    uint64_t until_ns;
    uint8_t answer;

    if (!cp->has_thread) return false;
    pthread_mutex_lock(&cp->lock);
    kvp_list_splice(&cp->read, &cp->storing);
    pthread_mutex_unlock(&cp->lock);
    until_ns = kvp_now_ns() + TURN_NS;
    while (!kvp_list_is_empty(&cp->storing)) {
        copy_job_t *job = kvp_list_first(&cp->storing, copy_job_t, link);

        if (store_piece(node, job, &answer)) {
            const uint64_t len = job->rec.len;

            kvp_list_del(&job->link);
            end_job(node, job, answer);
            free_buffer(cp, len);
        }
        if (kvp_now_ns() >= until_ns) break;
    }
    return !kvp_list_is_empty(&cp->storing);
}

/* ---- the master's orders */
static bool
are_legal(const kvp_node_t *node, const kvp_wire_copy_t *recs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (recs[i].len == 0 || recs[i].len > node->conf.chunk_bytes || recs[i].key_len > KVP_KEY_MAX) return false;
    return true;
}

static void
begin_order(kvp_node_t *node, copy_order_t *o, const kvp_wire_copy_t *recs)
{
    kvp_node_copying_t *cp = &node->copying;

    pthread_mutex_lock(&cp->lock);
    for (uint32_t i = 0; i < o->n; i++) {
        /* a record has no key if its object was removed before the order was sent */
        o->jobs[i] = (copy_job_t){.order = o, .rec = recs[i], .err = recs[i].key_len == 0 ? KVP_STALE : KVP_OK};
        kvp_list_init(&o->jobs[i].link);
        kvp_list_add_tail(&cp->wanted, &o->jobs[i].link);
    }
    pthread_cond_signal(&cp->changed);
    pthread_mutex_unlock(&cp->lock);
}

static kvp_err_t
need_thread(kvp_node_t *node)
{
    kvp_node_copying_t *cp = &node->copying;
    kvp_err_t err = KVP_OK;

    if (!cp->has_thread) err = kvp_thread_start(&cp->thread, "kvp-fetch", fetch_objects, node);
    if (err == KVP_OK) cp->has_thread = true;
    return err;
}

bool
kvp_node_copying_on_order(kvp_node_t *node, const kvp_frame_t *frame, kvp_err_t *err_out)
{
    const kvp_wire_copy_t *recs = NULL;
    copy_order_t *o = NULL;
    Kvp__Pb__Retire *msg;
    kvp_err_t err = KVP_OK;
    kvp_rd_t rd;
    kvp_pb_t pb;

    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    msg = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, frame);
    if (msg != NULL && msg->n > 0 && msg->n <= ORDER_MAX) recs = kvp_rd_array(&rd, msg->n, sizeof *recs);
    if (recs != NULL) {
        if (node->copying.ops == NULL) err = KVP_NOTSUP;
        if (err == KVP_OK) err = kvp_node_core_see_term(node->core, msg->term);
        if (err == KVP_OK && (node->mem == NULL || msg->segment_id != node->link.segment_id)) err = KVP_NO_SEGMENT;
        if (err == KVP_OK && node->copying.orders_n >= ORDERS_MAX) err = KVP_LIMIT;
        if (err == KVP_OK && !are_legal(node, recs, msg->n)) err = KVP_INVALID;
        if (err == KVP_OK) err = need_thread(node);
        if (err == KVP_OK) o = order_make(node, frame->hdr.request_id, msg->n);
        if (err == KVP_OK && o == NULL) err = KVP_NOMEM;
        if (err == KVP_OK) begin_order(node, o, recs);
    }
    kvp_pb_free(&pb, msg);
    *err_out = err;
    return recs != NULL;
}

void
kvp_node_copying_link_lost(kvp_node_t *node)
{
    kvp_node_copying_t *cp = &node->copying;

    if (!cp->has_thread) return;
    pthread_mutex_lock(&cp->lock);
    kvp_list_foreach (pos, &cp->wanted) {
        copy_job_t *job = kvp_list_entry(pos, copy_job_t, link);

        job->err = KVP_DISCONNECTED;
        /* counted again here, because kvp_node_copying_poll subtracts the bytes of each job when it ends the job */
        cp->buffer_bytes += job->rec.len;
    }
    kvp_list_splice(&cp->wanted, &cp->read);
    pthread_mutex_unlock(&cp->lock);
}

/* ---- lifecycle */
kvp_err_t
kvp_node_copying_open(kvp_node_t *node, const kvp_node_conf_t *from)
{
    kvp_node_copying_t *cp = &node->copying;

    cp->ops = from->fetch;
    if (cp->ops == NULL) return KVP_OK;
    cp->masters = strdup(from->masters == NULL ? "" : from->masters);
    cp->cluster = from->cluster == NULL ? NULL : strdup(from->cluster);
    return cp->masters == NULL || (from->cluster != NULL && cp->cluster == NULL) ? KVP_NOMEM : KVP_OK;
}

void
kvp_node_copying_close(kvp_node_t *node)
{
    kvp_node_copying_t *cp = &node->copying;

    pthread_mutex_lock(&cp->lock);
    cp->is_stopping = true;
    if (cp->fetcher != NULL) cp->ops->stop(cp->fetcher);
    pthread_cond_signal(&cp->changed);
    pthread_mutex_unlock(&cp->lock);
    if (cp->has_thread) pthread_join(cp->thread, NULL);
    while (!kvp_list_is_empty(&cp->orders)) {
        copy_order_t *o = kvp_list_first(&cp->orders, copy_order_t, link);

        for (uint32_t i = 0; i < o->n; i++)
            free(o->jobs[i].fetch);
        order_free(o);
    }
    free(cp->masters);
    free(cp->cluster);
    pthread_cond_destroy(&cp->changed);
    pthread_mutex_destroy(&cp->lock);
}
