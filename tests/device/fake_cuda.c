/* SPDX-License-Identifier: Apache-2.0
 * Design notes. Device memory is a file: mapped without any right at the address that the program knows (`addr`), and
 * once more where adapters write (`bus`). What the device sees (`seen`) is a copy: its own writes go to both, a flush
 * takes over what is on the bus. */
#include "tests/device/fake_cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))
#define CALL(name, ...)                                                                                                \
    SHOWN int name(__VA_ARGS__);                                                                                       \
    SHOWN int name(__VA_ARGS__)
#define ALLOCATIONS_MAX 64
#define COPIES_MAX 4096
#define CONTEXTS_MAX 16 /* of a thread's stack */

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201 };

typedef struct {
    uint8_t *addr; /* NULL = free */
    uint8_t *bus;
    uint8_t *seen;
    size_t len; /* asked for */
    size_t mapped;
    int fd;
    fake_cuda_kind_t kind;
} allocation_t;

typedef struct {
    uint64_t dst, src;
    size_t len;
} late_copy_t;

typedef struct {
    void *context;
    late_copy_t copies[COPIES_MAX];
    unsigned n;
} stream_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* around everything below */
static allocation_t allocations[ALLOCATIONS_MAX];
static fake_cuda_counts_t counts;
static fake_cuda_left_t left;
static int program_context, primary_context; /* their addresses are the contexts */

static _Thread_local void *contexts[CONTEXTS_MAX];
static _Thread_local unsigned contexts_n;

#define KNOBS_DEFAULT                                                                                                  \
    {                                                                                                                  \
        .has_dmabuf = 1, .has_peer = 1, .flush_options = 1                                                             \
    }
SHOWN fake_cuda_knobs_t fake_cuda_knobs = KNOBS_DEFAULT;

/* ---- for tests */
SHOWN void
fake_cuda_reset(void)
{
    pthread_mutex_lock(&lock);
    fake_cuda_knobs = (fake_cuda_knobs_t)KNOBS_DEFAULT;
    memset(&counts, 0, sizeof counts);
    left.pinned_bytes_max = left.pinned_bytes;
    pthread_mutex_unlock(&lock);
}

SHOWN fake_cuda_counts_t
fake_cuda_counts(void)
{
    fake_cuda_counts_t now;

    pthread_mutex_lock(&lock);
    now = counts;
    pthread_mutex_unlock(&lock);
    return now;
}

SHOWN fake_cuda_left_t
fake_cuda_left(void)
{
    fake_cuda_left_t now;

    pthread_mutex_lock(&lock);
    now = left;
    pthread_mutex_unlock(&lock);
    return now;
}

/* NULL: it is no device memory, or not all of it. */
static allocation_t *
find(uint64_t at, size_t len)
{
    for (unsigned i = 0; i < ALLOCATIONS_MAX; i++) {
        allocation_t *a = &allocations[i];
        uint64_t start = (uintptr_t)a->addr;

        if (a->addr != NULL && at >= start && at - start < a->len && len <= a->len - (at - start)) return a;
    }
    return NULL;
}

static bool
make(allocation_t *a, size_t len, fake_cuda_kind_t kind)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t mapped = (len + page - 1) / page * page;
    int prot = kind == FAKE_CUDA_MANAGED ? PROT_READ | PROT_WRITE : PROT_NONE;
    int fd = memfd_create("fake device", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, (off_t)mapped) != 0) abort();
    a->bus = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    a->addr = mmap(NULL, mapped, prot, MAP_SHARED, fd, 0);
    a->seen = calloc(1, mapped);
    if (a->bus == MAP_FAILED || a->addr == MAP_FAILED || a->seen == NULL) abort();
    a->len = len;
    a->mapped = mapped;
    a->fd = fd;
    a->kind = kind;
    left.allocations++;
    return true;
}

SHOWN void *
fake_cuda_alloc(size_t len, fake_cuda_kind_t kind)
{
    void *addr = NULL;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < ALLOCATIONS_MAX && addr == NULL; i++)
        if (allocations[i].addr == NULL && make(&allocations[i], len, kind)) addr = allocations[i].addr;
    pthread_mutex_unlock(&lock);
    return addr;
}

SHOWN void
fake_cuda_free(void *addr)
{
    allocation_t *a;

    pthread_mutex_lock(&lock);
    a = find((uintptr_t)addr, 1);
    if (a == NULL || a->addr != addr) abort();
    munmap(a->addr, a->mapped);
    munmap(a->bus, a->mapped);
    if (ftruncate(a->fd, 0) != 0) abort(); /* whoever has it as a dma-buf sees that */
    close(a->fd);
    free(a->seen);
    memset(a, 0, sizeof *a);
    left.allocations--;
    pthread_mutex_unlock(&lock);
}

static void
device_write(allocation_t *a, uint64_t at, const void *from, size_t len)
{
    size_t off = at - (uintptr_t)a->addr;

    memcpy(a->seen + off, from, len);
    memcpy(a->bus + off, from, len);
}

