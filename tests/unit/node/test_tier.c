/* SPDX-License-Identifier: Apache-2.0
 * The tier over real files, by io_uring and by threads: what was written is read, what was dropped is not, also after
 * the process was killed; files that are not for this node; devices that fail; a budget; memory that goes away. */
#include "node/tier/tier.h"

#include "common/clock.h"
#include "common/log.h"

#include "tests/unit/forked.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define SIZE (64ull << 20)
#define LEN 50000u

static char dir[2][64];
static const uint8_t pool[16] = "a pool", other_pool[16] = "another pool";

typedef struct {
    kvp_tier_t *tier;
    int wake_fd;
    uint8_t uuid[16];
} rig_t;

/* ---- time, which a test may move on */
static _Atomic uint64_t ahead_ns;
uint64_t __real_kvp_now_ns(void);
uint64_t __wrap_kvp_now_ns(void);

uint64_t
__wrap_kvp_now_ns(void)
{
    return __real_kvp_now_ns() + ahead_ns;
}

/* ---- helpers */
static kvp_tier_conf_t
conf_of(uint32_t devices, int wake_fd)
{
    kvp_tier_conf_t conf = {.devices_n = devices, .name = "node-1", .wake_fd = wake_fd};

    for (uint32_t i = 0; i < devices; i++)
        conf.devices[i] = (kvp_tier_device_t){.dir = dir[i], .size_bytes = SIZE};
    return conf;
}

static void
use(rig_t *rig, const uint8_t pool_id[16])
{
    kvp_tier_use(rig->tier, pool_id, rig->uuid);
    while (!kvp_tier_is_ready(rig->tier))
        usleep(1000);
}

static rig_t
up(uint32_t devices, uint64_t budget)
{
    rig_t rig = {.wake_fd = eventfd(0, EFD_NONBLOCK)};
    kvp_tier_conf_t conf = conf_of(devices, rig.wake_fd);

    conf.write_budget_bytes = budget;
    assert_int_equal(kvp_tier_open(&conf, &rig.tier), KVP_OK);
    use(&rig, pool);
    return rig;
}

static void
down(rig_t *rig)
{
    kvp_tier_stop(rig->tier);
    kvp_tier_close(rig->tier);
    close(rig->wake_fd);
}

static kvp_tier_op_t *
next(rig_t *rig)
{
    struct pollfd p = {.fd = rig->wake_fd, .events = POLLIN};
    kvp_tier_op_t *op;
    uint64_t count;

    while ((op = kvp_tier_take(rig->tier)) == NULL) {
        assert_int_equal(poll(&p, 1, 10000), 1);
        (void)!read(rig->wake_fd, &count, sizeof count);
    }
    return op;
}

static kvp_digest_t
digest_of(uint64_t i)
{
    return (kvp_digest_t){.lo = i * 0x9E3779B97F4A7C15ull, .hi = i + 1};
}

static void
fill(uint8_t *dst, uint64_t i, uint64_t version)
{
    for (uint32_t at = 0; at < LEN; at++)
        dst[at] = (uint8_t)((i * 31 + version * 7 + at) * 2654435761u >> 24);
}

static kvp_tier_op_t *
op_of(kvp_tier_op_kind_t kind, uint64_t i, uint64_t version)
{
    kvp_tier_op_t *op = calloc(1, sizeof *op);
    uint8_t *bytes = calloc(1, LEN);

    op->kind = kind;
    op->arg = bytes;
    op->meta.digest = digest_of(i);
    op->meta.version = version;
    if (kind == KVP_TIER_WRITE) fill(bytes, i, version);
    op->src = bytes;
    op->dst = bytes;
    op->cap = LEN;
    if (kind != KVP_TIER_WRITE) return op;
    op->meta.len = LEN;
    op->meta.key_hash2 = i;
    op->meta.tenant = 5;
    op->meta.flags = 3;
    op->meta.lineage = (kvp_wire_lineage_t){.sequence = i, .parent = 4, .depth = 2, .is_told = 1};
    op->meta.key_len = (uint16_t)snprintf((char *)op->meta.key, KVP_KEY_MAX, "key %lu", (unsigned long)i);
    return op;
}

