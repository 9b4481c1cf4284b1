/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - Entries lie dense in one array; a hole is filled with the last entry. So the hand of the CLOCK eviction moves
 *   over live entries only, and the memory in use follows the largest number of entries.
 * - New entries start cold: a large batch of keys that are read once is evicted before keys that are read
 * repeatedly. */
#include "client/core/loccache.h"

#include "common/mutate.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 16u
#define NONE UINT32_MAX

struct kvp_loccache_entry {
    kvp_digest_t digest;
    kvp_cached_place_t place;
    uint32_t next; /* next entry of the same bucket, as index + 1; 0 = the last entry */
    uint32_t reads; /* reads that are not reported to the master yet; if > 0, the entry is listed in used[used_at] */
    uint32_t used_at;
    bool is_hot; /* a look-up found the entry after the eviction hand passed it */
};

void
kvp_loccache_init(kvp_loccache_t *c, uint32_t cap, uint64_t secret)
{
    memset(c, 0, sizeof *c);
    c->mix = kvp_mix_make(secret);
    c->cap = cap;
}

void
kvp_loccache_fini(kvp_loccache_t *c)
{
    free(c->entries);
    free(c->buckets);
    kvp_loccache_init(c, 0, 0);
}

/* ---- the table */
static uint32_t *
bucket_of(const kvp_loccache_t *c, kvp_digest_t digest)
{
    return &c->buckets[kvp_mix64(&c->mix, digest.lo, digest.hi) & (c->room - 1)];
}

static uint32_t
find_entry(const kvp_loccache_t *c, kvp_digest_t digest)
{
    if (c->n == 0) return NONE;
    for (uint32_t at = *bucket_of(c, digest); at != 0; at = c->entries[at - 1].next)
        if (kvp_digest_eq(c->entries[at - 1].digest, digest)) return at - 1;
    return NONE;
}

static void
link_entry(kvp_loccache_t *c, uint32_t i)
{
    uint32_t *bucket = bucket_of(c, c->entries[i].digest);

    c->entries[i].next = *bucket;
    *bucket = i + 1;
}

/* Returns a pointer to the link that refers to entry i: the head of its bucket, or `next` of the entry before it. */
static uint32_t *
link_to(const kvp_loccache_t *c, uint32_t i)
{
    uint32_t *at = bucket_of(c, c->entries[i].digest);

    while (*at != i + 1)
        at = &c->entries[*at - 1].next;
    return at;
}

static bool
grow_cache(kvp_loccache_t *c)
{
    uint32_t room = c->room == 0 ? FIRST_ROOM : c->room * 2;
    kvp_loccache_entry_t *entries = realloc(c->entries, room * sizeof *entries);
    uint32_t *buckets;

    if (entries == NULL) return false;
    c->entries = entries;
    buckets = calloc(room, sizeof *buckets);
    if (buckets == NULL) return false;
    free(c->buckets);
    c->buckets = buckets;
    c->room = room;
    for (uint32_t i = 0; i < c->n; i++)
        link_entry(c, i);
    return true;
}

/* ---- counts of reads, to be reported to the master */
static void
count_read(kvp_loccache_t *c, uint32_t i)
{
    kvp_loccache_entry_t *e = &c->entries[i];

    if (e->reads == 0) {
        if (c->used_n == KVP_LOCCACHE_USED_MAX) return;
        e->used_at = c->used_n;
        c->used[c->used_n++] = i;
    }
    if (e->reads < UINT32_MAX) e->reads++;
}

static void
drop_reads(kvp_loccache_t *c, uint32_t i)
{
    kvp_loccache_entry_t *e = &c->entries[i];
    uint32_t last;

    if (e->reads == 0) return;
    e->reads = 0;
    last = c->used[--c->used_n];
    if (last == i) return;
    c->used[e->used_at] = last;
    c->entries[last].used_at = e->used_at;
}

uint32_t
kvp_loccache_take_used(kvp_loccache_t *c, kvp_wire_used_t *used_out, uint32_t cap)
{
    uint32_t n = 0;

    while (c->used_n > 0 && n < cap) {
        uint32_t i = c->used[c->used_n - 1];

        used_out[n++] = (kvp_wire_used_t){.digest = c->entries[i].digest, .reads = c->entries[i].reads};
        drop_reads(c, i);
    }
    return n;
}

