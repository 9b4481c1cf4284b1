/* SPDX-License-Identifier: Apache-2.0
 * The estimator of miss-ratio curves. Every tracked key has a position: later used keys have higher ones. Two Fenwick
 * trees over positions sum the bytes of the keys that are tracked by hash, and of the hot ones. */
#include "master/core/base/curve.h"

#include "common/pages.h"
#include "proto/wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NODES (KVP_CURVE_SAMPLES + KVP_CURVE_HOT)
#define POSITIONS 32768u /* limit of the positions; a power of two, well above NODES */
#define POSITIONS_FIRST (4 * KVP_CURVE_HOT)
#define HEADS 32768u
#define NONE UINT32_MAX
#define FILTER_BITS 16384u /* bits of a Bloom filter for the hot keys, which fits in the first-level cache */
/* cells of Space-Saving (Metwally et al., 2005), an algorithm that finds the keys with the most uses */
#define CELLS 1024u
#define CELL_HEADS 2048u
/* the hot keys are chosen again after this many counted uses */
#define CELL_ROUND_FIRST 512u
#define CELL_ROUND_LATER 1024u
#define HOT_MIN 6u /* a key becomes hot only if its count is higher than this */
#define SKIP_FIRST 16u /* every 16th use is counted for the hot keys, and later every 128th */
#define SKIP_LATER 128u
#define SKIP_CHANGE (1u << 20)
#define OCTAVE 32u /* buckets for each doubling of the distance */
#define LOW_BITS 12u /* distances below 2^12 bytes are in the first bucket */
#define BUCKETS (OCTAVE * 40u)
#define WINDOW_NS 100000000ull
#define HALF_NS (6ull * 3600 * 1000000000)

typedef struct {
    uint64_t hash;
    uint64_t bytes;
    uint32_t position; /* 0 = the key was not used since it became hot */
    uint32_t next; /* the next node of the same hash bucket, or of the free list */
    uint32_t heap_at; /* place in the heap of the sampled keys, from 1; 0 = a hot key; NONE = the node is unused */
} node_t;

typedef struct {
    uint64_t sampled, hot;
} bytes_t;

typedef struct {
    uint64_t hash;
    uint32_t count, error; /* Space-Saving's count, and the part of it that may belong to earlier keys of the cell */
    uint32_t next;
} cell_t;

struct kvp_curve {
    uint64_t threshold; /* keys with a hash below it are sampled */
    double weight; /* weight of one sampled key: the number of keys that it represents */
    node_t nodes[NODES];
    uint32_t heads[HEADS], free_node;
    uint32_t heap[KVP_CURVE_SAMPLES + 2], heap_n; /* nodes by falling hash, from 1 */
    bytes_t tree[POSITIONS + 1]; /* the two Fenwick trees in one array, because a distance needs both */
    bytes_t sum;
    uint32_t at[POSITIONS + 1]; /* position -> node; NONE = nothing */
    uint32_t position; /* the highest one in use */
    /* number of positions, a power of two; when all are used, renumber_nodes numbers the keys again */
    uint32_t positions;
    uint32_t dropped; /* number of nodes ever dropped */
    uint64_t filter[FILTER_BITS / 64];

    cell_t cells[CELLS];
    uint32_t cell_heads[CELL_HEADS], cells_n, counted_n, skip;
    uint32_t hot_min; /* the least count of a hot key */

    double refs, hot_refs; /* number of uses; number of uses of hot keys */
    double weights; /* sum of the weights of the uses of sampled keys */
    /* uses by distance; first uses have no distance and are not in them */
    double sampled_hits[BUCKETS], hot_hits[BUCKETS];
    double mean_bytes;
    uint64_t uses; /* number of uses, nothing forgotten */

    uint64_t tracked_max, tracked, hot_tracked, window_ns, faded_ns;
    uint64_t run[KVP_BATCH_MAX]; /* hashes of the tracked keys in the current look-up */
    uint32_t run_nodes[KVP_BATCH_MAX];
};

/* ---- tracked keys */
static bool
is_hot(const node_t *node)
{
    return node->heap_at == 0;
}

/* Returns the sum to which the node's bytes belong: that of the hot keys or that of the sampled keys. */
static uint64_t *
bytes_of(bytes_t *sums, const node_t *node)
{
    return is_hot(node) ? &sums->hot : &sums->sampled;
}

static uint32_t *
head_of(kvp_curve_t *c, uint64_t hash)
{
    return &c->heads[hash % HEADS];
}