static void
rid(kvp_tier_op_t *op)
{
    free(op->arg);
    free(op);
}

static kvp_err_t
one(rig_t *rig, kvp_tier_op_kind_t kind, uint64_t i, uint64_t version)
{
    kvp_tier_op_t *op = op_of(kind, i, version);
    uint8_t want[LEN];
    kvp_err_t err;

    assert_int_equal(kvp_tier_submit(rig->tier, op), KVP_OK);
    assert_ptr_equal(next(rig), op);
    err = op->err;
    if (kind == KVP_TIER_READ && err == KVP_OK) {
        char key[64];

        fill(want, i, version);
        snprintf(key, sizeof key, "key %lu", (unsigned long)i);
        assert_memory_equal(op->arg, want, LEN);
        assert_int_equal(op->meta.len, LEN);
        assert_int_equal(op->meta.sum, kvp_sum(want, LEN));
        assert_int_equal(op->meta.tenant, 5);
        assert_int_equal(op->meta.flags, 3);
        assert_int_equal(op->meta.lineage.sequence, i);
        assert_int_equal(op->meta.key_len, strlen(key));
        assert_memory_equal(op->meta.key, key, strlen(key));
    }
    rid(op);
    return err;
}

/* Of an object whose tenant and lineage are not those of op_of. */
static kvp_err_t
read_bytes(rig_t *rig, uint64_t i, uint64_t version)
{
    kvp_tier_op_t *op = op_of(KVP_TIER_READ, i, version);
    uint8_t want[LEN];
    kvp_err_t err;

    assert_int_equal(kvp_tier_submit(rig->tier, op), KVP_OK);
    assert_ptr_equal(next(rig), op);
    err = op->err;
    fill(want, i, version);
    if (err == KVP_OK) assert_memory_equal(op->arg, want, LEN);
    rid(op);
    return err;
}

/* All at once; those of one device are answered in their order. */
static void
write_many(rig_t *rig, uint64_t from, uint64_t n, uint64_t version)
{
    uint64_t submitted = from, taken = from, last[KVP_TIER_DEVICES_MAX] = {0};

    while (taken < from + n) {
        kvp_tier_op_t *op;

        while (submitted < from + n) {
            op = op_of(KVP_TIER_WRITE, submitted, version);
            if (kvp_tier_submit(rig->tier, op) == KVP_EAGAIN) {
                rid(op);
                break;
            }
            submitted++;
        }
        op = next(rig);
        assert_int_equal(op->err, KVP_OK);
        assert_true(last[op->device] <= op->meta.key_hash2);
        last[op->device] = op->meta.key_hash2;
        taken++;
        rid(op);
    }
}

static uint64_t
stat_of(rig_t *rig, size_t offset)
{
    kvp_tier_stats_t stats;

    kvp_tier_stats(rig->tier, &stats);
    return *(uint64_t *)((char *)&stats + offset);
}
#define STAT(rig, name) stat_of(rig, offsetof(kvp_tier_stats_t, name))

static void
clear(void)
{
    char path[160];

    for (uint32_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/kvpool.tier", dir[i]);
        (void)unlink(path);
    }
}

static int
each(void **state)
{
    (void)state;
    clear();
    return 0;
}

