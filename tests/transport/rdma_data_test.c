/* SPDX-License-Identifier: Apache-2.0
 * What data takes on its way over rdma, on the model NIC: doorbells, completions, work requests and copies; and the
 * cache of registrations behind it. */
#include "transport/rdma/table.h"
#include "tests/transport/suite.h"

#include "transport/all/registry.h"
#include "transport/rdma/base/mrcache.h"
#include "common/clock.h"
#include "tests/transport/model_nic.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define OBJECTS 32u
#define GRID (64 * MIB) /* no piece of the cache of registrations goes over a line of it */
#define BIG_BYTES (160 * MIB) /* registered in the background */
#define TURNS_MAX 10000000u

static model_nic_conf_t nic_conf;

/* The linker puts it in the place of kvp_now_ns: where a test wants it, each look at the clock finds it so much later.
 */
uint64_t __real_kvp_now_ns(void);
uint64_t __wrap_kvp_now_ns(void);
static _Atomic uint64_t astray_ns, step_ns; /* 0 = as it is */

uint64_t
__wrap_kvp_now_ns(void)
{
    if (astray_ns == 0) return __real_kvp_now_ns();
    const uint64_t step = step_ns;

    return atomic_fetch_add(&astray_ns, step) + step;
}

static int
setup(void **state)
{
    assert_int_equal(model_nic_reset(7, &nic_conf), 0);
    suite_host = "10.99.1.1";
    suite_own = &kvp_verbs_model;
    suite_lends = false;
    *state = (void *)(uintptr_t) "rdma";
    return bench_setup(state);
}

static int
setup_small_messages(void **state)
{
    nic_conf.max_msg_bytes = 65536;
    return setup(state);
}

/* The bench's own memory, twice, and an area a connection. */
static int
setup_short_lock(void **state)
{
    nic_conf.memlock_bytes = 2 * BENCH_BYTES + MIB + MIB / 8;
    return setup(state);
}

/* Little goes over one rail of several. */
static int
setup_two_devices(void **state)
{
    nic_conf.devs_n = 2;
    return setup(state);
}

static int
teardown(void **state)
{
    int rc = bench_teardown(state);

    nic_conf = (model_nic_conf_t){0};
    return rc != 0 || model_nic_reset(1, NULL) > 0;
}

static kvp_loan_t *
lend(void *addr, size_t len)
{
    kvp_loan_t *loan = NULL;

    assert_int_equal(kvp_mrcache_lend(&kvp_verbs_model, addr, len, NULL, &loan), KVP_OK);
    return loan;
}

static void
on_done(kvp_xfer_t *x)
{
    (*(size_t *)x->arg)++;
}

/* A batch_get of known objects, as the client submits it: payloads, and their descriptors behind them. */
typedef struct {
    uint8_t *local;
    size_t bytes; /* of an object */
    size_t done_n;
    kvp_iov_t payload[OBJECTS], line[OBJECTS];
    uint8_t lines[OBJECTS][64];
    kvp_xfer_t x[2 * OBJECTS];
    kvp_xfer_t *list[2 * OBJECTS];
} batch_t;

static void
batch_make(batch_t *g, bench_t *b, size_t bytes)
{
    *g = (batch_t){.local = aligned_alloc(4096, OBJECTS * bytes), .bytes = bytes};
    assert_non_null(g->local);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        g->payload[i] = (kvp_iov_t){g->local + i * bytes, bytes};
        g->line[i] = (kvp_iov_t){g->lines[i], 64};
        g->x[i] = bench_xfer(KVP_XFER_READ, KVP_XFER_LENT, b->rd, BENCH_DATA + i % 16 * bytes, &g->payload[i], 1);
        g->x[OBJECTS + i] = bench_xfer(KVP_XFER_READ, KVP_XFER_AFTER_PRIOR, b->rd, i * 64, &g->line[i], 1);
    }
    for (uint32_t i = 0; i < 2 * OBJECTS; i++) {
        g->x[i].done = on_done;
        g->x[i].arg = &g->done_n;
        g->list[i] = &g->x[i];
    }
}

