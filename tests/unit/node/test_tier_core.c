/* SPDX-License-Identifier: Apache-2.0
 * Histories of a device of the tier over a disk in memory that finishes in any order, tears writes at a crash, loses at
 * a power failure what was not synced, and flips bits. What is claimed: bytes that are given are right; what was
 * dropped is never back; after a crash what was durable is there. SEED and SEEDS in the environment: the first seed,
 * and how many. */
#include "node/tier/core.h"

#include "tests/transport/sanitizer.h"
#include "tests/unit/golden.h"

#include <math.h>
#include <string.h>

#define FILE_BYTES (6u << 20)
#define BLOCKS (FILE_BYTES / KVP_TIER_BLOCK)
#define DIGESTS 420u
#define STEPS 1500u
#define LIVES 10u
#define SEEDS(n) (IS_SANITIZED ? (n) / 4 : (n)) /* a sanitizer looks at the same lines in every seed */

/* ---- chance */
static uint64_t chance;

static uint64_t
draw(uint64_t n)
{
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return (chance * 0x2545F4914F6CDD1Dull >> 33) % n;
}

/* ---- the disk */
typedef enum { KILL, POWER, FLIPS } fault_t;

typedef struct {
    uint8_t *now, *safe; /* what reads see; what outlives a power failure */
    bool dirty[BLOCKS];
    kvp_list_t ios;
    uint32_t ios_n;
    fault_t fault;
} disk_t;

static void
disk_submit(void *arg, kvp_tier_io_t *io)
{
    disk_t *d = arg;

    assert_int_equal(io->off % KVP_TIER_BLOCK, 0);
    assert_int_equal(io->len % KVP_TIER_BLOCK, 0);
    assert_true(io->len > 0 && io->off + io->len <= FILE_BYTES);
    kvp_list_add_tail(&d->ios, &io->link);
    d->ios_n++;
}

static void
store(disk_t *d, const kvp_tier_io_t *io, uint64_t at)
{
    memcpy(d->now + io->off + at, io->buf + at, KVP_TIER_BLOCK);
    d->dirty[(io->off + at) / KVP_TIER_BLOCK] = true;
    if (!io->is_synced) return;
    memcpy(d->safe + io->off + at, io->buf + at, KVP_TIER_BLOCK);
    d->dirty[(io->off + at) / KVP_TIER_BLOCK] = false;
}

static void
disk_wait(void *arg)
{
    disk_t *d = arg;
    uint64_t nth = d->ios_n == 0 ? 0 : draw(d->ios_n);
    kvp_list_t *l = d->ios.next;

    if (d->ios_n == 0) return;
    while (nth-- > 0)
        l = l->next;
    kvp_tier_io_t *io = kvp_list_entry(l, kvp_tier_io_t, link);

    kvp_list_del(l);
    d->ios_n--;
    for (uint64_t at = 0; io->is_write && at < io->len; at += KVP_TIER_BLOCK)
        store(d, io, at);
    if (!io->is_write) memcpy(io->buf, d->now + io->off, io->len);
    io->err = KVP_OK;
    io->done(io);
}

static const kvp_tier_disk_ops_t disk_ops = {.submit = disk_submit, .wait = disk_wait};

/* What is under way is written in part; then the power fails, or it does not. */
static void
disk_crash(disk_t *d)
{
    kvp_list_foreach_safe (l, next, &d->ios) {
        kvp_tier_io_t *io = kvp_list_entry(l, kvp_tier_io_t, link);

        kvp_list_del(l);
        for (uint64_t at = 0; io->is_write && at < io->len; at += KVP_TIER_BLOCK)
            if (draw(2) == 0) store(d, io, at);
    }
    d->ios_n = 0;
    for (uint32_t b = 0; d->fault == POWER && b < BLOCKS; b++) {
        uint64_t at = (uint64_t)b * KVP_TIER_BLOCK;

        if (d->dirty[b] && draw(3) == 0) memcpy(d->now + at, d->safe + at, KVP_TIER_BLOCK);
        d->dirty[b] = false;
        memcpy(d->safe + at, d->now + at, KVP_TIER_BLOCK);
    }
    for (uint32_t i = 0; d->fault == FLIPS && i < 20; i++)
        d->now[draw(FILE_BYTES)] ^= (uint8_t)(1u << draw(8));
}

/* ---- the model */
#define VERSIONS_MAX 32u

