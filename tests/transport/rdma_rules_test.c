/* SPDX-License-Identifier: Apache-2.0
 * The rules of rdma, each by a history on the model NIC that many seeds go through: none of them may break it, and
 * some seed has to where the rule is switched off. Built with the seams of common/mutate.h. */
#include "transport/all/registry.h"
#include "transport/rdma/table.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/mutate.h"
#include "transport/rdma/ask/ep.h"
#include "tests/transport/model_nic.h"
#include "tests/transport/sanitizer.h"
#include "tests/transport/step_clock.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 400u
#define SEEDS_HELD (IS_TSAN ? 6u : IS_SANITIZED ? 24u : 200u) /* through which every rule has to hold */
#define WRITER 1000u
#define BYTES ((size_t)1 << 20)
#define WORD_AT 0u
#define DATA_AT 4096u
#define DATA_BYTES 4096u
#define WIDE_BYTES ((size_t)768 << 10) /* goes over all rails, */
#define SLICE_BYTES ((size_t)128 << 10) /* in slices of that */
#define STEPS_MAX 100000u
#define GENERATION 7u

kvp_rule_t kvp_rule_off;

typedef struct {
    uint64_t seed, dice;
    kvp_tp_t *server, *client;
    kvp_hostport_t at;
    uint8_t *mem;
    kvp_mr_t *mr;
    kvp_rseg_t *rseg;
    kvp_ep_t *ep;
    uint8_t local[WIDE_BYTES];
    size_t bytes; /* of it, that move */
    kvp_loan_t *loan; /* of local, in some seeds; else it is copied */
    uint64_t line[8];
    kvp_iov_t iov_local, iov_line;
    kvp_xfer_t x[4];
    uint32_t done_n;
} rig_t;

static uint64_t
below(rig_t *r, uint64_t n)
{
    r->dice = r->dice * 6364136223846793005ull + 1442695040888963407ull;
    return (r->dice >> 33) % n;
}

static kvp_tp_t *
make_tp(uint64_t incarnation)
{
    kvp_tp_conf_t conf = {
        .incarnation = incarnation, .pool_id = "pool of the test", .own = &kvp_verbs_model, .needs_attachment = true};
    kvp_tp_t *tp;

    assert_int_equal(kvp_tp_create(kvp_transport_find("rdma"), &conf, &tp), KVP_OK);
    return tp;
}

static void
serve(rig_t *r)
{
    r->server = make_tp(0);
    assert_int_equal(
        r->server->ops->listen(r->server, &(kvp_hostport_t){.host = "10.99.1.1", .port = r->at.port}, &r->at), KVP_OK);
    assert_int_equal(kvp_mr_create(r->server, &(kvp_mem_t){.addr = r->mem, .len = BYTES, .fd = -1}, &r->mr), KVP_OK);
    r->server->ops->peer_came(r->server, WRITER);
}

static void
on_connect(void *arg, kvp_err_t err)
{
    *(kvp_err_t *)arg = err;
}

static kvp_err_t
connect_to(rig_t *r)
{
    kvp_err_t verdict = KVP_EAGAIN;

    assert_int_equal(kvp_ep_create(r->client, &r->at, on_connect, &verdict, &r->ep), KVP_OK);
    for (uint32_t i = 0; verdict == KVP_EAGAIN && i < STEPS_MAX; i++) {
        assert_int_equal(r->server->ops->serve(r->server, 0, 0), KVP_OK);
        r->ep->tp->ops->ep_poll(r->ep);
    }
    return verdict;
}

