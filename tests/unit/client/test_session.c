/* SPDX-License-Identifier: Apache-2.0
 * The session with a master: pipelining over threads, deadlines, late answers, reconnecting, and closing under load. */
#include "common/clock.h"
#include "tests/unit/client/fakehandle.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 6

static int
ask(uint32_t deadline_ms)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts, .deadline_ms = deadline_ms};
    int yes;

    return kvpool_exists(pool, "k", 1, &yes, &opts);
}

/* The session from now on is one that a moment without a heartbeat does not end. */
static void
let_it_last(void)
{
    master.ttl_ms = 10000;
    master.server.is_cutting = true; /* so that a session is told so */
    while (master.hellos < 2)
        assert_int_equal(ask(5000), KVPOOL_OK);
}

/* Each thread asks for its own keys and compares with what a lone question says. */
typedef struct {
    int id;
    int rounds;
    int last_err;
} asker_t;

static void *
ask_often(void *arg)
{
    asker_t *a = arg;

    for (int i = 0; i < a->rounds; i++) {
        char text[3][32];
        kvpool_key_t keys[3];
        int many[3], one;

        for (int k = 0; k < 3; k++)
            keys[k] =
                (kvpool_key_t){text[k], (size_t)snprintf(text[k], sizeof text[k], "key %d of %d for %d", k, i, a->id)};
        a->last_err = kvpool_batch_is_exist(pool, keys, 3, NULL, many);
        if (a->last_err == KVPOOL_OK && many[0] < 0) a->last_err = many[0];
        if (a->last_err == KVPOOL_OK) a->last_err = kvpool_exists(pool, keys[2].data, keys[2].len, &one, NULL);
        if (a->last_err != KVPOOL_OK) return NULL;
        assert_int_equal(one, many[2]);
    }
    return NULL;
}

static void
start_askers(asker_t *askers, pthread_t *threads, int rounds)
{
    for (int i = 0; i < THREADS; i++) {
        askers[i] = (asker_t){.id = i, .rounds = rounds};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, &askers[i]), 0);
    }
}

TEST_WITH(test_answers_go_to_who_asked, setup, teardown)
{
    asker_t askers[THREADS];
    pthread_t threads[THREADS];

    let_it_last();
    master.exists = 0;
    start_askers(askers, threads, 500);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(askers[i].last_err, KVPOOL_OK);
    }
    assert_int_equal(master.exists, THREADS * 500 * 2);
}

TEST_WITH(test_large_batches_are_split, setup, teardown)
{
    enum { KEYS = 40000 };
    kvpool_key_t *keys = calloc(KEYS, sizeof *keys);
    int *results = calloc(KEYS, sizeof *results);
    char(*texts)[16] = calloc(KEYS, 16);

    assert_true(keys != NULL && results != NULL && texts != NULL);
    for (int i = 0; i < KEYS; i++)
        keys[i] = (kvpool_key_t){texts[i], (size_t)snprintf(texts[i], 16, "%d", i)};
    assert_int_equal(kvpool_batch_is_exist(pool, keys, KEYS, NULL, results), KVPOOL_OK);
    assert_int_equal(master.exists, (KEYS + KVPOOL_BATCH_MAX - 1) / KVPOOL_BATCH_MAX);
    for (int i = 0; i < KEYS; i += 997) {
        int one;
        assert_int_equal(kvpool_exists(pool, keys[i].data, keys[i].len, &one, NULL), KVPOOL_OK);
        assert_int_equal(one, results[i]);
    }
    free(keys), free(results), free(texts);
}

/* Asks to remove the keys "0" to n - 1, of which `bad` is none. */
static void
remove_numbers(int *results, size_t n, size_t bad)
{
    kvpool_key_t *keys = calloc(n, sizeof *keys);
    char(*texts)[16] = calloc(n, 16);

    assert_true(keys != NULL && texts != NULL);
    for (size_t i = 0; i < n; i++)
        keys[i] = (kvpool_key_t){texts[i], i == bad ? 0 : (size_t)snprintf(texts[i], 16, "%zu", i)};
    assert_int_equal(kvpool_batch_remove(pool, keys, n, NULL, results), KVPOOL_OK);
    free(keys), free(texts);
}