typedef struct {
    uint64_t version; /* 0 = none: the state that is durable */
    bool may_be_gone; /* it was proposed, or a drop is not durable */
    uint64_t dropped; /* highest, durable */
    struct {
        uint64_t version, serial;
        bool is_drop;
    } todo[VERSIONS_MAX]; /* not known to be durable, in order */
    uint32_t todo_n;
} object_t;

typedef struct {
    kvp_tier_core_t *core;
    kvp_tier_core_conf_t conf;
    kvp_tier_stats_t stats;
    kvp_tier_room_t room;
    disk_t disk;
    object_t objects[DIGESTS];
    uint64_t versions;
    kvp_tier_proposal_t proposal;
    bool is_asked;
    uint32_t reading, seen, missed;
} world_t;

static kvp_digest_t
digest_of(uint32_t i)
{
    return (kvp_digest_t){.lo = i + 1, .hi = 77};
}

/* Half of them have one length, so that what two starts have written may lie at the same places. */
static uint64_t
len_of(uint32_t i, uint64_t version)
{
    uint64_t h = (version * 0x9E3779B97F4A7C15ull ^ i) >> 20;

    if (h % 2 == 0) return 3000;
    return h % 7 == 0 ? 1 + h / 7 % 100000 : 1 + h / 7 % 9000;
}

static void
fill(uint8_t *dst, uint32_t i, uint64_t version)
{
    uint64_t x = version << 8 | i;

    for (uint64_t at = 0; at < len_of(i, version); at++) {
        if (at % 8 == 0) x = x * 6364136223846793005ull + 1442695040888963407ull;
        dst[at] = (uint8_t)(x >> (at % 8 * 8));
    }
}

/* What is durable by now is taken over into the state. */
static void
settle(world_t *w)
{
    for (uint32_t i = 0; i < DIGESTS; i++) {
        object_t *o = &w->objects[i];
        uint32_t n = 0;

        for (; n < o->todo_n && kvp_tier_core_is_durable(w->core, o->todo[n].serial); n++) {
            if (!o->todo[n].is_drop) {
                o->version = o->todo[n].version;
                o->may_be_gone = false;
                continue;
            }
            o->dropped = kvp_max_u64(o->dropped, o->todo[n].version);
            if (o->version <= o->todo[n].version) o->version = 0;
        }
        memmove(o->todo, o->todo + n, (o->todo_n - n) * sizeof o->todo[0]);
        o->todo_n -= n;
    }
}

static uint64_t
indexed(const world_t *w, uint32_t i)
{
    const kvp_tier_entry_t *entry = kvp_tier_index_find(kvp_tier_core_index(w->core), digest_of(i));

    return entry == NULL ? 0 : entry->version;
}

/* After a start: each object is in a state that its history allows. */
static void
compare(world_t *w)
{
    for (uint32_t i = 0; i < DIGESTS; i++) {
        object_t *o = &w->objects[i];
        uint64_t found = indexed(w, i);
        bool is_right = found == o->version || (found == 0 && (o->may_be_gone || w->disk.fault != KILL));

        for (uint32_t t = 0; t < o->todo_n; t++)
            is_right |= o->todo[t].is_drop ? found == 0 : found == o->todo[t].version;
        if (w->disk.fault == KILL && !is_right)
            fail_msg("seed %lu, object %u: found version %lu, had %lu, %u not durable", (unsigned long)w->conf.secret,
                     i, (unsigned long)found, (unsigned long)o->version, o->todo_n);
        if (w->disk.fault != FLIPS && found != 0) assert_true(found > o->dropped);
        w->seen += found != 0 && found == o->version;
        o->may_be_gone = found != 0 && found != o->version; /* it may be torn */
        o->version = found;
        o->todo_n = 0;
    }
}

/* ---- steps */
typedef struct {
    kvp_tier_read_t read;
    world_t *w;
    kvp_tier_meta_t meta;
    uint32_t i;
    bool may_be_gone;
    uint8_t bytes[100000];
} reading_t;

