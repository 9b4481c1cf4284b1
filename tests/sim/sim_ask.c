/* SPDX-License-Identifier: Apache-2.0
 * Calls that are one question and one answer: removals, existence, look-ups and the release of their tickets, bumps. */
#include "tests/sim/sim_client.h"

#include "client/core/places.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

#define BUMP_WAIT_MS 2500u

/* ---- what look-ups reserve */
static void
release(sim_t *s, thread_t *t)
{
    link_t *link = t->client->link;
    bool has_session = link != NULL && link->is_up;
    kvp_buf_t tickets;

    if (t->held == 0) return;
    kvp_buf_init(&tickets, 0);
    (void)kvp_tickets_release(&t->client->held, t->held, has_session ? link->incarnation : 0, &tickets);
    if (has_session) link_release(s, link, &tickets);
    kvp_buf_fini(&tickets);
    t->held = 0;
}

/* Of what was found the first were granted. */
static uint32_t
granted_of(const thread_t *t, const kvp_frame_t *f, const Kvp__Pb__LookupReply *msg, kvp_digest_t granted[CALL_KEYS])
{
    uint32_t n = 0;
    kvp_frame_t asked;
    size_t used;

    kvp_ignore(kvp_frame_parse(t->out.data, t->out.len, &asked, &used), "it is ours");
    for (uint32_t i = 0; i < t->n && n < msg->granted; i++)
        if (msg->n == 0 || f->tail[i] != 0)
            memcpy(&granted[n++], asked.tail + i * sizeof granted[0], sizeof granted[0]);
    return n;
}

static void
take_lookup(sim_t *s, thread_t *t, const kvp_frame_t *f)
{
    kvp_digest_t granted[CALL_KEYS];
    Kvp__Pb__LookupReply *msg;
    kvp_pb_t pb;

    release(s, t); /* of the look-up before */
    msg = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, f);
    if (msg != NULL && msg->err == KVP_OK && t->has_epoch && msg->epoch != t->epoch)
        sim_fail(s, "EPOCH", "a look-up for epoch %u is answered of epoch %u", t->epoch, msg->epoch);
    if (msg != NULL) t->client->epoch = msg->epoch;
    if (msg != NULL && msg->ticket != 0) {
        kvp_tickets_new_t what = {
            .kind = t->of_groups ? KVP_PRESENT_GROUP : KVP_PRESENT_RESERVE,
            .incarnation = t->link->incarnation,
            .ticket = msg->ticket,
            .until_ns = t->asked_ns + msg->ttl_ms * MS,
            .digests = granted,
        };

        what.n = granted_of(t, f, msg, granted);
        t->held = kvp_tickets_add(&t->client->held, &what, s->now + t->client->party.ahead_ns);
    }
    kvp_pb_free(&pb, msg);
    if (rng_chance(&t->rng, 500)) release(s, t); /* the others later, or they expire */
}

/* Of the look-ups some are views: the hold of a get, kept for as long. */
static bool
is_view(const thread_t *t)
{
    return t->call == CALL_LOOKUP && t->heeds_probes && !t->of_groups;
}

static void
take_view(sim_t *s, thread_t *t, const kvp_frame_t *f)
{
    kvp_places_t places;
    kvp_frame_t asked;
    size_t used;

    release(s, t);
    if (kvp_places_read(f, 1, &places) != KVP_OK || places.ticket == 0) return;
    kvp_ignore(kvp_frame_parse(t->out.data, t->out.len, &asked, &used), "it is ours");
    t->held = kvp_tickets_add(&t->client->held,
                              &(kvp_tickets_new_t){
                                  .kind = KVP_PRESENT_HOLD,
                                  .incarnation = t->link->incarnation,
                                  .ticket = places.ticket,
                                  .version = places.objs[0].version,
                                  .digests = (const kvp_digest_t *)asked.tail,
                                  .n = 1,
                              },
                              s->now + t->client->party.ahead_ns);
    if (rng_chance(&t->rng, 500)) release(s, t);
}