static void
rig_open(rig_t *r, uint64_t seed, const model_nic_conf_t *conf)
{
    kvp_token_t token;

    memset(r, 0, sizeof *r);
    assert_int_equal(model_nic_reset(seed, conf), 0);
    r->seed = r->dice = seed;
    r->mem = aligned_alloc(4096, BYTES);
    assert_non_null(r->mem);
    memset(r->mem, 0, BYTES);
    serve(r);
    r->client = make_tp(WRITER);
    assert_int_equal(r->server->ops->mr_grant(r->mr, WRITER), KVP_OK);
    assert_int_equal(r->server->ops->mr_export(r->mr, KVP_ACCESS_WRITE, WRITER, &token), KVP_OK);
    assert_int_equal(kvp_rseg_create(r->client, &token, BYTES, KVP_ACCESS_WRITE, &r->rseg), KVP_OK);
    assert_int_equal(connect_to(r), KVP_OK);
    r->bytes = DATA_BYTES;
    r->iov_local = (kvp_iov_t){r->local, DATA_BYTES};
    if (seed / 2 % 2 == 1)
        assert_int_equal(r->client->ops->lend(&kvp_verbs_model, r->local, sizeof r->local, NULL, &r->loan), KVP_OK);
    r->iov_line = (kvp_iov_t){r->line, sizeof r->line};
}

static void
rig_close(rig_t *r)
{
    kvp_ep_destroy(r->ep);
    if (r->loan != NULL) r->client->ops->unlend(r->loan);
    kvp_rseg_destroy(r->rseg);
    kvp_tp_destroy(r->client);
    kvp_mr_destroy(r->mr);
    kvp_tp_destroy(r->server);
    free(r->mem);
}

static void
on_done(kvp_xfer_t *x)
{
    ((rig_t *)x->arg)->done_n++;
}

static kvp_xfer_t *
xfer(rig_t *r, uint32_t i, kvp_xfer_kind_t kind, uint64_t at, const kvp_iov_t *iov)
{
    r->x[i] = (kvp_xfer_t){.kind = kind,
                           .flags = r->loan != NULL && iov == &r->iov_local ? KVP_XFER_LENT : 0,
                           .rseg = r->rseg,
                           .roffset = at,
                           .iov = iov,
                           .iov_n = 1,
                           .len = iov->len,
                           .granted_ns = kvp_now_ns(),
                           .done = on_done,
                           .arg = r};
    return &r->x[i];
}

static kvp_xfer_t *
publish(rig_t *r, uint32_t i, kvp_desc_state_t state)
{
    r->x[i] = (kvp_xfer_t){.kind = KVP_XFER_PUBLISH,
                           .flags = KVP_XFER_AFTER_PRIOR,
                           .rseg = r->rseg,
                           .roffset = WORD_AT,
                           .len = 8,
                           .word = kvp_word_make(GENERATION, state),
                           .granted_ns = kvp_now_ns(),
                           .done = on_done,
                           .arg = r};
    return &r->x[i];
}

static void
write_all(rig_t *r, char value)
{
    memset(r->local, value, r->bytes);
    (void)xfer(r, 0, KVP_XFER_WRITE, DATA_AT, &r->iov_local);
}

static void
submit(rig_t *r, uint32_t n)
{
    kvp_xfer_t *list[4] = {&r->x[0], &r->x[1], &r->x[2], &r->x[3]};
    size_t took;

    assert_int_equal(r->ep->tp->ops->submit(r->ep, list, n, &took), KVP_OK);
    assert_int_equal(took, n);
}

static void
finish(rig_t *r, uint32_t n)
{
    for (uint32_t i = 0; r->done_n < n && i < STEPS_MAX; i++)
        r->ep->tp->ops->ep_poll(r->ep);
    assert_int_equal(r->done_n, n);
}

static bool
is_all_of(const uint8_t *at, size_t n, uint8_t value)
{
    return n == 0 || (at[0] == value && memcmp(at, at + 1, n - 1) == 0);
}

static bool
is_all(const uint8_t *at, uint8_t value)
{
    return is_all_of(at, DATA_BYTES, value);
}

static void
step(rig_t *r, uint32_t most)
{
    for (uint64_t n = below(r, most); n > 0; n--)
        (void)model_nic_step();
}

/* The second one comes when much is carried. */
static void
connect_rails(rig_t *r)
{
    r->bytes = WIDE_BYTES;
    r->iov_local.len = WIDE_BYTES;
    (void)xfer(r, 0, KVP_XFER_READ, DATA_AT, &r->iov_local);
    submit(r, 1);
    finish(r, 1);
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(r->server->ops->serve(r->server, 0, 0), KVP_OK);
        r->ep->tp->ops->ep_poll(r->ep);
        model_nic_settle();
    }
    r->done_n = 0;
}

