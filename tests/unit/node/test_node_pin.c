/* SPDX-License-Identifier: Apache-2.0
 * Registering a segment in the background: in which order, what a failure costs, stopping under way, and that nobody
 * waits for it. */
#include "node/memory/pin.h"

#include "node/memory/tps.h"
#include "transport/all/registry.h"
#include "tests/unit/node/slowreg.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_BYTES (64u << 10)
#define CHUNKS                                                                                                         \
    40u /* more than there are threads, and two that are asked for; and than one client may ask keys of at a time */

typedef struct {
    kvp_node_mem_t *mem;
    kvp_tp_t *tp;
    kvp_node_pin_t pin;
} fixture_t;

static kvp_node_mem_t *
make_mem(void)
{
    kvp_node_mem_conf_t conf = {.size_bytes = (uint64_t)CHUNKS * CHUNK_BYTES, .chunk_bytes = CHUNK_BYTES};
    kvp_node_mem_t *mem;

    assert_int_equal(kvp_node_mem_create(&conf, &mem), KVP_OK);
    return mem;
}

static void
await_all(kvp_node_pin_t *pin)
{
    kvp_node_pinned_t bytes;

    do
        kvp_node_pin_bytes(pin, &bytes);
    while (bytes.registered + bytes.refused < bytes.total);
}

static void
setup(fixture_t *f)
{
    kvp_tp_conf_t conf = {.incarnation = 0};

    memset(f, 0, sizeof *f);
    f->mem = make_mem();
    assert_int_equal(kvp_tp_create(slow_reg_reset(), &conf, &f->tp), KVP_OK);
    for (uint32_t i = 0; i < CHUNKS; i++)
        atomic_store(&f->mem->chunks[i].mrs_err[0], KVP_EAGAIN);
}

static void
teardown(fixture_t *f)
{
    slow_reg_open();
    kvp_node_pin_stop(&f->pin);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        kvp_mr_destroy(f->mem->chunks[i].payload_mrs[0]);
        kvp_mr_destroy(f->mem->chunks[i].meta_mrs[0]);
    }
    kvp_tp_destroy(f->tp);
    kvp_node_mem_destroy(f->mem);
}

/* The chunk whose registration came to the gate as the i-th. */
static uint32_t
chunk_at(const fixture_t *f, uint32_t i)
{
    uint32_t chunk = 0;

    while (f->mem->chunks[chunk].payload.addr != slow_reg_at(i) && f->mem->chunks[chunk].meta.addr != slow_reg_at(i))
        chunk++;
    return chunk;
}

TEST(test_threads_are_few)
{
    assert_int_equal(kvp_node_pin_threads(-1, 100), 1);
    assert_int_equal(kvp_node_pin_threads(1, 100), 1);
    assert_int_equal(kvp_node_pin_threads(2, 100), 1);
    assert_int_equal(kvp_node_pin_threads(8, 100), 4);
    assert_int_equal(kvp_node_pin_threads(8, 3), 3);
    assert_int_equal(kvp_node_pin_threads(256, 100), KVP_NODE_PIN_THREADS_MAX);
}