/* What one removal of each says, which is what the batch has to say. */
static void
check_removed(const int *results, size_t n, size_t bad)
{
    size_t removed = 0;
    char text[16];

    for (size_t i = 0; i < n; i++) {
        size_t len = (size_t)snprintf(text, sizeof text, "%zu", i);

        assert_int_equal(results[i], i == bad ? KVPOOL_BAD_KEY : kvpool_remove(pool, text, len, NULL));
        removed += results[i] == KVPOOL_OK;
    }
    assert_true(removed > 0 && removed < n - 1);
}

TEST_WITH(test_many_removals_are_few_questions, setup, teardown)
{
    enum { KEYS = 1000, BAD = 600 };
    int results[KEYS];

    let_it_last();
    remove_numbers(results, KEYS, BAD);
    assert_int_equal(master.removes, 2); /* of 512 keys at most */
    check_removed(results, KEYS, BAD);
    master.removes = 0;
    assert_int_equal(kvpool_batch_remove(pool, NULL, 0, NULL, NULL), KVPOOL_OK);
    assert_int_equal(master.removes, 0);
}

/* What is held is asked about twice, what is not possible at this moment until it is; and of nothing more often. */
TEST_WITH(test_removals_that_are_refused_first, setup, teardown)
{
    enum { KEYS = 100 };
    const int refusals[] = {KVPOOL_HELD, KVPOOL_RETRY_AFTER};
    int results[KEYS];

    for (size_t i = 0; i < 2; i++) {
        master.removes = 0;
        master.remove_err = refusals[i];
        remove_numbers(results, KEYS, KEYS);
        assert_int_equal(master.removes, 2);
        check_removed(results, KEYS, KEYS);
    }
    master.removes = 0;
    master.remove_err = KVPOOL_INTERNAL;
    remove_numbers(results, KEYS, KEYS);
    assert_int_equal(master.removes, 1);
    for (size_t i = 0; i < KEYS; i++)
        assert_int_equal(results[i], KVPOOL_INTERNAL);
}

/* A master that answers nothing: each key has the error when the deadline is over, not a deadline of its own. */
TEST_WITH(test_removals_meet_one_deadline, setup, teardown)
{
    enum { KEYS = 1000 };
    int results[KEYS];
    uint64_t begun;

    setup_for(300);
    let_it_last();
    master.is_mute = true;
    begun = kvp_now_ns();
    remove_numbers(results, KEYS, KEYS);
    assert_in_range(kvp_now_ns() - begun, 300 * KVP_NS_PER_MS, 3000 * KVP_NS_PER_MS);
    for (size_t i = 0; i < KEYS; i++)
        assert_int_equal(results[i], KVPOOL_DEADLINE);
}

TEST_WITH(test_late_answers_are_dropped, setup, teardown)
{
    let_it_last();
    master.delay_ms = 60;
    assert_int_equal(ask(10), KVPOOL_DEADLINE);
    assert_int_equal(ask(10), KVPOOL_DEADLINE);
    master.delay_ms = 0;
    assert_int_equal(ask(5000), KVPOOL_OK);
    assert_int_equal(master.hellos, 2);
}

/* A hold whose get did not wait for it would last as long as the session. */
TEST_WITH(test_late_holds_are_given_back, setup, teardown)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts, .deadline_ms = 10};
    size_t len;

    master.delay_ms = 60;
    assert_int_equal(kvpool_get(pool, "k", 1, &len, sizeof len, &len, &opts), KVPOOL_DEADLINE);
    while (master.releases < 1) /* the next heartbeat finds it */
        sched_yield();
    master.delay_ms = 0;
    assert_int_equal(kvpool_get(pool, "k", 1, &len, sizeof len, &len, NULL), KVPOOL_NOT_FOUND);
    assert_int_equal(ask(5000), KVPOOL_OK);
    assert_int_equal(master.releases, 2);
}

TEST_WITH(test_cut_connection_is_made_anew, setup, teardown)
{
    for (uint64_t i = 1; i <= 5; i++) {
        master.server.is_cutting = true;
        while (master.server.is_cutting)
            sched_yield();
        assert_int_equal(ask(5000), KVPOOL_OK);
        assert_true(master.hellos > i);
        assert_true(master.last_before > 0); /* it tells which session it had before */
    }
}

