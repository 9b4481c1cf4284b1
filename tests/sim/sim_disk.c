/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim_disk.h"

#include "common/buf.h"
#include "proto/jrec.h"
#include "tests/sim/sim_oracle.h"
#include "tests/sim/sim_standby.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 64u
#define TENANTS 2u
#define SEGMENTS 256u
#define SNAPSHOT_PER_MILLE 60u /* of the times when something has become durable */

/* A key and a version. */
typedef struct fact {
    kvp_digest_t digest;
    uint64_t version;
    struct fact *next;
} fact_t;

/* What a journal says, read from its first record on. */
typedef struct {
    bool is_whole, is_anew;
    fact_t *known[BUCKETS];
    fact_t *gone[BUCKETS]; /* versions up to which all are */
    uint64_t min_version[TENANTS];
    uint64_t oldest; /* what has a lower generation and is not known is not believed */
    uint8_t segments[SEGMENTS][16]; /* by their numbers: the uuids of those that are not over */
} told_t;

struct disk {
    kvp_buf_t file;
    uint64_t from; /* position of its first byte */
    uint64_t written, writing; /* positions; what is on its way is in front of writing; 0 = nothing is */
    uint64_t synced, syncing; /* synced: what the standby has, too, where that is waited for */
    uint64_t flushed; /* what is on this disk for good */
    uint64_t seq; /* draws latencies, */
    uint64_t life; /* and this ends with the master */
    bool is_stuck;
    bool may_lack_end; /* its power was lost */
    bool is_torn; /* it ends in the middle of a record, and the records behind that are lost as well */
    uint64_t read_to; /* position up to which commits were noted */
    uint64_t read_check;
    fact_t *said[BUCKETS];
    bool is_relied_on;
    told_t found; /* by the master that runs, when it began */
    uint64_t sure_to; /* position up to which what is synced was read */
    uint64_t sure_check;
    told_t sure; /* what it says */
};

static rng_t
chance(const sim_t *s)
{
    return rng_fork(s->plan->seed, 40, s->disk->seq);
}

/* ---- what the journal says */
static fact_t **
bucket(fact_t **table, kvp_digest_t digest)
{
    return &table[(digest.lo ^ digest.lo >> 32) % BUCKETS];
}

static fact_t *
fact_add(sim_t *s, fact_t **table, kvp_digest_t digest, uint64_t version)
{
    fact_t **at = bucket(table, digest), *fact = sim_alloc(s, sizeof *fact);

    *fact = (fact_t){digest, version, *at};
    *at = fact;
    return fact;
}

static fact_t *
fact_find(fact_t *const *table, kvp_digest_t digest)
{
    fact_t *f = *bucket((fact_t **)table, digest);

    while (f != NULL && !kvp_digest_eq(f->digest, digest))
        f = f->next;
    return f;
}

static void
fold_gone(sim_t *s, told_t *told, kvp_digest_t digest, uint64_t version)
{
    fact_t *f = fact_find(told->gone, digest);

    if (f == NULL) f = fact_add(s, told->gone, digest, 0);
    f->version = kvp_max_u64(f->version, version);
}

