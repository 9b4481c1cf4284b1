/* SPDX-License-Identifier: Apache-2.0
 * What a key costs the master: memory (growth of this process, and what the parts count themselves), look-ups of batches
 * in random order, and the longest single operation while keys come and go. PoolKeys of 118 bytes, one extent each.
 * One thread. `index_bench [KEYS ...]`, by default 1000000 and 10000000.
 */
#include "common/clock.h"
#include "common/slab.h"
#include "master/core/catalog/index.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH 1000u
#define BATCHES 2000u
#define CHUNK_OBJECTS 200000u
#define SLOW_NS 100000u

typedef struct {
    kvp_objindex_t *index;
    kvp_slab_t **slabs; /* one for each CHUNK_OBJECTS */
    uint32_t n;
    uint32_t *oids;
    uint32_t *slots;
} pool_t;

typedef struct {
    uint64_t n, total_ns, most_ns, slow;
} times_t;

static uint64_t
rss_bytes(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (f == NULL || fscanf(f, "%lu %lu", &pages, &resident) != 2) resident = 0;
    if (f != NULL) fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t
mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint16_t
make_key(char *key, uint64_t i)
{
    static const char digits[] = "0123456789abcdef";
    int at = snprintf(key, KVP_KEY_MAX, "llama-8b@tp_rank:%u@pcp0@dcp0@pp_rank:0@group:00000001@", (unsigned)(i % 8));

    for (uint64_t word = 0; word < 4; word++)
        for (uint32_t shift = 0; shift < 64; shift += 4)
            key[at++] = digits[mix(i * 4 + word) >> shift & 15];
    return (uint16_t)at;
}

static kvp_digest_t
digest_of(uint64_t i)
{
    char key[KVP_KEY_MAX];
    uint16_t len = make_key(key, i);

    return kvp_key_digest(1, 0, key, len);
}

static void
count(times_t *t, uint64_t ns)
{
    t->n++;
    t->total_ns += ns;
    t->slow += ns > SLOW_NS;
    if (ns > t->most_ns) t->most_ns = ns;
}

static void
print_times(const char *what, const times_t *t)
{
    printf("  %-28s %8.0f ns on average, %8.1f us at most, %lu of %lu above 100 us\n", what,
           (double)t->total_ns / (double)t->n, (double)t->most_ns / 1e3, (unsigned long)t->slow, (unsigned long)t->n);
}

static void
add(pool_t *p, uint32_t i, times_t *t)
{
    kvp_slab_t *slab = p->slabs[i / CHUNK_OBJECTS];
    char key[KVP_KEY_MAX];
    uint16_t len = make_key(key, i);
    kvp_digest_t digest = kvp_key_digest(1, 0, key, len);
    uint64_t begin = kvp_now_ns(), offset;

    p->oids[i] = kvp_objindex_make(p->index, digest, key, len);
    kvp_objindex_link(p->index, p->oids[i], digest);
    if (kvp_slab_alloc(slab, 4096, p->oids[i], &p->slots[i], &offset) != KVP_OK) kvp_panic("a chunk is full");
    count(t, kvp_now_ns() - begin);
}

static void
drop(pool_t *p, uint32_t i, times_t *t)
{
    uint64_t begin = kvp_now_ns();

    kvp_objindex_unlink(p->index, p->oids[i]);
    kvp_objindex_free(p->index, p->oids[i]);
    kvp_slab_free(p->slabs[i / CHUNK_OBJECTS], p->slots[i]);
    count(t, kvp_now_ns() - begin);
}

/* Batches of random keys, of which the given share is there. The digests are made outside of what is timed. */
static void
find(const pool_t *p, uint32_t present_percent)
{
    kvp_digest_t digests[BATCH];
    uint32_t oids[BATCH];
    uint64_t ns = 0, found = 0, wanted = 0;

    for (uint64_t b = 0; b < BATCHES; b++) {
        uint64_t begin;

        for (uint64_t k = 0; k < BATCH; k++) {
            uint64_t r = mix(b * BATCH + k + 1);
            bool is_present = r % 100 < present_percent;

            wanted += is_present;
            digests[k] = digest_of((r >> 8) % p->n + (is_present ? 0 : p->n));
        }
        begin = kvp_now_ns();
        kvp_objindex_find_many(p->index, digests, BATCH, oids);
        ns += kvp_now_ns() - begin;
        for (uint32_t k = 0; k < BATCH; k++)
            found += oids[k] != KVP_OID_NONE;
    }
    if (found != wanted) kvp_panic("%lu keys found of %lu", (unsigned long)found, (unsigned long)wanted);
    printf("  find_many, %3u %% present      %8.1f ns a key\n", present_percent, (double)ns / (BATCH * BATCHES));
}

static uint64_t
counted_bytes(const pool_t *p)
{
    uint64_t bytes = kvp_objindex_memory_bytes(p->index);

    for (uint32_t i = 0; i <= (p->n - 1) / CHUNK_OBJECTS; i++)
        bytes += kvp_slab_memory_bytes(p->slabs[i]);
    return bytes;
}

static void
print_memory(const pool_t *p, const char *when, uint64_t rss, uint64_t heap, uint64_t counted)
{
    printf("  %-28s %8.1f bytes a key in the process, %.1f of them by malloc, %.1f counted\n", when,
           (double)(int64_t)(rss_bytes() - rss) / p->n, (double)(int64_t)(mallinfo2().uordblks - heap) / p->n,
           (double)(int64_t)(counted_bytes(p) - counted) / p->n);
}

static void
run(uint32_t n)
{
    pool_t p = {.index = kvp_objindex_create(1), .n = n};
    uint32_t chunks = (n - 1) / CHUNK_OBJECTS + 1;
    times_t adds = {0}, drops = {0};
    uint64_t rss, heap, counted;

    p.oids = malloc(n * sizeof *p.oids);
    p.slots = malloc(n * sizeof *p.slots);
    p.slabs = calloc(chunks, sizeof *p.slabs);
    if (p.oids == NULL || p.slots == NULL || p.slabs == NULL) kvp_panic("out of memory");
    memset(p.oids, 0xff, n * sizeof *p.oids); /* touched before memory is counted */
    memset(p.slots, 0xff, n * sizeof *p.slots);
    for (uint32_t i = 0; i < chunks; i++)
        if (kvp_slab_create((uint64_t)CHUNK_OBJECTS * 4096, CHUNK_OBJECTS, &p.slabs[i]) != KVP_OK)
            kvp_panic("no chunk");
    rss = rss_bytes();
    heap = mallinfo2().uordblks;
    counted = counted_bytes(&p);

    printf("%u keys\n", n);
    for (uint32_t i = 0; i < n; i++)
        add(&p, i, &adds);
    print_memory(&p, "memory when all are there", rss, heap, counted);
    find(&p, 0);
    find(&p, 50);
    find(&p, 100);
    for (uint32_t i = 0; i < n; i++)
        drop(&p, i, &drops);
    print_times("add", &adds);
    print_times("remove", &drops);
    print_memory(&p, "memory when all are gone", rss, heap, counted);

    for (uint32_t i = 0; i < chunks; i++)
        kvp_slab_destroy(p.slabs[i]);
    free(p.slabs);
    free(p.slots);
    free(p.oids);
    kvp_objindex_destroy(p.index);
}

int
main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++)
        run((uint32_t)strtoul(argv[i], NULL, 10));
    if (argc == 1) {
        run(1000000);
        run(10000000);
    }
    return 0;
}
