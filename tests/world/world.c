/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/world/priv.h"

#include "tests/world/check/core_check.h"

#include <stdio.h>

#define BEAT_NS SEC
#define LEASE_BEAT_NS (300 * MS) /* of a client that keeps locations */
#define IDLE_TICKS_MAX 1000000u /* work that does not end by then never will */

/* ---- chance */
uint64_t
world_random(world_t *w)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return w->seed * 0x2545f4914f6cdd1dull >> 8;
}

uint64_t
world_below(world_t *w, uint64_t n)
{
    return world_random(w) % n;
}

const char *
key_name(const char *prefix, uint32_t i)
{
    static char names[4][40];
    static uint32_t at;

    at = (at + 1) % 4;
    snprintf(names[at], sizeof names[at], "%s%u", prefix, i);
    return names[at];
}

/* ---- inputs */
kvp_master_stats_t
world_stats(const world_t *w)
{
    kvp_master_stats_t st;

    kvp_master_stats(w->m, &st);
    return st;
}

void
input_begins(world_t *w)
{
    if (w->on_input != NULL) w->on_input(w->hook_arg, false);
}

void
input_done(world_t *w)
{
    uint64_t work;

    if (w->on_input != NULL) w->on_input(w->hook_arg, true);
    work = world_stats(w).work;
    w->inputs++;
    w->work_most = kvp_max_u64(w->work_most, work - w->work);
    w->work = work;
    if (w->check_every != 0 && w->inputs % w->check_every == 0) world_check(w);
}

void
world_check(world_t *w)
{
    const char *why = kvp_master_check(w->m);

    if (why != NULL) fail_msg("after input %lu: %s", (unsigned long)w->inputs, why);
}

static peer_t *
find_peer(world_t *w, uint64_t conn)
{
    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        if (p->conn == conn) return p;
    }
    return NULL;
}

static void
end_connection(peer_t *p)
{
    uint64_t conn = p->conn;

    p->conn = 0;
    p->asks_n = 0;
    queue_drop(&p->to_master);
    retiring_drop(p);
    input_begins(p->world);
    kvp_master_on_close(p->world->m, conn, p->world->now);
    input_done(p->world);
}

/* ---- the journal */
/* What masters before have written, in pieces of any length. */
static void
core_open(world_t *w)
{
    uint64_t end;

    assert_int_equal(kvp_master_create(&w->conf, w->now, &w->m), KVP_OK);
    w->forget_below = UINT64_MAX;
    w->ident.term = 0;
    if (!w->conf.has_journal) return;
    for (size_t at = 0, len; at < w->journal.len; at += len) {
        kvp_err_t err;

        len = kvp_min_u64(w->journal.len - at, 1 + world_below(w, 100));
        err = kvp_master_read_log(w->m, w->journal.data + at, len);
        assert_true(err == KVP_OK || err == KVP_CORRUPT);
    }
    assert_int_equal(kvp_master_open_log(w->m, w->is_boot_new ? KVP_OPEN_SHORT : KVP_OPEN_WHOLE, &end), KVP_OK);
    assert_true(end <= w->journal.len);
    w->journal.len = end;
    w->journal_from = 0;
    w->durable = end;
}

void
world_done(world_t *w, kvp_master_done_kind_t kind, uint64_t n)
{
    const kvp_master_done_t done = {.kind = kind, .position = n, .bytes = n, .why = "the disk is full"};

    kvp_master_done(w->m, &done, w->now);
}

bool
world_take_forgotten(world_t *w, uint64_t *below_out)
{
    collect(w);
    if (w->forget_below == UINT64_MAX) return false;
    *below_out = w->forget_below;
    w->forget_below = UINT64_MAX;
    return true;
}

bool
world_take_ident(world_t *w, kvp_master_ident_t *ident_out)
{
    collect(w);
    if (w->ident.term == 0) return false;
    *ident_out = w->ident;
    w->ident.term = 0;
    return true;
}

