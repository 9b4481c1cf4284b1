/* SPDX-License-Identifier: Apache-2.0
 * What becomes of memory of an endpoint's own (kvpool_p2p_alloc) when it is registered, taken back and freed: who
 * waits for whom, what is left in forked children, and kernels that refuse what that takes. What peers see of it:
 * test_p2p_mapped.c. The linker leads kvp_p2p_owns_publish here. */
#include "client/kvpool_p2p.h"
#include "p2p/base/own.h"
#include "tests/unit/forked.h"
#include "tests/unit/p2p/p2pown.h"

#include <dirent.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ---- registering */
static struct {
    const end_t *from, *to; /* NULL = nobody asks */
    uint32_t n;
} asking;

static void
ask_now(void)
{
    if (asking.from == NULL) return;
    assert_int_equal(write_all(asking.from, asking.to), KVPOOL_NOT_REGISTERED);
    asking.n++;
}

bool __real_kvp_p2p_owns_publish(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own, size_t len, uint64_t token);
bool __wrap_kvp_p2p_owns_publish(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own, size_t len, uint64_t token);

bool
__wrap_kvp_p2p_owns_publish(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own, size_t len, uint64_t token)
{
    bool is_told;

    ask_now();
    is_told = __real_kvp_p2p_owns_publish(owns, own, len, token);
    ask_now();
    return is_told;
}

/* A peer that found the range before it can be mapped would be refused that, and ask no more. */
TEST(test_no_peer_finds_what_it_cannot_map_yet)
{
    end_t a, b;

    open_owns(&a, &b);
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    asking.n = 0;
    asking.from = &a;
    asking.to = &b;
    assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, BYTES, NULL), KVPOOL_OK);
    asking.from = NULL;
    assert_int_equal(asking.n, 2);
    assert_int_equal(write_all(&a, &b), KVPOOL_OK);
    assert_int_equal(mapped_bytes(&a), BYTES);
    /* What could not be registered is not told of, and what was registered before goes on. */
    assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, BYTES, NULL), KVPOOL_INVALID);
    assert_int_equal(write_all(&a, &b), KVPOOL_OK);
    assert_int_equal(mapped_bytes(&a), 2 * BYTES);
    free_owns(&a, &b);
}

/* ---- taking back */

/* How many bytes of [mem, mem + len) are mapped so that they are shared with the file. */
static size_t
shared_bytes(const void *mem, size_t len)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    uintptr_t from = (uintptr_t)mem, to = from + len;
    size_t n = 0;
    char line[512];

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long start, end;
        char flags[5];

        assert_int_equal(sscanf(line, "%lx-%lx %4s", &start, &end, flags), 3);
        if (start < from) start = from;
        if (end > to) end = to;
        if (start < end && flags[3] == 's') n += end - start;
    }
    fclose(maps);
    return n;
}

typedef struct {
    const end_t *end;
    void *mem;
    int err;
} taking_t;

static void *
take_back(void *arg)
{
    taking_t *t = arg;

    t->err = kvpool_p2p_unregister(t->end->p2p, t->mem);
    return NULL;
}

/* A little memory is unregistered while much is being taken back, and before that is over. */
TEST(test_other_memory_is_not_waited_for)
{
    enum { ROUNDS = 20 };
    const size_t len = (size_t)256 << 20;
    bool was_faster = false;
    end_t a, b;

    open_owns(&a, &b);
    for (int round = 0; round < ROUNDS && !was_faster; round++) {
        uint64_t late_ns = kvp_now_ns() + SOON_NS;
        taking_t t = {.end = &b, .err = 1};
        pthread_t thread;

        assert_int_equal(kvpool_p2p_alloc(b.p2p, len, &t.mem, NULL), KVPOOL_OK);
        assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_WRITE, a.mem, (uintptr_t)t.mem, 4096), KVPOOL_OK);
        assert_int_equal(shared_bytes(t.mem, len), len);
        assert_int_equal(pthread_create(&thread, NULL, take_back, &t), 0);
        while (shared_bytes(t.mem, len) == len)
            assert_true(kvp_now_ns() < late_ns);
        assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
        was_faster = shared_bytes(t.mem, len) > 0;
        pthread_join(thread, NULL);
        assert_int_equal(t.err, KVPOOL_OK);
        assert_int_equal(shared_bytes(t.mem, len), 0);
        assert_int_equal(kvpool_p2p_dealloc(b.p2p, t.mem), KVPOOL_OK);
        assert_int_equal(kvpool_p2p_register(b.p2p, b.mem, BYTES, NULL), KVPOOL_OK);
    }
    assert_true(was_faster);
    free_owns(&a, &b);
}

/* Two endpoints of this process, one of which has mapped the other's memory and filled it. */
static void
open_filled(end_t *a, end_t *b)
{
    open_own(a);
    open_own(b);
    fill(a->mem, BYTES, 1);
    assert_int_equal(write_all(a, b), KVPOOL_OK);
    assert_int_equal(mapped_bytes(a), BYTES);
}

static bool
has_parted(const end_t *a, const end_t *b)
{
    return kvpool_p2p_unregister(b->p2p, b->mem) == KVPOOL_OK && shared_bytes(b->mem, BYTES) == 0 &&
           memcmp(a->mem, b->mem, BYTES) == 0;
}

/* As on kernels before 5.14. */
static int
part_without_populate(void *arg)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_POPULATE_WRITE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof code / sizeof code[0], .filter = code};
    end_t a, b;

    (void)arg;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        return 2;
    if (madvise(code, 1, MADV_POPULATE_WRITE) == 0 || errno != EINVAL) return 3;
    open_filled(&a, &b);
    return has_parted(&a, &b) ? 0 : 1;
}

