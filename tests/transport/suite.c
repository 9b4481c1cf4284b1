/* SPDX-License-Identifier: Apache-2.0
 * The one conformance suite: what every transport owes its callers. A test that a transport cannot have (a fence
 * where nobody serves) is passed over inside, by what the bench found out about the transport. */
#include "tests/transport/suite.h"

#include "common/clock.h"
#include "tests/transport/sanitizer.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t
server_word(const bench_t *b, uint64_t off)
{
    return atomic_load((const _Atomic uint64_t *)(b->mem + off));
}

static void
server_store(const bench_t *b, uint64_t off, uint64_t word)
{
    atomic_store((_Atomic uint64_t *)(b->mem + off), word);
}

/* Bytes */

TEST_WITH(test_roundtrip_of_all_sizes, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    static const size_t sizes[] = {1,    7,     8,     63,    64,     127,           128,     129,     1000,
                                   4096, 16383, 65536, 65537, 262144, (1 << 20) - 1, 1 << 20, 3000001, 8 << 20};
    uint8_t *local = bench_new(8 << 20);

    for (size_t i = 0; i < KVP_ARRAY_LEN(sizes); i++) {
        size_t n = sizes[i];
        uint64_t sum_out = 0;
        uint64_t sum_in = 0;

        bench_fill(local, n, n);
        assert_int_equal(bench_move(b->ep, KVP_XFER_WRITE, 0, b->wr, BENCH_DATA, local, n, &sum_out), KVP_OK);
        assert_true(bench_holds(b->mem + BENCH_DATA, n, n));
        assert_true(sum_out == kvp_sum(local, n));
        memset(local, 0, n);
        assert_int_equal(bench_move(b->ep, KVP_XFER_READ, 0, b->rd, BENCH_DATA, local, n, &sum_in), KVP_OK);
        assert_true(bench_holds(local, n, n));
        assert_true(sum_in == sum_out);
        memset(local, 0, n);
        assert_int_equal(bench_move(b->ep, KVP_XFER_READ, 0, b->wr, BENCH_DATA, local, n, NULL), KVP_OK);
        assert_true(bench_holds(local, n, n));
    }
    free(local);
}

TEST_WITH(test_unaligned_moves_keep_to_their_bytes, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    size_t n = 300001;
    uint8_t *local = bench_new(n + 128);

    for (size_t shift = 1; shift < 64; shift += 9) {
        uint8_t *at = b->mem + BENCH_DATA + 64;

        memset(at - 64, 0xEE, n + 192);
        bench_fill(local + shift, n, shift);
        assert_int_equal(
            bench_move(b->ep, KVP_XFER_WRITE, 0, b->wr, BENCH_DATA + 64 + 64 - shift, local + shift, n, NULL), KVP_OK);
        assert_true(bench_holds(at + 64 - shift, n, shift));
        assert_int_equal(at[64 - shift - 1], 0xEE);
        assert_int_equal(at[64 - shift + n], 0xEE);
        memset(local, 0xDD, n + 128);
        assert_int_equal(
            bench_move(b->ep, KVP_XFER_READ, 0, b->rd, BENCH_DATA + 64 + 64 - shift, local + 64 - shift, n, NULL),
            KVP_OK);
        assert_true(bench_holds(local + 64 - shift, n, shift));
        assert_int_equal(local[64 - shift - 1], 0xDD);
        assert_int_equal(local[64 - shift + n], 0xDD);
    }
    free(local);
}

/* 61 layers are one object. */
TEST_WITH(test_scatter_list_of_61_uneven_pieces, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    kvp_iov_t iov[61];
    size_t len = 0;
    size_t room = 0;
    uint8_t *local;
    uint8_t *flat;
    kvp_xfer_t x;

    for (size_t i = 0; i < 61; i++) {
        iov[i].len = i == 0 || i == 13 || i == 60 ? 0 : 1 + (i * i * 977) % 70001; /* also empty ones */
        room += iov[i].len + 3;
        len += iov[i].len;
    }
    local = calloc(1, room);
    flat = malloc(len);
    assert_non_null(local);
    assert_non_null(flat);
    bench_fill(flat, len, 61);
    room = 0;
    len = 0;
    for (size_t i = 0; i < 61; i++) {
        iov[i].addr = local + room;
        memcpy(local + room, flat + len, iov[i].len);
        room += iov[i].len + 3;
        len += iov[i].len;
    }
    x = bench_xfer(KVP_XFER_WRITE, KVP_XFER_SUM, b->wr, BENCH_DATA + 5, iov, 61);
    assert_true(bench_run(b->ep, &x, 1));
    assert_int_equal(x.status, KVP_OK);
    assert_true(bench_holds(b->mem + BENCH_DATA + 5, len, 61));
    assert_true(x.sum == kvp_sum(flat, len));

    memset(local, 0, room);
    x.kind = KVP_XFER_READ;
    x.rseg = b->rd;
    assert_true(bench_run(b->ep, &x, 1));
    assert_int_equal(x.status, KVP_OK);
    assert_true(x.sum == kvp_sum(flat, len));
    len = 0;
    for (size_t i = 0; i < 61; i++) {
        assert_memory_equal(iov[i].addr, flat + len, iov[i].len);
        if (i < 60) assert_int_equal(((uint8_t *)iov[i].addr)[iov[i].len], 0);
        len += iov[i].len;
    }
    free(local);
    free(flat);
}

