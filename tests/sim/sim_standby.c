/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim_standby.h"

#include "master/ha/insync.h"
#include "tests/sim/sim_disk.h"

#include <stdlib.h>
#include <string.h>

#define SELF "a"
#define ID "b"
#define TICK_NS (25 * MS) /* of the in-sync set */

struct standby {
    kvp_master_t *core;
    kvp_master_ready_t ready;
    uint64_t origin, at; /* positions of the disk: where its log begins, and ends, */
    uint64_t fed; /* and up to where it was given the master's: in the middle of a record, maybe */
    kvp_insync_t insync; /* the master's view of it */
    kvp_election_set_t written; /* as etcd has the set */
    uint64_t stuck_until;
    uint64_t seq, life;
    bool is_feeding;
    bool is_lost; /* what it lacks is not on the disk any more */
};

static rng_t
chance(sim_t *s)
{
    return rng_fork(s->plan->seed, 41, s->standby->seq++);
}

/* ---- the set */
static void
on_set_written(sim_t *s, void *arg, uint64_t life)
{
    standby_t *b = arg;

    if (life != b->life) return;
    kvp_insync_members(&b->insync, SELF, &b->written); /* as it is wanted by then */
    disk_more_is_synced(s);
}

static void
on_set_tick(sim_t *s, void *arg, uint64_t life)
{
    standby_t *b = arg;
    kvp_election_set_t wanted;
    rng_t rng;

    if (life != b->life) return;
    kvp_insync_tick(&b->insync, disk_synced(s), disk_written(s), s->now);
    kvp_insync_members(&b->insync, SELF, &wanted);
    rng = chance(s);
    if (wanted.n != b->written.n) sim_at(s, NULL, s->now + rng_log(&rng, 100 * US, 50 * MS), on_set_written, b, life);
    if (wanted.n != b->written.n) TRACE(s, "the in-sync set is to have %u members", wanted.n);
    disk_more_is_synced(s);
    sim_at(s, NULL, s->now + TICK_NS, on_set_tick, b, life);
}

uint64_t
standby_allows(const sim_t *s)
{
    const standby_t *b = s->standby;

    return b == NULL ? UINT64_MAX : kvp_insync_all_have(&b->insync, &b->written, SELF);
}

bool
standby_may_lead(const sim_t *s)
{
    return kvp_election_set_has(&s->standby->written, ID);
}

void
standby_new_leader(sim_t *s)
{
    standby_t *b = s->standby;

    b->life++;
    b->is_feeding = false;
    memset(&b->insync, 0, sizeof b->insync);
    b->written = (kvp_election_set_t){.n = 1};
    strcpy(b->written.ids[0], SELF);
    (void)kvp_insync_add(&b->insync, ID, b->is_lost ? 0 : b->at, s->now);
    sim_at(s, NULL, s->now + TICK_NS, on_set_tick, b, b->life);
    standby_written(s);
}

/* ---- following */
typedef struct {
    uint64_t at, life;
} ack_t;

static void
on_ack(sim_t *s, void *arg, uint64_t n)
{
    const ack_t *ack = arg;

    (void)n;
    if (ack->life != s->standby->life) return;
    kvp_insync_wrote(&s->standby->insync, ID, ack->at, disk_written(s), s->now);
    disk_more_is_synced(s);
}

static void
done(sim_t *s, kvp_master_done_kind_t kind)
{
    standby_t *b = s->standby;
    const kvp_master_done_t what = {.kind = kind, .position = b->at - b->origin};

    kvp_master_done(b->core, &what, s->now);
}

