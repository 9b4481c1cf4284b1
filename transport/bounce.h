/* SPDX-License-Identifier: Apache-2.0
 * Bounce buffers: pinned memory of the host, in one part or two, through which bytes go to and from
 * device memory that no adapter reaches; with the device's copies in and out. */
#ifndef KVP_TRANSPORT_BOUNCE_H
#define KVP_TRANSPORT_BOUNCE_H

#include "transport/gpu/device.h"
#include "common/hash.h"
#include "common/list.h"

#include <pthread.h>

#define KVP_BOUNCE_PART_BYTES (2u << 20)
#define KVP_BOUNCE_PARTS_MAX 2u
#define KVP_BOUNCES_MAX 8u /* buffers of a handle: as many threads use one at a time, further threads wait */

typedef struct kvp_bounce kvp_bounce_t;

/* A handle's. Made when they are first needed, kept until fini. Any thread. */
typedef struct {
    uint32_t max; /* buffers at a time */
    uint32_t parts; /* of each, up to KVP_BOUNCE_PARTS_MAX */
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t freed;
    kvp_list_t idle; /* guarded by lock */
    uint32_t made; /* guarded by lock */
} kvp_bounces_t;

void kvp_bounces_init(kvp_bounces_t *bounces, uint32_t max, uint32_t parts);
void kvp_bounces_fini(kvp_bounces_t *bounces); /* with every buffer released */

/* kvp_bounce_take waits for a bounce buffer until deadline_ns: DEADLINE, NOMEM, SYS (the device's
 * stack cannot make one). kvp_bounce_rele returns the buffer, with no transfer under way; NULL
 * returns the right to create one. One thread uses a buffer at a time. */
kvp_err_t kvp_bounce_take(kvp_bounces_t *bounces, const kvp_devmem_t *mem, uint64_t deadline_ns,
                          kvp_bounce_t **bounce_out) KVP_MUST_USE;
void kvp_bounce_rele(kvp_bounces_t *bounces, kvp_bounce_t *bounce);

/* kvp_bounce_part is the memory, of KVP_BOUNCE_PART_BYTES; kvp_bounce_sum a state for sums of what goes through it. */
uint8_t *kvp_bounce_part(const kvp_bounce_t *bounce, uint32_t part);
kvp_sum_state_t *kvp_bounce_sum(const kvp_bounce_t *bounce);

/* kvp_bounce_place finds room for the next bytes of a piece, of which left_bytes are left, in a part of
 * which *used_io bytes are taken. A piece that fits in a part is not cut. False: the bytes go to the
 * next part. */
bool kvp_bounce_place(uint64_t left_bytes, size_t *used_io, size_t *at_out, size_t *len_out) KVP_MUST_USE;

/* kvp_bounce_copy begins one copy between the bounce buffer and device memory of mem: LIMIT (it is
 * of too many contexts), SYS. kvp_bounce_wait ends all that were begun: also where it fails nothing
 * touches their memory any more. */
kvp_err_t kvp_bounce_copy(kvp_bounce_t *bounce, const kvp_devmem_t *mem, void *dst, const void *src, size_t len)
    KVP_MUST_USE;
kvp_err_t kvp_bounce_wait(kvp_bounce_t *bounce) KVP_MUST_USE;

#endif
