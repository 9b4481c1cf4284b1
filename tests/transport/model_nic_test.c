/* SPDX-License-Identifier: Apache-2.0
 * The model NIC is as free as verbs are, and no more: each freedom is seen under some seed, and what verbs promise holds
 * under all of them.
 */
#include "tests/transport/model_nic_rig.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Order */

/* Under how many seeds some byte of the second request moved before all of the first one's. */
static uint32_t
overtakings(const model_nic_conf_t *conf, uint32_t first, uint32_t second)
{
    bool is_read = (first & KVP_RDMA_WR_READ) != 0;
    uint32_t seen = 0;

    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        bool is_over = false;
        const uint8_t *to;
        rig_t r;

        rig_up(&r, seed, conf);
        memset(is_read ? r.remote : r.local, 7, BYTES);
        to = is_read ? r.local : r.remote;
        post(&r, first, 0, 4 * LINE);
        post(&r, second | KVP_RDMA_WR_SIGNALED, 4 * LINE, 4 * LINE);
        do
            is_over |= !is_all(to, 4 * LINE, 7) && !is_all(to + 4 * LINE, 4 * LINE, is_read ? 1 : 0);
        while (model_nic_step());
        want_wc(r.id, 4 * LINE, KVP_RDMA_WC_OK);
        assert_true(is_all(to, 8 * LINE, 7));
        assert_true(is_all(to + 8 * LINE, BYTES - 8 * LINE, is_read ? 1 : 0));
        seen += is_over;
        rig_down(&r);
    }
    return seen;
}

static void
test_reads_overtake_one_another_unless_fenced(void **state)
{
    const model_nic_conf_t one_read = {.max_reads = 1};

    (void)state;
    assert_true(overtakings(NULL, KVP_RDMA_WR_READ, KVP_RDMA_WR_READ) > 0);
    assert_int_equal(overtakings(NULL, KVP_RDMA_WR_READ, KVP_RDMA_WR_READ | KVP_RDMA_WR_FENCE), 0);
    assert_int_equal(overtakings(&one_read, KVP_RDMA_WR_READ, KVP_RDMA_WR_READ), 0);
}

static void
test_writes_overtake_one_another_only_if_relaxed(void **state)
{
    const model_nic_conf_t relaxed = {.is_relaxed = true};

    (void)state;
    assert_int_equal(overtakings(NULL, 0, 0), 0);
    assert_true(overtakings(&relaxed, 0, 0) > 0);
}

/* A READ may bring bytes of a WRITE that was posted behind it. */
static void
test_write_overtakes_a_read_unless_fenced(void **state)
{
    uint32_t seen[2] = {0};

    (void)state;
    for (uint32_t seed = 0; seed < 2 * SEEDS; seed++) {
        bool is_fenced = seed % 2 == 1;
        rig_t r;

        rig_up(&r, seed, NULL);
        memset(r.local, 9, LINE);
        memset(r.remote, 0, BYTES);
        kvp_rdma_sge_t sge = {.addr = (uintptr_t)r.local + LINE, .len = LINE, .lkey = r.local_reg->lkey};
        kvp_rdma_wr_t rd = {.flags = KVP_RDMA_WR_READ, .sge_n = 1, .sge = &sge, .raddr = (uintptr_t)r.remote};
        size_t n;

        rd.rkey = r.remote_reg->rkey;
        assert_int_equal(V->post(r.id, &rd, 1, &n), KVP_OK);
        post(&r, is_fenced ? KVP_RDMA_WR_FENCE : 0, 0, LINE);
        model_nic_settle();
        assert_true(is_all(r.local + LINE, LINE, 0) || is_all(r.local + LINE, LINE, 9));
        seen[is_fenced] += r.local[LINE] == 9;
        rig_down(&r);
    }
    assert_true(seen[0] > 0);
    assert_int_equal(seen[1], 0);
}

