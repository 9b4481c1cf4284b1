/* SPDX-License-Identifier: Apache-2.0 */
#include "conductor/proxy/places.h"

void
kvp_places_init(kvp_uploads_t *p, uint32_t uploads_max, uint64_t bytes_max)
{
    *p = (kvp_uploads_t){.uploads_max = uploads_max, .bytes_max = bytes_max};
    (void)pthread_mutex_init(&p->lock, NULL);
    kvp_list_init(&p->uploads);
}

void
kvp_places_fini(kvp_uploads_t *p)
{
    pthread_mutex_destroy(&p->lock);
}

uint32_t
kvp_places_uploads(kvp_uploads_t *p)
{
    pthread_mutex_lock(&p->lock);
    const uint32_t n = p->uploads_n;
    pthread_mutex_unlock(&p->lock);

    return n;
}

static void
remove_upload(kvp_uploads_t *p, kvp_upload_t *place)
{
    if (kvp_list_is_empty(&place->link)) return;
    kvp_list_del(&place->link);
    p->uploads_n--;
}

/* Displaces the oldest upload, unless it is `place` itself. Returns false if no upload was displaced. */
static bool
displace_oldest(kvp_uploads_t *p, const kvp_upload_t *place)
{
    kvp_upload_t *oldest;

    if (kvp_list_is_empty(&p->uploads)) return false;
    oldest = kvp_list_first(&p->uploads, kvp_upload_t, link);
    if (oldest == place) return false;
    remove_upload(p, oldest);
    p->bytes -= oldest->bytes;
    oldest->bytes = 0;
    oldest->is_displaced = true;
    oldest->displaced(oldest);
    return true;
}

void
kvp_places_enter(kvp_uploads_t *p, kvp_upload_t *place, void (*displaced)(kvp_upload_t *place))
{
    place->displaced = displaced;
    pthread_mutex_lock(&p->lock);
    kvp_list_add_tail(&p->uploads, &place->link);
    if (++p->uploads_n > p->uploads_max) (void)displace_oldest(p, place);
    pthread_mutex_unlock(&p->lock);
}

bool
kvp_places_grow(kvp_uploads_t *p, kvp_upload_t *place, uint64_t n)
{
    bool has_room = false;

    pthread_mutex_lock(&p->lock);
    if (!place->is_displaced) {
        do
            has_room = p->bytes + n <= p->bytes_max;
        while (!has_room && displace_oldest(p, place));
    }
    if (has_room) {
        place->bytes += n;
        p->bytes += n;
    }
    pthread_mutex_unlock(&p->lock);
    return has_room;
}

bool
kvp_places_finish(kvp_uploads_t *p, kvp_upload_t *place)
{
    pthread_mutex_lock(&p->lock);
    remove_upload(p, place);
    pthread_mutex_unlock(&p->lock);
    return !place->is_displaced;
}

void
kvp_places_leave(kvp_uploads_t *p, kvp_upload_t *place)
{
    pthread_mutex_lock(&p->lock);
    remove_upload(p, place);
    p->bytes -= place->bytes;
    place->bytes = 0;
    pthread_mutex_unlock(&p->lock);
}
