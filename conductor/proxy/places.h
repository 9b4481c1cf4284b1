/* SPDX-License-Identifier: Apache-2.0
 * Room for the bodies of requests, shared by all threads of a proxy. A request with an incomplete
 * body is an upload. Uploads are counted separately from requests under way, so clients that send
 * half a body keep no other client out: without room, the oldest upload is displaced. */
#ifndef KVP_CONDUCTOR_PROXY_PLACES_H
#define KVP_CONDUCTOR_PROXY_PLACES_H

#include "common/list.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct {
    pthread_mutex_t lock; /* guards all fields, and the fields of the bodies in the lists */
    kvp_list_t uploads; /* the oldest first */
    uint32_t uploads_n, uploads_max;
    uint64_t bytes, bytes_max; /* of all bodies, also of those under way */
} kvp_uploads_t;

typedef struct kvp_upload {
    kvp_list_t link; /* of an upload */
    uint64_t bytes;
    _Atomic bool is_displaced;
    void (*displaced)(struct kvp_upload *place); /* called by any thread, under the lock: it only wakes the owner */
} kvp_upload_t;

void kvp_places_init(kvp_uploads_t *p, uint32_t uploads_max, uint64_t bytes_max);
void kvp_places_fini(kvp_uploads_t *p);
uint32_t kvp_places_uploads(kvp_uploads_t *p);

/* kvp_places_enter begins an upload, and kvp_places_leave ends it or its request. kvp_places_grow
 * reserves n bytes more; false = no room, or the upload was displaced. kvp_places_finish: the body
 * is complete, and cannot be displaced any more; false = it was. */
void kvp_places_enter(kvp_uploads_t *p, kvp_upload_t *place, void (*displaced)(kvp_upload_t *place));
bool kvp_places_grow(kvp_uploads_t *p, kvp_upload_t *place, uint64_t n) KVP_MUST_USE;
bool kvp_places_finish(kvp_uploads_t *p, kvp_upload_t *place) KVP_MUST_USE;
void kvp_places_leave(kvp_uploads_t *p, kvp_upload_t *place);

#endif
