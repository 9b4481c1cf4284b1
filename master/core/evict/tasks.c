/* SPDX-License-Identifier: Apache-2.0
 * Tasks. Each tick looks at some of the unfinished ones: at the object's copies, and at the copy that is being made of
 * it. So a task needs no message of its own from the layers below, and a removed object ends it. */
#include "master/core/evict/tasks.h"

#include "master/core/base/ctx.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/protect/leaving.h"
#include "master/core/space/copy.h"
#include "master/core/space/segment.h"

#include <stdlib.h>
#include <string.h>

#define TASKS_A_TICK 256u
#define FAILED_MAX 10u /* a task ends after this many failed tries of one copy */
#define PAUSE_NS KVP_MS(100) /* after a failed try */

static kvp_task_t *
slot_of(const kvp_evict_t *ev, uint64_t seq)
{
    return &ev->tasks[seq % KVP_TASKS_MAX];
}

static uint64_t
id_of(const kvp_evict_t *ev, uint64_t seq)
{
    return kvp_gen_make(ev->ctx->term, seq);
}

bool
kvp_task_can_go_to(const kvp_evict_t *ev, const kvp_segment_t *g)
{
    return g != NULL && !g->is_tier && g->can_copy && g->state == KVP_SEG_UP && g->drain == NULL &&
           !kvp_segment_is_passed_over(ev->cat, g);
}

bool
kvp_task_can_take(const kvp_evict_t *ev, const kvp_segment_t *g, uint64_t bytes, const kvp_place_t *places, uint32_t n)
{
    return kvp_task_can_go_to(ev, g) && g->chunk_bytes >= bytes && kvp_place_in(ev->cat, places, n, g->id) == n;
}

kvp_err_t
kvp_task_begin(kvp_evict_t *ev, uint32_t oid, uint32_t from, const uint32_t *to, uint32_t n, uint64_t *id_out)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    kvp_task_t *task;

    if (ev->tasks == NULL) ev->tasks = kvp_core_alloc(KVP_TASKS_MAX, sizeof *ev->tasks);
    task = slot_of(ev, ev->tasks_n);
    if (task->id != 0 && task->state <= KVP_TASK_RUNS) return KVP_LIMIT;
    *task = (kvp_task_t){
        .id = id_of(ev, ++ev->tasks_n),
        .tenant = kvp_obj_owner(ev->cat, o)->id,
        .digest = kvp_obj_digest_of(ev->cat, o),
        .version = kvp_obj_version(o),
        .created_ns = ev->ctx->now_ns,
        .changed_ns = ev->ctx->now_ns,
        .from = from,
        .to_n = n,
    };
    memcpy(task->to, to, n * sizeof *to);
    kvp_list_init(&task->link);
    kvp_list_add_tail(&ev->open_tasks, &task->link);
    ev->open_tasks_n++;
    /* A copy may exist at a node before the log names it. The record of a drain makes the next master expect that. */
    kvp_record_drain(ev->cat, kvp_segment_find(ev->space, to[0]));
    *id_out = task->id;
    return KVP_OK;
}

const kvp_task_t *
kvp_task_find(const kvp_evict_t *ev, uint64_t id, uint32_t tenant)
{
    const kvp_task_t *task = ev->tasks == NULL ? NULL : slot_of(ev, kvp_gen_seq(id) - 1);

    return task != NULL && task->id == id && id != 0 && task->tenant == tenant ? task : NULL;
}

static void
end_task(kvp_evict_t *ev, kvp_task_t *task, kvp_task_state_t state, kvp_err_t err)
{
    task->state = state;
    task->err = err;
    task->changed_ns = ev->ctx->now_ns;
    kvp_list_del(&task->link);
    ev->open_tasks_n--;
}

/* Counts a failed try of the copy to to[at]. The task tries again later, or ends after FAILED_MAX tries. */
static void
count_failure(kvp_evict_t *ev, kvp_task_t *task, kvp_err_t err)
{
    task->is_ordered = false;
    task->next_ns = ev->ctx->now_ns + PAUSE_NS;
    if (++task->failed == FAILED_MAX) end_task(ev, task, KVP_TASK_FAILED, err);
}

