/* SPDX-License-Identifier: Apache-2.0
 * Look-ups that reserve the found keys. A look-up is one question to the master. The reservation is recorded
 * (control/tickets.h), so that a later session can restore it if the session is lost. The caller gets a ticket number
 * of the library, not the master's. */
#include "client/api/pool.h"

#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

_Static_assert(KVPOOL_PRESENT == KVP_FOUND_PRESENT && KVPOOL_ON_SSD == KVP_FOUND_ON_TIER &&
                   KVPOOL_ON_HOST == KVP_FOUND_ON_HOST,
               "the master's bytes are the caller's");

typedef struct {
    kvp_apicall_t *call;
    kvp_query_t query; /* the question to the master; the reservation's time counts from query.asked_ns */
    Kvp__Pb__Lookup head;
    uint8_t *present; /* the caller's array: byte i reports whether the i-th key is present; may be NULL */
    kvpool_lookup_t result;
    uint64_t ticket; /* the master's ticket of a reservation that could not be recorded; 0 = none */
} ask_t;

/* Returns an array of the digests of the granted keys, or NULL if memory is short. The granted keys are the first
 * ones of the found keys. */
static const kvp_digest_t *
gather_granted(const ask_t *a, const uint8_t *found, uint32_t granted)
{
    kvp_digest_t *all = kvp_scratch_alloc(a->call->scratch, granted, sizeof *all);
    uint32_t n = 0;

    for (uint32_t i = 0; all != NULL && n < granted && i < a->query.n; i++)
        if (a->head.is_prefix || found[i] != 0) all[n++] = a->query.digests[i];
    return n == granted ? all : NULL;
}

static kvp_err_t
keep_grant(ask_t *a, const Kvp__Pb__LookupReply *msg, const uint8_t *found)
{
    kvp_tickets_new_t what = {
        .kind = (a->call->flags & KVPOOL_GROUPS) != 0 ? KVP_PRESENT_GROUP : KVP_PRESENT_RESERVE,
        .incarnation = a->query.incarnation,
        .ticket = msg->ticket,
        .until_ns = a->query.asked_ns + msg->ttl_ms * KVP_NS_PER_MS,
        .n = msg->granted,
    };

    if (msg->ticket == 0) return KVP_OK;
    what.digests = gather_granted(a, found, msg->granted);
    if (what.digests != NULL) a->result.ticket = kvp_held_tickets_add(&a->call->pool->held_tickets, &what);
    a->ticket = a->result.ticket == 0 ? msg->ticket : 0;
    return a->ticket == 0 ? KVP_OK : KVP_NOMEM;
}

static bool
is_byte_legal(const ask_t *a, uint8_t byte)
{
    if (byte == 0 || !a->head.wants_places) return true;
    if ((byte & KVP_FOUND_PRESENT) == 0) return false;
    return (byte & ~KVP_FOUND_PRESENT) == 0 || byte == (KVP_FOUND_PRESENT | KVP_FOUND_ON_TIER) ||
           byte == (KVP_FOUND_PRESENT | KVP_FOUND_ON_HOST);
}

/* Returns true if the answer has the right bytes: for kvpool_lookup one for each key; for kvpool_longest_prefix none,
 * or with KVPOOL_PLACES one for each found key. */
static bool
is_tail_legal(const ask_t *a, const Kvp__Pb__LookupReply *msg, const uint8_t *found)
{
    uint32_t n = !a->head.is_prefix ? a->query.n : a->head.wants_places ? msg->found : 0, found_n = 0;

    if (msg->n != n) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_byte_legal(a, found[i])) return false;
        found_n += found[i] != 0;
    }
    return found_n == msg->found || (a->head.is_prefix && n == 0);
}

/* Returns the value for present[i], the caller's byte of the i-th key. */
static uint8_t
present_at(const ask_t *a, const Kvp__Pb__LookupReply *msg, const uint8_t *found, uint32_t i)
{
    if (a->head.wants_places) return i < msg->n ? found[i] : 0;
    return a->head.is_prefix ? i < msg->found : found[i] != 0;
}

