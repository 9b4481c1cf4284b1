/* SPDX-License-Identifier: Apache-2.0
 * A client process: its session with the master (hello, heartbeats, loss, back-off), the drain notices of ended
 * incarnations, and its own life and death. */
#include "tests/sim/sim_client.h"

#include "common/mutate.h"
#include "proto/pb.h"
#include "tests/sim/sim_node.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

#define BACKOFF_FIRST_NS (20 * MS)
#define BACKOFF_MAX_NS SEC
#define CONNECT_NS SEC
#define BEATS_A_LEASE 3u
#define REVOKED_BEAT_NS (10 * MS)
/* from the last word to the end of the process; and between two looks at calls under way   \ */
#define LEAVE_NS (50 * MS)

static void on_connect(sim_t *s, void *arg, uint64_t unused);

static uint64_t
now_of(const sim_t *s, const client_t *c)
{
    return s->now + c->party.ahead_ns;
}

/* ---- frames */
/* What a client may say again, not knowing whether it was heard. */
static bool
may_be_repeated(uint8_t opcode)
{
    switch (opcode) {
    case KVP_OP_PUT_COMMIT:
    case KVP_OP_PUT_ABORT:
    case KVP_OP_RELEASE:
    case KVP_OP_GET:
    case KVP_OP_EXISTS:
    case KVP_OP_HEARTBEAT:
        return true;
    default:
        return false;
    }
}

void
link_send(sim_t *s, link_t *link, const kvp_buf_t *frame, uint64_t request)
{
    rng_t rng = rng_fork(s->plan->seed, link->incarnation, request);

    memcpy(frame->data + 8, &request, sizeof request);
    conn_send(s, link->conn, 0, frame->data, frame->len);
    if (!may_be_repeated(frame->data[4]) || !rng_chance(&rng, s->plan->twice_per_mille)) return;
    request = ++link->request; /* nobody waits for the second answer */
    memcpy(frame->data + 8, &request, sizeof request);
    conn_send(s, link->conn, 0, frame->data, frame->len);
}

static void
say(sim_t *s, link_t *link, uint8_t op, uint8_t flags, const void *head, const void *tail, size_t len)
{
    kvp_buf_t buf;
    size_t at;

    kvp_buf_init(&buf, 0);
    kvp_pb_frame_begin(&buf, op, flags, 0, head, &at);
    kvp_buf_append(&buf, tail, len);
    kvp_frame_end(&buf, at);
    link_send(s, link, &buf, ++link->request);
    kvp_buf_fini(&buf);
}

void
link_release(sim_t *s, link_t *link, const kvp_buf_t *tickets)
{
    Kvp__Pb__Release msg = KVP__PB__RELEASE__INIT;

    msg.n = (uint32_t)(tickets->len / sizeof(uint64_t));
    if (msg.n > 0 && !link->is_broken)
        say(s, link, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, &msg, tickets->data, tickets->len);
}

/* ---- the end of an incarnation */
static void
note_drain_notices(sim_t *s, link_t *link)
{
    client_t *c = link->client;

    for (path_t *p = link->paths; p != NULL; p = p->next) {
        drain_notice_t *d;

        if (!p->must_drain) continue;
        d = sim_alloc(s, sizeof *d);
        *d = (drain_notice_t){.node = p->node, .incarnation = link->incarnation, .next = c->drain_notices};
        memcpy(d->uuid, p->uuid, sizeof d->uuid);
        c->drain_notices = d;
    }
}

/* Nobody uses it any more: nothing of that incarnation is under way. */
void
link_rele(sim_t *s, link_t *link)
{
    if (--link->refs > 0) return;
    note_drain_notices(s, link);
    paths_close(s, link);
}

/* What was known in the old session may not be used any more. */
static void
end_lingering(sim_t *s, client_t *c)
{
    link_t *link = c->lingering;

    if (link == NULL) return;
    kvp_loclease_end(&link->known.lease);
    c->lingering = NULL;
    link_rele(s, link);
}

/* The session is over; what it knew may be read on for a while if the master ended it. */
static void
linger(sim_t *s, link_t *link, bool was_ended)
{
    client_t *c = link->client;

    end_lingering(s, c);
    c->lingering = link;
    if (was_ended && link->is_up)
        kvp_loclease_orphan(&link->known.lease, s->now + c->party.ahead_ns);
    else
        end_lingering(s, c);
}