/* One passes at a time, so that what a thread takes next is seen before anybody else takes anything. */
TEST(test_what_was_asked_for_goes_first)
{
    const uint32_t want[] = {11, 9, 11};
    uint32_t threads, seen = 0, others[CHUNKS] = {0}, others_n = 0;
    bool was_seen[CHUNKS] = {false};
    fixture_t f;

    setup(&f);
    assert_int_equal(kvp_node_pin_start(&f.pin, f.mem, &f.tp, 1), KVP_OK);
    threads = f.pin.threads_n;
    slow_reg_await(threads);
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(want); i++)
        kvp_node_pin_want(&f.pin, want[i]);
    for (uint32_t n = threads + 1; n <= 2 * CHUNKS; n++) { /* payload and metadata of each */
        slow_reg_let(1);
        slow_reg_await(n);
    }
    slow_reg_open();
    await_all(&f.pin);
    assert_int_equal(slow_reg_begun(), 2 * CHUNKS);
    for (uint32_t i = 0; i < 2 * CHUNKS; i++) {
        uint32_t chunk = chunk_at(&f, i);

        if (!was_seen[chunk] && i >= threads) others[others_n++] = chunk;
        if (!was_seen[chunk]) seen++;
        was_seen[chunk] = true;
    }
    assert_int_equal(seen, CHUNKS);
    assert_int_equal(others[0], 11); /* the first that was taken after somebody asked */
    assert_int_equal(others[1], 9);
    for (uint32_t i = 3; i < others_n; i++)
        assert_true(others[i - 1] < others[i]);
    for (uint32_t i = 0; i < CHUNKS; i++)
        assert_int_equal(f.mem->chunks[i].mrs_err[0], KVP_OK);
    kvp_node_pin_want(&f.pin, 0); /* it is over: nothing happens */
    teardown(&f);
}

/* It costs the chunk, for good and as a whole, and no other. */
TEST(test_a_chunk_that_cannot_be_registered_is_refused)
{
    kvp_node_pinned_t bytes;
    fixture_t f;

    setup(&f);
    slow_reg_fail(f.mem->chunks[1].payload.addr, KVP_NOMEM);
    slow_reg_fail(f.mem->chunks[4].meta.addr, KVP_NOMEM);
    slow_reg_open();
    assert_int_equal(kvp_node_pin_start(&f.pin, f.mem, &f.tp, 1), KVP_OK);
    await_all(&f.pin);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        const kvp_node_chunk_t *c = &f.mem->chunks[i];
        bool is_bad = i == 1 || i == 4;

        assert_int_equal(atomic_load_explicit(&c->mrs_err[0], memory_order_acquire), is_bad ? KVP_NOTSUP : KVP_OK);
        assert_true((c->payload_mrs[0] == NULL) == is_bad && (c->meta_mrs[0] == NULL) == is_bad);
    }
    kvp_node_pin_bytes(&f.pin, &bytes);
    assert_int_equal(bytes.total, CHUNKS * CHUNK_BYTES);
    assert_int_equal(bytes.registered, (CHUNKS - 2) * CHUNK_BYTES);
    assert_int_equal(bytes.refused, 2 * CHUNK_BYTES);
    teardown(&f);
}

static void *
stop_pin(void *arg)
{
    kvp_node_pin_stop(&((fixture_t *)arg)->pin);
    return NULL;
}

/* Stops it while registrations wait at the gate, and lets them pass once it knows that it is to stop. */
static void
stop_under_way(fixture_t *f)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, stop_pin, f), 0);
    for (bool is_stopping = false; !is_stopping;) {
        pthread_mutex_lock(&f->pin.lock);
        is_stopping = f->pin.is_stopping;
        pthread_mutex_unlock(&f->pin.lock);
    }
    slow_reg_open();
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* It ends with the chunks of the moment, and begins no other. */
TEST(test_stop_waits_for_what_is_under_way_alone)
{
    uint32_t threads, done = 0;
    fixture_t f;

    setup(&f);
    assert_int_equal(kvp_node_pin_start(&f.pin, f.mem, &f.tp, 1), KVP_OK);
    threads = f.pin.threads_n;
    slow_reg_await(threads);
    stop_under_way(&f);
    assert_int_equal(slow_reg_begun(), 2 * threads);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        kvp_err_t err = f.mem->chunks[i].mrs_err[0];

        assert_true(err == KVP_OK || err == KVP_EAGAIN);
        assert_true((f.mem->chunks[i].payload_mrs[0] != NULL) == (err == KVP_OK));
        done += err == KVP_OK;
    }
    assert_int_equal(done, threads);
    teardown(&f);
}

/* All that is to be registered is, and none that was asked for is under way. */
static void
setup_registered(fixture_t *f)
{
    setup(f);
    slow_reg_open();
    assert_int_equal(kvp_node_pin_start(&f->pin, f->mem, &f->tp, 1), KVP_OK);
    await_all(&f->pin);
}