/* ---- tests */
static void
test_records_are_there_and_back(void **state)
{
    rig_t rig = up(1, 0);
    kvp_wire_tiered_t recs[64];
    uint64_t cursor = 0;

    write_many(&rig, 0, 100, 1);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(one(&rig, KVP_TIER_READ, i, 1), KVP_OK);
    assert_int_equal(one(&rig, KVP_TIER_READ, 7, 2), KVP_NOT_FOUND);
    assert_int_equal(one(&rig, KVP_TIER_WRITE, 7, 2), KVP_OK);
    assert_int_equal(one(&rig, KVP_TIER_READ, 7, 1), KVP_NOT_FOUND);
    assert_int_equal(one(&rig, KVP_TIER_READ, 7, 2), KVP_OK);
    assert_int_equal(one(&rig, KVP_TIER_DROP, 8, 1), KVP_OK);
    assert_int_equal(one(&rig, KVP_TIER_DROP, 8, 1), KVP_OK);
    assert_int_equal(one(&rig, KVP_TIER_READ, 8, 1), KVP_NOT_FOUND);
    assert_int_equal(kvp_tier_list(rig.tier, &cursor, recs, 64) + kvp_tier_list(rig.tier, &cursor, recs, 64), 99);
    assert_int_equal(kvp_tier_list(rig.tier, &cursor, recs, 64), 0);
    assert_int_equal(STAT(&rig, records), 99);
    down(&rig);
}

static bool
never(kvp_tier_op_t *op)
{
    (void)op;
    return false;
}

static void
test_bytes_of_another_object_are_not_written(void **state)
{
    rig_t rig = up(1, 0);
    kvp_tier_op_t *op = op_of(KVP_TIER_WRITE, 1, 1);

    op->still = never;
    assert_int_equal(kvp_tier_submit(rig.tier, op), KVP_OK);
    assert_ptr_equal(next(&rig), op);
    assert_int_equal(op->err, KVP_STALE);
    assert_int_equal(one(&rig, KVP_TIER_READ, 1, 1), KVP_NOT_FOUND);
    assert_int_equal(STAT(&rig, stale_writes), 1);
    rid(op);
    down(&rig);
}

static int
write_and_die(void *arg)
{
    rig_t rig = up(*(uint32_t *)arg, 0);

    write_many(&rig, 0, 200, 3);
    write_many(&rig, 0, 50, 4);
    for (uint64_t i = 50; i < 60; i++)
        assert_int_equal(one(&rig, KVP_TIER_DROP, i, 3), KVP_OK);
    write_many(&rig, 200, 10, 9);
    raise(SIGKILL);
    return 0;
}

static void
find_all(rig_t *rig)
{
    for (uint64_t i = 0; i < 210; i++) {
        assert_int_equal(one(rig, KVP_TIER_READ, i, 3), i < 60 || i >= 200 ? KVP_NOT_FOUND : KVP_OK);
        if (i < 50) assert_int_equal(one(rig, KVP_TIER_READ, i, 4), KVP_OK);
        if (i >= 200) assert_int_equal(one(rig, KVP_TIER_READ, i, 9), KVP_OK);
    }
}

static void
test_records_outlive_a_kill(void **state)
{
    uint8_t uuid[16];

    for (uint32_t devices = 1; devices <= 2; devices++) {
        clear();
        assert_int_equal(in_child(write_and_die, &devices), -1);
        for (uint32_t n = 0; n < 3; n++) {
            rig_t rig = up(devices, 0);

            find_all(&rig);
            if (n > 0) assert_memory_equal(rig.uuid, uuid, 16);
            memcpy(uuid, rig.uuid, 16);
            write_many(&rig, 1000 + n, 1, 1);
            down(&rig);
        }
    }
}

#define OBJECTS 300u

/* What a child has asked for and got, in memory that outlives it. version 0 = nothing, or dropped. */
typedef struct {
    struct {
        uint64_t asked, had;
    } objects[OBJECTS];
    _Atomic uint64_t versions;
} shared_t;

