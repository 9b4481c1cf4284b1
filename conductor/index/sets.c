/* SPDX-License-Identifier: Apache-2.0
 * See sets.h. The number of a freed set is reused only when no reader can know it any more. */
#include "conductor/index/sets.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CHUNK 4096u /* number of sets in a chunk of the directory */
#define CHUNKS_MAX 65536u

typedef struct {
    uint32_t refs, hash;
    kvp_set_t set; /* the set; last field, because its array has no fixed length */
} entry_t;

struct kvp_sets {
    kvp_epoch_t *epoch;
    _Atomic(entry_t *) *_Atomic chunks[CHUNKS_MAX];
    uint32_t numbers; /* count of set numbers ever assigned, including 0 */
    kvp_buf_t spare; /* stack of free set numbers (uint32_t) */
    uint32_t *table; /* hash table of set numbers; 0 = free place, UINT32_MAX = removed */
    uint32_t cap, used; /* size of the hash table; used places, including removed ones */
    uint32_t n;
    kvp_buf_t work; /* buffer for the set under construction */
    uint64_t bytes;
};

static entry_t *
entry_at(const kvp_sets_t *s, uint32_t number)
{
    _Atomic(entry_t *) *chunk = atomic_load_explicit(&s->chunks[number / CHUNK], memory_order_acquire);

    return atomic_load_explicit(&chunk[number % CHUNK], memory_order_acquire);
}

const kvp_set_t *
kvp_sets_get(const kvp_sets_t *s, uint32_t set)
{
    return set == KVP_SET_NONE ? NULL : &entry_at(s, set)->set;
}

/* ---- the hash table of sets */
static uint32_t
place_of(const kvp_sets_t *s, uint32_t hash)
{
    return (uint32_t)((uint64_t)hash * s->cap >> 32);
}

static void
grow_table(kvp_sets_t *s)
{
    uint32_t *old = s->table, old_cap = s->cap;

    s->cap = (uint32_t)kvp_max_u64(64, s->n * 2ull);
    s->table = calloc(s->cap, sizeof *s->table);
    if (s->table == NULL) kvp_panic("out of memory: sets of holders");
    s->used = s->n;
    for (uint32_t i = 0; i < old_cap; i++) {
        uint32_t at;

        if (old[i] == 0 || old[i] == UINT32_MAX) continue;
        at = place_of(s, entry_at(s, old[i])->hash);
        while (s->table[at] != 0)
            at = at + 1 == s->cap ? 0 : at + 1;
        s->table[at] = old[i];
    }
    s->bytes += (s->cap - (uint64_t)old_cap) * sizeof *s->table;
    free(old);
}

/* Returns the index in the hash table of the set with these holders, or of a free place for it. */
static uint32_t
find_equal(const kvp_sets_t *s, const uint32_t *holders, uint32_t n, uint32_t hash)
{
    uint32_t at = place_of(s, hash);

    for (; s->table[at] != 0; at = at + 1 == s->cap ? 0 : at + 1) {
        const entry_t *e = s->table[at] == UINT32_MAX ? NULL : entry_at(s, s->table[at]);

        if (e != NULL && e->hash == hash && e->set.n == n && memcmp(e->set.holders, holders, n * sizeof *holders) == 0)
            break;
    }
    return at;
}

/* ---- sets and the assignment of their numbers */
static void
free_entry(void *arg, uintptr_t what)
{
    kvp_sets_t *s = arg;
    uint32_t number = (uint32_t)what;
    entry_t *e = entry_at(s, number);

    s->bytes -= sizeof *e + e->set.n * sizeof e->set.holders[0];
    free(e);
    kvp_buf_append(&s->spare, &number, sizeof number);
    if (s->spare.err != KVP_OK) kvp_panic("out of memory: numbers of sets");
}

static uint32_t
new_number(kvp_sets_t *s)
{
    uint32_t number;

    if (s->spare.len > 0) {
        s->spare.len -= sizeof number;
        memcpy(&number, s->spare.data + s->spare.len, sizeof number);
        return number;
    }
    number = s->numbers++;
    if (number / CHUNK >= CHUNKS_MAX) kvp_panic("too many sets of holders");
    if (atomic_load_explicit(&s->chunks[number / CHUNK], memory_order_relaxed) == NULL) {
        _Atomic(entry_t *) *chunk = calloc(CHUNK, sizeof *chunk);

        if (chunk == NULL) kvp_panic("out of memory: sets of holders");
        atomic_store_explicit(&s->chunks[number / CHUNK], chunk, memory_order_release);
        s->bytes += CHUNK * sizeof *chunk;
    }
    return number;
}

