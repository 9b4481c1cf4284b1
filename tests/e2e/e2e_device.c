/* SPDX-License-Identifier: Apache-2.0
 * e2e_device: puts from and gets into device memory, by a CUDA driver without a device (tests/device/fake_cuda.h),
 * which is late in all it may be and kills who touches its memory. A line "ok NAME" or "not ok NAME got WHAT" for
 * each; exit code 1 if any is not ok. The pool is the one of $KVPOOL_MASTER, the transports those of
 * $KVPOOL_TRANSPORTS; arguments: how many copies puts make, and which host this is. */
#include "tests/device/fake_cuda.h"
#include "tests/e2e/e2e_util.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_BYTES (12u << 20)
#define LAYERS 61u
#define LAYER_BYTES 90000u /* together more than a window */
#define MANY 300u
#define MANY_BYTES 20000u
#define THREADS 12u
#define STAGES_BYTES (32u << 20) /* what a handle pins at most */

static unsigned failures;
static kvpool_t *pool;
static uint8_t *device, *host, *scratch; /* of ARENA_BYTES; the first two are registered */
static kvpool_opts_t opts = {.struct_size = sizeof opts};

static void
expect(const char *name, int got, int want)
{
    failures += got != want;
    if (got == want)
        printf("ok %s\n", name);
    else
        printf("not ok %s got %s (%d)\n", name, kvpool_errname(got), got);
    fflush(stdout);
}

static void
expect_true(const char *name, bool is_so)
{
    expect(name, is_so ? 0 : KVPOOL_INTERNAL, 0);
}

/* Bytes of version n in device memory, and whether they are there. */
static void
device_fill(uint8_t *at, size_t len, uint64_t version)
{
    e2e_fill(scratch, len, 1, version);
    fake_cuda_write(at, scratch, len);
}

static void
device_clear(uint8_t *at, size_t len)
{
    memset(scratch, 0xee, len);
    fake_cuda_write(at, scratch, len);
}

static bool
is_version(const uint8_t *bytes, size_t len, uint64_t version)
{
    uint8_t *want = e2e_alloc(len);
    bool is_so;

    e2e_fill(want, len, 1, version);
    is_so = memcmp(want, bytes, len) == 0;
    munmap(want, len);
    return is_so;
}

static bool
device_is(const uint8_t *at, size_t len, uint64_t version)
{
    fake_cuda_read(at, scratch, len);
    return is_version(scratch, len, version);
}

/* ---- one object of every size about a window's */
static void
check_size(size_t len)
{
    char name[64];
    size_t got = 0;
    int err;

    snprintf(name, sizeof name, "device to device, %zu bytes", len);
    device_fill(device, len, len);
    err = kvpool_put(pool, name, strlen(name), device, len, &opts);
    device_clear(device, len);
    if (err == KVPOOL_OK) err = kvpool_get(pool, name, strlen(name), device, len, &got, NULL);
    expect(name, err == KVPOOL_OK && (got != len || !device_is(device, len, len)) ? KVPOOL_CORRUPT : err, KVPOOL_OK);

    snprintf(name, sizeof name, "device to host, %zu bytes", len);
    device_fill(device, len, len + 1);
    err = kvpool_put(pool, name, strlen(name), device, len, &opts);
    if (err == KVPOOL_OK) err = kvpool_get(pool, name, strlen(name), host, len, &got, NULL);
    expect(name, err == KVPOOL_OK && (got != len || !is_version(host, len, len + 1)) ? KVPOOL_CORRUPT : err, KVPOOL_OK);

    snprintf(name, sizeof name, "host to device, %zu bytes", len);
    e2e_fill(host, len, 1, len + 2);
    err = kvpool_put(pool, name, strlen(name), host, len, &opts);
    if (err == KVPOOL_OK) err = kvpool_get(pool, name, strlen(name), device, ARENA_BYTES, &got, NULL);
    expect(name, err == KVPOOL_OK && (got != len || !device_is(device, len, len + 2)) ? KVPOOL_CORRUPT : err,
           KVPOOL_OK);
}

static void
check_sizes(void)
{
    static const size_t sizes[] = {16, 4096, 65537, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, (7u << 20) + 123};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_size(sizes[i]);
}

