/* SPDX-License-Identifier: Apache-2.0
 * The shell of the state machines putop and getop: it does the input and output that they ask for, and decides
 * nothing. The link is held from KVP_STEP_SESSION until the session is lost or the batch ends, so all steps between
 * the two happen in one session (one incarnation of this client). */
#include "client/api/batch.h"

#include "client/data/bounced.h"
#include "common/waits.h"

#include <stdatomic.h>

#define MOVES_MAX 4096u /* most transfers of objects (moves) in one step; bounds a large batch's working memory */

typedef struct {
    kvp_apicall_t *call;
    kvp_link_t *link; /* the connection to a master (link) that the batch holds; NULL = no session */
    const kvp_span_t *spans;
} shell_t;

static uint32_t
moves_cap(uint32_t n)
{
    return n < MOVES_MAX ? n : MOVES_MAX;
}

static void
leave_session(shell_t *sh)
{
    if (sh->link != NULL) kvp_session_rele(sh->call->pool->session, sh->link);
    sh->link = NULL;
}

static kvp_err_t
find_session(shell_t *sh, kvp_op_session_t *session_out)
{
    kvp_err_t err;

    leave_session(sh);
    err = kvp_call_hold(sh->call, &sh->link);
    if (err == KVP_OK) *session_out = kvp_link_session(sh->call->pool, sh->link);
    return err;
}

/* Breaks the connection if err says that the master broke the protocol or ended the session. */
static void
end_on_fault(shell_t *sh, kvp_err_t err)
{
    if (err == KVP_PROTO || kvp_op_is_session_loss(err)) kvp_conn_break(sh->link->conn);
}

static kvp_err_t
ask_master(shell_t *sh, kvp_frame_t *answer_out)
{
    kvp_err_t err = kvp_call_ask(sh->call, sh->link, answer_out);

    end_on_fault(sh, err);
    return err;
}

static void
send_out(shell_t *sh)
{
    if (sh->link == NULL) return;
    kvp_count(&sh->call->pool->counters.master_calls, 1);
    kvp_ignore(kvp_conn_send(sh->link->conn, &sh->call->scratch->out),
               "where it is lost, the session is, and all with it");
}

static bool
has_device(const shell_t *sh, const kvp_move_t *moves, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (moves[i].kind != KVP_MOVE_SEAL && sh->spans[moves[i].item].has_device) return true;
    return false;
}

static void
run_moves(shell_t *sh, kvp_transfer_t *transfer, kvp_move_t *moves, uint32_t n)
{
    transfer->session = sh->call->pool->session;
    transfer->peers = sh->link->peers;
    transfer->scratch = sh->call->scratch;
    transfer->spans = sh->spans;
    transfer->deadline_ns = sh->call->deadline_ns;
    transfer->waited_ns = &sh->call->node_ns;
    const uint64_t began_ns = kvp_now_ns();
    if (has_device(sh, moves, n))
        kvp_device_run(transfer, &sh->call->pool->bounces, &sh->call->pool->regs, moves, n);
    else
        kvp_transfer_run(transfer, moves, n);
    sh->call->move_ns += kvp_now_ns() - began_ns;
}

static kvp_err_t
sleep_until(shell_t *sh, uint64_t until_ns)
{
    const uint64_t began_ns = kvp_now_ns();
    kvp_err_t err = kvp_session_sleep(sh->call->pool->session, until_ns);

    sh->call->retry_ns += kvp_now_ns() - began_ns;
    return err;
}

/* ---- get */
static void
get_known(shell_t *sh, kvp_getop_t *op)
{
    kvp_op_session_t session;

    sh->link = kvp_session_hold_known(sh->call->pool->session);
    if (sh->link != NULL) session = kvp_link_session(sh->call->pool, sh->link);
    kvp_getop_on_known(op, sh->link == NULL ? NULL : &session);
}

static uint32_t
rank_segment(void *arg, uint32_t segment_id)
{
    const shell_t *sh = arg;

    return kvp_peers_rank(sh->link->peers, segment_id);
}

static void
get_session(shell_t *sh, kvp_getop_t *op)
{
    kvp_op_session_t session;
    kvp_err_t err = find_session(sh, &session);

    if (err == KVP_OK)
        kvp_getop_on_session(op, &session);
    else
        kvp_getop_fail(op, err);
}