TEST_WITH(test_batch_of_a_thousand, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    enum { N = 1000, EACH = 4096 };
    kvp_xfer_t *xs = bench_new(N * sizeof *xs);
    kvp_iov_t *iov = bench_new(N * sizeof *iov);
    uint8_t *local = bench_new(N * EACH);

    bench_fill(local, N * EACH, 4);
    for (size_t i = 0; i < N; i++) {
        iov[i] = (kvp_iov_t){.addr = local + i * EACH, .len = EACH};
        xs[i] = bench_xfer(KVP_XFER_WRITE, KVP_XFER_SUM, b->wr, BENCH_DATA + i * EACH, &iov[i], 1);
    }
    assert_true(bench_run(b->ep, xs, N));
    assert_true(bench_holds(b->mem + BENCH_DATA, N * EACH, 4));
    memset(local, 0, N * EACH);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(xs[i].status, KVP_OK);
        xs[i].kind = KVP_XFER_READ;
        xs[i].rseg = b->rd;
    }
    assert_true(bench_run(b->ep, xs, N));
    assert_true(bench_holds(local, N * EACH, 4));
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(xs[i].status, KVP_OK);
        assert_true(xs[i].sum == kvp_sum(local + i * EACH, EACH));
    }
    free(local);
    free(iov);
    free(xs);
}

static void
in_order_done(kvp_xfer_t *x)
{
    kvp_xfer_t **next = x->arg;

    assert_ptr_equal(x, (*next)++);
}

TEST_WITH(test_reads_complete_in_order, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    enum { N = 200, EACH = 64 << 10 };
    kvp_xfer_t xs[N], *list[N], *next = xs;
    uint8_t *local;
    kvp_iov_t iov[2];
    size_t took;

    if ((b->ops->caps & KVP_TP_READS_IN_ORDER) == 0) {
        print_message("this transport does not promise the order of its reads\n");
        skip();
    }
    local = bench_new(EACH);
    iov[0] = (kvp_iov_t){local, EACH};
    iov[1] = (kvp_iov_t){local, 64};
    for (size_t i = 0; i < N; i++) {
        xs[i] = bench_xfer(KVP_XFER_READ, i % 2 != 0 ? KVP_XFER_AFTER_PRIOR : 0, b->rd, BENCH_DATA, &iov[i % 2], 1);
        xs[i].done = in_order_done;
        xs[i].arg = &next;
        list[i] = &xs[i];
    }
    assert_int_equal(b->ops->submit(b->ep, list, N, &took), KVP_OK);
    assert_int_equal(took, N);
    assert_int_equal(b->ops->drain(b->ep, kvp_now_ns() + BENCH_WAIT_NS), KVP_OK);
    assert_ptr_equal(next, xs + N);
    free(local);
}

/* Reads and writes in turn, more in both directions than all socket buffers hold: neither side may wait. */
TEST_WITH(test_both_directions_at_once, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    enum { N = 64, EACH = 1 << 20 };
    kvp_xfer_t xs[N] = {0};
    uint8_t *out = bench_new(EACH);
    uint8_t *in = bench_new(EACH);
    kvp_iov_t iov_out = {.addr = out, .len = EACH};
    kvp_iov_t iov_in = {.addr = in, .len = EACH};

    bench_fill(out, EACH, 8);
    bench_fill(b->mem + BENCH_DATA, EACH, 9);
    for (size_t i = 0; i < N; i++) {
        bool is_read = i % 2 == 0;

        xs[i] = bench_xfer(is_read ? KVP_XFER_READ : KVP_XFER_WRITE, KVP_XFER_SUM, is_read ? b->rd : b->wr,
                           BENCH_DATA + (is_read ? 0 : (i % 16) * EACH), is_read ? &iov_in : &iov_out, 1);
        if (!is_read) xs[i].roffset += EACH;
    }
    assert_true(bench_run(b->ep, xs, N));
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(xs[i].status, KVP_OK);
        assert_true(xs[i].sum == (i % 2 == 0 ? kvp_sum(b->mem + BENCH_DATA, EACH) : kvp_sum(out, EACH)));
    }
    assert_true(bench_holds(in, EACH, 9));
    assert_true(bench_holds(b->mem + BENCH_DATA + 2 * EACH, EACH, 8));
    free(out);
    free(in);
}

