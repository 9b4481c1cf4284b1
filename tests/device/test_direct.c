/* SPDX-License-Identifier: Apache-2.0
 * Puts from and gets into device memory over rdma, from the C API down to the adapter and back: the whole library
 * with a node of its own, a real master, and below it the model NIC (tests/transport/model_nic.h) and a CUDA driver
 * without a device (fake_cuda.h), which shows what adapters wrote after a flush only. Built with the seams of
 * common/mutate.h, and with a linker that leads what is sent over TCP through here. */
#include "tools/base/procs.h"
#include "client/kvpool.h"
#include "common/log.h"
#include "common/mutate.h"
#include "tests/device/fake_cuda.h"
#include "tests/transport/model_nic.h"
#include "tests/transport/sanitizer.h"
#include "tests/cases.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>

#define ARENA_BYTES ((size_t)8 << 20)
#define HALF (ARENA_BYTES / 2)
#define OBJECT_BYTES ((size_t)3 << 20)
#define LAYERS 61u
#define LAYER_BYTES ((size_t)20000)
#define CHUNKS 8u
#define CHUNK_BYTES ((size_t)4 << 20)
#define SOFT_ROUNDS (IS_TSAN ? 15u : 60u)

kvp_rule_t kvp_rule_off;

static kvp_proc_t master;
static kvpool_t *pool;
static uint8_t *device, *host; /* of ARENA_BYTES; both are registered */
static uint8_t *scratch;
static char stat_text[1 << 20];

