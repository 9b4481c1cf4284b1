/* SPDX-License-Identifier: Apache-2.0
 * The model NIC is as free as verbs are, and no more: each freedom is seen under some seed, and what verbs promise
 * holds under all of them. What the transport's rules need of it is seen by rdma_rules_test.c: with a rule off some
 * seed has to fail, with all of them on none may. */
#include "tests/transport/model_nic.h"
#include "tests/cases.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 300u
#define BYTES 4096u
#define LINE 64u

static const kvp_verbs_ops_t *const V = &kvp_verbs_model;

/* Two processes, each with a channel and a piece of memory. */
typedef struct {
    kvp_rdma_dev_t *devs[MODEL_NIC_DEVS_MAX];
    size_t devs_n;
    kvp_rdma_cm_t *asking;
    kvp_rdma_cm_t *serving;
    kvp_rdma_id_t *listener;
    struct sockaddr_storage addr; /* of the listener, by the first device */
    uint8_t *local;
    uint8_t *remote;
    kvp_rdma_reg_t *local_reg;
    kvp_rdma_reg_t *remote_reg;
    kvp_rdma_id_t *id; /* the asking side of the first connection */
    kvp_rdma_id_t *peer;
} rig_t;

/* The next event of a channel; false when nothing is under way any more. */
static bool
next_event(kvp_rdma_cm_t *cm, kvp_rdma_event_t *e)
{
    kvp_err_t err;

    do
        err = V->cm_next(cm, e);
    while ((err == KVP_EAGAIN && model_nic_step()) || (err == KVP_OK && e->kind == KVP_RDMA_ON_ITS_WAY));
    if (err == KVP_EAGAIN) err = V->cm_next(cm, e);
    return err == KVP_OK;
}

static kvp_rdma_id_t *
want_event(kvp_rdma_cm_t *cm, kvp_rdma_event_kind_t kind, kvp_rdma_event_t *e)
{
    assert_true(next_event(cm, e));
    assert_int_equal(e->kind, kind);
    return e->id;
}

/* A connection's steps: ask up to the request, take_request on the other side up to its queue pair, connect_to all. */
static kvp_rdma_id_t *
ask(rig_t *r, uint32_t sends)
{
    kvp_rdma_event_t e;
    kvp_rdma_id_t *id;

    assert_int_equal(V->connect(r->asking, &r->addr, NULL, &id), KVP_OK);
    assert_ptr_equal(want_event(r->asking, KVP_RDMA_RESOLVED, &e), id);
    assert_int_equal(V->qp_make(id, &(kvp_rdma_caps_t){.sends = sends, .sge = 4, .inline_bytes = 64}), KVP_OK);
    assert_int_equal(V->ask(id, "ask", 3), KVP_OK);
    return id;
}

static kvp_rdma_id_t *
take_request(rig_t *r)
{
    kvp_rdma_event_t e;
    kvp_rdma_id_t *id = want_event(r->serving, KVP_RDMA_REQUEST, &e);

    assert_memory_equal(e.data, "ask", 3);
    assert_int_equal(V->qp_make(id, &(kvp_rdma_caps_t){0}), KVP_OK);
    return id;
}

static kvp_rdma_id_t *
connect_to(rig_t *r, uint32_t sends, kvp_rdma_id_t **peer_out)
{
    kvp_rdma_id_t *id = ask(r, sends);
    kvp_rdma_event_t e;

    *peer_out = take_request(r);
    assert_int_equal(V->accept(*peer_out, "yes", 3), KVP_OK);
    assert_ptr_equal(want_event(r->asking, KVP_RDMA_ESTABLISHED, &e), id);
    assert_memory_equal(e.data, "yes", 3);
    assert_ptr_equal(want_event(r->serving, KVP_RDMA_ESTABLISHED, &e), *peer_out);
    return id;
}

