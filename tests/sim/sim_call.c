/* SPDX-License-Identifier: Apache-2.0
 * Threads of clients: each takes the plan's calls for it one after the other and drives the client's cores through
 * their steps, as client/api/batch.c does. The oracle is told what every call was answered. */
#include "tests/sim/sim_client.h"

#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

#define PROOF_NS (20 * SEC)
#define FRESH_PER_MILLE 100u /* gets that heed no known location */
#define TASK_PAUSE_NS (3 * MS) /* between two questions about one */
#define HOST_PER_MILLE 600u /* objects whose sum may be taken before they are sent */

static void end_call(sim_t *s, thread_t *t);

/* ---- waiting: the event of a wait that is over finds another number */
static void
wait_for(thread_t *t, wait_t wait)
{
    t->wait = wait;
    t->wait_seq++;
}

static void
leave_link(sim_t *s, thread_t *t)
{
    link_t *link = t->link;

    t->link = NULL;
    if (link != NULL) link_rele(s, link);
}

static void
hold_link(thread_t *t, link_t *link)
{
    link->refs++;
    t->link = link;
    t->least_term = (uint32_t)kvp_min_u64(t->least_term, link->term);
}

bool
thread_was_with_elder(const sim_t *s, const thread_t *t)
{
    return (s->plan->profile == PROFILE_TERMS || s->plan->has_standby) && t->least_term < master_term(s);
}

/* ---- what a call needs */
/* Of three groups one has no size: it is a unit of eviction only. */
static uint32_t
group_size(const sim_t *s, uint32_t k)
{
    return k / s->plan->group_keys % 3 == 2 ? 0 : s->plan->group_keys;
}

/* The put's membership, as its key's number says. */
static void
set_group(const sim_t *s, const thread_t *t, uint32_t i, kvp_putop_item_t *it)
{
    uint32_t k = t->keys[i] - oracle_key(s, client_tenant(s, t->client->index), 0);

    if (t->groups[i][0] == '\0') return;
    it->group = t->groups[i];
    it->group_len = (uint32_t)strlen(t->groups[i]);
    it->group_members = group_size(s, k);
    it->group_member = it->group_members == 0 ? 0 : k % s->plan->group_keys;
}

static uint64_t
take_attempts(void *arg, uint32_t n)
{
    client_t *c = arg;

    c->attempts += n;
    return c->attempts - n + 1;
}

static uint32_t
buffer_units(const sim_t *s)
{
    return (s->plan->len_max + UNIT - 1) / UNIT;
}

static kvp_pin_t
choose_pin(const sim_t *s, thread_t *t)
{
    return s->plan->has_pins && !t->is_proof ? (kvp_pin_t)rng_below(&t->rng, KVP_PIN_HARD + 1) : KVP_PIN_NONE;
}

static uint32_t
avoid(void *arg, uint32_t ids[KVP_AVOID_MAX])
{
    const thread_t *t = arg;

    return paths_avoid(t->link, ids);
}

static void
begin_put(sim_t *s, thread_t *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        uint64_t len = s->plan->has_one_len ? s->plan->len_max : rng_log(&t->rng, 1, s->plan->len_max);

        t->puts[i] = oracle_put_begins(s, t->keys[i], len);
        t->put_items[i] = (kvp_putop_item_t){.key = t->names[i],
                                             .key_len = (uint32_t)strlen(t->names[i]),
                                             .len = len,
                                             .is_host = rng_chance(&t->rng, HOST_PER_MILLE)};
        set_group(s, t, i, &t->put_items[i]);
        t->units[i] = sim_alloc(s, buffer_units(s) * sizeof(*t->units[i]));
        for (uint32_t u = 0; u < (len + UNIT - 1) / UNIT; u++)
            t->units[i][u] = unit_make(t->puts[i]->id, u);
    }
    t->put = (kvp_putop_t){
        .items = t->put_items,
        .n = t->n,
        .moves = t->moves,
        .moves_cap = (uint32_t)rng_between(&t->rng, 1, MOVES_MAX),
        .out = &t->out,
        .deadline_ns = t->deadline_ns,
        .replicas = (uint32_t)rng_between(&t->rng, 1, s->plan->replicas_max),
        .committed = t->is_upsert ? KVP_COMMITTED_REPLACED : KVP_COMMITTED_OK,
        .pin = choose_pin(s, t),
        .epoch = t->has_epoch ? &t->epoch : NULL,
        .waits = t->waits,
        .attempts = take_attempts,
        .attempts_arg = t->client,
        .avoid = avoid,
        .avoid_arg = t,
    };
    kvp_putop_begin(&t->put);
}

