/* SPDX-License-Identifier: Apache-2.0
 * Hot copies. One read in so many bytes is a sample: its object gets an entry in a table of KEYS entries, which are
 * emptied at the end of each window. An entry with copies stays until the copies are dropped. All walks are over this
 * table, never over all objects. */
#include "master/core/evict/hot.h"

#include "common/hash.h"
#include "master/core/base/ctx.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/tasks.h"
#include "master/core/protect/leaving.h"
#include "master/core/space/copy.h"
#include "proto/segfmt.h"

#include <stdlib.h>
#include <string.h>

#define KEYS 1024u
#define WAYS 4u /* number of entries in which an object may lie, by the hash of its version */
#define HOSTS 4u /* limit of the hosts whose reads of one object are counted separately */
#define COPIES 4u /* limit of the hot copies of one object */
/* an object with this many samples from one host in a window is hot; the count has an error of 6 % */
#define SAMPLES 256u
#define ALL_HOSTS 4u /* with reads from several hosts an object is hot from ALL_HOSTS * SAMPLES samples on */
#define HOT_WINDOWS 2u /* an object must be hot in this many windows in a row before it gets one more copy */
/* copies are dropped after this many windows in a row in which the object had less than SAMPLES / COLD_PART samples */
#define COLD_WINDOWS 6u
#define COLD_PART 4u
#define MEMORY_PART 16u /* hot copies use at most 1/16 of a segment */
#define TRIES 64u /* limit of the copies that one step tries to begin */
#define SEGMENTS_A_RECORD 16u /* looking at so many segments costs as much of a step as handling one record */
#define RECORDS_A_WALK 64u /* the cost of a walk over the table, as part of a step's budget */

typedef struct {
    uint64_t version; /* version of the object; 0 = the entry is empty */
    kvp_digest_t digest;
    uint64_t reads; /* samples in this window */
    uint64_t far; /* of these, from hosts without a copy */
    struct {
        uint64_t id; /* hash of the host's id */
        uint64_t reads;
    } hosts[HOSTS]; /* of reads from hosts without a copy */
    /* number of the last windows, in a row, in which the object was hot; in which it was cold */
    uint32_t hot_windows, cold_windows;
    uint32_t rest_windows; /* windows in which no copy is made */
    uint32_t copies[COPIES]; /* ids of the segments that have a hot copy, or will have it when the copy is made */
    uint32_t copies_n;
    uint64_t keep_host; /* hash of the id of a host on which a client wants a copy; 0 = none */
    bool is_ending; /* flag: the copies are being dropped */
} kvp_hot_key_t;

typedef struct kvp_hot {
    uint64_t random;
    uint64_t window_end_ns;
    bool has_wishes; /* flag: entries may have a keep_host */
    /* number of entries with copies that stay; ending_n: with copies that are being dropped */
    uint32_t kept_n, ending_n;
    kvp_hot_key_t keys[KEYS];
} kvp_hot_t;

/* ---- counting */
/* Returns the bytes for which one sample stands; 0 = hot copies are off. */
static uint64_t
sample_bytes(const kvp_evict_t *ev)
{
    const kvp_master_conf_t *conf = &ev->ctx->conf;

    if (conf->hot_bytes_per_s == 0) return 0;
    return conf->hot_bytes_per_s / SAMPLES * (conf->hot_window_ns / KVP_MS(1)) / 1000 + 1;
}

static uint64_t
next_random(kvp_hot_t *hot)
{
    hot->random ^= hot->random << 13;
    hot->random ^= hot->random >> 7;
    hot->random ^= hot->random << 17;
    return hot->random;
}

static uint64_t
host_hash(const char *host_id)
{
    return kvp_sum(host_id, strlen(host_id));
}

/* Returns the object's entry. An object without an entry takes the entry of its set that was read least, unless that
 * was read more: then the entry loses as many samples, and the result is NULL. */