/* A WRITE that is AFTER_PRIOR sends what the READ before it has brought. */
TEST_WITH(test_write_after_read_forwards_its_bytes, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    enum { EACH = 3 << 20 };
    uint8_t *local = bench_new(EACH);
    kvp_iov_t iov = {.addr = local, .len = EACH};
    kvp_xfer_t xs[2] = {
        bench_xfer(KVP_XFER_READ, 0, b->rd, BENCH_DATA, &iov, 1),
        bench_xfer(KVP_XFER_WRITE, KVP_XFER_AFTER_PRIOR, b->wr, BENCH_DATA + EACH, &iov, 1),
    };
    bench_fill(b->mem + BENCH_DATA, EACH, 77);
    memset(b->mem + BENCH_DATA + EACH, 0, EACH);
    assert_true(bench_run(b->ep, xs, 2));
    assert_int_equal(xs[0].status, KVP_OK);
    assert_int_equal(xs[1].status, KVP_OK);
    assert_true(bench_holds(b->mem + BENCH_DATA + EACH, EACH, 77));
    free(local);
}

/* Descriptors */

TEST_WITH(test_publish_follows_the_rule, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    uint64_t at = 4096;
    uint64_t g7 = kvp_gen_make(1, 7);
    uint64_t g8 = kvp_gen_make(1, 8);

    server_store(b, at, 0);
    if (b->has_guards) assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g7, KVP_DESC_SEALED)), KVP_STALE);
    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g7, KVP_DESC_WRITING)), KVP_OK);
    assert_true(server_word(b, at) == kvp_word_make(g7, KVP_DESC_WRITING));
    if (!b->has_guards) return; /* nobody looks there: quarantine is what keeps late words away */
    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g7, KVP_DESC_WRITING)), KVP_STALE);
    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g8, KVP_DESC_SEALED)), KVP_STALE);
    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g7, KVP_DESC_SEALED)), KVP_OK);
    assert_true(server_word(b, at) == kvp_word_make(g7, KVP_DESC_SEALED));
    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g7, KVP_DESC_DEAD)), KVP_STALE);
    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g8, KVP_DESC_FREE)), KVP_STALE);

    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g8, KVP_DESC_WRITING)), KVP_OK);
    server_store(b, at, kvp_word_make(g8, KVP_DESC_DEAD)); /* aborted: the late seal is lost */
    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g8, KVP_DESC_SEALED)), KVP_STALE);
    assert_int_equal(bench_publish(b->ep, b->wr, at, kvp_word_make(g7, KVP_DESC_WRITING)), KVP_STALE);
    assert_true(server_word(b, at) == kvp_word_make(g8, KVP_DESC_DEAD));
    assert_int_equal(bench_publish(b->ep, b->wr, at + 4, kvp_word_make(g8, KVP_DESC_WRITING)), KVP_INVALID);
}

TEST_WITH(test_guarded_write_lands_only_under_its_guard, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    size_t n = 3 << 20;
    uint64_t guard_at = 4096;
    uint64_t writing = kvp_word_make(kvp_gen_make(2, 5), KVP_DESC_WRITING);
    uint8_t *local = bench_new(n);
    kvp_iov_t iov[2] = {{.addr = local, .len = 100}, {.addr = local, .len = n}};
    kvp_xfer_t xs[2];

    for (size_t i = 0; i < 2; i++)
        xs[i] = (kvp_xfer_t){.kind = KVP_XFER_WRITE,
                             .flags = KVP_XFER_GUARDED,
                             .rseg = b->wr,
                             .roffset = BENCH_DATA + i * 1000,
                             .iov = &iov[i],
                             .iov_n = 1,
                             .len = iov[i].len,
                             .guard_rseg = b->wr,
                             .guard_off = guard_at,
                             .guard_word = writing};
    server_store(b, guard_at, writing);
    bench_fill(local, n, 1);
    assert_true(bench_run(b->ep, xs, 2));
    assert_int_equal(xs[0].status, KVP_OK);
    assert_int_equal(xs[1].status, KVP_OK);
    assert_true(bench_holds(b->mem + BENCH_DATA + 1000, n, 1));

    if ((b->ops->caps & KVP_TP_GUARDS) != 0) {
        server_store(b, guard_at, kvp_word_make(kvp_gen_make(2, 5), KVP_DESC_DEAD));
        bench_fill(local, n, 2);
        assert_true(bench_run(b->ep, xs, 2));
        assert_int_equal(xs[0].status, KVP_STALE);
        assert_int_equal(xs[1].status, KVP_STALE);
        assert_true(bench_holds(b->mem + BENCH_DATA + 1000, n, 1));
        assert_true(bench_holds(b->mem + BENCH_DATA, 100, 1));
    }
    xs[0].guard_off = 4097;
    xs[1].guard_off = BENCH_BYTES;
    assert_true(bench_run(b->ep, xs, 2));
    assert_int_equal(xs[0].status, KVP_INVALID);
    assert_int_equal(xs[1].status, KVP_INVALID);
    free(local);
}