/* ---- histories: each returns whether nothing was wrong */

/* The owner retires the extent, and writes it again, in the middle of a read, after so many steps at most: what the
 * descriptor vouches for is whole. */
static bool
read_while_reused(rig_t *r)
{
    uint64_t sealed = kvp_word_make(GENERATION, KVP_DESC_SEALED);

    memset(r->mem + DATA_AT, 'a', r->bytes);
    memcpy(r->mem + WORD_AT, &sealed, 8);
    (void)xfer(r, 0, KVP_XFER_READ, DATA_AT, &r->iov_local);
    xfer(r, 1, KVP_XFER_READ, WORD_AT, &r->iov_line)->flags = KVP_XFER_AFTER_PRIOR;
    submit(r, 2);
    step(r, 300);
    memset(r->mem + WORD_AT, 0, 8);
    memset(r->mem + DATA_AT, 'b', r->bytes);
    finish(r, 2);
    return r->line[0] != sealed || is_all_of(r->local, r->bytes, 'a');
}

/* What was written is in memory when it is said to be. */
static bool
write_is_there(rig_t *r)
{
    write_all(r, 'a');
    submit(r, 1);
    finish(r, 1);
    return is_all_of(r->mem + DATA_AT, r->bytes, 'a');
}

/* Whoever sees SEALED sees all of what was written before it, also where writes overtake one another, and by two rails.
 */
static bool
sealed_is_whole(rig_t *r)
{
    uint64_t sealed = kvp_word_make(GENERATION, KVP_DESC_SEALED), word = 0;
    bool is_right = true;

    write_all(r, 'a');
    (void)publish(r, 1, KVP_DESC_SEALED);
    submit(r, 2);
    for (uint32_t i = 0; r->done_n < 2 && i < STEPS_MAX && is_right; i++) {
        r->ep->tp->ops->ep_poll(r->ep);
        memcpy(&word, r->mem + WORD_AT, 8);
        is_right = word != sealed || is_all_of(r->mem + DATA_AT, r->bytes, 'a');
    }
    finish(r, 2);
    return is_right;
}

static void
guard(rig_t *r, kvp_xfer_t *x)
{
    x->flags |= KVP_XFER_GUARDED | KVP_XFER_AFTER_PRIOR;
    x->guard_rseg = r->rseg;
    x->guard_off = WORD_AT;
    x->guard_word = kvp_word_make(GENERATION, KVP_DESC_WRITING);
}

/* WRITING, payload, the rest of the descriptor, SEALED. */
static void
make_put(rig_t *r)
{
    static uint64_t rest[7];
    static const kvp_iov_t iov_rest = {rest, sizeof rest};

    memset(rest, 'd', sizeof rest);
    publish(r, 0, KVP_DESC_WRITING)->flags = 0;
    memset(r->local, 'a', r->bytes);
    guard(r, xfer(r, 1, KVP_XFER_WRITE, DATA_AT, &r->iov_local));
    guard(r, xfer(r, 2, KVP_XFER_WRITE, WORD_AT + 8, &iov_rest));
    (void)publish(r, 3, KVP_DESC_SEALED);
}

/* What a reader, or the next master, makes of the extent as it lies there. */
static bool
is_whole_or_not_there(const rig_t *r)
{
    uint64_t word;

    memcpy(&word, r->mem + WORD_AT, sizeof word);
    if (word == 0 || word == kvp_word_make(GENERATION, KVP_DESC_WRITING)) return true;
    return word == kvp_word_make(GENERATION, KVP_DESC_SEALED) && is_all(r->mem + DATA_AT, 'a') &&
           is_all_of(r->mem + WORD_AT + 8, 56, 'd');
}