/* Moves it all without ever going to sleep. */
static kvp_ep_costs_t
batch_run(batch_t *g, const bench_t *b)
{
    kvp_ep_costs_t before = b->ep->costs, now;
    size_t took;

    assert_int_equal(b->ops->submit(b->ep, g->list, 2 * OBJECTS, &took), KVP_OK);
    assert_int_equal(took, 2 * OBJECTS);
    for (uint32_t i = 0; g->done_n < 2 * OBJECTS && i < TURNS_MAX; i++)
        b->ops->ep_poll(b->ep);
    assert_int_equal(g->done_n, 2 * OBJECTS);
    for (uint32_t i = 0; i < OBJECTS; i++)
        assert_memory_equal(g->local + i * g->bytes, b->mem + BENCH_DATA + i % 16 * g->bytes, g->bytes);
    now = b->ep->costs;
    return (kvp_ep_costs_t){.requests = now.requests - before.requests,
                            .doorbells = now.doorbells - before.doorbells,
                            .completions = now.completions - before.completions,
                            .system_calls = now.system_calls - before.system_calls,
                            .copied_bytes = now.copied_bytes - before.copied_bytes};
}

TEST_WITH(test_known_batch_takes_one_doorbell_and_one_completion, setup, teardown)
{
    bench_t *b = *state;
    model_nic_counts_t before, after;
    kvp_ep_costs_t costs;
    kvp_loan_t *loan;
    batch_t g;

    bench_fill(b->mem + BENCH_DATA, 16 * MIB, 3);
    batch_make(&g, b, MIB);
    loan = lend(g.local, OBJECTS * MIB);
    model_nic_counts(&before);
    costs = batch_run(&g, b);
    model_nic_counts(&after);
    assert_int_equal(costs.doorbells, 1);
    assert_int_equal(costs.completions, 1);
    assert_int_equal(costs.requests, 2 * OBJECTS); /* two an object: it, and its descriptor */
    assert_int_equal(costs.system_calls, 0);
    assert_int_equal(costs.copied_bytes, 0);
    /* The adapter says the same. */
    assert_int_equal(after.posts - before.posts, 1);
    assert_int_equal(after.signaled - before.signaled, 1);
    assert_int_equal(after.requests - before.requests, 2 * OBJECTS);
    assert_int_equal(after.arms - before.arms, 0);
    assert_int_equal(after.fenced - before.fenced, 1);
    kvp_mrcache_unlend(loan);
    free(g.local);
}

/* Since then one doorbell, one completion, so many work requests, and no copy. */
static void
want_costs(const bench_t *b, const kvp_ep_costs_t *before, uint64_t requests)
{
    assert_int_equal(b->ep->costs.doorbells - before->doorbells, 1);
    assert_int_equal(b->ep->costs.completions - before->completions, 1);
    assert_int_equal(b->ep->costs.requests - before->requests, requests);
    assert_int_equal(b->ep->costs.copied_bytes - before->copied_bytes, 0);
}

/* Small objects that their sums vouch for: one work request an object. */
TEST_WITH(test_small_batch_takes_one_request_an_object, setup, teardown)
{
    enum { N = 64, BYTES = 4096 };
    bench_t *b = *state;
    kvp_ep_costs_t before = b->ep->costs;
    uint8_t *local = bench_new(N * BYTES);
    kvp_iov_t iov[N];
    kvp_xfer_t x[N];
    kvp_loan_t *loan;

    loan = lend(local, N * BYTES);
    bench_fill(b->mem + BENCH_DATA, N * BYTES, 19);
    for (size_t i = 0; i < N; i++) {
        iov[i] = (kvp_iov_t){local + i * BYTES, BYTES};
        x[i] = bench_xfer(KVP_XFER_READ, KVP_XFER_LENT | KVP_XFER_SUM, b->rd, BENCH_DATA + i * BYTES, &iov[i], 1);
    }
    assert_true(bench_run(b->ep, x, N));
    for (size_t i = 0; i < N; i++)
        assert_true(x[i].sum == kvp_sum(b->mem + BENCH_DATA + i * BYTES, BYTES));
    assert_memory_equal(local, b->mem + BENCH_DATA, N * BYTES);
    want_costs(b, &before, N);
    kvp_mrcache_unlend(loan);
    free(local);
}