static void
fold(sim_t *s, const kvp_jrec_any_t *rec, told_t *told)
{
    fact_t *f = fact_find(told->known, rec->commit.digest);

    switch ((kvp_jrec_kind_t)rec->head.kind) {
    case KVP_JREC_BASE:
        if (told->is_whole && rec->term.is_anew == 0) break;
        told->is_whole = false;
        told->is_anew = rec->term.is_anew != 0;
        memset(told->known, 0, sizeof told->known);
        memset(told->segments, 0, sizeof told->segments);
        break;
    case KVP_JREC_WHOLE:
        told->is_whole = true;
        break;
    case KVP_JREC_COMMIT:
        if (f != NULL && f->version != 0 && f->version < rec->commit.version) fold_gone(s, told, f->digest, f->version);
        if (told->is_anew && !told->is_whole) fold_gone(s, told, rec->commit.digest, rec->commit.version - 1);
        if (f == NULL) f = fact_add(s, told->known, rec->commit.digest, 0);
        f->version = rec->commit.version;
        break;
    case KVP_JREC_GONE:
        if (f != NULL && f->version <= rec->gone.version) f->version = 0;
        fold_gone(s, told, rec->gone.digest, rec->gone.version - (rec->gone.why == KVP_GONE_LOST));
        break;
    case KVP_JREC_TENANT:
        told->min_version[rec->tenant.tenant] =
            kvp_max_u64(told->min_version[rec->tenant.tenant], rec->tenant.min_version);
        break;
    case KVP_JREC_SEGMENT:
        memcpy(told->segments[rec->segment.number % SEGMENTS], rec->segment.uuid, sizeof rec->segment.uuid);
        break;
    case KVP_JREC_SEGMENT_OVER:
        memset(told->segments[rec->over.number % SEGMENTS], 0, sizeof told->segments[0]);
        break;
    case KVP_JREC_OLDEST:
        told->oldest = rec->oldest.generation;
        break;
    case KVP_JREC_TERM:
    case KVP_JREC_DRAIN:
        break;
    }
}

static bool
knows(const told_t *told, uint32_t tenant, kvp_digest_t digest, uint64_t version)
{
    const fact_t *f = fact_find(told->known, digest);

    return f != NULL && f->version == version && version > told->min_version[tenant];
}

/* Calls fn for each record in front of that position; from where, and behind which check, the two say. */
static void
walk(sim_t *s, uint64_t *at, uint64_t *check, uint64_t to,
     void (*fn)(sim_t *s, const kvp_jrec_any_t *rec, told_t *told), told_t *told)
{
    const disk_t *d = s->disk;

    while (*at < to) {
        kvp_jrec_any_t rec;
        size_t used;

        if (kvp_jrec_read(d->file.data + (*at - d->from), to - *at, *check, &rec, &used) != KVP_OK || used == 0) {
            sim_fail(s, "WIRE", "the journal has no record at %lu", (unsigned long)*at);
            return;
        }
        fn(s, &rec, told);
        *at += used;
        *check = rec.head.check;
    }
}

static void
note(sim_t *s, const kvp_jrec_any_t *rec, told_t *told)
{
    (void)told;
    if (rec->head.kind == KVP_JREC_BASE && rec->term.is_anew != 0) s->disk->is_relied_on = false;
    if (rec->head.kind == KVP_JREC_WHOLE) s->disk->is_relied_on = true;
    if (rec->head.kind == KVP_JREC_COMMIT) (void)fact_add(s, s->disk->said, rec->commit.digest, rec->commit.version);
}

bool
disk_judges(const sim_t *s)
{
    return s->disk->found.is_whole && !s->disk->may_lack_end;
}

bool
disk_says_gone(const sim_t *s, kvp_digest_t digest, uint64_t version)
{
    const fact_t *f = fact_find(s->disk->found.gone, digest);

    return f != NULL && version <= f->version;
}

bool
disk_has_bumped(const sim_t *s, uint32_t tenant, uint64_t version)
{
    return version <= s->disk->found.min_version[tenant];
}

bool
disk_knows(const sim_t *s, uint32_t tenant, kvp_digest_t digest, uint64_t version)
{
    return knows(&s->disk->found, tenant, digest, version);
}

bool
disk_has_synced_gone(const sim_t *s, uint32_t tenant, kvp_digest_t digest, uint64_t version)
{
    const fact_t *f = fact_find(s->disk->sure.gone, digest);

    return (f != NULL && version <= f->version) || version <= s->disk->sure.min_version[tenant];
}

bool
disk_has_synced_newer(const sim_t *s, kvp_digest_t digest, uint64_t version)
{
    const fact_t *f = fact_find(s->disk->sure.known, digest);

    return f != NULL && f->version > version;
}

uint64_t
disk_synced_oldest(const sim_t *s)
{
    return s->disk->sure.oldest;
}

bool
disk_is_relied_on(const sim_t *s)
{
    return s->disk->is_relied_on;
}

bool
disk_has_said(const sim_t *s, kvp_digest_t digest, uint64_t version)
{
    for (const fact_t *f = *bucket(s->disk->said, digest); f != NULL; f = f->next)
        if (kvp_digest_eq(f->digest, digest) && f->version == version) return true;
    return false;
}

