/* SPDX-License-Identifier: Apache-2.0
 * Memory of an endpoint's own (kvpool_p2p_alloc), which peers map: bytes arrive by one copy, and what was promised of
 * memory that is taken back holds, whatever the peer does: in two endpoints of one process, then against processes
 * that are stopped or killed. What a peer may hand over in place of a file: test_p2p_files.c. */
#include "client/kvpool_p2p.h"

#include "common/clock.h"
#include "tests/unit/forked.h"
#include "tests/unit/p2p/p2pown.h"
#include "tests/cases.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Mappings of peers' memory that this process has. */
static uint32_t
maps_n(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uint32_t n = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        n += strstr(line, "memfd:kvpool-peer ") != NULL || strstr(line, "memfd:kvpool-peer\n") != NULL;
    fclose(maps);
    return n;
}

/* ---- two endpoints of this process */
TEST(test_bytes_arrive_by_one_copy)
{
    end_t a, b;
    uint8_t *want = malloc(BYTES);

    assert_non_null(want);
    open_owns(&a, &b);
    expect_all(b.mem, BYTES, 0);
    fill(a.mem, BYTES, 1);
    memcpy(want, a.mem, BYTES);
    assert_int_equal(write_all(&a, &b), KVPOOL_OK);
    assert_memory_equal(b.mem, want, BYTES);
    fill(a.mem, BYTES, 2);
    assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_WRITE, a.mem + 777, (uintptr_t)b.mem + 1001, 4099), KVPOOL_OK);
    memcpy(want + 1001, a.mem + 777, 4099);
    assert_memory_equal(b.mem, want, BYTES);
    assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_READ, a.mem + 5, (uintptr_t)b.mem + 3, BYTES - 5), KVPOOL_OK);
    assert_memory_equal(a.mem + 5, want + 3, BYTES - 5);
    assert_int_equal(mapped_bytes(&a), 2 * BYTES - 5 + 4099);
    /* Beyond its end, and before it. */
    assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_WRITE, a.mem, (uintptr_t)b.mem + 1, BYTES), KVPOOL_NOT_REGISTERED);
    assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_WRITE, a.mem, (uintptr_t)b.mem - 1, 2), KVPOOL_NOT_REGISTERED);
    assert_memory_equal(b.mem, want, BYTES);
    assert_int_equal(kvpool_p2p_dealloc(b.p2p, b.mem + 1), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_dealloc(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_dealloc(b.p2p, b.mem), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_alloc(b.p2p, 0, (void **)&b.mem, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_p2p_alloc(b.p2p, (size_t)1 << 60, (void **)&b.mem, NULL), KVPOOL_NOMEM);
    free_owns(&a, &b);
    assert_int_equal(maps_n(), 0);
    free(want);
}

/* Lists of which some pieces can be copied here and others cannot: to private memory of the peer's, from memory that
 * nobody registered, from an address where nothing is. */
TEST(test_mixed_lists)
{
    enum { N = 1500, EACH = 1000 };
    kvpool_p2p_op_t *ops = calloc(N, sizeof *ops);
    uint8_t *mine = malloc(N * EACH), *theirs = calloc(N, EACH);
    end_t a, b;

    assert_non_null(ops);
    assert_non_null(mine);
    assert_non_null(theirs);
    open_owns(&a, &b);
    assert_int_equal(kvpool_p2p_register(b.p2p, theirs, N * EACH, NULL), KVPOOL_OK);
    fill(a.mem, BYTES, 3);
    fill(mine, N * EACH, 4);
    for (size_t i = 0; i < N; i++)
        ops[i] = (kvpool_p2p_op_t){.local = (i % 3 == 0 ? mine : a.mem) + i * EACH,
                                   .remote = (uintptr_t)(i % 2 == 0 ? theirs : b.mem) + i * EACH,
                                   .len = EACH};
    for (int kind = KVPOOL_P2P_WRITE; kind >= KVPOOL_P2P_READ; kind--) {
        assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, kind, ops, N, 0), KVPOOL_OK);
        for (size_t i = 0; i < N; i++)
            assert_memory_equal(ops[i].local, (void *)(uintptr_t)ops[i].remote, EACH);
        fill(b.mem, BYTES, 5);
        fill(theirs, N * EACH, 6);
    }
    assert_int_equal(mapped_bytes(&a), 2 * N / 3 * EACH);
    ops[N / 2] = (kvpool_p2p_op_t){.local = (void *)4096, .remote = (uintptr_t)b.mem, .len = EACH};
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, ops, N, 0), KVPOOL_INVALID);
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_READ, ops, N, 0), KVPOOL_INVALID);
    free_owns(&a, &b);
    free(ops);
    free(mine);
    free(theirs);
}