/* A put by one chain, and its writer dies at any point of it, or after. */
static bool
put_by_one_chain(rig_t *r)
{
    uint64_t dies_at = below(r, 300), steps = 0;
    bool is_right = true;

    make_put(r);
    submit(r, 4);
    for (bool is_moving = true; is_moving && is_right; steps++) {
        if (steps == dies_at) {
            kvp_ep_destroy(r->ep);
            r->ep = NULL;
        }
        is_moving = model_nic_step();
        is_right = is_whole_or_not_there(r);
    }
    if (r->ep != NULL) {
        uint64_t word;

        finish(r, 4);
        memcpy(&word, r->mem + WORD_AT, sizeof word);
        is_right = is_right && is_whole_or_not_there(r) && word == kvp_word_make(GENERATION, KVP_DESC_SEALED);
    }
    return is_right;
}

static bool
read_is_sent_on(rig_t *r)
{
    memset(r->mem + DATA_AT, 'a', DATA_BYTES);
    (void)xfer(r, 0, KVP_XFER_READ, DATA_AT, &r->iov_local);
    xfer(r, 1, KVP_XFER_WRITE, DATA_AT + DATA_BYTES, &r->iov_local)->flags |= KVP_XFER_AFTER_PRIOR;
    submit(r, 2);
    finish(r, 2);
    return is_all(r->mem + DATA_AT + DATA_BYTES, 'a');
}

/* Something is under way when `end` is done; from then on the memory is its owner's. */
static bool
nothing_lands_after(rig_t *r, void (*end)(rig_t *r))
{
    write_all(r, 'a');
    submit(r, 1);
    step(r, 40);
    end(r);
    memset(r->mem + DATA_AT, 'b', DATA_BYTES);
    model_nic_settle();
    return is_all(r->mem + DATA_AT, 'b');
}

static void
cut(rig_t *r)
{
    r->server->ops->peer_cut(r->server, WRITER);
}

static void
on_fenced(void *arg, uint64_t incarnation)
{
    *(uint64_t *)arg = incarnation;
}

static void
fence(rig_t *r)
{
    uint64_t fenced = 0;

    r->server->ops->peer_fence(r->server, kvp_idrange_one(WRITER), 0, on_fenced, &fenced);
    assert_true(fenced == WRITER);
}

static bool
cut_writer(rig_t *r)
{
    return nothing_lands_after(r, cut);
}

static bool
fenced_writer(rig_t *r)
{
    return nothing_lands_after(r, fence);
}

/* ---- something happens under a move */
static void
begin_write(rig_t *r)
{
    write_all(r, 'a');
    submit(r, 1);
    step(r, 100);
}

/* A write that is over: one that is not said to be done may still land, so its writer is cut before the extent is
 * anybody's. */
static bool
is_owners_again(rig_t *r)
{
    if (r->x[0].status != KVP_OK) cut(r);
    memset(r->mem + DATA_AT, 'b', WIDE_BYTES);
    model_nic_settle();
    return is_all_of(r->mem + DATA_AT, WIDE_BYTES, 'b');
}

/* Bytes that differ from their neighbours, and the read of them all, which takes their sum. */
static void
make_read(rig_t *r)
{
    for (size_t i = 0; i < r->bytes; i++)
        r->mem[DATA_AT + i] = (uint8_t)(i * 7 + i / 251);
    xfer(r, 0, KVP_XFER_READ, DATA_AT, &r->iov_local)->flags |= KVP_XFER_SUM;
}

static bool
is_read(const rig_t *r)
{
    return r->x[0].status == KVP_OK && memcmp(r->local, r->mem + DATA_AT, r->bytes) == 0 &&
           r->x[0].sum == kvp_sum(r->local, r->bytes);
}

/* A rail fails under writes. Where the move is said to be done the extent may be anybody's next; else the writer is cut
 * first, since what was sent may still land. */
static bool
failed_rail_wrote(rig_t *r)
{
    uint32_t rail = (uint32_t)(r->seed % 2);

    begin_write(r);
    model_nic_path(rail, rail, false);
    finish(r, 1);
    return is_owners_again(r);
}