/* What is on the same host is nearer. */
static uint32_t
rank(void *arg, uint32_t segment_id)
{
    const thread_t *t = arg;
    sim_t *s = t->link->known.sim;
    const mem_t *mem = oracle_mem_of(s, t->link->term, segment_id);

    return mem == NULL || node_party(s, mem->node)->host != t->client->party.host;
}

static void
begin_get(sim_t *s, thread_t *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        t->get_items[i] =
            (kvp_getop_item_t){.key = t->names[i], .key_len = (uint32_t)strlen(t->names[i]), .cap = s->plan->len_max};
        t->units[i] = sim_alloc(s, buffer_units(s) * sizeof(*t->units[i]));
    }
    t->get = (kvp_getop_t){
        .items = t->get_items,
        .n = t->n,
        .moves = t->moves,
        .moves_cap = (uint32_t)rng_between(&t->rng, 1, MOVES_MAX),
        .out = &t->out,
        .deadline_ns = t->deadline_ns,
        .epoch = t->has_epoch ? &t->epoch : NULL,
        .wants_sums = s->plan->wants_sums,
        .places = s->plan->locations > 0 && !rng_chance(&t->rng, FRESH_PER_MILLE) && !t->has_epoch ? t->places : NULL,
        .rank = rank,
        .rank_arg = t,
    };
    t->known_link = NULL;

    kvp_getop_begin(&t->get);
}

static void
begin_call(sim_t *s, thread_t *t)
{
    t->begun_ns = s->now;
    t->err = KVP_OK;
    t->least_term = UINT32_MAX;
    s->counts.calls += t->n;
    if (t->call == CALL_PUT) begin_put(s, t);
    if (t->call == CALL_GET) begin_get(s, t);
    t->wait = WAIT_NOTHING;
    thread_go(s, t);
}

/* ---- steps */
static void
on_timeout(sim_t *s, void *arg, uint64_t seq)
{
    thread_t *t = arg;
    const bool goes_on = t->call == CALL_PUT || t->call == CALL_GET || t->wait == WAIT_TIME;

    if (t->wait_seq != seq) return;
    switch (t->wait) {
    case WAIT_LINK:
        if (t->call == CALL_PUT) kvp_putop_fail(&t->put, KVP_UNREACHABLE);
        if (t->call == CALL_GET) kvp_getop_fail(&t->get, KVP_UNREACHABLE);
        t->err = KVP_UNREACHABLE;
        break;
    case WAIT_REPLY:
        if (t->call == CALL_PUT) kvp_putop_on_call_failed(&t->put, KVP_DEADLINE);
        if (t->call == CALL_GET) kvp_getop_on_call_failed(&t->get, KVP_DEADLINE);
        t->err = KVP_DEADLINE;
        break;
    default:
        break;
    }
    wait_for(t, WAIT_NOTHING);
    (goes_on ? thread_go : end_call)(s, t);
}

/* at_ns is by the client's clock. */
static void
wait_until(sim_t *s, thread_t *t, wait_t wait, uint64_t at_ns)
{
    uint64_t now = thread_now(s, t);

    wait_for(t, wait);
    sim_at(s, &t->client->party, s->now + (at_ns > now ? at_ns - now : 0), on_timeout, t, t->wait_seq);
}

static void
take_plain(sim_t *s, thread_t *t, const kvp_frame_t *f)
{
    if (t->call == CALL_TASK && !task_take(t, f) && thread_now(s, t) < t->deadline_ns) {
        wait_until(s, t, WAIT_TIME, thread_now(s, t) + TASK_PAUSE_NS);
        return;
    }
    ask_take(s, t, f);
    end_call(s, t);
}

/* True where there is one; else the thread waits. */
static bool
need_link(sim_t *s, thread_t *t)
{
    link_t *link = t->client->link;

    leave_link(s, t);
    if (link == NULL || !link->is_up) {
        wait_until(s, t, WAIT_LINK, t->deadline_ns);
        return false;
    }
    hold_link(t, link);
    return true;
}

static kvp_op_session_t
session_of(const sim_t *s, const link_t *link)
{
    return (kvp_op_session_t){
        .incarnation = link->incarnation,
        .digest_seed = DIGEST_SEED,
        .term = link->term,
        .tenant = client_tenant(s, link->client->index),
        .known = s->plan->locations > 0 ? &link->known.calls : NULL,
        .boot_ns = s->now + link->client->party.ahead_ns,
    };
}

