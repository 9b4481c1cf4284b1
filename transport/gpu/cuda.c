/* SPDX-License-Identifier: Apache-2.0
 * The CUDA implementation of device.h, by the CUDA driver API.
 *
 * Design notes.
 * - This file loads and initializes no library: it looks for libcuda among the libraries of the process. A process
 *   without CUDA has no CUDA pointer, does not wait for a driver, and may fork.
 * - This file needs no CUDA header: it declares the calls that it uses. The header defines some calls as macros; names
 *   with _v2 are the functions behind these macros.
 * - Memory of a CUDA memory pool or of the virtual memory calls (cuMemMap) belongs to no context. It is copied in the
 *   device's primary context, which is then kept for the life of the process, as the CUDA run time does. */
#include "transport/gpu/device.h"

#include "common/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libcuda.so.1"

enum { SUCCESS = 0, ERROR_OUT_OF_MEMORY = 2 };
enum {
    POINTER_CONTEXT = 1,
    POINTER_MEMORY_TYPE = 2,
    POINTER_SYNC_MEMOPS = 6,
    POINTER_IS_MANAGED = 8,
    POINTER_DEVICE = 9
};
enum { MEMORY_TYPE_DEVICE = 2 };
enum { DEVICE_RDMA_SUPPORTED = 116, DEVICE_FLUSH_OPTIONS = 117, DEVICE_WRITES_ORDERING = 118, DEVICE_DMA_BUF = 124 };
enum { FLUSH_OPTION_HOST = 1, ORDERING_OWNER = 100 };
enum { FLUSH_TARGET_CURRENT_CONTEXT = 0, FLUSH_SCOPE_OWNER = 100 };
enum { RANGE_HANDLE_DMA_BUF = 1, HOST_ALLOC_PORTABLE = 1, STREAM_NON_BLOCKING = 1 };

/* The calls of the driver, as X(name, arguments). All return a result code. Device addresses are u64; contexts and
 * streams are pointers. */
#define CUDA_CALLS(X)                                                                                                  \
    X(cuCtxPopCurrent_v2, (void **context_out))                                                                        \
    X(cuCtxPushCurrent_v2, (void *context))                                                                            \
    X(cuDeviceGet, (int *device_out, int ordinal))                                                                     \
    X(cuDeviceGetAttribute, (int *value_out, int attribute, int device))                                               \
    X(cuDevicePrimaryCtxRetain, (void **context_out, int device))                                                      \
    X(cuGetErrorName, (int result, const char **name_out))                                                             \
    X(cuMemFreeHost, (void *addr))                                                                                     \
    X(cuMemHostAlloc, (void **addr_out, size_t len, unsigned flags))                                                   \
    X(cuMemcpyAsync, (uint64_t dst, uint64_t src, size_t len, void *stream))                                           \
    X(cuPointerGetAttributes, (unsigned n, int *attributes, void **values, uint64_t addr))                             \
    X(cuPointerSetAttribute, (const void *value, int attribute, uint64_t addr))                                        \
    X(cuStreamCreate, (void **stream_out, unsigned flags))                                                             \
    X(cuStreamDestroy_v2, (void *stream))                                                                              \
    X(cuStreamSynchronize, (void *stream))
/* Calls that older CUDA lacks: cuFlushGPUDirectRDMAWrites is new in 11.3, cuMemGetHandleForAddressRange in 11.7. The
 * pointer of a call that the library lacks is NULL. */
#define CUDA_CALLS_LATER(X)                                                                                            \
    X(cuFlushGPUDirectRDMAWrites, (int target, int scope))                                                             \
    X(cuMemGetHandleForAddressRange, (void *handle_out, uint64_t addr, size_t len, int kind, unsigned long long flags))

typedef struct {
#define X(name, args) int(*name) args;
    CUDA_CALLS(X)
    CUDA_CALLS_LATER(X)
#undef X
} calls_t;

#define DEVICES_MAX 64