static void
get_call(shell_t *sh, kvp_getop_t *op)
{
    kvp_frame_t answer;
    kvp_err_t err = ask_master(sh, &answer);

    if (err == KVP_OK)
        end_on_fault(sh, kvp_getop_on_reply(op, &answer));
    else
        kvp_getop_on_call_failed(op, err);
}

static void
count_gets(kvp_counters_t *c, const kvp_getop_t *op)
{
    uint64_t misses = 0, errors = 0;

    for (uint32_t i = 0; i < op->n; i++) {
        misses += op->items[i].err == KVP_NOT_FOUND;
        errors += op->items[i].err != KVP_OK && op->items[i].err != KVP_NOT_FOUND;
    }
    kvp_count(&c->gets, op->n);
    kvp_count(&c->get_misses, misses);
    kvp_count(&c->get_errors, errors);
    kvp_count(&c->known_location_gets, op->known_n);
    kvp_count(&c->known_location_misses, op->known_lost_n);
    kvp_count(&c->retries, op->retry_n);
    kvp_count(&c->stale_reads, op->stale_n);
    kvp_count(&c->corrupt_reads, op->corrupt_n);
}

void
kvp_batch_get(kvp_apicall_t *call, kvp_getop_item_t *items, const kvp_span_t *spans, uint32_t n)
{
    shell_t sh = {.call = call, .spans = spans};
    kvp_getop_t op = {
        .items = items,
        .n = n,
        .moves_cap = moves_cap(n),
        .out = &call->scratch->out,
        .deadline_ns = call->deadline_ns,
        .epoch = (call->flags & KVPOOL_EPOCH) != 0 ? &call->epoch : NULL,
        .keeps_here = (call->flags & KVPOOL_KEEP_HERE) != 0,
        .wants_sums = call->pool->wants_sums,
        .rank = rank_segment,
        .rank_arg = &sh,
    };
    bool wants_known =
        call->pool->locations > 0 && (call->flags & (KVPOOL_FRESH | KVPOOL_EPOCH | KVPOOL_KEEP_HERE)) == 0;
    kvp_step_t step;

    call->keys_n += n;
    op.moves = kvp_scratch_alloc(call->scratch, op.moves_cap, sizeof *op.moves);
    if (wants_known) op.places = kvp_scratch_alloc(call->scratch, n, sizeof *op.places);
    kvp_getop_begin(&op);
    if (op.moves == NULL) kvp_getop_fail(&op, KVP_NOMEM);
    while ((step = kvp_getop_next(&op, kvp_now_ns())).kind != KVP_STEP_DONE) {
        if (step.kind == KVP_STEP_KNOWN) get_known(&sh, &op);
        if (step.kind == KVP_STEP_SESSION) get_session(&sh, &op);
        if (step.kind == KVP_STEP_CALL) get_call(&sh, &op);
        if (step.kind == KVP_STEP_SEND) send_out(&sh);
        if (step.kind == KVP_STEP_SLEEP) {
            kvp_err_t err = sleep_until(&sh, step.until_ns);

            if (err != KVP_OK) kvp_getop_fail(&op, err);
        }
        if (step.kind == KVP_STEP_MOVE) {
            run_moves(&sh, &(kvp_transfer_t){.others = op.others}, op.moves, op.moves_n);
            kvp_getop_on_moved(&op, kvp_boot_ns());
        }
    }
    if (op.kept_n > 0 && sh.link != NULL) kvp_session_want_lease(call->pool->session, sh.link);
    leave_session(&sh);
    count_gets(&call->pool->counters, &op);
}

/* ---- put */
static uint64_t
take_attempts(void *arg, uint32_t n)
{
    kvpool_t *pool = arg;

    return atomic_fetch_add_explicit(&pool->attempts, n, memory_order_relaxed) + 1;
}

static uint32_t
list_avoided(void *arg, uint32_t ids[KVP_AVOID_MAX])
{
    const shell_t *sh = arg;

    return kvp_peers_avoid(sh->link->peers, ids);
}

static kvp_pin_t
pin_of(uint32_t flags)
{
    if ((flags & KVPOOL_PIN_HARD) != 0) return KVP_PIN_HARD;
    return (flags & KVPOOL_PIN_SOFT) != 0 ? KVP_PIN_SOFT : KVP_PIN_NONE;
}