/* A rail fails under reads: they are done by the other one, each once, with the right bytes. */
static bool
failed_rail_read(rig_t *r)
{
    uint32_t rail = (uint32_t)(r->seed % 2);
    uint64_t sealed = kvp_word_make(GENERATION, KVP_DESC_SEALED);

    memcpy(r->mem + WORD_AT, &sealed, 8);
    make_read(r);
    xfer(r, 1, KVP_XFER_READ, WORD_AT, &r->iov_line)->flags = KVP_XFER_AFTER_PRIOR;
    submit(r, 2);
    step(r, 100);
    model_nic_path(rail, rail, false);
    finish(r, 2);
    return is_read(r) && r->x[1].status == KVP_OK && r->line[0] == sealed;
}

/* What holds may take as long as a slow machine does; what is not to hold is not waited for as long. */
static uint64_t
patience_ns(void)
{
    return (kvp_rule_off == KVP_RULE_NONE ? 60 : 1) * KVP_NS_PER_S;
}

/* Polls until n are done, or for seconds: what ends a silence is a clock. The other side lets in who comes again. */
static bool
finish_in_time(rig_t *r, uint32_t n)
{
    uint64_t until_ns = kvp_now_ns() + patience_ns();

    while (r->done_n < n && kvp_now_ns() < until_ns) {
        assert_int_equal(r->server->ops->serve(r->server, 0, 0), KVP_OK);
        r->ep->tp->ops->ep_poll(r->ep);
    }
    return r->done_n == n;
}

/* Polls until so many work requests were posted beyond what there was, with or without letting all happen in between.
 */
static void
poll_until_posted(rig_t *r, uint64_t requests, bool is_settled)
{
    for (uint32_t i = 0; i < 1000 && r->done_n < 2 && r->ep->costs.requests < requests; i++) {
        clock_ns += KVP_NS_PER_S; /* what is not trusted may be tried again */
        if (is_settled) model_nic_settle();
        assert_int_equal(r->server->ops->serve(r->server, 0, 0), KVP_OK);
        r->ep->tp->ops->ep_poll(r->ep);
    }
}

static void
poll_until_down(rig_t *r)
{
    const kvp_rdma_ep_t *ep = kvp_rdma_ep_of(r->ep);

    for (uint32_t i = 0; i < 1000 && (ep->rails[0].is_up || ep->rails[1].is_up); i++)
        r->ep->tp->ops->ep_poll(r->ep);
}

/* Both ways go under a read and its descriptor's, and come back at once; then one goes again under what is read anew.
 * The extent is written once more at any point of that: what the descriptor vouches for is whole. */
static bool
reread_while_reused(rig_t *r)
{
    uint64_t sealed = kvp_word_make(GENERATION, KVP_DESC_SEALED), before;
    uint32_t rail = (uint32_t)(r->seed % 2);

    memset(r->mem + DATA_AT, 'a', r->bytes);
    memcpy(r->mem + WORD_AT, &sealed, 8);
    (void)xfer(r, 0, KVP_XFER_READ, DATA_AT, &r->iov_local);
    xfer(r, 1, KVP_XFER_READ, WORD_AT, &r->iov_line)->flags = KVP_XFER_AFTER_PRIOR;
    before = r->ep->costs.requests;
    submit(r, 2);
    poll_until_posted(r, before + WIDE_BYTES / SLICE_BYTES + 1, false);
    model_nic_path(0, 0, false);
    model_nic_path(1, 1, false);
    poll_until_down(r);
    before = r->ep->costs.requests;
    model_nic_path(0, 0, true);
    model_nic_path(1, 1, true);
    poll_until_posted(r, before + 1, true);
    model_nic_path(rail, rail, false);
    before = r->ep->costs.requests;
    poll_until_posted(r, before + 1, false);
    step(r, 10000);
    memset(r->mem + WORD_AT, 0, 8);
    memset(r->mem + DATA_AT, 'b', r->bytes);
    model_nic_path(rail, rail, true);
    for (uint32_t i = 0; r->done_n < 2 && i < STEPS_MAX; i++)
        poll_until_posted(r, UINT64_MAX, false);
    assert_int_equal(r->done_n, 2);
    return r->x[0].status != KVP_OK || r->x[1].status != KVP_OK || r->line[0] != sealed ||
           is_all_of(r->local, r->bytes, 'a');
}