static void
take_known(sim_t *s, thread_t *t)
{
    link_t *link = client_known_link(t->client);
    kvp_op_session_t session;

    if (link == NULL) {
        kvp_getop_on_known(&t->get, NULL);
        return;
    }
    leave_link(s, t);
    hold_link(t, link);
    t->known_link = link;
    session = session_of(s, link);
    kvp_getop_on_known(&t->get, &session);
}

static bool
need_session(sim_t *s, thread_t *t)
{
    kvp_op_session_t session;

    if (!need_link(s, t)) return false;
    session = session_of(s, t->link);
    if (t->call == CALL_PUT)
        kvp_putop_on_session(&t->put, &session);
    else
        kvp_getop_on_session(&t->get, &session);
    return true;
}

static void
note_commits(thread_t *t)
{
    kvp_frame_t f;
    size_t used;

    if (kvp_frame_parse(t->out.data, t->out.len, &f, &used) != KVP_OK || f.hdr.opcode != KVP_OP_PUT_COMMIT) return;
    for (size_t at = 0; at < f.tail_len; at += sizeof(kvp_wire_commit_t)) {
        kvp_wire_commit_t rec;

        memcpy(&rec, f.tail + at, sizeof rec);
        for (uint32_t i = 0; i < t->n; i++)
            if (t->put_items[i].attempt == rec.attempt) t->puts[i]->is_commit_sent = true;
    }
}

static void
ask(sim_t *s, thread_t *t)
{
    note_commits(t);
    t->asked_ns = thread_now(s, t);
    if (!t->link->is_broken) link_tell_used(s, t->link);
    t->request = ++t->link->request;
    wait_until(s, t, WAIT_REPLY, t->deadline_ns);
    if (t->link->is_broken)
        thread_on_lost(s, t, t->link);
    else
        link_send(s, t->link, &t->out, t->request);
}

/* A client that lies: it calls unreadable what it has just read. */
static void
slander(sim_t *s, thread_t *t)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;
    const kvp_move_t *mv = &t->moves[0];
    kvp_wire_unreadable_t rec = {t->get_items[mv->item].digest, mv->loc.generation};
    size_t at;

    head.unreadable = 1;
    kvp_buf_reset(&t->out);
    kvp_pb_frame_begin(&t->out, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, 0, &head.base, &at);
    kvp_buf_append(&t->out, &rec, sizeof rec);
    kvp_frame_end(&t->out, at);
    link_send(s, t->link, &t->out, ++t->link->request);
}

static void
tell(sim_t *s, thread_t *t)
{
    if (t->link != NULL && !t->link->is_broken) link_send(s, t->link, &t->out, ++t->link->request);
    if (t->call != CALL_GET || s->plan->slanders_per_mille == 0 || t->link == NULL || t->link->is_broken) return;
    if (rng_chance(&t->rng, s->plan->slanders_per_mille)) slander(s, t);
}

static void
move(sim_t *s, thread_t *t)
{
    wait_for(t, WAIT_MOVES);
    paths_run(s, t, t->moves, t->call == CALL_PUT ? t->put.moves_n : t->get.moves_n);
}

/* Carries out one step; false where the thread has to wait. */
static bool
carry_out(sim_t *s, thread_t *t, kvp_step_t step)
{
    switch (step.kind) {
    case KVP_STEP_DONE:
        end_call(s, t);
        return false;
    case KVP_STEP_KNOWN:
        take_known(s, t);
        return true;
    case KVP_STEP_SESSION:
        return need_session(s, t);
    case KVP_STEP_CALL:
        ask(s, t);
        return false;
    case KVP_STEP_SEND:
        tell(s, t);
        return true;
    case KVP_STEP_MOVE:
        move(s, t);
        return false;
    case KVP_STEP_SLEEP:
        wait_until(s, t, WAIT_TIME, step.until_ns);
        return false;
    }
    return false;
}

void
thread_go(sim_t *s, thread_t *t)
{
    uint64_t now = thread_now(s, t);

    if (t->call == CALL_PUT || t->call == CALL_GET) {
        while (carry_out(s, t, t->call == CALL_PUT ? kvp_putop_next(&t->put, now) : kvp_getop_next(&t->get, now)))
            continue;
        return;
    }
    if (!need_link(s, t)) return;
    ask_encode(s, t);
    ask(s, t);
}

void
thread_on_link(sim_t *s, thread_t *t)
{
    if (t->wait != WAIT_LINK) return;
    wait_for(t, WAIT_NOTHING);
    thread_go(s, t);
}

