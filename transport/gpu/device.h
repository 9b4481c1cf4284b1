/* SPDX-License-Identifier: Apache-2.0
 * The seam to accelerators: the kind of a pointer's memory, copies of its bytes, and the adapters'
 * access to them. CUDA is the implementation (cuda.c), used only if the process has loaded CUDA:
 * without CUDA no pointer can be a device's. Any thread may call any function; every call restores
 * the caller's current device context.
 *
 * Not after fork: no accelerator stack works in a child. */
#ifndef KVP_TRANSPORT_GPU_DEVICE_H
#define KVP_TRANSPORT_GPU_DEVICE_H

#include "common/base.h"

typedef enum {
    KVP_MEM_HOST,
    KVP_MEM_MANAGED, /* migrates between host and device: processors may access it, adapters cannot register it */
    KVP_MEM_DEVICE, /* processors must not access it */
} kvp_mem_kind_t;

/* When a device sees what an adapter has written into its memory. */
typedef enum {
    KVP_DEVICE_FLUSH_NONE, /* at once */
    KVP_DEVICE_FLUSH_CALL, /* after kvp_device_ops.flush */
    KVP_DEVICE_FLUSH_IMPOSSIBLE, /* some time: nothing may be read straight into it */
} kvp_device_flush_t;

typedef struct kvp_device_ops kvp_device_ops_t;

/* Where a range of memory is. The context is the stack's, and is the caller's to keep while the
 * memory is registered. */
typedef struct {
    kvp_mem_kind_t kind;
    const kvp_device_ops_t *ops; /* NULL for host memory */
    int device;
    void *context;
    kvp_device_flush_t flush;
    bool has_dmabuf; /* adapters can reach the memory as a dma-buf */
    bool has_peer; /* adapters may reach the memory by its address, if the kernel has a peer-memory module */
} kvp_devmem_t;

/* Device memory as a file that adapters register. */
typedef struct {
    int fd; /* the caller's to close, also while it is registered */
    void *addr; /* of its first byte: at or below the one asked for, on a page's border */
    size_t len;
} kvp_dmabuf_t;

/* Copies in order, in the background, between device memory of one context and the host's. */
typedef struct {
    const kvp_device_ops_t *ops;
    void *context;
} kvp_device_queue_t;

struct kvp_device_ops {
    const char *name; /* "cuda" */

    /* OK, or NOTSUP and why (a text that lives for ever). It may change while the process runs: the
     * stack may be loaded. */
    kvp_err_t (*probe)(const char **why_out);
    /* INVALID: the first and the last byte belong to different kinds of memory or devices. HOST for
     * memory that the stack does not know. */
    kvp_err_t (*look)(const void *addr, size_t len, kvp_devmem_t *mem_out);

    /* NOTSUP: neither the stack nor the device can. */
    kvp_err_t (*export_dmabuf)(const kvp_devmem_t *mem, void *addr, size_t len, kvp_dmabuf_t *dmabuf_out);
    /* What adapters had written before is seen by the device afterwards. OK at once with FLUSH_NONE. */
    kvp_err_t (*flush)(const kvp_devmem_t *mem);

    /* Memory of the host that the device copies from and to without help of a processor. */
    kvp_err_t (*pinned_alloc)(const kvp_devmem_t *mem, size_t len, void **addr_out);
    void (*pinned_free)(const kvp_devmem_t *mem, void *addr);

    /* copy begins a copy between memory of the queue's context and the host. wait ends all begun
     * copies; also after a failed wait no copy touches memory any more. close waits. */
    kvp_err_t (*queue_open)(const kvp_devmem_t *mem, kvp_device_queue_t **queue_out);
    void (*queue_close)(kvp_device_queue_t *queue);
    kvp_err_t (*copy)(kvp_device_queue_t *queue, void *dst, const void *src, size_t len);
    kvp_err_t (*wait)(kvp_device_queue_t *queue);
};

extern const kvp_device_ops_t kvp_device_cuda;

#endif