/* The owner of the memory retires one extent and writes it again, over and over, while we read it. */
typedef struct {
    bench_t *bench;
    size_t n;
    _Atomic uint64_t told; /* generation that was sealed last */
    _Atomic uint64_t reads;
    _Atomic bool must_stop;
} reuse_t;

static void *
reuse_main(void *p)
{
    reuse_t *r = p;

    for (uint64_t gen = 1; !atomic_load(&r->must_stop); gen++) {
        uint64_t reads = atomic_load(&r->reads);
        uint64_t since_ns;

        server_store(r->bench, 4096, kvp_word_make(gen - 1, KVP_DESC_DEAD));
        memset(r->bench->mem + BENCH_DATA, (int)(gen & 0xFF), r->n);
        server_store(r->bench, 4096, kvp_word_make(gen, KVP_DESC_SEALED));
        atomic_store(&r->told, gen);
        /* Mostly it is gone in the middle of a read; every fourth lasts for a whole one. */
        since_ns = kvp_now_ns();
        while (gen % 4 == 0 && atomic_load(&r->reads) < reads + 3 && !atomic_load(&r->must_stop) &&
               kvp_now_ns() - since_ns < 50 * KVP_NS_PER_MS)
            sched_yield();
    }
    return NULL;
}

TEST_WITH(test_descriptor_vouches_for_the_payload_before_it, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    reuse_t reuse = {.bench = b, .n = suite_extent_bytes};
    uint8_t *local = bench_new(reuse.n);
    kvp_desc_t line = {0};
    kvp_iov_t payload = {.addr = local, .len = reuse.n};
    kvp_iov_t desc = {.addr = &line, .len = KVP_DESC_LINE_BYTES};
    kvp_xfer_t xs[2] = {
        bench_xfer(KVP_XFER_READ, 0, b->rd, BENCH_DATA, &payload, 1),
        bench_xfer(KVP_XFER_READ, KVP_XFER_AFTER_PRIOR, b->rd, 4096, &desc, 1),
    };
    uint64_t until_ns = kvp_now_ns() + BENCH_WAIT_NS;
    size_t accepted = 0;
    size_t wrong = 0;
    pthread_t thread;

    if (IS_TSAN) {
        print_message("passed over: payload is read while it is written, by design\n");
        free(local);
        return;
    }
    assert_int_equal(pthread_create(&thread, NULL, reuse_main, &reuse), 0);
    for (size_t round = 0; (round < 400 || accepted < 20) && kvp_now_ns() < until_ns; round++) {
        uint64_t told = atomic_load(&reuse.told);

        if (!bench_run(b->ep, xs, 2) || xs[0].status != KVP_OK || xs[1].status != KVP_OK) break;
        atomic_fetch_add(&reuse.reads, 1);
        if (line.word != kvp_word_make(told, KVP_DESC_SEALED)) continue;
        accepted++;
        for (size_t i = 0; i < reuse.n; i++)
            wrong += local[i] != (uint8_t)told;
    }
    atomic_store(&reuse.must_stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
    assert_true(accepted >= 20);
    free(local);
}

/* Refusals */

TEST_WITH(test_ill_formed_transfers_are_refused, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    uint8_t local[64] = {0};
    kvp_iov_t iov[2] = {{.addr = local, .len = 32}, {.addr = local, .len = SIZE_MAX - 8}};
    struct {
        kvp_xfer_kind_t kind;
        uint64_t roffset;
        uint64_t len;
        uint32_t iov_n;
    } cases[] = {
        {KVP_XFER_READ, 0, 0, 0}, /* empty */
        {KVP_XFER_READ, 0, 31, 1}, /* lengths that do not add up */
        {KVP_XFER_READ, 0, 33, 1},
        {KVP_XFER_READ, 0, 23, 2}, /* nor by overflow */
        {KVP_XFER_READ, BENCH_BYTES - 31, 32, 1}, /* out of range */
        {KVP_XFER_WRITE, BENCH_BYTES, 32, 1},
        {KVP_XFER_WRITE, UINT64_MAX - 15, 32, 1},
        {KVP_XFER_WRITE, 0, UINT64_MAX - 8 + 33, 2},
        {KVP_XFER_PUBLISH, BENCH_BYTES - 4, 8, 0},
        {KVP_XFER_PUBLISH, 0, 4, 0},
        {(kvp_xfer_kind_t)9, 0, 32, 1},
    };
    kvp_xfer_t xs[KVP_ARRAY_LEN(cases) + 1];

    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++)
        xs[i] = (kvp_xfer_t){.kind = cases[i].kind,
                             .rseg = b->wr,
                             .roffset = cases[i].roffset,
                             .iov = iov,
                             .iov_n = cases[i].iov_n,
                             .len = cases[i].len};
    /* A good one among them is not touched by it. */
    xs[KVP_ARRAY_LEN(cases)] = bench_xfer(KVP_XFER_READ, 0, b->rd, BENCH_BYTES - 32, iov, 1);
    bench_fill(b->mem + BENCH_BYTES - 32, 32, 3);
    assert_true(bench_run(b->ep, xs, KVP_ARRAY_LEN(xs)));
    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++)
        assert_int_equal(xs[i].status, KVP_INVALID);
    assert_int_equal(xs[KVP_ARRAY_LEN(cases)].status, KVP_OK);
    assert_true(bench_holds(local, 32, 3));
}

