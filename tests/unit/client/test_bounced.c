/* SPDX-License-Identifier: Apache-2.0
 * Moves from and to device memory, by a CUDA driver without a device and shared memory of a node of the test: their
 * reports, and what becomes of them where no bounce buffer can be had. */
#include "client/data/bounced.h"

#define VALUE (5u << 20) /* more than two windows */

#include "tests/device/fake_cuda.h"
#include "tests/unit/client/transfer_fixture.h"

#define SLOT 1u

static kvp_regs_t regs;
static kvp_bounces_t bounces;
static uint8_t *device;

static int
setup_device(void **state)
{
    kvp_devmem_t mem;

    fake_cuda_reset();
    kvp_regs_init(&regs, NULL, 0);
    kvp_bounces_init(&bounces, KVP_BOUNCES_MAX, 2);
    device = fake_cuda_alloc(VALUE, FAKE_CUDA_PLAIN);
    (void)setup(state);
    fake_cuda_write(device, value, VALUE);
    assert_int_equal(kvp_device_cuda.look(device, VALUE, &mem), KVP_OK);
    assert_int_equal(kvp_regs_add(&regs, device, VALUE, &mem), KVP_OK);
    return 0;
}

static int
teardown_device(void **state)
{
    fake_cuda_left_t left;

    kvp_bounces_fini(&bounces);
    kvp_regs_fini(&regs);
    fake_cuda_free(device);
    (void)teardown(state);
    left = fake_cuda_left();
    return left.allocations == 0 && left.streams == 0 && left.pinned_bytes == 0 ? 0 : -1;
}

static kvp_move_t
move_of(kvp_move_kind_t kind, uint64_t len)
{
    kvp_move_t mv = move_at(kind, SLOT);

    mv.len = len;
    return mv;
}

static void
bounce(kvp_move_t *mv)
{
    kvp_iov_t iov = {device, VALUE};
    kvp_span_t span = {.iov = &iov, .iov_n = 1, .has_device = true};
    kvp_transfer_t transfer = transfer_of(&span);

    kvp_bounced_run(&transfer, &bounces, &regs, mv, 1);
    kvp_scratch_reset(scratch);
}

/* ---- reports */
TEST_WITH(test_an_object_larger_than_a_window_is_filled_whole_and_summed, setup_device, teardown_device)
{
    kvp_move_t mv = move_of(KVP_MOVE_FILL, VALUE);

    bounce(&mv);
    assert_int_equal(mv.err, KVP_OK);
    assert_true(mv.is_drained);
    assert_true(mv.has_sum);
    assert_true(mv.sum == kvp_sum(value, VALUE));
    assert_true(*word_of(SLOT) == kvp_word_make(mv.loc.generation, KVP_DESC_WRITING));
    assert_memory_equal(pool.node.payload + mv.loc.offset, value, VALUE);
    assert_int_equal(pool.counters.device_staged, 1);
    assert_int_equal(pool.counters.device_staged_bytes, VALUE);
    assert_int_equal(pool.counters.paths[0].writes, 1);
    assert_int_equal(pool.counters.paths[0].write_bytes, VALUE);
}

TEST_WITH(test_an_object_larger_than_a_window_is_read_whole_and_summed, setup_device, teardown_device)
{
    kvp_move_t mv = move_of(KVP_MOVE_READ, VALUE);

    for (size_t i = 0; i < VALUE; i++)
        value[i] = (uint8_t)~value[i];
    memcpy(pool.node.payload + mv.loc.offset, value, VALUE);
    *word_of(SLOT) = kvp_word_make(mv.loc.generation, KVP_DESC_SEALED);
    bounce(&mv);
    assert_int_equal(mv.err, KVP_OK);
    assert_true(mv.has_sum);
    assert_true(mv.sum == kvp_sum(value, VALUE));
    assert_true(mv.desc.word == *word_of(SLOT)); /* looked at behind the last part */
    fake_cuda_read(device, back, VALUE);
    assert_memory_equal(back, value, VALUE);
    assert_int_equal(pool.counters.paths[0].reads, 1);
    assert_int_equal(pool.counters.paths[0].read_bytes, VALUE);
}