static calls_t calls;
static _Atomic bool is_loaded; /* true once all fields of `calls` are set */
static struct {
    pthread_mutex_t lock;
    /* the primary contexts that this file has retained, by device number; NULL = not retained; guarded by lock */
    void *primary[DEVICES_MAX];
} once = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct {
    kvp_device_queue_t base;
    void *stream;
} cuda_queue_t;

/* ---- the library */

/* Looks up a symbol of the library and stores its address in a function pointer: ISO C has no cast for this. */
static bool
find_symbol(void *lib, const char *name, void *fn_out)
{
    void *at = dlsym(lib, name);

    memcpy(fn_out, &at, sizeof at);
    return at != NULL;
}

static const char *
load_locked(void)
{
    void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);

    if (lib == NULL) return "this process has not loaded CUDA (" LIBRARY ")";
#define X(name, args)                                                                                                  \
    if (!find_symbol(lib, #name, &calls.name)) return LIBRARY " is too old: it has no " #name;
    CUDA_CALLS(X)
#undef X
#define X(name, args) (void)find_symbol(lib, #name, &calls.name);
    CUDA_CALLS_LATER(X)
#undef X
    atomic_store_explicit(&is_loaded, true, memory_order_release);
    return NULL;
}

static kvp_err_t
cuda_probe(const char **why_out)
{
    *why_out = NULL;
    if (atomic_load_explicit(&is_loaded, memory_order_acquire)) return KVP_OK;
    pthread_mutex_lock(&once.lock);
    *why_out = load_locked();
    pthread_mutex_unlock(&once.lock);
    return *why_out == NULL ? KVP_OK : KVP_NOTSUP;
}

static kvp_err_t
log_failure(int result, const char *what)
{
    const char *name = NULL;

    if (calls.cuGetErrorName(result, &name) != SUCCESS) name = NULL;
    kvp_log_warn("device", "%s failed: %s (%d)", what, name == NULL ? "unknown" : name, result);
    return result == ERROR_OUT_OF_MEMORY ? KVP_NOMEM : KVP_SYS;
}

static kvp_err_t
push_context(void *context, const char *what)
{
    int result = calls.cuCtxPushCurrent_v2(context);

    return result == SUCCESS ? KVP_OK : log_failure(result, what);
}

static void
pop_context(void)
{
    void *context;

    (void)calls.cuCtxPopCurrent_v2(&context);
}

/* ---- kinds of memory */
static const kvp_devmem_t host_memory = {.kind = KVP_MEM_HOST};

/* Returns the kind, device and context of the memory at one address. Returns host memory if CUDA does not know the
 * address, or is not initialized in this process. */
static kvp_devmem_t
look_at(uint64_t addr)
{
    kvp_devmem_t mem = {.ops = &kvp_device_cuda, .device = -1};
    unsigned type = 0;
    int is_managed = 0;
    int attributes[] = {POINTER_CONTEXT, POINTER_MEMORY_TYPE, POINTER_IS_MANAGED, POINTER_DEVICE};
    void *values[] = {&mem.context, &type, &is_managed, &mem.device};
    int result = calls.cuPointerGetAttributes(KVP_ARRAY_LEN(attributes), attributes, values, addr);

    mem.kind = is_managed != 0 ? KVP_MEM_MANAGED : KVP_MEM_DEVICE;
    return result == SUCCESS && (type == MEMORY_TYPE_DEVICE || is_managed != 0) ? mem : host_memory;
}

static int
read_attribute(int what, int device)
{
    int value = 0;

    return calls.cuDeviceGetAttribute(&value, what, device) == SUCCESS ? value : 0;
}

static kvp_err_t
primary_context(int device, void **context_out)
{
    kvp_err_t err = KVP_OK;

    if (device < 0 || device >= DEVICES_MAX) return KVP_NOTSUP;
    pthread_mutex_lock(&once.lock);
    if (once.primary[device] == NULL) {
        int result = calls.cuDevicePrimaryCtxRetain(&once.primary[device], device);

        if (result != SUCCESS) {
            once.primary[device] = NULL;
            err = log_failure(result, "keeping a device's primary context");
        }
    }
    *context_out = once.primary[device];
    pthread_mutex_unlock(&once.lock);
    return err;
}

static kvp_device_flush_t
flush_of(int device)
{
    if (read_attribute(DEVICE_WRITES_ORDERING, device) >= ORDERING_OWNER) return KVP_DEVICE_FLUSH_NONE;
    if (calls.cuFlushGPUDirectRDMAWrites == NULL) return KVP_DEVICE_FLUSH_IMPOSSIBLE;
    return (read_attribute(DEVICE_FLUSH_OPTIONS, device) & FLUSH_OPTION_HOST) != 0 ? KVP_DEVICE_FLUSH_CALL
                                                                                   : KVP_DEVICE_FLUSH_IMPOSSIBLE;
}

static kvp_err_t
fill_devmem(kvp_devmem_t *mem)
{
    int device, result = calls.cuDeviceGet(&device, mem->device);

    if (result != SUCCESS) return log_failure(result, "finding the device of memory");
    mem->flush = flush_of(device);
    mem->has_dmabuf = calls.cuMemGetHandleForAddressRange != NULL && read_attribute(DEVICE_DMA_BUF, device) != 0;
    mem->has_peer = read_attribute(DEVICE_RDMA_SUPPORTED, device) != 0;
    return mem->context == NULL ? primary_context(device, &mem->context) : KVP_OK;
}

static kvp_err_t
cuda_look(const void *addr, size_t len, kvp_devmem_t *mem_out)
{
    kvp_devmem_t mem, last;
    const char *why;
    int yes = 1;
    kvp_err_t err;

    *mem_out = host_memory;
    if (cuda_probe(&why) != KVP_OK) return KVP_OK;
    mem = look_at((uintptr_t)addr);
    last = look_at((uintptr_t)addr + len - 1);
    if (mem.kind != last.kind || mem.device != last.device) return KVP_INVALID;
    if (mem.kind == KVP_MEM_HOST) return KVP_OK;
    err = fill_devmem(&mem);
    if (err != KVP_OK) return err;
    /* With SYNC_MEMOPS a synchronous copy by the user of the memory has ended when its call returns; without it, an
     * adapter might read too early. The result is ignored, because some kinds of memory refuse the attribute. */
    if (mem.kind == KVP_MEM_DEVICE) (void)calls.cuPointerSetAttribute(&yes, POINTER_SYNC_MEMOPS, (uintptr_t)addr);
    *mem_out = mem;
    return KVP_OK;
}

/* ---- adapters */
static kvp_err_t
cuda_export_dmabuf(const kvp_devmem_t *mem, void *addr, size_t len, kvp_dmabuf_t *dmabuf_out)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = (uintptr_t)addr / page * page;
    uintptr_t end = ((uintptr_t)addr + len + page - 1) / page * page;
    int fd = -1, result;
    kvp_err_t err;

    if (!mem->has_dmabuf) return KVP_NOTSUP;
    err = push_context(mem->context, "exporting memory");
    if (err != KVP_OK) return err;
    result = calls.cuMemGetHandleForAddressRange(&fd, start, end - start, RANGE_HANDLE_DMA_BUF, 0);
    pop_context();
    if (result != SUCCESS) {
        kvp_ignore(log_failure(result, "exporting memory as a dma-buf"), "whatever it was, there is another way");
        return KVP_NOTSUP;
    }
    *dmabuf_out = (kvp_dmabuf_t){.fd = fd, .addr = (void *)start, .len = end - start};
    return KVP_OK;
}