/* ---- writing */
static uint64_t
end_of(const disk_t *d)
{
    return d->from + d->file.len;
}

static void write_begin(sim_t *s);

static void
on_written(sim_t *s, void *arg, uint64_t life)
{
    disk_t *d = arg;

    if (life != d->life || d->writing == 0 || d->is_stuck) return; /* of a disk before the crash, or that was healed */
    d->written = d->writing;
    d->writing = 0;
    walk(s, &d->read_to, &d->read_check, d->written, note, NULL);
    standby_written(s);
    master_written(s, d->written);
    if (life == d->life) write_begin(s);
}

/* One at a time; what comes meanwhile goes with the next. */
static void
write_begin(sim_t *s)
{
    disk_t *d = s->disk;
    rng_t rng;
    uint64_t ns;

    if (d->writing != 0 || d->written == end_of(d)) return;
    d->writing = end_of(d);
    d->seq++;
    rng = chance(s);
    ns = rng_chance(&rng, 20) ? rng_log(&rng, MS, 100 * MS) : rng_log(&rng, US, 100 * US);
    sim_at(s, master_party(s), s->now + ns, on_written, d, d->life);
}

void
disk_write(sim_t *s, const uint8_t *bytes, size_t len)
{
    kvp_buf_append(&s->disk->file, bytes, len);
    if (s->disk->file.err != KVP_OK) abort();
    write_begin(s);
}

static void
on_synced(sim_t *s, void *arg, uint64_t life)
{
    disk_t *d = arg;

    if (life != d->life || d->syncing == 0 || d->is_stuck) return;
    d->flushed = d->syncing;
    d->syncing = 0;
    disk_more_is_synced(s);
}

void
disk_more_is_synced(sim_t *s)
{
    disk_t *d = s->disk;
    uint64_t to = kvp_min_u64(d->flushed, standby_allows(s));

    if (to <= d->synced || !party_runs(master_party(s))) return;
    d->synced = to;
    walk(s, &d->sure_to, &d->sure_check, d->synced, fold, &d->sure);
    master_synced(s, d->synced);
}

void
disk_sync(sim_t *s, bool is_wanted)
{
    disk_t *d = s->disk;
    rng_t rng;
    uint64_t ns;

    if (d->syncing != 0 || d->flushed == d->written || s->plan->log_sync == KVP_LOG_SYNC_NONE) return;
    d->seq++;
    rng = chance(s);
    if (!is_wanted && !rng_chance(&rng, 50)) return;
    d->syncing = d->written;
    ns = rng_chance(&rng, 20) ? rng_log(&rng, 20 * MS, SEC) : rng_log(&rng, 20 * US, 5 * MS);
    if (!s->is_calm && rng_chance(&rng, s->plan->disk_stuck_per_mille)) d->is_stuck = true;
    if (d->is_stuck) TRACE(s, "the disk does not answer any more");
    sim_at(s, master_party(s), s->now + ns, on_synced, d, d->life);
    if (rng_chance(&rng, SNAPSHOT_PER_MILLE)) master_snapshot(s);
}

void
disk_heal(sim_t *s)
{
    disk_t *d = s->disk;

    if (!d->is_stuck) return;
    d->is_stuck = false;
    sim_at(s, master_party(s), s->now + MS, on_written, d, d->life);
    sim_at(s, master_party(s), s->now + MS, on_synced, d, d->life);
}

/* What is written from there on says. */
static void
read_from(sim_t *s, uint64_t from, told_t *told_out)
{
    uint64_t check = 0;

    *told_out = (told_t){0};
    walk(s, &from, &check, s->disk->written, fold, told_out);
}

static bool
says_gone(const told_t *told, const grant_t *g)
{
    const fact_t *f = fact_find(told->gone, g->digest);

    return (f != NULL && g->version <= f->version) || g->version <= told->min_version[g->tenant];
}