/* ---- fixture */
static int
start_master(void **state)
{
    const char *argv[] = {NULL,         "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                          "--data-dir", "none",     "--log-level", "warn",   NULL};

    (void)state;
    kvp_log_set_level(KVP_LOG_ERROR);
    host = malloc(ARENA_BYTES);
    scratch = malloc(ARENA_BYTES);
    if (host == NULL || scratch == NULL) return -1;
    return kvp_proc_start(&master, "master", "kvpool-master", argv) == KVP_OK ? 0 : -1;
}

static int
stop_master(void **state)
{
    (void)state;
    free(host);
    free(scratch);
    return kvp_proc_stop(&master);
}

static void
open_pool(const model_nic_conf_t *conf, const char *transports, uint32_t verify)
{
    model_nic_conf_t nic = *conf;
    kvpool_conf_t c = {.struct_size = sizeof c, .master = master.listen, .transports = transports, .verify = verify};

    nic.is_loopback = true;
    c.memory_bytes = CHUNKS * CHUNK_BYTES;
    c.chunk_bytes = CHUNK_BYTES;
    c.deadline_ms = 20000;
    assert_in_range(model_nic_reset(5, &nic), 0, 1); /* the process keeps its devices open */
    assert_int_equal(kvpool_open(&c, &pool), KVPOOL_OK);
    device = fake_cuda_alloc(ARENA_BYTES, FAKE_CUDA_PLAIN);
    assert_int_equal(kvpool_register(pool, device, ARENA_BYTES), KVPOOL_OK);
    assert_int_equal(kvpool_register(pool, host, ARENA_BYTES), KVPOOL_OK);
}

/* What is registered goes with the handle. */
static void
close_pool(void)
{
    kvpool_free(pool);
    pool = NULL;
    if (device != NULL) fake_cuda_free(device);
    device = NULL;
}

static int
setup(void **state)
{
    (void)state;
    fake_cuda_reset();
    kvp_rule_off = KVP_RULE_NONE;
    return 0;
}

static int
teardown(void **state)
{
    fake_cuda_left_t left;

    (void)state;
    model_nic_pause(false);
    close_pool();
    left = fake_cuda_left();
    return left.allocations == 0 && left.streams == 0 && left.pinned_bytes == 0 ? 0 : -1;
}

static uint64_t
figure(const char *name)
{
    char key[64];
    const char *at;
    size_t len;

    assert_int_equal(kvpool_stat(pool, stat_text, sizeof stat_text, &len, NULL), KVPOOL_OK);
    snprintf(key, sizeof key, "\"%s\":", name);
    at = strstr(stat_text, key);
    assert_non_null(at);
    return strtoull(at + strlen(key), NULL, 10);
}

/* ---- bytes */
static void
fill(size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        scratch[i] = (uint8_t)((i * 0x9e3779b97f4a7c15ull + seed * 0xd6e8feb86659fd93ull) >> 56);
}

static void
device_fill(uint8_t *at, size_t len, unsigned seed)
{
    fill(len, seed);
    fake_cuda_write(at, scratch, len);
}

static bool
device_has(const uint8_t *at, size_t len, unsigned seed)
{
    uint8_t *got = malloc(len);
    bool is_so;

    assert_non_null(got);
    fake_cuda_read(at, got, len);
    fill(len, seed);
    is_so = memcmp(got, scratch, len) == 0;
    free(got);
    return is_so;
}

static int
put(const char *key, const uint8_t *at, size_t len)
{
    return kvpool_upsert(pool, key, strlen(key), at, len, NULL);
}

static int
get(const char *key, uint8_t *at, size_t cap)
{
    size_t len;

    return kvpool_get(pool, key, strlen(key), at, cap, &len, NULL);
}

static void
put_and_get(unsigned seed)
{
    device_fill(device, OBJECT_BYTES, seed);
    assert_int_equal(put("object", device, OBJECT_BYTES), KVPOOL_OK);
    assert_int_equal(get("object", device + HALF, HALF), KVPOOL_OK);
}

/* ---- the way there */
TEST_WITH(test_bytes_go_straight_and_are_flushed, setup, teardown)
{
    open_pool(&(model_nic_conf_t){0}, "rdma", KVPOOL_VERIFY_AUTO);
    put_and_get(1);
    assert_true(device_has(device + HALF, OBJECT_BYTES, 1));
    assert_int_equal(fake_cuda_counts().copies, 0);
    assert_int_equal(fake_cuda_counts().flushes, 1);
    assert_int_equal(fake_cuda_left().pinned_bytes_max, 0);
    assert_int_equal(figure("device_direct"), 2);
    assert_int_equal(figure("device_direct_bytes"), 2 * OBJECT_BYTES);
    assert_int_equal(figure("device_staged"), 0);
    assert_int_equal(figure("copied_bytes"), 0);
}

/* A get that says OK before it has flushed is found by whoever looks at what it brought. */
TEST_WITH(test_without_the_flush_the_device_sees_something_else, setup, teardown)
{
    kvp_rule_off = KVP_RULE_DEVICE_FLUSH;
    open_pool(&(model_nic_conf_t){0}, "rdma", KVPOOL_VERIFY_AUTO);
    put_and_get(2);
    assert_false(device_has(device + HALF, OBJECT_BYTES, 2));
}

typedef struct {
    const char *name;
    model_nic_conf_t nic;
    fake_cuda_knobs_t knobs;
    unsigned direct, staged; /* of a put and a get */
} way_t;

static const way_t ways[] = {
    {"dma-buf", {0}, {.has_dmabuf = 1, .has_peer = 1, .flush_options = 1}, 2, 0},
    {"dma-buf, two adapters", {.devs_n = 2}, {.has_dmabuf = 1, .flush_options = 1}, 2, 0},
    {"dma-buf, small registrations", {.max_reg_bytes = 8u << 20}, {.has_dmabuf = 1, .flush_options = 1}, 2, 0},
    {"the adapter takes none: peer memory",
     {.has_no_dmabuf = true, .peer_memory = fake_cuda_bus},
     {.has_dmabuf = 1, .has_peer = 1, .flush_options = 1},
     2,
     0},
    {"the driver gives none: peer memory",
     {.peer_memory = fake_cuda_bus},
     {.export_dmabuf = 801, .has_dmabuf = 1, .has_peer = 1, .flush_options = 1},
     2,
     0},
    {"no module for peer memory: staged",
     {.has_no_dmabuf = true},
     {.has_dmabuf = 1, .has_peer = 1, .flush_options = 1},
     0,
     2},
    {"the device can neither: staged", {.peer_memory = fake_cuda_bus}, {.flush_options = 1}, 0, 2},
    {"nothing to flush", {0}, {.has_dmabuf = 1, .ordering = 100}, 2, 0},
    {"no flush: only put goes straight", {0}, {.has_dmabuf = 1, .flush_options = 0}, 1, 1},
};

TEST_WITH(test_each_way_is_taken_where_the_one_before_it_fails, setup, teardown)
{
    for (unsigned i = 0; i < KVP_ARRAY_LEN(ways); i++) {
        print_message("%s\n", ways[i].name);
        fake_cuda_knobs = ways[i].knobs;
        open_pool(&ways[i].nic, "rdma", KVPOOL_VERIFY_AUTO);
        put_and_get(10 + i);
        assert_true(device_has(device + HALF, OBJECT_BYTES, 10 + i));
        assert_int_equal(figure("device_direct"), ways[i].direct);
        assert_int_equal(figure("device_staged"), ways[i].staged);
        close_pool();
    }
}

/* Sums are the host's to take: what is to be verified by one is staged, where it has one. */
TEST_WITH(test_what_is_verified_is_staged, setup, teardown)
{
    open_pool(&(model_nic_conf_t){0}, "rdma", KVPOOL_VERIFY_PAYLOAD);
    put_and_get(3); /* no sum */
    assert_true(device_has(device + HALF, OBJECT_BYTES, 3));
    assert_int_equal(figure("device_staged"), 0);
    fill(OBJECT_BYTES, 4);
    memcpy(host, scratch, OBJECT_BYTES);
    assert_int_equal(put("summed", host, OBJECT_BYTES), KVPOOL_OK);
    assert_int_equal(get("summed", device, HALF), KVPOOL_OK);
    assert_true(device_has(device, OBJECT_BYTES, 4));
    assert_int_equal(figure("device_staged"), 1);
}

/* ---- batches */

/* Objects of 61 layers: of the device alone, of the host alone, and of both. */
TEST_WITH(test_a_batch_of_all_kinds, setup, teardown)
{
    static const char *const names[] = {"device", "host", "both"};
    static kvpool_iov_t iov[3][LAYERS];
    kvpool_item_t items[3];
    int results[3];

    open_pool(&(model_nic_conf_t){0}, "rdma", KVPOOL_VERIFY_AUTO);
    for (unsigned k = 0; k < 3; k++) {
        for (unsigned i = 0; i < LAYERS; i++) {
            uint8_t *base = k == 0 || (k == 2 && i % 2 == 0) ? device : host;

            iov[k][i] = (kvpool_iov_t){base + (k * LAYERS + i) * LAYER_BYTES, LAYER_BYTES};
            fill(LAYER_BYTES, 100 * k + i);
            if (base == device)
                fake_cuda_write(iov[k][i].addr, scratch, LAYER_BYTES);
            else
                memcpy(iov[k][i].addr, scratch, LAYER_BYTES);
        }
        items[k] = (kvpool_item_t){.iov = iov[k], .iov_n = LAYERS};
        items[k].key = (kvpool_key_t){names[k], strlen(names[k])};
    }
    assert_int_equal(kvpool_batch_put(pool, items, 3, NULL, results), KVPOOL_OK);
    memset(host, 0, ARENA_BYTES);
    memset(scratch, 0, ARENA_BYTES);
    fake_cuda_write(device, scratch, ARENA_BYTES);
    assert_int_equal(kvpool_batch_get(pool, items, 3, NULL, results), KVPOOL_OK);
    for (unsigned k = 0; k < 3; k++) {
        assert_int_equal(results[k], KVPOOL_OK);
        for (unsigned i = 0; i < LAYERS; i++) {
            const uint8_t *at = iov[k][i].addr;

            if (k == 0 || (k == 2 && i % 2 == 0)) {
                assert_true(device_has(at, LAYER_BYTES, 100 * k + i));
                continue;
            }
            fill(LAYER_BYTES, 100 * k + i);
            assert_memory_equal(at, scratch, LAYER_BYTES);
        }
    }
    assert_int_equal(figure("device_direct"), 2);
    assert_int_equal(figure("device_staged"), 2);
}

/* ---- over TCP, what was put straight */
/* Gets of the host's memory and of a device's, over adapters of which some READs bring nothing. Returns how many were
 * wrong. */
static uint32_t
wrong_gets(uint32_t verify)
{
    uint32_t wrong = 0, good = 0;

    open_pool(&(model_nic_conf_t){.devs_n = 2, .is_soft = true, .forgets_per_mille = 600 / SOFT_ROUNDS}, "rdma",
              verify);
    for (unsigned seed = 0; seed < SOFT_ROUNDS; seed++) {
        device_fill(device, OBJECT_BYTES, seed);
        if (put("object", device, OBJECT_BYTES) != KVPOOL_OK) continue;
        if (get("object", device + HALF, HALF) == KVPOOL_OK) {
            wrong += !device_has(device + HALF, OBJECT_BYTES, seed);
            good++;
        }
        if (get("object", host, HALF) == KVPOOL_OK) {
            fill(OBJECT_BYTES, seed);
            wrong += memcmp(host, scratch, OBJECT_BYTES) != 0;
            good++;
        }
    }
    close_pool();
    assert_true(good > SOFT_ROUNDS);
    return wrong;
}

/* Soft RoCE ends READs well that brought nothing (tests/rdma_vm/README.md). */
TEST_WITH(test_soft_adapters_are_not_believed, setup, teardown)
{
    assert_true(wrong_gets(KVPOOL_VERIFY_ADAPTERS) > 0);
    assert_int_equal(wrong_gets(KVPOOL_VERIFY_AUTO), 0);
}

static _Atomic uint32_t flips; /* so many sends of payload yet are spoilt on their way */

ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);