/* Writes and drops without end, each object one at a time; pages are given up, and all is kept. */
static int
work_until_killed(void *arg)
{
    static kvp_tier_proposal_t proposal;
    static uint8_t keep[KVP_TIER_PROPOSED_MAX];
    shared_t *shared = arg;
    rig_t rig = up(1, 0);
    uint32_t under_way = 0;

    memset(keep, 1, sizeof keep);
    for (uint32_t i = 0;; i = (i + 1) % OBJECTS) {
        uint64_t had = shared->objects[i].had, version = had != 0 && i % 3 == 0 ? 0 : ++shared->versions;
        kvp_tier_op_t *op = op_of(version == 0 ? KVP_TIER_DROP : KVP_TIER_WRITE, i, version == 0 ? had : version);

        shared->objects[i].asked = version;
        op->meta.tenant = i;
        if (kvp_tier_submit(rig.tier, op) != KVP_OK) return 1;
        for (under_way++; under_way >= 40; under_way--) {
            op = next(&rig);
            if (op->err == KVP_OK)
                shared->objects[op->meta.tenant].had = op->kind == KVP_TIER_DROP ? 0 : op->meta.version;
            if (op->err == KVP_NO_SPACE) shared->objects[op->meta.tenant].asked = shared->objects[op->meta.tenant].had;
            if (op->err != KVP_OK && op->err != KVP_NO_SPACE) return 2;
            rid(op);
        }
        if (kvp_tier_propose(rig.tier, &proposal)) kvp_tier_answer(rig.tier, keep, proposal.n);
    }
}

static uint64_t
check_what_is_left(shared_t *shared)
{
    rig_t rig = up(1, 0);
    kvp_wire_tiered_t recs[OBJECTS + 1];
    uint64_t cursor = 0, versions[OBJECTS] = {0};
    uint32_t n = kvp_tier_list(rig.tier, &cursor, recs, OBJECTS + 1);

    assert_in_range(n, 0, OBJECTS);
    for (uint32_t r = 0; r < n; r++) {
        assert_in_range(recs[r].digest.hi, 1, OBJECTS);
        versions[recs[r].digest.hi - 1] = recs[r].version;
    }
    for (uint32_t i = 0; i < OBJECTS; i++) {
        if (versions[i] != shared->objects[i].asked) assert_int_equal(versions[i], shared->objects[i].had);
        if (versions[i] != 0) assert_int_equal(read_bytes(&rig, i, versions[i]), KVP_OK);
        shared->objects[i].had = shared->objects[i].asked = versions[i];
    }
    down(&rig);
    return n;
}

/* Waits until the child has asked for that many writes more, however slow the machine is; false after 20 s. */
static bool
await_writes(shared_t *shared, uint64_t writes)
{
    uint64_t until = shared->versions + writes;

    for (uint32_t ms = 0; shared->versions < until; ms++) {
        if (ms == 20000) return false;
        usleep(1000);
    }
    return true;
}

/* In each third round the kill may fall into the mounting, before any write. */
static void
test_killed_at_any_moment(void **state)
{
    shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t found = 0;

    for (uint32_t n = 0; n < 12; n++) {
        pid_t pid = fork();
        int status;
        bool wrote;

        if (pid == 0) _exit(work_until_killed(shared));
        wrote = n % 3 == 0 || await_writes(shared, 50 + n * 67 % 200);
        usleep(n * 23456 % 50000);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        assert_true(wrote);
        found += check_what_is_left(shared);
    }
    print_message("found %lu after %lu writes\n", (unsigned long)found, (unsigned long)shared->versions);
    assert_true(found > OBJECTS);
    munmap(shared, sizeof *shared);
}

static void
test_records_of_another_pool_are_given_up(void **state)
{
    rig_t rig = up(1, 0);
    uint8_t uuid[16];

    memcpy(uuid, rig.uuid, 16);
    write_many(&rig, 0, 10, 1);
    kvp_tier_use(rig.tier, other_pool, rig.uuid);
    assert_memory_not_equal(uuid, rig.uuid, 16);
    assert_int_equal(one(&rig, KVP_TIER_READ, 1, 1), KVP_NOT_FOUND);
    down(&rig);
    rig = up(1, 0);
    assert_int_equal(one(&rig, KVP_TIER_READ, 1, 1), KVP_NOT_FOUND);
    down(&rig);
}