/* What of the same batch is the host's goes along as it is, also where one move does all of it. */
TEST_WITH(test_a_batch_of_device_and_host_memory, setup_device, teardown_device)
{
    kvp_iov_t iov[2] = {{device, VALUE}, {value, 1000}};
    kvp_span_t spans[2] = {{.iov = &iov[0], .iov_n = 1, .has_device = true}, {.iov = &iov[1], .iov_n = 1}};
    kvp_move_t moves[2] = {move_of(KVP_MOVE_FILL, VALUE), move_at(KVP_MOVE_PUT, SLOT + 1)};
    kvp_transfer_t transfer = transfer_of(spans);
    kvp_desc_t desc;

    moves[1].item = 1;
    moves[1].len = moves[1].desc.len = 1000;
    moves[1].loc.offset = 0;
    kvp_bounced_run(&transfer, &bounces, &regs, moves, 2);
    kvp_scratch_reset(scratch);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(moves[i].err, KVP_OK);
        assert_true(moves[i].has_sum && moves[i].is_drained);
        assert_true(moves[i].sum == kvp_sum(value, moves[i].len));
        assert_memory_equal(pool.node.payload + moves[i].loc.offset, value, moves[i].len);
    }
    memcpy(&desc, pool.node.meta + kvp_desc_off(SLOT + 1), sizeof desc);
    assert_true(desc.word == kvp_word_make(moves[1].loc.generation, KVP_DESC_SEALED));
    assert_true(desc.sum == moves[1].sum);
}

/* An extent that is given to somebody else fails at the first part, and nothing more of it is written. */
TEST_WITH(test_a_lost_extent_ends_it, setup_device, teardown_device)
{
    kvp_move_t mv = move_of(KVP_MOVE_FILL, VALUE);

    *word_of(SLOT) = kvp_word_make(kvp_gen_make(1, 1000), KVP_DESC_WRITING);
    memset(pool.node.payload, 0, FAKE_NODE_BYTES);
    bounce(&mv);
    assert_int_equal(mv.err, KVP_STALE);
    assert_true(mv.is_drained);
    for (size_t i = 0; i < VALUE; i++)
        assert_int_equal(pool.node.payload[mv.loc.offset + i], 0);
}

/* ---- bounce buffers */
TEST_WITH(test_pinning_that_fails_is_an_error_and_takes_no_bounce_buffer, setup_device, teardown_device)
{
    kvp_move_t mv = move_of(KVP_MOVE_FILL, 1000);

    fake_cuda_knobs.host_alloc = 2;
    for (unsigned i = 0; i < 2 * KVP_BOUNCES_MAX; i++) {
        bounce(&mv);
        assert_int_equal(mv.err, KVP_NOMEM);
        assert_true(mv.is_drained);
    }
    fake_cuda_knobs.host_alloc = 0;
    bounce(&mv);
    assert_int_equal(mv.err, KVP_OK);
}

TEST_WITH(test_who_finds_no_bounce_buffer_by_the_deadline_is_told_so, setup_device, teardown_device)
{
    kvp_move_t mv = move_of(KVP_MOVE_FILL, 1000);

    bounces.made = KVP_BOUNCES_MAX; /* as if others had them all */
    deadline_ns = kvp_now_ns() + 20 * KVP_NS_PER_MS;
    bounce(&mv);
    assert_int_equal(mv.err, KVP_DEADLINE);
    assert_true(mv.is_drained);
    assert_true(kvp_now_ns() >= deadline_ns);
    assert_int_equal(*word_of(SLOT), 0); /* nothing was begun */
}

TEST_WITH(test_bounce_buffers_are_used_again, setup_device, teardown_device)
{
    for (unsigned i = 0; i < 3; i++) {
        kvp_move_t mv = move_of(KVP_MOVE_FILL, VALUE);

        mv.loc.generation = kvp_gen_make(1, 200 + i);
        bounce(&mv);
        assert_int_equal(mv.err, KVP_OK);
    }
    assert_int_equal(bounces.made, 1);
    assert_int_equal(fake_cuda_left().pinned_bytes_max, 2 * KVP_BOUNCE_PART_BYTES);
    assert_int_equal(fake_cuda_left().streams, 1);
}

TEST_MAIN()
