/* SPDX-License-Identifier: Apache-2.0
 * Connections of the model NIC: events come late and may tell of failures, each side's end is the other's event, and
 * what rdmacm may do twice happens twice under some seed.
 */
#include "tests/transport/model_nic_rig.h"

#include <netinet/in.h>
#include <poll.h>
#include <string.h>

static bool
is_readable(int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};

    return poll(&pfd, 1, 0) == 1;
}

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

static void
test_refusal_brings_its_data(void **state)
{
    kvp_rdma_event_t e;
    kvp_rdma_id_t *id;
    rig_t r;

    (void)state;
    rig_up(&r, 1, NULL);
    id = ask(&r, 4);
    assert_int_equal(V->refuse(take_request(&r), "fenced", 6), KVP_OK);
    assert_ptr_equal(want_event(r.asking, KVP_RDMA_REFUSED, &e), id);
    assert_int_equal(e.len, 6);
    assert_memory_equal(e.data, "fenced", 6);
    assert_int_equal(V->ask(id, "ask", 3), KVP_INVALID);
    assert_false(next_event(r.asking, &e));
    rig_down(&r);
}

/* Nobody listens, the listener closes before it answers, or drops the request: a refusal without a word. */
static void
test_refusal_without_a_listener_is_empty(void **state)
{
    (void)state;
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

static void
test_connect_fails_without_a_way(void **state)
{
    const model_nic_conf_t conf = {.devs_n = 2};
    struct sockaddr_storage nowhere = {.ss_family = AF_INET};
    kvp_rdma_event_t e;
    kvp_rdma_id_t *id;
    rig_t r;

    (void)state;
    rig_up(&r, 1, &conf);
    ((struct sockaddr_in *)&nowhere)->sin_addr.s_addr = htonl(0x0a630909);
    assert_int_equal(V->connect(r.asking, &nowhere, &r.devs[0]->info.addr, &id), KVP_OK);
    assert_ptr_equal(want_event(r.asking, KVP_RDMA_UNREACHABLE, &e), id);

    model_nic_path(0, 1, false);
    assert_int_equal(V->connect(r.asking, &r.addr, &r.devs[1]->info.addr, &id), KVP_OK);
    assert_ptr_equal(want_event(r.asking, KVP_RDMA_UNREACHABLE, &e), id);
    assert_int_equal(V->connect(r.asking, &r.addr, &r.devs[0]->info.addr, &id), KVP_OK);
    assert_ptr_equal(want_event(r.asking, KVP_RDMA_RESOLVED, &e), id);
    assert_ptr_equal(id->dev, r.devs[0]);

    model_nic_path(0, 1, true);
    assert_int_equal(V->connect(r.asking, &r.addr, &r.devs[1]->info.addr, &id), KVP_OK);
    assert_ptr_equal(want_event(r.asking, KVP_RDMA_RESOLVED, &e), id);
    assert_ptr_equal(id->dev, r.devs[1]);
    rig_down(&r);
}

/* Under a chance of failure an asker may be told UNREACHABLE though the listener was asked. */
static void
test_asks_fail_by_chance(void **state)
{
    const model_nic_conf_t conf = {.unreachable_per_mille = 500};
    uint32_t failed[2] = {0};

    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        kvp_rdma_cm_t *asking;
        kvp_rdma_cm_t *serving;
        kvp_rdma_id_t *listener;
        kvp_rdma_id_t *id;
        kvp_rdma_dev_t *dev;
        kvp_rdma_event_t e;
        const char *why;
        uint16_t port;
        size_t n;

        assert_int_equal(model_nic_reset(seed, &conf), 0);
        assert_int_equal(V->devs_open(NULL, &dev, 1, &n, &why), KVP_OK);
        assert_int_equal(V->cm_open(&asking), KVP_OK);
        assert_int_equal(V->cm_open(&serving), KVP_OK);
        struct sockaddr_storage addr = dev->info.addr;
        assert_int_equal(V->listen(serving, &addr, &listener, &port), KVP_OK);
        ((struct sockaddr_in *)&addr)->sin_port = htons(port);
        assert_int_equal(V->connect(asking, &addr, NULL, &id), KVP_OK);
        assert_true(next_event(asking, &e));
        if (e.kind == KVP_RDMA_RESOLVED) {
            assert_int_equal(V->qp_make(id, &(kvp_rdma_caps_t){.sends = 1}), KVP_OK);
            assert_int_equal(V->ask(id, NULL, 0), KVP_OK);
            want_event(serving, KVP_RDMA_REQUEST, &e);
            failed[1] += next_event(asking, &e) && e.kind == KVP_RDMA_UNREACHABLE;
        } else {
            assert_int_equal(e.kind, KVP_RDMA_UNREACHABLE);
            failed[0]++;
        }
        V->cm_close(asking);
        V->cm_close(serving);
        V->devs_close();
    }
    assert_true(failed[0] > 0);
    assert_true(failed[1] > 0);
}

