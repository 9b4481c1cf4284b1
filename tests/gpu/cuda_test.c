/* SPDX-License-Identifier: Apache-2.0
 * CUDA behind transport/gpu/device.h on a real GPU: what tests/device plays is held against what the driver does.
 * Exit code 77, and why on the last line, where there is none. */
#include "transport/gpu/device.h"
#include "tests/cases.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BYTES ((5u << 20) + 123)
#define SKIPPED 77

#define CALLS(X)                                                                                                       \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuDeviceGet, (int *device_out, int ordinal))                                                                     \
    X(cuDevicePrimaryCtxRetain, (void **context_out, int device))                                                      \
    X(cuDevicePrimaryCtxRelease_v2, (int device))                                                                      \
    X(cuCtxSetCurrent, (void *context))                                                                                \
    X(cuCtxGetCurrent, (void **context_out))                                                                           \
    X(cuMemAlloc_v2, (uint64_t * addr_out, size_t len))                                                                \
    X(cuMemAllocManaged, (uint64_t * addr_out, size_t len, unsigned flags))                                            \
    X(cuMemFree_v2, (uint64_t addr))                                                                                   \
    X(cuMemcpyHtoD_v2, (uint64_t dst, const void *src, size_t len))                                                    \
    X(cuMemcpyDtoH_v2, (void *dst, uint64_t src, size_t len))

static struct {
#define X(name, args) int(*name) args;
    CALLS(X)
#undef X
} cuda;

static const kvp_device_ops_t *ops = &kvp_device_cuda;
static void *context;
static uint8_t host[BYTES], back[BYTES];

/* NULL, or why there is no GPU to test with. */
static const char *
find_gpu(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    int device;

    if (lib == NULL) return "libcuda.so.1 is not installed";
#define X(name, args)                                                                                                  \
    *(void **)&cuda.name = dlsym(lib, #name);                                                                          \
    if (cuda.name == NULL) return "libcuda.so.1 has no " #name;
    CALLS(X)
#undef X
    if (cuda.cuInit(0) != 0) return "CUDA cannot be initialized";
    if (cuda.cuDeviceGet(&device, 0) != 0) return "CUDA has no device";
    if (cuda.cuDevicePrimaryCtxRetain(&context, device) != 0) return "the device gives no context";
    if (cuda.cuCtxSetCurrent(context) != 0) return "the device's context cannot be used";
    return NULL;
}

static uint64_t
device_alloc(void)
{
    uint64_t addr;

    assert_int_equal(cuda.cuMemAlloc_v2(&addr, BYTES), 0);
    return addr;
}

static kvp_devmem_t
look(uint64_t addr, size_t len)
{
    kvp_devmem_t mem;

    assert_int_equal(ops->look((const void *)(uintptr_t)addr, len, &mem), KVP_OK);
    return mem;
}

TEST(test_look_tells_kinds_apart)
{
    uint64_t device = device_alloc(), managed;
    kvp_devmem_t mem = look(device, BYTES);

    assert_int_equal(mem.kind, KVP_MEM_DEVICE);
    assert_ptr_equal(mem.context, context);
    assert_int_equal(look((uintptr_t)host, BYTES).kind, KVP_MEM_HOST);
    assert_int_equal(cuda.cuMemAllocManaged(&managed, BYTES, 1), 0);
    assert_int_equal(look(managed, BYTES).kind, KVP_MEM_MANAGED);
    printf("dma-buf %d peer memory %d flush %d\n", mem.has_dmabuf, mem.has_peer, (int)mem.flush);
    cuda.cuMemFree_v2(managed);
    cuda.cuMemFree_v2(device);
}

TEST(test_copies_arrive)
{
    uint64_t device = device_alloc();
    kvp_devmem_t mem = look(device, BYTES);
    kvp_device_queue_t *queue;
    void *pinned;

    for (size_t i = 0; i < BYTES; i++)
        host[i] = (uint8_t)(i * 31 + i / 253);
    assert_int_equal(ops->pinned_alloc(&mem, BYTES, &pinned), KVP_OK);
    assert_int_equal(ops->queue_open(&mem, &queue), KVP_OK);
    memcpy(pinned, host, BYTES);
    assert_int_equal(ops->copy(queue, (void *)(uintptr_t)device, pinned, BYTES), KVP_OK);
    assert_int_equal(ops->wait(queue), KVP_OK);
    assert_int_equal(cuda.cuMemcpyDtoH_v2(back, device, BYTES), 0);
    assert_memory_equal(back, host, BYTES);

    host[17] ^= 1;
    assert_int_equal(cuda.cuMemcpyHtoD_v2(device, host, BYTES), 0);
    assert_int_equal(ops->copy(queue, pinned, (const void *)(uintptr_t)device, BYTES), KVP_OK);
    assert_int_equal(ops->wait(queue), KVP_OK);
    assert_memory_equal(pinned, host, BYTES);
    ops->queue_close(queue);
    ops->pinned_free(&mem, pinned);
    cuda.cuMemFree_v2(device);
}

/* What the device says that it can, it can. */
TEST(test_adapters_are_served_as_told)
{
    uint64_t device = device_alloc();
    kvp_devmem_t mem = look(device, BYTES);
    kvp_dmabuf_t buf;

    assert_int_equal(ops->flush(&mem), mem.flush == KVP_DEVICE_FLUSH_IMPOSSIBLE ? KVP_NOTSUP : KVP_OK);
    if (mem.has_dmabuf) {
        assert_int_equal(ops->export_dmabuf(&mem, (void *)(uintptr_t)device, BYTES, &buf), KVP_OK);
        assert_true((uintptr_t)buf.addr <= device && (uintptr_t)buf.addr + buf.len >= device + BYTES);
        close(buf.fd);
    }
    cuda.cuMemFree_v2(device);
}

TEST(test_the_callers_context_stays_current)
{
    uint64_t device = device_alloc();
    kvp_devmem_t mem = look(device, BYTES);
    kvp_device_queue_t *queue;
    void *now = &now;

    assert_int_equal(cuda.cuCtxSetCurrent(NULL), 0);
    assert_int_equal(ops->queue_open(&mem, &queue), KVP_OK);
    assert_int_equal(ops->wait(queue), KVP_OK);
    ops->queue_close(queue);
    assert_int_equal(cuda.cuCtxGetCurrent(&now), 0);
    assert_null(now);
    assert_int_equal(cuda.cuCtxSetCurrent(context), 0);
    cuda.cuMemFree_v2(device);
}

int
main(void)
{
    const char *why = find_gpu();
    int failed;

    if (why != NULL) {
        printf("%s\n", why);
        return SKIPPED;
    }
    failed = run_cases(NULL, NULL);
    cuda.cuDevicePrimaryCtxRelease_v2(0);
    return failed;
}