static uint32_t
find_node(kvp_curve_t *c, uint64_t hash)
{
    uint32_t i = *head_of(c, hash);

    while (i != NONE && c->nodes[i].hash != hash)
        i = c->nodes[i].next;
    return i;
}

/* Adds (or, with `sign` -1, takes away) the node's bytes at its position. */
static void
weigh_node(kvp_curve_t *c, const node_t *node, int sign)
{
    const uint64_t bytes = sign > 0 ? node->bytes : -node->bytes;

    if (node->position == 0) return;
    *bytes_of(&c->sum, node) += bytes;
    for (uint32_t at = node->position; at <= c->positions; at += at & -at)
        *bytes_of(&c->tree[at], node) += bytes;
}

static void
heap_set(kvp_curve_t *c, uint32_t at, uint32_t i)
{
    c->heap[at] = i;
    c->nodes[i].heap_at = at;
}

static void
heap_sift(kvp_curve_t *c, uint32_t at)
{
    const uint32_t i = c->heap[at];

    for (; at > 1 && c->nodes[c->heap[at / 2]].hash < c->nodes[i].hash; at /= 2)
        heap_set(c, at, c->heap[at / 2]);
    for (uint32_t child = 2 * at; child <= c->heap_n; child = 2 * at) {
        if (child < c->heap_n && c->nodes[c->heap[child + 1]].hash > c->nodes[c->heap[child]].hash) child++;
        if (c->nodes[c->heap[child]].hash <= c->nodes[i].hash) break;
        heap_set(c, at, c->heap[child]);
        at = child;
    }
    heap_set(c, at, i);
}

static void
heap_add(kvp_curve_t *c, uint32_t i)
{
    c->heap[++c->heap_n] = i;
    heap_sift(c, c->heap_n);
}

static void
heap_del(kvp_curve_t *c, uint32_t i)
{
    const uint32_t at = c->nodes[i].heap_at, last = c->heap[c->heap_n--];

    if (last != i) {
        c->heap[at] = last;
        heap_sift(c, at);
    }
    c->nodes[i].heap_at = 0;
}

/* Takes an unused node for the hash. The node is in no heap, so it counts as hot until heap_add. */
static uint32_t
make_node(kvp_curve_t *c, uint64_t hash)
{
    const uint32_t i = c->free_node;

    c->free_node = c->nodes[i].next;
    c->nodes[i] = (node_t){.hash = hash, .bytes = (uint64_t)c->mean_bytes, .next = *head_of(c, hash)};
    *head_of(c, hash) = i;
    return i;
}

static void
drop_node(kvp_curve_t *c, uint32_t i)
{
    node_t *node = &c->nodes[i];
    uint32_t *link = head_of(c, node->hash);

    weigh_node(c, node, -1);
    if (node->position != 0) c->at[node->position] = NONE;
    if (!is_hot(node)) heap_del(c, i);
    while (*link != i)
        link = &c->nodes[*link].next;
    *link = node->next;
    node->next = c->free_node;
    node->heap_at = NONE;
    c->free_node = i;
    c->dropped++;
}

/* Lowers the threshold, and drops the sampled keys at or above it. */
static void
set_threshold(kvp_curve_t *c, uint64_t threshold)
{
    c->threshold = threshold;
    c->weight = 0x1p64 / (double)threshold;
    while (c->heap_n > 0 && c->nodes[c->heap[1]].hash >= threshold)
        drop_node(c, c->heap[1]);
}

/* Numbers all positions again, without gaps. Few keys get few positions, so that the trees need little of the
 * processor's cache. */
static void
renumber_nodes(kvp_curve_t *c)
{
    uint32_t to = 0;

    for (c->positions = POSITIONS_FIRST; c->positions < kvp_min_u64(POSITIONS, 4 * c->heap_n);)
        c->positions *= 2;
    memset(c->tree, 0, (c->positions + 1) * sizeof c->tree[0]);
    for (uint32_t from = 1; from <= c->position; from++) {
        const uint32_t i = c->at[from];

        if (i == NONE) continue;
        c->at[from] = NONE;
        c->at[++to] = i;
        c->nodes[i].position = to;
        *bytes_of(&c->tree[to], &c->nodes[i]) = c->nodes[i].bytes;
    }
    for (uint32_t at = 1; at <= c->positions; at++) {
        const uint32_t up = at + (at & -at);

        if (up > c->positions) continue;
        c->tree[up].sampled += c->tree[at].sampled;
        c->tree[up].hot += c->tree[at].hot;
    }
    c->position = to;
}