/* A peer that lies about lengths and keys gets nothing by it. */
TEST_WITH(test_tokens_open_no_more_than_was_exported, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    uint8_t local[64] = {0};
    kvp_token_t token;
    kvp_rseg_t *rseg;
    kvp_err_t err;

    assert_int_equal(b->ops->mr_export(b->mr, KVP_ACCESS_READ, BENCH_CLIENT, &token), KVP_OK);
    assert_true(token.len <= KVP_TOKEN_MAX);
    bench_fill(b->mem + BENCH_DATA, 64, 5);
    err = kvp_rseg_create(b->client, &token, BENCH_BYTES, KVP_ACCESS_WRITE, &rseg);
    if (token.fd >= 0) close(token.fd);
    if (err == KVP_OK) {
        err = bench_move(b->ep, KVP_XFER_WRITE, 0, rseg, BENCH_DATA, local, 64, NULL);
        assert_int_equal(bench_publish(b->ep, rseg, 4096, kvp_word_make(KVP_TERM_MAX, KVP_DESC_WRITING)), KVP_INVALID);
        kvp_rseg_destroy(rseg);
    }
    assert_int_equal(err, KVP_INVALID);
    assert_true(bench_holds(b->mem + BENCH_DATA, 64, 5));
    assert_int_equal(bench_move(b->ep, KVP_XFER_WRITE, 0, b->rd, BENCH_DATA, local, 64, NULL), KVP_INVALID);
    assert_true(bench_holds(b->mem + BENCH_DATA, 64, 5));

    err = kvp_rseg_create(b->client, &token, BENCH_BYTES + 4096, KVP_ACCESS_READ, &rseg);
    if (err == KVP_OK) {
        err = bench_move(b->ep, KVP_XFER_READ, 0, rseg, BENCH_BYTES - 1, local, 2, NULL);
        kvp_rseg_destroy(rseg);
    }
    assert_int_equal(err, KVP_INVALID);

    if (!b->has_keys) return;
    token.bytes[3] ^= 0x40;
    assert_int_equal(kvp_rseg_create(b->client, &token, BENCH_BYTES, KVP_ACCESS_READ, &rseg), KVP_OK);
    assert_int_equal(bench_move(b->ep, KVP_XFER_READ, 0, rseg, 0, local, 64, NULL), KVP_NO_SEGMENT);
    kvp_rseg_destroy(rseg);
    token.len--;
    assert_int_equal(kvp_rseg_create(b->client, &token, BENCH_BYTES, KVP_ACCESS_READ, &rseg), KVP_INVALID);
}

TEST_WITH(test_deregistered_memory_is_no_segment, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    uint8_t local[100] = {0};
    size_t n = 65536;
    uint8_t *mem = bench_new(n);
    kvp_token_t token;
    kvp_rseg_t *rseg;
    kvp_mr_t *mr;

    if (b->has_keys) {
        assert_int_equal(kvp_mr_create(b->server, &(kvp_mem_t){.addr = mem, .len = n, .fd = -1}, &mr), KVP_OK);
        assert_int_equal(b->ops->mr_grant(mr, BENCH_CLIENT), KVP_OK);
        assert_int_equal(b->ops->mr_export(mr, KVP_ACCESS_WRITE, BENCH_CLIENT, &token), KVP_OK);
        assert_int_equal(kvp_rseg_create(b->client, &token, n, KVP_ACCESS_WRITE, &rseg), KVP_OK);
        assert_int_equal(bench_move(b->ep, KVP_XFER_WRITE, 0, rseg, 0, local, 100, NULL), KVP_OK);
        kvp_mr_destroy(mr);
        free(mem);
        mem = NULL;
        assert_int_equal(bench_move(b->ep, KVP_XFER_READ, 0, rseg, 0, local, 100, NULL), KVP_NO_SEGMENT);
        if (b->has_guards) { /* the endpoint is none the worse */
            assert_int_equal(bench_move(b->ep, KVP_XFER_WRITE, 0, rseg, 0, local, 100, NULL), KVP_NO_SEGMENT);
            assert_int_equal(bench_move(b->ep, KVP_XFER_READ, 0, b->rd, 0, local, 100, NULL), KVP_OK);
        }
        assert_true(b->ops->ep_is_broken(b->ep) == !b->has_guards);
        kvp_rseg_destroy(rseg);
    }
    free(mem);
}

/* Flow */

typedef struct {
    size_t fired;
    size_t twice;
    size_t by_status[128];
} tally_t;