static kvp_err_t
take_answer(ask_t *a, const kvp_frame_t *answer, const Kvp__Pb__LookupReply *msg)
{
    kvp_err_t err = kvp_op_peer_err(msg->err);
    kvp_rd_t rd;
    const uint8_t *found;

    if (err != KVP_OK) return err;
    kvp_rd_init(&rd, answer->tail, answer->tail_len);
    found = kvp_rd_array(&rd, msg->n, 1);
    if (rd.is_bad || msg->n > a->query.n || msg->found > a->query.n || msg->granted > msg->found ||
        msg->on_tier > msg->granted)
        return KVP_PROTO;
    if (!is_tail_legal(a, msg, found)) return KVP_PROTO;
    a->result = (kvpool_lookup_t){0, msg->found, msg->granted, msg->ttl_ms, msg->on_tier, msg->epoch};
    for (uint32_t i = 0; a->present != NULL && i < a->query.n; i++)
        a->present[i] = present_at(a, msg, found, i);
    return keep_grant(a, msg, found);
}

static kvp_err_t
read_answer(const kvp_query_t *query, const kvp_frame_t *answer)
{
    Kvp__Pb__LookupReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = take_answer(query->arg, answer, msg);
    kvp_pb_free(&pb, msg);
    return err;
}

/* Gives the reservation back to the master if it could not be recorded, because an unrecorded reservation would be
 * lost silently with its session. */
static void
refuse_granted(const ask_t *a)
{
    kvp_mastersession_t *session = a->call->pool->session;
    kvp_buf_t *tickets = &a->call->scratch->in; /* the buffer held the master's longer answer, so a ticket fits in it */
    kvp_link_t *link;

    if (a->ticket == 0 || kvp_session_hold(session, 0, &link) != KVP_OK) return;
    kvp_buf_reset(tickets);
    kvp_buf_append(tickets, &a->ticket, sizeof a->ticket);
    if (kvp_conn_hello(link->conn)->incarnation == a->query.incarnation)
        kvp_held_tickets_give_back(link->conn, tickets, &a->call->scratch->out);
    kvp_session_rele(session, link);
}

static int
look_up(kvpool_t *pool, ask_t *a, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
        kvpool_lookup_t *lookup_out)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    kvp_call_measure(&call, KVP_CALL_lookup);
    a->call = &call;
    a->head.n = (uint32_t)n;
    a->head.is_groups = (call.flags & KVPOOL_GROUPS) != 0;
    a->head.wants_memory = (call.flags & KVPOOL_PREFETCH) != 0;
    a->head.wants_places = (call.flags & KVPOOL_PLACES) != 0;
    a->head.has_epoch = (call.flags & KVPOOL_EPOCH) != 0;
    a->head.epoch = call.epoch;
    a->query = (kvp_query_t){
        .opcode = KVP_OP_LOOKUP, .head = &a->head, .keys = keys, .n = a->head.n, .read = read_answer, .arg = a};
    if (lookup_out == NULL || (n > 0 && keys == NULL))
        err = KVP_INVALID;
    else if (n > KVPOOL_BATCH_MAX)
        err = KVP_TOO_LARGE;
    else
        err = kvp_keys_check(keys, n);
    if (err == KVP_OK && n > 0) err = kvp_query_run(&call, &a->query);
    if (err == KVP_OK) *lookup_out = a->result;
    if (err != KVP_OK) refuse_granted(a);
    return kvp_call_end(&call, err);
}

int
kvpool_longest_prefix(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms, const kvpool_opts_t *opts,
                      uint8_t *present, kvpool_lookup_t *lookup_out)
{
    ask_t a = {.head = KVP__PB__LOOKUP__INIT, .present = present};

    a.head.ttl_ms = ttl_ms;
    a.head.is_prefix = true;
    return look_up(pool, &a, keys, n, opts, lookup_out);
}

int
kvpool_lookup(kvpool_t *pool, const kvpool_key_t *keys, size_t n, uint32_t ttl_ms, const kvpool_opts_t *opts,
              uint8_t *present, kvpool_lookup_t *lookup_out)
{
    ask_t a = {.head = KVP__PB__LOOKUP__INIT, .present = present};

    a.head.ttl_ms = ttl_ms;
    return look_up(pool, &a, keys, n, opts, lookup_out);
}

int
kvpool_lookup_release(kvpool_t *pool, const kvpool_lookup_t *lookup)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, NULL, &call);

    if (err != KVP_OK) return err;
    if (lookup == NULL) return kvp_call_end(&call, KVP_INVALID);
    if (lookup->ticket != 0) (void)kvp_call_release(&call, lookup->ticket);
    return kvp_call_end(&call, KVP_OK);
}