static void
touch_node(kvp_curve_t *c, uint32_t i)
{
    node_t *node = &c->nodes[i];

    if (c->position == c->positions) renumber_nodes(c);
    weigh_node(c, node, -1);
    if (node->position != 0) c->at[node->position] = NONE;
    node->position = ++c->position;
    c->at[node->position] = i;
    weigh_node(c, node, 1);
}

/* Returns the size of the smallest LRU cache that would still have the key: the bytes of the key and of all keys used
 * since. */
static double
distance_of(const kvp_curve_t *c, const node_t *node)
{
    bytes_t since = c->sum;

    for (uint32_t at = node->position; at > 0; at &= at - 1) {
        since.sampled -= c->tree[at].sampled;
        since.hot -= c->tree[at].hot;
    }
    return (double)since.sampled * c->weight + (double)since.hot + (double)node->bytes;
}

/* ---- the histogram */
static uint32_t
bucket_of(double bytes)
{
    const double at = (log2(bytes) - LOW_BITS) * OCTAVE;

    return at <= 0 ? 0 : at >= BUCKETS - 1 ? BUCKETS - 1 : (uint32_t)at;
}

/* ---- hot keys: the keys with the most uses */
static bool
may_be_hot(const kvp_curve_t *c, uint64_t hash)
{
    return (c->filter[hash % FILTER_BITS / 64] >> (hash % 64) & 1) != 0;
}

static void
promote_key(kvp_curve_t *c, uint64_t hash)
{
    uint32_t i = find_node(c, hash);

    c->filter[hash % FILTER_BITS / 64] |= 1ull << (hash % 64);
    if (i == NONE) {
        (void)make_node(c, hash);
        return;
    }
    if (is_hot(&c->nodes[i])) return;
    weigh_node(c, &c->nodes[i], -1);
    heap_del(c, i);
    weigh_node(c, &c->nodes[i], 1);
}

/* Makes a hot key a sampled key; drops it if its hash is not below the threshold. */
static void
demote_node(kvp_curve_t *c, uint32_t i)
{
    if (c->nodes[i].hash >= c->threshold || c->nodes[i].position == 0) {
        drop_node(c, i);
        return;
    }
    weigh_node(c, &c->nodes[i], -1);
    heap_add(c, i);
    weigh_node(c, &c->nodes[i], 1);
    if (c->heap_n > KVP_CURVE_SAMPLES) set_threshold(c, c->nodes[c->heap[1]].hash);
}