static void
on_read(kvp_tier_read_t *read)
{
    reading_t *r = kvp_container_of(read, reading_t, read);
    uint8_t want[100000];

    r->w->reading--;
    if (read->err == KVP_OK) {
        fill(want, r->i, read->version);
        assert_int_equal(r->meta.len, len_of(r->i, read->version));
        assert_memory_equal(r->bytes, want, r->meta.len);
        assert_memory_equal(r->meta.key, "key", 3);
    } else {
        assert_true(read->err == KVP_NOT_FOUND || read->err == KVP_CORRUPT);
        if (read->err == KVP_CORRUPT) assert_true(r->may_be_gone || r->w->disk.fault != KILL);
        if (read->err == KVP_CORRUPT && r->w->objects[r->i].version == read->version)
            r->w->objects[r->i].may_be_gone = true;
    }
    free(r);
}

static void
read_one(world_t *w, uint32_t i)
{
    reading_t *r = calloc(1, sizeof *r);

    *r = (reading_t){.w = w, .i = i, .may_be_gone = w->objects[i].may_be_gone};
    r->read = (kvp_tier_read_t){.done = on_read,
                                .meta = &r->meta,
                                .dst = r->bytes,
                                .cap = sizeof r->bytes,
                                .digest = digest_of(i),
                                .version = indexed(w, i)};
    w->reading++;
    kvp_tier_core_read(w->core, &r->read);
}

static bool
no_longer(void *arg)
{
    return *(bool *)arg;
}

static void
write_one(world_t *w, uint32_t i)
{
    object_t *o = &w->objects[i];
    kvp_tier_meta_t meta = {.digest = digest_of(i), .version = w->versions + 1, .key_len = 3, .key = "key"};
    uint8_t bytes[100000];
    bool is_still = draw(10) != 0;
    uint64_t serial;
    kvp_err_t err;

    if (o->todo_n == VERSIONS_MAX) return;
    meta.len = len_of(i, meta.version);
    fill(bytes, i, meta.version);
    err = kvp_tier_core_write(w->core, &meta, bytes, no_longer, &is_still, &serial);
    if (err == KVP_OK || err == KVP_STALE) w->versions++;
    if (err == KVP_OK) assert_int_equal(indexed(w, i), meta.version);
    if (err == KVP_OK) o->todo[o->todo_n].version = meta.version;
    if (err == KVP_OK) o->todo[o->todo_n].serial = serial;
    if (err == KVP_OK) o->todo[o->todo_n++].is_drop = false;
    if (err != KVP_OK) assert_true(err == KVP_STALE || err == KVP_EAGAIN || err == KVP_NO_SPACE);
    w->missed += err == KVP_NO_SPACE;
}

static void
drop_one(world_t *w, uint32_t i)
{
    object_t *o = &w->objects[i];
    uint64_t serial, version = w->versions;
    kvp_err_t err;

    if (o->todo_n == VERSIONS_MAX) return;
    err = kvp_tier_core_drop(w->core, digest_of(i), version, &serial);
    if (err != KVP_OK) return;
    assert_int_equal(indexed(w, i), 0);
    o->todo[o->todo_n].version = version;
    o->todo[o->todo_n].serial = serial;
    o->todo[o->todo_n++].is_drop = true;
}

/* Two thirds are worth keeping, now and then there is no answer. */
static void
reclaim(world_t *w)
{
    uint8_t keep[KVP_TIER_PROPOSED_MAX];

    kvp_tier_core_step(w->core, UINT64_MAX);
    if (!w->is_asked && kvp_tier_core_propose(w->core, &w->proposal)) {
        w->is_asked = true;
        for (uint32_t n = 0; n < w->proposal.n; n++)
            w->objects[w->proposal.recs[n].digest.lo - 1].may_be_gone = true;
    } else if (w->is_asked && draw(4) == 0) {
        for (uint32_t n = 0; n < w->proposal.n; n++)
            keep[n] = draw(3) != 0;
        kvp_tier_core_answer(w->core, draw(8) == 0 ? NULL : keep, w->proposal.n);
        w->is_asked = false;
    }
}

/* One of those that were proposed last: its page may be on its way out. */
static uint32_t
proposed(const world_t *w)
{
    return (uint32_t)w->proposal.recs[draw(w->proposal.n)].digest.lo - 1;
}

static void
live(world_t *w)
{
    for (uint64_t n = draw(draw(2) == 0 ? STEPS : 16); n > 0; n--) { /* short ones end within their first writes */
        uint32_t i = (uint32_t)draw(DIGESTS);
        uint64_t what = draw(100);

        settle(w);
        reclaim(w);
        if (what < 35)
            write_one(w, i);
        else if (what < 42)
            drop_one(w, w->proposal.n > 0 && draw(2) == 0 ? proposed(w) : i);
        else if (what < 60)
            read_one(w, i);
        else if (what < 70)
            kvp_tier_core_flush(w->core);
        else
            disk_wait(&w->disk);
    }
    settle(w);
}