static void
tally_done(kvp_xfer_t *x)
{
    tally_t *t = x->arg;

    t->fired++;
    if (x->link.next == &x->link) t->twice++; /* ours between completions: marks one that has fired */
    kvp_list_init(&x->link);
    t->by_status[-x->status]++;
}

/* Transfers that share one piece of local memory, and what became of them. */
typedef struct {
    uint8_t *local;
    kvp_iov_t iov;
    tally_t tally;
    kvp_xfer_t *xs, **list; /* list points to each */
} many_t;

static many_t *
many_new(const bench_t *b, size_t n, kvp_xfer_kind_t kind, size_t len)
{
    many_t *m = bench_new(sizeof *m);

    m->local = bench_new(len);
    m->iov = (kvp_iov_t){.addr = m->local, .len = len};
    m->xs = bench_new(n * sizeof *m->xs);
    m->list = bench_new(n * sizeof(kvp_xfer_t *));
    for (size_t i = 0; i < n; i++) {
        m->xs[i] = bench_xfer(kind, 0, b->wr, BENCH_DATA, &m->iov, 1);
        m->xs[i].done = tally_done;
        m->xs[i].arg = &m->tally;
        m->list[i] = &m->xs[i];
    }
    return m;
}

static void
many_free(many_t *m)
{
    free(m->local);
    free(m->xs);
    free(m->list);
    free(m);
}

TEST_WITH(test_back_pressure_leaves_the_rest_to_the_caller, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    enum { N = 20000 };
    many_t *m = many_new(b, N, KVP_XFER_READ, 256);
    uint64_t until_ns = kvp_now_ns() + BENCH_WAIT_NS;
    size_t at = 0;

    assert_int_equal(b->ops->submit(b->ep, m->list, N, &at), KVP_OK);
    if ((b->ops->caps & KVP_TP_SYNC) == 0) assert_true(at > 0 && at < N);
    assert_true(m->tally.fired <= at);
    while (m->tally.fired < N && kvp_now_ns() < until_ns) {
        size_t took = 0;

        if (at < N) assert_int_equal(b->ops->submit(b->ep, m->list + at, N - at, &took), KVP_OK);
        at += took;
        if (b->ops->ep_poll(b->ep) == 0 && took == 0) bench_sleep(b->ep, 100);
    }
    assert_int_equal(m->tally.fired, N);
    assert_int_equal(m->tally.twice, 0);
    assert_int_equal(m->tally.by_status[0], N);
    many_free(m);
}

TEST_WITH(test_close_under_load_completes_each_once, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    enum { N = 500 };
    size_t n = 256 << 10;

    for (int round = 0; round < 8; round++) {
        kvp_xfer_kind_t kind = round % 2 == 0 ? KVP_XFER_READ : KVP_XFER_WRITE;
        many_t *m = many_new(b, N, kind, n);
        kvp_ep_t *ep;
        size_t took;
        /* What the round before has sent may still land: each round has its own place. */
        for (size_t i = 0; i < N; i++)
            m->xs[i].roffset += (size_t)round * n;
        assert_int_equal(bench_connect(b->client, &b->addr, &ep), KVP_OK);
        assert_int_equal(b->ops->submit(ep, m->list, N, &took), KVP_OK);
        for (int i = 0; i < round; i++)
            b->ops->ep_poll(ep);
        kvp_ep_destroy(ep);
        free(m->local); /* nothing touches it any more: the sanitizer watches */
        m->local = NULL;
        assert_int_equal(m->tally.fired, took);
        assert_int_equal(m->tally.twice, 0);
        assert_int_equal(m->tally.by_status[0] + m->tally.by_status[-KVP_CANCELLED], took);
        many_free(m);
    }
}

/* Closing before the connection is made still gives the verdict, once. */
TEST_WITH(test_close_while_connecting_fires_done, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    bench_verdict_t v = {0};
    kvp_ep_t *ep;

    assert_int_equal(kvp_ep_create(b->client, &b->addr, bench_on_connect, &v, &ep), KVP_OK);
    kvp_ep_destroy(ep);
    assert_true(v.has_fired);
    assert_true(v.err == KVP_CANCELLED || (v.err == KVP_OK && !b->has_lanes));
}