static void
test_pieces_of_a_write_land_in_any_order(void **state)
{
    uint32_t later_first = 0;
    uint32_t earlier_first = 0;

    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        bool is_back = false;
        bool is_forth = false;
        rig_t r;

        rig_up(&r, seed, NULL);
        post(&r, 0, 5, 3 * LINE); /* pieces are those of the remote side */
        do {
            const uint8_t *at = r.remote;
            bool has_first = is_all(at + 5, LINE - 5, 1);
            bool has_last = is_all(at + 3 * LINE, 5, 1);

            assert_true(has_first || is_all(at, LINE, 0)); /* a piece lands whole */
            is_back |= has_last && !has_first;
            is_forth |= has_first && !has_last;
        } while (model_nic_step());
        assert_true(is_all(r.remote, 5, 0));
        assert_true(is_all(r.remote + 5, 3 * LINE, 1));
        assert_true(is_all(r.remote + 5 + 3 * LINE, BYTES - 5 - 3 * LINE, 0));
        later_first += is_back;
        earlier_first += is_forth;
        rig_down(&r);
    }
    assert_true(later_first > 0);
    assert_true(earlier_first > 0);
}

static void
test_write_completes_before_it_lands_but_not_behind_a_read(void **state)
{
    uint32_t late[2] = {0};

    (void)state;
    for (uint32_t seed = 0; seed < 2 * SEEDS; seed++) {
        bool is_pushed = seed % 2 == 1;
        rig_t r;

        rig_up(&r, seed, NULL);
        post(&r, is_pushed ? 0 : KVP_RDMA_WR_SIGNALED, 0, 8 * LINE);
        if (is_pushed) post(&r, KVP_RDMA_WR_READ | KVP_RDMA_WR_SIGNALED, 16 * LINE, 8);
        want_wc(r.id, is_pushed ? 16 * LINE : 0, KVP_RDMA_WC_OK);
        late[is_pushed] += !is_all(r.remote, 8 * LINE, 1);
        rig_down(&r);
    }
    assert_true(late[0] > 0);
    assert_int_equal(late[1], 0);
}

static void
test_queue_pairs_are_not_ordered(void **state)
{
    uint32_t swapped = 0;
    uint32_t straight = 0;

    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        kvp_rdma_id_t *peer;
        kvp_rdma_id_t *other;
        kvp_rdma_wc_t wc;
        rig_t r;

        rig_up(&r, seed, NULL);
        other = connect_to(&r, 4, &peer);
        post(&r, KVP_RDMA_WR_SIGNALED, 0, LINE);
        post_by(&r, other, KVP_RDMA_WR_SIGNALED, LINE, LINE);
        for (;;) {
            bool is_first = V->poll(r.id, &wc, 1) == 1;
            bool is_second = V->poll(other, &wc, 1) == 1;

            straight += is_first && !is_second;
            swapped += is_second && !is_first;
            if (is_first || is_second) break;
        }
        rig_down(&r);
    }
    assert_true(swapped > 0);
    assert_true(straight > 0);
}

static void
test_source_of_a_write_is_taken_late_unless_inline(void **state)
{
    uint32_t seen[2] = {0};

    (void)state;
    for (uint32_t seed = 0; seed < 2 * SEEDS; seed++) {
        bool is_inline = seed % 2 == 1;
        rig_t r;

        rig_up(&r, seed, NULL);
        post(&r, is_inline ? KVP_RDMA_WR_INLINE : 0, 0, LINE);
        memset(r.local, 2, BYTES);
        model_nic_settle();
        seen[is_inline] += r.remote[0] == 2;
        rig_down(&r);
    }
    assert_true(seen[0] > 0);
    assert_int_equal(seen[1], 0);
}

/* Ends */

typedef enum { BY_CLOSE, BY_KILL, BY_SILENCE, WAYS } way_t;

static void
end_requester(rig_t *r, way_t way)
{
    if (way == BY_CLOSE)
        V->id_close(r->id);
    else
        model_nic_kill(r->asking, way == BY_SILENCE);
}