link_t *
client_known_link(client_t *c)
{
    link_t *link = c->link != NULL && c->link->is_up ? c->link : c->lingering;

    return link != NULL && known_is_held(&link->known) ? link : NULL;
}

void
link_break(sim_t *s, link_t *link, bool was_ended)
{
    client_t *c = link->client;

    if (link->is_broken) return;
    TRACE(s, "%s loses its session %lx", c->party.name, (unsigned long)link->incarnation);
    link->is_broken = true;
    if (link->present_request != 0) kvp_tickets_on_call_failed(&c->held, &c->page, now_of(s, c));
    conn_close(s, link->conn, 0);
    if (c->link == link) {
        c->link = NULL;
        sim_at(s, &c->party, s->now + rng_between(&c->rng, c->backoff_ns / 2, c->backoff_ns + US), on_connect, c, 0);
    }
    for (uint32_t i = 0; i < s->plan->threads; i++)
        thread_on_lost(s, &c->threads[i], link);
    if (!KVP_RULE(DRAINED_WORD)) note_drain_notices(s, link);
    linger(s, link, was_ended);
}

/* ---- heartbeats */
static void
send_drain_notices(sim_t *s, client_t *c)
{
    for (drain_notice_t **at = &c->drain_notices; *at != NULL;) {
        drain_notice_t *d = *at;
        mem_t *mem = node_mem(s, d->node);

        if (mem == NULL || memcmp(mem->uuid, d->uuid, sizeof d->uuid) != 0) {
            *at = d->next; /* that memory is gone */
            continue;
        }
        path_send_drained(s, c, d);
        at = &d->next;
    }
}

/* An answer that does not come within a session's life: the master has lost us by then. */
static void
on_beat_late(sim_t *s, void *arg, uint64_t request)
{
    link_t *link = arg;

    if (link->beat_request == request) link_break(s, link, false);
}

void
link_tell_used(sim_t *s, link_t *link)
{
    Kvp__Pb__Used msg = KVP__PB__USED__INIT;
    kvp_wire_used_t used[KVP_LOCCACHE_USED_MAX];

    msg.n = kvp_loccache_take_used(&link->known.cache, used, KVP_LOCCACHE_USED_MAX);
    if (msg.n > 0) say(s, link, KVP_OP_USED, KVP_FRAME_ONEWAY, &msg.base, used, msg.n * sizeof used[0]);
}

static void
on_beat(sim_t *s, void *arg, uint64_t number)
{
    Kvp__Pb__Heartbeat msg = KVP__PB__HEARTBEAT__INIT;
    link_t *link = arg;
    party_t *who = &link->client->party;

    if (link->is_broken || number != link->beat_number || link->beat_request != 0) return;
    link_tell_used(s, link);
    msg.incarnation = link->incarnation;
    msg.term = link->term;
    msg.wants_lease = link->known.cache.n > 0;
    msg.revoke_seq = link->known.seq;
    link->wants_lease = msg.wants_lease;
    link->asked_ns = s->now + who->ahead_ns;
    say(s, link, KVP_OP_HEARTBEAT, 0, &msg.base, NULL, 0);
    link->beat_request = link->request;
    send_drain_notices(s, link->client);
    sim_at(s, who, s->now + link->ttl_ns, on_beat_late, link, link->beat_request);
}

static void
beat_at(sim_t *s, link_t *link, uint64_t at_ns)
{
    sim_at(s, &link->client->party, at_ns, on_beat, link, ++link->beat_number);
}

void
link_want_lease(sim_t *s, link_t *link)
{
    if (!known_is_held(&link->known)) beat_at(s, link, s->now);
}

/* A lease is renewed in good time; and who removed something may be waiting for our word that we know. */
static uint64_t
next_beat_in(const link_t *link, const known_news_t *news)
{
    uint64_t ns = link->beat_ns;

    if (link->wants_lease && news->lease_ms > 0) ns = kvp_min_u64(ns, news->lease_ms * MS / BEATS_A_LEASE);
    if (link->wants_lease && (news->revoked_n > 0 || news->is_drop_all)) ns = kvp_min_u64(ns, REVOKED_BEAT_NS);
    return ns;
}

