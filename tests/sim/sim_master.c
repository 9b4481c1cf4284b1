/* SPDX-License-Identifier: Apache-2.0
 * The master's shell: connections in, frames to the core, its outputs to the network and the disk, ticks when it is
 * due. Everything that passes is shown to the oracle. */
#include "master/core/api/master.h"

#include "proto/wire.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_copy.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_oracle.h"
#include "tests/sim/sim_standby.h"
#include "tests/sim/sim_tier.h"
#include "tests/world/check/core_check.h"

#include <stdlib.h>
#include <string.h>

#define TICK_AGAIN_NS (20 * US) /* between slices of background work */
#define ELDERS_MAX 9u /* so many masters have numbers of their own */
#define CHECK_EVERY 64u /* inputs between two looks at everything */

/* Records of the log that the core has handed over, and that are not given to the disk yet. */
typedef struct piece {
    uint8_t *bytes;
    size_t len;
    uint64_t end;
    struct piece *next;
} piece_t;

struct master {
    party_t party;
    kvp_master_t *core;
    kvp_master_ready_t ready;
    piece_t *pieces, *last_piece;
    uint64_t forget_below; /* UINT64_MAX = nothing */
    uint32_t term;
    uint64_t tick_at_ns; /* the tick that counts; others are leftovers */
    uint64_t began_ns; /* by its clock */
    uint64_t inputs;
    bool is_cut_off; /* nobody follows its log any more: what is gone by it is never acknowledged */
};

static void on_tick(sim_t *s, void *arg, uint64_t n);

/* The master whose turn it is; between turns that is the one of the highest term. turn_begin returns whose it was. */
static master_t *
turn_begin(sim_t *s, master_t *m)
{
    master_t *before = s->master;

    s->master = m;
    return before;
}

bool
master_is_elder(const sim_t *s)
{
    return s->master == s->elder;
}

uint64_t
master_now(const sim_t *s)
{
    return s->now + s->master->party.ahead_ns;
}

uint64_t
master_age(const sim_t *s)
{
    return master_now(s) - s->master->began_ns;
}

static conn_t *
conn_of(sim_t *s, uint64_t id)
{
    return s->conns[id - 1];
}

/* Something that the core said: a frame, or the end of a connection (len 0). */
typedef struct said {
    conn_t *conn;
    uint8_t *bytes;
    size_t len;
    struct said *next;
} said_t;

static said_t **
say_later(sim_t *s, said_t **end, conn_t *conn, const uint8_t *bytes, size_t len)
{
    said_t *said = sim_alloc(s, sizeof *said);

    *said = (said_t){.conn = conn, .bytes = sim_alloc(s, len), .len = len};
    if (len > 0) memcpy(said->bytes, bytes, len);
    *end = said;
    return &said->next;
}

/* The core's output is whole frames, one behind the other; each becomes a packet of its own, aligned. */
static said_t **
split(sim_t *s, said_t **end, conn_t *conn, const kvp_buf_t *out)
{
    for (size_t at = 0; at < out->len;) {
        kvp_frame_t f;
        size_t used;

        if (kvp_frame_parse(out->data + at, out->len - at, &f, &used) != KVP_OK || used == 0) {
            sim_fail(s, "WIRE", "the master says %zu bytes that are no frame", out->len - at);
            break;
        }
        end = say_later(s, end, conn, out->data + at, used);
        at += used;
    }
    return end;
}

static void
show(sim_t *s, const said_t *said, bool is_mount)
{
    kvp_frame_t f;
    size_t used;

    if (said->len == 0) return;
    kvp_ignore(kvp_frame_parse(said->bytes, said->len, &f, &used), "it was one");
    if ((f.hdr.opcode == KVP_OP_MOUNT) != is_mount) return;
    TRACE(s, "master says to %s: op %u request %lu flags %u", said->conn->end[0].who->name, f.hdr.opcode,
          (unsigned long)f.hdr.request_id, f.hdr.flags);
    oracle_master_says(s, said->conn, &f);
}

static void
done(master_t *m, kvp_master_done_kind_t kind, uint64_t position, uint64_t now)
{
    const kvp_master_done_t what = {.kind = kind, .position = position};

    kvp_master_done(m->core, &what, now);
}

/* As the core joins them: a piece of its own only where a base begins. */
static void
write_later(sim_t *s, master_t *m)
{
    const kvp_buf_t *log = &m->ready.log;
    piece_t *last = m->last_piece;
    uint8_t *bytes;

    if (last == NULL || m->ready.begins_base) {
        piece_t *piece = sim_alloc(s, sizeof *piece);

        *piece = (piece_t){.len = 0};
        *(last == NULL ? &m->pieces : &last->next) = piece;
        m->last_piece = last = piece;
    }
    bytes = sim_alloc(s, last->len + log->len);
    if (last->len > 0) memcpy(bytes, last->bytes, last->len);
    memcpy(bytes + last->len, log->data, log->len);
    last->bytes = bytes;
    last->len += log->len;
    last->end = m->ready.log_end;
}