static kvp_err_t
cuda_flush(const kvp_devmem_t *mem)
{
    kvp_err_t err;
    int result;

    if (mem->flush == KVP_DEVICE_FLUSH_NONE) return KVP_OK;
    if (mem->flush == KVP_DEVICE_FLUSH_IMPOSSIBLE) return KVP_NOTSUP;
    err = push_context(mem->context, "flushing what adapters wrote");
    if (err != KVP_OK) return err;
    result = calls.cuFlushGPUDirectRDMAWrites(FLUSH_TARGET_CURRENT_CONTEXT, FLUSH_SCOPE_OWNER);
    pop_context();
    return result == SUCCESS ? KVP_OK : log_failure(result, "flushing what adapters wrote");
}

/* ---- copies */
static kvp_err_t
cuda_pinned_alloc(const kvp_devmem_t *mem, size_t len, void **addr_out)
{
    kvp_err_t err = push_context(mem->context, "pinning memory");
    void *addr;
    int result;

    if (err != KVP_OK) return err;
    result = calls.cuMemHostAlloc(&addr, len, HOST_ALLOC_PORTABLE);
    pop_context();
    if (result != SUCCESS) return log_failure(result, "pinning memory");
    *addr_out = addr;
    return KVP_OK;
}

/* Frees pinned memory. If the context or CUDA in this process has ended, the memory was freed with it. */
static void
cuda_pinned_free(const kvp_devmem_t *mem, void *addr)
{
    if (calls.cuCtxPushCurrent_v2(mem->context) != SUCCESS) return;
    (void)calls.cuMemFreeHost(addr);
    pop_context();
}