/* Of a send that begins with payload, all but its first MiB goes by another call. */
ssize_t
__wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
    static uint8_t spoilt[1 << 20];
    struct iovec iov = {.iov_base = spoilt, .iov_len = sizeof spoilt};
    struct msghdr other = {.msg_iov = &iov, .msg_iovlen = 1};

    if (flips == 0 || msg->msg_iov[0].iov_len < sizeof spoilt) return __real_sendmsg(fd, msg, flags);
    flips--;
    memcpy(spoilt, msg->msg_iov[0].iov_base, sizeof spoilt);
    spoilt[4711] ^= 1;
    return __real_sendmsg(fd, &other, flags);
}

/* There is no sum of the object that would tell: the node sends one of what it sends. */
TEST_WITH(test_what_has_no_sum_is_verified_over_tcp, setup, teardown)
{
    kvpool_conf_t conf = {.struct_size = sizeof conf, .master = master.listen, .transports = "tcp"};
    kvpool_t *owner, *reader;
    uint64_t direct = 0;

    open_pool(&(model_nic_conf_t){0}, "rdma,tcp", KVPOOL_VERIFY_AUTO);
    /* The first put to a chunk may go by TCP: the node registers the keys to it meanwhile. */
    for (unsigned i = 0; i < CHUNKS + 1 && direct < 2; i++) {
        direct = figure("device_direct");
        put_and_get(8);
        direct = figure("device_direct") - direct;
        usleep(20000);
    }
    assert_int_equal(direct, 2);
    assert_int_equal(kvpool_open(&conf, &reader), KVPOOL_OK);
    owner = pool;
    pool = reader;
    assert_int_equal(get("object", host, ARENA_BYTES), KVPOOL_OK);
    fill(OBJECT_BYTES, 8);
    assert_memory_equal(host, scratch, OBJECT_BYTES);
    memset(host, 0, OBJECT_BYTES);
    flips = 1;
    assert_int_equal(get("object", host, ARENA_BYTES), KVPOOL_OK); /* the second time */
    assert_memory_equal(host, scratch, OBJECT_BYTES);
    assert_int_equal(figure("corrupt_reads"), 1);
    flips = UINT32_MAX;
    assert_int_equal(get("object", host, ARENA_BYTES), KVPOOL_CORRUPT);
    flips = 0;
    pool = owner;
    kvpool_free(reader);
}