/* The only connection falls silent under a read: that is done by another one. */
static bool
silent_read(rig_t *r)
{
    make_read(r);
    submit(r, 1);
    step(r, 20);
    model_nic_silence(0, 0);
    return finish_in_time(r, 1) && is_read(r);
}

/* One of two rails falls silent under writes: the move ends, and where it says that it is not done the writer is cut
 * before the extent is anybody's. */
static bool
silent_write(rig_t *r)
{
    uint32_t rail = (uint32_t)(r->seed % 2);
    bool is_over;

    begin_write(r);
    model_nic_silence(rail, rail);
    is_over = finish_in_time(r, 1);
    return is_owners_again(r) && is_over;
}

static bool
is_let_go(rig_t *r, uint32_t dev)
{
    uint64_t until_ns = kvp_now_ns() + patience_ns();

    while (model_nic_uses(dev) > 0 && kvp_now_ns() < until_ns) {
        r->server->ops->tend(r->server);
        assert_int_equal(r->server->ops->serve(r->server, 0, 0), KVP_OK);
        r->client->ops->tend(r->client);
        r->ep->tp->ops->ep_poll(r->ep);
        if (r->done_n > 0 && r->ep->tp->ops->ep_is_stale(r->ep)) r->ep->tp->ops->ep_close(r->ep);
    }
    return model_nic_uses(dev) == 0;
}

/* One of two devices is removed under reads, and who has it hears of that or sees it: they are done by the other one,
 * each once, with the right bytes, and nobody keeps it. */
static bool
removed_under_read(rig_t *r)
{
    uint32_t dev = (uint32_t)(r->seed % 2);

    make_read(r);
    submit(r, 1);
    step(r, 100);
    model_nic_remove(dev, r->seed / 4 % 2 == 0);
    r->client->ops->tend(r->client);
    return finish_in_time(r, 1) && is_read(r) && is_let_go(r, dev);
}

/* The same under writes: they end, and where one says that it is not done its writer is cut before the extent is
 * anybody's. */
static bool
removed_under_write(rig_t *r)
{
    uint32_t dev = (uint32_t)(r->seed % 2);
    bool is_right;

    begin_write(r);
    model_nic_remove(dev, r->seed / 4 % 2 == 0);
    r->client->ops->tend(r->client);
    is_right = finish_in_time(r, 1);
    is_right = is_owners_again(r) && is_right && is_let_go(r, dev);
    return is_right;
}

/* A writer is cut while some of what it is to write still waits, for a READ here. It may come again, and does: with
 * nothing of that. */
static bool
cut_writer_goes_on(rig_t *r)
{
    bool is_right;

    (void)xfer(r, 0, KVP_XFER_READ, DATA_AT, &r->iov_local);
    xfer(r, 1, KVP_XFER_WRITE, WORD_AT, &r->iov_line)->flags |= KVP_XFER_AFTER_PRIOR;
    memset(r->line, 'a', sizeof r->line);
    submit(r, 2);
    cut(r);
    memset(r->mem + WORD_AT, 'b', sizeof r->line);
    is_right = finish_in_time(r, 2);
    model_nic_settle();
    is_right = is_right && is_all_of(r->mem + WORD_AT, sizeof r->line, 'b');
    return is_right;
}

/* A writer sleeps between its grant and its first write, with no connection that could be cut, and comes to one later.
 */
static bool
sleeping_writer_connects(rig_t *r)
{
    kvp_ep_destroy(r->ep);
    write_all(r, 'a');
    (void)publish(r, 1, KVP_DESC_SEALED);
    cut(r);
    memset(r->mem + DATA_AT, 'b', DATA_BYTES);
    assert_int_equal(connect_to(r), KVP_OK);
    submit(r, 2);
    finish(r, 2);
    model_nic_settle();
    return r->x[0].status == KVP_EAGAIN && r->x[1].status == KVP_EAGAIN && is_all(r->mem + DATA_AT, 'b');
}