static void
take_beat(sim_t *s, link_t *link, const kvp_frame_t *f)
{
    known_news_t news = {.asked_ns = link->asked_ns, .revoked = (const kvp_digest_t *)f->tail};
    Kvp__Pb__HeartbeatReply *msg;
    kvp_pb_t pb;
    kvp_err_t err = KVP_PROTO;

    if (f->hdr.request_id != link->beat_request) return; /* said twice */
    link->beat_request = 0;
    msg = kvp_pb_unpack(&pb, &kvp__pb__heartbeat_reply__descriptor, f);
    if (msg != NULL) err = msg->err;
    if (err == KVP_OK && msg->term != link->term) err = KVP_STALE_TERM;
    if (err == KVP_OK) {
        news.seq = msg->revoke_seq;
        news.lease_ms = msg->lease_ms;
        news.grace_ms = msg->grace_ms;
        news.revoked_n = msg->n;
        news.is_drop_all = msg->drop_all;
    }
    kvp_pb_free(&pb, msg);
    if (err != KVP_OK) {
        link_break(s, link, false);
        return;
    }
    if (link->wants_lease) known_apply(&link->known, &news);
    beat_at(s, link, s->now + next_beat_in(link, &news));
}

/* ---- what was held in sessions before: client/control/tickets.c */
static void
on_present(sim_t *s, void *arg, uint64_t number)
{
    link_t *link = arg;
    client_t *c = link->client;
    uint64_t due_ns, now = now_of(s, c);
    kvp_buf_t frame;

    if (link->is_broken || number != link->present_number || link->present_request != 0) return;
    if (kvp_tickets_next(&c->held, link->incarnation, now, &c->page, &due_ns) != KVP_OK) {
        if (due_ns != UINT64_MAX)
            sim_at(s, &c->party, s->now + (due_ns > now ? due_ns - now : 0), on_present, link, ++link->present_number);
        return;
    }
    kvp_buf_init(&frame, 0);
    kvp_tickets_encode(&c->page, &frame);
    link->present_request = ++link->request;
    link_send(s, link, &frame, link->present_request);
    kvp_buf_fini(&frame);
}

static void
take_presented(sim_t *s, link_t *link, const kvp_frame_t *f)
{
    client_t *c = link->client;
    kvp_buf_t tickets;

    if (f->hdr.request_id != link->present_request) return;
    link->present_request = 0;
    kvp_buf_init(&tickets, 0);
    if (kvp_tickets_on_reply(&c->held, &c->page, f, now_of(s, c), &tickets) != KVP_OK)
        sim_fail(s, "WIRE", "%s cannot read an answer", c->party.name);
    link_release(s, link, &tickets);
    kvp_buf_fini(&tickets);
    on_present(s, link, ++link->present_number);
}

/* ---- hello */
static void
take_hello(sim_t *s, link_t *link, const kvp_frame_t *f)
{
    client_t *c = link->client;
    Kvp__Pb__HelloReply *msg;
    kvp_pb_t pb;
    bool is_ok;

    msg = kvp_pb_unpack(&pb, &kvp__pb__hello_reply__descriptor, f);
    is_ok = msg != NULL && msg->err == KVP_OK;
    if (is_ok) {
        link->incarnation = msg->incarnation;
        link->term = msg->term;
        link->beat_ns = msg->heartbeat_ms * MS;
        link->ttl_ns = msg->session_ttl_ms * MS;
        link->is_up = true;
        c->backoff_ns = BACKOFF_FIRST_NS;
        end_lingering(s, c);
    }
    kvp_pb_free(&pb, msg);
    if (!is_ok) {
        link_break(s, link, false);
        return;
    }
    TRACE(s, "%s has session %lx", c->party.name, (unsigned long)link->incarnation);
    on_present(s, link, ++link->present_number);
    beat_at(s, link, s->now);
    for (uint32_t i = 0; i < s->plan->threads; i++)
        thread_on_link(s, &c->threads[i]);
}

