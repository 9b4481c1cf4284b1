/* SPDX-License-Identifier: Apache-2.0
 * The interface to accelerators (GPUs): the kind of memory behind a pointer, copies of its bytes, and access to it by
 * network adapters. CUDA is the only implementation (cuda.c), used only if the process has loaded CUDA: without CUDA no
 * pointer can be device memory. Any thread may call any function; every call restores the caller's current device
 * context.
 *
 * A forked child must not call these functions, because no accelerator driver works there. */
#ifndef KVP_TRANSPORT_GPU_DEVICE_H
#define KVP_TRANSPORT_GPU_DEVICE_H

#include "common/base.h"

typedef enum {
    KVP_MEM_HOST,
    /* memory that migrates between host and device: processors may access it, adapters cannot register it */
    KVP_MEM_MANAGED,
    KVP_MEM_DEVICE, /* device memory: the processor must not access it */
} kvp_mem_kind_t;

/* When a device sees bytes that a network adapter wrote into the device's memory. */
typedef enum {
    KVP_DEVICE_FLUSH_NONE, /* the device sees the bytes at once */
    KVP_DEVICE_FLUSH_CALL, /* the device sees the bytes after kvp_device_ops.flush */
    /* the device sees the bytes at an unknown time, so adapters must not write into its memory */
    KVP_DEVICE_FLUSH_IMPOSSIBLE,
} kvp_device_flush_t;

typedef struct kvp_device_ops kvp_device_ops_t;

/* The kind of memory of a range, and its device. context is the driver's handle of the device context, which the user
 * keeps alive while the memory is registered. */
typedef struct {
    kvp_mem_kind_t kind;
    const kvp_device_ops_t *ops; /* the functions of the device; NULL for host memory */
    int device;
    void *context;
    kvp_device_flush_t flush;
    bool has_dmabuf; /* network adapters can register the memory as a dma-buf */
    bool has_peer; /* network adapters may register the memory by its address, if the kernel has a peer-memory module */
} kvp_devmem_t;

/* Device memory exported as a dma-buf file, which network adapters register. */
typedef struct {
    int fd; /* the dma-buf's descriptor, which the caller closes, at the earliest after registering the memory */
    void *addr; /* the address of the dma-buf's first byte: the requested address rounded down to a page */
    size_t len;
} kvp_dmabuf_t;

/* A queue of copies between host memory and the device memory of one context, run in the background in order. */
typedef struct {
    const kvp_device_ops_t *ops;
    void *context;
} kvp_device_queue_t;

struct kvp_device_ops {
    const char *name; /* the name of the driver, "cuda" */

    /* probe returns OK if the driver is usable, else NOTSUP with the reason (static text). The result may change while
     * the process runs, because the process may load the driver later. */
    kvp_err_t (*probe)(const char **why_out);
    /* look finds the kind and device of a memory range; memory that the driver does not know is host memory. INVALID:
     * the first and the last byte have different kinds or devices. */
    kvp_err_t (*look)(const void *addr, size_t len, kvp_devmem_t *mem_out);

    /* export_dmabuf exports device memory as a dma-buf. NOTSUP: the driver or the device cannot. */
    kvp_err_t (*export_dmabuf)(const kvp_devmem_t *mem, void *addr, size_t len, kvp_dmabuf_t *dmabuf_out);
    /* flush makes bytes that adapters wrote before the call visible to the device. FLUSH_NONE: returns OK at once. */
    kvp_err_t (*flush)(const kvp_devmem_t *mem);

    /* pinned_alloc allocates pinned host memory, to which the device has direct access. pinned_free frees it. */
    kvp_err_t (*pinned_alloc)(const kvp_devmem_t *mem, size_t len, void **addr_out);
    void (*pinned_free)(const kvp_devmem_t *mem, void *addr);

    /* copy begins a copy between host memory and memory of the queue's context. wait waits for all begun copies; even
     * if it fails, no copy touches memory after it. queue_close waits for the copies, and closes the queue. */
    kvp_err_t (*queue_open)(const kvp_devmem_t *mem, kvp_device_queue_t **queue_out);
    void (*queue_close)(kvp_device_queue_t *queue);
    kvp_err_t (*copy)(kvp_device_queue_t *queue, void *dst, const void *src, size_t len);
    kvp_err_t (*wait)(kvp_device_queue_t *queue);
};

extern const kvp_device_ops_t kvp_device_cuda;

#endif
