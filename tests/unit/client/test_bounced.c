/* SPDX-License-Identifier: Apache-2.0
 * Moves from and to device memory, by a CUDA driver without a device and shared memory of a node of the test: their reports,
 * and what becomes of them where no bounce buffer can be had.
 */
#include "client/data/bounced.h"

#include "tests/device/fake_cuda.h"
#include "tests/unit/client/fakepool.h"

#include <stdlib.h>

#define BYTES (5u << 20) /* more than two windows */
#define SLOT 3u

typedef struct {
    fake_pool_t pool;
    kvp_session_t *session;
    kvp_link_t *link;
    kvp_scratch_pool_t scratches;
    kvp_scratch_t *scratch;
    kvp_regs_t regs;
    kvp_bounces_t bounces;
    uint64_t deadline_ns;
    uint8_t *device;
    uint8_t *value, *back; /* of BYTES */
} fixture_t;

static int
setup(void **state)
{
    fixture_t *f = calloc(1, sizeof *f);
    kvp_devmem_t mem;

    assert_non_null(f);
    fake_cuda_reset();
    fake_pool_start(&f->pool, NULL);
    kvp_scratch_pool_init(&f->scratches);
    f->scratch = kvp_scratch_take(&f->scratches);
    kvp_regs_init(&f->regs, NULL, 0);
    kvp_bounces_init(&f->bounces, KVP_BOUNCES_MAX, 2);
    f->deadline_ns = in(LONG_NS);
    f->session = fake_pool_session(&f->pool, NULL, 0);
    assert_int_equal(kvp_session_hold(f->session, f->deadline_ns, &f->link), KVP_OK);
    f->value = malloc(BYTES);
    f->back = malloc(BYTES);
    f->device = fake_cuda_alloc(BYTES, FAKE_CUDA_PLAIN);
    for (size_t i = 0; i < BYTES; i++)
        f->value[i] = (uint8_t)(i * 7 + i / 251);
    fake_cuda_write(f->device, f->value, BYTES);
    assert_int_equal(kvp_device_cuda.look(f->device, BYTES, &mem), KVP_OK);
    assert_int_equal(kvp_regs_add(&f->regs, f->device, BYTES, &mem), KVP_OK);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    fixture_t *f = *state;
    fake_cuda_left_t left;

    kvp_bounces_fini(&f->bounces);
    kvp_regs_fini(&f->regs);
    fake_cuda_free(f->device);
    kvp_session_rele(f->session, f->link);
    kvp_session_stop(f->session);
    kvp_session_destroy(f->session);
    kvp_scratch_rele(&f->scratches, f->scratch);
    kvp_scratch_pool_fini(&f->scratches);
    fake_pool_end(&f->pool);
    free(f->value);
    free(f->back);
    free(f);
    left = fake_cuda_left();
    return left.allocations == 0 && left.streams == 0 && left.pinned_bytes == 0 ? 0 : -1;
}

static kvp_move_t
move_of(const fixture_t *f, kvp_move_kind_t kind, uint64_t len)
{
    kvp_move_t mv = {.kind = kind, .len = len};

    mv.loc.segment_id = FAKE_MASTER_SEGMENT;
    mv.loc.slot = SLOT;
    mv.loc.key_off = kvp_key_cell_units(&f->pool.node.geo, SLOT);
    mv.loc.generation = kvp_gen_make(1, 100);
    mv.loc.offset = 65536;
    return mv;
}

static void
run(fixture_t *f, kvp_move_t *mv)
{
    kvp_iov_t iov = {f->device, BYTES};
    kvp_span_t span = {.iov = &iov, .iov_n = 1, .has_device = true};
    kvp_transfer_t transfer = {
        .session = f->session,
        .peers = f->link->peers,
        .scratch = f->scratch,
        .spans = &span,
        .deadline_ns = f->deadline_ns,
    };

    kvp_bounced_run(&transfer, &f->bounces, &f->regs, mv, 1);
    kvp_scratch_reset(f->scratch);
}

static uint64_t *
word_of(fixture_t *f)
{
    return (uint64_t *)(f->pool.node.meta + kvp_desc_off(SLOT));
}

/* ---- reports */
static void
test_an_object_larger_than_a_window_is_filled_whole_and_summed(void **state)
{
    fixture_t *f = *state;
    kvp_move_t mv = move_of(f, KVP_MOVE_FILL, BYTES);

    run(f, &mv);
    assert_int_equal(mv.err, KVP_OK);
    assert_true(mv.is_drained);
    assert_true(mv.has_sum);
    assert_true(mv.sum == kvp_sum(f->value, BYTES));
    assert_true(*word_of(f) == kvp_word_make(mv.loc.generation, KVP_DESC_WRITING));
    assert_memory_equal(f->pool.node.payload + mv.loc.offset, f->value, BYTES);
    assert_int_equal(f->pool.counters.device_staged, 1);
    assert_int_equal(f->pool.counters.device_staged_bytes, BYTES);
    assert_int_equal(f->pool.counters.paths[0].writes, 1);
    assert_int_equal(f->pool.counters.paths[0].write_bytes, BYTES);
}

