/* SPDX-License-Identifier: Apache-2.0
 * kvpool_task_begin and kvpool_task_ask: copies and moves of one object. */
#include "client/api/pool.h"

#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>
#include <time.h>

_Static_assert(KVPOOL_TASK_WAITS == KVP_TASK_WAITS && KVPOOL_TASK_RUNS == KVP_TASK_RUNS &&
                   KVPOOL_TASK_FAILED == KVP_TASK_FAILED && KVPOOL_TASK_DONE == KVP_TASK_DONE,
               "states of a task");

static kvp_err_t
read_task(const kvp_query_t *query, const kvp_frame_t *answer)
{
    kvpool_task_t *task = query->arg;
    Kvp__Pb__TaskReply *msg;
    struct timespec now;
    uint64_t now_ms;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__task_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    clock_gettime(CLOCK_REALTIME, &now);
    now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    task->id = msg->task;
    task->state = msg->state;
    task->is_move = msg->is_move;
    task->failure = kvp_op_peer_err(msg->failure);
    task->created_ms = now_ms - kvp_min_u64(now_ms, msg->created_ago_ms);
    task->changed_ms = now_ms - kvp_min_u64(now_ms, msg->changed_ago_ms);
    kvp_pb_free(&pb, msg);
    return err;
}

/* Sends the message and fills in the answer. */
static kvp_err_t
ask_task(kvp_apicall_t *call, Kvp__Pb__Task *head, kvpool_task_t *task)
{
    kvp_query_t query = {.opcode = KVP_OP_TASK, .head = head, .read = read_task, .arg = task};

    return kvp_query_run(call, &query);
}

int
kvpool_task_begin(kvpool_t *pool, const void *key, size_t key_len, uint32_t from, const uint32_t *to, size_t n,
                  const kvpool_opts_t *opts, uint64_t *id_out)
{
    Kvp__Pb__Task head = KVP__PB__TASK__INIT;
    kvpool_task_t task = {.struct_size = sizeof task};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (to == NULL || n == 0 || n > KVPOOL_COPIES_MAX || id_out == NULL) return kvp_call_end(&call, KVP_INVALID);
    if (!kvp_key_is_legal(key, key_len)) return kvp_call_end(&call, KVP_BAD_KEY);
    head.key = (ProtobufCBinaryData){key_len, (uint8_t *)key};
    head.from = from;
    head.to = (uint32_t *)to;
    head.n_to = n;
    err = ask_task(&call, &head, &task);
    if (err == KVP_OK) *id_out = task.id;
    return kvp_call_end(&call, err);
}

int
kvpool_task_ask(kvpool_t *pool, uint64_t id, const kvpool_opts_t *opts, kvpool_task_t *task_out)
{
    Kvp__Pb__Task head = KVP__PB__TASK__INIT;
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (task_out == NULL || task_out->struct_size != sizeof *task_out) return kvp_call_end(&call, KVP_INVALID);
    if (id == 0) return kvp_call_end(&call, KVP_NOT_FOUND);
    head.task = id;
    return kvp_call_end(&call, ask_task(&call, &head, task_out));
}