static uint32_t
add_entry(kvp_sets_t *s, const uint32_t *holders, uint32_t n, uint32_t hash)
{
    entry_t *e = malloc(sizeof *e + n * sizeof *holders);
    uint32_t number = new_number(s);

    if (e == NULL) kvp_panic("out of memory: a set of holders");
    e->refs = 0;
    e->hash = hash;
    e->set.n = n;
    memcpy(e->set.holders, holders, n * sizeof *holders);
    atomic_store_explicit(&atomic_load_explicit(&s->chunks[number / CHUNK], memory_order_relaxed)[number % CHUNK], e,
                          memory_order_release);
    s->bytes += sizeof *e + n * sizeof *holders;
    s->n++;
    return number;
}

static void
drop_ref(kvp_sets_t *s, uint32_t number)
{
    entry_t *e = number == KVP_SET_NONE ? NULL : entry_at(s, number);

    if (e == NULL || --e->refs > 0) return;
    s->table[find_equal(s, e->set.holders, e->set.n, e->hash)] = UINT32_MAX;
    s->n--;
    kvp_epoch_retire(s->epoch, free_entry, s, number);
}

/* Returns the number of the set of these n holders, with a new reference to it, and releases the set `old`. */
static uint32_t
intern_set(kvp_sets_t *s, const uint32_t *holders, uint32_t n, uint32_t old)
{
    const uint32_t hash = (uint32_t)XXH3_64bits(holders, n * sizeof *holders);
    uint32_t at, number = KVP_SET_NONE;

    if (n > 0) {
        if ((uint64_t)s->used * 4 >= (uint64_t)s->cap * 3) grow_table(s);
        at = find_equal(s, holders, n, hash);
        number = s->table[at];
        if (number == 0) {
            number = s->table[at] = add_entry(s, holders, n, hash);
            s->used++;
        }
        entry_at(s, number)->refs++;
    }
    drop_ref(s, old);
    return number;
}

/* ---- functions that change a block's set */
static uint32_t *
work_room(kvp_sets_t *s, uint32_t n)
{
    uint32_t *work;

    kvp_buf_reset(&s->work);
    work = (uint32_t *)kvp_buf_reserve(&s->work, (n + 1) * sizeof *work);
    if (work == NULL) kvp_panic("out of memory: a set of holders");
    return work;
}

/* Returns the position of the holder in the set, or the position at which it would be inserted. */
static uint32_t
rank_of(const kvp_set_t *set, uint32_t holder)
{
    uint32_t i = 0;

    while (set != NULL && i < set->n && set->holders[i] < holder)
        i++;
    return i;
}

uint32_t
kvp_sets_with(kvp_sets_t *s, uint32_t number, uint32_t holder)
{
    const kvp_set_t *set = kvp_sets_get(s, number);
    const uint32_t n = set == NULL ? 0 : set->n, at = rank_of(set, holder);
    uint32_t *work;

    if (at < n && set->holders[at] == holder) return number;
    work = work_room(s, n);
    if (at > 0) memcpy(work, set->holders, at * sizeof *work);
    work[at] = holder;
    if (at < n) memcpy(work + at + 1, set->holders + at, (n - at) * sizeof *work);
    return intern_set(s, work, n + 1, number);
}

uint32_t
kvp_sets_without(kvp_sets_t *s, uint32_t number, uint32_t holder)
{
    const kvp_set_t *set = kvp_sets_get(s, number);
    const uint32_t n = set == NULL ? 0 : set->n, at = rank_of(set, holder);
    uint32_t *work;

    if (at == n || set->holders[at] != holder) return number;
    work = work_room(s, n);
    memcpy(work, set->holders, at * sizeof *work);
    memcpy(work + at, set->holders + at + 1, (n - at - 1) * sizeof *work);
    return intern_set(s, work, n - 1, number);
}

uint32_t
kvp_sets_purge(kvp_sets_t *s, uint32_t number, const bool *is_dead)
{
    const kvp_set_t *set = kvp_sets_get(s, number);
    uint32_t n = 0, *work;

    if (set == NULL) return number;
    work = work_room(s, set->n);
    for (uint32_t i = 0; i < set->n; i++)
        if (!is_dead[set->holders[i]]) work[n++] = set->holders[i];
    return n == set->n ? number : intern_set(s, work, n, number);
}

/* ---- creation and destruction */
kvp_sets_t *
kvp_sets_create(kvp_epoch_t *epoch)
{
    kvp_sets_t *s = calloc(1, sizeof *s);

    if (s == NULL) return NULL;
    s->epoch = epoch;
    s->numbers = 1;
    kvp_buf_init(&s->spare, 0);
    kvp_buf_init(&s->work, 0);
    grow_table(s);
    return s;
}

void
kvp_sets_destroy(kvp_sets_t *s)
{
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->cap; i++)
        if (s->table[i] != 0 && s->table[i] != UINT32_MAX) free(entry_at(s, s->table[i]));
    for (uint32_t i = 0; i < CHUNKS_MAX; i++)
        free((void *)atomic_load_explicit(&s->chunks[i], memory_order_relaxed));
    kvp_buf_fini(&s->spare);
    kvp_buf_fini(&s->work);
    free(s->table);
    free(s);
}

uint64_t
kvp_sets_bytes(const kvp_sets_t *s)
{
    return s->bytes;
}
