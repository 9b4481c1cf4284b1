/* SPDX-License-Identifier: Apache-2.0
 * Views: a view is a pointer to an object's bytes in place, in memory that this host's node shares with this process.
 * A view keeps three things: a hold at the master that protects the object from eviction, across sessions; the
 * mapping of the node's memory; and the session in which the memory was mapped. */
#include "client/api/pool.h"

#include "client/core/places.h"
#include "transport/shm/table.h"
#include "transport/local.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define TRIES 2 /* most attempts to open a view whose object's space was reused since the master's answer */
#define TIER_WAIT_MS 500u /* longest delay of the master's answer while the object is loaded from SSD */

typedef struct {
    kvp_list_t in_pool; /* entry in pool->views; guarded by pool->lock */
    kvp_link_t *link;
    kvp_peer_t *peer;
    const void *at; /* address of the generation word in the object's descriptor */
    uint64_t word; /* expected value of the descriptor's word */
    uint64_t held; /* id of the hold in pool->held_tickets */
} view_t;

/* ---- the question to the master */
static void
build_get(kvp_buf_t *out, kvp_digest_t digest)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;

    head.n = 1;
    head.wait_ms = TIER_WAIT_MS;
    kvp_buf_reset(out);
    kvp_pb_frame(out, KVP_OP_GET, 0, 0, &head.base, &digest, sizeof digest);
}

static void
give_back(kvp_apicall_t *call, kvp_link_t *link, uint64_t ticket)
{
    kvp_buf_t *tickets = &call->scratch->in;

    if (ticket == 0) return;
    kvp_buf_reset(tickets);
    kvp_buf_append(tickets, &ticket, sizeof ticket);
    kvp_count(&call->pool->counters.master_calls, 1);
    kvp_held_tickets_give_back(link->conn, tickets, &call->scratch->out);
}

/* ---- the object's place in memory */
typedef struct {
    kvp_apicall_t *call;
    kvp_link_t *link;
    kvp_expect_t expect;
    kvpool_view_t *out;
    view_t *view;
} viewing_t;

/* Sets the view's pointer to the object in mapped memory. Returns OK if the object's descriptor agrees with the
 * master's answer. */
static kvp_err_t
point_at(viewing_t *v, const kvp_wire_loc_t *loc, const kvp_chunk_mem_t *mem)
{
    uint64_t desc_off = kvp_desc_off(loc->slot);
    kvp_desc_t line;
    kvp_err_t err;

    if (!kvp_rseg_has(mem->meta, desc_off, KVP_DESC_LINE_BYTES)) return KVP_PROTO;
    if (!kvp_rseg_has(mem->payload, loc->offset, v->expect.len)) return KVP_PROTO;
    v->view->at = (const uint8_t *)kvp_shm_rseg_addr(mem->meta) + desc_off;
    v->view->word = kvp_word_make(loc->generation, KVP_DESC_SEALED);
    v->expect.generation = loc->generation;
    v->expect.offset = loc->offset;
    kvp_words_load(&line, v->view->at, KVP_DESC_LINE_BYTES);
    err = kvp_desc_accept(&line, &v->expect);
    if (err != KVP_OK) return err;
    v->out->data = (const uint8_t *)kvp_shm_rseg_addr(mem->payload) + loc->offset;
    v->out->len = (size_t)v->expect.len;
    return KVP_OK;
}

static kvp_err_t
view_at(viewing_t *v, const kvp_wire_loc_t *loc)
{
    kvp_peers_t *peers = v->link->peers;
    uint64_t deadline_ns = v->call->deadline_ns;
    kvp_chunk_mem_t mem;
    kvp_path_t path;
    kvp_err_t err = kvp_peers_take(peers, loc->segment_id, 0, deadline_ns, &path);

    if (err != KVP_OK) return err;
    if (strcmp(path.ep->tp->ops->name, "shm") != 0)
        err = KVP_NOTSUP;
    else
        err = kvp_path_chunk(peers, &path, loc->chunk, KVP_ACCESS_READ, deadline_ns, &mem);
    if (err == KVP_OK) err = point_at(v, loc, &mem);
    if (err == KVP_OK) v->view->peer = kvp_path_keep(peers, &path);
    kvp_path_rele(peers, &path, false);
    return err;
}

/* Points the view at the first copy of the object that is in shared memory of this host. */
static kvp_err_t
view_any(viewing_t *v, const kvp_places_t *places)
{
    kvp_err_t err = KVP_NODE_LOST;

    for (uint32_t i = 0; i < places->objs[0].nloc; i++) {
        kvp_err_t one = view_at(v, &places->locs[i]);

        if (one == KVP_OK) return KVP_OK;
        if (i == 0 || one != KVP_NOTSUP) err = one;
    }
    return err;
}

/* Records the master's hold on the object, so that the next session restores the hold. */
static kvp_err_t
keep_hold(viewing_t *v, uint64_t ticket)
{
    kvp_tickets_new_t what = {
        .kind = KVP_PRESENT_HOLD,
        .incarnation = kvp_conn_hello(v->link->conn)->incarnation,
        .ticket = ticket,
        .version = v->expect.version,
        .digests = &v->expect.digest,
        .n = 1,
    };

    v->view->held = kvp_held_tickets_add(&v->call->pool->held_tickets, &what);
    if (v->view->held != 0) return KVP_OK;
    kvp_peers_rele(v->link->peers, v->view->peer);
    return KVP_NOMEM;
}

