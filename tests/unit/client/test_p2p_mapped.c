/* SPDX-License-Identifier: Apache-2.0
 * Memory of an endpoint's own (kvpool_p2p_alloc), which peers map: bytes arrive by one copy, and what was promised of memory that is
 * taken back holds, whatever the peer does: in two endpoints of one process, then against processes that are stopped or killed. What a peer may
 * hand over in place of a file: test_p2p_files.c.
 */
#include "client/kvpool_p2p.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES (((size_t)8 << 20) + 5000) /* no whole number of pages */
#define SOON_NS (20 * KVP_NS_PER_S)

typedef struct {
    kvpool_p2p_t *p2p;
    char at[32];
    uint8_t *mem; /* BYTES of its own, registered */
} end_t;

static uint8_t *
alloc(const end_t *end)
{
    void *mem = NULL;

    assert_int_equal(kvpool_p2p_alloc(end->p2p, BYTES, &mem, NULL), KVPOOL_OK);
    return mem;
}

static void
open_end(end_t *end)
{
    kvpool_p2p_conf_t conf = {
        .struct_size = sizeof conf, .transports = "cma", .flags = KVPOOL_P2P_TRACEABLE, .deadline_ms = 10000};

    assert_int_equal(kvpool_p2p_open(&conf, &end->p2p), KVPOOL_OK);
    snprintf(end->at, sizeof end->at, "127.0.0.1:%u", kvpool_p2p_port(end->p2p));
    end->mem = alloc(end);
}