/* Returns the core's frames, and keeps what is for the disk. The records of a master that is cut off count as written
 * at once where is_first: before it says anything. */
static said_t *
collect(sim_t *s, bool is_first)
{
    master_t *m = s->master;
    kvp_master_ready_t *ready = &m->ready;
    said_t *list = NULL, **end = &list;

    while (kvp_master_ready(m->core, ready)) {
        if (ready->log.len > 0 && is_first && m->is_cut_off)
            done(m, KVP_DONE_WRITTEN, ready->log_end, master_now(s));
        else if (ready->log.len > 0)
            write_later(s, m);
        if (ready->forget_below != UINT64_MAX) m->forget_below = ready->forget_below;
        if (ready->note != NULL) TRACE(s, "master: %s", ready->note);
        if (ready->conn != 0) end = split(s, end, conn_of(s, ready->conn), &ready->frames);
        if (ready->conn != 0 && ready->is_last) end = say_later(s, end, conn_of(s, ready->conn), NULL, 0);
        kvp_buf_reset(&ready->log);
        kvp_buf_reset(&ready->frames);
    }
    return list;
}

/* One step may mount a segment and grant places in it; who reads the grant first must know the segment. */
static void
say(sim_t *s, const said_t *list)
{
    master_t *m = s->master;

    for (const said_t *said = list; said != NULL; said = said->next)
        show(s, said, true);
    for (const said_t *said = list; said != NULL; said = said->next) {
        show(s, said, false);
        if (said->len > 0) {
            conn_send(s, said->conn, 1, said->bytes, said->len);
            continue;
        }
        conn_close(s, said->conn, 1);
        oracle_conn_over(s, said->conn);
        kvp_master_on_close(m->core, said->conn->id, master_now(s));
    }
    oracle_master_has_said(s);
}

/* When the next timer of the core ends, by the world's clock. */
static uint64_t
due_at(const sim_t *s)
{
    uint64_t due = s->master->ready.tick_ns;

    return due <= master_now(s) ? s->now + US : due == UINT64_MAX ? due : due - s->master->party.ahead_ns;
}

static void
drop_pieces(master_t *m)
{
    m->pieces = m->last_piece = NULL;
}

static void
write_journal(sim_t *s)
{
    master_t *m = s->master;

    if (!s->plan->has_journal || m->is_cut_off) return;
    for (const piece_t *piece = m->pieces; piece != NULL; piece = piece->next)
        disk_write(s, piece->bytes, piece->len);
    drop_pieces(m);
    if (m->forget_below != UINT64_MAX) {
        disk_forget(s, m->forget_below);
        m->forget_below = UINT64_MAX;
        done(m, KVP_DONE_FORGOTTEN, 0, master_now(s));
    }
    disk_sync(s, (m->ready.wishes & KVP_MASTER_SYNCS) != 0);
}

/* Terms come from the world here: from etcd, or from what the data directory keeps. */
static void
check_term(sim_t *s)
{
    kvp_master_ident_t ident;

    kvp_master_ident(s->master->core, &ident);
    if (ident.term != s->master->term && (s->plan->has_standby || s->plan->profile != PROFILE_TERMS))
        sim_fail(s, "I5", "a peer raised the master's term from %u to %u", s->master->term, ident.term);
}

static void
settle(sim_t *s)
{
    master_t *m = s->master;
    const char *broken;
    const said_t *list;
    uint64_t at;

    check_term(s);
    if (m->is_cut_off) {
        for (const piece_t *piece = m->pieces; piece != NULL; piece = piece->next)
            done(m, KVP_DONE_WRITTEN, piece->end, master_now(s));
        drop_pieces(m);
    }
    list = collect(s, true);
    write_journal(s);
    do {
        say(s, list);
        list = collect(s, false); /* a connection that is closed makes more to say */
    } while (list != NULL);
    if (++m->inputs % CHECK_EVERY == 0) {
        broken = master_check(s);
        if (broken != NULL) sim_fail(s, "CHECK", "master: %s", broken);
    }
    at = (m->ready.wishes & KVP_MASTER_WORKS) != 0 ? s->now + TICK_AGAIN_NS : due_at(s);
    if (at >= m->tick_at_ns && m->tick_at_ns > s->now) return;
    m->tick_at_ns = at;
    sim_at(s, &m->party, at, on_tick, m, at);
}