static kvp_hot_key_t *
find_or_take_key(kvp_hot_t *hot, const kvp_obj_t *o, uint64_t reads, bool may_take)
{
    kvp_hot_key_t *set = &hot->keys[kvp_sum(&o->generation, sizeof o->generation) % (KEYS / WAYS) * WAYS];
    kvp_hot_key_t *least = NULL;

    for (uint32_t i = 0; i < WAYS; i++) {
        if (set[i].version == kvp_obj_version(o)) return &set[i];
        if (set[i].copies_n == 0 && set[i].rest_windows == 0 && (least == NULL || set[i].reads < least->reads))
            least = &set[i];
    }
    if (!may_take || least == NULL) return NULL;
    if (least->version != 0 && least->reads > reads) {
        least->reads -= reads;
        return NULL;
    }
    *least = (kvp_hot_key_t){.version = kvp_obj_version(o)};
    return least;
}

static void
count_host(kvp_hot_key_t *key, uint64_t host, uint64_t reads)
{
    uint32_t least = 0;

    key->far += reads;
    for (uint32_t i = 0; i < HOSTS; i++) {
        if (key->hosts[i].id == host) {
            key->hosts[i].reads += reads;
            return;
        }
        if (key->hosts[i].reads < key->hosts[least].reads) least = i;
    }
    if (key->hosts[least].reads > reads) {
        key->hosts[least].reads -= reads;
        return;
    }
    key->hosts[least].id = host;
    key->hosts[least].reads = reads;
}

/* Counts the samples for the segment from which the session reads: the first place in the master's answer to it. */
static void
count_served(const kvp_evict_t *ev, const kvp_session_t *s, const kvp_obj_t *o, uint64_t reads)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = kvp_obj_places(ev->cat, o, places);

    if (n > 0) kvp_place_chunk(ev->cat, &places[s->number % n])->segment->hot_served += reads;
}

static void
make_table(kvp_evict_t *ev)
{
    if (ev->hot != NULL) return;
    ev->hot = kvp_core_alloc(1, sizeof *ev->hot);
    ev->hot->random = ev->ctx->conf.seed | 1;
    ev->hot->window_end_ns = ev->ctx->now_ns + ev->ctx->conf.hot_window_ns;
}

void
kvp_hot_keep(kvp_evict_t *ev, const kvp_session_t *s, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    kvp_hot_key_t *key;

    if (ev->ctx->conf.hot_bytes_per_s == 0) return;
    make_table(ev);
    key = find_or_take_key(ev->hot, o, SAMPLES, true);
    if (key == NULL) return;
    key->digest = kvp_obj_digest_of(ev->cat, o);
    key->reads = kvp_max_u64(key->reads, SAMPLES / COLD_PART); /* this window is not cold */
    if (kvp_obj_is_on_host(ev->cat, o, s->host_id)) return;
    key->keep_host = host_hash(s->host_id);
    ev->hot->has_wishes = true;
}

void
kvp_hot_sample(kvp_evict_t *ev, const kvp_session_t *s, uint32_t oid)
{
    const uint64_t unit = sample_bytes(ev), over = (uint64_t)-ev->hot_left, reads = unit == 0 ? 0 : 1 + over / unit;
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    kvp_hot_key_t *key;
    bool is_here;

    if (unit == 0) {
        ev->hot_left = INT64_MAX;
        return;
    }
    make_table(ev);
    /* the distance between samples varies, so that a regular order of reads hides no object */
    ev->hot_left = (int64_t)(unit / 2 + next_random(ev->hot) % unit + 1) - (int64_t)(over % unit);
    count_served(ev, s, o, reads);
    is_here = kvp_obj_is_on_host(ev->cat, o, s->host_id);
    key = find_or_take_key(ev->hot, o, reads, !is_here);
    if (key == NULL) return;
    key->digest = kvp_obj_digest_of(ev->cat, o);
    key->reads += reads;
    if (!is_here) count_host(key, host_hash(s->host_id), reads);
}