/* Once a drain has returned the memory is the caller's, whatever it returned. */
static bool
drained_reader(rig_t *r)
{
    memset(r->mem + DATA_AT, 'a', DATA_BYTES);
    (void)xfer(r, 0, KVP_XFER_READ, DATA_AT, &r->iov_local);
    submit(r, 1);
    step(r, 20);
    kvp_ignore(r->client->ops->drain(r->ep, 0), "it may be over by chance");
    memset(r->local, 'c', sizeof r->local);
    model_nic_settle();
    return is_all_of(r->local, DATA_BYTES, 'c');
}

/* One that was cut may come again; one that was fenced may not. */
static bool
fenced_comes_back(rig_t *r)
{
    kvp_err_t err;

    kvp_ep_destroy(r->ep);
    cut(r);
    assert_int_equal(connect_to(r), KVP_OK);
    kvp_ep_destroy(r->ep);
    fence(r);
    err = connect_to(r);
    return err == KVP_FENCED;
}

/* One that left may not, until it comes again; a cut is not the end of its attachment. */
static bool
left_comes_back(rig_t *r)
{
    kvp_err_t err;

    kvp_ep_destroy(r->ep);
    cut(r);
    assert_int_equal(connect_to(r), KVP_OK);
    kvp_ep_destroy(r->ep);
    r->server->ops->peer_left(r->server, WRITER);
    err = connect_to(r);
    kvp_ep_destroy(r->ep);
    r->server->ops->peer_came(r->server, WRITER);
    assert_int_equal(connect_to(r), KVP_OK);
    return err == KVP_DISCONNECTED;
}

/* A node that was restarted gives out the numbers of its earlier life, for other memory. */
static bool
keys_of_an_earlier_life(rig_t *r)
{
    kvp_ep_destroy(r->ep);
    kvp_mr_destroy(r->mr);
    kvp_tp_destroy(r->server);
    serve(r);
    assert_int_equal(r->server->ops->mr_grant(r->mr, WRITER), KVP_OK); /* the same number */
    memset(r->mem + DATA_AT, 'b', DATA_BYTES);
    assert_int_equal(connect_to(r), KVP_OK);
    (void)xfer(r, 0, KVP_XFER_READ, DATA_AT, &r->iov_local);
    submit(r, 1);
    finish(r, 1);
    return r->x[0].status == KVP_NO_SEGMENT && !is_all(r->local, 'b');
}

/* ---- rules */
/* Of two devices both rails are connected when the history begins. */
static const struct {
    kvp_rule_t rule;
    const char *name;
    bool (*history)(rig_t *r);
    model_nic_conf_t nic;
} rules[] = {
    {KVP_RULE_RDMA_READ_FENCE, "RDMA_READ_FENCE", read_while_reused, {0}},
    {KVP_RULE_RDMA_PUSH, "RDMA_PUSH", write_is_there, {0}},
    {KVP_RULE_RDMA_SEAL_PUSH, "RDMA_SEAL_PUSH", sealed_is_whole, {.is_relaxed = true}},
    {KVP_RULE_RDMA_SEAL_FENCE, "RDMA_SEAL_FENCE", sealed_is_whole, {.is_relaxed = true}},
    {KVP_RULE_RDMA_SEAL_PUSH, "RDMA_SEAL_PUSH", put_by_one_chain, {.is_relaxed = true}},
    {KVP_RULE_RDMA_SEAL_FENCE, "RDMA_SEAL_FENCE", put_by_one_chain, {.is_relaxed = true}},
    {KVP_RULE_RDMA_WRITE_WAITS, "RDMA_WRITE_WAITS", read_is_sent_on, {0}},
    {KVP_RULE_RDMA_READ_RAILS, "RDMA_READ_RAILS", read_while_reused, {.devs_n = 2}},
    {KVP_RULE_RDMA_PUSH_RAILS, "RDMA_PUSH_RAILS", write_is_there, {.devs_n = 2}},
    {KVP_RULE_RDMA_SEAL_RAILS, "RDMA_SEAL_RAILS", sealed_is_whole, {.devs_n = 2, .is_relaxed = true}},
    {KVP_RULE_RDMA_WRITES_ONCE, "RDMA_WRITES_ONCE", failed_rail_wrote, {.devs_n = 2}},
    {KVP_RULE_RDMA_READS_AGAIN, "RDMA_READS_AGAIN", failed_rail_read, {.devs_n = 2}},
    {KVP_RULE_RDMA_LOST_ORDER, "RDMA_LOST_ORDER", reread_while_reused, {.devs_n = 2}},
    {KVP_RULE_RDMA_SILENCE, "RDMA_SILENCE", silent_read, {0}},
    {KVP_RULE_RDMA_SILENCE, "RDMA_SILENCE (put)", silent_write, {.devs_n = 2}},
    {KVP_RULE_RDMA_DEVICE_GONE, "RDMA_DEVICE_GONE", removed_under_read, {.devs_n = 2}},
    {KVP_RULE_RDMA_DEVICE_GONE, "RDMA_DEVICE_GONE (put)", removed_under_write, {.devs_n = 2}},
    {KVP_RULE_RDMA_CUT, "RDMA_CUT", cut_writer, {0}},
    {KVP_RULE_RDMA_OLD_WRITES, "RDMA_OLD_WRITES", cut_writer_goes_on, {0}},
    {KVP_RULE_RDMA_OLD_WRITES, "RDMA_OLD_WRITES (asleep)", sleeping_writer_connects, {0}},
    {KVP_RULE_RDMA_PEER_FENCE, "RDMA_PEER_FENCE", fenced_writer, {0}},
    {KVP_RULE_RDMA_REFUSE_FENCED, "RDMA_REFUSE_FENCED", fenced_comes_back, {0}},
    {KVP_RULE_RDMA_ATTACHED, "RDMA_ATTACHED", left_comes_back, {0}},
    {KVP_RULE_RDMA_EPOCH, "RDMA_EPOCH", keys_of_an_earlier_life, {.reuses_keys = true}},
    {KVP_RULE_RDMA_DRAIN, "RDMA_DRAIN", drained_reader, {0}},
};