static void
test_an_object_larger_than_a_window_is_read_whole_and_summed(void **state)
{
    fixture_t *f = *state;
    kvp_move_t mv = move_of(f, KVP_MOVE_READ, BYTES);

    for (size_t i = 0; i < BYTES; i++)
        f->value[i] = (uint8_t)~f->value[i];
    memcpy(f->pool.node.payload + mv.loc.offset, f->value, BYTES);
    *word_of(f) = kvp_word_make(mv.loc.generation, KVP_DESC_SEALED);
    run(f, &mv);
    assert_int_equal(mv.err, KVP_OK);
    assert_true(mv.has_sum);
    assert_true(mv.sum == kvp_sum(f->value, BYTES));
    assert_true(mv.desc.word == *word_of(f)); /* looked at behind the last part */
    fake_cuda_read(f->device, f->back, BYTES);
    assert_memory_equal(f->back, f->value, BYTES);
    assert_int_equal(f->pool.counters.paths[0].reads, 1);
    assert_int_equal(f->pool.counters.paths[0].read_bytes, BYTES);
}

/* What of the same batch is the host's goes along as it is, also where one move does all of it. */
static void
test_a_batch_of_device_and_host_memory(void **state)
{
    fixture_t *f = *state;
    kvp_iov_t iov[2] = {{f->device, BYTES}, {f->value, 1000}};
    kvp_span_t spans[2] = {{.iov = &iov[0], .iov_n = 1, .has_device = true}, {.iov = &iov[1], .iov_n = 1}};
    kvp_move_t moves[2] = {move_of(f, KVP_MOVE_FILL, BYTES), move_of(f, KVP_MOVE_PUT, 1000)};
    kvp_transfer_t transfer = {
        .session = f->session,
        .peers = f->link->peers,
        .scratch = f->scratch,
        .spans = spans,
        .deadline_ns = f->deadline_ns,
    };
    kvp_desc_t desc;

    moves[1].item = 1;
    moves[1].loc.slot = SLOT + 1;
    moves[1].loc.key_off = kvp_key_cell_units(&f->pool.node.geo, SLOT + 1);
    moves[1].loc.offset = 0;
    moves[1].key = "key";
    moves[1].key_len = 3;
    kvp_bounced_run(&transfer, &f->bounces, &f->regs, moves, 2);
    kvp_scratch_reset(f->scratch);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(moves[i].err, KVP_OK);
        assert_true(moves[i].has_sum && moves[i].is_drained);
        assert_true(moves[i].sum == kvp_sum(f->value, moves[i].len));
        assert_memory_equal(f->pool.node.payload + moves[i].loc.offset, f->value, moves[i].len);
    }
    memcpy(&desc, f->pool.node.meta + kvp_desc_off(SLOT + 1), sizeof desc);
    assert_true(desc.word == kvp_word_make(moves[1].loc.generation, KVP_DESC_SEALED));
    assert_true(desc.sum == moves[1].sum);
}

/* An extent that is given to somebody else fails at the first part, and nothing more of it is written. */
static void
test_a_lost_extent_ends_it(void **state)
{
    fixture_t *f = *state;
    kvp_move_t mv = move_of(f, KVP_MOVE_FILL, BYTES);

    *word_of(f) = kvp_word_make(kvp_gen_make(1, 101), KVP_DESC_WRITING);
    memset(f->pool.node.payload, 0, FAKE_NODE_BYTES);
    run(f, &mv);
    assert_int_equal(mv.err, KVP_STALE);
    assert_true(mv.is_drained);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(f->pool.node.payload[mv.loc.offset + i], 0);
}

/* ---- bounce buffers */
static void
test_pinning_that_fails_is_an_error_and_takes_no_stage(void **state)
{
    fixture_t *f = *state;
    kvp_move_t mv = move_of(f, KVP_MOVE_FILL, 1000);

    fake_cuda_knobs.host_alloc = 2;
    for (unsigned i = 0; i < 2 * KVP_BOUNCES_MAX; i++) {
        run(f, &mv);
        assert_int_equal(mv.err, KVP_NOMEM);
        assert_true(mv.is_drained);
    }
    fake_cuda_knobs.host_alloc = 0;
    run(f, &mv);
    assert_int_equal(mv.err, KVP_OK);
}

static void
test_who_finds_no_stage_by_the_deadline_is_told_so(void **state)
{
    fixture_t *f = *state;
    kvp_move_t mv = move_of(f, KVP_MOVE_FILL, 1000);

    f->bounces.made = KVP_BOUNCES_MAX; /* as if others had them all */
    f->deadline_ns = kvp_now_ns() + 20 * KVP_NS_PER_MS;
    run(f, &mv);
    assert_int_equal(mv.err, KVP_DEADLINE);
    assert_true(mv.is_drained);
    assert_true(kvp_now_ns() >= f->deadline_ns);
    assert_int_equal(*word_of(f), 0); /* nothing was begun */
}

static void
test_stages_are_used_again(void **state)
{
    fixture_t *f = *state;

    for (unsigned i = 0; i < 3; i++) {
        kvp_move_t mv = move_of(f, KVP_MOVE_FILL, BYTES);

        mv.loc.generation = kvp_gen_make(1, 200 + i);
        run(f, &mv);
        assert_int_equal(mv.err, KVP_OK);
    }
    assert_int_equal(f->bounces.made, 1);
    assert_int_equal(fake_cuda_left().pinned_bytes_max, 2 * KVP_BOUNCE_PART_BYTES);
    assert_int_equal(fake_cuda_left().streams, 1);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_an_object_larger_than_a_window_is_filled_whole_and_summed),
        TEST(test_an_object_larger_than_a_window_is_read_whole_and_summed),
        TEST(test_a_batch_of_device_and_host_memory),
        TEST(test_a_lost_extent_ends_it),
        TEST(test_pinning_that_fails_is_an_error_and_takes_no_stage),
        TEST(test_who_finds_no_stage_by_the_deadline_is_told_so),
        TEST(test_stages_are_used_again),
    };
    return cmocka_run_group_tests_name("staging", tests, NULL, NULL);
}