TEST_WITH(test_batch_that_wrote_ends_in_one_push, setup, teardown)
{
    bench_t *b = *state;
    kvp_ep_costs_t before = b->ep->costs;
    uint8_t *local = bench_new(4 * MIB);
    kvp_iov_t iov[4];
    kvp_xfer_t x[4];
    kvp_loan_t *loan;

    bench_fill(local, 4 * MIB, 5);
    loan = lend(local, 4 * MIB);
    for (size_t i = 0; i < 4; i++) {
        iov[i] = (kvp_iov_t){local + i * MIB, MIB};
        x[i] = bench_xfer(KVP_XFER_WRITE, KVP_XFER_LENT | KVP_XFER_SUM, b->wr, BENCH_DATA + i * MIB, &iov[i], 1);
    }
    assert_true(bench_run(b->ep, x, 4));
    assert_memory_equal(b->mem + BENCH_DATA, local, 4 * MIB);
    for (size_t i = 0; i < 4; i++)
        assert_true(x[i].sum == kvp_sum(local + i * MIB, MIB));
    want_costs(b, &before, 5);
    kvp_mrcache_unlend(loan);
    free(local);
}

/* A batch_put of small objects, in the order in which the client submits it: words, payloads, keys, descriptors, words.
 */
TEST_WITH(test_small_puts_take_one_doorbell_and_one_completion, setup, teardown)
{
    enum { N = 64, BYTES = 4096, KINDS = 5 };
    static const struct {
        size_t at, each; /* in the memory written */
        kvp_xfer_kind_t kind;
        uint32_t flags;
    } kinds[KINDS] = {{0, 128, KVP_XFER_PUBLISH, 0},
                      {BENCH_DATA, BYTES, KVP_XFER_WRITE, KVP_XFER_AFTER_PRIOR | KVP_XFER_LENT},
                      {N * 128, 64, KVP_XFER_WRITE, KVP_XFER_AFTER_PRIOR},
                      {8, 128, KVP_XFER_WRITE, KVP_XFER_AFTER_PRIOR},
                      {0, 128, KVP_XFER_PUBLISH, KVP_XFER_AFTER_PRIOR}};
    static const size_t lens[KINDS] = {8, BYTES, 40, 120, 8};
    static uint8_t rest[120];
    bench_t *b = *state;
    kvp_ep_costs_t before = b->ep->costs;
    uint8_t *local = bench_new(N * BYTES);
    kvp_iov_t iov[KINDS * N];
    kvp_xfer_t x[KINDS * N];
    model_nic_counts_t was, is;
    kvp_loan_t *loan;
    uint64_t word;

    loan = lend(local, N * BYTES);
    bench_fill(local, N * BYTES, 23);
    for (size_t k = 0; k < KINDS; k++)
        for (size_t i = 0; i < N; i++) {
            kvp_xfer_t *to = &x[k * N + i];

            iov[k * N + i] = (kvp_iov_t){lens[k] == BYTES ? local + i * BYTES : rest, lens[k]};
            *to = (kvp_xfer_t){.kind = kinds[k].kind,
                               .flags = kinds[k].flags,
                               .rseg = b->wr,
                               .roffset = kinds[k].at + i * kinds[k].each,
                               .iov = &iov[k * N + i],
                               .iov_n = kinds[k].kind == KVP_XFER_WRITE,
                               .len = lens[k],
                               .word = kvp_word_make(i + 1, k == 0 ? KVP_DESC_WRITING : KVP_DESC_SEALED)};
            if (to->kind != KVP_XFER_WRITE) continue;
            to->flags |= KVP_XFER_GUARDED;
            to->guard_rseg = b->wr;
            to->guard_off = i * 128;
        }
    model_nic_counts(&was);
    assert_true(bench_run(b->ep, x, KINDS * N));
    model_nic_counts(&is);
    assert_int_equal(is.inlines - was.inlines, 4 * N); /* all but the payload */
    assert_memory_equal(b->mem + BENCH_DATA, local, N * BYTES);
    for (size_t i = 0; i < N; i++) {
        memcpy(&word, b->mem + i * 128, sizeof word);
        assert_true(word == kvp_word_make(i + 1, KVP_DESC_SEALED));
    }
    want_costs(b, &before, KINDS * N + 2); /* a push before SEALED, and one behind */
    kvp_mrcache_unlend(loan);
    free(local);
}