/* Begins anew under that seed: the local memory is all 1, the remote one all 0. */
static void
rig_up(rig_t *r, uint64_t seed, const model_nic_conf_t *conf)
{
    const char *why;
    uint16_t port;

    *r = (rig_t){0};
    assert_int_equal(model_nic_reset(seed, conf), 0);
    assert_int_equal(V->devs_open(NULL, r->devs, MODEL_NIC_DEVS_MAX, &r->devs_n, &why), KVP_OK);
    assert_int_equal(V->cm_open(&r->asking), KVP_OK);
    assert_int_equal(V->cm_open(&r->serving), KVP_OK);
    r->addr.ss_family = AF_INET;
    assert_int_equal(V->listen(r->serving, &r->addr, &r->listener, &port), KVP_OK);
    r->addr = r->devs[0]->info.addr;
    ((struct sockaddr_in *)&r->addr)->sin_port = htons(port);
    r->local = aligned_alloc(LINE, BYTES);
    r->remote = aligned_alloc(LINE, BYTES);
    assert_non_null(r->local);
    assert_non_null(r->remote);
    memset(r->local, 1, BYTES);
    memset(r->remote, 0, BYTES);
    assert_int_equal(V->reg(r->devs[0], r->local, BYTES, KVP_RDMA_LOCAL, -1, &r->local_reg), KVP_OK);
    assert_int_equal(V->reg(r->devs[0], r->remote, BYTES, KVP_RDMA_WRITABLE, -1, &r->remote_reg), KVP_OK);
    r->id = connect_to(r, 16, &r->peer);
}

static void
rig_down(rig_t *r)
{
    V->cm_close(r->asking);
    V->cm_close(r->serving);
    if (r->local_reg != NULL) V->dereg(r->local_reg);
    if (r->remote_reg != NULL) V->dereg(r->remote_reg);
    V->devs_close();
    free(r->local);
    free(r->remote);
}

/* One request between the same offsets of both memories; its id is the offset. */
static void
post(rig_t *r, uint32_t flags, size_t at, uint32_t len)
{
    kvp_rdma_sge_t sge = {.addr = (uintptr_t)r->local + at, .len = len, .lkey = r->local_reg->lkey};
    kvp_rdma_wr_t wr = {.id = at, .flags = flags, .sge_n = 1, .sge = &sge, .raddr = (uintptr_t)r->remote + at};
    size_t n;

    wr.rkey = r->remote_reg->rkey;
    assert_int_equal(V->post(r->id, &wr, 1, &n), KVP_OK);
    assert_int_equal(n, 1);
}

/* The next completion; false when nothing is under way any more. */
static bool
next_wc(kvp_rdma_id_t *id, kvp_rdma_wc_t *wc)
{
    do
        if (V->poll(id, wc, 1) == 1) return true;
    while (model_nic_step());
    return V->poll(id, wc, 1) == 1;
}

static void
want_wc(kvp_rdma_id_t *id, uint64_t wr_id, kvp_rdma_wc_status_t status)
{
    kvp_rdma_wc_t wc;

    assert_true(next_wc(id, &wc));
    assert_int_equal(wc.id, wr_id);
    assert_int_equal(wc.status, status);
}

static bool
is_all(const uint8_t *at, size_t n, uint8_t value)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != value) return false;
    return true;
}

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

TEST(test_reads_overtake_one_another_unless_fenced)
{
    const model_nic_conf_t one_read = {.max_reads = 1};

    assert_true(overtakings(NULL, KVP_RDMA_WR_READ, KVP_RDMA_WR_READ) > 0);
    assert_int_equal(overtakings(NULL, KVP_RDMA_WR_READ, KVP_RDMA_WR_READ | KVP_RDMA_WR_FENCE), 0);
    assert_int_equal(overtakings(&one_read, KVP_RDMA_WR_READ, KVP_RDMA_WR_READ), 0);
}

TEST(test_writes_overtake_one_another_only_if_relaxed)
{
    const model_nic_conf_t relaxed = {.is_relaxed = true};

    assert_int_equal(overtakings(NULL, 0, 0), 0);
    assert_true(overtakings(&relaxed, 0, 0) > 0);
}

