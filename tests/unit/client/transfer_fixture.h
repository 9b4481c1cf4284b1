/* SPDX-License-Identifier: Apache-2.0
 * A session with the fake master and one fake node, and moves to that. Header only. */
#ifndef KVP_TEST_MOVER_FIXTURE_H
#define KVP_TEST_MOVER_FIXTURE_H

#include "client/data/transfer.h"
#include "transport/all/registry.h"

#include "tests/unit/client/fakepool.h"

#include <stdatomic.h>

#ifndef VALUE
#define VALUE 10000u
#endif
#define KEY "a key"

/* Of the test at hand, beside its pool. */
static kvp_scratch_pool_t scratches;
static kvp_scratch_t *scratch;
static uint64_t deadline_ns;
static uint32_t others;
static bool has_copies;
static char offered[64]; /* names of the transports */
static uint8_t value[VALUE], back[VALUE + 100];

static inline int
teardown(void **state)
{
    if (!pool.is_running) return 0;
    kvp_scratch_rele(&scratches, scratch);
    kvp_scratch_pool_fini(&scratches);
    return fake_pool_end(state);
}

/* In the place of what there is: a session by copies of these transports, the best first. */
static inline void
setup_by(const kvp_transport_ops_t *const *ops, size_t n)
{
    static kvp_transport_ops_t copies[2];
    const kvp_transport_ops_t *const used[2] = {&copies[0], &copies[1]};

    (void)teardown(NULL);
    for (size_t i = 0; i < n; i++)
        copies[i] = *ops[i];
    for (size_t i = 0, at = 0; i < n; i++)
        at += (size_t)snprintf(offered + at, sizeof offered - at, "%s%s", i == 0 ? "" : ",", ops[i]->name);
    fake_pool_start(offered);
    kvp_scratch_pool_init(&scratches);
    scratch = kvp_scratch_take(&scratches);
    assert_non_null(scratch);
    deadline_ns = in(LONG_NS);
    others = 0;
    has_copies = false;
    fake_pool_session(used, n);
    pool.link = fake_pool_hold();
    for (size_t i = 0; i < VALUE; i++)
        value[i] = (uint8_t)(i * 7 + i / 251);
    memset(back, 0, sizeof back);
}

static inline void
setup_over(const kvp_transport_ops_t *ops)
{
    setup_by(&ops, 1);
}

static inline int
setup(void **state)
{
    setup_over(kvp_transport_find("shm"));
    return 0;
}

static inline kvp_transfer_t
transfer_of(const kvp_span_t *spans)
{
    return (kvp_transfer_t){
        .session = pool.session,
        .peers = pool.link->peers,
        .scratch = scratch,
        .spans = spans,
        .deadline_ns = deadline_ns,
        .others = others,
        .has_copies = has_copies,
    };
}

static inline void
run(const kvp_span_t *spans, kvp_move_t *moves, uint32_t n)
{
    kvp_transfer_t transfer = transfer_of(spans);

    kvp_transfer_run(&transfer, moves, n);
    kvp_scratch_reset(scratch);
}

static inline kvp_move_t
move_at(kvp_move_kind_t kind, uint32_t slot)
{
    kvp_move_t mv = {.kind = kind, .len = VALUE, .key = KEY, .key_len = sizeof KEY};

    mv.loc.segment_id = FAKE_MASTER_SEGMENT;
    mv.loc.slot = slot;
    mv.loc.key_off = kvp_key_cell_units(&pool.node.geo, slot);
    mv.loc.generation = kvp_gen_make(1, 100 + slot);
    mv.loc.offset = 65536ull * slot;
    mv.desc = (kvp_desc_t){.word = kvp_word_make(mv.loc.generation, KVP_DESC_SEALED), .len = VALUE, .sum = 99};
    return mv;
}

static inline uint64_t *
word_of(uint32_t slot)
{
    return (uint64_t *)(pool.node.meta + kvp_desc_off(slot));
}

static inline kvp_err_t
run_one(kvp_iov_t *iov, uint32_t iov_n, kvp_move_t *mv)
{
    kvp_span_t span = {.iov = iov, .iov_n = iov_n};

    run(&span, mv, 1);
    return mv->err;
}

#endif