/* The listener's side learns that the asker went away in one of two ways, and never that it is connected. */
static void
test_consent_to_an_asker_that_left(void **state)
{
    uint32_t seen[KVP_RDMA_GONE + 1] = {0};

    (void)state;
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
static void
test_end_of_a_peer_is_told_unless_silent(void **state)
{
    uint32_t twice = 0;

    (void)state;
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

/* Nobody hears of an end over a path that is down. */
static void
test_end_is_not_heard_over_a_dead_path(void **state)
{
    kvp_rdma_event_t e;
    rig_t r;

    (void)state;
    rig_up(&r, 1, NULL);
    model_nic_path(0, 0, false);
    V->id_close(r.id);
    assert_false(next_event(r.serving, &e));
    rig_down(&r);
}

static void
test_killed_process_does_nothing_more(void **state)
{
    kvp_rdma_wc_t wc;
    kvp_rdma_id_t *id;
    size_t n;
    rig_t r;

    (void)state;
    rig_up(&r, 1, NULL);
    post(&r, KVP_RDMA_WR_READ | KVP_RDMA_WR_SIGNALED, 0, LINE);
    model_nic_kill(r.asking, false);
    model_nic_settle();
    assert_true(is_all(r.local, BYTES, 1));
    assert_int_equal(V->poll(r.id, &wc, 1), 0);
    assert_int_equal(V->post(r.id, &(kvp_rdma_wr_t){0}, 1, &n), KVP_DISCONNECTED);
    assert_int_equal(V->arm(r.id), KVP_DISCONNECTED);
    assert_int_equal(V->connect(r.asking, &r.addr, NULL, &id), KVP_SYS);
    rig_down(&r);
}

/* Of two connections that end, either is told of first; nothing of an id comes after its id_close. */
static void
test_events_of_several_ids_come_in_any_order(void **state)
{
    uint32_t first[2] = {0};

    (void)state;
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

static void
test_channel_is_readable_while_something_comes(void **state)
{
    kvp_rdma_event_t e;
    rig_t r;

    (void)state;
    rig_up(&r, 1, NULL);
    assert_int_equal(V->cm_next(r.asking, &e), KVP_EAGAIN);
    assert_false(is_readable(r.asking->fd));
    V->id_close(r.peer);
    assert_true(is_readable(r.asking->fd));
    (void)count_events(r.asking, KVP_RDMA_GONE);
    assert_false(is_readable(r.asking->fd));
    rig_down(&r);
}

static void
test_steps_out_of_turn_are_refused(void **state)
{
    const kvp_rdma_caps_t caps = {.sends = 1, .sge = 1};
    kvp_rdma_wr_t wr = {0};
    kvp_rdma_event_t e;
    kvp_rdma_id_t *other;
    kvp_rdma_id_t *id;
    uint16_t port;
    size_t n;
    rig_t r;

    (void)state;
    rig_up(&r, 1, NULL);
    assert_int_equal(V->listen(r.serving, &r.addr, &id, &port), KVP_SYS); /* taken */
    assert_int_equal(V->connect(r.asking, &r.addr, NULL, &id), KVP_OK);
    assert_int_equal(V->qp_make(id, &caps), KVP_INVALID);
    assert_ptr_equal(want_event(r.asking, KVP_RDMA_RESOLVED, &e), id);
    assert_int_equal(V->ask(id, NULL, 0), KVP_INVALID);
    assert_int_equal(V->qp_make(id, &caps), KVP_OK);
    assert_int_equal(V->qp_make(id, &caps), KVP_INVALID);
    assert_int_equal(V->ask(id, "ask", KVP_RDMA_ASK_MAX + 1), KVP_INVALID);
    assert_int_equal(V->ask(id, "ask", 3), KVP_OK);
    other = want_event(r.serving, KVP_RDMA_REQUEST, &e);
    assert_int_equal(V->accept(other, NULL, 0), KVP_INVALID);
    assert_int_equal(V->qp_make(other, &caps), KVP_OK);
    assert_int_equal(V->accept(other, NULL, 0), KVP_OK);
    assert_int_equal(V->refuse(other, NULL, 0), KVP_INVALID);
    model_nic_settle();
    assert_int_equal(V->post(id, &wr, 1, &n), KVP_INVALID); /* its user has not been told */
    assert_ptr_equal(want_event(r.asking, KVP_RDMA_ESTABLISHED, &e), id);
    assert_int_equal(V->post(id, &wr, 1, &n), KVP_OK);
    rig_down(&r);
}

/* Both sides of a connection, its listener and a request that nobody has taken: all of them are on the device. */
static void
test_removed_device_waits_for_its_ids(void **state)
{
    rig_t r;

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        bool is_told = seed % 2 == 0;
        kvp_rdma_sge_t sge = {0};
        kvp_rdma_wr_t wr = {.sge = &sge};
        kvp_rdma_event_t e;
        kvp_rdma_id_t *id;
        size_t n, gone = 0;
        uint16_t port;

        rig_up(&r, seed, NULL);
        post(&r, KVP_RDMA_WR_SIGNALED, 0, BYTES);
        (void)ask(&r, 16);
        model_nic_remove(0, is_told);
        while (next_event(r.asking, &e) || next_event(r.serving, &e))
            gone += e.kind == KVP_RDMA_GONE;
        assert_int_equal(
            gone, is_told ? 3 : 0); /* the connection's sides, and who had asked; the listener is at all devices */
        assert_int_equal(V->post(r.id, &wr, 1, &n), KVP_DISCONNECTED);
        assert_int_equal(V->listen(r.serving, &r.devs[0]->info.addr, &id, &port), KVP_SYS);
        assert_int_equal(V->connect(r.asking, &r.addr, &r.devs[0]->info.addr, &id), KVP_SYS);
        assert_int_equal(model_nic_uses(0), 3);
        V->devs_look();
        assert_true(r.devs[0]->is_gone);
        rig_down(&r);
        assert_int_equal(model_nic_uses(0), 0);
    }
}

static void
test_device_that_is_back_has_other_keys(void **state)
{
    uint32_t lkey, rkey;
    rig_t r;

    (void)state;
    rig_up(&r, 1, NULL);
    lkey = r.local_reg->lkey;
    rkey = r.remote_reg->rkey;
    model_nic_remove(0, false);
    V->id_close(r.id);
    V->id_close(r.peer);
    assert_int_equal(model_nic_uses(0), 0);
    model_nic_return(0);
    assert_true(r.devs[0]->is_gone); /* until somebody has looked */
    V->devs_look();
    assert_false(r.devs[0]->is_gone);
    assert_int_equal(r.devs[0]->life, 1);
    assert_true(r.local_reg->lkey != lkey && r.remote_reg->rkey != rkey);
    r.id = connect_to(&r, 16, &r.peer);
    post(&r, KVP_RDMA_WR_READ | KVP_RDMA_WR_SIGNALED, 0, LINE);
    want_wc(r.id, 0, KVP_RDMA_WC_OK);
    rig_down(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusal_brings_its_data),
        cmocka_unit_test(test_refusal_without_a_listener_is_empty),
        cmocka_unit_test(test_connect_fails_without_a_way),
        cmocka_unit_test(test_asks_fail_by_chance),
        cmocka_unit_test(test_consent_to_an_asker_that_left),
        cmocka_unit_test(test_end_of_a_peer_is_told_unless_silent),
        cmocka_unit_test(test_end_is_not_heard_over_a_dead_path),
        cmocka_unit_test(test_killed_process_does_nothing_more),
        cmocka_unit_test(test_events_of_several_ids_come_in_any_order),
        cmocka_unit_test(test_channel_is_readable_while_something_comes),
        cmocka_unit_test(test_steps_out_of_turn_are_refused),
        cmocka_unit_test(test_removed_device_waits_for_its_ids),
        cmocka_unit_test(test_device_that_is_back_has_other_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