TEST(test_kernels_that_cannot_populate)
{
    expect_in_child(part_without_populate, NULL);
}

static rlim_t
private_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    unsigned long kib = 0;
    char line[256];

    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmData: %lu", &kib) == 1) break;
    fclose(file);
    assert_true(kib > 0);
    return (rlim_t)kib << 10;
}

/* There is room for some of it, but not for all: then nothing changes. */
static int
part_without_memory(void *arg)
{
    struct rlimit limit, much;
    end_t a, b;

    (void)arg;
    open_filled(&a, &b);
    if (getrlimit(RLIMIT_DATA, &much) != 0) return 2;
    limit = much;
    limit.rlim_cur = private_bytes() + BYTES / 2;
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return 2;
    if (kvpool_p2p_unregister(b.p2p, b.mem) != KVPOOL_NOMEM) return 3;
    if (setrlimit(RLIMIT_DATA, &much) != 0) return 2;
    if (shared_bytes(b.mem, BYTES) < BYTES) return 4;
    if (memcmp(a.mem, b.mem, BYTES) != 0) return 5;
    if (write_all(&a, &b) != KVPOOL_NOT_REGISTERED) return 6;
    /* Once there is room it is made up for. */
    if (kvpool_p2p_register(b.p2p, b.mem, BYTES, NULL) != KVPOOL_OK) return 7;
    return has_parted(&a, &b) && kvpool_p2p_dealloc(b.p2p, b.mem) == KVPOOL_OK ? 0 : 1;
}

TEST(test_no_memory_for_what_is_taken_back)
{
    expect_in_child(part_without_memory, NULL);
}

/* ---- freeing */

/* Peers have not mapped it, so they are served where it was: nothing of it may be registered any more. */
static void
dealloc_with_parts(const char *transports)
{
    kvpool_p2p_conf_t conf = {.struct_size = sizeof conf, .transports = transports, .flags = KVPOOL_P2P_TRACEABLE};
    uint8_t mine[5000] = {0};
    kvpool_p2p_t *here, *there;
    void *mem, *other;
    uint64_t at;
    size_t len;
    char peer[32];

    assert_int_equal(kvpool_p2p_open(&conf, &here), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_open(&conf, &there), KVPOOL_OK);
    snprintf(peer, sizeof peer, "127.0.0.1:%u", kvpool_p2p_port(there));
    assert_int_equal(kvpool_p2p_alloc(there, BYTES, &mem, NULL), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_alloc(there, BYTES, &other, NULL), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_unregister(there, mem), KVPOOL_OK);
    for (size_t off = 100; off + sizeof mine <= BYTES; off += BYTES / 3) {
        kvpool_p2p_op_t op = {.local = mine, .remote = (uintptr_t)mem + off, .len = sizeof mine};

        assert_int_equal(kvpool_p2p_register(there, (uint8_t *)mem + off, sizeof mine, NULL), KVPOOL_OK);
        assert_int_equal(kvpool_p2p_transfer(here, peer, KVPOOL_P2P_WRITE, &op, 1, 0), KVPOOL_OK);
    }
    assert_int_equal(kvpool_p2p_dealloc(there, mem), KVPOOL_OK);
    for (size_t off = 100; off + sizeof mine <= BYTES; off += BYTES / 3) {
        kvpool_p2p_op_t op = {.local = mine, .remote = (uintptr_t)mem + off, .len = sizeof mine};

        for (int kind = KVPOOL_P2P_READ; kind <= KVPOOL_P2P_WRITE; kind++)
            assert_int_equal(kvpool_p2p_transfer(here, peer, kind, &op, 1, 0), KVPOOL_NOT_REGISTERED);
        assert_int_equal(kvpool_p2p_unregister(there, (uint8_t *)mem + off), KVPOOL_NOT_REGISTERED);
    }
    /* What lies elsewhere stays. */
    assert_int_equal(kvpool_p2p_first_range(here, peer, 0, &at, &len), KVPOOL_OK);
    assert_true(at == (uintptr_t)other && len == BYTES);
    kvpool_p2p_free(here);
    kvpool_p2p_free(there);
}

TEST(test_dealloc_ends_what_is_registered_of_it)
{
    dealloc_with_parts("cma");
    dealloc_with_parts("tcp");
}

/* ---- children */

/* Descriptors of memory that peers map, and of the words that say what of it is registered. */
static int
memory_fds_n(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char to[128];
        ssize_t len = readlinkat(dirfd(dir), entry->d_name, to, sizeof to - 1);

        if (len < 0) continue;
        to[len] = '\0';
        n += strstr(to, "memfd:kvpool-peer") != NULL;
    }
    closedir(dir);
    return n;
}

static int
count_in_child(void *arg)
{
    (void)arg;
    return memory_fds_n();
}

TEST(test_a_forked_child_has_neither_memory_nor_words)
{
    uint64_t late_ns = kvp_now_ns() + SOON_NS;
    int before = memory_fds_n();
    end_t a, b;

    open_filled(&a, &b);
    assert_true(memory_fds_n() > before);
    /* What the endpoint's thread sent a moment ago it may not have closed yet: forkguard.h. */
    while (in_child(count_in_child, NULL) != 0)
        assert_true(kvp_now_ns() < late_ns);
    free_owns(&a, &b);
    assert_int_equal(memory_fds_n(), before);
}

TEST_MAIN()