/* Begins the next copy, or waits for the copy in progress. Returns true when all copies exist. */
static bool
make_copies(kvp_evict_t *ev, kvp_task_t *task, uint32_t oid, const kvp_place_t *places, uint32_t n)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    const kvp_segment_t *from;
    kvp_segment_t *target;
    kvp_copy_t *copy;
    uint32_t at;
    kvp_err_t err;

    while (task->at < task->to_n && kvp_place_in(ev->cat, places, n, task->to[task->at]) < n) {
        task->at++;
        task->failed = 0;
        task->is_ordered = false;
        task->changed_ns = ev->ctx->now_ns;
    }
    if (task->at == task->to_n) return true;
    if (kvp_copy_of(ev->space, o) != NULL || o->is_moving != 0) return false;
    if (task->is_ordered) {
        count_failure(ev, task, KVP_NODE_LOST);
        return false;
    }
    target = kvp_segment_find(ev->space, task->to[task->at]);
    if (!kvp_task_can_take(ev, target, kvp_extent_bytes(kvp_obj_len(ev->cat, o)), places, n) || n == KVP_REPLICAS_MAX) {
        end_task(ev, task, KVP_TASK_FAILED, n == KVP_REPLICAS_MAX ? KVP_LIMIT : KVP_NO_SEGMENT);
        return false;
    }
    at = kvp_place_in(ev->cat, places, n, task->from) % n;
    from = kvp_place_chunk(ev->cat, &places[at])->segment;
    for (uint32_t i = 0; i < n && from->state == KVP_SEG_LOST; i++)
        from = kvp_place_chunk(ev->cat, &places[at = i])->segment;
    err = kvp_copy_begin(ev->space, oid, &places[at], target);
    if (err == KVP_NO_SPACE) count_failure(ev, task, err);
    if (err != KVP_OK) return false;
    copy = kvp_copy_of(ev->space, o);
    copy->is_asked = true;
    if (task->at + 1 == task->to_n) copy->moved_from = task->from;
    task->is_ordered = true;
    task->state = KVP_TASK_RUNS;
    return false;
}

static void
go_on(kvp_evict_t *ev, kvp_task_t *task)
{
    const uint32_t oid = kvp_objindex_find(ev->cat->index, task->digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(ev->cat->index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n, at;

    if (o == NULL || o->state != KVP_OBJ_COMMITTED || kvp_obj_version(o) != task->version) {
        end_task(ev, task, KVP_TASK_FAILED, KVP_NOT_FOUND);
        return;
    }
    n = kvp_obj_places(ev->cat, o, places);
    if (n == 0) {
        end_task(ev, task, KVP_TASK_FAILED, KVP_NO_SEGMENT);
        return;
    }
    if (task->after == 0) {
        if (!make_copies(ev, task, oid, places, n)) return;
        task->after = ev->space->drain_end = ev->cat->log->end; /* asks for a sync of the log */
    }
    at = task->from == 0 ? n : kvp_place_in(ev->cat, places, n, task->from);
    if (at < n && n > 1)
        (void)kvp_leaving_begin(ev->prot, oid, &places[at], UINT64_MAX);
    else if (at < n)
        end_task(ev, task, KVP_TASK_FAILED, KVP_NODE_LOST);
    else if (task->after <= ev->cat->log->synced)
        end_task(ev, task, KVP_TASK_DONE, KVP_OK);
}

void
kvp_tasks_tick(kvp_evict_t *ev)
{
    if (ev->cat->log->is_resting) return;
    for (uint32_t left = (uint32_t)kvp_min_u64(TASKS_A_TICK, ev->open_tasks_n); left > 0 && ev->ctx->slice_left > 0;
         left--) {
        kvp_task_t *task = kvp_list_first(&ev->open_tasks, kvp_task_t, link);

        kvp_list_del(&task->link);
        kvp_list_add_tail(&ev->open_tasks, &task->link);
        if (ev->ctx->now_ns >= task->next_ns) go_on(ev, task);
        kvp_ctx_spend(ev->ctx, 1);
    }
}

void
kvp_tasks_fini(kvp_evict_t *ev)
{
    free(ev->tasks);
    ev->tasks = NULL;
}