/* ---- adding and removing entries */
static void
remove_entry(kvp_loccache_t *c, uint32_t i)
{
    uint32_t last = c->n - 1;

    drop_reads(c, i);
    *link_to(c, i) = c->entries[i].next;
    if (i != last) {
        *link_to(c, last) = i + 1;
        c->entries[i] = c->entries[last];
        if (c->entries[i].reads > 0) c->used[c->entries[i].used_at] = i;
    }
    c->n--;
}

static void
evict_one(kvp_loccache_t *c)
{
    for (;;) {
        if (c->hand >= c->n) c->hand = 0;
        if (!c->entries[c->hand].is_hot) break;
        c->entries[c->hand++].is_hot = false;
    }
    remove_entry(c, c->hand);
    /* the last entry was moved to the place of the evicted one: examine it in the next round */
    c->hand++;
}

bool
kvp_loccache_find(kvp_loccache_t *c, kvp_digest_t digest, kvp_cached_place_t *place_out)
{
    uint32_t i = find_entry(c, digest);

    if (i == NONE) return false;
    c->entries[i].is_hot = true;
    count_read(c, i);
    *place_out = c->entries[i].place;
    return true;
}

bool
kvp_loccache_has(const kvp_loccache_t *c, kvp_digest_t digest, uint64_t version)
{
    uint32_t i = find_entry(c, digest);

    return i != NONE && c->entries[i].place.version == version;
}

bool
kvp_loccache_keep(kvp_loccache_t *c, kvp_digest_t digest, const kvp_cached_place_t *place, uint64_t seq)
{
    uint32_t i;

    if ((seq < c->seq && KVP_RULE(REVOKED_SEQUENCE)) || c->cap == 0) return false;
    i = find_entry(c, digest);
    if (i != NONE) {
        if (c->entries[i].place.version > place->version) return false;
        c->entries[i].place = *place;
        return true;
    }
    if (c->n == c->cap) evict_one(c);
    if (c->n == c->room && !grow_cache(c)) return false;
    i = c->n++;
    memset(&c->entries[i], 0, sizeof c->entries[i]);
    c->entries[i].digest = digest;
    c->entries[i].place = *place;
    link_entry(c, i);
    return true;
}

void
kvp_loccache_seen(kvp_loccache_t *c, kvp_digest_t digest, uint64_t version, uint64_t told_ns)
{
    uint32_t i = find_entry(c, digest);

    if (i == NONE || c->entries[i].place.version != version) return;
    c->entries[i].place.told_ns = kvp_max_u64(c->entries[i].place.told_ns, told_ns);
}

void
kvp_loccache_forget(kvp_loccache_t *c, kvp_digest_t digest, uint64_t version_max)
{
    uint32_t i = find_entry(c, digest);

    if (i != NONE && c->entries[i].place.version <= version_max) remove_entry(c, i);
}

void
kvp_loccache_advance(kvp_loccache_t *c, uint64_t seq)
{
    c->seq = kvp_max_u64(c->seq, seq);
}

void
kvp_loccache_drop_all(kvp_loccache_t *c)
{
    if (c->n == 0) return;
    memset(c->buckets, 0, c->room * sizeof *c->buckets);
    c->n = 0;
    c->used_n = 0;
}

/* ---- the lease on cached locations */
void
kvp_loclease_renew(kvp_loclease_t *lease, uint64_t asked_ns, uint32_t lease_ms, uint32_t grace_ms)
{
    if (lease->is_orphaned || lease->is_over) return;
    lease->asked_ns = asked_ns;
    lease->lease_ns = lease_ms * 1000000ull;
    lease->grace_ns = kvp_max_u64(grace_ms, lease_ms) * 1000000ull;
}

void
kvp_loclease_orphan(kvp_loclease_t *lease, uint64_t now_ns)
{
    if (now_ns >= kvp_loclease_until(lease)) lease->is_over = true;
    lease->is_orphaned = true;
}

void
kvp_loclease_end(kvp_loclease_t *lease)
{
    lease->is_over = true;
}

uint64_t
kvp_loclease_until(const kvp_loclease_t *lease)
{
    if (lease->is_over || lease->lease_ns == 0) return 0;
    return lease->asked_ns + (lease->is_orphaned ? lease->grace_ns : lease->lease_ns);
}