TEST_WITH(test_deadline_ends_a_transfer_or_a_drain, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    size_t n = 4 << 20;
    many_t *m = many_new(b, 3, KVP_XFER_READ, n);
    kvp_ep_t *ep;
    size_t took;

    assert_int_equal(bench_connect(b->client, &b->addr, &ep), KVP_OK);
    if ((b->ops->caps & KVP_TP_SYNC) != 0) {
        for (size_t i = 0; i < 3; i++)
            m->xs[i].deadline_ns = kvp_now_ns() - 1;
        assert_int_equal(b->ops->submit(ep, m->list, 3, &took), KVP_OK);
        assert_int_equal(m->tally.by_status[-KVP_DEADLINE], 3);
        assert_int_equal(b->ops->drain(ep, 0), KVP_OK);
        kvp_ep_destroy(ep);
    } else {
        uint64_t deadline_ns = kvp_now_ns() + 2 * KVP_NS_PER_MS; /* too short for any of them */

        bench_lanes_stop(b); /* a peer that does not answer, or is slower than that where its adapter does */
        if (suite_stall != NULL) suite_stall(true);
        assert_int_equal(b->ops->submit(ep, m->list, 3, &took), KVP_OK);
        assert_int_equal(b->ops->drain(ep, deadline_ns), KVP_DEADLINE);
        assert_true(kvp_now_ns() >= deadline_ns);
        assert_true(kvp_now_ns() < deadline_ns + BENCH_WAIT_NS);
        kvp_ep_destroy(ep);
        assert_int_equal(m->tally.by_status[-KVP_CANCELLED], 3);
        if (suite_stall != NULL) suite_stall(false);
        bench_lanes_start(b);
        m->tally = (tally_t){0};
        for (size_t i = 0; i < 3; i++)
            m->xs[i].link = (kvp_list_t){0};
        assert_int_equal(b->ops->submit(b->ep, m->list, 3, &took), KVP_OK);
        assert_int_equal(b->ops->drain(b->ep, kvp_now_ns() + BENCH_WAIT_NS), KVP_OK);
        assert_int_equal(m->tally.by_status[0], 3);
    }
    many_free(m);
}

/* Fences */

static void
on_quiesce(void *arg)
{
    atomic_fetch_add((_Atomic size_t *)arg, 1);
}

static void
on_fence(void *arg, uint64_t incarnation)
{
    atomic_store((_Atomic uint64_t *)arg, incarnation);
}

static bool
server_waits(const _Atomic size_t *count, size_t n)
{
    uint64_t until_ns = kvp_now_ns() + BENCH_WAIT_NS;

    while (atomic_load(count) < n && kvp_now_ns() < until_ns)
        sched_yield();
    return atomic_load(count) == n;
}

TEST_WITH(test_quiesce_fires_idle_and_under_load, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    enum { N = 40 };
    size_t n = 1 << 20;
    many_t *m = many_new(b, N, KVP_XFER_READ, n);
    _Atomic size_t quiet = 0;
    size_t took;

    b->ops->quiesce(b->server, on_quiesce, &quiet);
    assert_true(server_waits(&quiet, 1));
    assert_int_equal(b->ops->submit(b->ep, m->list, N, &took), KVP_OK);
    for (size_t i = 0; i < 10; i++) {
        b->ops->quiesce(b->server, on_quiesce, &quiet);
        b->ops->ep_poll(b->ep);
    }
    assert_int_equal(b->ops->drain(b->ep, kvp_now_ns() + BENCH_WAIT_NS), KVP_OK);
    assert_true(server_waits(&quiet, 11));
    assert_int_equal(m->tally.by_status[0], took);
    many_free(m);
}

/* A peer that stops reading in the middle of an object holds quiesce for a second, then loses its connection. */
TEST_WITH(test_quiesce_cuts_a_stuck_send, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    size_t n = 19 << 20;
    many_t *m = many_new(b, 4, KVP_XFER_READ, n);
    _Atomic size_t quiet = 0;
    uint64_t began_ns;
    size_t took;

    if (b->has_lanes && b->has_guards) {
        assert_int_equal(b->ops->submit(b->ep, m->list, 4, &took), KVP_OK);
        /* The first bytes are here, so the send has begun; the rest does not fit the sockets. */
        struct pollfd pfd = {.fd = b->ops->ep_event_fd(b->ep), .events = POLLIN};

        assert_int_equal(poll(&pfd, 1, 20000), 1);
        began_ns = kvp_now_ns();
        b->ops->quiesce(b->server, on_quiesce, &quiet);
        assert_true(server_waits(&quiet, 1));
        assert_true(kvp_now_ns() - began_ns < BENCH_WAIT_NS);
        assert_int_equal(b->ops->drain(b->ep, kvp_now_ns() + BENCH_WAIT_NS), KVP_OK);
        assert_int_equal(m->tally.fired, 4);
        assert_true(m->tally.by_status[-KVP_DISCONNECTED] > 0);
        assert_true(b->ops->ep_is_broken(b->ep));
    }
    many_free(m);
}