TEST_WITH(test_small_puts_over_two_devices, setup_two_devices, teardown)
{
    test_small_puts_take_one_doorbell_and_one_completion(state);
}

/* Where batches take less than waking up does, waiting for them is polling; where they take longer, it is sleep. */
TEST_WITH(test_one_polls_for_what_comes_soon, setup, teardown)
{
    enum { BATCHES = 20 };
    static const uint64_t steps_ns[] = {0, KVP_NS_PER_MS, 0};
    static uint8_t local[64];
    bench_t *b = *state;

    astray_ns = __real_kvp_now_ns();
    for (size_t i = 0; i < KVP_ARRAY_LEN(steps_ns); i++) {
        step_ns = steps_ns[i];
        for (uint32_t n = 0; n < BATCHES; n++)
            assert_int_equal(bench_move(b->ep, KVP_XFER_READ, 0, b->rd, BENCH_DATA, local, sizeof local, NULL), KVP_OK);
        if (step_ns == 0)
            assert_in_range(b->ep->spin_ns, 1, KVP_NS_PER_MS);
        else
            assert_int_equal(b->ep->spin_ns, 0);
    }
    astray_ns = step_ns = 0;
}

/* 61 layers are one object: as many work requests as their pieces need, and no copy. */
TEST_WITH(test_pieces_share_work_requests, setup, teardown)
{
    bench_t *b = *state;
    kvp_ep_costs_t before = b->ep->costs;
    uint8_t *local = bench_new(61 * 4096);
    kvp_iov_t iov[61];
    kvp_xfer_t x;
    kvp_loan_t *loan;

    loan = lend(local, 61 * 4096);
    for (size_t i = 0; i < 61; i++)
        iov[i] = (kvp_iov_t){local + i * 4096, 2048};
    x = bench_xfer(KVP_XFER_READ, KVP_XFER_LENT | KVP_XFER_SUM, b->rd, BENCH_DATA, iov, 61);
    bench_fill(b->mem + BENCH_DATA, x.len, 9);
    assert_true(bench_run(b->ep, &x, 1));
    for (size_t i = 0; i < 61; i++)
        assert_memory_equal(iov[i].addr, b->mem + BENCH_DATA + i * 2048, 2048);
    assert_true(x.sum == kvp_sum(b->mem + BENCH_DATA, x.len));
    assert_int_equal(b->ep->costs.requests - before.requests, (61 + KVP_RDMA_SGE_MAX - 1) / KVP_RDMA_SGE_MAX);
    assert_int_equal(b->ep->costs.copied_bytes, 0);
    kvp_mrcache_unlend(loan);
    free(local);
}

TEST_WITH(test_long_transfer_is_cut_where_messages_end, setup_small_messages, teardown)
{
    bench_t *b = *state;
    kvp_ep_costs_t before = b->ep->costs;
    uint8_t *local = bench_new(MIB);
    kvp_loan_t *loan;

    bench_fill(b->mem + BENCH_DATA, MIB, 11);
    loan = lend(local, MIB);
    assert_int_equal(bench_move(b->ep, KVP_XFER_READ, KVP_XFER_LENT, b->rd, BENCH_DATA, local, MIB, NULL), KVP_OK);
    assert_memory_equal(local, b->mem + BENCH_DATA, MIB);
    assert_int_equal(b->ep->costs.requests - before.requests, 16);
    kvp_mrcache_unlend(loan);
    free(local);
}