/* Each try is a connection and a Hello, for which others of the master wait. */
TEST_WITH(test_a_master_that_drops_everybody_is_not_hammered, setup, teardown)
{
    master.is_dropping = true;
    assert_int_not_equal(ask(500), KVPOOL_OK);
    assert_in_range(master.hellos, 2, 12); /* after 20, 40, 80 ... ms on average */
    master.is_dropping = false;
    assert_int_equal(ask(5000), KVPOOL_OK);
}

TEST_WITH(test_fenced_session_is_made_anew, setup, teardown)
{
    master.is_fencing = true;
    while (master.hellos < 2)
        sched_yield();
    master.is_fencing = false;
    assert_int_equal(ask(5000), KVPOOL_OK);
}

/* A master that takes everything and answers nothing is found out by its heartbeat. */
TEST_WITH(test_silent_master_is_left, setup, teardown)
{
    master.ttl_ms = 200;
    master.server.is_cutting = true; /* so that a session has the shorter life */
    while (master.hellos < 2)
        assert_int_equal(ask(5000), KVPOOL_OK);
    master.is_mute = true;
    while (ask(400) != KVPOOL_UNREACHABLE) /* at first DEADLINE: the session is still believed in */
        sched_yield();
    master.is_mute = false;
    assert_int_equal(ask(5000), KVPOOL_OK);
}

TEST_WITH(test_close_ends_calls_under_way, setup, teardown)
{
    asker_t askers[THREADS];
    pthread_t threads[THREADS];
    uint64_t began;

    start_askers(askers, threads, 1 << 30);
    while (master.exists < 100)
        sched_yield();
    master.is_mute = true; /* now they all wait */
    began = kvp_now_ns();
    assert_int_equal(kvpool_close(pool), KVPOOL_OK);
    assert_in_range(kvp_now_ns() - began, 0, 5000 * KVP_NS_PER_MS);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(askers[i].last_err, KVPOOL_CLOSED);
    }
    master.is_mute = false;
}

TEST_WITH(test_close_ends_reconnecting, setup, teardown)
{
    asker_t asker;
    pthread_t thread;

    end_master();
    asker = (asker_t){.rounds = 1 << 30};
    assert_int_equal(pthread_create(&thread, NULL, ask_often, &asker), 0);
    assert_int_equal(ask(100), KVPOOL_UNREACHABLE);
    assert_int_equal(kvpool_close(pool), KVPOOL_OK);
    pthread_join(thread, NULL);
    assert_int_equal(asker.last_err, KVPOOL_CLOSED);
}

TEST_WITH(test_places_that_do_not_fit_are_refused, setup, teardown)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts, .flags = KVPOOL_PLACES};
    static const uint8_t wrong[] = {KVPOOL_ON_SSD, 7, 8 | KVPOOL_PRESENT};
    kvpool_key_t key = {"k", 1};
    kvpool_lookup_t lookup;
    uint8_t present = 0;

    master.found_byte = KVPOOL_PRESENT | KVPOOL_ON_HOST;
    assert_int_equal(kvpool_lookup(pool, &key, 1, 0, &opts, &present, &lookup), KVPOOL_OK);
    assert_int_equal(present, KVPOOL_PRESENT | KVPOOL_ON_HOST);
    for (uint32_t i = 0; i < sizeof wrong; i++) {
        master.found_byte = wrong[i];
        assert_int_equal(kvpool_lookup(pool, &key, 1, 0, &opts, &present, &lookup), KVPOOL_PROTO);
    }
}

TEST_WITH(test_release_is_sent_and_not_waited_for, setup, teardown)
{
    kvpool_key_t key = {"k", 1};
    kvpool_lookup_t lookup;

    assert_int_equal(kvpool_lookup(pool, &key, 1, 0, NULL, NULL, &lookup), KVPOOL_OK);
    assert_int_equal(kvpool_lookup_release(pool, &lookup), KVPOOL_OK);
    assert_int_equal(ask(5000), KVPOOL_OK);
    assert_int_equal(master.releases, 1);
    assert_int_equal(kvpool_lookup_release(pool, &lookup), KVPOOL_OK); /* it is over already */
    lookup.ticket = 0;
    assert_int_equal(kvpool_lookup_release(pool, &lookup), KVPOOL_OK);
    assert_int_equal(ask(5000), KVPOOL_OK);
    assert_int_equal(master.releases, 1);
}