/* What it gives its own disk is what it was given. */
static void
write_out(sim_t *s, uint64_t to)
{
    standby_t *b = s->standby;
    kvp_buf_t *log = &b->ready.log;

    while (kvp_master_ready(b->core, &b->ready)) {
        if (log->len == 0) continue;
        if (b->at + log->len > to || memcmp(disk_at(s, b->at), log->data, log->len) != 0)
            sim_fail(s, "WIRE", "the standby writes %zu bytes at %lu that the master did not", log->len,
                     (unsigned long)b->at);
        b->at += log->len;
        kvp_buf_reset(log);
    }
    done(s, KVP_DONE_WRITTEN);
    done(s, KVP_DONE_SYNCED);
    while (kvp_master_ready(b->core, &b->ready))
        if (b->ready.forget_below != UINT64_MAX) done(s, KVP_DONE_FORGOTTEN);
}

static void
on_feed(sim_t *s, void *arg, uint64_t life)
{
    standby_t *b = arg;
    rng_t rng = chance(s);
    ack_t *ack;
    uint64_t to, base;

    if (life != b->life) return;
    b->is_feeding = false;
    if (s->now < b->stuck_until && !s->is_calm) {
        b->is_feeding = true;
        sim_at(s, NULL, b->stuck_until, on_feed, b, life);
        return;
    }
    if (b->is_lost || b->at < disk_from(s)) { /* what it lacks is gone: it begins anew, with the base */
        TRACE(s, "the standby begins anew");
        standby_stop(s);
        standby_start(s);
        return;
    }
    to = kvp_min_u64(disk_written(s), b->fed + rng_log(&rng, 64, 16384));
    base = disk_next_base(s, b->at, to); /* a piece is of one file */
    if (base > b->at) to = kvp_min_u64(to, base);
    if (kvp_master_read_log(b->core, disk_at(s, b->fed), to - b->fed) != KVP_OK)
        sim_fail(s, "WIRE", "the standby does not believe the log at %lu", (unsigned long)b->fed);
    b->fed = to;
    write_out(s, to);
    ack = sim_alloc(s, sizeof *ack);
    *ack = (ack_t){b->at, b->life};
    sim_at(s, NULL, s->now + rng_log(&rng, 20 * US, 2 * MS), on_ack, ack, 0);
    if (rng_chance(&rng, 10)) b->stuck_until = s->now + rng_log(&rng, MS, 2 * SEC);
    if (b->fed < disk_written(s)) standby_written(s);
}

void
standby_written(sim_t *s)
{
    standby_t *b = s->standby;
    rng_t rng;

    if (b == NULL || b->is_feeding) return;
    b->is_feeding = true;
    rng = chance(s);
    sim_at(s, NULL, s->now + (rng_chance(&rng, 200) ? rng_log(&rng, MS, 450 * MS) : rng_log(&rng, 10 * US, MS)),
           on_feed, b, b->life);
}

/* ---- life */
void
standby_start(sim_t *s)
{
    standby_t *b = s->standby;
    uint64_t end;

    if (b == NULL) b = s->standby = sim_alloc(s, sizeof *b);
    b->is_lost = false;
    b->core = master_resting_core(s);
    b->origin = b->at = b->fed = disk_from(s);
    if (kvp_master_open_log(b->core, KVP_OPEN_FOLLOW, &end) != KVP_OK || end != 0) abort();
    standby_new_leader(s);
}

void
standby_stop(sim_t *s)
{
    if (s->standby == NULL) return;
    s->standby->life++;
    kvp_master_destroy(s->standby->core);
    kvp_buf_fini(&s->standby->ready.log);
    kvp_buf_fini(&s->standby->ready.frames);
    s->standby->core = NULL;
}

/* What lies in front of the disk's first byte is below 0 then: it begins anew. */
void
standby_rebase(sim_t *s, uint64_t by)
{
    standby_t *b = s->standby;

    if (b == NULL || by == 0) return;
    b->is_lost |= b->at < by;
    b->at -= by;
    b->fed -= by;
    b->origin -= by;
}

kvp_master_t *
standby_take(sim_t *s, uint64_t *origin_out, uint64_t *end_out)
{
    kvp_master_t *core = s->standby->core;

    *origin_out = s->standby->origin;
    *end_out = s->standby->at;
    s->standby->core = NULL;
    s->standby->life++;
    return core;
}