/* It can be read for as long as nobody says that it is gone, in memory that was not given up. */
static bool
is_still_there(const told_t *told, const grant_t *g)
{
    uint64_t word = g->mem->chunks[g->chunk].word[g->slot];
    bool is_known = false;

    for (uint32_t i = 0; i < SEGMENTS; i++)
        is_known |= memcmp(told->segments[i], g->mem->uuid, sizeof told->segments[i]) == 0;
    return is_known && !g->mem->is_gone && word == kvp_word_make(g->generation, KVP_DESC_SEALED);
}

/* Whether of all that the one says nothing is missing in the other. */
static bool
says_as_much(sim_t *s, const told_t *told, const told_t *of)
{
    for (const mem_t *mem = s->mems; mem != NULL; mem = mem->older)
        for (uint32_t c = 0; c < mem->chunk_n; c++)
            for (uint32_t slot = 0; slot < mem->chunks[c].limit; slot++) {
                const grant_t *g = mem->chunks[c].grant[slot];

                if (g == NULL) continue;
                if (says_gone(of, g) && is_still_there(told, g) && !says_gone(told, g) && g->version >= told->oldest &&
                    disk_has_said(s, g->digest, g->version))
                    return false;
                if (!knows(of, g->tenant, g->digest, g->version)) continue;
                if (!knows(told, g->tenant, g->digest, g->version)) return false;
            }
    return true;
}

/* What it says to begin with: whatever was written before counts no more. */
static bool
begins_anew(const disk_t *d, uint64_t from)
{
    kvp_jrec_any_t rec;
    size_t used;

    return from < d->written &&
           kvp_jrec_read(d->file.data + (from - d->from), d->written - from, 0, &rec, &used) == KVP_OK && used > 0 &&
           rec.head.kind == KVP_JREC_BASE && rec.term.is_anew != 0;
}

/* A base stands for what is in front of it only where it says the same. */
void
disk_forget(sim_t *s, uint64_t from)
{
    disk_t *d = s->disk;
    told_t all, rest;

    TRACE(s, "the journal before position %lu is forgotten", (unsigned long)from);
    read_from(s, d->from, &all);
    read_from(s, from, &rest);
    if (!begins_anew(d, from) && (!rest.is_whole || !says_as_much(s, &rest, &all)))
        sim_fail(s, "I3", "the journal before position %lu is forgotten, and what is behind it does not say all",
                 (unsigned long)from);
    if (from > d->written) return; /* it failed */
    kvp_buf_consume(&d->file, from - d->from);
    d->from = from;
}

/* ---- crashes */
/* Cuts the file in one of the records that are written and not synced. */
static void
tear(sim_t *s)
{
    disk_t *d = s->disk;
    rng_t rng = rng_fork(s->plan->seed, 62, d->seq);
    uint64_t at = d->synced, to;
    kvp_jrec_t head;

    if (!rng_chance(&rng, s->plan->disk_torn_per_mille) || d->written == d->synced) return;
    to = d->synced + rng_below(&rng, d->written - d->synced);
    for (;;) {
        memcpy(&head, disk_at(s, at), sizeof head);
        if (at + head.bytes > to) break;
        at += head.bytes;
    }
    d->file.len = at + 1 + rng_below(&rng, head.bytes - 1) - d->from;
    d->is_torn = true;
    TRACE(s, "the journal is torn at position %lu of %lu", (unsigned long)at, (unsigned long)d->written);
}

void
disk_crash(sim_t *s)
{
    disk_t *d = s->disk;
    rng_t rng;
    size_t sure, more;

    d->seq++;
    d->life++;
    rng = chance(s);
    d->may_lack_end = rng_chance(&rng, s->plan->disk_power_per_mille);
    sure = (d->may_lack_end ? d->synced : d->written) - d->from;
    more = d->file.len - sure;
    if (d->may_lack_end) TRACE(s, "the machine loses its power");
    if (rng_chance(&rng, s->plan->disk_lost_per_mille)) {
        TRACE(s, "the journal is lost");
        d->file.len = 0;
    } else if (more > 0) {
        size_t kept = rng_below(&rng, more + 1);

        d->file.len = sure + kept;
        if (d->may_lack_end && kept > 0 && rng_chance(&rng, 300))
            d->file.data[sure + rng_below(&rng, kept)] ^= (uint8_t)(1 + rng_below(&rng, 255));
    }
    d->is_torn = false;
    if (!d->may_lack_end && d->file.len >= sure) tear(s);
    d->is_stuck = false;
    d->writing = d->syncing = 0;
}