static bool
run(size_t i, uint64_t seed)
{
    static rig_t r;
    bool is_right;

    rig_open(&r, seed, &rules[i].nic);
    if (rules[i].nic.devs_n > 1) connect_rails(&r);
    is_right = rules[i].history(&r);
    rig_close(&r);
    return is_right;
}

TEST(test_rules_hold_in_every_seed)
{
    kvp_rule_off = KVP_RULE_NONE;
    for (size_t i = 0; i < KVP_ARRAY_LEN(rules); i++) {
        for (uint64_t seed = 0; seed < SEEDS_HELD; seed++) {
            if (run(i, seed)) continue;
            print_error("%s: seed %llu\n", rules[i].name, (unsigned long long)seed);
            fail();
        }
    }
}

/* Fails if the write gets another error when the peer revokes its key before the READ that flushes it has run. */
TEST(test_key_revoked_under_a_write)
{
    uint32_t refused_n = 0;

    for (uint64_t seed = 0; seed < SEEDS_HELD; seed++) {
        static rig_t r;

        rig_open(&r, seed, NULL);
        write_all(&r, 'a');
        submit(&r, 1);
        for (uint64_t i = below(&r, 8); i > 0 && r.done_n == 0; i--)
            r.ep->tp->ops->ep_poll(r.ep);
        kvp_mr_destroy(r.mr);
        r.mr = NULL;
        finish(&r, 1);
        if (r.x[0].status != KVP_OK) assert_int_equal(r.x[0].status, KVP_NO_SEGMENT);
        refused_n += r.x[0].status != KVP_OK;
        rig_close(&r);
    }
    assert_in_range(refused_n, 1, SEEDS_HELD - 1);
}

TEST(test_some_seed_fails_without_each_rule)
{
    if (IS_TSAN) {
        print_message("not under ThreadSanitizer: the same seeds fail in the other builds, in a single thread\n");
        skip();
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(rules); i++) {
        uint64_t seed = 0;

        kvp_rule_off = rules[i].rule;
        while (seed < SEEDS && run(i, seed))
            seed++;
        kvp_rule_off = KVP_RULE_NONE;
        print_message("%-20s seed %llu\n", rules[i].name, (unsigned long long)seed);
        if (seed == SEEDS) fail_msg("no seed finds %s", rules[i].name);
    }
}

TEST_MAIN()