/* ---- the question */
void
ask_encode(sim_t *s, thread_t *t)
{
    Kvp__Pb__Remove remove = KVP__PB__REMOVE__INIT;
    Kvp__Pb__RemoveMany remove_many = KVP__PB__REMOVE_MANY__INIT;
    Kvp__Pb__Exists exists = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Lookup lookup = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__Bump bump = KVP__PB__BUMP__INIT;
    Kvp__Pb__Get get = KVP__PB__GET__INIT;
    uint32_t tenant = client_tenant(s, t->client->index);
    bool has_keys = t->call != CALL_REMOVE_MANY && t->call != CALL_BUMP;
    size_t at;

    if (t->call == CALL_TASK) {
        task_encode(s, t);
        return;
    }
    remove.n = exists.n = lookup.n = t->n;
    remove.force = remove_many.force = t->is_forced;
    remove.wait = t->waits;
    remove.heeds_probes = remove_many.heeds_probes = t->heeds_probes;
    remove_many.pattern = t->pattern;
    remove_many.is_all = t->pattern[0] == '\0';
    exists.is_plain = t->is_forced;
    lookup.is_prefix = t->is_forced && !t->of_groups;
    lookup.is_groups = t->call == CALL_LOOKUP && t->of_groups;
    lookup.ttl_ms = t->waits ? 200 : 0;
    lookup.has_epoch = t->has_epoch;
    lookup.epoch = t->epoch;
    bump.wait_ms = BUMP_WAIT_MS;
    bump.is_all = true;
    get.n = 1;
    kvp_buf_reset(&t->out);
    if (t->call == CALL_REMOVE)
        kvp_pb_frame_begin(&t->out, KVP_OP_REMOVE, 0, 0, &remove.base, &at);
    else if (t->call == CALL_REMOVE_MANY)
        kvp_pb_frame_begin(&t->out, KVP_OP_REMOVE_MANY, 0, 0, &remove_many.base, &at);
    else if (t->call == CALL_EXISTS)
        kvp_pb_frame_begin(&t->out, KVP_OP_EXISTS, 0, 0, &exists.base, &at);
    else if (is_view(t))
        kvp_pb_frame_begin(&t->out, KVP_OP_GET, 0, 0, &get.base, &at);
    else if (t->call == CALL_LOOKUP)
        kvp_pb_frame_begin(&t->out, KVP_OP_LOOKUP, 0, 0, &lookup.base, &at);
    else
        kvp_pb_frame_begin(&t->out, KVP_OP_BUMP, 0, 0, &bump.base, &at);
    for (uint32_t i = 0; has_keys && i < (is_view(t) ? 1 : t->n); i++) {
        const char *name = lookup.is_groups ? t->groups[i] : t->names[i];
        kvp_digest_t digest = kvp_key_digest(DIGEST_SEED, tenant, name, strlen(name));

        kvp_buf_append(&t->out, &digest, sizeof digest);
    }
    kvp_frame_end(&t->out, at);
}

/* ---- the answer */
static void
take_removed_many(sim_t *s, thread_t *t, const kvp_frame_t *f)
{
    Kvp__Pb__RemoveManyReply *msg;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__remove_many_reply__descriptor, f);
    t->err = msg == NULL ? KVP_PROTO : msg->err;
    /* Which ones were left is not told, so only an answer that left none says something. */
    if (t->err == KVP_OK && msg->held == 0 && !thread_was_with_elder(s, t))
        oracle_pattern_removed(s, client_tenant(s, t->client->index), t->pattern,
                               &(ended_t){t->begun_ns, t->link->term, false});
    kvp_pb_free(&pb, msg);
}

static void
take_bumped(sim_t *s, thread_t *t, const kvp_frame_t *f)
{
    Kvp__Pb__BumpReply *msg;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__bump_reply__descriptor, f);
    t->err = msg == NULL ? KVP_PROTO : msg->err;
    if (t->err == KVP_OK) t->client->epoch = msg->epoch;
    if (t->err == KVP_OK && !thread_was_with_elder(s, t))
        oracle_bumped(s, client_tenant(s, t->client->index), &(ended_t){t->begun_ns, t->link->term, true});
    kvp_pb_free(&pb, msg);
}

void
ask_take(sim_t *s, thread_t *t, const kvp_frame_t *f)
{
    const int32_t *errs = (const int32_t *)f->tail;

    if (is_view(t))
        take_view(s, t, f);
    else if (t->call == CALL_LOOKUP)
        take_lookup(s, t, f);
    if (t->call == CALL_REMOVE_MANY) take_removed_many(s, t, f);
    if (t->call == CALL_BUMP) take_bumped(s, t, f);
    if (t->call == CALL_REMOVE)
        for (uint32_t i = 0; i < t->n && (i + 1) * sizeof *errs <= f->tail_len; i++) {
            t->err = errs[i];
            if (thread_was_with_elder(s, t)) continue;
            oracle_remove_ends(s, t->keys[i], &(ended_t){t->begun_ns, t->link->term, t->waits}, errs[i]);
        }
}