/* Asked for again as long as the master says so; and what is given back later is the ticket of the new session. */
TEST_WITH(test_reservation_is_presented_in_the_next_session, setup, teardown)
{
    kvpool_key_t key = {"k", 1};
    kvpool_lookup_t lookup;

    assert_int_equal(kvpool_lookup(pool, &key, 1, 0, NULL, NULL, &lookup), KVPOOL_OK);
    master.present_err = KVP_RETRY_AFTER;
    master.server.is_cutting = true;
    while (master.presents < 3)
        sched_yield();
    master.present_err = KVP_OK;
    while (master.honoured == 0)
        sched_yield();
    assert_int_equal(ask(5000), KVPOOL_OK);
    assert_int_equal(master.hellos, 2);
    assert_int_equal(kvpool_lookup_release(pool, &lookup), KVPOOL_OK);
    while (master.releases == 0) /* by who presented, if the answer to that was not read yet */
        sched_yield();
    assert_int_equal(ask(5000), KVPOOL_OK);
    assert_int_equal(master.releases, 1);
    assert_int_equal(master.last_released, 1000);
}

static void *
put_in_vain(void *arg)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts, .deadline_ms = 5000};

    (void)arg;
    /* The master does not answer it. */
    assert_int_equal(kvpool_put(pool, "k", 1, "v", 1, &opts), KVPOOL_DEADLINE);
    return NULL;
}

/* Heartbeats of a second, and while a put is under way four of them. */
TEST_TIMED(test_heartbeats_come_often_while_a_put_is_under_way, setup, teardown)
{
    pthread_t putter;
    uint64_t heartbeats, began;

    master.heartbeat_ms = 1000;
    let_it_last();
    assert_int_equal(pthread_create(&putter, NULL, put_in_vain, NULL), 0);
    heartbeats = master.heartbeats;
    began = kvp_now_ns();
    while (master.heartbeats < heartbeats + 4)
        sched_yield();
    assert_timely(kvp_now_ns() - began, 0, 2500 * KVP_NS_PER_MS);
    pthread_join(putter, NULL);
}

/* ---- a master that is away */
#define WAIT_MS 300u
#define OWN_MS 1000u /* of a call that gives no deadline */

static void
reopen(uint32_t wait_ms)
{
    kvpool_conf_t conf = conf_of(OWN_MS);

    conf.master_wait_ms = wait_ms;
    kvpool_free(pool);
    pool = NULL;
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
}

/* A handle whose calls wait for WAIT_MS together, or as long as $KVPOOL_MASTER_WAIT says; its master says no from now
 * on. */
static void
lose_master(uint32_t wait_ms)
{
    reopen(wait_ms);
    master.hello_err = KVPOOL_BUSY;
    master.server.is_cutting = true;
    while (master.server.is_cutting)
        sched_yield();
}

static uint64_t
ms_since(uint64_t began_ns)
{
    return (kvp_now_ns() - began_ns) / KVP_NS_PER_MS;
}

/* How long one takes that finds no master. */
static uint64_t
ask_in_vain(uint32_t deadline_ms, uint32_t flags)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts, .deadline_ms = deadline_ms, .flags = flags};
    uint64_t began = kvp_now_ns();
    int yes;

    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_UNREACHABLE);
    return ms_since(began);
}

/* All kinds of calls, none of which may wait; of the first hundred rounds the fastest counts, since the machine may be
 * busy. */
static uint64_t
all_in_vain(void)
{
    kvpool_key_t key = {"k", 1};
    kvpool_lookup_t lookup;
    kvpool_view_t view;
    uint64_t best = UINT64_MAX;
    size_t len;
    char byte;

    for (int i = 0; i < 100; i++) {
        uint64_t began = kvp_now_ns();

        assert_int_equal(kvpool_get(pool, "k", 1, &byte, 1, &len, NULL), KVPOOL_UNREACHABLE);
        assert_int_equal(kvpool_put(pool, "k", 1, "v", 1, NULL), KVPOOL_UNREACHABLE);
        assert_int_equal(kvpool_size(pool, "k", 1, &len, NULL), KVPOOL_UNREACHABLE);
        assert_int_equal(kvpool_longest_prefix(pool, &key, 1, 0, NULL, NULL, &lookup), KVPOOL_UNREACHABLE);
        assert_int_equal(kvpool_view(pool, "k", 1, NULL, &view), KVPOOL_UNREACHABLE);
        best = kvp_min_u64(best, ms_since(began));
    }
    return best;
}