/* ---- batches */

/* An object of 61 layers, every third one in host memory. */
static void
check_mixed_pieces(void)
{
    kvpool_iov_t iov[LAYERS];
    kvpool_item_t item = {.key = {"mixed", 5}, .iov = iov, .iov_n = LAYERS};
    uint8_t *whole = e2e_alloc(LAYERS * LAYER_BYTES), *got = e2e_alloc(LAYERS * LAYER_BYTES);
    int result;

    e2e_fill(whole, LAYERS * LAYER_BYTES, 1, 5);
    for (unsigned i = 0; i < LAYERS; i++) {
        uint8_t *at = (i % 3 == 0 ? host : device) + i * 2 * LAYER_BYTES;

        iov[i] = (kvpool_iov_t){at, LAYER_BYTES};
        if (i % 3 == 0)
            memcpy(at, whole + i * LAYER_BYTES, LAYER_BYTES);
        else
            fake_cuda_write(at, whole + i * LAYER_BYTES, LAYER_BYTES);
    }
    expect("mixed put", kvpool_batch_put(pool, &item, 1, &opts, &result), KVPOOL_OK);
    expect("mixed put, result", result, KVPOOL_OK);
    for (unsigned i = 0; i < LAYERS; i++) /* the other way round */
        iov[i].addr = (i % 3 != 0 ? host : device) + i * 2 * LAYER_BYTES;
    expect("mixed get", kvpool_batch_get(pool, &item, 1, NULL, &result), KVPOOL_OK);
    expect("mixed get, result", result, KVPOOL_OK);
    for (unsigned i = 0; i < LAYERS; i++) {
        if (i % 3 != 0)
            memcpy(got + i * LAYER_BYTES, iov[i].addr, LAYER_BYTES);
        else
            fake_cuda_read(iov[i].addr, got + i * LAYER_BYTES, LAYER_BYTES);
    }
    expect_true("mixed bytes", memcmp(whole, got, LAYERS * LAYER_BYTES) == 0);
    munmap(whole, LAYERS * LAYER_BYTES);
    munmap(got, LAYERS * LAYER_BYTES);
}

/* Many small objects share windows; some are in host memory, one is not there, one destination is too small. */
static void
check_many(void)
{
    static kvpool_item_t items[MANY];
    static kvpool_iov_t iov[MANY];
    static char keys[MANY][16];
    static int results[MANY];
    unsigned right = 0, ok = 0;

    for (unsigned i = 0; i < MANY; i++) {
        uint8_t *at = (i % 7 == 0 ? host : device) + i * MANY_BYTES;

        iov[i] = (kvpool_iov_t){at, MANY_BYTES};
        items[i] =
            (kvpool_item_t){.key = {keys[i], (size_t)snprintf(keys[i], 16, "many/%u", i)}, .iov = &iov[i], .iov_n = 1};
        if (i % 7 == 0)
            e2e_fill(at, MANY_BYTES, 1, 100 + i);
        else
            device_fill(at, MANY_BYTES, 100 + i);
    }
    expect("many put", kvpool_batch_put(pool, items, MANY, &opts, results), KVPOOL_OK);
    for (unsigned i = 0; i < MANY; i++)
        ok += results[i] == KVPOOL_OK;
    expect_true("many put, results", ok == MANY);
    device_clear(device, MANY * MANY_BYTES);
    memset(host, 0, MANY * MANY_BYTES);
    items[10].key = (kvpool_key_t){"absent", 6};
    iov[11].len = MANY_BYTES - 1;
    expect("many get", kvpool_batch_get(pool, items, MANY, NULL, results), KVPOOL_OK);
    for (unsigned i = 0; i < MANY; i++) {
        bool is_there =
            i % 7 == 0 ? is_version(iov[i].addr, MANY_BYTES, 100 + i) : device_is(iov[i].addr, MANY_BYTES, 100 + i);

        right += results[i] == KVPOOL_OK && is_there;
    }
    expect_true("many get, bytes", right == MANY - 2);
    expect("many get, one that is absent", results[10], KVPOOL_NOT_FOUND);
    expect("many get, one that does not fit", results[11], KVPOOL_BUFFER_SMALL);
}