static kvp_err_t export(const fixture_t *f, uint32_t chunk, uint64_t incarnation)
{
    kvp_token_t token;
    kvp_err_t err = f->tp->ops->mr_export(f->mem->chunks[chunk].payload_mrs[0], KVP_ACCESS_WRITE, incarnation, &token);

    if (err != KVP_OK) return err;
    return f->tp->ops->mr_export(f->mem->chunks[chunk].meta_mrs[0], KVP_ACCESS_WRITE, incarnation, &token);
}

static uint32_t
grants_n(fixture_t *f)
{
    uint32_t n;

    pthread_mutex_lock(&f->pin.lock);
    n = f->pin.grants_n;
    pthread_mutex_unlock(&f->pin.lock);
    return n;
}

/* Who asks does not wait, and finds them later; asking again meanwhile begins nothing. */
TEST(test_keys_of_a_writer_are_made_by_the_threads)
{
    uint32_t begun;
    fixture_t f;

    setup_registered(&f);
    begun = slow_reg_begun();
    slow_reg_shut();
    assert_int_equal(export(&f, 3, 77), KVP_EAGAIN);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(kvp_node_pin_grant(&f.pin, 0, 3, 77), KVP_EAGAIN);
    slow_reg_await(begun + 1);
    assert_ptr_equal(slow_reg_at(begun), f.mem->chunks[3].payload.addr);
    assert_int_equal(kvp_node_pin_grant(&f.pin, 0, 3, 77), KVP_EAGAIN);
    assert_int_equal(export(&f, 3, 77), KVP_EAGAIN);
    slow_reg_let(1);
    slow_reg_await(begun + 2);
    assert_int_equal(export(&f, 3, 77), KVP_EAGAIN); /* of the metadata they are not there */
    slow_reg_open();
    while (grants_n(&f) > 0)
        usleep(100);
    assert_int_equal(export(&f, 3, 77), KVP_OK);
    assert_int_equal(export(&f, 3, 78), KVP_EAGAIN); /* they are one client's */
    assert_int_equal(slow_reg_begun(), begun + 2);
    teardown(&f);
}

/* What waits is forgotten; what is being made is given back when it is, the second part as well as the first. */
TEST(test_keys_of_whoever_has_left_are_given_back)
{
    for (uint32_t passed = 0; passed < 2; passed++) {
        uint32_t begun, chunks;
        fixture_t f;

        setup_registered(&f);
        begun = slow_reg_begun();
        slow_reg_shut();
        chunks = f.pin.threads_n + 1;
        for (uint32_t chunk = 0; chunk < chunks; chunk++)
            assert_int_equal(kvp_node_pin_grant(&f.pin, 0, chunk, 77), KVP_EAGAIN);
        slow_reg_await(begun + f.pin.threads_n);
        slow_reg_let(passed * f.pin.threads_n);
        slow_reg_await(begun + (1 + passed) * f.pin.threads_n);
        kvp_node_pin_left(&f.pin, 77);
        f.tp->ops->peer_left(f.tp, 77);
        assert_int_equal(grants_n(&f), f.pin.threads_n);
        assert_int_equal(kvp_node_pin_grant(&f.pin, 0, chunks, 78), KVP_EAGAIN);
        slow_reg_open();
        while (export(&f, chunks, 78) != KVP_OK || grants_n(&f) > 0 || slow_reg_granted() > 2)
            usleep(100);
        assert_int_equal(export(&f, 0, 77), KVP_EAGAIN);
        assert_int_equal(slow_reg_begun(), begun + 2 * f.pin.threads_n + 2);
        teardown(&f);
    }
}