static void
on_lost(sim_t *s, void *arg, uint64_t seq)
{
    thread_t *t = arg;

    if (t->wait_seq != seq) return;
    if (t->call == CALL_PUT) kvp_putop_on_call_failed(&t->put, KVP_DISCONNECTED);
    if (t->call == CALL_GET) kvp_getop_on_call_failed(&t->get, KVP_DISCONNECTED);
    wait_for(t, WAIT_NOTHING);
    thread_go(s, t);
}

void
thread_on_lost(sim_t *s, thread_t *t, link_t *link)
{
    if (t->link == link && t->wait == WAIT_REPLY) sim_at(s, &t->client->party, s->now, on_lost, t, t->wait_seq);
}

/* It has its processor again. */
static void
on_woken(sim_t *s, void *arg, uint64_t seq)
{
    thread_t *t = arg;
    const kvp_frame_t *f = &t->reply;
    kvp_err_t err;

    if (t->wait_seq != seq) return;
    wait_for(t, WAIT_NOTHING);
    if (t->call != CALL_PUT && t->call != CALL_GET) {
        take_plain(s, t, f);
        return;
    }
    err = t->call == CALL_PUT ? kvp_putop_on_reply(&t->put, f, thread_now(s, t)) : kvp_getop_on_reply(&t->get, f);
    if (err == KVP_PROTO) sim_fail(s, "WIRE", "%s cannot read an answer", t->client->party.name);
    if (err != KVP_OK) link_break(s, t->link, false);
    thread_go(s, t);
}

void
thread_on_reply(sim_t *s, thread_t *t, const kvp_frame_t *f)
{
    bool is_cut = s->plan->profile == PROFILE_CUT;
    uint64_t ns = 0;

    if (rng_chance(&t->rng, s->plan->off_cpu_per_mille))
        ns = is_cut ? rng_between(&t->rng, 10 * MS, 200 * MS) : rng_log(&t->rng, 10 * US, 100 * MS);
    t->reply = *f; /* in a packet, which stays */
    wait_for(t, WAIT_WOKEN);
    sim_at(s, &t->client->party, s->now + ns, on_woken, t, t->wait_seq);
}

void
thread_moved(sim_t *s, thread_t *t)
{
    if (t->call == CALL_PUT) {
        kvp_putop_on_moved(&t->put, thread_now(s, t));
    } else {
        for (uint32_t i = 0; i < t->get.moves_n; i++)
            t->loaded_ns[t->moves[i].item] = t->xfers[i].loaded_ns;
        kvp_getop_on_moved(&t->get, thread_now(s, t));
    }
    wait_for(t, WAIT_NOTHING);
    thread_go(s, t);
}

/* ---- the end of a call */
/* A known location is read without a question, so what counts is the last load of its bytes, less the lease. Not when
 * the call had them: another key of its batch, or the network, may hold it up for long after that, and I1 speaks of
 * what was newest before it began. */
static void
tell_got(sim_t *s, thread_t *t, uint32_t i)
{
    got_t got = {.key = t->keys[i], .units = t->units[i], .len = t->get_items[i].len, .at_ns = t->begun_ns};

    got.is_of_elder = thread_was_with_elder(s, t);
    got.has_epoch = t->has_epoch;
    got.epoch = t->epoch;
    if (t->get_items[i].is_known) {
        got.is_known = true;
        got.at_ns = t->loaded_ns[i];
        got.lease_ns = t->known_link->known.lease.is_orphaned ? LOCATION_GRACE_NS : LOCATION_LEASE_NS;
    }
    oracle_got(s, &got);
}

/* Of a put that was granted in several sessions nobody knows which grant was committed. */
static void
tell_epoch(sim_t *s, thread_t *t, uint32_t i)
{
    const kvp_putop_item_t *it = &t->put_items[i];

    if (it->nloc == 0) return;
    t->client->epoch = it->ns_epoch;
    if (!it->was_cut) t->puts[i]->epoch = it->ns_epoch + 1;
    if (t->has_epoch && it->ns_epoch != t->epoch)
        sim_fail(s, "EPOCH", "a put for epoch %u is granted in epoch %u", t->epoch, it->ns_epoch);
}

static void
tell_oracle(sim_t *s, thread_t *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->call == CALL_PUT) {
            t->err = t->put_items[i].err;
            tell_epoch(s, t, i);
            if (!thread_was_with_elder(s, t)) oracle_put_ends(s, t->puts[i], t->waits && t->is_upsert, t->err);
        } else if (t->call == CALL_GET) {
            t->err = t->get_items[i].err;
            if (t->err == KVP_OK) tell_got(s, t, i);
        }
        TRACE(s, "%s.%u %s %s -> %s put %lu", t->client->party.name, t->number,
              (const char *const[]){"put", "get", "remove", "remove many", "exists", "lookup", "bump", "task"}[t->call],
              t->names[i], kvp_err_name(t->err),
              (unsigned long)(t->call == CALL_PUT   ? t->puts[i]->id
                              : t->call == CALL_GET ? t->units[i][0] >> 16
                                                    : 0));
    }
}

