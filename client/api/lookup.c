/* SPDX-License-Identifier: Apache-2.0
 * Reservations: a look-up is one question to the master, and what it grants is kept (control/tickets.h), so that it is presented
 * again where the session is lost. The ticket that callers see is ours.
 */
#include "client/api/pool.h"

#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

typedef struct {
    kvp_apicall_t *call;
    const kvpool_key_t *keys;
    uint32_t n;
    uint32_t ttl_ms;
    bool is_prefix;
    uint8_t *present; /* may be NULL */
    kvpool_lookup_t result;

    /* Of the last question. */
    kvp_op_session_t session;
    uint64_t asked_ns; /* by kvp_boot_ns: the time that is granted counts from here */
    const kvp_digest_t *digests; /* where they lie in it, until the next one is built */
    uint64_t ticket; /* that was granted, and is not kept yet */
} ask_t;

static void
build(void *arg, const kvp_op_session_t *session, kvp_buf_t *out)
{
    Kvp__Pb__Lookup head = KVP__PB__LOOKUP__INIT;
    ask_t *a = arg;
    kvp_digest_t *digests;
    size_t at;

    head.n = a->n;
    head.is_prefix = a->is_prefix;
    head.ttl_ms = a->ttl_ms;
    head.is_groups = (a->call->flags & KVPOOL_GROUPS) != 0;
    kvp_pb_frame_begin(out, KVP_OP_LOOKUP, 0, 0, &head.base, &at);
    digests = (kvp_digest_t *)kvp_buf_extend(out, a->n * sizeof *digests);
    for (uint32_t i = 0; i < a->n && digests != NULL; i++)
        digests[i] = kvp_op_digest(session, a->keys[i].data, a->keys[i].len);
    kvp_frame_end(out, at);
    a->session = *session;
    a->asked_ns = kvp_boot_ns();
    a->digests = digests;
}

/* What was granted is the first of what was found; moves it to the front. */
static const kvp_digest_t *
gather_granted(const ask_t *a, const uint8_t *found, uint32_t granted)
{
    kvp_digest_t *all = kvp_scratch_alloc(a->call->scratch, granted, sizeof *all);
    uint32_t n = 0;

    for (uint32_t i = 0; all != NULL && n < granted && i < a->n; i++)
        if (a->is_prefix || found[i] != 0) all[n++] = a->digests[i];
    return n == granted ? all : NULL;
}

static kvp_err_t
keep(ask_t *a, const Kvp__Pb__LookupReply *msg, const uint8_t *found)
{
    kvp_tickets_new_t what = {
        .kind = (a->call->flags & KVPOOL_GROUPS) != 0 ? KVP_PRESENT_GROUP : KVP_PRESENT_RESERVE,
        .incarnation = a->session.incarnation,
        .ticket = msg->ticket,
        .until_ns = a->asked_ns + msg->ttl_ms * KVP_NS_PER_MS,
        .n = msg->granted,
    };

    if (msg->ticket == 0) return KVP_OK;
    what.digests = gather_granted(a, found, msg->granted);
    if (what.digests != NULL) a->result.ticket = kvp_held_tickets_add(&a->call->pool->held_tickets, &what);
    a->ticket = a->result.ticket == 0 ? msg->ticket : 0;
    return a->ticket == 0 ? KVP_OK : KVP_NOMEM;
}

static kvp_err_t
take(ask_t *a, const kvp_frame_t *answer, const Kvp__Pb__LookupReply *msg)
{
    kvp_err_t err = kvp_op_peer_err(msg->err);
    uint32_t found_n = 0;
    kvp_rd_t rd;
    const uint8_t *found;

    if (err != KVP_OK) return err;
    kvp_rd_init(&rd, answer->tail, answer->tail_len);
    found = kvp_rd_array(&rd, msg->n, 1);
    if (rd.is_bad || msg->n > a->n || msg->found > a->n || msg->granted > msg->found) return KVP_PROTO;
    if (!a->is_prefix && msg->n != a->n) return KVP_PROTO;
    for (uint32_t i = 0; !a->is_prefix && i < a->n; i++)
        found_n += found[i] != 0;
    if (!a->is_prefix && found_n != msg->found) return KVP_PROTO;
    a->result = (kvpool_lookup_t){0, msg->found, msg->granted, msg->ttl_ms};
    for (uint32_t i = 0; a->present != NULL && i < a->n; i++)
        a->present[i] = i < msg->n && found[i] != 0;
    return keep(a, msg, found);
}

