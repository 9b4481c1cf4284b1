/* SPDX-License-Identifier: Apache-2.0
 * What a handle holds, over its sessions: what is presented when, what becomes of the answers, and what is given back.
 */
#include "client/core/tickets.h"

#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define FIRST 100u /* incarnations */
#define SECOND 200u

typedef struct {
    kvp_tickets_t held;
    kvp_tickets_page_t page;
    kvp_buf_t tickets;
    uint64_t now_ns;
    uint64_t due_ns;
} fixture_t;

static fixture_t f; /* of the test at hand */

static int
teardown(void **state)
{
    kvp_tickets_fini(&f.held);
    kvp_buf_fini(&f.tickets);
    return 0;
}

static int
setup(void **state)
{
    memset(&f, 0, sizeof f);
    kvp_buf_init(&f.tickets, 0);
    f.now_ns = 1000 * MS;
    return 0;
}

static uint64_t
add(kvp_present_kind_t kind, uint64_t incarnation, uint64_t ticket, uint32_t n, uint32_t ttl_ms)
{
    kvp_digest_t *digests = calloc(n, sizeof *digests);
    kvp_tickets_new_t what = {kind, incarnation, ticket, 0, f.now_ns + ttl_ms * MS, digests, n};
    uint64_t id;

    for (uint32_t i = 0; i < n; i++)
        digests[i] = (kvp_digest_t){ticket, i};
    if (kind == KVP_PRESENT_HOLD) what.version = ticket * 7;
    id = kvp_tickets_add(&f.held, &what, f.now_ns);
    free(digests);
    return id;
}

static bool
next(uint64_t incarnation)
{
    return kvp_tickets_next(&f.held, incarnation, f.now_ns, &f.page, &f.due_ns) == KVP_OK;
}

static kvp_err_t
hear(const Kvp__Pb__PresentReply *head, const kvp_wire_presented_t *records, uint32_t records_n)
{
    kvp_frame_t frame;
    kvp_buf_t buf;
    kvp_err_t err;
    size_t at, used;

    kvp_buf_init(&buf, 0);
    kvp_pb_frame_begin(&buf, KVP_OP_PRESENT, KVP_FRAME_REPLY, 1, &head->base, &at);
    kvp_buf_append(&buf, records, records_n * sizeof *records);
    kvp_frame_end(&buf, at);
    assert_int_equal(kvp_frame_parse(buf.data, buf.len, &frame, &used), KVP_OK);
    err = kvp_tickets_on_reply(&f.held, &f.page, &frame, f.now_ns, &f.tickets);
    kvp_buf_fini(&buf);
    return err;
}

/* An answer with the same error to all, or with `errs` to each; those that are OK get that ticket. */
static kvp_err_t
answer(uint64_t ticket, kvp_err_t all, const kvp_err_t *errs, uint32_t retry_ms)
{
    Kvp__Pb__PresentReply head = KVP__PB__PRESENT_REPLY__INIT;
    kvp_wire_presented_t records[KVP_PLACES_MAX] = {0};

    head.n = f.page.n;
    head.retry_ms = retry_ms;
    for (uint32_t i = 0; i < f.page.n; i++) {
        records[i].err = errs == NULL ? all : errs[i];
        if (records[i].err == KVP_OK) records[i].ticket = ticket;
    }
    return hear(&head, records, f.page.n);
}

/* So many records are presented in that session. */
static void
expect_page(uint64_t incarnation, uint32_t n)
{
    assert_true(next(incarnation));
    assert_int_equal(f.page.n, n);
}

/* So many tickets are to be released, and that one first. They are forgotten. */
static void
expect_released(size_t n, uint64_t first)
{
    assert_int_equal(f.tickets.len, n * sizeof first);
    if (n > 0) assert_memory_equal(f.tickets.data, &first, sizeof first);
    kvp_buf_reset(&f.tickets);
}

TEST_WITH(test_nothing_is_presented_in_its_own_session, setup, teardown)
{
    uint64_t id;

    assert_false(next(FIRST));
    assert_true(f.due_ns == UINT64_MAX);
    id = add(KVP_PRESENT_RESERVE, FIRST, 5, 3, 1000);
    assert_false(next(FIRST));
    assert_true(kvp_tickets_release(&f.held, id, FIRST, &f.tickets));
    expect_released(1, 5);
    assert_false(kvp_tickets_release(&f.held, id, FIRST, &f.tickets));
    assert_false(kvp_tickets_release(&f.held, 0, FIRST, &f.tickets));
    expect_released(0, 0);
}

