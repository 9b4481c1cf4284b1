/* SPDX-License-Identifier: Apache-2.0
 * See streams.h. */
#include "conductor/events/streams.h"

#include "common/log.h"

void
kvp_streams_fini(kvp_streams_t *s)
{
    kvp_digestmap_fini(&s->young);
    kvp_digestmap_fini(&s->old);
}

kvp_stream_step_t
kvp_streams_step(kvp_streams_t *s, uint64_t stream, uint64_t id)
{
    const kvp_digest_t key = {.lo = stream, .hi = 1};
    uint64_t *at = kvp_digestmap_at(&s->young, key), *was = at != NULL ? at : kvp_digestmap_at(&s->old, key);
    const bool is_first = was == NULL;
    const uint64_t last = was == NULL ? id : *was; /* the next expected id of the stream */

    if (id == UINT64_MAX || id < last) return KVP_STREAM_SEEN;
    if (at == NULL && s->young.n == KVP_STREAMS_MIN) {
        kvp_digestmap_fini(&s->old);
        s->old = s->young;
        s->young = (kvp_digestmap_t){.seed = s->old.seed};
    }
    if (at == NULL) at = kvp_digestmap_insert(&s->young, key);
    if (at == NULL) kvp_panic("out of memory: streams of events");
    *at = id + 1;
    if (is_first) return KVP_STREAM_FIRST;
    return id == last ? KVP_STREAM_NEXT : KVP_STREAM_GAP;
}