/* What the control thread does between other things: half of what is proposed is kept. */
static void
reclaim(rig_t *rig)
{
    static kvp_tier_proposal_t proposal;
    static uint8_t keep[KVP_TIER_PROPOSED_MAX];

    if (!kvp_tier_propose(rig->tier, &proposal)) return;
    for (uint32_t n = 0; n < proposal.n; n++)
        keep[n] = proposal.recs[n].digest.hi % 2 == 0;
    kvp_tier_answer(rig->tier, keep, proposal.n);
}

/* Twice the device is written. */
static void
test_pages_are_given_up(void **state)
{
    rig_t rig = up(1, 0);
    uint64_t refused = 0, n = 1600;
    uint32_t found = 0;

    for (uint64_t i = 0; i < n; i += 20) {
        for (uint64_t j = i; j < i + 20; j++)
            assert_int_equal(kvp_tier_submit(rig.tier, op_of(KVP_TIER_WRITE, j, 1)), KVP_OK);
        for (uint64_t j = i; j < i + 20; j++) {
            kvp_tier_op_t *op = next(&rig);

            refused += op->err == KVP_NO_SPACE;
            assert_true(op->err == KVP_OK || op->err == KVP_NO_SPACE);
            rid(op);
            reclaim(&rig);
        }
        for (uint32_t tries = 0; tries < 2000 && STAT(&rig, free_pages) < 2; tries++) {
            reclaim(&rig);
            usleep(100);
        }
    }
    for (uint64_t i = 0; i < n; i++)
        found += one(&rig, KVP_TIER_READ, i, 1) == KVP_OK;
    print_message("refused %lu, found %u, reclaimed pages %lu, kept %lu\n", (unsigned long)refused, found,
                  (unsigned long)STAT(&rig, pages_reclaimed), (unsigned long)STAT(&rig, relocated));
    assert_int_equal(found, STAT(&rig, records));
    assert_in_range(found, 900, 1340);
    assert_in_range(refused, 0, 100);
    assert_true(STAT(&rig, pages_reclaimed) > 10 && STAT(&rig, relocated) > 200);
    down(&rig);
    rig = up(1, 0);
    assert_int_equal(STAT(&rig, records), found);
    down(&rig);
}

static void
test_wrong_bytes_are_a_miss(void **state)
{
    rig_t rig = up(1, 0);
    char path[160];
    int fd;

    write_many(&rig, 0, 20, 1);
    snprintf(path, sizeof path, "%s/kvpool.tier", dir[0]);
    fd = open(path, O_RDWR);
    for (uint64_t at = 1 << 20; at < 3 << 20; at += 100000)
        assert_int_equal(pwrite(fd, "x", 1, (off_t)at), 1);
    close(fd);
    for (uint64_t i = 0; i < 20; i++) {
        kvp_err_t err = one(&rig, KVP_TIER_READ, i, 1);

        assert_true(err == KVP_OK || err == KVP_CORRUPT);
        if (err == KVP_CORRUPT) assert_int_equal(one(&rig, KVP_TIER_READ, i, 1), KVP_NOT_FOUND);
    }
    assert_true(STAT(&rig, corrupt) > 0);
    down(&rig);
}

static void
swap_dirs(void)
{
    char first[sizeof dir[0]];

    memcpy(first, dir[0], sizeof first);
    memcpy(dir[0], dir[1], sizeof first);
    memcpy(dir[1], first, sizeof first);
}

static uint64_t
found_of(rig_t *rig, uint64_t n)
{
    uint64_t found = 0;

    for (uint64_t i = 0; i < n; i++)
        found += one(rig, KVP_TIER_READ, i, 1) == KVP_OK;
    return found;
}