static int
by_count(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

static const cell_t *
cell_at(const kvp_curve_t *c, uint64_t hash)
{
    uint32_t i = c->cell_heads[hash % CELL_HEADS];

    while (i != NONE && c->cells[i].hash != hash)
        i = c->cells[i].next;
    return i == NONE ? NULL : &c->cells[i];
}

/* Chooses the hot keys again: the keys with the highest counts, without the parts that may belong to other keys. */
static void
choose_hot(kvp_curve_t *c)
{
    uint32_t counts[CELLS], least;

    for (uint32_t i = 0; i < c->cells_n; i++)
        counts[i] = c->cells[i].count - c->cells[i].error;
    qsort(counts, c->cells_n, sizeof counts[0], by_count);
    least = c->cells_n > KVP_CURVE_HOT ? counts[KVP_CURVE_HOT] : 0;
    least = (uint32_t)kvp_max_u64(least, kvp_max_u64(HOT_MIN, c->hot_min));
    memset(c->filter, 0, sizeof c->filter);
    /* first the keys that are not hot any more, so that new hot keys have nodes */
    for (uint32_t i = 0; i < NODES; i++) {
        const cell_t *cell;

        if (!is_hot(&c->nodes[i])) continue;
        cell = cell_at(c, c->nodes[i].hash);
        if (cell == NULL || cell->count - cell->error <= least) demote_node(c, i);
    }
    for (uint32_t i = 0; i < c->cells_n; i++)
        if (c->cells[i].count - c->cells[i].error > least) promote_key(c, c->cells[i].hash);
}

static void
link_cell(kvp_curve_t *c, uint32_t i)
{
    uint32_t *head = &c->cell_heads[c->cells[i].hash % CELL_HEADS];

    c->cells[i].next = *head;
    *head = i;
}

static void
unlink_cell(kvp_curve_t *c, uint32_t i)
{
    uint32_t *link = &c->cell_heads[c->cells[i].hash % CELL_HEADS];

    while (*link != i)
        link = &c->cells[*link].next;
    *link = c->cells[i].next;
}

/* Counts one use of the key in Space-Saving: a key without a cell takes the cell with the least count. */
static void
count_use(kvp_curve_t *c, uint64_t hash)
{
    cell_t *cell = (cell_t *)cell_at(c, hash);

    if (cell == NULL) {
        uint32_t at = c->cells_n, least = 0;

        if (at == CELLS) { /* takes the least of 16 cells, because a search of all cells would cost too much */
            at = (uint32_t)(hash >> 20) % CELLS;
            least = c->cells[at].count;
            for (uint32_t i = 1; i < 16; i++) {
                const uint32_t other = (at + i * 61) % CELLS;

                if (c->cells[other].count < least) {
                    least = c->cells[other].count;
                    at = other;
                }
            }
            unlink_cell(c, at);
        } else {
            c->cells_n++;
        }
        cell = &c->cells[at];
        *cell = (cell_t){.hash = hash, .count = least, .error = least};
        link_cell(c, at);
    }
    cell->count++;
    if (++c->counted_n % (c->uses < SKIP_CHANGE ? CELL_ROUND_FIRST : CELL_ROUND_LATER) == 0) choose_hot(c);
}

/* ---- uses */
static uint64_t
hash_of(kvp_digest_t digest)
{
    return digest.hi; /* the digest is a hash already; the hash tables of objects use its other half */
}

/* Adds one use of the key to the histogram. In a prefix look-up the distance is at least `longest`, the largest
 * distance of the keys before. Returns the new largest distance. */
static double
count_key(kvp_curve_t *c, uint32_t i, double longest)
{
    const bool is_of_hot = i != NONE && is_hot(&c->nodes[i]);

    c->tracked++;
    if (is_of_hot) {
        c->hot_tracked++;
        c->hot_refs++;
        if (c->nodes[i].position == 0) { /* the key's last use is unknown: the use counts as an average one */
            c->hot_refs--;
            c->refs--;
            return longest;
        }
    }
    if (i == NONE) {
        c->weights += c->weight;
        return INFINITY;
    }
    longest = fmax(longest, distance_of(c, &c->nodes[i]));
    if (is_of_hot) {
        if (longest < INFINITY) c->hot_hits[bucket_of(longest)]++;
    } else {
        c->weights += c->weight;
        if (longest < INFINITY) c->sampled_hits[bucket_of(longest)] += c->weight;
    }
    return longest;
}

/* Tracks a new key. */
static uint32_t
add_sampled(kvp_curve_t *c, uint64_t hash)
{
    uint32_t i;

    if (c->heap_n == KVP_CURVE_SAMPLES) set_threshold(c, c->nodes[c->heap[1]].hash);
    if (hash >= c->threshold) return NONE;
    i = make_node(c, hash);
    heap_add(c, i);
    return i;
}

void
kvp_curve_ask(kvp_curve_t *c, const kvp_digest_t *digests, uint32_t n, bool is_prefix)
{
    const uint32_t skip = c->uses < SKIP_CHANGE ? SKIP_FIRST : SKIP_LATER;
    double longest = 0;
    uint32_t tracked = 0, dropped;

    c->refs += n;
    c->uses += n;
    for (uint32_t i = 0; i < n; i++) { /* without a branch, because the processor could not predict it */
        const uint64_t hash = hash_of(digests[i]);

        c->run[tracked] = hash;
        tracked += (hash < c->threshold) | may_be_hot(c, hash);
    }
    for (; c->skip < n; c->skip += skip)
        count_use(c, hash_of(digests[c->skip]));
    c->skip -= n;
    dropped = c->dropped;
    for (uint32_t k = 0; k < tracked; k++)
        c->run_nodes[k] = find_node(c, c->run[k]);
    /* Computes all distances before it moves any key, because all keys of a look-up see the same cache. */
    for (uint32_t k = 0; k < tracked; k++) {
        const uint32_t i = c->run_nodes[k];
        double after;

        if (i == NONE && c->run[k] >= c->threshold) continue; /* the filter of hot keys was wrong */
        after = count_key(c, i, is_prefix ? longest : 0);
        if (is_prefix) longest = after;
    }
    for (uint32_t k = 0; k < tracked; k++) {
        const uint64_t hash = c->run[k];
        uint32_t i = c->run_nodes[k];

        /* searches again if the look-up may contain the key twice, or if the key's node was dropped */
        if (i == NONE || c->dropped != dropped) i = find_node(c, hash);
        if (i == NONE && hash < c->threshold) i = add_sampled(c, hash);
        if (i != NONE) touch_node(c, i);
    }
}

void
kvp_curve_read(kvp_curve_t *c, uint32_t reads)
{
    c->refs += reads; /* they count as hits of every cache */
    c->hot_refs += reads;
    c->hot_hits[0] += reads;
}

void
kvp_curve_put(kvp_curve_t *c, kvp_digest_t digest, uint64_t bytes)
{
    const uint64_t hash = hash_of(digest);
    uint32_t i;

    c->mean_bytes += ((double)bytes - c->mean_bytes) / (c->mean_bytes == 0 ? 1 : 256);
    if (hash >= c->threshold && !may_be_hot(c, hash)) return;
    i = find_node(c, hash);
    if (i == NONE && hash < c->threshold) {
        i = add_sampled(c, hash);
        if (i != NONE) touch_node(c, i);
    }
    if (i == NONE || c->nodes[i].bytes == bytes) return;
    weigh_node(c, &c->nodes[i], -1);
    c->nodes[i].bytes = bytes;
    weigh_node(c, &c->nodes[i], 1);
}

/* ---- time */
static void
fade_counts(kvp_curve_t *c, double by)
{
    c->refs *= by;
    c->hot_refs *= by;
    c->weights *= by;
    for (uint32_t i = 0; i < BUCKETS; i++) {
        c->sampled_hits[i] *= by;
        c->hot_hits[i] *= by;
    }
}

void
kvp_curve_tick(kvp_curve_t *c, uint64_t now_ns)
{
    if (c->faded_ns == 0) c->faded_ns = now_ns;
    if (now_ns - c->faded_ns >= HALF_NS / 64) {
        fade_counts(c, exp2(-(double)(now_ns - c->faded_ns) / (double)HALF_NS));
        c->faded_ns = now_ns;
    }
    if (now_ns - c->window_ns < WINDOW_NS) return;
    if (c->tracked_max > 0 && c->window_ns > 0 &&
        (double)c->tracked > (double)c->tracked_max * (double)(now_ns - c->window_ns) * 1e-9) {
        if (c->hot_tracked > c->tracked / 2) {
            c->hot_min = 2 * (uint32_t)kvp_max_u64(c->hot_min, HOT_MIN);
            choose_hot(c);
        } else {
            set_threshold(c, c->threshold / 2);
        }
    }
    c->tracked = c->hot_tracked = 0;
    c->window_ns = now_ns;
}

/* ---- answers */
static double
sum_to(const double *hits, double end)
{
    double sum = 0;
    uint32_t i = 0;

    for (; i + 1 <= end && i < BUCKETS; i++)
        sum += hits[i];
    return i < BUCKETS ? sum + hits[i] * (end - i) : sum;
}

double
kvp_curve_hits(const kvp_curve_t *c, uint64_t bytes)
{
    const double end = bytes == 0 ? 0 : (log2((double)bytes) - LOW_BITS) * OCTAVE;
    const double others = c->refs - c->hot_refs; /* uses of keys that are not hot */
    double hits = sum_to(c->hot_hits, end);

    if (c->refs < 1) return 0;
    if (c->weights > 0) hits += sum_to(c->sampled_hits, end) * (others / c->weights);
    return fmin(1, fmax(0, hits / c->refs));
}

double
kvp_curve_asked(const kvp_curve_t *c)
{
    return c->refs;
}

uint32_t
kvp_curve_samples(const kvp_curve_t *c)
{
    return c->heap_n;
}

kvp_curve_t *
kvp_curve_create(uint64_t tracked_max)
{
    kvp_curve_t *c = kvp_table_alloc(1, sizeof *c);

    if (c == NULL) kvp_panic("out of memory: a miss-ratio curve");
    set_threshold(c, UINT64_MAX);
    c->positions = POSITIONS_FIRST;
    c->tracked_max = tracked_max;
    memset(c->heads, 0xff, sizeof c->heads);
    memset(c->cell_heads, 0xff, sizeof c->cell_heads);
    memset(c->at, 0xff, sizeof c->at);
    for (uint32_t i = 0; i < NODES; i++)
        c->nodes[i] = (node_t){.next = i + 1, .heap_at = NONE};
    c->free_node = 0;
    return c;
}

void
kvp_curve_destroy(kvp_curve_t *c)
{
    if (c != NULL) kvp_table_free(c, 1, sizeof *c);
}