/* A READ may bring bytes of a WRITE that was posted behind it. */
TEST(test_write_overtakes_a_read_unless_fenced)
{
    uint32_t seen[2] = {0};

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

TEST(test_pieces_of_a_write_land_in_any_order)
{
    uint32_t later_first = 0;
    uint32_t earlier_first = 0;

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

TEST(test_write_completes_before_it_lands_but_not_behind_a_read)
{
    uint32_t late[2] = {0};

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

TEST(test_source_of_a_write_is_taken_late_unless_inline)
{
    uint32_t seen[2] = {0};

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
TEST(test_dead_requesters_writes_land_until_the_responder_closes)
{
    uint32_t after_death = 0;
    uint32_t in_part = 0;
    uint32_t cut = 0;

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
TEST(test_acknowledged_writes_are_in_memory_after_close_and_dereg)
{
    uint32_t late = 0;

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

/* Keys */

TEST(test_dereg_stops_what_is_under_way)
{
    uint32_t in_time = 0;
    uint32_t refused = 0;

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

TEST(test_rights_and_ranges_are_checked)
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

TEST(test_path_down_ends_requests_unless_it_is_up_in_time)
{
    const model_nic_conf_t conf = {.devs_n = 2, .retry_steps = 1000};

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

static bool
is_readable(int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};

    return poll(&pfd, 1, 0) == 1;
}

TEST(test_arm_tells_of_the_next_completion_only)
{
    kvp_rdma_wc_t wc;
    rig_t r;

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

/* Connections */

static uint32_t
count_events(kvp_rdma_cm_t *cm, kvp_rdma_event_kind_t kind)
{
    kvp_rdma_event_t e;
    uint32_t n = 0;

    while (next_event(cm, &e)) {
        assert_int_equal(e.kind, kind);
        n++;
    }
    return n;
}

/* Nobody listens, the listener closes before it answers, or drops the request: a refusal without a word. */
TEST(test_refusal_without_a_listener_is_empty)
{
    for (uint32_t seed = 0; seed < 30; seed++) {
        kvp_rdma_event_t e;
        kvp_rdma_id_t *id;
        rig_t r;

        rig_up(&r, seed, NULL);
        if (seed % 3 == 0) V->id_close(r.listener);
        id = ask(&r, 4);
        if (seed % 3 == 1) V->id_close(r.listener);
        if (seed % 3 == 2) V->id_close(take_request(&r));
        assert_ptr_equal(want_event(r.asking, KVP_RDMA_REFUSED, &e), id);
        assert_int_equal(e.len, 0);
        rig_down(&r);
    }
}

/* The listener's side learns that the asker went away in one of two ways, and never that it is connected. */
TEST(test_consent_to_an_asker_that_left)
{
    uint32_t seen[KVP_RDMA_GONE + 1] = {0};

    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        kvp_rdma_event_t e;
        kvp_rdma_id_t *id;
        rig_t r;

        rig_up(&r, seed, NULL);
        id = ask(&r, 4);
        if (seed % 2 == 0) {
            V->id_close(id); /* before the request is seen */
            id = take_request(&r);
            assert_int_equal(V->accept(id, NULL, 0), KVP_OK);
        } else {
            kvp_rdma_id_t *other = take_request(&r);

            assert_int_equal(V->accept(other, NULL, 0), KVP_OK);
            V->id_close(id); /* before the consent is */
            id = other;
        }
        assert_true(next_event(r.serving, &e));
        assert_ptr_equal(e.id, id);
        seen[e.kind]++;
        assert_false(next_event(r.serving, &e));
        rig_down(&r);
    }
    assert_true(seen[KVP_RDMA_GONE] > 0);
    assert_true(seen[KVP_RDMA_UNREACHABLE] > 0);
    assert_int_equal(seen[KVP_RDMA_GONE] + seen[KVP_RDMA_UNREACHABLE], SEEDS);
}

/* A process that dies or closes is told of, sometimes twice; a machine that dies is not. */
TEST(test_end_of_a_peer_is_told_unless_silent)
{
    uint32_t twice = 0;

    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        kvp_rdma_event_t e;
        uint32_t told;
        rig_t r;

        rig_up(&r, seed, NULL);
        if (seed % 3 == 0) V->id_close(r.peer);
        if (seed % 3 != 0) model_nic_kill(r.serving, seed % 3 == 1);
        told = count_events(r.asking, KVP_RDMA_GONE);
        assert_true(seed % 3 == 1 ? told == 0 : told == 1 || told == 2);
        twice += told == 2;
        assert_int_equal(V->cm_next(r.serving, &e), seed % 3 == 0 ? KVP_EAGAIN : KVP_SYS);
        rig_down(&r);
    }
    assert_true(twice > 0);
}

/* Of two connections that end, either is told of first; nothing of an id comes after its id_close. */
TEST(test_events_of_several_ids_come_in_any_order)
{
    uint32_t first[2] = {0};

    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        kvp_rdma_event_t e;
        kvp_rdma_id_t *peer;
        kvp_rdma_id_t *id;
        uint32_t rest;
        bool is_new;
        rig_t r;

        rig_up(&r, seed, NULL);
        id = connect_to(&r, 4, &peer);
        V->id_close(r.peer);
        V->id_close(peer);
        is_new = want_event(r.asking, KVP_RDMA_GONE, &e) == id;
        V->id_close(e.id);
        first[is_new]++;
        for (rest = 0; next_event(r.asking, &e); rest++)
            assert_ptr_equal(e.id, is_new ? r.id : id);
        assert_true(rest > 0);
        rig_down(&r);
    }
    assert_true(first[0] > 0);
    assert_true(first[1] > 0);
}

TEST_MAIN()