/* Devices are known by their identities: in another order all is there, and with a device fewer what the others had. A
 * device that the tier was used without begins anew, since it missed removals, and so does a copy of another one. */
static void
test_devices_that_come_and_go(void **state)
{
    rig_t rig = up(2, 0);
    char command[400];
    uint64_t kept;

    write_many(&rig, 0, 60, 1);
    down(&rig);
    swap_dirs();
    rig = up(2, 0);
    assert_int_equal(found_of(&rig, 60), 60);
    down(&rig);
    rig = up(1, 0);
    kept = found_of(&rig, 60);
    assert_in_range(kept, 10, 50);
    assert_int_equal(one(&rig, KVP_TIER_DROP, 0, 1), KVP_OK);
    kept -= found_of(&rig, 60) < kept;
    write_many(&rig, 100, 60, 1);
    down(&rig);
    rig = up(2, 0); /* what the second one had is not back, and it has its slots again */
    assert_in_range(found_of(&rig, 60), 1, kept);
    assert_int_equal(one(&rig, KVP_TIER_READ, 0, 1), KVP_NOT_FOUND);
    write_many(&rig, 0, 60, 2);
    write_many(&rig, 0, 60, 3);
    down(&rig);
    snprintf(command, sizeof command, "cp %s/kvpool.tier %s/kvpool.tier", dir[1], dir[0]);
    assert_int_equal(system(command), 0);
    rig = up(2, 0);
    assert_true(STAT(&rig, records) > 0 && STAT(&rig, records) < 60 + kept + 60);
    write_many(&rig, 200, 60, 1);
    down(&rig);
}

static kvp_err_t
try_open(kvp_tier_conf_t *conf)
{
    kvp_tier_t *tier;
    kvp_err_t err = kvp_tier_open(conf, &tier);

    if (err == KVP_OK) kvp_tier_close(tier);
    return err;
}

static void
test_files_that_are_not_ours(void **state)
{
    rig_t rig = up(1, 0);
    kvp_tier_conf_t conf = conf_of(1, rig.wake_fd);
    char path[160];
    int fd;

    assert_int_equal(try_open(&conf), KVP_SYS); /* in use */
    down(&rig);
    conf.name = "node-2";
    assert_int_equal(try_open(&conf), KVP_INVALID);
    conf.name = "node-1";
    assert_int_equal(try_open(&conf), KVP_OK);
    conf.devices[0].size_bytes = 1 << 20;
    assert_int_equal(try_open(&conf), KVP_INVALID);
    conf.devices[0] = (kvp_tier_device_t){.dir = "/nowhere/at/all", .size_bytes = SIZE};
    assert_int_equal(try_open(&conf), KVP_INVALID);
    conf = conf_of(1, -1);
    snprintf(path, sizeof path, "%s/kvpool.tier", dir[0]);
    fd = open(path, O_RDWR | O_TRUNC);
    for (uint32_t i = 0; i < 4000; i++)
        assert_int_equal(write(fd, "words", 5), 5);
    close(fd);
    assert_int_equal(try_open(&conf), KVP_INVALID);
    conf.devices[0].size_bytes = 1ull << 60;
    clear();
    assert_int_equal(try_open(&conf), KVP_SYS);
}

/* The file is cut under the tier: reads fail, and the device is switched off; the other device goes on. A write that
 * ends after the cut makes the file longer again, and the bytes before it are zero: those records are damaged. So the
 * file is cut before each read: a late write cannot turn all failures into damage. */
static void
test_a_device_fails(void **state)
{
    rig_t rig = up(2, 0);
    uint64_t ok = 0, failed = 0;
    char path[160];

    write_many(&rig, 0, 60, 1);
    snprintf(path, sizeof path, "%s/kvpool.tier", dir[0]);
    for (uint64_t i = 0; i < 60; i++) {
        kvp_err_t err;

        assert_int_equal(truncate(path, 4096), 0);
        err = one(&rig, KVP_TIER_READ, i, 1);
        ok += err == KVP_OK;
        failed += err == KVP_SYS || err == KVP_CORRUPT;
    }
    assert_int_equal(ok + failed, 60);
    assert_true(ok > 10 && failed > 10);
    assert_int_equal(STAT(&rig, devices_failed), 1);
    assert_int_equal(STAT(&rig, records), ok);
    down(&rig);
}