static void
take_records(world_t *w, const kvp_master_ready_t *ready)
{
    kvp_buf_append(&w->journal, ready->log.data, ready->log.len);
    if (ready->log.len > 0) assert_int_equal(w->journal_from + w->journal.len, ready->log_end);
    if (ready->ident.term != 0) w->ident = ready->ident;
    if (ready->forget_below == UINT64_MAX) return;
    w->forget_below = ready->forget_below;
    if (!w->keeps_files) world_done(w, KVP_DONE_FORGOTTEN, 1);
}

static void
take_frames(world_t *w, const kvp_master_ready_t *ready)
{
    peer_t *p = find_peer(w, ready->conn);

    assert_int_equal(ready->frames.err, KVP_OK);
    assert_non_null(p); /* not for one that is closed */
    take_bytes(w, p, &ready->frames);
    if (!ready->is_last) return;
    p->was_closed = true;
    end_connection(p);
}

/* True where the master said something to a peer. */
static bool
take_outputs(world_t *w)
{
    kvp_master_ready_t ready = {.conn = 0};
    bool has_said = false;

    while (kvp_master_ready(w->m, &ready)) {
        take_records(w, &ready);
        if (ready.conn != 0) take_frames(w, &ready);
        has_said |= ready.conn != 0;
        kvp_buf_reset(&ready.log);
        kvp_buf_reset(&ready.frames);
    }
    w->tick_ns = ready.tick_ns;
    w->wishes = ready.wishes;
    kvp_buf_fini(&ready.log);
    kvp_buf_fini(&ready.frames);
    return has_said;
}

bool
world_has_work(world_t *w)
{
    while (collect(w))
        continue;
    return (w->wishes & KVP_MASTER_WORKS) != 0;
}

static bool
make_durable(world_t *w, uint64_t part)
{
    uint64_t more = (w->journal_from + w->journal.len - w->durable) * part / 255;

    if (more == 0) return false;
    w->durable += more;
    world_done(w, KVP_DONE_WRITTEN, w->durable);
    world_done(w, KVP_DONE_SYNCED, w->durable);
    return true;
}

void
world_sync_part(world_t *w, uint64_t part)
{
    if (!w->conf.has_journal) return;
    (void)take_outputs(w);
    if (make_durable(w, part)) input_done(w);
    world_pump(w);
}

void
world_sync(world_t *w)
{
    world_sync_part(w, 255);
}

bool
collect(world_t *w)
{
    bool has_moved = take_outputs(w);

    if (!w->conf.has_journal || w->is_disk_stuck || !make_durable(w, 255)) return has_moved;
    (void)take_outputs(w);
    return true;
}

/* ---- time */
static bool
move(world_t *w)
{
    bool has_moved = collect(w);

    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        if (deliver_to_master(p)) has_moved = true;
        if (deliver_from_master(p)) has_moved = true;
        if (p->conn != 0 && node_free_due(p)) has_moved = true;
    }
    return has_moved;
}

static void
tick(world_t *w)
{
    input_begins(w);
    kvp_master_on_tick(w->m, w->now);
    input_done(w);
}

void
world_tick(world_t *w)
{
    tick(w);
    world_pump(w);
}

void
world_pump(world_t *w)
{
    uint32_t idle = 0;

    for (;;) {
        while (move(w))
            continue;
        if (w->is_idle_off || (w->wishes & KVP_MASTER_WORKS) == 0) return;
        if (++idle > IDLE_TICKS_MAX) fail_msg("work does not end");
        tick(w);
    }
}

/* What a live peer does beside its work. Its answers are dropped. */
void
peer_beat(peer_t *p)
{
    Kvp__Pb__Heartbeat head = KVP__PB__HEARTBEAT__INIT;

    p->beat_ns = p->world->now + (p->wants_lease ? LEASE_BEAT_NS : BEAT_NS);
    head.incarnation = p->incarnation;
    head.wants_lease = p->wants_lease;
    head.revoke_seq = p->applied_seq;
    (void)peer_send(p, KVP_OP_HEARTBEAT, 0, &head.base, NULL, 0);
}

