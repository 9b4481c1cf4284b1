/* SPDX-License-Identifier: Apache-2.0
 * A CUDA driver without a device: a library named as the real one, with those of its calls that transport/gpu/cuda.c
 * makes, so that what ships is what runs. It does as late as it may whatever CUDA does in the background:
 *   - a copy on a stream reads and writes its memory when the stream is waited for, not before;
 *   - what an adapter writes is in memory, and is seen by the device after a flush only.
 * A processor that touches device memory dies of it. Any thread may call anything; the knobs are set while nobody does.
 */
#ifndef KVP_TESTS_FAKE_CUDA_H
#define KVP_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What calls do from now on; results are CUDA's numbers, 0 = it works. */
typedef struct {
    int not_initialized; /* cuPointerGetAttributes, as in a process that did not initialize CUDA */
    int host_alloc;
    int memcpy_async;
    int synchronize; /* what was begun does not happen */
    int export_dmabuf;
    int flush;
    int has_dmabuf; /* attributes of the device [1] */
    int has_peer; /* [1] */
    int ordering; /* [0] */
    int flush_options; /* [1] */
} fake_cuda_knobs_t;

/* Since reset. */
typedef struct {
    unsigned copies;
    unsigned copied_late; /* carried out */
    unsigned synchronizes;
    unsigned flushes;
    unsigned exports;
    unsigned retains; /* of a primary context */
    unsigned sync_memops;
} fake_cuda_counts_t;

/* What is there now: a test wants 0 in the end. */
typedef struct {
    unsigned allocations;
    unsigned streams;
    size_t pinned_bytes;
    size_t pinned_bytes_max; /* the most there ever was since reset */
} fake_cuda_left_t;

/* fake_cuda_reset sets knobs and counts back; what was made stays. */
void fake_cuda_reset(void);
extern fake_cuda_knobs_t fake_cuda_knobs;
fake_cuda_counts_t fake_cuda_counts(void);
fake_cuda_left_t fake_cuda_left(void);

/* fake_cuda_alloc is memory of device 0 in the program's context; pool: in none, as of a stream-ordered allocator;
 * managed: a processor may touch it. Its length need not be a page's. NULL: no memory. */
typedef enum { FAKE_CUDA_PLAIN, FAKE_CUDA_POOL, FAKE_CUDA_MANAGED } fake_cuda_kind_t;
void *fake_cuda_alloc(size_t len, fake_cuda_kind_t kind);

/* What a kernel on the device writes and reads. */
void fake_cuda_write(void *addr, const void *from, size_t len);
void fake_cuda_read(const void *addr, void *to, size_t len);

/* fake_cuda_free also revokes the memory's dma-bufs: their file is empty from then on. */
void fake_cuda_free(void *addr);

/* fake_cuda_bus is where an adapter finds the bytes of addr, and NULL for what is no device memory. */
uint8_t *fake_cuda_bus(const void *addr, size_t len);

/* The calling thread's context, and one for it to have. */
void *fake_cuda_current(void);
void fake_cuda_set_current(void *context);

#endif