/* Writes behind a limit fail: the device is switched off, what it had is given up, also what was written a moment
 * before, and it is tried again later. */
static void
test_a_device_that_failed_is_tried_again(void **state)
{
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    rig_t rig = up(1, 0);
    kvp_tier_op_t *written = op_of(KVP_TIER_WRITE, 1, 1);

    write_many(&rig, 2, 10, 1);
    assert_int_equal(kvp_tier_submit(rig.tier, written), KVP_OK);
    assert_ptr_equal(next(&rig), written);
    assert_int_equal(written->err, KVP_OK);
    assert_true(kvp_tier_is_kept(rig.tier, written));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(one(&rig, KVP_TIER_WRITE, 20, 1), KVP_SYS);
    assert_false(kvp_tier_is_kept(rig.tier, written));
    rid(written);
    assert_int_equal(one(&rig, KVP_TIER_READ, 1, 1), KVP_SYS);
    assert_int_equal(one(&rig, KVP_TIER_DROP, 1, 1), KVP_SYS);
    assert_int_equal(STAT(&rig, devices_failed), 1);
    limit.rlim_cur = RLIM_INFINITY;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(one(&rig, KVP_TIER_WRITE, 20, 1), KVP_SYS);
    ahead_ns += 31 * KVP_NS_PER_S;
    while (one(&rig, KVP_TIER_WRITE, 20, 1) != KVP_OK)
        usleep(1000);
    assert_int_equal(one(&rig, KVP_TIER_READ, 20, 1), KVP_OK);
    assert_int_equal(one(&rig, KVP_TIER_READ, 1, 1), KVP_NOT_FOUND);
    assert_int_equal(STAT(&rig, devices_failed), 0);
    down(&rig);
    rig = up(1, 0);
    assert_int_equal(one(&rig, KVP_TIER_READ, 20, 1), KVP_OK);
    assert_int_equal(one(&rig, KVP_TIER_READ, 1, 1), KVP_NOT_FOUND);
    down(&rig);
}

/* Eight ninths of the size are payload before anything is refused, or is to be given up. */
static void
test_overhead_is_less_than_a_ninth(void **state)
{
    static kvp_tier_proposal_t proposal;
    rig_t rig = up(1, 0);
    uint64_t ok = 0, before = 0;

    for (bool is_full = false; !is_full;) {
        for (uint64_t i = 0; i < 20; i++)
            assert_int_equal(kvp_tier_submit(rig.tier, op_of(KVP_TIER_WRITE, ok + i, 1)), KVP_OK);
        for (uint64_t i = 0; i < 20; i++) {
            kvp_tier_op_t *op = next(&rig);

            is_full |= op->err == KVP_NO_SPACE;
            ok += op->err == KVP_OK;
            rid(op);
        }
        if (before == 0 && kvp_tier_propose(rig.tier, &proposal)) before = ok;
    }
    assert_true(before * LEN > SIZE / 9 * 8 && ok > before);
    kvp_tier_answer(rig.tier, NULL, 0);
    assert_true(STAT(&rig, device_bytes) < ok * LEN / 100 * 102);
    down(&rig);
}