/* What was sent lands after the requester's end, whole or not, and never after the responder's. */
static void
test_dead_requesters_writes_land_until_the_responder_closes(void **state)
{
    uint32_t after_death = 0;
    uint32_t in_part = 0;
    uint32_t cut = 0;

    (void)state;
    for (uint32_t seed = 0; seed < WAYS * SEEDS; seed++) {
        uint8_t then[BYTES];
        rig_t r;

        rig_up(&r, seed, NULL);
        for (size_t i = 0; i < 4; i++)
            post(&r, 0, i * 8 * LINE, 8 * LINE);
        post(&r, KVP_RDMA_WR_READ, 32 * LINE, 8 * LINE);
        for (uint32_t i = 0; i < seed % 16; i++)
            model_nic_step();
        end_requester(&r, (way_t)(seed % WAYS));
        V->dereg(r.local_reg); /* the requester's memory is nobody's: the sanitizer watches */
        r.local_reg = NULL;
        free(r.local);
        r.local = NULL;
        memcpy(then, r.remote, BYTES);
        for (uint32_t i = 0; i < seed % 7; i++)
            model_nic_step();
        after_death += memcmp(then, r.remote, BYTES) != 0;
        memcpy(then, r.remote, BYTES);
        V->id_close(r.peer);
        cut += !is_all(r.remote, 32 * LINE, 1);
        for (size_t i = 0; i < 32; i++) /* in order: something of a later one means all of the earlier */
            if (r.remote[i * LINE] == 1) assert_true(is_all(r.remote, i / 8 * 8 * LINE, 1));
        in_part += r.remote[0] != r.remote[7 * LINE];
        memset(r.remote, 5, BYTES);
        model_nic_settle();
        assert_true(is_all(r.remote, BYTES, 5));
        rig_down(&r);
    }
    assert_true(after_death > 0);
    assert_true(cut > 0);
    assert_true(in_part > 0);
}

/* An acknowledgement is the truth also where the responder ends just then. */
static void
test_acknowledged_writes_are_in_memory_after_close_and_dereg(void **state)
{
    uint32_t late = 0;

    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        rig_t r;

        rig_up(&r, seed, NULL);
        post(&r, KVP_RDMA_WR_SIGNALED, 0, 16 * LINE);
        want_wc(r.id, 0, KVP_RDMA_WC_OK);
        late += !is_all(r.remote, 16 * LINE, 1);
        if (seed % 4 >= 2) V->id_close(r.id); /* the requester first */
        if (seed % 2 == 0) {
            V->id_close(r.peer);
        } else {
            V->dereg(r.remote_reg);
            r.remote_reg = NULL;
        }
        assert_true(is_all(r.remote, 16 * LINE, 1));
        rig_down(&r);
    }
    assert_true(late > 0);
}

static void
test_requests_to_a_closed_peer_end(void **state)
{
    uint32_t by_status[KVP_RDMA_WC_FAILED + 1] = {0};

    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        uint32_t failed = 0;
        kvp_rdma_wc_t wc;
        rig_t r;

        rig_up(&r, seed, NULL);
        for (size_t i = 0; i < 4; i++)
            post(&r, (i % 2 == 0 ? KVP_RDMA_WR_READ : 0) | KVP_RDMA_WR_SIGNALED, i * LINE, LINE);
        for (uint32_t i = 0; i < seed % 16; i++)
            model_nic_step();
        V->id_close(r.peer);
        for (size_t i = 0; i < 4; i++) {
            assert_true(next_wc(r.id, &wc));
            assert_int_equal(wc.id, i * LINE);
            if (failed > 0) assert_int_equal(wc.status, KVP_RDMA_WC_FLUSHED);
            failed += wc.status != KVP_RDMA_WC_OK;
            by_status[wc.status]++;
        }
        post(&r, 0, 0, LINE);
        assert_true(next_wc(r.id, &wc));
        assert_true(wc.status == KVP_RDMA_WC_FLUSHED || (failed == 0 && wc.status == KVP_RDMA_WC_NO_ANSWER));
        rig_down(&r);
    }
    assert_true(by_status[KVP_RDMA_WC_OK] > 0);
    assert_true(by_status[KVP_RDMA_WC_NO_ANSWER] > 0);
    assert_true(by_status[KVP_RDMA_WC_FLUSHED] > 0);
    assert_int_equal(by_status[KVP_RDMA_WC_NO_ACCESS] + by_status[KVP_RDMA_WC_FAILED], 0);
}