/* ---- the end of a window */
/* Returns the entry's object; KVP_OID_NONE = memory does not have this version any more. */
static uint32_t
object_of(const kvp_evict_t *ev, const kvp_hot_key_t *key)
{
    const uint32_t oid = kvp_objindex_find(ev->cat->index, key->digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(ev->cat->index, oid);

    if (o == NULL || o->state != KVP_OBJ_COMMITTED || kvp_obj_version(o) != key->version) return KVP_OID_NONE;
    if (o->chunk == KVP_OBJ_CHUNK_NONE || kvp_obj_is_on_tier_alone(ev->cat, o)) return KVP_OID_NONE;
    return kvp_obj_version(o) <= kvp_obj_tenant(ev->cat, o)->min_version ? KVP_OID_NONE : oid;
}

/* Returns the copy that is being made of the object in the segment; NULL = none. */
static const kvp_copy_t *
copy_to(const kvp_evict_t *ev, const kvp_obj_t *o, uint32_t segment)
{
    const kvp_copy_t *copy = kvp_copy_of(ev->space, o);

    return copy != NULL && copy->target->id == segment ? copy : NULL;
}

/* Removes the entry's copies that do not exist any more, and adds the bytes of the others to their segments' sums. */
static void
count_copies(const kvp_evict_t *ev, kvp_hot_key_t *key, const kvp_obj_t *o)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = kvp_obj_places(ev->cat, o, places), had = key->copies_n;

    key->copies_n = 0;
    for (uint32_t i = 0; i < had; i++) {
        const uint32_t at = kvp_place_in(ev->cat, places, n, key->copies[i]);
        const kvp_copy_t *copy = copy_to(ev, o, key->copies[i]);
        kvp_segment_t *g = at < n ? kvp_place_chunk(ev->cat, &places[at])->segment : copy == NULL ? NULL : copy->target;

        if (g == NULL) continue;
        key->copies[key->copies_n++] = key->copies[i];
        g->hot_bytes += kvp_extent_bytes(kvp_obj_len(ev->cat, o));
    }
}

/* Returns the number of samples from a host without a copy. */
static uint64_t
reads_of(const kvp_hot_key_t *key, uint64_t host)
{
    for (uint32_t i = 0; i < HOSTS; i++)
        if (key->hosts[i].id == host) return key->hosts[i].reads;
    return 0;
}

/* Returns true if the samples from one host, or from all hosts, are at least `times` times the threshold. */
static bool
is_hot(const kvp_hot_key_t *key, uint64_t times)
{
    for (uint32_t i = 0; i < HOSTS; i++)
        if (key->hosts[i].reads >= SAMPLES * times) return true;
    return key->far >= ALL_HOSTS * SAMPLES * times;
}

static bool
may_take(const kvp_evict_t *ev, const kvp_segment_t *g, uint64_t bytes, const kvp_place_t *places, uint32_t n)
{
    return kvp_task_can_take(ev, g, bytes, places, n) && g->size_bytes - g->used_bytes >= bytes &&
           g->hot_bytes + bytes <= g->size_bytes / MEMORY_PART;
}

/* Returns the segment for a new copy: on the host that reads the object most, or else the segment that serves the
 * fewest reads. NULL = no segment has room, or no host reads the object enough and the present copies share the reads.
 */
static kvp_segment_t *
choose_target(const kvp_evict_t *ev, const kvp_hot_key_t *key, const kvp_obj_t *o, const kvp_place_t *places,
              uint32_t n)
{
    const uint64_t bytes = kvp_extent_bytes(kvp_obj_len(ev->cat, o));
    kvp_segment_t *near = NULL, *least = NULL;
    uint64_t most = SAMPLES - 1;

    for (uint32_t i = 0; i < ev->cat->up_n; i++) {
        kvp_segment_t *g = ev->cat->up[i];
        const uint64_t host = host_hash(g->host_id);
        const uint64_t reads = host == key->keep_host ? UINT64_MAX : reads_of(key, host);

        if (!may_take(ev, g, bytes, places, n)) continue;
        if (reads > most) {
            near = g;
            most = reads;
        }
        if (least == NULL || g->hot_served < least->hot_served) least = g;
    }
    kvp_ctx_spend(ev->ctx, ev->cat->up_n / SEGMENTS_A_RECORD);
    return near != NULL ? near : is_hot(key, n) && key->keep_host == 0 ? least : NULL;
}