/* Reads that are under way at a crash are nobody's any more. */
static void
crash(world_t *w)
{
    kvp_list_foreach_safe (l, next, &w->disk.ios) {
        kvp_tier_io_t *io = kvp_list_entry(l, kvp_tier_io_t, link);

        if (io->is_write) continue;
        kvp_list_del(l);
        w->disk.ios_n--;
        memcpy(io->buf, w->disk.now + io->off, io->len);
        io->done(io);
        next = w->disk.ios.next; /* what was done may have begun another */
    }
    settle(w);
    disk_crash(&w->disk);
}

static void
start(world_t *w)
{
    w->core = kvp_tier_core_create(&w->conf);
    w->is_asked = false;
    assert_int_equal(kvp_tier_core_recover(w->core), KVP_OK);
}

static void
history(world_t *w, uint64_t seed, fault_t fault)
{
    uint8_t *now = w->disk.now, *safe = w->disk.safe;

    chance = seed * 0x9E3779B97F4A7C15ull + 1;
    memset(w, 0, sizeof *w);
    w->disk = (disk_t){.now = now, .safe = safe, .fault = fault};
    memset(now, 0, FILE_BYTES);
    memset(safe, 0, FILE_BYTES);
    kvp_list_init(&w->disk.ios);
    w->conf =
        (kvp_tier_core_conf_t){.epoch = 12345, .secret = seed, .ops = &disk_ops, .disk = &w->disk, .stats = &w->stats};
    kvp_tier_geo(FILE_BYTES, &w->conf.geo);
    kvp_tier_room_init(&w->room);
    w->conf.room = &w->room;
    w->versions = 1;
    start(w);
    for (uint32_t n = 0; n < LIVES; n++) {
        live(w);
        crash(w);
        kvp_tier_core_destroy(w->core);
        start(w);
        compare(w);
        for (uint32_t i = 0; i < DIGESTS; i++)
            if (draw(4) == 0) read_one(w, i);
        while (w->reading > 0)
            disk_wait(&w->disk);
    }
    crash(w);
    kvp_tier_core_destroy(w->core);
    for (uint32_t i = 0; i < KVP_TIER_ROOM_UNITS; i++)
        assert_int_equal(w->room.taken[i], 0);
    kvp_tier_room_fini(&w->room);
}

static void
histories(fault_t fault, uint64_t n)
{
    static world_t w;
    uint64_t from = getenv("SEED") != NULL ? strtoull(getenv("SEED"), NULL, 10) : 1;
    uint64_t seen = 0, reclaimed = 0, relocated = 0, missed = 0;

    if (getenv("SEEDS") != NULL) n = strtoull(getenv("SEEDS"), NULL, 10);
    w.disk.now = malloc(FILE_BYTES);
    w.disk.safe = malloc(FILE_BYTES);
    for (uint64_t seed = from; seed < from + n; seed++) {
        history(&w, seed, fault);
        seen += w.seen;
        missed += w.missed;
        reclaimed += w.stats.pages_reclaimed;
        relocated += w.stats.relocated;
    }
    print_message("found %lu, refused %lu, pages reclaimed %lu, relocated %lu\n", seen, missed, reclaimed, relocated);
    assert_true(seen > 0 && reclaimed > 0 && relocated > 0);
    free(w.disk.now);
    free(w.disk.safe);
}

TEST(test_histories_with_kills)
{
    histories(KILL, SEEDS(80));
}

TEST(test_histories_with_power_failures)
{
    histories(POWER, SEEDS(50));
}

TEST(test_histories_with_flipped_bits)
{
    histories(FLIPS, SEEDS(40));
}

/* ---- the index */
#define KEYS 400000u

static kvp_tier_entry_t
entry_of(uint64_t i)
{
    kvp_tier_entry_t entry = {
        .digest = {.lo = i << 30, .hi = 7}, .kind = KVP_TIER_RECORD, .units = 2}; /* as a peer may choose them */

    entry.version = (i + 1) & 0xFFFFFFFF;
    return entry;
}