typedef struct {
    const end_t *from;
    char to[32];
    uint64_t remote;
    _Atomic bool is_over;
    _Atomic uint32_t ok_n, refused_n, other_n;
} load_t;

static void *
load_main(void *arg)
{
    load_t *load = arg;

    while (!atomic_load(&load->is_over)) {
        int err = move_piece(load->from, load->to, KVPOOL_P2P_WRITE, load->from->mem, load->remote, BYTES);

        atomic_fetch_add(err == KVPOOL_OK               ? &load->ok_n
                         : err == KVPOOL_NOT_REGISTERED ? &load->refused_n
                                                        : &load->other_n,
                         1);
    }
    return NULL;
}

static load_t *
start_load(load_t *load, const end_t *from, const end_t *to, pthread_t *thread_out)
{
    *load = (load_t){.from = from, .remote = (uintptr_t)to->mem};
    memcpy(load->to, to->at, sizeof load->to);
    memset(from->mem, 0x5a, BYTES);
    assert_int_equal(pthread_create(thread_out, NULL, load_main, load), 0);
    return load;
}

/* Another thread of the owner's counts in words that peers do not write, all the while. */
typedef struct {
    _Atomic uint32_t *word;
    _Atomic bool is_over;
    uint32_t n;
} counter_t;

static void *
count_main(void *arg)
{
    counter_t *c = arg;

    while (!atomic_load(&c->is_over))
        atomic_fetch_add(c->word, 1), c->n++;
    return NULL;
}

TEST(test_unregister_under_load)
{
    end_t a, b;
    load_t load;
    counter_t counter = {0};
    pthread_t thread, counting;
    uint64_t mapped;

    open_own(&a);
    for (int round = 0; round < 5; round++) {
        open_own(&b);
        mapped = mapped_bytes(&a);
        start_load(&load, &a, &b, &thread);
        wait_for(&load.ok_n, 3);
        assert_true(mapped_bytes(&a) >= mapped + 3 * BYTES);
        assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
        memset(b.mem, round, BYTES);
        wait_for(&load.refused_n, 3);
        expect_all(b.mem, BYTES, (uint8_t)round);
        assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, BYTES, NULL), KVPOOL_OK);
        wait_for(&load.ok_n, 3); /* in the old way: it is private now */
        assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
        atomic_store(&load.is_over, true);
        pthread_join(thread, NULL);
        expect_all(b.mem, BYTES, 0x5a);
        assert_int_equal(load.other_n, 0);
        kvpool_p2p_free(b.p2p);
    }
    /* What the owner stores while its pages are exchanged stays. */
    open_own(&b);
    fill(a.mem, BYTES, 9);
    assert_int_equal(write_all(&a, &b), KVPOOL_OK);
    counter.word = (_Atomic uint32_t *)(b.mem + BYTES / 2 / 4096 * 4096);
    atomic_store(counter.word, 0);
    assert_int_equal(pthread_create(&counting, NULL, count_main, &counter), 0);
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    atomic_store(&counter.is_over, true);
    pthread_join(counting, NULL);
    assert_int_equal(atomic_load(counter.word), counter.n);
    memcpy((void *)counter.word, a.mem + ((uint8_t *)counter.word - b.mem), 4);
    assert_memory_equal(a.mem, b.mem, BYTES);
    free_owns(&a, &b);
}