/* Nobody waits any more for the answer to a GET: its hold is given back at once. */
static void
release_late(sim_t *s, link_t *link, const kvp_frame_t *f)
{
    Kvp__Pb__Release msg = KVP__PB__RELEASE__INIT;
    Kvp__Pb__Places *places;
    kvp_pb_t pb;
    uint64_t ticket;

    if (f->hdr.opcode != KVP_OP_GET) return;
    places = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, f);
    ticket = places == NULL ? 0 : places->ticket;
    kvp_pb_free(&pb, places);
    msg.n = 1;
    if (ticket != 0) say(s, link, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, &msg, &ticket, sizeof ticket);
}

static void
pass_reply(sim_t *s, link_t *link, const kvp_frame_t *f)
{
    for (uint32_t i = 0; i < s->plan->threads; i++) {
        thread_t *t = &link->client->threads[i];

        if (t->link != link || t->wait != WAIT_REPLY || t->request != f->hdr.request_id) continue;
        thread_on_reply(s, t, f);
        return;
    }
    release_late(s, link, f);
}

static void
on_bytes(sim_t *s, void *arg, conn_t *conn, const uint8_t *bytes, size_t len)
{
    link_t *link = arg;
    kvp_frame_t f;
    size_t used;

    (void)conn;
    if (link->is_broken) return;
    if (kvp_frame_parse(bytes, len, &f, &used) != KVP_OK || used != len) {
        sim_fail(s, "WIRE", "a client is sent %zu bytes that are no frame", len);
        return;
    }
    if (f.hdr.opcode == KVP_OP_HELLO)
        take_hello(s, link, &f);
    else if (f.hdr.opcode == KVP_OP_HEARTBEAT)
        take_beat(s, link, &f);
    else if (f.hdr.opcode == KVP_OP_PRESENT)
        take_presented(s, link, &f);
    else
        pass_reply(s, link, &f);
}

static void
on_end(sim_t *s, void *arg, conn_t *conn)
{
    (void)conn;
    link_break(s, arg, true);
}

static const conn_ops_t link_ops = {on_bytes, on_end};

static void
on_connect_late(sim_t *s, void *arg, uint64_t unused)
{
    link_t *link = arg;

    (void)unused;
    if (!link->is_up) link_break(s, link, false);
}

static void
on_connect(sim_t *s, void *arg, uint64_t unused)
{
    Kvp__Pb__Hello msg = KVP__PB__HELLO__INIT;
    client_t *c = arg;
    char host[2] = {(char)('0' + c->party.host), '\0'}, tenant[12];
    link_t *link;

    (void)unused;
    if (c->link != NULL) return;
    link = sim_alloc(s, sizeof *link);
    link->client = c;
    link->refs = 1;
    known_init(s, &link->known, &c->party);
    link->older = c->links;
    c->links = link;
    link->conn = conn_open(s, &c->party, master_to_dial(s, &c->rng), &link_ops, link);
    c->link = link;
    c->backoff_ns = kvp_min_u64(c->backoff_ns * 2, BACKOFF_MAX_NS);
    msg.version = KVP_PROTO_VERSION;
    msg.version_min = KVP_PROTO_VERSION_MIN;
    msg.role = KVP_ROLE_CLIENT;
    msg.name = c->party.name;
    msg.host_id = host;
    snprintf(tenant, sizeof tenant, "%u", client_tenant(s, c->index));
    msg.tenant = tenant;
    say(s, link, KVP_OP_HELLO, 0, &msg.base, NULL, 0);
    sim_at(s, &c->party, s->now + CONNECT_NS, on_connect_late, link, 0);
}

/* ---- life */
static void
rise(sim_t *s, client_t *c)
{
    c->backoff_ns = BACKOFF_FIRST_NS;
    on_connect(s, c, 0);
    for (uint32_t i = 0; i < s->plan->threads; i++)
        thread_next(s, &c->threads[i]);
}

static void
on_rise(sim_t *s, void *arg, uint64_t unused)
{
    client_t *c = arg;

    (void)unused;
    party_rise(&c->party);
    rise(s, c);
}