TEST(test_index_with_many_keys)
{
    static kvp_tier_index_t index;
    uint64_t cursor = 0, n = 0;

    kvp_tier_index_init(&index, 1234567);
    for (uint64_t i = 0; i < KEYS; i++) {
        kvp_tier_entry_t entry = entry_of(i);

        assert_true(kvp_tier_index_put(&index, &entry));
    }
    assert_int_equal(index.n, KEYS);
    assert_in_range(index.bytes / KEYS, 32, 40);
    for (uint64_t i = 0; i < KEYS; i += 1 + i % 3)
        kvp_tier_index_remove(&index, kvp_tier_index_find(&index, entry_of(i).digest));
    for (uint64_t i = 0, next = 0; i < KEYS; i++) {
        const kvp_tier_entry_t *entry = kvp_tier_index_find(&index, entry_of(i).digest);

        if (i == next) assert_null(entry);
        if (i != next) assert_true(entry != NULL && entry->version == i + 1);
        if (i == next) next += 1 + i % 3;
        n += entry != NULL;
    }
    assert_int_equal(index.n, n);
    while (kvp_tier_index_next(&index, &cursor) != NULL)
        n--;
    assert_int_equal(n, 0);
    kvp_tier_index_fini(&index);
}

/* A life that appends n records of one length, of which only some blocks arrive. */
static void
life_with_blocks(world_t *w, uint32_t from, uint32_t n, bool (*arrives)(uint64_t block))
{
    uint8_t bytes[3000] = {1};
    kvp_tier_io_t *io;
    uint64_t serial;

    start(w);
    for (uint32_t i = from; i < from + n; i++) {
        kvp_tier_meta_t meta = {.digest = digest_of(i), .version = 5, .len = sizeof bytes, .key_len = 3, .key = "key"};

        assert_int_equal(kvp_tier_core_write(w->core, &meta, bytes, NULL, NULL, &serial), KVP_OK);
    }
    disk_wait(&w->disk); /* the page's header */
    kvp_tier_core_flush(w->core);
    assert_int_equal(w->disk.ios_n, 1);
    io = kvp_list_first(&w->disk.ios, kvp_tier_io_t, link);
    for (uint64_t at = 0; at < io->len; at += KVP_TIER_BLOCK)
        if (arrives(at / KVP_TIER_BLOCK)) store(&w->disk, io, at);
    kvp_list_del(&io->link);
    w->disk.ios_n = 0;
    kvp_tier_core_destroy(w->core);
}

static bool
is_behind_first(uint64_t block)
{
    return block > 0;
}

static bool
is_first(uint64_t block)
{
    return block == 0;
}

/* The third record of the first life lies in its second block, and begins where the second record of the next one ends:
 * after the first life it is not to be found, as the record before it is lost, and so it may not be there after the
 * second one either. */
TEST(test_what_a_start_left_behind_is_not_found_by_the_next)
{
    static world_t w;

    w.disk = (disk_t){.now = calloc(1, FILE_BYTES), .safe = calloc(1, FILE_BYTES)};
    kvp_list_init(&w.disk.ios);
    chance = 1;
    w.conf = (kvp_tier_core_conf_t){.epoch = 12345, .ops = &disk_ops, .disk = &w.disk, .stats = &w.stats};
    kvp_tier_geo(FILE_BYTES, &w.conf.geo);
    life_with_blocks(&w, 0, 4, is_behind_first);
    start(&w);
    assert_int_equal(kvp_tier_core_index(w.core)->n, 0);
    kvp_tier_core_destroy(w.core);
    life_with_blocks(&w, 10, 4, is_first);
    start(&w);
    assert_int_equal(indexed(&w, 2), 0);
    assert_int_equal(indexed(&w, 10), 5);
    kvp_tier_core_destroy(w.core);
    free(w.disk.now);
    free(w.disk.safe);
}

/* ---- how much fits */
static void
forget_submit(void *arg, kvp_tier_io_t *io)
{
    kvp_list_add_tail(arg, &io->link);
}

static void
forget_wait(void *arg)
{
    kvp_list_foreach_safe (l, next, (kvp_list_t *)arg) {
        kvp_tier_io_t *io = kvp_list_entry(l, kvp_tier_io_t, link);

        assert_true(io->is_write);
        kvp_list_del(l);
        io->done(io);
        next = ((kvp_list_t *)arg)->next; /* what was done may have begun another */
    }
}