static kvp_committed_t
committed_of(uint32_t flags)
{
    if ((flags & KVPOOL_UPSERT) != 0) return KVP_COMMITTED_REPLACED;
    return (flags & KVPOOL_REPORT_ALREADY) != 0 ? KVP_COMMITTED_ALREADY : KVP_COMMITTED_OK;
}

static void
put_session(shell_t *sh, kvp_putop_t *op)
{
    kvp_op_session_t session;
    kvp_err_t err = find_session(sh, &session);

    if (err == KVP_OK)
        kvp_putop_on_session(op, &session);
    else
        kvp_putop_fail(op, err);
}

static void
put_call(shell_t *sh, kvp_putop_t *op)
{
    kvp_frame_t answer;
    kvp_err_t err = ask_master(sh, &answer);

    if (err == KVP_OK)
        end_on_fault(sh, kvp_putop_on_reply(op, &answer, kvp_now_ns()));
    else
        kvp_putop_on_call_failed(op, err);
}

static void
count_puts(kvp_counters_t *c, const kvp_putop_t *op)
{
    uint64_t errors = 0;

    for (uint32_t i = 0; i < op->n; i++)
        errors += op->items[i].err != KVP_OK && op->items[i].err != KVP_ALREADY;
    kvp_count(&c->puts, op->n);
    kvp_count(&c->put_errors, errors);
    kvp_count(&c->retries, op->retry_n);
}

void
kvp_batch_put(kvp_apicall_t *call, kvp_putop_item_t *items, const kvp_span_t *spans, uint32_t n)
{
    shell_t sh = {.call = call, .spans = spans};
    kvp_putop_t op = {
        .items = items,
        .n = n,
        /* moves_cap: one move for each copy of each item, up to MOVES_MAX */
        .moves_cap = moves_cap(n * (call->replicas == 0 ? 1 : call->replicas)),
        .out = &call->scratch->out,
        .deadline_ns = call->deadline_ns,
        .replicas = call->replicas,
        .only = call->segment,
        .prefer = call->prefer,
        .prefer_n = call->prefer_n,
        .join_until_ns = call->join_until_ns,
        .pin = pin_of(call->flags),
        .epoch = (call->flags & KVPOOL_EPOCH) != 0 ? &call->epoch : NULL,
        .committed = committed_of(call->flags),
        .waits = (call->flags & KVPOOL_WAIT) != 0,
        .attempts = take_attempts,
        .attempts_arg = call->pool,
        .avoid = list_avoided,
        .avoid_arg = &sh,
    };
    kvp_step_t step;

    call->keys_n += n;
    for (uint32_t i = 0; i < n; i++)
        items[i].is_host = !spans[i].has_device;
    op.moves = kvp_scratch_alloc(call->scratch, op.moves_cap, sizeof *op.moves);
    kvp_session_write_begin(call->pool->session);
    kvp_putop_begin(&op);
    if (op.moves == NULL) kvp_putop_fail(&op, KVP_NOMEM);
    while ((step = kvp_putop_next(&op, kvp_now_ns())).kind != KVP_STEP_DONE) {
        if (step.kind == KVP_STEP_SESSION) put_session(&sh, &op);
        if (step.kind == KVP_STEP_CALL) put_call(&sh, &op);
        if (step.kind == KVP_STEP_SEND) send_out(&sh);
        if (step.kind == KVP_STEP_SLEEP) {
            kvp_err_t err = sleep_until(&sh, step.until_ns);

            if (err != KVP_OK) kvp_putop_fail(&op, err);
        }
        if (step.kind == KVP_STEP_MOVE) {
            /* if true, the put gives a silent node up early, because another node can take the objects */
            bool may_go_elsewhere = op.only == 0 && kvp_peers_are_many(sh.link->peers);

            run_moves(&sh, &(kvp_transfer_t){.has_copies = op.has_copies, .others = may_go_elsewhere}, op.moves,
                      op.moves_n);
            kvp_putop_on_moved(&op, kvp_now_ns());
        }
    }
    leave_session(&sh);
    kvp_session_write_end(call->pool->session);
    call->join_until_ns = op.join_until_ns;
    count_puts(&call->pool->counters, &op);
}