TEST_WITH(test_records_of_the_next_session, setup, teardown)
{
    uint64_t reserved, viewed;

    reserved = add(KVP_PRESENT_RESERVE, FIRST, 5, 2, 1000);
    viewed = add(KVP_PRESENT_HOLD, FIRST, 6, 1, 0);
    f.now_ns += 400 * MS;
    expect_page(SECOND, 3);
    assert_int_equal(f.page.recs[0].ttl_ms, 600);
    assert_int_equal(f.page.recs[0].version, 0);
    assert_int_equal(f.page.recs[0].set, f.page.recs[1].set);
    assert_int_equal(f.page.recs[1].digest.hi, 1);
    assert_int_not_equal(f.page.recs[1].set, f.page.recs[2].set);
    assert_int_equal(f.page.recs[2].kind, KVP_PRESENT_HOLD);
    assert_int_equal(f.page.recs[2].version, 42);
    assert_int_equal(answer(77, KVP_OK, NULL, 0), KVP_OK);
    assert_false(next(SECOND));
    assert_true(f.due_ns == UINT64_MAX);
    assert_true(kvp_tickets_release(&f.held, viewed, SECOND, &f.tickets));
    expect_released(1, 77);
    assert_false(kvp_tickets_release(&f.held, reserved, FIRST, &f.tickets)); /* that session is over */
    expect_released(0, 0);
}

/* What is gone is dropped, what may come is asked for when the master says, the rest stays. */
TEST_WITH(test_answers_of_each_kind, setup, teardown)
{
    const kvp_err_t errs[] = {KVP_OK, KVP_RETRY_AFTER, KVP_NOT_FOUND, KVP_LIMIT};
    uint64_t id;

    id = add(KVP_PRESENT_RESERVE, FIRST, 5, 4, 10000);
    assert_true(next(SECOND));
    assert_int_equal(answer(77, 0, errs, 30), KVP_OK);
    assert_false(next(SECOND));
    assert_int_equal(f.due_ns, f.now_ns + 30 * MS);
    f.now_ns += 30 * MS;
    expect_page(SECOND, 1);
    assert_int_equal(f.page.recs[0].digest.hi, 1);
    assert_int_equal(answer(78, KVP_OK, NULL, 0), KVP_OK);
    assert_false(next(SECOND));
    assert_false(kvp_tickets_release(&f.held, id, SECOND, &f.tickets)); /* not all of it was */
    expect_released(2, 77);
}

TEST_WITH(test_time_that_is_over, setup, teardown)
{
    uint64_t id;

    id = add(KVP_PRESENT_RESERVE, FIRST, 5, 1, 100);
    (void)add(KVP_PRESENT_HOLD, FIRST, 6, 1, 0);
    f.now_ns += 100 * MS;
    expect_page(SECOND, 1); /* a view has no end */
    assert_int_equal(f.page.recs[0].kind, KVP_PRESENT_HOLD);
    kvp_tickets_on_call_failed(&f.held, &f.page, f.now_ns);
    assert_false(kvp_tickets_release(&f.held, id, SECOND, &f.tickets));
    expect_released(0, 0);
    assert_false(next(SECOND));
    f.now_ns = f.due_ns;
    assert_true(next(SECOND)); /* again, since nobody answered */
    kvp_tickets_on_call_failed(&f.held, &f.page, f.now_ns);
}

TEST_WITH(test_released_while_it_is_presented, setup, teardown)
{
    uint64_t id;

    id = add(KVP_PRESENT_RESERVE, FIRST, 5, 2, 1000);
    assert_true(next(SECOND));
    assert_false(kvp_tickets_release(&f.held, id, SECOND, &f.tickets));
    expect_released(0, 0);
    assert_false(kvp_tickets_release(&f.held, id, SECOND, &f.tickets));
    assert_int_equal(answer(77, KVP_OK, NULL, 0), KVP_OK);
    expect_released(2, 77); /* what nobody wants any more is given back */
    assert_false(next(SECOND));
}