TEST(test_what_no_peer_has_seen_stays_shared)
{
    end_t a, b;

    open_owns(&a, &b);
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(write_all(&a, &b), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, BYTES, NULL), KVPOOL_OK);
    assert_int_equal(write_all(&a, &b), KVPOOL_OK);
    assert_int_equal(mapped_bytes(&a), BYTES);
    /* Of a part of it nothing can be mapped: what lies beside may be registered by itself. */
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_register(b.p2p, b.mem + 100, 5000, NULL), KVPOOL_OK);
    assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_WRITE, a.mem, (uintptr_t)b.mem + 100, 5000), KVPOOL_OK);
    assert_int_equal(mapped_bytes(&a), BYTES);
    free_owns(&a, &b);
}

TEST(test_dealloc_under_load)
{
    end_t a, b;
    load_t load;
    pthread_t thread;

    open_owns(&a, &b);
    for (int round = 0; round < 10; round++) {
        uint8_t *other;

        start_load(&load, &a, &b, &thread);
        wait_for(&load.ok_n, 2);
        assert_int_equal(kvpool_p2p_dealloc(b.p2p, b.mem), KVPOOL_OK);
        other = alloc(&b); /* likely at the same address */
        if (other == b.mem) assert_int_equal(kvpool_p2p_unregister(b.p2p, other), KVPOOL_OK);
        wait_for(&load.refused_n, 2);
        atomic_store(&load.is_over, true);
        pthread_join(thread, NULL);
        assert_int_equal(load.other_n, 0);
        assert_int_equal(kvpool_p2p_dealloc(b.p2p, other), KVPOOL_OK);
        b.mem = alloc(&b);
    }
    free_owns(&a, &b);
}

/* ---- other processes */
typedef struct {
    char at[32];
    uint64_t mem;
} place_t;

static void
owner(int from, int to)
{
    place_t place = {.at = ""};
    end_t end;
    uint8_t at;

    open_own(&end);
    memset(end.mem, 7, BYTES);
    memcpy(place.at, end.at, sizeof place.at);
    place.mem = (uintptr_t)end.mem;
    assert_int_equal(write(to, &place, sizeof place), sizeof place);
    while (read(from, &at, 1) == 1) /* tells of its first bytes */
        assert_int_equal(write(to, end.mem, 16), 16);
}

static place_t
place_of(const other_t *other)
{
    place_t place;

    assert_int_equal(read(other->from, &place, sizeof place), sizeof place);
    return place;
}

/* Its memory is there, and its word; its threads are not needed. */
TEST(test_a_stopped_owner_is_written_to)
{
    other_t other = start(owner);
    place_t place = place_of(&other);
    uint8_t told[16];
    end_t a;

    open_own(&a);
    memset(a.mem, 1, BYTES);
    assert_int_equal(move_piece(&a, place.at, KVPOOL_P2P_WRITE, a.mem, place.mem, BYTES), KVPOOL_OK);
    stop(&other);
    memset(a.mem, 2, BYTES);
    assert_int_equal(move_piece(&a, place.at, KVPOOL_P2P_WRITE, a.mem, place.mem, BYTES), KVPOOL_OK);
    assert_int_equal(kill(other.pid, SIGCONT), 0);
    assert_int_equal(write(other.to, "?", 1), 1);
    assert_int_equal(read(other.from, told, sizeof told), sizeof told);
    expect_all(told, sizeof told, 2);
    assert_int_equal(mapped_bytes(&a), 2 * BYTES);
    kvpool_p2p_free(a.p2p);
    finish(&other);
}

TEST(test_a_killed_owner_is_noticed)
{
    other_t other = start(owner);
    place_t place = place_of(&other);
    uint64_t late_ns;
    load_t load = {0};
    pthread_t thread;
    end_t a;

    open_own(&a);
    load.from = &a;
    load.remote = place.mem;
    memcpy(load.to, place.at, sizeof load.to);
    assert_int_equal(pthread_create(&thread, NULL, load_main, &load), 0);
    wait_for(&load.ok_n, 3);
    finish(&other);
    wait_for(&load.other_n, 2);
    atomic_store(&load.is_over, true);
    pthread_join(thread, NULL);
    assert_int_equal(load.refused_n, 0);
    assert_int_equal(mapped_bytes(&a), load.ok_n * BYTES);
    assert_int_equal(move_piece(&a, place.at, KVPOOL_P2P_READ, a.mem, place.mem, BYTES), KVPOOL_UNREACHABLE);

    /* And where nobody asks: the mapping would keep the dead's memory. a.mem is the one that is left. */
    other = start(owner);
    place = place_of(&other);
    assert_int_equal(move_piece(&a, place.at, KVPOOL_P2P_READ, a.mem, place.mem, BYTES), KVPOOL_OK);
    assert_int_equal(a.mem[BYTES - 1], 7);
    assert_int_equal(maps_n(), 2);
    finish(&other);
    late_ns = kvp_now_ns() + SOON_NS;
    while (maps_n() > 1) {
        assert_true(kvp_now_ns() < late_ns);
        pause_briefly();
    }
    kvpool_p2p_free(a.p2p);
}