TEST_TIMED(test_calls_wait_once_for_a_master_that_is_away, setup, teardown)
{
    uint64_t began, hellos;

    lose_master(WAIT_MS);
    assert_timely(ask_in_vain(0, 0), WAIT_MS - 50, OWN_MS - 1);
    assert_timely(all_in_vain(), 0, 4);
    assert_timely(ask_in_vain(5000, KVPOOL_SOON), 0, OWN_MS);
    /* Who says how long, and who removes, waits as ever; meanwhile the master is looked for every 200 ms at least. */
    assert_timely(ask_in_vain(400, 0), 400, 5000);
    began = kvp_now_ns();
    hellos = master.hellos;
    assert_int_equal(kvpool_remove(pool, "k", 1, NULL), KVPOOL_UNREACHABLE);
    assert_timely(ms_since(began), OWN_MS, 5000);
    assert_timely(master.hellos - hellos, 4, 60);
    master.hello_err = 0;
    began = kvp_now_ns();
    while (ask(0) != KVPOOL_OK)
        sched_yield();
    assert_timely(ms_since(began), 0, 1000);
}

/* One that is there for a moment gives nobody another wait; one that lasted does. */
TEST_TIMED(test_calls_wait_again_behind_a_session_that_lasted, setup, teardown)
{
    uint64_t connected;

    lose_master(WAIT_MS);
    assert_timely(ask_in_vain(0, 0), WAIT_MS - 50, OWN_MS - 1);
    for (int lasting = 0; lasting < 2; lasting++) {
        master.hello_err = 0;
        assert_int_equal(ask(5000), KVPOOL_OK);
        connected = kvp_now_ns();
        while (lasting && ms_since(connected) < 2100)
            assert_int_equal(ask(5000), KVPOOL_OK);
        master.hello_err = KVPOOL_BUSY;
        master.server.is_cutting = true;
        while (master.server.is_cutting)
            sched_yield();
        if (lasting)
            assert_timely(ask_in_vain(0, 0), WAIT_MS - 50, OWN_MS - 1);
        else
            assert_timely(ask_in_vain(0, 0), 0, WAIT_MS - 50);
    }
}

TEST_TIMED(test_the_environment_says_how_long_a_master_is_waited_for, setup, teardown)
{
    kvpool_conf_t conf = conf_of(OWN_MS);
    kvpool_t *none = NULL;

    setenv("KVPOOL_MASTER_WAIT", "a while", 1);
    assert_int_equal(kvpool_open(&conf, &none), KVPOOL_INVALID);
    setenv("KVPOOL_MASTER_WAIT", "300ms", 1);
    lose_master(0);
    assert_timely(ask_in_vain(0, 0), WAIT_MS - 50, OWN_MS - 1);
    assert_timely(all_in_vain(), 0, 4);
    master.hello_err = 0;
    lose_master(UINT32_MAX); /* the program's word goes before it */
    assert_timely(ask_in_vain(0, 0), OWN_MS, 5000);
    unsetenv("KVPOOL_MASTER_WAIT");
    master.hello_err = 0;
    lose_master(0);
    for (int i = 0; i < 2; i++)
        assert_timely(ask_in_vain(0, 0), OWN_MS, 5000);
}

/* A handle whose calls wait for WAIT_MS together, and whose master has a session of ten seconds with it, and takes a
 * stop now. */
static void
stop_master(uint32_t heartbeat_ms)
{
    master.ttl_ms = 10000;
    master.heartbeat_ms = heartbeat_ms;
    reopen(WAIT_MS);
    master.server.is_deaf = true;
}

static uint64_t
timed_in_vain(void)
{
    uint64_t began = kvp_now_ns();
    int err = ask(0);

    assert_true(err == KVPOOL_DEADLINE || err == KVPOOL_UNREACHABLE);
    return ms_since(began);
}

static void *
ask_beside(void *arg)
{
    *(uint64_t *)arg = timed_in_vain();
    return NULL;
}