void
client_start(sim_t *s, uint32_t index)
{
    client_t *c = sim_alloc(s, sizeof *c);
    rng_t sums;

    s->clients[index] = c;
    c->index = index;
    c->rng = rng_fork(s->plan->seed, 5, index);
    c->is_tcp_only = rng_chance(&c->rng, 200);
    c->is_tcp_only |= s->plan->profile == PROFILE_SUMS;
    sums = rng_fork(s->plan->seed, 9, index);
    c->trusts_sums = rng_chance(&sums, s->plan->sums_per_mille);
    party_init(&c->party, "client", CLIENT_NUMBER + index, index % HOSTS, c);
    for (uint32_t i = 0; i < s->plan->threads; i++)
        thread_start(s, &c->threads[i], c, i);
    rise(s, c);
}

void
client_stop(sim_t *s, uint32_t index)
{
    client_t *c = s->clients[index];

    for (uint32_t i = 0; i < s->plan->threads; i++)
        kvp_buf_fini(&c->threads[i].out);
    for (link_t *link = c->links; link != NULL; link = link->older)
        known_fini(&link->known);
    kvp_tickets_fini(&c->held);
}

/* The connections end now; that the process is dead can be proved a while later, and what its processors had begun to
 * store may land until then. */
void
client_kill(sim_t *s, uint32_t index, uint64_t down_ns)
{
    client_t *c = s->clients[index];
    uint32_t life = c->party.life;
    uint64_t proof_ns = s->now + rng_log(&s->rng, 20 * US, 20 * MS);

    if (c->party.is_dead || life + 1 >= LIVES_MAX) return;
    c->proof_ns[life] = proof_ns;
    for (uint32_t i = 0; i < s->plan->threads; i++)
        paths_die(s, &c->threads[i], proof_ns);
    party_die(s, &c->party);
    node_process_died(s, index, life, proof_ns);
    c->link = NULL;
    c->lingering = NULL;
    c->drain_notices = NULL;
    c->attempts = 0;
    c->page.n = 0;
    kvp_tickets_fini(&c->held);
    for (uint32_t i = 0; i < s->plan->threads; i++) {
        c->threads[i].link = NULL;
        c->threads[i].held = 0;
        c->threads[i].wait = WAIT_NOTHING;
    }
    if (down_ns != UINT64_MAX) sim_at(s, NULL, s->now + down_ns, on_rise, c, 0);
}

static void
on_left(sim_t *s, void *arg, uint64_t unused)
{
    (void)unused;
    client_kill(s, ((client_t *)arg)->index, UINT64_MAX);
}

static void
on_leave(sim_t *s, void *arg, uint64_t unused)
{
    client_t *c = arg;

    (void)unused;
    client_leave(s, c->index);
}

/* As kvpool_close does: its word is that none of its stores is under way, so calls end first. */
void
client_leave(sim_t *s, uint32_t index)
{
    client_t *c = s->clients[index];

    if (c->party.is_dead) return;
    if (!client_is_idle(s, index)) {
        sim_at(s, &c->party, s->now + LEAVE_NS, on_leave, c, 0);
        return;
    }
    if (c->link != NULL && c->link->is_up) {
        note_drain_notices(s, c->link);
        send_drain_notices(s, c);
        say(s, c->link, KVP_OP_BYE, 0, NULL, NULL, 0);
    }
    sim_at(s, &c->party, s->now + LEAVE_NS, on_left, c, 0);
}

void
client_prove_life(sim_t *s, uint32_t index)
{
    client_t *c = s->clients[index];

    c->is_proving = true;
    c->has_proved = false;
    if (!c->party.is_dead && thread_is_done(&c->threads[0])) thread_prove(s, &c->threads[0]);
}

bool
client_is_idle(const sim_t *s, uint32_t index)
{
    const client_t *c = s->clients[index];

    if (c->party.is_dead) return false; /* it will be back */
    for (uint32_t i = 0; i < s->plan->threads; i++)
        if (!thread_is_done(&c->threads[i])) return false;
    return true;
}

bool
client_has_proved(const sim_t *s, uint32_t index)
{
    return s->clients[index]->has_proved;
}

party_t *
client_party(sim_t *s, uint32_t index)
{
    return &s->clients[index]->party;
}

uint32_t
client_tenant(const sim_t *s, uint32_t index)
{
    return index % s->plan->tenants;
}

uint64_t
client_proof_ns(sim_t *s, uint32_t client, uint32_t life)
{
    return s->clients[client]->proof_ns[life];
}