/* Far more than the queue takes: no request is refused, and completions are asked for now and then only. */
TEST_WITH(test_batch_longer_than_the_queue, setup, teardown)
{
    enum { N = 1000 };
    bench_t *b = *state;
    model_nic_counts_t before, after;
    uint8_t *local = malloc(N * 512);
    kvp_iov_t *iov = calloc(N, sizeof *iov);
    kvp_xfer_t *x = calloc(N, sizeof *x);
    kvp_loan_t *loan;

    assert_true(local != NULL && iov != NULL && x != NULL);
    bench_fill(b->mem + BENCH_DATA, N * 512, 13);
    loan = lend(local, N * 512);
    for (size_t i = 0; i < N; i++) {
        iov[i] = (kvp_iov_t){local + i * 512, 512};
        x[i] = bench_xfer(KVP_XFER_READ, KVP_XFER_LENT, b->rd, BENCH_DATA + i * 512, &iov[i], 1);
    }
    model_nic_counts(&before);
    assert_true(bench_run(b->ep, x, N));
    model_nic_counts(&after);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(x[i].status, KVP_OK);
    assert_memory_equal(local, b->mem + BENCH_DATA, N * 512);
    assert_int_equal(after.requests - before.requests, N);
    assert_in_range(after.signaled - before.signaled, 4, 40);
    assert_int_equal(after.failures, 0);
    kvp_mrcache_unlend(loan);
    free(x);
    free(iov);
    free(local);
}

/* What cannot be pinned is moved all the same, by copies that are counted. A line of the grid lies in it, so that it is
 * two pieces, of which the second one fails with the first. */
TEST_WITH(test_memory_beyond_the_lock_limit_is_copied, setup_short_lock, teardown)
{
    bench_t *b = *state;
    uint8_t *room = aligned_alloc(GRID, 2 * GRID), *local = room + GRID - 2 * MIB;
    size_t ready, waiting, failed;
    kvp_mrcache_t *cache;
    kvp_loan_t *loan;
    uint64_t sum;

    assert_non_null(room);
    loan = lend(local, 4 * MIB);
    assert_int_equal(kvp_mrcache_hold(&kvp_verbs_model, &cache), KVP_OK);
    kvp_mrcache_count(cache, &ready, &waiting, &failed);
    assert_true(failed == 2);
    kvp_mrcache_rele(cache);
    bench_fill(b->mem + BENCH_DATA, 3 * MIB, 17);
    assert_int_equal(bench_move(b->ep, KVP_XFER_READ, KVP_XFER_LENT, b->rd, BENCH_DATA, local, 3 * MIB, &sum), KVP_OK);
    assert_memory_equal(local, b->mem + BENCH_DATA, 3 * MIB);
    assert_true(sum == kvp_sum(local, 3 * MIB));
    assert_int_equal(b->ep->costs.copied_bytes, 3 * MIB);
    kvp_mrcache_unlend(loan);
    free(room);
}

/* ---- the cache */
static kvp_mrcache_t *
cache_of(const model_nic_conf_t *conf)
{
    kvp_mrcache_t *cache;

    assert_int_equal(model_nic_reset(1, conf), 0);
    assert_int_equal(kvp_mrcache_hold(&kvp_verbs_model, &cache), KVP_OK);
    return cache;
}

static void
cache_end(kvp_mrcache_t *cache)
{
    size_t ready, waiting, failed;

    kvp_mrcache_count(cache, &ready, &waiting, &failed);
    assert_int_equal(ready + waiting + failed, 0);
    kvp_mrcache_rele(cache);
    assert_int_equal(model_nic_reset(1, NULL), 0);
}

/* How many bytes of [at, at + len) are found, in as many registrations as that takes. */
static size_t
found(kvp_mrcache_t *cache, uint8_t *at, size_t len, uint32_t *regs_n_out)
{
    kvp_mrcursor_t cursor;
    size_t sum = 0, n;
    uint32_t lkey;

    *regs_n_out = 0;
    kvp_mrcache_begin(cache, &cursor);
    while (sum < len && (n = kvp_mrcache_find(&cursor, 0, at + sum, len - sum, &lkey)) > 0) {
        sum += n;
        ++*regs_n_out;
    }
    kvp_mrcache_end(&cursor);
    return sum;
}

TEST(test_loans_of_the_same_memory_share)
{
    kvp_mrcache_t *cache = cache_of(NULL);
    uint8_t *mem = aligned_alloc(4096, 4 * MIB);
    kvp_loan_t *a, *b;
    size_t ready, waiting, failed;
    uint32_t regs_n;

    assert_non_null(mem);
    a = lend(mem, 4 * MIB);
    b = lend(mem, 4 * MIB);
    kvp_mrcache_count(cache, &ready, &waiting, &failed);
    assert_in_range(ready, 1, 2); /* two where a line of the grid lies in it */
    kvp_mrcache_unlend(a);
    assert_int_equal(found(cache, mem, 4 * MIB, &regs_n), 4 * MIB);
    kvp_mrcache_unlend(b);
    assert_int_equal(found(cache, mem, 4 * MIB, &regs_n), 0);
    cache_end(cache);
    free(mem);
}