/* A call ends when its session has been followed by another one already. */
TEST_WITH(test_added_late, setup, teardown)
{
    assert_false(next(SECOND));
    (void)add(KVP_PRESENT_RESERVE, FIRST, 5, 1, 1000);
    expect_page(SECOND, 1);
    assert_int_equal(answer(77, KVP_OK, NULL, 0), KVP_OK);
    assert_false(next(SECOND));
    (void)add(KVP_PRESENT_RESERVE, SECOND + 1, 6, 1, 1000); /* and in one that is not known here yet */
    assert_false(next(SECOND));
    expect_page(SECOND + 1, 1);
    assert_int_equal(f.page.recs[0].digest.lo, 5);
    kvp_tickets_on_call_failed(&f.held, &f.page, f.now_ns);
}

TEST_WITH(test_pages, setup, teardown)
{
    uint32_t sets = 700, seen = 0, pages = 0;

    for (uint32_t i = 1; i <= sets; i++)
        assert_true(add(KVP_PRESENT_RESERVE, FIRST, i, i % 3 + 1, 1000) != 0);
    (void)add(KVP_PRESENT_RESERVE, FIRST, sets + 1, 2 * KVP_PLACES_MAX, 1000);
    while (next(SECOND)) {
        assert_true(f.page.n <= KVP_PLACES_MAX);
        seen += f.page.n;
        pages++;
        assert_int_equal(answer(1000 + pages, KVP_OK, NULL, 0), KVP_OK);
    }
    assert_int_equal(seen, sets * 2 + 2 * KVP_PLACES_MAX); /* as many sets of 1 as of 3 */
    assert_int_equal(pages, (seen + KVP_PLACES_MAX - 1) / KVP_PLACES_MAX);
}

/* Who never gives back what has run out does not make it grow. */
TEST_WITH(test_what_has_run_out_makes_room, setup, teardown)
{
    for (uint32_t i = 1; i <= 3 * KVP_TICKETS_SETS_MAX; i++, f.now_ns += MS)
        assert_true(add(KVP_PRESENT_RESERVE, FIRST, i, 1, 100) != 0);
    assert_true(f.held.cap <= 512);
}

TEST_WITH(test_too_many, setup, teardown)
{
    uint64_t id = 0;

    for (uint32_t i = 1; i <= KVP_TICKETS_SETS_MAX; i++)
        assert_true((id = add(KVP_PRESENT_HOLD, FIRST, i, 1, 0)) != 0);
    assert_true(add(KVP_PRESENT_HOLD, FIRST, 1, 1, 0) == 0);
    assert_true(kvp_tickets_release(&f.held, id, FIRST, &f.tickets));
    assert_true(add(KVP_PRESENT_HOLD, FIRST, 1, 1, 0) != 0);
}

/* ---- answers that are none */
static kvp_err_t
answer_with(kvp_err_t whole, uint32_t n, const kvp_wire_presented_t *records, uint32_t records_n)
{
    Kvp__Pb__PresentReply head = KVP__PB__PRESENT_REPLY__INIT;

    head.err = whole;
    head.n = n;
    return hear(&head, records, records_n);
}

TEST_WITH(test_answers_that_make_no_sense, setup, teardown)
{
    const kvp_wire_presented_t without = {.err = KVP_OK}, with = {.err = KVP_NOT_FOUND, .ticket = 1},
                               good = {.err = KVP_OK, .ticket = 1};

    (void)add(KVP_PRESENT_HOLD, FIRST, 5, 1, 0);
    assert_true(next(SECOND));
    assert_int_equal(answer_with(KVP_OK, 1, &without, 1), KVP_PROTO);
    assert_true(next(SECOND + 1));
    assert_int_equal(answer_with(KVP_OK, 1, &with, 1), KVP_PROTO);
    assert_true(next(SECOND + 2));
    assert_int_equal(answer_with(KVP_OK, 2, &good, 1), KVP_PROTO);
    assert_true(next(SECOND + 3));
    assert_int_equal(answer_with(KVP_OK, 1, &good, 0), KVP_PROTO);
    assert_true(next(SECOND + 4));
    assert_int_equal(answer_with(KVP_NOTSUP, 0, NULL, 0), KVP_OK); /* an older master: it is gone */
    assert_false(next(SECOND + 5));
}

TEST_MAIN()