SHOWN void
fake_cuda_write(void *addr, const void *from, size_t len)
{
    allocation_t *a;

    pthread_mutex_lock(&lock);
    a = find((uintptr_t)addr, len);
    if (a == NULL) abort();
    device_write(a, (uintptr_t)addr, from, len);
    pthread_mutex_unlock(&lock);
}

/* The device sees what adapters write as they do, and there is nothing to flush. */
static bool
is_ordered(void)
{
    return fake_cuda_knobs.ordering >= 100;
}

SHOWN void
fake_cuda_read(const void *addr, void *to, size_t len)
{
    allocation_t *a;

    pthread_mutex_lock(&lock);
    a = find((uintptr_t)addr, len);
    if (a == NULL) abort();
    memcpy(to, (is_ordered() ? a->bus : a->seen) + ((uintptr_t)addr - (uintptr_t)a->addr), len);
    pthread_mutex_unlock(&lock);
}

SHOWN uint8_t *
fake_cuda_bus(const void *addr, size_t len)
{
    allocation_t *a;
    uint8_t *at;

    pthread_mutex_lock(&lock);
    a = find((uintptr_t)addr, len);
    at = a == NULL ? NULL : a->bus + ((uintptr_t)addr - (uintptr_t)a->addr);
    pthread_mutex_unlock(&lock);
    return at;
}

SHOWN void *
fake_cuda_current(void)
{
    return contexts_n == 0 ? NULL : contexts[contexts_n - 1];
}

SHOWN void
fake_cuda_set_current(void *context)
{
    contexts_n = context == NULL ? 0 : 1;
    contexts[0] = context;
}

/* ---- contexts and devices */
CALL(cuCtxPushCurrent_v2, void *context)
{
    if (context != &program_context && context != &primary_context) return INVALID_CONTEXT;
    if (contexts_n == CONTEXTS_MAX) abort();
    contexts[contexts_n++] = context;
    return SUCCESS;
}

CALL(cuCtxPopCurrent_v2, void **context_out)
{
    if (contexts_n == 0) return INVALID_CONTEXT;
    *context_out = contexts[--contexts_n];
    return SUCCESS;
}

CALL(cuDeviceGet, int *device_out, int ordinal)
{
    *device_out = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_VALUE;
}

CALL(cuDeviceGetAttribute, int *value_out, int attribute, int device)
{
    if (device != 0) return INVALID_VALUE;
    if (attribute == 116)
        *value_out = fake_cuda_knobs.has_peer;
    else if (attribute == 117)
        *value_out = fake_cuda_knobs.flush_options;
    else if (attribute == 118)
        *value_out = fake_cuda_knobs.ordering;
    else if (attribute == 124)
        *value_out = fake_cuda_knobs.has_dmabuf;
    else
        return INVALID_VALUE;
    return SUCCESS;
}

CALL(cuDevicePrimaryCtxRetain, void **context_out, int device)
{
    if (device != 0) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    counts.retains++;
    pthread_mutex_unlock(&lock);
    *context_out = &primary_context;
    return SUCCESS;
}

CALL(cuGetErrorName, int result, const char **name_out)
{
    (void)result;
    *name_out = "CUDA_ERROR_FAKE";
    return SUCCESS;
}