static void
test_the_budget_is_a_limit(void **state)
{
    rig_t rig = up(1, 20 * (LEN + 1000));
    uint32_t ok = 0, refused = 0;

    for (uint64_t i = 0; i < 30; i++) {
        kvp_err_t err = one(&rig, KVP_TIER_WRITE, i, 1);

        ok += err == KVP_OK;
        refused += err == KVP_LIMIT;
    }
    assert_int_equal(ok + refused, 30);
    assert_in_range(ok, 19, 21);
    down(&rig);
    rig = up(1, 20 * (LEN + 1000));
    assert_int_equal(one(&rig, KVP_TIER_WRITE, 40, 1), KVP_LIMIT);
    down(&rig);
    rig = up(1, 60 * (LEN + 1000));
    assert_int_equal(one(&rig, KVP_TIER_WRITE, 40, 1), KVP_OK);
    down(&rig);
}

/* After a quiesce the memory of reads and writes may go. */
static void
test_quiesce_lets_memory_go(void **state)
{
    rig_t rig = up(1, 0);
    kvp_tier_op_t *ops[200];

    write_many(&rig, 0, 100, 1);
    for (uint64_t i = 0; i < 200; i++) {
        ops[i] = op_of(i % 2 == 0 ? KVP_TIER_READ : KVP_TIER_WRITE, i % 2 == 0 ? i / 2 : 1000 + i, 1);
        assert_int_equal(kvp_tier_submit(rig.tier, ops[i]), KVP_OK);
    }
    kvp_tier_quiesce(rig.tier);
    for (uint64_t i = 0; i < 200; i++) {
        free(ops[i]->arg);
        ops[i]->arg = NULL;
    }
    for (uint64_t i = 0; i < 200; i++) {
        kvp_tier_op_t *op = next(&rig);

        assert_true(op->err == KVP_OK || op->err == KVP_CLOSED);
        rid(op);
    }
    assert_int_equal(one(&rig, KVP_TIER_READ, 5, 1), KVP_OK);
    down(&rig);
}

static void
test_an_idle_tier_writes_nothing(void **state)
{
    rig_t rig = up(1, 0);
    uint64_t bytes;

    write_many(&rig, 0, 10, 1);
    bytes = STAT(&rig, device_bytes);
    usleep(300000);
    assert_int_equal(STAT(&rig, device_bytes), bytes);
    down(&rig);
}

int
main(void)
{
    const struct CMUnitTest of_engines[] = {
        cmocka_unit_test_setup(test_records_are_there_and_back, each),
        cmocka_unit_test_setup(test_records_outlive_a_kill, each),
        cmocka_unit_test_setup(test_killed_at_any_moment, each),
        cmocka_unit_test_setup(test_pages_are_given_up, each),
        cmocka_unit_test_setup(test_a_device_fails, each),
        cmocka_unit_test_setup(test_quiesce_lets_memory_go, each),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test_setup(test_bytes_of_another_object_are_not_written, each),
        cmocka_unit_test_setup(test_records_of_another_pool_are_given_up, each),
        cmocka_unit_test_setup(test_wrong_bytes_are_a_miss, each),
        cmocka_unit_test_setup(test_files_that_are_not_ours, each),
        cmocka_unit_test_setup(test_devices_that_come_and_go, each),
        cmocka_unit_test_setup(test_a_device_that_failed_is_tried_again, each),
        cmocka_unit_test_setup(test_overhead_is_less_than_a_ninth, each),
        cmocka_unit_test_setup(test_the_budget_is_a_limit, each),
        cmocka_unit_test_setup(test_an_idle_tier_writes_nothing, each),
    };
    int failed = 0;

    for (uint32_t i = 0; i < 2; i++) {
        snprintf(dir[i], sizeof dir[i], "/var/tmp/kvp-tier-XXXXXX");
        if (mkdtemp(dir[i]) == NULL) return 1;
    }
    failed = cmocka_run_group_tests_name("io_uring", of_engines, NULL, NULL);
    failed += cmocka_run_group_tests_name("others", others, NULL, NULL);
    setenv("KVPOOL_TIER_ENGINE", "pread", 1);
    failed += cmocka_run_group_tests_name("threads", of_engines, NULL, NULL);
    clear();
    (void)rmdir(dir[0]);
    (void)rmdir(dir[1]);
    return failed;
}