static kvp_err_t
cuda_queue_open(const kvp_devmem_t *mem, kvp_device_queue_t **queue_out)
{
    cuda_queue_t *q = calloc(1, sizeof *q);
    kvp_err_t err;
    int result;

    if (q == NULL) return KVP_NOMEM;
    q->base = (kvp_device_queue_t){.ops = &kvp_device_cuda, .context = mem->context};
    err = push_context(mem->context, "making a stream");
    if (err == KVP_OK) {
        result = calls.cuStreamCreate(&q->stream, STREAM_NON_BLOCKING);
        pop_context();
        if (result != SUCCESS) err = log_failure(result, "making a stream");
    }
    if (err != KVP_OK) {
        free(q);
        return err;
    }
    *queue_out = &q->base;
    return KVP_OK;
}

static kvp_err_t
cuda_copy(kvp_device_queue_t *base, void *dst, const void *src, size_t len)
{
    cuda_queue_t *q = kvp_container_of(base, cuda_queue_t, base);
    kvp_err_t err = push_context(base->context, "copying");
    int result;

    if (err != KVP_OK) return err;
    result = calls.cuMemcpyAsync((uintptr_t)dst, (uintptr_t)src, len, q->stream);
    pop_context();
    return result == SUCCESS ? KVP_OK : log_failure(result, "copying");
}

static kvp_err_t
cuda_wait(kvp_device_queue_t *base)
{
    cuda_queue_t *q = kvp_container_of(base, cuda_queue_t, base);
    kvp_err_t err = push_context(base->context, "waiting for copies");
    int result;

    if (err != KVP_OK) return err;
    result = calls.cuStreamSynchronize(q->stream);
    pop_context();
    return result == SUCCESS ? KVP_OK : log_failure(result, "waiting for copies");
}

static void
cuda_queue_close(kvp_device_queue_t *base)
{
    cuda_queue_t *q = kvp_container_of(base, cuda_queue_t, base);

    if (calls.cuCtxPushCurrent_v2(base->context) == SUCCESS) {
        (void)calls.cuStreamSynchronize(q->stream);
        (void)calls.cuStreamDestroy_v2(q->stream);
        pop_context();
    }
    free(q);
}

const kvp_device_ops_t kvp_device_cuda = {
    .name = "cuda",
    .probe = cuda_probe,
    .look = cuda_look,
    .export_dmabuf = cuda_export_dmabuf,
    .flush = cuda_flush,
    .pinned_alloc = cuda_pinned_alloc,
    .pinned_free = cuda_pinned_free,
    .queue_open = cuda_queue_open,
    .queue_close = cuda_queue_close,
    .copy = cuda_copy,
    .wait = cuda_wait,
};