/* It has come again before they were made: nothing of it is ended then, and what it asked for is there. */
TEST(test_keys_of_whoever_has_come_again_stay)
{
    uint32_t begun;
    fixture_t f;

    setup_registered(&f);
    begun = slow_reg_begun();
    slow_reg_shut();
    assert_int_equal(kvp_node_pin_grant(&f.pin, 0, 3, 77), KVP_EAGAIN);
    slow_reg_await(begun + 1);
    kvp_node_pin_left(&f.pin, 77);
    f.tp->ops->peer_left(f.tp, 77);
    kvp_node_pin_came(&f.pin, 77);
    slow_reg_open();
    while (grants_n(&f) > 0)
        usleep(100);
    assert_int_equal(export(&f, 3, 77), KVP_OK);
    teardown(&f);
}

/* What kept them from being made is told to who comes back, and then it is tried again. */
TEST(test_keys_that_cannot_be_made_are_told_once)
{
    uint32_t begun;
    kvp_err_t err;
    fixture_t f;

    setup_registered(&f);
    begun = slow_reg_begun();
    slow_reg_fail(f.mem->chunks[2].meta.addr, KVP_NOMEM);
    slow_reg_fail(f.mem->chunks[5].payload.addr, KVP_FENCED);
    while ((err = kvp_node_pin_grant(&f.pin, 0, 2, 77)) == KVP_EAGAIN)
        usleep(100);
    assert_int_equal(err, KVP_NOMEM);
    assert_int_equal(slow_reg_begun(), begun + 2);
    assert_int_equal(grants_n(&f), 0);
    assert_int_equal(kvp_node_pin_grant(&f.pin, 0, 2, 77), KVP_EAGAIN);
    slow_reg_await(begun + 3);
    assert_int_equal(kvp_node_pin_grant(&f.pin, 0, 5, 77), KVP_EAGAIN);
    slow_reg_await(begun + 4);
    while (grants_n(&f) > 1) /* nobody who is fenced comes back */
        usleep(100);
    teardown(&f);
}

/* However many are asked for, by one client or by many: a number of places are taken, and whoever comes back gets
 * through. */
TEST(test_keys_that_are_asked_for_are_bounded)
{
    enum { CLIENTS = 60 };
    fixture_t f;

    setup_registered(&f);
    slow_reg_shut();
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        assert_int_equal(kvp_node_pin_grant(&f.pin, 0, chunk, 1), KVP_EAGAIN);
    assert_int_equal(grants_n(&f), KVP_NODE_GRANTS_EACH);
    for (uint64_t client = 1; client <= CLIENTS; client++)
        for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
            assert_int_equal(kvp_node_pin_grant(&f.pin, 0, chunk, client), KVP_EAGAIN);
    assert_int_equal(grants_n(&f), KVP_NODE_GRANTS_MAX);
    slow_reg_fail(f.mem->chunks[0].payload.addr, KVP_NOMEM); /* these places are taken from who does not come back */
    slow_reg_open();
    for (uint32_t chunk = 1; chunk < CHUNKS; chunk += 8)
        for (uint64_t client = 1; client <= CLIENTS / 2; client++)
            while (export(&f, chunk, client) != KVP_OK)
                assert_int_equal(kvp_node_pin_grant(&f.pin, 0, chunk, client), KVP_EAGAIN);
    teardown(&f);
}

/* What could not be made takes no place from what can, where nobody comes back for the one. */
TEST(test_keys_that_cannot_be_made_stand_in_nobodys_way)
{
    enum { BAD = 4 }; /* chunks */
    fixture_t f;

    setup_registered(&f);
    for (uint32_t chunk = 0; chunk < BAD; chunk++)
        slow_reg_fail(f.mem->chunks[chunk].payload.addr, KVP_NOMEM);
    for (uint64_t client = 1; client <= KVP_NODE_GRANTS_MAX / BAD; client++)
        for (uint32_t chunk = 0; chunk < BAD; chunk++)
            assert_int_equal(kvp_node_pin_grant(&f.pin, 0, chunk, client), KVP_EAGAIN);
    assert_int_equal(grants_n(&f), KVP_NODE_GRANTS_MAX);
    while (export(&f, BAD, 1) != KVP_OK)
        assert_int_equal(kvp_node_pin_grant(&f.pin, 0, BAD, 1), KVP_EAGAIN);
    teardown(&f);
}