static void
beat(world_t *w)
{
    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        if (p->conn == 0 || p->incarnation == 0 || p->is_silent || w->now < p->beat_ns) continue;
        peer_beat(p);
    }
}

static uint64_t
next_event(world_t *w, uint64_t end)
{
    end = kvp_min_u64(end, w->tick_ns);
    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        if (!kvp_list_is_empty(&p->to_master))
            end = kvp_min_u64(end, kvp_list_first(&p->to_master, packet_t, link)->at_ns);
        if (!kvp_list_is_empty(&p->from_master))
            end = kvp_min_u64(end, kvp_list_first(&p->from_master, packet_t, link)->at_ns);
        kvp_list_foreach (at, &p->retiring) {
            const retiring_t *r = kvp_list_entry(at, retiring_t, link);

            if (r->free_at_ns > w->now) end = kvp_min_u64(end, r->free_at_ns);
        }
    }
    return kvp_max_u64(end, w->now);
}

void
world_advance(world_t *w, uint64_t ns)
{
    uint64_t end = w->now + ns;

    world_pump(w);
    while (w->now < end) {
        w->now = next_event(w, end);
        beat(w);
        if (w->now >= w->tick_ns) tick(w);
        world_pump(w);
    }
}

void
world_jump(world_t *w, uint64_t ns)
{
    w->now += ns;
}

/* ---- life of a world */
world_t *
world_open(const kvp_master_conf_t *conf)
{
    world_t *w = calloc(1, sizeof *w);

    w->conf = *conf;
    w->seed = conf->seed != 0 ? conf->seed : 0x9e3779b97f4a7c15ull;
    if (w->conf.term == 0) w->conf.term = 3;
    if (w->conf.digest_seed == 0) w->conf.digest_seed = 77;
    if (w->conf.departed_bytes == 0) w->conf.departed_bytes = 64 << 10;
    if (w->conf.node_grace_ns == 0) w->conf.node_grace_ns = 5 * SEC;
    if (w->conf.host_id == NULL) w->conf.host_id = "master-host";
    memset(w->conf.pool_id, 0x5a, sizeof w->conf.pool_id);
    w->now = 1000 * SEC;
    w->check_every = 1;
    kvp_list_init(&w->peers);
    kvp_list_init(&w->mems);
    core_open(w);
    return w;
}

void
world_forget_peers(world_t *w)
{
    while (!kvp_list_is_empty(&w->peers))
        peer_forget(kvp_list_first(&w->peers, peer_t, link));
}

static void
restart(world_t *w)
{
    kvp_list_foreach (pos, &w->peers) {
        peer_t *p = kvp_list_entry(pos, peer_t, link);

        p->conn = 0;
        p->asks_n = 0;
        queue_drop(&p->to_master);
        queue_drop(&p->from_master);
        retiring_drop(p);
    }
    kvp_list_foreach (pos, &w->mems)
        kvp_list_entry(pos, mem_t, link)->segment_id = 0;
    kvp_master_destroy(w->m);
    w->conf.term++;
    w->journal.len = w->durable - w->journal_from;
    w->work = 0;
    core_open(w);
    world_forget_peers(w);
}

void
world_restart(world_t *w)
{
    w->conf.had_master = true;
    restart(w);
}

void
world_restart_boot(world_t *w)
{
    w->is_boot_new = true;
    world_restart(w);
    w->is_boot_new = false;
}

void
world_restart_as_new(world_t *w)
{
    w->conf.had_master = false;
    restart(w);
}