/* Keys */

static void
test_dereg_stops_what_is_under_way(void **state)
{
    uint32_t in_time = 0;
    uint32_t refused = 0;

    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        kvp_rdma_wc_t wc;
        rig_t r;

        rig_up(&r, seed, NULL);
        post(&r, (seed % 2 == 0 ? KVP_RDMA_WR_READ : 0) | KVP_RDMA_WR_SIGNALED, 0, 16 * LINE);
        post(&r, 0, 16 * LINE, LINE);
        for (uint32_t i = 0; i < seed % 16; i++)
            model_nic_step();
        V->dereg(r.remote_reg);
        r.remote_reg = NULL;
        memset(r.remote, 5, BYTES);
        assert_true(next_wc(r.id, &wc));
        if (wc.status == KVP_RDMA_WC_OK) {
            in_time++;
            if (seed % 2 == 0) assert_true(is_all(r.local, 16 * LINE, 0));
        } else if (wc.id == 0) {
            refused++;
            assert_int_equal(wc.status, KVP_RDMA_WC_NO_ACCESS);
            want_wc(r.id, 16 * LINE, KVP_RDMA_WC_FLUSHED);
        }
        model_nic_settle();
        assert_true(is_all(r.remote, BYTES, 5));
        rig_down(&r);
    }
    assert_true(in_time > 0);
    assert_true(refused > 0);
}

static void
test_keys_of_a_restarted_peer_may_mean_other_memory(void **state)
{
    (void)state;
    for (int reuses = 0; reuses < 2; reuses++) {
        const model_nic_conf_t conf = {.reuses_keys = reuses == 1};
        rig_t r;
        uint32_t old_key;

        rig_up(&r, 3, &conf);
        old_key = r.remote_reg->rkey;
        V->dereg(r.remote_reg);
        assert_int_equal(V->reg(r.devs[0], r.remote, BYTES, KVP_RDMA_WRITABLE, -1, &r.remote_reg), KVP_OK);
        assert_int_equal(r.remote_reg->rkey == old_key, reuses);
        assert_true(r.remote_reg->rkey != r.remote_reg->lkey);
        rig_down(&r);
    }
}

static void
test_rights_and_ranges_are_checked(void **state)
{
    static const struct {
        uint32_t flags;
        kvp_rdma_access_t access;
        bool is_lkey_wrong;
        uint64_t off;
        kvp_rdma_wc_status_t status;
    } cases[] = {
        {KVP_RDMA_WR_READ, KVP_RDMA_READABLE, false, BYTES - LINE, KVP_RDMA_WC_OK},
        {KVP_RDMA_WR_READ, KVP_RDMA_READABLE, false, BYTES - LINE + 1, KVP_RDMA_WC_NO_ACCESS},
        {KVP_RDMA_WR_READ, KVP_RDMA_READABLE, false, (uint64_t)-1, KVP_RDMA_WC_NO_ACCESS},
        {KVP_RDMA_WR_READ, KVP_RDMA_WRITABLE, false, 0, KVP_RDMA_WC_OK},
        {KVP_RDMA_WR_READ, KVP_RDMA_LOCAL, false, 0, KVP_RDMA_WC_NO_ACCESS},
        {KVP_RDMA_WR_READ, KVP_RDMA_READABLE, true, 0, KVP_RDMA_WC_NO_MEMORY},
        {0, KVP_RDMA_READABLE, false, 0, KVP_RDMA_WC_NO_ACCESS},
        {0, KVP_RDMA_WRITABLE, true, 0, KVP_RDMA_WC_NO_MEMORY},
        {KVP_RDMA_WR_INLINE, KVP_RDMA_WRITABLE, true, 0, KVP_RDMA_WC_OK},
    };

    (void)state;
    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        kvp_rdma_reg_t *reg;
        rig_t r;
        size_t n;

        rig_up(&r, i, NULL);
        assert_int_equal(V->reg(r.devs[0], r.remote, BYTES, cases[i].access, -1, &reg), KVP_OK);
        kvp_rdma_sge_t sge = {.addr = (uintptr_t)r.local, .len = LINE};
        kvp_rdma_wr_t wr = {.id = 5, .flags = cases[i].flags | KVP_RDMA_WR_SIGNALED, .sge_n = 1, .sge = &sge};
        sge.lkey = cases[i].is_lkey_wrong ? r.local_reg->rkey : r.local_reg->lkey;
        wr.raddr = (uintptr_t)r.remote + cases[i].off;
        wr.rkey = reg->rkey;
        assert_int_equal(V->post(r.id, &wr, 1, &n), KVP_OK);
        want_wc(r.id, 5, cases[i].status);
        V->dereg(reg);
        rig_down(&r);
    }
}