static kvp_err_t
read_answer(void *arg, const kvp_frame_t *answer, bool was_cut)
{
    Kvp__Pb__LookupReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    (void)was_cut;
    msg = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = take(arg, answer, msg);
    kvp_pb_free(&pb, msg);
    return err;
}

/* A reservation that cannot be kept in mind would be lost with its session, and nobody would know: so it is none. */
static void
refuse_granted(const ask_t *a)
{
    kvp_session_t *session = a->call->pool->session;
    kvp_buf_t *tickets = &a->call->scratch->in; /* has room, since an answer was in it */
    kvp_link_t *link;

    if (a->ticket == 0 || kvp_session_hold(session, 0, &link) != KVP_OK) return;
    kvp_buf_reset(tickets);
    kvp_buf_append(tickets, &a->ticket, sizeof a->ticket);
    if (kvp_conn_hello(link->conn)->incarnation == a->session.incarnation)
        kvp_held_tickets_give_back(link->conn, tickets, &a->call->scratch->out);
    kvp_session_rele(session, link);
}

static int
look_up(kvpool_t *pool, ask_t *a, const kvpool_opts_t *opts, kvpool_lookup_t *lookup_out, size_t n)
{
    kvp_query_t query = {.arg = a, .build = build, .read = read_answer};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    a->call = &call;
    a->n = (uint32_t)n;
    if (lookup_out == NULL || (n > 0 && a->keys == NULL))
        err = KVP_INVALID;
    else if (n > KVPOOL_BATCH_MAX)
        err = KVP_TOO_LARGE;
    else
        err = kvp_keys_check(a->keys, n);
    if (err == KVP_OK && n > 0) err = kvp_query_run(&call, &query);
    if (err == KVP_OK) *lookup_out = a->result;
    if (err != KVP_OK) refuse_granted(a);
    return kvp_call_end(&call, err);
}

int
kvpool_longest_prefix(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms, const kvpool_opts_t *opts,
                      kvpool_lookup_t *lookup_out)
{
    ask_t a = {.keys = keys, .ttl_ms = ttl_ms, .is_prefix = true};

    return look_up(pool, &a, opts, lookup_out, n);
}

int
kvpool_lookup(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms, const kvpool_opts_t *opts,
              uint8_t *present, kvpool_lookup_t *lookup_out)
{
    ask_t a = {.keys = keys, .ttl_ms = ttl_ms, .present = present};

    return look_up(pool, &a, opts, lookup_out, n);
}

/* Whether there is a session or not, from now on it is presented in none. */
static void
release(kvp_apicall_t *call, uint64_t id)
{
    kvp_buf_t *tickets = &call->scratch->in;
    kvp_link_t *link;

    kvp_buf_reset(tickets);
    if (kvp_session_hold(call->pool->session, 0, &link) == KVP_OK) {
        (void)kvp_held_tickets_release(&call->pool->held_tickets, id, kvp_conn_hello(link->conn)->incarnation, tickets);
        kvp_held_tickets_give_back(link->conn, tickets, &call->scratch->out);
        kvp_session_rele(call->pool->session, link);
    } else {
        (void)kvp_held_tickets_release(&call->pool->held_tickets, id, 0, tickets);
    }
}

int
kvpool_lookup_release(kvpool_t *pool, const kvpool_lookup_t *lookup)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, NULL, &call);

    if (err != KVP_OK) return err;
    if (lookup == NULL) return kvp_call_end(&call, KVP_INVALID);
    if (lookup->ticket != 0) release(&call, lookup->ticket);
    return kvp_call_end(&call, KVP_OK);
}