/* ---- no descriptors */

/* The limit is reached at each point of a first write to a peer: it says so, or the bytes went another way. */
TEST(test_without_descriptors)
{
    uint32_t failed_n = 0, copied_n = 0, mapped_n = 0;
    struct rlimit much;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &much), 0);
    for (int room = 0; mapped_n < 2; room++) {
        other_t other = start(owner);
        place_t place = place_of(&other);
        struct rlimit limit = much;
        int err, first;
        end_t a;

        open_own(&a);
        first = dup(0);
        close(first);
        limit.rlim_cur = (rlim_t)(first + room);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        err = move_piece(&a, place.at, KVPOOL_P2P_WRITE, a.mem, place.mem, BYTES);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &much), 0);
        if (err != KVPOOL_OK && err != KVPOOL_SYS) fail_msg("room for %d: %s", room, kvpool_errname(err));
        if (err != KVPOOL_OK)
            failed_n++;
        else if (mapped_bytes(&a) == 0)
            copied_n++;
        else
            mapped_n++;
        assert_int_equal(move_piece(&a, place.at, KVPOOL_P2P_WRITE, a.mem, place.mem, BYTES), KVPOOL_OK);
        kvpool_p2p_free(a.p2p);
        finish(&other);
        assert_true(room < 50);
    }
    assert_true(failed_n > 0 && copied_n > 0);
}

/* ---- a long transfer, with an owner that is stopped and then killed */
#define LONG_BYTES ((size_t)128 << 20)

typedef struct {
    char at[32];
    uint64_t mapped, copied; /* LONG_BYTES of its own, and BYTES that are not to be mapped */
} long_place_t;

static void
long_owner(int from, int to)
{
    uint8_t *copied = calloc(1, BYTES);
    long_place_t place = {.copied = (uintptr_t)copied};
    void *mapped = NULL;
    uint8_t end_of_time;
    end_t end;

    open_own(&end);
    assert_int_equal(kvpool_p2p_alloc(end.p2p, LONG_BYTES, &mapped, NULL), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_register(end.p2p, copied, BYTES, NULL), KVPOOL_OK);
    memcpy(place.at, end.at, sizeof place.at);
    place.mapped = (uintptr_t)mapped;
    assert_int_equal(write(to, &place, sizeof place), sizeof place);
    if (read(from, &end_of_time, 1) < 0) _exit(1);
}

enum {
    LONG_N = 1024
}; /* pieces of one window, each of all of it: minutes of copying, between two questions to the peer */

typedef struct {
    const end_t *from;
    char to[32];
    kvpool_p2p_op_t ops[LONG_N];
    int err;
} long_move_t;

static void *
long_main(void *arg)
{
    long_move_t *m = arg;

    m->err = kvpool_p2p_transfer(m->from->p2p, m->to, KVPOOL_P2P_WRITE, m->ops, LONG_N, 5000);
    return NULL;
}