/* Payload bytes of objects of that length that a file of that size takes before anything is to be given up. */
static uint64_t
room_in(uint64_t size, uint64_t len, const uint8_t *bytes)
{
    static const kvp_tier_disk_ops_t ops = {.submit = forget_submit, .wait = forget_wait};
    kvp_tier_stats_t stats = {0};
    kvp_list_t ios;
    kvp_tier_core_conf_t conf = {.epoch = 1, .ops = &ops, .disk = &ios, .stats = &stats};
    kvp_tier_core_t *core;
    uint64_t serial;

    kvp_list_init(&ios);
    kvp_tier_geo(size, &conf.geo);
    assert_true(conf.geo.size_bytes <= size);
    core = kvp_tier_core_create(&conf);
    for (uint64_t i = 1; !kvp_tier_core_is_short(core); i++) {
        kvp_tier_meta_t meta = {.digest = {.lo = i, .hi = 1}, .version = 1, .len = len, .key_len = 64};
        kvp_err_t err;

        while ((err = kvp_tier_core_write(core, &meta, bytes, NULL, NULL, &serial)) == KVP_EAGAIN)
            forget_wait(&ios);
        assert_int_equal(err, KVP_OK);
    }
    forget_wait(&ios);
    kvp_tier_core_destroy(core);
    return stats.write_bytes;
}

TEST(test_overhead_is_less_than_a_ninth)
{
    const uint64_t sizes[] = {64ull << 20, 460ull << 20, 3ull << 30}, lens[] = {16 << 10, 64 << 10, 1 << 20};
    uint8_t *bytes = calloc(1, 1 << 20);

    for (uint32_t s = 0; s < KVP_ARRAY_LEN(sizes); s++)
        for (uint32_t l = 0; l < KVP_ARRAY_LEN(lens); l++)
            assert_true(room_in(sizes[s], lens[l], bytes) > sizes[s] / 9 * 8);
    free(bytes);
}

/* ---- the budget */
#define HOUR_MS 3600000ull

/* Writes n objects of a page's third, or what is near to it. */
static void
write_thirds(world_t *w, uint32_t n, const uint8_t *bytes)
{
    for (uint32_t i = 0; i < n; i++) {
        kvp_tier_meta_t meta = {.digest = digest_of(i), .version = ++w->versions, .key_len = 3, .key = "key"};
        uint64_t serial;

        meta.len = w->conf.geo.page_bytes / 3 - 1000;
        assert_int_equal(kvp_tier_core_write(w->core, &meta, bytes, NULL, NULL, &serial), KVP_OK);
        kvp_tier_core_flush(w->core);
        while (w->disk.ios_n > 0)
            disk_wait(&w->disk);
    }
}

TEST(test_budget_is_not_full_again_after_a_start)
{
    static world_t w;
    uint8_t *bytes = calloc(1, FILE_BYTES);
    double page, day;

    w.disk = (disk_t){.now = calloc(1, FILE_BYTES), .safe = calloc(1, FILE_BYTES)};
    kvp_list_init(&w.disk.ios);
    w.conf = (kvp_tier_core_conf_t){.epoch = 12345, .ops = &disk_ops, .disk = &w.disk, .stats = &w.stats};
    kvp_tier_geo(FILE_BYTES, &w.conf.geo);
    page = (double)w.conf.geo.page_bytes;
    day = 8 * page;
    start(&w);
    assert_true(kvp_tier_core_budget_left(w.core, day) == day);
    kvp_tier_core_set_now(w.core, 1000 * HOUR_MS);
    write_thirds(&w, 12, bytes); /* four pages */
    kvp_tier_core_destroy(w.core);
    start(&w);
    kvp_tier_core_set_now(w.core, 1000 * HOUR_MS);
    assert_true(fabs(kvp_tier_core_budget_left(w.core, day) - 4 * page) < page / 4);
    kvp_tier_core_set_now(w.core, 1009 * HOUR_MS); /* three more by now */
    assert_true(fabs(kvp_tier_core_budget_left(w.core, day) - 7 * page) < page / 4);
    kvp_tier_core_set_now(w.core, 500 * HOUR_MS); /* the clock went back */
    assert_true(kvp_tier_core_budget_left(w.core, day) <= 4 * page + page / 4);
    kvp_tier_core_set_now(w.core, 1010 * HOUR_MS);
    write_thirds(&w, 60, bytes);
    assert_true(kvp_tier_core_budget_left(w.core, day) == 0);
    kvp_tier_core_set_now(w.core, 1016 * HOUR_MS);
    assert_true(fabs(kvp_tier_core_budget_left(w.core, day) - 2 * page) < page);
    kvp_tier_core_destroy(w.core);
    free(w.disk.now);
    free(w.disk.safe);
    free(bytes);
}