/* It ends with those that are under way, and begins none of the rest. */
TEST(test_stop_leaves_keys_that_wait)
{
    uint32_t begun, threads;
    fixture_t f;

    setup_registered(&f);
    begun = slow_reg_begun();
    threads = f.pin.threads_n;
    slow_reg_shut();
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        assert_int_equal(kvp_node_pin_grant(&f.pin, 0, chunk, 77), KVP_EAGAIN);
    slow_reg_await(begun + threads);
    stop_under_way(&f);
    assert_int_equal(slow_reg_begun(), begun + 2 * threads);
    teardown(&f);
}

static char last_line[1024];

static void
take_line(void *arg, kvp_log_level_t level, const char *line)
{
    (void)arg;
    if (level == KVP_LOG_ERROR) snprintf(last_line, sizeof last_line, "%s", line);
}

/* What a device does not take at once is found before anything is registered; what it takes none of, by a small part.
 */
TEST(test_what_cannot_be_had_at_all_is_told_at_once)
{
    fixture_t f;

    setup(&f);
    slow_reg_open();
    f.tp->mr_max_bytes = CHUNK_BYTES - 1;
    kvp_log_set_sink(take_line, NULL);
    assert_int_equal(kvp_node_pin_check(f.tp, f.mem), KVP_INVALID);
    kvp_log_set_sink(NULL, NULL);
    assert_non_null(strstr(last_line, "--chunk-bytes"));
    assert_non_null(strstr(last_line, "65535"));
    assert_int_equal(slow_reg_begun(), 0);
    f.tp->mr_max_bytes = f.mem->chunks[0].payload.len; /* what describes the objects is more than they are */
    assert_true(f.mem->chunks[0].meta.len > f.tp->mr_max_bytes);
    assert_int_equal(kvp_node_pin_check(f.tp, f.mem), KVP_INVALID);
    f.tp->mr_max_bytes = f.mem->chunks[0].meta.len;
    assert_int_equal(kvp_node_pin_check(f.tp, f.mem), KVP_OK);
    assert_int_equal(slow_reg_begun(), 1);
    slow_reg_fail(f.mem->chunks[0].payload.addr, KVP_NOMEM);
    assert_int_equal(kvp_node_pin_check(f.tp, f.mem), KVP_NOMEM);
    teardown(&f);
}

/* The transports of a node: those that are quick serve at once. */
TEST(test_nobody_waits_for_the_slow_one)
{
    const kvp_transport_ops_t *ops[2] = {kvp_transport_find("shm"), slow_reg_reset()};
    kvp_hostport_t at = {.host = "127.0.0.1"};
    kvp_node_mem_t *mem = make_mem();
    char names[KVP_NODE_TPS_TEXT_MAX];
    kvp_node_tps_t *t = calloc(1, sizeof *t);
    kvp_node_pinned_t bytes;

    assert_non_null(t);
    slow_reg_let(1); /* the check; all else waits at the gate */
    assert_int_equal(kvp_node_tps_start(t, ops, 2, 3, 1, &at, mem, NULL), KVP_OK);
    kvp_node_tps_names(t, names);
    assert_string_equal(names, "shm,slow");
    for (uint32_t i = 0; i < CHUNKS; i++) {
        assert_int_equal(mem->chunks[i].mrs_err[0], KVP_OK);
        assert_non_null(mem->chunks[i].payload_mrs[0]);
        assert_int_equal(mem->chunks[i].mrs_err[1], KVP_EAGAIN);
    }
    kvp_node_pin_bytes(&t->pin, &bytes);
    assert_int_equal(bytes.registered, 0);
    slow_reg_open();
    kvp_node_tps_stop(t);
    kvp_node_mem_destroy(mem);
    free(t);
}

TEST_MAIN()