static void
killed_while_stopped(bool is_mapped)
{
    other_t other = start(long_owner);
    struct timespec some = {.tv_nsec = 100000000};
    long_move_t *m = calloc(1, sizeof *m);
    long_place_t place;
    pthread_t thread;
    void *mine = NULL;
    end_t a;

    assert_non_null(m);
    assert_int_equal(read(other.from, &place, sizeof place), sizeof place);
    open_own(&a);
    assert_int_equal(kvpool_p2p_alloc(a.p2p, LONG_BYTES, &mine, NULL), KVPOOL_OK);
    m->from = &a;
    memcpy(m->to, place.at, sizeof m->to);
    for (size_t i = 0; i < LONG_N; i++)
        m->ops[i] = (kvpool_p2p_op_t){
            .local = mine, .remote = is_mapped ? place.mapped : place.copied, .len = is_mapped ? LONG_BYTES : BYTES};
    assert_int_equal(move_piece(&a, place.at, KVPOOL_P2P_WRITE, mine, m->ops[0].remote, 4096), KVPOOL_OK);
    assert_int_equal(mapped_bytes(&a), is_mapped ? 4096 : 0);
    stop(&other);
    assert_int_equal(pthread_create(&thread, NULL, long_main, m), 0);
    nanosleep(&some, NULL);
    finish(&other);
    pthread_join(thread, NULL);
    /* Not DEADLINE; one that is about to end may still be connected to. */
    if (m->err != KVPOOL_UNREACHABLE && m->err != KVPOOL_DISCONNECTED) fail_msg("%s", kvpool_errname(m->err));
    kvpool_p2p_free(a.p2p);
    free(m);
}

TEST(test_an_owner_killed_while_stopped_ends_transfers)
{
    killed_while_stopped(true);
    killed_while_stopped(false);
}

/* ---- writers that are stopped */

/* What a write came to, and whether it went into memory that both have mapped. */
typedef struct {
    int err;
    bool is_mapped;
} outcome_t;

/* Writes to where it is told, again and again, and says so of each that came to its end. */
static void
writer(int from, int to)
{
    uint64_t mapped = 0;
    place_t place;
    end_t end;

    assert_int_equal(read(from, &place, sizeof place), sizeof place);
    open_own(&end);
    memset(end.mem, 0x5a, BYTES);
    for (;;) {
        outcome_t outcome = {.err = move_piece(&end, place.at, KVPOOL_P2P_WRITE, end.mem, place.mem, BYTES)};

        outcome.is_mapped = mapped_bytes(&end) == mapped + BYTES;
        mapped = mapped_bytes(&end);
        if (write(to, &outcome, sizeof outcome) != sizeof outcome) return;
    }
}

static int
outcome_of(const other_t *other)
{
    outcome_t outcome;

    assert_int_equal(read(other->from, &outcome, sizeof outcome), sizeof outcome);
    assert_int_equal(outcome.is_mapped, outcome.err == KVPOOL_OK);
    return outcome.err;
}

/* A peer that is stopped within a copy goes on with it once it is continued. By then the memory is its owner's. */
static void
stopped_writer(bool is_freed)
{
    enum { ROUNDS = 12 };

    for (int round = 0; round < ROUNDS; round++) {
        other_t other = start(writer);
        struct timespec some = {.tv_nsec = 300000 * (round + 1)};
        place_t place = {.at = ""};
        uint64_t began_ns;
        end_t b;
        int err;

        open_own(&b);
        memcpy(place.at, b.at, sizeof place.at);
        place.mem = (uintptr_t)b.mem;
        assert_int_equal(write(other.to, &place, sizeof place), sizeof place);
        for (int i = 0; i < 3; i++)
            assert_int_equal(outcome_of(&other), KVPOOL_OK);
        nanosleep(&some, NULL);
        stop(&other);
        began_ns = kvp_now_ns();
        if (is_freed) {
            assert_int_equal(kvpool_p2p_dealloc(b.p2p, b.mem), KVPOOL_OK);
            b.mem = alloc(&b);
            assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
        } else {
            assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
        }
        assert_true(kvp_now_ns() - began_ns < SOON_NS); /* it waits for nobody */
        memset(b.mem, 3, BYTES);
        assert_int_equal(kill(other.pid, SIGCONT), 0);
        do
            err = outcome_of(&other);
        while (err == KVPOOL_OK); /* of before */
        assert_int_equal(err, KVPOOL_NOT_REGISTERED);
        assert_int_equal(outcome_of(&other), KVPOOL_NOT_REGISTERED);
        expect_all(b.mem, BYTES, 3);
        finish(&other);
        kvpool_p2p_free(b.p2p);
    }
}

TEST(test_a_writer_stopped_under_unregister_or_dealloc)
{
    stopped_writer(false);
    stopped_writer(true);
}

TEST_MAIN()
