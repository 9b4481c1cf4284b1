/* SPDX-License-Identifier: Apache-2.0
 * Memory limits for the bodies of requests, shared by all threads of a proxy. A request with an incomplete body is
 * an upload. Uploads are counted separately from requests in progress, so clients that send half a body do not
 * block other clients: if no memory is free, the oldest upload is displaced, and its request is dropped. */
#ifndef KVP_CONDUCTOR_PROXY_PLACES_H
#define KVP_CONDUCTOR_PROXY_PLACES_H

#include "common/list.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct {
    pthread_mutex_t lock; /* guards all fields of this struct, and those of the uploads */
    kvp_list_t uploads; /* list of uploads; the oldest is first */
    uint32_t uploads_n, uploads_max;
    uint64_t bytes, bytes_max; /* total length of all bodies, including requests in progress; and its limit */
} kvp_uploads_t;

typedef struct kvp_upload {
    kvp_list_t link; /* element of the list of uploads in kvp_uploads_t */
    uint64_t bytes;
    _Atomic bool is_displaced;
    /* callback on any thread, with the lock held, after the upload was displaced; wakes the owner's thread */
    void (*displaced)(struct kvp_upload *place);
} kvp_upload_t;

void kvp_places_init(kvp_uploads_t *p, uint32_t uploads_max, uint64_t bytes_max);
void kvp_places_fini(kvp_uploads_t *p);
uint32_t kvp_places_uploads(kvp_uploads_t *p);

/* kvp_places_enter begins an upload, and kvp_places_leave ends the upload or its request. kvp_places_grow reserves
 * n more bytes; false = no memory is free, or the upload was displaced. kvp_places_finish records that the body is
 * complete, so it cannot be displaced any more; false = it was displaced before. */
void kvp_places_enter(kvp_uploads_t *p, kvp_upload_t *place, void (*displaced)(kvp_upload_t *place));
bool kvp_places_grow(kvp_uploads_t *p, kvp_upload_t *place, uint64_t n) KVP_MUST_USE;
bool kvp_places_finish(kvp_uploads_t *p, kvp_upload_t *place) KVP_MUST_USE;
void kvp_places_leave(kvp_uploads_t *p, kvp_upload_t *place);

#endif