/* ---- the room */
/* Pieces that are there at once do not overlap; what does not fit is the heap's. */
TEST(test_room_gives_each_byte_to_one)
{
    static kvp_tier_room_t room;
    struct {
        uint8_t *at;
        uint64_t bytes;
    } pieces[64] = {{0}};
    uint32_t from_heap = 0, from_room = 0;

    kvp_tier_room_init(&room);
    chance = 7;
    for (uint32_t n = 0; n < 20000; n++) {
        uint32_t i = (uint32_t)draw(64);
        uint64_t bytes = (1 + draw(draw(3) == 0 ? 600 : 40)) * KVP_TIER_BLOCK;

        kvp_tier_room_give(&room, pieces[i].at);
        pieces[i].at = kvp_tier_room_take(&room, bytes);
        pieces[i].bytes = bytes;
        assert_non_null(pieces[i].at);
        assert_int_equal((uintptr_t)pieces[i].at % KVP_TIER_BLOCK, 0);
        if (pieces[i].at >= room.base && pieces[i].at < room.base + (32u << 20)) {
            from_room++;
            assert_true(pieces[i].at + bytes <= room.base + (32u << 20));
        } else {
            from_heap++;
        }
        for (uint32_t j = 0; j < 64; j++)
            assert_true(j == i || pieces[j].at == NULL || pieces[j].at + pieces[j].bytes <= pieces[i].at ||
                        pieces[i].at + bytes <= pieces[j].at);
    }
    assert_true(from_room > from_heap && from_heap > 100);
    for (uint32_t i = 0; i < 64; i++)
        kvp_tier_room_give(&room, pieces[i].at);
    for (uint32_t i = 0; i < KVP_TIER_ROOM_UNITS; i++)
        assert_int_equal(room.taken[i], 0);
    kvp_tier_room_fini(&room);
}

/* Bytes of a device, as any later version has to read them. */
TEST(test_format_stays)
{
    static uint8_t bytes[3 * 512];
    kvp_tier_super_t super = {.identity = 1,
                              .generation = 3,
                              .devices = 2,
                              .pages = 48,
                              .page_bytes = 1388544,
                              .size_bytes = 64 << 20,
                              .epoch = 77,
                              .name = "node-1"};
    kvp_tier_page_t page = {.epoch = 77,
                            .number = 50,
                            .opened_ms = 1000,
                            .durable_page = 49,
                            .durable_at = 4096,
                            .run = 2,
                            .first = 128,
                            .table_at = 192};
    kvp_tier_rec_t rec = {.epoch = 77,
                          .at = 3,
                          .kind = KVP_TIER_RECORD,
                          .flags = 2,
                          .digest = {.lo = 5, .hi = 6},
                          .version = 7,
                          .page = 50,
                          .len = 100};

    memset(super.pool_id, 1, 16);
    memset(super.uuid, 2, 16);
    kvp_tier_super_seal(&super);
    memcpy(bytes, &super, sizeof super);
    page.table_bytes = 4096;
    page.runs_at[1] = 8192;
    kvp_tier_page_seal(&page);
    memcpy(bytes + 512, &page, sizeof page);
    rec.key_hash2 = 8;
    rec.lineage = (kvp_wire_lineage_t){.sequence = 9, .parent = 10, .depth = 11, .is_told = 1};
    rec.tenant = 12;
    rec.ns_epoch = 13;
    rec.run = 2;
    rec.key_len = 3;
    for (uint32_t i = 0; i < 100; i++)
        bytes[1400 + i] = (uint8_t)i;
    kvp_tier_rec_build(bytes + 1024, &rec, "key", bytes + 1400);
    kvp_tier_rec_seal(bytes + 1024, &rec);
    memset(bytes + 1400, 0, sizeof bytes - 1400);
    check_golden("tier", bytes, sizeof bytes);
}

TEST_MAIN()