/* Paths */

static void
test_path_down_ends_requests_unless_it_is_up_in_time(void **state)
{
    const model_nic_conf_t conf = {.devs_n = 2, .retry_steps = 1000};

    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        bool is_healed = seed % 2 == 1;
        rig_t r;

        rig_up(&r, seed, &conf);
        model_nic_path(0, 0, false);
        post(&r, KVP_RDMA_WR_READ | KVP_RDMA_WR_SIGNALED, 0, LINE);
        post(&r, KVP_RDMA_WR_SIGNALED, LINE, LINE);
        for (uint32_t i = 0; i < 100; i++)
            model_nic_step();
        if (is_healed) model_nic_path(0, 0, true);
        want_wc(r.id, 0, is_healed ? KVP_RDMA_WC_OK : KVP_RDMA_WC_NO_ANSWER);
        want_wc(r.id, LINE, is_healed ? KVP_RDMA_WC_OK : KVP_RDMA_WC_FLUSHED);
        rig_down(&r);
    }
}

/* Queues */

static void
test_queue_is_bounded_until_a_signaled_one_is_polled(void **state)
{
    const model_nic_conf_t conf = {.max_wr = 4};
    kvp_rdma_wr_t wrs[6] = {0};
    kvp_rdma_wc_t wc;
    size_t n;
    rig_t r;

    (void)state;
    rig_up(&r, 1, &conf); /* it asks for 16 */
    wrs[1].flags = KVP_RDMA_WR_SIGNALED;
    wrs[1].id = 1;
    assert_int_equal(V->post(r.id, wrs, 6, &n), KVP_EAGAIN);
    assert_int_equal(n, 4);
    want_wc(r.id, 1, KVP_RDMA_WC_OK);
    assert_int_equal(V->post(r.id, wrs, 6, &n), KVP_EAGAIN);
    assert_int_equal(n, 2); /* it covered two; those behind it are done but nobody was told */
    want_wc(r.id, 1, KVP_RDMA_WC_OK);
    assert_false(next_wc(r.id, &wc));
    rig_down(&r);
}

static void
test_ill_formed_requests_are_refused(void **state)
{
    const model_nic_conf_t conf = {.max_sge = 2, .inline_max = 32, .max_msg_bytes = 256, .max_reg_bytes = BYTES};
    kvp_rdma_sge_t sge[4] = {{.len = 200}, {.len = 57}, {.len = 1}, {.len = 33}};
    const kvp_rdma_wr_t wrs[] = {
        {.sge = &sge[0], .sge_n = 3},
        {.sge = &sge[0], .sge_n = 2},
        {.sge = &sge[3], .sge_n = 1, .flags = KVP_RDMA_WR_INLINE},
        {.sge = &sge[2], .sge_n = 1, .flags = KVP_RDMA_WR_INLINE | KVP_RDMA_WR_READ},
    };
    kvp_rdma_reg_t *reg;
    size_t n;
    rig_t r;

    (void)state;
    rig_up(&r, 1, &conf);
    assert_int_equal(r.id->inline_max, 32);
    for (size_t i = 0; i < KVP_ARRAY_LEN(wrs); i++) {
        assert_int_equal(V->post(r.id, &wrs[i], 1, &n), KVP_INVALID);
        assert_int_equal(n, 0);
    }
    assert_int_equal(V->reg(r.devs[0], r.remote, BYTES + 1, KVP_RDMA_LOCAL, -1, &reg), KVP_INVALID);
    assert_int_equal(V->post(r.peer, &wrs[0], 1, &n), KVP_INVALID); /* serves only */
    rig_down(&r);
}