TEST_WITH(test_fenced_client_lands_nothing_more, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    enum { N = 400 };
    size_t n = 64 << 10;
    many_t *m = many_new(b, N, KVP_XFER_WRITE, n);
    _Atomic uint64_t fenced = 0;
    kvp_tp_t *other;
    kvp_ep_t *ep;
    size_t took;

    if (!b->has_keys) {
        b->ops->peer_fence(b->server, kvp_idrange_one(BENCH_CLIENT), 0, on_fence, &fenced);
        assert_true(atomic_load(&fenced) == 0); /* shared memory: only the process's death proves it */
        goto out;
    }
    other = bench_client(b, BENCH_CLIENT + 1);
    memset(m->local, 1, n);
    assert_int_equal(b->ops->submit(b->ep, m->list, N / 2, &took), KVP_OK);
    b->ops->peer_fence(b->server, kvp_idrange_one(BENCH_CLIENT), 0, on_fence, &fenced);
    while (atomic_load(&fenced) != BENCH_CLIENT)
        sched_yield();

    /* From here the memory is the owner's. */
    memset(b->mem + BENCH_DATA, 2, n);
    if (b->ops->submit(b->ep, m->list + N / 2, N / 2, &took) == KVP_OK)
        assert_int_equal(b->ops->drain(b->ep, kvp_now_ns() + BENCH_WAIT_NS), KVP_OK);
    assert_true(b->ops->ep_is_broken(b->ep));
    assert_true(b->ops->submit(b->ep, m->list, 1, &took) != KVP_OK);
    assert_int_equal(took, 0);
    assert_int_equal(m->tally.twice, 0);
    assert_int_equal(bench_connect(b->client, &b->addr, &ep), KVP_FENCED);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(b->mem[BENCH_DATA + i], 2);

    /* Others are not touched, until live_min passes them. */
    assert_int_equal(bench_connect(other, &b->addr, &ep), KVP_OK);
    assert_int_equal(bench_move(ep, KVP_XFER_READ, 0, b->rd, BENCH_DATA, m->local, n, NULL), KVP_OK);
    b->ops->peer_fence(b->server, kvp_idrange_one(BENCH_CLIENT + 5), BENCH_CLIENT + 3, on_fence, &fenced);
    while (atomic_load(&fenced) != BENCH_CLIENT + 5)
        sched_yield();
    kvp_ep_destroy(ep);
    assert_int_equal(bench_connect(other, &b->addr, &ep), KVP_FENCED);
    kvp_tp_destroy(other);
    other = bench_client(b, BENCH_CLIENT + 3);
    assert_int_equal(bench_connect(other, &b->addr, &ep), KVP_OK);
    kvp_ep_destroy(ep);
    kvp_tp_destroy(other);
out:
    many_free(m);
}

/* Threads and processes */

typedef struct {
    bench_t *bench;
    size_t i;
    size_t failures;
} worker_t;

static void *
worker_main(void *p)
{
    worker_t *w = p;
    bench_t *b = w->bench;
    size_t n = 300000 + w->i * 1001;
    uint64_t at = BENCH_DATA + w->i * (1 << 20);
    uint8_t *local = malloc(n);
    kvp_ep_t *ep = NULL;

    if (local == NULL || bench_connect(b->client, &b->addr, &ep) != KVP_OK) {
        w->failures++;
        free(local);
        return NULL;
    }
    for (uint64_t round = 0; round < 20; round++) {
        uint64_t sums[2] = {0};

        bench_fill(local, n, round * 8 + w->i);
        if (bench_move(ep, KVP_XFER_WRITE, 0, b->wr, at, local, n, &sums[0]) != KVP_OK) w->failures++;
        memset(local, 0, n);
        if (bench_move(ep, KVP_XFER_READ, 0, b->rd, at, local, n, &sums[1]) != KVP_OK) w->failures++;
        if (sums[0] != sums[1] || !bench_holds(local, n, round * 8 + w->i)) w->failures++;
    }
    kvp_ep_destroy(ep);
    free(local);
    return NULL;
}

TEST_WITH(test_eight_threads_each_with_its_endpoint, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    worker_t workers[8];
    pthread_t threads[8];

    for (size_t i = 0; i < 8; i++) {
        workers[i] = (worker_t){.bench = b, .i = i};
        assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
    }
    for (size_t i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].failures, 0);
    }
}

TEST_WITH(test_child_of_a_fork_disturbs_nothing, bench_setup, bench_teardown)
{
    bench_t *b = *state;
    uint8_t local[1000];
    int gate[2];
    int status;
    pid_t child;

    assert_int_equal(pipe(gate), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        /* Holds what was inherited until the parent has finished with it. */
        char c;

        close(gate[1]);
        _exit(read(gate[0], &c, 1) == 0 ? 0 : 1);
    }
    close(gate[0]);
    bench_fill(b->mem + BENCH_DATA, sizeof local, 6);
    assert_int_equal(bench_move(b->ep, KVP_XFER_READ, 0, b->rd, BENCH_DATA, local, sizeof local, NULL), KVP_OK);
    assert_true(bench_holds(local, sizeof local, 6));
    kvp_ep_destroy(b->ep);
    b->ep = NULL;
    assert_int_equal(bench_connect(b->client, &b->addr, &b->ep), KVP_OK);
    close(gate[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int
suite_run(const char *transport)
{
    for (size_t i = 0; i < test_cases_n; i++)
        test_cases[i].initial_state = (void *)transport;
    return _cmocka_run_group_tests(transport, test_cases, test_cases_n, NULL, NULL);
}