/* ---- failures */
TEST_WITH(test_a_flush_that_fails_fails_the_get, setup, teardown)
{
    open_pool(&(model_nic_conf_t){0}, "rdma", KVPOOL_VERIFY_AUTO);
    put_and_get(5);
    fake_cuda_knobs.flush = 700;
    assert_int_equal(get("object", device, HALF), KVPOOL_SYS);
    fake_cuda_knobs.flush = 0;
    assert_int_equal(get("object", device, HALF), KVPOOL_OK);
    assert_true(device_has(device, OBJECT_BYTES, 5));
}

/* Memory that the program freed too early, however adapters found it: its calls fail, at once, and no others. */
static void
check_freed(const model_nic_conf_t *nic)
{
    uint8_t *other, *freed;

    open_pool(nic, "rdma", KVPOOL_VERIFY_AUTO);
    other = fake_cuda_alloc(OBJECT_BYTES, FAKE_CUDA_PLAIN);
    assert_int_equal(kvpool_register(pool, other, OBJECT_BYTES), KVPOOL_OK);
    put_and_get(6);
    freed = device;
    device = NULL;
    fake_cuda_free(freed);
    assert_int_equal(get("object", freed, HALF), KVPOOL_NOT_REGISTERED);
    assert_int_equal(get("object", other, OBJECT_BYTES), KVPOOL_OK);
    assert_true(device_has(other, OBJECT_BYTES, 6));
    assert_int_equal(put("freed", freed, OBJECT_BYTES), KVPOOL_NOT_REGISTERED);
    assert_int_equal(get("freed", other, OBJECT_BYTES), KVPOOL_NOT_FOUND);
    assert_int_equal(put("other", other, OBJECT_BYTES), KVPOOL_OK);
    assert_int_equal(kvpool_unregister(pool, freed), KVPOOL_OK);
    assert_int_equal(kvpool_unregister(pool, other), KVPOOL_OK);
    fake_cuda_free(other);
    close_pool();
}