static bool
is_readable(int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};

    return poll(&pfd, 1, 0) == 1;
}

static void
test_arm_tells_of_the_next_completion_only(void **state)
{
    kvp_rdma_wc_t wc;
    rig_t r;

    (void)state;
    rig_up(&r, 1, NULL);
    post(&r, KVP_RDMA_WR_SIGNALED, 0, LINE);
    model_nic_settle();
    assert_false(is_readable(r.id->cq_fd)); /* nobody armed */
    assert_int_equal(V->arm(r.id), KVP_OK);
    assert_false(is_readable(r.id->cq_fd)); /* it was there before: hence the poll after arm */
    assert_int_equal(V->poll(r.id, &wc, 1), 1);
    post(&r, KVP_RDMA_WR_SIGNALED, LINE, LINE);
    model_nic_settle();
    assert_true(is_readable(r.id->cq_fd));
    post(&r, KVP_RDMA_WR_SIGNALED, 2 * LINE, LINE);
    want_wc(r.id, LINE, KVP_RDMA_WC_OK);
    want_wc(r.id, 2 * LINE, KVP_RDMA_WC_OK);

    model_nic_pause(true);
    post(&r, KVP_RDMA_WR_SIGNALED, LINE, LINE);
    assert_int_equal(V->arm(r.id), KVP_OK);
    assert_false(is_readable(r.id->cq_fd)); /* and the old news is taken */
    model_nic_pause(false);
    assert_true(is_readable(r.id->cq_fd));
    rig_down(&r);
}

static void
test_counts_and_leaks_are_told(void **state)
{
    kvp_rdma_sge_t none = {0};
    const kvp_rdma_wr_t wrs[3] = {
        {.sge = &none},
        {.sge = &none, .flags = KVP_RDMA_WR_INLINE},
        {.sge = &none, .flags = KVP_RDMA_WR_READ | KVP_RDMA_WR_FENCE | KVP_RDMA_WR_SIGNALED},
    };
    model_nic_counts_t c;
    size_t n;
    rig_t r;

    (void)state;
    rig_up(&r, 1, NULL);
    assert_int_equal(V->post(r.id, wrs, 3, &n), KVP_OK);
    want_wc(r.id, 0, KVP_RDMA_WC_OK);
    model_nic_counts(&c);
    assert_int_equal(c.posts, 1);
    assert_int_equal(c.requests, 3);
    assert_int_equal(c.writes, 2);
    assert_int_equal(c.reads, 1);
    assert_int_equal(c.inlines, 1);
    assert_int_equal(c.fenced, 1);
    assert_int_equal(c.signaled, 1);
    assert_int_equal(c.completions, 1);
    assert_int_equal(c.failures, 0);
    assert_int_equal(model_nic_reset(1, NULL), 8); /* 2 channels, 3 ids, 2 registrations, devs_open */
    free(r.local);
    free(r.remote);
}

/* Threads: each has its connection, channel and memory; what one lets happen is also the others'. */