/* ---- what else may be */
static void
check_registering(void)
{
    uint8_t *other = fake_cuda_alloc(5000, FAKE_CUDA_PLAIN), *managed = fake_cuda_alloc(5000, FAKE_CUDA_MANAGED);
    kvpool_iov_t iov = {other, 5000};
    kvpool_item_t item = {.key = {"r", 1}, .iov = &iov, .iov_n = 1};
    int result = 0;

    expect("register beyond an allocation", kvpool_register(pool, other, 5001), KVPOOL_INVALID);
    expect("register device memory", kvpool_register(pool, other, 5000), KVPOOL_OK);
    expect("register it twice", kvpool_register(pool, other + 10, 10), KVPOOL_INVALID);
    device_fill(other, 5000, 3);
    expect("put from it", kvpool_batch_put(pool, &item, 1, &opts, &result), KVPOOL_OK);
    expect("put from it, result", result, KVPOOL_OK);
    expect("put beyond it", kvpool_put(pool, "s", 1, other + 10, 5000, NULL), KVPOOL_NOT_REGISTERED);
    expect("unregister it", kvpool_unregister(pool, other), KVPOOL_OK);
    expect("get into it", kvpool_batch_get(pool, &item, 1, NULL, &result), KVPOOL_OK);
    expect("get into it, result", result, KVPOOL_NOT_REGISTERED);
    fake_cuda_free(other); /* the driver dies of a copy that is still to come */

    memset(managed, 7, 5000);
    expect("register managed memory", kvpool_register(pool, managed, 5000), KVPOOL_OK);
    iov.addr = managed;
    item.key = (kvpool_key_t){"managed", 7};
    expect("put from managed memory", kvpool_batch_put(pool, &item, 1, &opts, &result), KVPOOL_OK);
    expect("put from managed memory, result", result, KVPOOL_OK);
    expect("unregister managed memory", kvpool_unregister(pool, managed), KVPOOL_OK);
    fake_cuda_free(managed);
}

/* A driver that fails costs the call, and nothing after it. */
static void
check_driver_failures(void)
{
    static const size_t len = 3u << 20;
    size_t got = 0;

    device_fill(device, len, 9);
    fake_cuda_knobs.synchronize = 700;
    expect("put while copies fail", kvpool_put(pool, "fail", 4, device, len, &opts), KVPOOL_SYS);
    fake_cuda_knobs.synchronize = 0;
    fake_cuda_knobs.memcpy_async = 1;
    expect("put while copies are refused", kvpool_put(pool, "fail", 4, device, len, &opts), KVPOOL_SYS);
    fake_cuda_knobs.memcpy_async = 0;
    expect("nothing was put", kvpool_get(pool, "fail", 4, host, ARENA_BYTES, &got, NULL), KVPOOL_NOT_FOUND);
    expect("put afterwards", kvpool_put(pool, "fail", 4, device, len, &opts), KVPOOL_OK);
    fake_cuda_knobs.synchronize = 700;
    expect("get while copies fail", kvpool_get(pool, "fail", 4, device, len, &got, NULL), KVPOOL_SYS);
    fake_cuda_knobs.synchronize = 0;
    device_clear(device, len);
    expect("get afterwards", kvpool_get(pool, "fail", 4, device, len, &got, NULL), KVPOOL_OK);
    expect_true("its bytes", got == len && device_is(device, len, 9));
}