/* Asks the master once and points the view at the object. On success the view takes over the caller's reference to
 * the link. */
static kvp_err_t
try_view(viewing_t *v, const void *key, size_t key_len)
{
    kvp_op_session_t session = kvp_link_session(v->call->pool, v->link);
    kvp_places_t places = {.ticket = 0};
    kvp_frame_t answer;
    kvp_err_t err;

    v->expect.digest = kvp_op_digest(&session, key, key_len);
    v->expect.key_hash2 = kvp_op_hash2(&session, key, key_len);
    build_get(&v->call->scratch->out, v->expect.digest);
    err = kvp_call_ask(v->call, v->link, &answer);
    if (err == KVP_OK) err = kvp_places_read(&answer, 1, &places);
    if (kvp_op_is_session_loss(err) || err == KVP_PROTO) kvp_conn_break(v->link->conn);
    if (err == KVP_OK) err = places.objs[0].err;
    if (err != KVP_OK) return err;
    v->expect.version = places.objs[0].version;
    v->expect.len = places.objs[0].len;
    err = view_any(v, &places);
    if (err == KVP_OK) err = keep_hold(v, places.ticket);
    if (err != KVP_OK) give_back(v->call, v->link, places.ticket);
    return err;
}

static kvp_err_t
find_view(kvp_apicall_t *call, const void *key, size_t key_len, view_t *view, kvpool_view_t *out)
{
    kvp_mastersession_t *session = call->pool->session;
    viewing_t v = {.call = call, .view = view, .out = out};
    kvp_err_t err = KVP_OK;
    bool is_cut;

    for (int asked = 0; asked < TRIES;) {
        err = kvp_call_hold(call, &v.link);
        if (err != KVP_OK) return err;
        err = try_view(&v, key, key_len);
        if (err == KVP_OK) {
            view->link = v.link;
            kvp_session_rest(v.link);
            return KVP_OK;
        }
        /* A failure in a session that was lost proves nothing about the object. */
        is_cut = kvp_op_is_session_loss(err) || kvp_conn_is_broken(v.link->conn);
        kvp_session_rele(session, v.link);
        if ((err == KVP_RETRY_AFTER || err == KVP_NO_SPACE) &&
            kvp_now_ns() < call->deadline_ns) { /* the object is being loaded, or waits for space in memory */
            err = kvp_session_sleep(session, kvp_now_ns() + KVP_NS_PER_MS);
            if (err != KVP_OK) return err;
            continue;
        }
        if (!is_cut) asked++; /* attempts in lost sessions do not count: only the deadline limits them */
        if (err != KVP_STALE && !is_cut) return err;
    }
    return err;
}

int
kvpool_view(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts, kvpool_view_t *view_out)
{
    kvpool_view_t out = {.data = NULL};
    kvp_apicall_t call;
    view_t *view;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (view_out == NULL) return kvp_call_end(&call, KVP_INVALID);
    if (!kvp_key_is_legal(key, key_len)) return kvp_call_end(&call, KVP_BAD_KEY);
    view = calloc(1, sizeof *view);
    err = view == NULL ? KVP_NOMEM : find_view(&call, key, key_len, view, &out);
    if (err != KVP_OK) {
        free(view);
        return kvp_call_end(&call, err);
    }
    pthread_mutex_lock(&pool->lock);
    kvp_list_add_tail(&pool->views, &view->in_pool);
    pthread_mutex_unlock(&pool->lock);
    out.handle = view;
    *view_out = out;
    return kvp_call_end(&call, KVP_OK);
}

/* ---- the end of a view */
static void
destroy_view(kvpool_t *pool, view_t *view)
{
    kvp_peers_rele(view->link->peers, view->peer);
    kvp_session_rele_view(pool->session, view->link);
    free(view);
}

/* Returns OK if the object was still in place while the caller read from the view, else STALE. */
static kvp_err_t
judge_view(const view_t *view)
{
    return kvp_word_is_still(view->at, view->word) ? KVP_OK : KVP_STALE;
}

int
kvpool_view_release(kvpool_t *pool, kvpool_view_t *view)
{
    kvp_apicall_t call;
    view_t *v;
    kvp_err_t err = kvp_call_begin(pool, NULL, &call);

    if (err != KVP_OK) return err;
    if (view == NULL || view->handle == NULL) return kvp_call_end(&call, KVP_INVALID);
    v = view->handle;
    err = judge_view(v);
    /* if the master lost its hold on the object, the bytes may not be the key's value any more */
    if (!kvp_call_release(&call, v->held)) err = KVP_STALE;
    pthread_mutex_lock(&pool->lock);
    kvp_list_del(&v->in_pool);
    pthread_mutex_unlock(&pool->lock);
    destroy_view(pool, v);
    *view = (kvpool_view_t){.data = NULL};
    return kvp_call_end(&call, err);
}

void
kvp_views_end(kvpool_t *pool)
{
    kvp_list_foreach_safe (pos, tmp, &pool->views) {
        kvp_list_del(pos);
        destroy_view(pool, kvp_list_entry(pos, view_t, in_pool));
    }
}