/* Loans that overlap end in any order, and what is left of them is found to the byte. */
TEST(test_overlapping_loans_are_found_to_the_byte)
{
    enum { LOANS = 24, ROUNDS = 60 };
    static const size_t unit = 512;
    kvp_mrcache_t *cache = cache_of(&(model_nic_conf_t){.max_reg_bytes = 8192});
    uint8_t *mem = aligned_alloc(65536, 65536);
    struct {
        kvp_loan_t *loan;
        size_t at, n;
    } held[LOANS] = {0};
    uint64_t dice = 5;

    assert_non_null(mem);
    for (uint32_t round = 0; round < ROUNDS * LOANS; round++) {
        uint32_t k = round % LOANS;

        dice = dice * 6364136223846793005ull + 1442695040888963407ull;
        if (held[k].loan != NULL) kvp_mrcache_unlend(held[k].loan);
        held[k].at = (dice >> 33) % 120;
        held[k].n = 1 + (dice >> 45) % 8;
        held[k].loan = (dice >> 60) < 8 ? lend(mem + held[k].at * unit, held[k].n * unit) : NULL;
        for (size_t at = 0; at < 128; at++) {
            bool is_lent = false;
            uint32_t regs_n;

            for (uint32_t i = 0; i < LOANS; i++)
                is_lent |= held[i].loan != NULL && at >= held[i].at && at < held[i].at + held[i].n;
            assert_int_equal(found(cache, mem + at * unit, unit, &regs_n), is_lent ? unit : 0);
        }
    }
    for (uint32_t k = 0; k < LOANS; k++)
        if (held[k].loan != NULL) kvp_mrcache_unlend(held[k].loan);
    cache_end(cache);
    free(mem);
}

/* The call does not wait for much memory; nor does who gives it back at once. */
TEST(test_much_memory_is_registered_in_the_background)
{
    kvp_mrcache_t *cache = cache_of(&(model_nic_conf_t){.devs_n = 2});
    uint8_t *mem = bench_new(BIG_BYTES);
    size_t ready, waiting, failed;
    kvp_loan_t *loan;
    uint32_t regs_n;

    kvp_mrcache_unlend(lend(mem, BIG_BYTES));
    loan = lend(mem, BIG_BYTES);
    do
        kvp_mrcache_count(cache, &ready, &waiting, &failed);
    while (waiting > 0);
    assert_int_equal(failed, 0);
    assert_int_equal(found(cache, mem, BIG_BYTES, &regs_n), BIG_BYTES);
    assert_in_range(regs_n, 3, 4);
    kvp_mrcache_unlend(loan);
    cache_end(cache);
    free(mem);
}

/* Known before anything is registered, and of the device that takes the least. */
TEST(test_memory_above_what_a_device_takes_is_refused)
{
    const model_nic_conf_t conf = {.devs_n = 2, .max_reg_bytes = 8192};
    const kvp_tp_conf_t tp_conf = {.own = &kvp_verbs_model};
    kvp_mem_t mem = {.addr = aligned_alloc(4096, 12288), .len = 8192, .fd = -1};
    kvp_tp_t *tp;
    kvp_mr_t *mr;

    assert_non_null(mem.addr);
    assert_int_equal(model_nic_reset(7, &conf), 0);
    assert_int_equal(kvp_tp_create(kvp_transport_find("rdma"), &tp_conf, &tp), KVP_OK);
    assert_int_equal(tp->mr_max_bytes, 8192);
    assert_int_equal(kvp_mr_create(tp, &mem, &mr), KVP_OK);
    kvp_mr_destroy(mr);
    mem.len = 8193;
    assert_int_equal(kvp_mr_create(tp, &mem, &mr), KVP_LIMIT);
    kvp_tp_destroy(tp);
    assert_int_equal(model_nic_reset(1, NULL), 0);
    free(mem.addr);
}

TEST_MAIN()