/* The buffers are the caller's again, who has other things in them: they are looked at when all is over. */
static void
poison(sim_t *s, thread_t *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        oracle_returned(s, t->units[i], buffer_units(s));
}

static void
end_call(sim_t *s, thread_t *t)
{
    client_t *c = t->client;

    tell_oracle(s, t);
    if (t->call == CALL_GET && t->get.kept_n > 0 && t->link != NULL && !t->link->is_broken) link_want_lease(s, t->link);
    if (t->call == CALL_GET) poison(s, t);
    leave_link(s, t);
    wait_for(t, WAIT_NOTHING);
    if (c->is_proving && t->is_proof) {
        c->has_proved |= t->call == CALL_GET && t->err == KVP_OK;
        if (!c->has_proved) {
            thread_prove(s, t);
            return;
        }
    }
    thread_next(s, t);
}

/* ---- the plan */
static const choice_t *
find_choice(sim_t *s, thread_t *t)
{
    while (t->choice < s->plan->choices_n && !s->is_calm) {
        const choice_t *c = &s->plan->choices[t->choice++];

        if (c->kind == CHOICE_CALL && c->client == t->client->index && c->thread == t->number) return c;
    }
    return NULL;
}

static void
on_paused(sim_t *s, void *arg, uint64_t at)
{
    thread_t *t = arg;

    if (t->wait != WAIT_PAUSE) return;
    call_choose(s, t, &s->plan->choices[at]);
    begin_call(s, t);
}

void
thread_next(sim_t *s, thread_t *t)
{
    const choice_t *c = find_choice(s, t);

    if (c == NULL) {
        wait_for(t, WAIT_DONE);
        if (t->client->is_proving && t->number == 0 && !t->client->has_proved) thread_prove(s, t);
        return;
    }
    wait_for(t, WAIT_PAUSE);
    sim_at(s, &t->client->party, s->now + c->at_ns, on_paused, t, (uint64_t)(c - s->plan->choices));
}

/* What comes next: a put, then a get, again and again until the get gives it. Where there are pins, or several
 * tenants, each first removes what it has: these are not evicted, and a chunk of one is not taken for another as long
 * as anything is in it. */
static call_kind_t
next_proof(const sim_t *s, const thread_t *t)
{
    if (t->is_proof && t->call == CALL_PUT && t->err == KVP_OK) return CALL_GET;
    if ((s->plan->tenants == 1 && !s->plan->has_pins) ||
        (t->is_proof && t->call == CALL_REMOVE_MANY && t->err == KVP_OK))
        return CALL_PUT;
    return CALL_REMOVE_MANY;
}

static void
on_prove(sim_t *s, void *arg, uint64_t seq)
{
    thread_t *t = arg;
    client_t *c = t->client;

    if (t->wait_seq != seq) return;
    t->proofs_n = t->is_proof ? t->proofs_n + (t->call == CALL_GET) : 0;
    t->call = next_proof(s, t);
    t->pattern[0] = '\0';
    t->n = 1;
    t->is_proof = true;
    t->is_upsert = t->waits = t->heeds_probes = t->has_epoch = false;
    t->is_forced = true;
    t->keys[0] = oracle_key(s, client_tenant(s, c->index), s->plan->keys + c->index);
    snprintf(t->names[0], sizeof t->names[0], "proof%u", c->index);
    t->groups[0][0] = '\0';
    /* Other chances each time round, or what flips a bit of one read flips it for ever. */
    t->rng = rng_fork(s->plan->seed, 7, c->index + t->proofs_n * CLIENTS_MAX);
    t->deadline_ns = thread_now(s, t) + PROOF_NS;
    begin_call(s, t);
}

void
thread_prove(sim_t *s, thread_t *t)
{
    wait_for(t, WAIT_TIME);
    sim_at(s, &t->client->party, s->now + MS, on_prove, t, t->wait_seq);
}

bool
thread_is_done(const thread_t *t)
{
    return t->wait == WAIT_DONE;
}

void
thread_start(sim_t *s, thread_t *t, client_t *c, uint32_t number)
{
    (void)s;
    *t = (thread_t){.client = c, .number = number};
}