/* ---- pointers. What is no device memory has type 0 and nothing else, as the real one says it. */
CALL(cuPointerGetAttributes, unsigned n, int *attributes, void **values, uint64_t addr)
{
    allocation_t *a;

    if (fake_cuda_knobs.not_initialized != 0) return fake_cuda_knobs.not_initialized;
    pthread_mutex_lock(&lock);
    a = find(addr, 1);
    for (unsigned i = 0; i < n; i++) {
        bool is_bound = a != NULL && a->kind != FAKE_CUDA_POOL;

        if (attributes[i] == 1)
            *(void **)values[i] = is_bound ? (void *)&program_context : NULL;
        else if (attributes[i] == 2)
            *(unsigned *)values[i] = a != NULL ? 2 : 0;
        else if (attributes[i] == 8)
            *(int *)values[i] = a != NULL && a->kind == FAKE_CUDA_MANAGED;
        else if (attributes[i] == 9)
            *(int *)values[i] = a != NULL ? 0 : -2;
        else
            abort();
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

CALL(cuPointerSetAttribute, const void *value, int attribute, uint64_t addr)
{
    bool is_known;

    pthread_mutex_lock(&lock);
    is_known = attribute == 6 && *(const int *)value == 1 && find(addr, 1) != NULL;
    counts.sync_memops += is_known;
    pthread_mutex_unlock(&lock);
    return is_known ? SUCCESS : INVALID_VALUE;
}

/* A dma-buf begins at the range; the file that stands for it is the allocation's, and its position says where that is.
 */
static int
open_at(const allocation_t *a, uint64_t off)
{
    char path[64];
    int fd;

    snprintf(path, sizeof path, "/proc/self/fd/%d", a->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || lseek(fd, (off_t)off, SEEK_SET) != (off_t)off) abort();
    return fd;
}

CALL(cuMemGetHandleForAddressRange, void *handle_out, uint64_t addr, size_t len, int kind, unsigned long long flags)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    allocation_t *a;
    int fd;

    if (addr % page != 0 || len % page != 0 || kind != 1 || flags != 0) return INVALID_VALUE;
    if (fake_cuda_current() == NULL) return INVALID_CONTEXT;
    if (fake_cuda_knobs.export_dmabuf != 0) return fake_cuda_knobs.export_dmabuf;
    pthread_mutex_lock(&lock);
    a = find(addr, 1);
    fd = -1;
    if (a != NULL && a->kind != FAKE_CUDA_MANAGED && len <= a->mapped - (addr - (uintptr_t)a->addr))
        fd = open_at(a, addr - (uintptr_t)a->addr);
    counts.exports += fd >= 0;
    pthread_mutex_unlock(&lock);
    if (fd < 0) return INVALID_VALUE;
    *(int *)handle_out = fd;
    return SUCCESS;
}

CALL(cuFlushGPUDirectRDMAWrites, int target, int scope)
{
    if (target != 0 || scope != 100) return INVALID_VALUE;
    if (fake_cuda_current() == NULL) return INVALID_CONTEXT;
    if (fake_cuda_knobs.flush != 0) return fake_cuda_knobs.flush;
    pthread_mutex_lock(&lock);
    counts.flushes++;
    for (unsigned i = 0; i < ALLOCATIONS_MAX; i++)
        if (allocations[i].addr != NULL) memcpy(allocations[i].seen, allocations[i].bus, allocations[i].len);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* ---- memory of the host */
CALL(cuMemHostAlloc, void **addr_out, size_t len, unsigned flags)
{
    size_t *head;

    if (flags != 1) return INVALID_VALUE;
    if (fake_cuda_current() == NULL) return INVALID_CONTEXT;
    if (fake_cuda_knobs.host_alloc != 0) return fake_cuda_knobs.host_alloc;
    head = aligned_alloc(64, 64 + (len + 63) / 64 * 64);
    if (head == NULL) return OUT_OF_MEMORY;
    *head = len;
    pthread_mutex_lock(&lock);
    left.pinned_bytes += len;
    if (left.pinned_bytes > left.pinned_bytes_max) left.pinned_bytes_max = left.pinned_bytes;
    pthread_mutex_unlock(&lock);
    *addr_out = (uint8_t *)head + 64;
    return SUCCESS;
}

CALL(cuMemFreeHost, void *addr)
{
    size_t *head = (size_t *)(void *)((uint8_t *)addr - 64);

    pthread_mutex_lock(&lock);
    left.pinned_bytes -= *head;
    pthread_mutex_unlock(&lock);
    free(head);
    return SUCCESS;
}

/* ---- streams */
CALL(cuStreamCreate, void **stream_out, unsigned flags)
{
    stream_t *s;

    if (flags != 1) return INVALID_VALUE;
    if (fake_cuda_current() == NULL) return INVALID_CONTEXT;
    s = calloc(1, sizeof *s);
    if (s == NULL) return OUT_OF_MEMORY;
    s->context = fake_cuda_current();
    pthread_mutex_lock(&lock);
    left.streams++;
    pthread_mutex_unlock(&lock);
    *stream_out = s;
    return SUCCESS;
}

CALL(cuMemcpyAsync, uint64_t dst, uint64_t src, size_t len, void *stream)
{
    stream_t *s = stream;

    if (fake_cuda_knobs.memcpy_async != 0) return fake_cuda_knobs.memcpy_async;
    if (fake_cuda_current() != s->context) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    if (s->n == COPIES_MAX || (find(dst, len) == NULL) == (find(src, len) == NULL)) abort();
    s->copies[s->n++] = (late_copy_t){dst, src, len};
    counts.copies++;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static void
carry_out(const late_copy_t *c)
{
    allocation_t *to = find(c->dst, c->len), *from = find(c->src, c->len);

    if (to != NULL)
        device_write(to, c->dst, (const void *)(uintptr_t)c->src, c->len);
    else if (from != NULL)
        memcpy((void *)(uintptr_t)c->dst, from->seen + (c->src - (uintptr_t)from->addr), c->len);
    else
        abort(); /* its memory was freed meanwhile */
    counts.copied_late++;
}

CALL(cuStreamSynchronize, void *stream)
{
    stream_t *s = stream;

    pthread_mutex_lock(&lock);
    counts.synchronizes++;
    for (unsigned i = 0; i < s->n && fake_cuda_knobs.synchronize == 0; i++)
        carry_out(&s->copies[i]);
    s->n = 0;
    pthread_mutex_unlock(&lock);
    return fake_cuda_knobs.synchronize;
}

CALL(cuStreamDestroy_v2, void *stream)
{
    stream_t *s = stream;

    if (s->n != 0) abort(); /* copies would go on by themselves */
    pthread_mutex_lock(&lock);
    left.streams--;
    pthread_mutex_unlock(&lock);
    free(s);
    return SUCCESS;
}