static void *
mover_main(void *arg)
{
    rig_t *r = arg;

    for (uint32_t round = 1; round <= 50; round++) {
        kvp_rdma_wc_t wc;

        memset(r->local, (int)round, BYTES / 2);
        memset(r->local + BYTES / 2, 0, BYTES / 2);
        post(r, KVP_RDMA_WR_SIGNALED, 0, BYTES / 2);
        kvp_rdma_sge_t back = {.addr = (uintptr_t)r->local + BYTES / 2, .len = BYTES / 2, .lkey = r->local_reg->lkey};
        kvp_rdma_wr_t rd = {.flags = KVP_RDMA_WR_READ | KVP_RDMA_WR_SIGNALED, .sge_n = 1, .sge = &back};
        size_t n;
        rd.raddr = (uintptr_t)r->remote;
        rd.rkey = r->remote_reg->rkey;
        if (V->post(r->id, &rd, 1, &n) != KVP_OK) return r;
        for (uint32_t done = 0; done < 2;) {
            if (V->poll(r->id, &wc, 1) == 0) {
                struct pollfd pfd = {.fd = r->id->cq_fd, .events = POLLIN};

                if (V->arm(r->id) != KVP_OK) return r;
                if (V->poll(r->id, &wc, 1) == 0 && poll(&pfd, 1, 10000) != 1)
                    return r;
                else if (pfd.revents != 0)
                    continue;
            }
            done++;
        }
        if (!is_all(r->local + BYTES / 2, BYTES / 2, (uint8_t)round)) return r;
    }
    return NULL;
}

static void
test_threads_move_at_once(void **state)
{
    enum { N = 4 };
    rig_t rigs[N];
    pthread_t threads[N];
    void *failed;

    (void)state;
    rig_up(&rigs[0], 11, NULL);
    for (size_t i = 1; i < N; i++) {
        rigs[i] = rigs[0];
        rigs[i].id = connect_to(&rigs[0], 16, &rigs[i].peer);
        rigs[i].local = calloc(1, BYTES);
        rigs[i].remote = calloc(1, BYTES);
        assert_non_null(rigs[i].local);
        assert_non_null(rigs[i].remote);
        assert_int_equal(V->reg(rigs[i].devs[0], rigs[i].local, BYTES, KVP_RDMA_LOCAL, -1, &rigs[i].local_reg), KVP_OK);
        assert_int_equal(V->reg(rigs[i].devs[0], rigs[i].remote, BYTES, KVP_RDMA_WRITABLE, -1, &rigs[i].remote_reg),
                         KVP_OK);
    }
    for (size_t i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, mover_main, &rigs[i]), 0);
    for (size_t i = 0; i < N; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    for (size_t i = 1; i < N; i++) {
        V->dereg(rigs[i].local_reg);
        V->dereg(rigs[i].remote_reg);
        free(rigs[i].local);
        free(rigs[i].remote);
    }
    rig_down(&rigs[0]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_overtake_one_another_unless_fenced),
        cmocka_unit_test(test_writes_overtake_one_another_only_if_relaxed),
        cmocka_unit_test(test_write_overtakes_a_read_unless_fenced),
        cmocka_unit_test(test_pieces_of_a_write_land_in_any_order),
        cmocka_unit_test(test_write_completes_before_it_lands_but_not_behind_a_read),
        cmocka_unit_test(test_queue_pairs_are_not_ordered),
        cmocka_unit_test(test_source_of_a_write_is_taken_late_unless_inline),
        cmocka_unit_test(test_dead_requesters_writes_land_until_the_responder_closes),
        cmocka_unit_test(test_acknowledged_writes_are_in_memory_after_close_and_dereg),
        cmocka_unit_test(test_requests_to_a_closed_peer_end),
        cmocka_unit_test(test_dereg_stops_what_is_under_way),
        cmocka_unit_test(test_keys_of_a_restarted_peer_may_mean_other_memory),
        cmocka_unit_test(test_rights_and_ranges_are_checked),
        cmocka_unit_test(test_path_down_ends_requests_unless_it_is_up_in_time),
        cmocka_unit_test(test_queue_is_bounded_until_a_signaled_one_is_polled),
        cmocka_unit_test(test_ill_formed_requests_are_refused),
        cmocka_unit_test(test_arm_tells_of_the_next_completion_only),
        cmocka_unit_test(test_counts_and_leaks_are_told),
        cmocka_unit_test(test_threads_move_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