void
master_written(sim_t *s, uint64_t end)
{
    done(s->master, KVP_DONE_WRITTEN, end, master_now(s));
    settle(s);
}

void
master_synced(sim_t *s, uint64_t end)
{
    done(s->master, KVP_DONE_SYNCED, end, master_now(s));
    settle(s);
}

void
master_snapshot(sim_t *s)
{
    if (kvp_master_snapshot(s->master->core)) TRACE(s, "master begins a snapshot");
}

static void
on_tick(sim_t *s, void *arg, uint64_t n)
{
    master_t *m = arg, *before;

    if (n != m->tick_at_ns) return;
    before = turn_begin(s, m);
    kvp_master_on_tick(m->core, master_now(s));
    m->tick_at_ns = 0;
    settle(s);
    s->master = before;
}

static void
on_bytes(sim_t *s, void *arg, conn_t *conn, const uint8_t *bytes, size_t len)
{
    master_t *before = turn_begin(s, arg);
    kvp_frame_t f;
    size_t used;

    if (kvp_frame_parse(bytes, len, &f, &used) != KVP_OK || used != len) {
        sim_fail(s, "WIRE", "the master is sent %zu bytes that are no frame", len);
        s->master = before;
        return;
    }
    sim_mix(s, f.hdr.request_id << 8 | f.hdr.opcode);
    TRACE(s, "master hears %s: op %u request %lu flags %u", conn->end[0].who->name, f.hdr.opcode,
          (unsigned long)f.hdr.request_id, f.hdr.flags);
    conn->heard_ns = s->now;
    oracle_master_hears(s, conn, &f);
    kvp_master_on_frame(s->master->core, conn->id, &f, master_now(s));
    tier_heard(s);
    copy_heard(s);
    settle(s);
    s->master = before;
}

static void
on_end(sim_t *s, void *arg, conn_t *conn)
{
    master_t *before = turn_begin(s, arg);

    oracle_conn_over(s, conn);
    kvp_master_on_close(s->master->core, conn->id, master_now(s));
    settle(s);
    s->master = before;
}

static const conn_ops_t master_conn_ops = {on_bytes, on_end};

static void
on_accept(sim_t *s, party_t *who, conn_t *conn)
{
    master_t *before = turn_begin(s, who->owner);

    conn_take(conn, &master_conn_ops, who->owner);
    kvp_master_on_connect(s->master->core, conn->id, master_now(s));
    settle(s);
    s->master = before;
}

/* ---- life */
static kvp_master_conf_t
conf_of(sim_t *s, uint32_t term)
{
    kvp_master_conf_t conf = {
        .digest_seed = DIGEST_SEED,
        .seed = s->plan->seed + term,
        .term = s->plan->has_standby ? 1 : term,
        .is_elected = s->plan->has_standby,
        .session_ttl_ns = 3 * SEC,
        .node_grace_ns = s->plan->node_grace_ns,
        .attempt_bytes = s->plan->attempt_bytes,
        .lease_ns = LEASE_NS,
        .location_lease_ns = LOCATION_LEASE_NS,
        .location_grace_ns = LOCATION_GRACE_NS,
        .had_master = term > 1,
        .host_id = "0",
        .has_journal = s->plan->has_journal,
        .log_sync = s->plan->log_sync,
        .hot_bytes_per_s = s->plan->has_hot ? HOT_BYTES_PER_S : 0,
        .hot_window_ns = 20 * MS,
    };

    memcpy(conf.pool_id, POOL_ID, sizeof conf.pool_id);
    return conf;
}

kvp_master_t *
master_resting_core(sim_t *s)
{
    kvp_master_conf_t conf = conf_of(s, 2);
    kvp_master_t *core;

    if (kvp_master_create(&conf, master_now(s), &core) != KVP_OK) abort();
    return core;
}

static void
begin(sim_t *s)
{
    master_t *m = s->master;

    m->began_ns = master_now(s);
    m->forget_below = UINT64_MAX;
    drop_pieces(m);
}

static void
make_core(sim_t *s)
{
    master_t *m = s->master;
    kvp_master_conf_t conf = conf_of(s, m->term);

    begin(s);
    if (kvp_master_create(&conf, m->began_ns, &m->core) != KVP_OK) abort();
    oracle_master_begins(s);
    if (conf.has_journal) disk_restore(s, m->core);
    if (s->plan->has_standby && s->standby != NULL) standby_new_leader(s);
    m->tick_at_ns = 0;
    settle(s);
}

