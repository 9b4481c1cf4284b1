/* SPDX-License-Identifier: Apache-2.0
 * Tasks: a client has one object copied to other nodes, or moved to one, and asks how far that is until it is over; and
 * what must hold of them. The copies themselves are sim_copy.c's. */
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_watch.h"

#include "proto/pb.h"

#include <string.h>

#define TO_MAX 2u

/* One that the master has begun. */
typedef struct task {
    uint64_t id, version;
    kvp_digest_t digest;
    const grant_t *source; /* of a move; NULL = of a copy */
    const mem_t *to[TO_MAX];
    uint32_t to_n;
    struct task *next;
} task_t;

/* ---- the client's */
void
task_encode(sim_t *s, thread_t *t)
{
    Kvp__Pb__Task msg = KVP__PB__TASK__INIT;
    uint32_t to[TO_MAX];
    size_t at;

    msg.task = t->task;
    msg.to = to;
    if (t->task == 0) {
        msg.key = (ProtobufCBinaryData){strlen(t->names[0]), (uint8_t *)t->names[0]};
        msg.n_to = rng_chance(&t->rng, 200) ? TO_MAX : 1;
        for (size_t i = 0; i < msg.n_to; i++)
            to[i] = s->nodes[rng_below(&t->rng, s->plan->nodes)]->segment_id;
        if (rng_chance(&t->rng, 500)) msg.from = s->nodes[rng_below(&t->rng, s->plan->nodes)]->segment_id;
    }
    kvp_buf_reset(&t->out);
    kvp_pb_frame_begin(&t->out, KVP_OP_TASK, 0, 0, &msg.base, &at);
    kvp_frame_end(&t->out, at);
}

bool
task_take(thread_t *t, const kvp_frame_t *f)
{
    Kvp__Pb__TaskReply *msg;
    bool is_over = true;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__task_reply__descriptor, f);
    t->err = msg == NULL ? KVP_PROTO : msg->err != KVP_OK ? msg->err : msg->failure;
    if (t->err == KVP_OK) {
        t->task = msg->task;
        is_over = msg->state == KVP_TASK_DONE;
    }
    kvp_pb_free(&pb, msg);
    return is_over;
}

/* ---- the oracle's */
/* The object's extent in that memory, or in any: one that the master has as a place, or of that version. */
static grant_t *
find_grant(sim_t *s, kvp_digest_t digest, const mem_t *in, uint64_t version)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older) {
        uint32_t chunk = 0, slot = 0;

        for (grant_t *g; (in == NULL || mem == in) && (g = grant_next(mem, &chunk, &slot)) != NULL;)
            for (; g != NULL; g = g->older)
                if (kvp_digest_eq(g->digest, digest) &&
                    (version == 0 ? master_has_place(s, digest, g->generation)
                                  : g->version == version && (g->is_commit_asked || g->was_reported)))
                    return g;
    }
    return NULL;
}

static bool
is_invalid(const Kvp__Pb__Task *msg)
{
    return msg->to[0] == msg->from || (msg->n_to == TO_MAX && (msg->to[1] == msg->from || msg->to[1] == msg->to[0]));
}

static void
began(sim_t *s, const Kvp__Pb__Task *msg, kvp_digest_t digest, uint64_t id)
{
    const uint32_t term = master_term(s);
    const mem_t *from = msg->from == 0 ? NULL : oracle_mem_of(s, term, msg->from);
    const grant_t *g = find_grant(s, digest, from, 0);
    task_t *task;

    if (g == NULL) return; /* it was evicted in the same step */
    task = sim_alloc(s, sizeof *task);
    *task = (task_t){.id = id, .version = g->version, .digest = digest, .next = s->oracle->tasks};
    if (from != NULL) task->source = g;
    for (size_t i = 0; i < msg->n_to; i++) {
        const mem_t *to = oracle_mem_of(s, term, msg->to[i]);

        if (to == NULL || to->conn == 0)
            sim_fail(s, "MOVE", "a task begins to segment %u, which is not there", msg->to[i]);
        else if (to->drains_term == term || to->drains_for_ever)
            sim_fail(s, "MOVE", "a task begins to node%u, which is being drained", to->node);
        task->to[task->to_n++] = to;
    }
    s->oracle->tasks = task;
    TRACE(s, "task %lx %s version %lx to %u segments, first %u", (unsigned long)id, from == NULL ? "copies" : "moves",
          (unsigned long)task->version, task->to_n, msg->to[0]);
}

/* What was copied has been a place in each of the segments, and what was moved is none where it was. */
static void
check_done(sim_t *s, const task_t *task)
{
    for (uint32_t i = 0; i < task->to_n; i++)
        if (find_grant(s, task->digest, task->to[i], task->version) == NULL)
            sim_fail(s, "MOVE", "a task is done, and version %lx was never served by node%u",
                     (unsigned long)task->version, task->to[i]->node);
    if (task->source != NULL && master_has_place(s, task->digest, task->source->generation))
        sim_fail(s, "MOVE", "version %lx was moved, and is still on node%u", (unsigned long)task->version,
                 task->source->mem->node);
}

void
task_heard(sim_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__Task *msg;
    mem_t *from;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__task__descriptor, f);
    from = msg == NULL ? NULL : oracle_mem_of(s, master_term(s), msg->from);
    if (from != NULL) from->was_drained = true; /* of one object */
    kvp_pb_free(&pb, msg);
}

void
task_said(sim_t *s, uint32_t tenant, const ask_t *ask, const kvp_frame_t *f)
{
    Kvp__Pb__TaskReply *head;
    Kvp__Pb__Task *asked;
    const task_t *task = s->oracle->tasks;
    kvp_pb_t pb, asked_pb;

    head = kvp_pb_unpack(&pb, &kvp__pb__task_reply__descriptor, f);
    asked = kvp_pb_unpack(&asked_pb, &kvp__pb__task__descriptor, &ask->frame);
    while (task != NULL && asked != NULL && task->id != asked->task)
        task = task->next;
    if (head == NULL || asked == NULL) {
        sim_fail(s, "WIRE", "a malformed answer about a task");
    } else if (asked->task == 0) {
        const kvp_digest_t digest = kvp_key_digest(DIGEST_SEED, tenant, asked->key.data, asked->key.len);
        const grant_t *g = find_grant(s, digest, NULL, 0);

        if ((head->err == KVP_INVALID) != is_invalid(asked)) sim_fail(s, "MOVE", "a task is checked wrongly");
        if (head->err == KVP_NOT_FOUND && g != NULL && grant_is_served_for_ever(g) && !is_forced(s, g))
            sim_fail(s, "MOVE", "a task for version %lx finds nothing", (unsigned long)g->version);
        if (head->err == KVP_OK) began(s, asked, digest, head->task);
    } else if (head->err == KVP_OK && head->state == KVP_TASK_DONE && task != NULL) {
        check_done(s, task);
    } else if (head->err != KVP_OK && asked->task >> KVP_GEN_SEQ_BITS == master_term(s)) {
        sim_fail(s, "MOVE", "task %lx is not known", (unsigned long)asked->task);
    }
    kvp_pb_free(&pb, head);
    kvp_pb_free(&asked_pb, asked);
}