/* Between the host's memory and the device's, in one call. */
static void
check_copies(void)
{
    static const size_t len = 100000;
    kvpool_copy_t pieces[] = {
        {device + len, host, len},
        {host + 2 * len, host + len, len},
        {device + 3 * len, device, len},
        {host + ARENA_BYTES - 1, device, 2},
    };
    int results[4];

    e2e_fill(host, len, 1, 21);
    e2e_fill(host + len, len, 1, 22);
    expect("copy", kvpool_copy(pool, pieces, 4, results), KVPOOL_OK);
    expect("copy to a device", results[0], KVPOOL_OK);
    expect("copy within the host's memory", results[1], KVPOOL_OK);
    expect("copy from a device to a device", results[2], KVPOOL_NOTSUP);
    expect("copy beyond what is registered", results[3], KVPOOL_NOT_REGISTERED);
    expect_true("copied bytes", device_is(device + len, len, 21) && is_version(host + 2 * len, len, 22));
    pieces[0] = (kvpool_copy_t){host + 3 * len, device + len, len};
    expect("copy back", kvpool_copy(pool, pieces, 1, results), KVPOOL_OK);
    expect_true("copied back", results[0] == KVPOOL_OK && is_version(host + 3 * len, len, 21));
    fake_cuda_knobs.synchronize = 700;
    expect("copy while copies fail", kvpool_copy(pool, pieces, 2, results), KVPOOL_OK);
    expect("its piece of the device", results[0], KVPOOL_SYS);
    expect("its piece of the host", results[1], KVPOOL_OK);
    fake_cuda_knobs.synchronize = 0;
}

static void *
put_and_get(void *arg)
{
    uintptr_t id = (uintptr_t)arg;
    size_t len = 60000, got = 0, bad = 0;
    uint8_t *at = device + id * len, *mine = e2e_alloc(len), *back = e2e_alloc(len);
    char key[32];

    for (unsigned i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "thread/%zu/%u", (size_t)id, i);
        e2e_fill(mine, len, id + 1, i);
        fake_cuda_write(at, mine, len);
        bad += kvpool_put(pool, key, strlen(key), at, len, &opts) != KVPOOL_OK;
        memset(back, 0, len);
        fake_cuda_write(at, back, len);
        bad += kvpool_get(pool, key, strlen(key), at, len, &got, NULL) != KVPOOL_OK;
        fake_cuda_read(at, back, len);
        bad += memcmp(mine, back, len) != 0;
    }
    munmap(mine, len);
    munmap(back, len);
    return (void *)bad;
}

/* More threads than stages: some wait, all come through, and no more is pinned than is said. */
static void
check_threads(void)
{
    pthread_t threads[THREADS];
    size_t bad = 0;

    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, put_and_get, (void *)i) != 0) e2e_die("no thread");
    for (unsigned i = 0; i < THREADS; i++) {
        void *one;

        pthread_join(threads[i], &one);
        bad += (uintptr_t)one;
    }
    expect_true("many threads at once", bad == 0);
    expect_true("pinned memory is bounded", fake_cuda_left().pinned_bytes_max <= STAGES_BYTES);
}

static void
check_figures(void)
{
    static char text[1 << 20];
    size_t len;
    const char *at;

    expect("stat", kvpool_stat(pool, text, sizeof text, &len, NULL), KVPOOL_OK);
    at = strstr(text, "\"device_staged\":");
    expect_true("stat tells what was staged", at != NULL && strtoull(at + 16, NULL, 10) > MANY);
}

int
main(int argc, char **argv)
{
    kvpool_conf_t conf = {.struct_size = sizeof conf};
    fake_cuda_left_t left;

    if (argc > 2) conf.host_id = argv[2];
    opts.replicas = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    host = e2e_alloc(ARENA_BYTES);
    scratch = e2e_alloc(ARENA_BYTES);
    device = fake_cuda_alloc(ARENA_BYTES, FAKE_CUDA_POOL);
    expect("open", kvpool_open(&conf, &pool), KVPOOL_OK);
    if (pool == NULL) return 1;
    expect("register the host's memory", kvpool_register(pool, host, ARENA_BYTES), KVPOOL_OK);
    expect("register the device's", kvpool_register(pool, device, ARENA_BYTES), KVPOOL_OK);
    check_sizes();
    check_mixed_pieces();
    check_many();
    check_registering();
    check_driver_failures();
    check_copies();
    check_threads();
    check_figures();
    kvpool_free(pool);
    fake_cuda_free(device);
    left = fake_cuda_left();
    expect_true("nothing is left at the driver", left.allocations == 0 && left.streams == 0 && left.pinned_bytes == 0);
    expect_true("the thread's context is as it was", fake_cuda_current() == NULL);
    return failures == 0 ? 0 : 1;
}