/* The standby's core goes on where its log ends. */
static void
take_over(sim_t *s)
{
    master_t *m = s->master;
    uint64_t origin, end;

    begin(s);
    m->core = standby_take(s, &origin, &end);
    TRACE(s, "the standby leads in term %u, from position %lu of %lu", m->term, (unsigned long)end,
          (unsigned long)disk_written(s));
    oracle_master_begins(s);
    if (kvp_master_lead(m->core, m->term, false, m->began_ns) != KVP_OK) abort();
    disk_taken_over(s, origin, end, false);
    standby_start(s);
    m->tick_at_ns = 0;
    settle(s);
}

static void
start(sim_t *s, uint32_t number, uint32_t term, uint64_t ahead_ns)
{
    master_t *m = sim_alloc(s, sizeof *m);

    s->master = m;
    party_init(&m->party, "master", number, 0, m);
    m->party.on_accept = on_accept;
    m->party.ahead_ns = ahead_ns;
    m->term = term;
    if (s->plan->has_standby && term > 1)
        take_over(s);
    else
        make_core(s);
}

void
master_start(sim_t *s)
{
    disk_start(s);
    start(s, 1, 1, 0);
    if (s->plan->has_standby) standby_start(s);
}

static void
end_core(master_t *m)
{
    kvp_master_destroy(m->core);
    m->core = NULL;
    kvp_buf_fini(&m->ready.log);
    kvp_buf_fini(&m->ready.frames);
}

/* ---- two at a time */
static void
on_elder_end(sim_t *s, void *arg, uint64_t n)
{
    (void)n;
    if (arg == s->elder) master_end_elder(s);
}

void
master_end_elder(sim_t *s)
{
    if (s->elder == NULL) return;
    party_die(s, &s->elder->party);
    end_core(s->elder);
    s->elder = NULL;
}

void
master_succeed(sim_t *s, rng_t *rng, uint64_t ns)
{
    master_t *old = s->master;

    if (s->elder != NULL || old->party.is_dead || old->party.number == ELDERS_MAX) return;
    if (s->plan->has_standby && !standby_may_lead(s)) return;
    old->is_cut_off = s->plan->has_standby;
    s->elder = old;
    oracle_master_succeeded(s);
    start(s, old->party.number + 1, old->term + 1, old->party.ahead_ns);
    for (size_t i = 0; i < s->conns_n; i++)
        if (s->conns[i]->end[1].who == &old->party && rng_chance(rng, 400)) conn_cut(s, s->conns[i], false);
    sim_at(s, NULL, s->now + ns, on_elder_end, old, 0);
}

party_t *
master_to_dial(sim_t *s, rng_t *rng)
{
    return s->elder != NULL && rng_chance(rng, 300) ? &s->elder->party : &s->master->party;
}

void
master_stop(sim_t *s)
{
    master_end_elder(s);
    end_core(s->master);
    standby_stop(s);
    disk_stop(s);
}

static void
on_restart(sim_t *s, void *arg, uint64_t n)
{
    (void)arg;
    party_rise(&s->master->party);
    s->master->term++;
    if (n == 1)
        take_over(s);
    else
        make_core(s);
}

void
master_crash(sim_t *s, uint64_t down_ns)
{
    master_t *m = s->master;
    bool is_taken_over;

    if (m->party.is_dead) return;
    if (s->plan->has_standby) master_end_elder(s); /* the oracle remembers one at a time */
    is_taken_over = s->plan->has_standby && standby_may_lead(s) && down_ns % 4 != 0;
    oracle_master_dies(s);
    party_die(s, &m->party);
    if (!is_taken_over) disk_crash(s);
    end_core(m);
    oracle_master_died(s);
    sim_at(s, NULL, s->now + down_ns, on_restart, NULL, is_taken_over);
}

uint32_t
master_term(const sim_t *s)
{
    return s->master->term;
}

party_t *
master_party(sim_t *s)
{
    return &s->master->party;
}

void
master_stats(const sim_t *s, kvp_master_stats_t *stats_out)
{
    kvp_master_stats(s->master->core, stats_out);
    stats_out->size_bytes += stats_out->draining_bytes; /* the core's bounds are shares of all connected memory */
}

bool
master_knows_tiered(const sim_t *s, uint32_t segment_id, const tiered_t *record)
{
    return kvp_tiered_check(s->master->core, segment_id, record->desc.digest, record->desc.version);
}

bool
master_has_place(const sim_t *s, kvp_digest_t digest, uint64_t generation)
{
    return kvp_place_check(s->master->core, digest, generation);
}

bool
master_keeps_cold(const sim_t *s, kvp_digest_t digest, uint64_t version)
{
    return kvp_loaded_check(s->master->core, digest, version);
}

bool
master_has_warm(const sim_t *s, kvp_digest_t digest)
{
    return kvp_warm_check(s->master->core, digest);
}

const char *
master_check(const sim_t *s)
{
    return kvp_master_check(s->master->core);
}