static bool
begin_copy(kvp_evict_t *ev, kvp_hot_key_t *key, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = kvp_obj_places(ev->cat, o, places);
    kvp_segment_t *target;
    kvp_copy_t *copy;
    uint32_t from = 0;

    if (n == KVP_REPLICAS_MAX || key->copies_n == COPIES || o->is_moving != 0 || kvp_copy_of(ev->space, o) != NULL ||
        kvp_journal_refusal(ev->cat->log) != KVP_OK)
        return false;
    while (from < n && kvp_place_chunk(ev->cat, &places[from])->segment->state == KVP_SEG_LOST)
        from++;
    target = from == n ? NULL : choose_target(ev, key, o, places, n);
    if (target == NULL || kvp_copy_begin(ev->space, oid, &places[from], target) != KVP_OK) return false;
    copy = kvp_copy_of(ev->space, o);
    copy->is_asked = copy->is_hot = true;
    target->hot_bytes += kvp_extent_bytes(kvp_obj_len(ev->cat, o));
    target->hot_served += key->far / (n + 1); /* so that the next object goes elsewhere */
    key->copies[key->copies_n++] = target->id;
    /* A copy may exist at a node before the log names it. The record of a drain makes the next master expect that. */
    kvp_record_drain(ev->cat, target);
    ev->space->drain_end = ev->cat->log->end; /* requests a sync of the log; snapshots of the log repeat the record */
    return true;
}

static void
end_window(kvp_evict_t *ev, kvp_hot_key_t *key, uint32_t oid, uint32_t *tries)
{
    key->hot_windows = is_hot(key, 1) ? key->hot_windows + 1 : 0;
    key->cold_windows = key->reads * COLD_PART < SAMPLES ? key->cold_windows + 1 : 0;
    if (key->rest_windows > 0) {
        key->rest_windows--;
    } else if (key->hot_windows >= HOT_WINDOWS && !key->is_ending && *tries > 0 && ev->ctx->slice_left > 0) {
        --*tries;
        if (begin_copy(ev, key, oid)) key->hot_windows = 0;
    }
    if (key->copies_n > 0 && key->cold_windows >= COLD_WINDOWS) key->is_ending = true;
    if (key->copies_n == 0 && key->rest_windows == 0 && key->hot_windows == 0 && key->keep_host == 0)
        *key = (kvp_hot_key_t){0};
    key->reads = key->far = 0;
    memset(key->hosts, 0, sizeof key->hosts);
}

static void
count_kept(kvp_hot_t *hot)
{
    hot->kept_n = hot->ending_n = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        hot->kept_n += hot->keys[i].copies_n > 0 && !hot->keys[i].is_ending;
        hot->ending_n += hot->keys[i].copies_n > 0 && hot->keys[i].is_ending;
    }
}