static void
expect_nothing_left(const world_t *w)
{
    kvp_master_stats_t st = world_stats(w);

    assert_int_equal(st.objects, 0);
    assert_int_equal(st.attempts, 0);
    assert_int_equal(st.clients, 0);
    assert_int_equal(st.nodes, 0);
    assert_int_equal(st.segments, 0);
    assert_int_equal(st.size_bytes, 0);
    assert_int_equal(st.used_bytes, 0);
    assert_int_equal(st.retiring_bytes, 0);
    assert_int_equal(st.quarantine_bytes, 0);
    assert_int_equal(st.held_bytes, 0);
    assert_int_equal(st.reserved_bytes, 0);
    assert_int_equal(st.pending_puts, 0);
    assert_int_equal(st.groups, 0);
    assert_int_equal(st.soft_pinned_bytes, 0);
    assert_int_equal(st.hard_pinned_bytes, 0);
}

void
world_close(world_t *w)
{
    w->is_idle_off = w->is_disk_stuck = false;
    while (!kvp_list_is_empty(&w->peers))
        peer_forget(kvp_list_first(&w->peers, peer_t, link));
    world_advance(w, w->conf.node_grace_ns + SEC);
    world_check(w);
    expect_nothing_left(w);
    kvp_master_destroy(w->m);
    while (!kvp_list_is_empty(&w->mems)) {
        mem_t *mem = kvp_list_first(&w->mems, mem_t, link);

        mem_empty(mem);
        free(mem->tiered);
        kvp_list_del(&mem->link);
        free(mem);
    }
    free(w->proved);
    kvp_buf_fini(&w->journal);
    free(w);
}

/* ---- connections */
peer_t *
peer_open(world_t *w)
{
    peer_t *p = calloc(1, sizeof *p);

    p->world = w;
    p->conn = ++w->conn_seq;
    kvp_list_init(&p->to_master);
    kvp_list_init(&p->from_master);
    kvp_list_init(&p->replies);
    kvp_list_init(&p->retiring);
    kvp_list_add_tail(&w->peers, &p->link);
    input_begins(w);
    kvp_master_on_connect(w->m, p->conn, w->now);
    input_done(w);
    world_pump(w);
    return p;
}

void
peer_lose(peer_t *p)
{
    if (p->conn != 0) end_connection(p);
    queue_drop(&p->from_master);
    world_pump(p->world);
}

void
peer_forget(peer_t *p)
{
    world_t *w = p->world;

    peer_lose(p);
    while (!kvp_list_is_empty(&p->replies))
        reply_free(kvp_list_first(&p->replies, reply_t, link));
    kvp_list_del(&p->link);
    free(p->asks);
    free(p->revoked);
    free(p);
    world_pump(w);
}

uint64_t
peer_hello_begin(peer_t *p, uint32_t role, const char *name, const char *host)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;
    char tenant[16] = "";

    hello.version = KVP_PROTO_VERSION;
    hello.version_min = KVP_PROTO_VERSION_MIN;
    hello.role = role;
    hello.name = (char *)name;
    hello.host_id = (char *)host;
    if (p->tenant > 0) snprintf(tenant, sizeof tenant, "%u", p->tenant);
    p->tenant_id = kvp_tenant_id(tenant);
    hello.tenant = tenant;
    p->role = role;
    return peer_send(p, KVP_OP_HELLO, 0, &hello.base, NULL, 0);
}

kvp_err_t
peer_hello(peer_t *p, uint32_t role, const char *name, const char *host)
{
    Kvp__Pb__HelloReply *head;
    uint64_t delay_ns = p->delay_ns;
    kvp_pb_t pb;
    reply_t *r;
    kvp_err_t err;

    p->delay_ns = 0;
    r = peer_reply(p, peer_hello_begin(p, role, name, host));
    p->delay_ns = delay_ns;
    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__hello_reply__descriptor, &r->frame);
    assert_non_null(head);
    err = head->err;
    if (err == KVP_OK) assert_int_equal(head->digest_seed, p->world->conf.digest_seed);
    kvp_pb_free(&pb, head);
    reply_free(r);
    return err;
}