/* What is in it is what the next master finds. */
static void
look_again(sim_t *s)
{
    disk_t *d = s->disk;
    uint64_t at = d->from, check = 0;

    d->written = d->synced = d->flushed = end_of(d);
    d->found = (told_t){0};
    d->is_relied_on = false;
    walk(s, &at, &check, d->written, fold, &d->found);
    at = d->from;
    check = 0;
    walk(s, &at, &check, d->written, note, NULL); /* also what was handed over, and not known to be written */
    d->is_relied_on &= !d->may_lack_end;
    d->read_to = d->sure_to = d->written;
    d->read_check = d->sure_check = check;
    d->sure = d->found;
}

void
disk_restore(sim_t *s, kvp_master_t *core)
{
    disk_t *d = s->disk;
    rng_t rng = chance(s);
    uint64_t sure = kvp_min_u64((d->may_lack_end || d->is_torn ? d->synced : d->written) - d->from, d->file.len);
    uint64_t end;

    for (size_t done = 0, len; done < d->file.len; done += len) {
        len = kvp_min_u64(rng_log(&rng, 1, 4096), d->file.len - done);
        kvp_ignore(kvp_master_read_log(core, d->file.data + done, len), "it may be torn");
    }
    if (s->plan->has_standby) {
        if (kvp_master_open_log(core, KVP_OPEN_FOLLOW, &end) != KVP_OK) abort();
        d->may_lack_end = true; /* another one may have led meanwhile, for all that it knows */
        if (kvp_master_lead(core, master_term(s), false, master_now(s)) != KVP_OK) abort();
    } else if (kvp_master_open_log(core, d->may_lack_end ? KVP_OPEN_SHORT : KVP_OPEN_WHOLE, &end) != KVP_OK) {
        abort();
    }
    if (end < sure)
        sim_fail(s, "I3", "of a log of which %lu bytes are sure the master believes %lu", (unsigned long)sure,
                 (unsigned long)end);
    d->may_lack_end |= d->file.len > end;
    d->file.len = end;
    standby_rebase(s, d->from);
    d->from = 0;
    look_again(s);
    oracle_master_reads(s);
}

/* ---- standbys */
const uint8_t *
disk_at(const sim_t *s, uint64_t at)
{
    return s->disk->file.data + (at - s->disk->from);
}

uint64_t
disk_from(const sim_t *s)
{
    return s->disk->from;
}

uint64_t
disk_written(const sim_t *s)
{
    return s->disk->written;
}

uint64_t
disk_synced(const sim_t *s)
{
    return s->disk->synced;
}

uint64_t
disk_next_base(const sim_t *s, uint64_t at, uint64_t to)
{
    bool is_first = true;

    while (at < to) {
        kvp_jrec_t head;

        memcpy(&head, disk_at(s, at), sizeof head);
        if (!is_first && head.kind == KVP_JREC_BASE) return at;
        is_first = false;
        at += head.bytes;
    }
    return to;
}

void
disk_taken_over(sim_t *s, uint64_t origin, uint64_t end, bool is_level)
{
    disk_t *d = s->disk;

    if (end < d->synced)
        sim_fail(s, "I6", "what is gone was acknowledged up to position %lu, and the standby has the log up to %lu",
                 (unsigned long)d->synced, (unsigned long)end);
    d->seq++;
    d->life++;
    d->file.len = end - d->from;
    d->from -= origin;
    d->is_stuck = false;
    d->writing = d->syncing = 0;
    d->may_lack_end = !is_level;
    look_again(s);
    oracle_master_reads(s);
}

void
disk_start(sim_t *s)
{
    s->disk = sim_alloc(s, sizeof *s->disk);
}

void
disk_stop(sim_t *s)
{
    kvp_buf_fini(&s->disk->file);
}
