/* SPDX-License-Identifier: Apache-2.0
 * A session with the fake master and one fake node, and moves to that. Header only.
 */
#ifndef KVP_TEST_MOVER_FIXTURE_H
#define KVP_TEST_MOVER_FIXTURE_H

#include "client/data/transfer.h"
#include "client/transport/all/registry.h"

#include "tests/unit/client/fakepool.h"

#include <stdatomic.h>

#define VALUE 10000u
#define KEY "a key"

typedef struct {
    fake_pool_t pool;
    kvp_session_t *session;
    kvp_link_t *link;
    kvp_scratch_pool_t scratches;
    kvp_scratch_t *scratch;
    uint64_t deadline_ns;
    uint32_t others;
    bool has_copies;
    char offered[64]; /* names of the transports */
    uint8_t value[VALUE], back[VALUE + 100];
} fixture_t;

static inline void
setup_by(fixture_t *f, const kvp_transport_ops_t *const *ops, size_t n)
{
    memset(f, 0, sizeof *f);
    for (size_t i = 0, at = 0; i < n; i++)
        at += (size_t)snprintf(f->offered + at, sizeof f->offered - at, "%s%s", i == 0 ? "" : ",", ops[i]->name);
    fake_pool_start(&f->pool, f->offered);
    kvp_scratch_pool_init(&f->scratches);
    f->scratch = kvp_scratch_take(&f->scratches);
    assert_non_null(f->scratch);
    f->deadline_ns = in(LONG_NS);
    f->session = fake_pool_session(&f->pool, ops, n);
    assert_int_equal(kvp_session_hold(f->session, f->deadline_ns, &f->link), KVP_OK);
    for (size_t i = 0; i < VALUE; i++)
        f->value[i] = (uint8_t)(i * 7 + i / 251);
}

static inline void
setup_over(fixture_t *f, const kvp_transport_ops_t *ops)
{
    setup_by(f, &ops, 1);
}

static inline void
setup(fixture_t *f)
{
    setup_over(f, kvp_transport_find("shm"));
}

static inline void
teardown(fixture_t *f)
{
    kvp_session_rele(f->session, f->link);
    kvp_session_stop(f->session);
    kvp_session_destroy(f->session);
    kvp_scratch_rele(&f->scratches, f->scratch);
    kvp_scratch_pool_fini(&f->scratches);
    fake_pool_end(&f->pool);
}

static inline void
run(fixture_t *f, const kvp_span_t *spans, kvp_move_t *moves, uint32_t n)
{
    kvp_transfer_t transfer = {
        .session = f->session,
        .peers = f->link->peers,
        .scratch = f->scratch,
        .spans = spans,
        .deadline_ns = f->deadline_ns,
        .others = f->others,
        .has_copies = f->has_copies,
    };

    kvp_transfer_run(&transfer, moves, n);
    kvp_scratch_reset(f->scratch);
}

static inline kvp_move_t
move_at(const fixture_t *f, kvp_move_kind_t kind, uint32_t slot)
{
    kvp_move_t mv = {.kind = kind, .len = VALUE, .key = KEY, .key_len = sizeof KEY};

    mv.loc.segment_id = FAKE_MASTER_SEGMENT;
    mv.loc.slot = slot;
    mv.loc.key_off = kvp_key_cell_units(&f->pool.node.geo, slot);
    mv.loc.generation = kvp_gen_make(1, 100 + slot);
    mv.loc.offset = 65536ull * slot;
    mv.desc = (kvp_desc_t){.word = kvp_word_make(mv.loc.generation, KVP_DESC_SEALED), .len = VALUE, .sum = 99};
    return mv;
}

static inline uint64_t *
word_of(fixture_t *f, uint32_t slot)
{
    return (uint64_t *)(f->pool.node.meta + kvp_desc_off(slot));
}

static inline kvp_err_t
run_one(fixture_t *f, kvp_iov_t *iov, uint32_t iov_n, kvp_move_t *mv)
{
    kvp_span_t span = {.iov = iov, .iov_n = iov_n};

    run(f, &span, mv, 1);
    return mv->err;
}

#endif