/* ---- dropping */
/* Drops the entry's copies, one after the other, in several calls. The object's last copy stays. */
static void
drop_copies(kvp_evict_t *ev, kvp_hot_key_t *key)
{
    const uint32_t oid = object_of(ev, key);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(ev->cat->index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = o == NULL ? 0 : kvp_obj_places(ev->cat, o, places);

    while (key->copies_n > 0) {
        const uint32_t segment = key->copies[key->copies_n - 1], at = kvp_place_in(ev->cat, places, n, segment);

        if (at == n && o != NULL && copy_to(ev, o, segment) != NULL) return;
        if (at < n && n > 1) {
            if (kvp_obj_up_n(ev->cat, o) > 1) (void)kvp_leaving_begin(ev->prot, oid, &places[at], UINT64_MAX);
            return;
        }
        ev->ctx->st.hot_dropped += at == n && o != NULL;
        key->copies_n--;
    }
    key->is_ending = false;
    key->hot_windows = key->cold_windows = 0;
}

void
kvp_hot_make_room(kvp_evict_t *ev, uint64_t bytes)
{
    if (ev->hot == NULL || ev->hot->kept_n == 0) return;
    for (uint32_t i = 0; i < KEYS; i++) {
        kvp_hot_key_t *key = &ev->hot->keys[i];
        const uint32_t oid = key->copies_n > 0 && !key->is_ending ? object_of(ev, key) : KVP_OID_NONE;

        if (oid == KVP_OID_NONE) continue;
        key->is_ending = true;
        key->rest_windows = COLD_WINDOWS;
        ev->hot->kept_n--;
        ev->hot->ending_n++;
        bytes -=
            kvp_min_u64(bytes, key->copies_n * kvp_extent_bytes(kvp_obj_len(ev->cat, kvp_obj(ev->cat->index, oid))));
        if (bytes == 0) break;
    }
    kvp_ctx_spend(ev->ctx, RECORDS_A_WALK);
}

/* ---- time */
static void
end_windows(kvp_evict_t *ev)
{
    /* each window begins with another entry, so that no entry is always last */
    const uint32_t first = (uint32_t)(next_random(ev->hot) % KEYS);
    uint32_t tries = TRIES;

    kvp_list_foreach (pos, &ev->cat->segments)
        kvp_list_entry(pos, kvp_segment_t, link)->hot_bytes = 0;
    for (uint32_t i = 0; i < KEYS; i++) {
        kvp_hot_key_t *key = &ev->hot->keys[i];
        const uint32_t oid = key->version == 0 ? KVP_OID_NONE : object_of(ev, key);

        if (oid == KVP_OID_NONE)
            *key = (kvp_hot_key_t){0};
        else if (key->copies_n > 0)
            count_copies(ev, key, kvp_obj(ev->cat->index, oid));
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        kvp_hot_key_t *key = &ev->hot->keys[(first + i) % KEYS];

        if (key->version != 0) end_window(ev, key, object_of(ev, key), &tries);
    }
    kvp_list_foreach (pos, &ev->cat->segments)
        kvp_list_entry(pos, kvp_segment_t, link)->hot_served = 0;
    kvp_ctx_spend(ev->ctx, RECORDS_A_WALK);
}

/* Begins the copies that clients want on their own hosts. */
static void
begin_kept(kvp_evict_t *ev)
{
    uint32_t tries = TRIES;

    ev->hot->has_wishes = false;
    kvp_ctx_spend(ev->ctx, RECORDS_A_WALK);
    for (uint32_t i = 0; i < KEYS; i++) {
        kvp_hot_key_t *key = &ev->hot->keys[i];
        const uint32_t oid = key->keep_host == 0 ? KVP_OID_NONE : object_of(ev, key);

        if (key->keep_host == 0) continue;
        if (tries == 0 || ev->ctx->slice_left == 0 ||
            (oid != KVP_OID_NONE && kvp_copy_of(ev->space, kvp_obj(ev->cat->index, oid)) != NULL)) {
            ev->hot->has_wishes = true;
            continue;
        }
        tries--;
        if (oid != KVP_OID_NONE && !key->is_ending && key->rest_windows == 0) (void)begin_copy(ev, key, oid);
        key->keep_host = 0;
    }
    count_kept(ev->hot);
}

void
kvp_hot_tick(kvp_evict_t *ev)
{
    kvp_hot_t *hot = ev->hot;

    if (hot == NULL || ev->cat->log->is_resting) return;
    if (hot->has_wishes) begin_kept(ev);
    if (ev->ctx->now_ns >= hot->window_end_ns) {
        hot->window_end_ns = ev->ctx->now_ns + ev->ctx->conf.hot_window_ns;
        end_windows(ev);
        count_kept(hot);
    }
    if (hot->ending_n == 0) return;
    for (uint32_t i = 0; i < KEYS; i++)
        if (hot->keys[i].is_ending) drop_copies(ev, &hot->keys[i]);
    count_kept(hot);
    kvp_ctx_spend(ev->ctx, RECORDS_A_WALK);
}

void
kvp_hot_fini(kvp_evict_t *ev)
{
    free(ev->hot);
    ev->hot = NULL;
}