static void
fill(uint8_t *mem, size_t len, uint32_t seed)
{
    for (size_t i = 0; i < len; i++)
        mem[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
}

static void
expect_all(const uint8_t *mem, size_t len, uint8_t value)
{
    for (size_t i = 0; i < len; i++)
        if (mem[i] != value) fail_msg("byte %zu is %02x, not %02x", i, mem[i], value);
}

static uint64_t
mapped_bytes(const end_t *end)
{
    kvpool_p2p_stat_t stat = {.struct_size = sizeof stat};

    assert_int_equal(kvpool_p2p_stat(end->p2p, &stat), KVPOOL_OK);
    assert_int_equal(stat.tcp_bytes, 0);
    assert_true(stat.mapped_bytes <= stat.cma_bytes);
    return stat.mapped_bytes;
}

static int
move(const end_t *from, const char *to, int kind, void *local, uint64_t remote, size_t len)
{
    kvpool_p2p_op_t op = {.local = local, .remote = remote, .len = len};

    return kvpool_p2p_transfer(from->p2p, to, kind, &op, 1, 0);
}

static int
write_all(const end_t *from, const end_t *to)
{
    return move(from, to->at, KVPOOL_P2P_WRITE, from->mem, (uintptr_t)to->mem, BYTES);
}

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
static void
test_bytes_arrive_by_one_copy(void **state)
{
    end_t a, b;
    uint8_t *want = malloc(BYTES);

    (void)state;
    assert_non_null(want);
    open_end(&a);
    open_end(&b);
    expect_all(b.mem, BYTES, 0);
    fill(a.mem, BYTES, 1);
    memcpy(want, a.mem, BYTES);
    assert_int_equal(write_all(&a, &b), KVPOOL_OK);
    assert_memory_equal(b.mem, want, BYTES);
    fill(a.mem, BYTES, 2);
    assert_int_equal(move(&a, b.at, KVPOOL_P2P_WRITE, a.mem + 777, (uintptr_t)b.mem + 1001, 4099), KVPOOL_OK);
    memcpy(want + 1001, a.mem + 777, 4099);
    assert_memory_equal(b.mem, want, BYTES);
    assert_int_equal(move(&a, b.at, KVPOOL_P2P_READ, a.mem + 5, (uintptr_t)b.mem + 3, BYTES - 5), KVPOOL_OK);
    assert_memory_equal(a.mem + 5, want + 3, BYTES - 5);
    assert_int_equal(mapped_bytes(&a), 2 * BYTES - 5 + 4099);
    /* Beyond its end, and before it. */
    assert_int_equal(move(&a, b.at, KVPOOL_P2P_WRITE, a.mem, (uintptr_t)b.mem + 1, BYTES), KVPOOL_NOT_REGISTERED);
    assert_int_equal(move(&a, b.at, KVPOOL_P2P_WRITE, a.mem, (uintptr_t)b.mem - 1, 2), KVPOOL_NOT_REGISTERED);
    assert_memory_equal(b.mem, want, BYTES);
    assert_int_equal(kvpool_p2p_dealloc(b.p2p, b.mem + 1), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_dealloc(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_dealloc(b.p2p, b.mem), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_alloc(b.p2p, 0, (void **)&b.mem, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_p2p_alloc(b.p2p, (size_t)1 << 60, (void **)&b.mem, NULL), KVPOOL_NOMEM);
    kvpool_p2p_free(a.p2p);
    kvpool_p2p_free(b.p2p);
    assert_int_equal(maps_n(), 0);
    free(want);
}

/* Lists of which some pieces can be copied here and others cannot: to private memory of the peer's, from memory that nobody registered, from
 * an address where nothing is. */
static void
test_mixed_lists(void **state)
{
    enum { N = 1500, EACH = 1000 };
    kvpool_p2p_op_t *ops = calloc(N, sizeof *ops);
    uint8_t *mine = malloc(N * EACH), *theirs = calloc(N, EACH);
    end_t a, b;

    (void)state;
    assert_non_null(ops);
    assert_non_null(mine);
    assert_non_null(theirs);
    open_end(&a);
    open_end(&b);
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
    kvpool_p2p_free(a.p2p);
    kvpool_p2p_free(b.p2p);
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
        int err = move(load->from, load->to, KVPOOL_P2P_WRITE, load->from->mem, load->remote, BYTES);

        atomic_fetch_add(err == KVPOOL_OK               ? &load->ok_n
                         : err == KVPOOL_NOT_REGISTERED ? &load->refused_n
                                                        : &load->other_n,
                         1);
    }
    return NULL;
}

static void
wait_for(_Atomic uint32_t *n, uint32_t more)
{
    uint64_t late_ns = kvp_now_ns() + 60 * KVP_NS_PER_S;
    uint32_t want = atomic_load(n) + more;

    while (atomic_load(n) < want) {
        struct timespec nap = {.tv_nsec = 200000};

        assert_true(kvp_now_ns() < late_ns);
        nanosleep(&nap, NULL);
    }
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

static void
test_unregister_under_load(void **state)
{
    end_t a, b;
    load_t load;
    counter_t counter = {0};
    pthread_t thread, counting;
    uint64_t mapped;

    (void)state;
    open_end(&a);
    for (int round = 0; round < 5; round++) {
        open_end(&b);
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
    open_end(&b);
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
    kvpool_p2p_free(a.p2p);
    kvpool_p2p_free(b.p2p);
}

static void
test_what_no_peer_has_seen_stays_shared(void **state)
{
    end_t a, b;

    (void)state;
    open_end(&a);
    open_end(&b);
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(write_all(&a, &b), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, BYTES, NULL), KVPOOL_OK);
    assert_int_equal(write_all(&a, &b), KVPOOL_OK);
    assert_int_equal(mapped_bytes(&a), BYTES);
    /* Of a part of it nothing can be mapped: what lies beside may be registered by itself. */
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_register(b.p2p, b.mem + 100, 5000, NULL), KVPOOL_OK);
    assert_int_equal(move(&a, b.at, KVPOOL_P2P_WRITE, a.mem, (uintptr_t)b.mem + 100, 5000), KVPOOL_OK);
    assert_int_equal(mapped_bytes(&a), BYTES);
    kvpool_p2p_free(a.p2p);
    kvpool_p2p_free(b.p2p);
}

static void
test_dealloc_under_load(void **state)
{
    end_t a, b;
    load_t load;
    pthread_t thread;

    (void)state;
    open_end(&a);
    open_end(&b);
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
    kvpool_p2p_free(a.p2p);
    kvpool_p2p_free(b.p2p);
}

/* ---- other processes */
typedef struct {
    pid_t pid;
    int from, to; /* pipes */
} other_t;

typedef struct {
    char at[32];
    uint64_t mem;
} place_t;

/* Forks, and runs what is given in a process of its own, which dies with this one. No endpoint may be open. */
static other_t
start(void (*run)(int from, int to))
{
    int up[2], down[2];
    other_t other;

    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    other.pid = fork();
    assert_true(other.pid >= 0);
    if (other.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(up[1]);
        close(down[0]);
        run(up[0], down[1]);
        _exit(0);
    }
    close(up[0]);
    close(down[1]);
    other.to = up[1];
    other.from = down[0];
    return other;
}

static void
finish(other_t *other)
{
    kill(other->pid, SIGKILL);
    assert_int_equal(waitpid(other->pid, NULL, 0), other->pid);
    close(other->from);
    close(other->to);
}

/* Stopped, when every thread of it is: one may be in the middle of a copy. */
static void
stop(const other_t *other)
{
    int status;

    assert_int_equal(kill(other->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(other->pid, &status, WUNTRACED), other->pid);
    assert_true(WIFSTOPPED(status));
}

static void
owner(int from, int to)
{
    place_t place = {.at = ""};
    end_t end;
    uint8_t at;

    open_end(&end);
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
static void
test_a_stopped_owner_is_written_to(void **state)
{
    other_t other = start(owner);
    place_t place = place_of(&other);
    uint8_t told[16];
    end_t a;

    (void)state;
    open_end(&a);
    memset(a.mem, 1, BYTES);
    assert_int_equal(move(&a, place.at, KVPOOL_P2P_WRITE, a.mem, place.mem, BYTES), KVPOOL_OK);
    stop(&other);
    memset(a.mem, 2, BYTES);
    assert_int_equal(move(&a, place.at, KVPOOL_P2P_WRITE, a.mem, place.mem, BYTES), KVPOOL_OK);
    assert_int_equal(kill(other.pid, SIGCONT), 0);
    assert_int_equal(write(other.to, "?", 1), 1);
    assert_int_equal(read(other.from, told, sizeof told), sizeof told);
    expect_all(told, sizeof told, 2);
    kvpool_p2p_free(a.p2p);
    finish(&other);
}

static void
test_a_killed_owner_is_noticed(void **state)
{
    other_t other = start(owner);
    place_t place = place_of(&other);
    uint64_t late_ns;
    load_t load = {0};
    pthread_t thread;
    end_t a;

    (void)state;
    open_end(&a);
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
    assert_int_equal(move(&a, place.at, KVPOOL_P2P_READ, a.mem, place.mem, BYTES), KVPOOL_UNREACHABLE);

    /* And where nobody asks: the mapping would keep the dead's memory. a.mem is the one that is left. */
    other = start(owner);
    place = place_of(&other);
    assert_int_equal(move(&a, place.at, KVPOOL_P2P_READ, a.mem, place.mem, BYTES), KVPOOL_OK);
    assert_int_equal(a.mem[BYTES - 1], 7);
    assert_int_equal(maps_n(), 2);
    finish(&other);
    late_ns = kvp_now_ns() + SOON_NS;
    while (maps_n() > 1) {
        struct timespec nap = {.tv_nsec = 1000000};

        assert_true(kvp_now_ns() < late_ns);
        nanosleep(&nap, NULL);
    }
    kvpool_p2p_free(a.p2p);
}

/* Writes to where it is told, again and again, and says so of each that came to its end. */
static void
writer(int from, int to)
{
    place_t place;
    end_t end;

    assert_int_equal(read(from, &place, sizeof place), sizeof place);
    open_end(&end);
    memset(end.mem, 0x5a, BYTES);
    for (;;) {
        int err = move(&end, place.at, KVPOOL_P2P_WRITE, end.mem, place.mem, BYTES);

        if (write(to, &err, sizeof err) != sizeof err) return;
    }
}

static int
outcome(const other_t *other)
{
    int err;

    assert_int_equal(read(other->from, &err, sizeof err), sizeof err);
    return err;
}

/* A peer that is stopped within a copy goes on with it once it is continued. By then the memory is its owner's. */
static void
stopped_writer(bool is_freed)
{
    enum { ROUNDS = 12 };

    for (int round = 0; round < ROUNDS; round++) {
        other_t other = start(writer);
        struct timespec nap = {.tv_nsec = 300000 * (round + 1)};
        place_t place = {.at = ""};
        uint64_t began_ns;
        end_t b;
        int err;

        open_end(&b);
        memcpy(place.at, b.at, sizeof place.at);
        place.mem = (uintptr_t)b.mem;
        assert_int_equal(write(other.to, &place, sizeof place), sizeof place);
        for (int i = 0; i < 3; i++)
            assert_int_equal(outcome(&other), KVPOOL_OK);
        nanosleep(&nap, NULL);
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
            err = outcome(&other);
        while (err == KVPOOL_OK); /* of before */
        assert_int_equal(err, KVPOOL_NOT_REGISTERED);
        assert_int_equal(outcome(&other), KVPOOL_NOT_REGISTERED);
        expect_all(b.mem, BYTES, 3);
        finish(&other);
        kvpool_p2p_free(b.p2p);
    }
}

static void
test_a_writer_stopped_under_unregister(void **state)
{
    (void)state;
    stopped_writer(false);
}

static void
test_a_writer_stopped_under_dealloc(void **state)
{
    (void)state;
    stopped_writer(true);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_arrive_by_one_copy),
        cmocka_unit_test(test_mixed_lists),
        cmocka_unit_test(test_unregister_under_load),
        cmocka_unit_test(test_what_no_peer_has_seen_stays_shared),
        cmocka_unit_test(test_dealloc_under_load),
        cmocka_unit_test(test_a_stopped_owner_is_written_to),
        cmocka_unit_test(test_a_killed_owner_is_noticed),
        cmocka_unit_test(test_a_writer_stopped_under_unregister),
        cmocka_unit_test(test_a_writer_stopped_under_dealloc),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
