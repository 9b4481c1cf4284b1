/* SPDX-License-Identifier: Apache-2.0
 * Bounce buffers: pinned host memory in one or two parts, through which bytes go to and from device (GPU) memory that
 * no network adapter can reach. Also the device's copies to and from these buffers. */
#ifndef KVP_TRANSPORT_BOUNCE_H
#define KVP_TRANSPORT_BOUNCE_H

#include "transport/gpu/device.h"
#include "common/hash.h"
#include "common/list.h"

#include <pthread.h>

#define KVP_BOUNCE_PART_BYTES (2u << 20)
#define KVP_BOUNCE_PARTS_MAX 2u
/* the most bounce buffers of a handle; a buffer is used by one thread at a time, and further threads wait for one */
#define KVP_BOUNCES_MAX 8u

typedef struct kvp_bounce kvp_bounce_t;

/* A set of bounce buffers. Each is made when first needed, and kept until fini. Any thread may use it. */
typedef struct {
    uint32_t max; /* the most bounce buffers that may exist at a time */
    uint32_t parts; /* the number of parts of each buffer, at most KVP_BOUNCE_PARTS_MAX */
    pthread_mutex_t lock; /* guards idle and made; its holder takes no other lock */
    pthread_cond_t freed;
    kvp_list_t idle; /* the bounce buffers that no thread uses; guarded by lock */
    uint32_t made; /* the number of bounce buffers that exist or are being made; guarded by lock */
} kvp_bounces_t;

void kvp_bounces_init(kvp_bounces_t *bounces, uint32_t max, uint32_t parts);
void kvp_bounces_fini(kvp_bounces_t *bounces); /* frees the bounce buffers; every buffer must be released */

/* kvp_bounce_take returns an idle bounce buffer or a new one, and waits for one until deadline_ns. DEADLINE, NOMEM, SYS
 * (the device's driver cannot pin memory). One thread uses a buffer at a time. kvp_bounce_rele gives the buffer back
 * when no transfer uses it; NULL gives back the permission to create a buffer. */
kvp_err_t kvp_bounce_take(kvp_bounces_t *bounces, const kvp_devmem_t *mem, uint64_t deadline_ns,
                          kvp_bounce_t **bounce_out) KVP_MUST_USE;
void kvp_bounce_rele(kvp_bounces_t *bounces, kvp_bounce_t *bounce);

/* kvp_bounce_part returns the memory of one part, KVP_BOUNCE_PART_BYTES long. kvp_bounce_sum returns the buffer's
 * state for computing checksums of the bytes that pass through. */
uint8_t *kvp_bounce_part(const kvp_bounce_t *bounce, uint32_t part);
kvp_sum_state_t *kvp_bounce_sum(const kvp_bounce_t *bounce);

/* kvp_bounce_place finds space in a part of the buffer for the next bytes of a piece. left_bytes: the piece's bytes not
 * yet placed; *used_io: the part's bytes already used. A piece that fits into a part is not split. Returns false if the
 * bytes must go into the next part. */
bool kvp_bounce_place(uint64_t left_bytes, size_t *used_io, size_t *at_out, size_t *len_out) KVP_MUST_USE;

/* kvp_bounce_copy begins one copy between the bounce buffer and the device memory mem. LIMIT: memory of too many device
 * contexts. SYS: the device fails. kvp_bounce_wait waits for all copies that were begun. Even if it fails, no copy
 * touches memory after it. */
kvp_err_t kvp_bounce_copy(kvp_bounce_t *bounce, const kvp_devmem_t *mem, void *dst, const void *src, size_t len)
    KVP_MUST_USE;
kvp_err_t kvp_bounce_wait(kvp_bounce_t *bounce) KVP_MUST_USE;

#endif