/* Whether a heartbeat of the background thread waits as well (every 20 ms), or nobody reads but the calls. */
TEST_TIMED(test_calls_wait_once_for_a_master_that_is_stopped, setup, teardown)
{
    const uint32_t heartbeats_ms[] = {20, 60000};

    for (size_t i = 0; i < 2; i++) {
        uint64_t began, hellos, took_ms[3];
        pthread_t threads[3];

        stop_master(heartbeats_ms[i]);
        hellos = master.hellos;
        for (int t = 0; t < 3; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, ask_beside, &took_ms[t]), 0);
        for (int t = 0; t < 3; t++) {
            pthread_join(threads[t], NULL);
            assert_timely(took_ms[t], 0, OWN_MS - 1);
        }
        assert_timely(took_ms[0], WAIT_MS - 50, OWN_MS - 1);
        assert_timely(all_in_vain(), 0, 4);
        began = kvp_now_ns(); /* who says how long, and who removes, waits as ever */
        assert_int_equal(ask(400), KVPOOL_DEADLINE);
        assert_timely(ms_since(began), 400, 5000);
        began = kvp_now_ns();
        if (i == 0) assert_int_equal(kvpool_remove(pool, "k", 1, NULL), KVPOOL_DEADLINE);
        if (i == 0) assert_timely(ms_since(began), OWN_MS, 5000);
        began = kvp_now_ns();
        master.server.is_deaf = false;
        while (ask(0) != KVPOOL_OK)
            sched_yield();
        assert_timely(ms_since(began), 0, 1000);
        assert_int_equal(master.hellos, hellos); /* in the same session */
    }
}

/* The master lives: it has its reasons for not answering the put. Where it stands still itself the call is over early.
 */
TEST_TIMED(test_an_answer_that_is_held_back_is_no_silence, setup, teardown)
{
    uint64_t began;

    stop_master(60000);
    master.server.is_deaf = false;
    began = kvp_now_ns();
    assert_int_equal(kvpool_put(pool, "k", 1, "v", 1, NULL), KVPOOL_DEADLINE);
    assert_timely(ms_since(began), OWN_MS, 5000);
}

/* A session that is lost to a silence for which somebody has waited gives nobody another wait. */
TEST_TIMED(test_a_silence_that_ends_a_session_is_waited_for_once, setup, teardown)
{
    uint64_t opened = kvp_now_ns();

    stop_master(20);
    master.server.is_deaf = false;
    master.ttl_ms = 1000;
    master.server.is_cutting = true; /* so that a session has the shorter life, and lasts */
    while (master.hellos < 3 || ms_since(opened) < 2300)
        assert_int_equal(ask(5000), KVPOOL_OK);
    master.server.is_deaf = true;
    assert_timely(timed_in_vain(), WAIT_MS - 50, OWN_MS - 1);
    opened = kvp_now_ns();
    while (ms_since(opened) < 1700)
        assert_timely(timed_in_vain(), 0, WAIT_MS - 50);
}

/* A close while the background thread says Hello to a master that is silent. */
TEST_TIMED(test_close_does_not_wait_for_a_hello, setup, teardown)
{
    uint64_t began;

    lose_master(WAIT_MS);
    master.server.is_deaf = true;
    assert_timely(ask_in_vain(0, 0), WAIT_MS - 50, OWN_MS - 1);
    for (began = kvp_now_ns(); ms_since(began) < 900;) /* so that a Hello of its second was begun a moment ago */
        sched_yield();
    began = kvp_now_ns();
    assert_int_equal(kvpool_close(pool), KVPOOL_OK);
    assert_timely(ms_since(began), 0, 400);
}

/* The first of two masters takes connections and says nothing. */
TEST_WITH(test_a_silent_master_leaves_time_for_the_next, setup, teardown)
{
    static fake_master_t second;
    kvpool_conf_t conf = conf_of(OWN_MS);
    char both[160];
    int err = KVPOOL_UNREACHABLE;

    fake_master_start(&second);
    snprintf(both, sizeof both, "%s,127.0.0.1:%u", master_at, second.port);
    conf.master = both;
    conf.master_wait_ms = WAIT_MS;
    kvpool_free(pool);
    pool = NULL;
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
    master.server.is_deaf = true;
    master.server.is_cutting = true;
    while (master.server.is_cutting)
        sched_yield();
    for (uint64_t began = kvp_now_ns(); err != KVPOOL_OK && ms_since(began) < 20000;)
        err = ask(0);
    kvpool_free(pool);
    pool = NULL;
    fake_master_end(&second);
    assert_int_equal(err, KVPOOL_OK);
}

TEST_MAIN()
