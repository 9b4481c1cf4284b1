/* SPDX-License-Identifier: Apache-2.0
 * The interface to accelerators: the kind of memory behind a pointer, copies of its bytes, and the adapters' access
 * to the memory. CUDA is the only implementation (cuda.c), used only if the process has loaded CUDA: without CUDA no
 * pointer can be device memory. Any thread may call any function; every call restores the caller's current device
 * context.
 *
 * Not usable in a forked child, because no accelerator driver works there. */
#ifndef KVP_TRANSPORT_GPU_DEVICE_H
#define KVP_TRANSPORT_GPU_DEVICE_H

#include "common/base.h"

typedef enum {
    KVP_MEM_HOST,
    /* migrates between host and device: processors may access the memory, adapters cannot register it */
    KVP_MEM_MANAGED,
    KVP_MEM_DEVICE, /* device memory: the processor must not access it */
} kvp_mem_kind_t;

/* When a device sees bytes that a network adapter wrote into the device's memory. */
typedef enum {
    KVP_DEVICE_FLUSH_NONE, /* the device sees the bytes at once */
    KVP_DEVICE_FLUSH_CALL, /* the device sees the bytes after kvp_device_ops.flush */
    /* the device sees the bytes at an unknown time: adapters must not write into its memory */
    KVP_DEVICE_FLUSH_IMPOSSIBLE,
} kvp_device_flush_t;

typedef struct kvp_device_ops kvp_device_ops_t;

/* The kind and device of a memory range. context is the driver's handle; the caller keeps the context alive while the
 * memory is registered. */
typedef struct {
    kvp_mem_kind_t kind;
    const kvp_device_ops_t *ops; /* the functions of the device; NULL for host memory */
    int device;
    void *context;
    kvp_device_flush_t flush;
    bool has_dmabuf; /* adapters can reach the memory as a dma-buf */
    bool has_peer; /* adapters may reach the memory by its address, if the kernel has a peer-memory module */
} kvp_devmem_t;

/* Device memory as a dma-buf file, which adapters register. */
typedef struct {
    int fd; /* the dma-buf's descriptor; the caller closes it, and may close it while the memory is registered */
    void *addr; /* the address of the dma-buf's first byte: the requested address rounded down to a page */
    size_t len;
} kvp_dmabuf_t;

/* A queue of copies between host memory and device memory of one context. They run in the background, in order. */
typedef struct {
    const kvp_device_ops_t *ops;
    void *context;
} kvp_device_queue_t;

struct kvp_device_ops {
    const char *name; /* the name of the driver, "cuda" */

    /* Returns OK if the driver is usable, else NOTSUP with the reason (static text). The result may change while the
     * process runs, because the driver may be loaded later. */
    kvp_err_t (*probe)(const char **why_out);
    /* Finds the kind and device of the memory range; memory that the driver does not know is host memory. INVALID:
     * the first and the last byte have different kinds or devices. */
    kvp_err_t (*look)(const void *addr, size_t len, kvp_devmem_t *mem_out);

    /* Exports device memory as a dma-buf. NOTSUP: the driver or the device cannot. */
    kvp_err_t (*export_dmabuf)(const kvp_devmem_t *mem, void *addr, size_t len, kvp_dmabuf_t *dmabuf_out);
    /* Makes bytes that adapters wrote before the call visible to the device. With FLUSH_NONE it returns OK at once. */
    kvp_err_t (*flush)(const kvp_devmem_t *mem);

    /* Allocates pinned host memory, which the device reads and writes without the processor. pinned_free frees it. */
    kvp_err_t (*pinned_alloc)(const kvp_devmem_t *mem, size_t len, void **addr_out);
    void (*pinned_free)(const kvp_devmem_t *mem, void *addr);

    /* copy begins a copy between host memory and memory of the queue's context. wait waits for all begun copies; even
     * if it fails, no copy touches memory afterwards. queue_close waits for the copies, and closes the queue. */
    kvp_err_t (*queue_open)(const kvp_devmem_t *mem, kvp_device_queue_t **queue_out);
    void (*queue_close)(kvp_device_queue_t *queue);
    kvp_err_t (*copy)(kvp_device_queue_t *queue, void *dst, const void *src, size_t len);
    kvp_err_t (*wait)(kvp_device_queue_t *queue);
};

extern const kvp_device_ops_t kvp_device_cuda;

#endif
