/* SPDX-License-Identifier: Apache-2.0
 * The network: connections as TCP and Unix sockets behave. Bytes keep their order; a connection that breaks loses a
 * tail; a partition holds bytes back until it is over; a peer that stopped still receives. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    conn_t *conn;
    int to;
    size_t len; /* 0 = the end */
    _Alignas(16) uint8_t bytes[];
} packet_t;

static uint64_t
latency(sim_t *s, conn_t *conn)
{
    bool is_far = conn->end[0].who->host != conn->end[1].who->host;
    uint64_t pair = (uint64_t)conn->end[0].who->number << 32 | conn->end[1].who->number;
    rng_t rng = rng_fork(s->plan->seed ^ pair, conn->id, ++conn->sent);
    uint64_t ns = is_far ? rng_between(&rng, 10 * US, 100 * US) : rng_between(&rng, 3 * US, 30 * US);

    if (rng_chance(&rng, s->plan->late_per_mille)) ns += rng_log(&rng, 100 * US, 300 * MS);
    return ns;
}

/* When a packet to that side arrives: in order, and not through a partition. */
static uint64_t
arrival(sim_t *s, conn_t *conn, int to)
{
    uint32_t a = conn->end[!to].who->host, b = conn->end[to].who->host;
    uint64_t at = kvp_max_u64(s->now, s->cut_until[a][b]) + latency(s, conn);

    at = kvp_max_u64(at, conn->end[to].last_at_ns + 1);
    conn->end[to].last_at_ns = at;
    return at;
}

static void
tell_end(sim_t *s, conn_t *conn, int to)
{
    conn_end_t *e = &conn->end[to];

    if (e->is_closed) return;
    e->is_closed = true;
    if (e->ops != NULL) e->ops->on_end(s, e->arg, conn);
}

static void
on_packet(sim_t *s, void *arg, uint64_t n)
{
    packet_t *p = arg;
    conn_end_t *e = &p->conn->end[p->to];

    (void)n;
    if (p->conn->is_cut || e->is_closed) return;
    if (p->len == 0) {
        tell_end(s, p->conn, p->to);
        return;
    }
    s->counts.frames++;
    if (e->ops != NULL) e->ops->on_bytes(s, e->arg, p->conn, p->bytes, p->len);
}

static void
queue_packet(sim_t *s, conn_t *conn, int to, const void *bytes, size_t len)
{
    packet_t *p = sim_alloc(s, sizeof *p + len);
    conn_end_t *e = &conn->end[to];

    p->conn = conn;
    p->to = to;
    p->len = len;
    if (len > 0) memcpy(p->bytes, bytes, len);
    if (e->life == e->who->life) sim_at(s, e->who, arrival(s, conn, to), on_packet, p, len);
}

void
conn_send(sim_t *s, conn_t *conn, int side, const void *bytes, size_t len)
{
    if (conn == NULL || len == 0 || conn->is_cut || conn->end[side].is_closed) return;
    queue_packet(s, conn, !side, bytes, len);
}

void
conn_close(sim_t *s, conn_t *conn, int side)
{
    if (conn == NULL || conn->end[side].is_closed) return;
    conn->end[side].is_closed = true;
    if (!conn->is_cut) queue_packet(s, conn, !side, NULL, 0);
}

static void
on_told(sim_t *s, void *arg, uint64_t to)
{
    tell_end(s, arg, (int)to);
}

void
conn_cut(sim_t *s, conn_t *conn, bool is_half)
{
    int untold = is_half ? (int)rng_below(&s->rng, 2) : -1;

    if (conn->is_cut || (conn->end[0].is_closed && conn->end[1].is_closed)) return;
    TRACE(s, "connection %lu of %s and %s breaks%s", (unsigned long)conn->id, conn->end[0].who->name,
          conn->end[1].who->name, is_half ? ", half" : "");
    conn->is_cut = true;
    for (int to = 0; to < 2; to++) {
        party_t *who = conn->end[to].who;

        if (to != untold && conn->end[to].life == who->life)
            sim_at(s, who, s->now + rng_log(&s->rng, 10 * US, 5 * MS), on_told, conn, (uint64_t)to);
    }
}

/* ---- opening */
static void
on_syn(sim_t *s, void *arg, uint64_t n)
{
    conn_t *conn = arg;
    party_t *to = conn->end[1].who;

    (void)n;
    if (!conn->is_cut && !conn->end[0].is_closed) to->on_accept(s, to, conn);
}

static void
refuse(sim_t *s, conn_t *conn)
{
    conn_end_t *from = &conn->end[0];

    conn->end[1].is_closed = true;
    if (from->life == from->who->life) sim_at(s, from->who, s->now + 20 * US, on_told, conn, 0);
}

/* Held by the kernel of a party that stopped, so the event is the party's; refused where it is dead, so it is not. */
static void
on_syn_arrival(sim_t *s, void *arg, uint64_t n)
{
    conn_t *conn = arg;
    conn_end_t *to = &conn->end[1];

    (void)n;
    if (to->who->is_dead || to->life != to->who->life)
        refuse(s, conn);
    else
        sim_at(s, to->who, s->now, on_syn, conn, 0);
}

conn_t *
conn_open(sim_t *s, party_t *from, party_t *to, const conn_ops_t *ops, void *arg)
{
    conn_t *conn = sim_alloc(s, sizeof *conn);

    if (s->conns_n == s->conns_cap) {
        s->conns_cap = s->conns_cap == 0 ? 64 : s->conns_cap * 2;
        s->conns = realloc(s->conns, s->conns_cap * sizeof(*s->conns));
        if (s->conns == NULL) abort();
    }
    s->conns[s->conns_n++] = conn;
    conn->id = s->conns_n;
    conn->end[0] = (conn_end_t){.who = from, .life = from->life, .ops = ops, .arg = arg};
    conn->end[1] = (conn_end_t){.who = to, .life = to->life};
    sim_at(s, NULL, arrival(s, conn, 1), on_syn_arrival, conn, conn->id);
    return conn;
}

void
conn_take(conn_t *conn, const conn_ops_t *ops, void *arg)
{
    conn->end[1].ops = ops;
    conn->end[1].arg = arg;
}