TEST_WITH(test_memory_that_was_freed_fails_its_own_calls, setup, teardown)
{
    check_freed(&(model_nic_conf_t){0});
    check_freed(&(model_nic_conf_t){.has_no_dmabuf = true, .peer_memory = fake_cuda_bus});
}

typedef struct {
    int result;
    _Atomic bool is_over;
} call_t;

static void *
get_main(void *arg)
{
    call_t *call = arg;

    call->result = get("object", device + HALF, HALF);
    call->is_over = true;
    return NULL;
}

static void *
unregister_main(void *arg)
{
    call_t *call = arg;

    call->result = kvpool_unregister(pool, device);
    call->is_over = true;
    return NULL;
}

/* What a get of nothing into that memory gives: NOT_FOUND, with no adapter having a part in it, while it is registered.
 */
static int
probe(uint8_t *at)
{
    kvpool_iov_t iov = {at, 1};
    kvpool_item_t item = {.key = {"absent", 6}, .iov = &iov, .iov_n = 1};
    int result;

    assert_int_equal(kvpool_batch_get(pool, &item, 1, NULL, &result), KVPOOL_OK);
    return result;
}

/* Nobody gets hold of the memory any more, and it stays registered until what is under way is over. */
TEST_WITH(test_unregister_waits_for_a_get_under_way, setup, teardown)
{
    call_t getting = {.result = 1}, leaving = {.result = 1};
    model_nic_counts_t before, now;
    pthread_t threads[2];

    open_pool(&(model_nic_conf_t){0}, "rdma", KVPOOL_VERIFY_AUTO);
    put_and_get(7);
    memset(scratch, 0, OBJECT_BYTES);
    fake_cuda_write(device + HALF, scratch, OBJECT_BYTES);
    model_nic_pause(true);
    model_nic_counts(&before);
    assert_int_equal(pthread_create(&threads[0], NULL, get_main, &getting), 0);
    do {
        sched_yield();
        model_nic_counts(&now);
    } while (now.posts == before.posts);
    assert_int_equal(pthread_create(&threads[1], NULL, unregister_main, &leaving), 0);
    while (probe(device) != KVPOOL_NOT_REGISTERED)
        sched_yield();
    assert_false(getting.is_over);
    assert_false(leaving.is_over);
    model_nic_pause(false);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(getting.result, KVPOOL_OK);
    assert_int_equal(leaving.result, KVPOOL_OK);
    assert_true(device_has(device + HALF, OBJECT_BYTES, 7));
}

TEST_MAIN_WITH(start_master, stop_master)
