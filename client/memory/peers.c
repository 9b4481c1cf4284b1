/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A slot stands for a segment id for the life of the link; the slot's peer (its attachment to the node) comes and
 *   goes. One thread at a time attaches for a slot, and holds no lock meanwhile; other threads wait for the outcome.
 * - Each slot has a circuit breaker: after a failure the node is left alone for a time that doubles, and callers get
 *   NODE_LOST at once instead of waiting. After this time one caller tries the node again; the other callers still
 *   get NODE_LOST.
 * - Locks: peers->lock guards the slots and the reference counts; peer->lock is taken after it. See
 *   client/control/session.c. */
#include "client/memory/peers.h"

#include "client/memory/peers_priv.h"
#include "client/memory/segments.h"
#include "common/waits.h"
#include "common/log.h"
#include "common/parse.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REATTACH_SHARE 3 /* attaching again to a failed node gets 1/3 of kvp_ctl_patience: callers wait for it */
#define CHUNKS_MAX (1u << 20)
#define IDLE_EPS_MAX 128u

kvp_err_t
kvp_peers_create(const kvp_peers_conf_t *conf, kvp_conn_t *conn, kvp_peers_t **peers_out)
{
    kvp_peers_t *p = calloc(1, sizeof *p);

    if (p == NULL) return KVP_NOMEM;
    p->conf = *conf;
    p->conn = conn;
    pthread_mutex_init(&p->lock, NULL);
    kvp_cond_init(&p->changed);
    *peers_out = p;
    return KVP_OK;
}

const uint8_t *
kvp_peers_pool_id(const kvp_peers_t *p)
{
    return kvp_conn_hello(p->conn)->pool_id;
}

/* ---- attachments */
/* Releases a reference to an attachment. After the last release the background thread destroys the attachment,
 * because unmapping is slow and callers have deadlines. */
void
kvp_peers_rele(kvp_peers_t *p, kvp_peer_t *peer)
{
    uint32_t refs = atomic_load_explicit(&peer->refs, memory_order_relaxed);

    /* Every batch runs this code, so only the last release takes the lock. The lock makes sure that the peer is put
     * on the dead list once. */
    while (refs > 1)
        if (atomic_compare_exchange_weak(&peer->refs, &refs, refs - 1)) return;
    pthread_mutex_lock(&p->lock);
    if (atomic_fetch_sub(&peer->refs, 1) == 1) {
        peer->next_dead = p->dead;
        p->dead = peer;
    }
    pthread_mutex_unlock(&p->lock);
}

static void
destroy_dead(kvp_peers_t *p)
{
    kvp_peer_t *peer;

    pthread_mutex_lock(&p->lock);
    peer = p->dead;
    p->dead = NULL;
    pthread_mutex_unlock(&p->lock);
    while (peer != NULL) {
        kvp_peer_t *next = peer->next_dead;

        kvp_peer_destroy(peer);
        peer = next;
    }
}

static bool
note_silence(kvp_peers_t *p, kvp_peer_t *peer, uint64_t since_ns, uint64_t now_ns)
{
    bool is_enough = false;
    kvp_slot_t *slot;

    pthread_mutex_lock(&p->lock);
    slot = kvp_slot_of(p, peer);
    if (slot != NULL && slot->peer == peer) {
        is_enough = kvp_slot_note_silence(slot, since_ns, now_ns);
        peer->is_on_trial = true;
    }
    pthread_mutex_unlock(&p->lock);
    return is_enough;
}

/* Removes the attachment from its slot. Threads that use it keep their references. Returns true if the slot still had
 * it. */
static bool
leave_peer(kvp_peers_t *p, kvp_peer_t *peer, bool has_failed)
{
    kvp_slot_t *slot;
    bool is_ours;

    pthread_mutex_lock(&p->lock);
    slot = kvp_slot_of(p, peer);
    is_ours = slot != NULL && slot->peer == peer;
    if (is_ours) {
        slot->peer = NULL;
        if (has_failed) kvp_slot_trip(slot);
        if (has_failed && peer->is_on_trial)
            (void)kvp_route_leave_out(p, slot, peer->transport, peer->where, "nothing moves, though it connects");
    }
    pthread_mutex_unlock(&p->lock);
    if (is_ours) kvp_peers_rele(p, peer);
    return is_ours;
}

static void
drop_peer(kvp_peers_t *p, kvp_peer_t *peer)
{
    kvp_peer_break(peer, KVP_PEER_BROKEN);
    if (leave_peer(p, peer, true)) kvp_count(&p->conf.counters->peer_failures, 1);
}

/* Replaces the attachment to a healthy node whose device was removed or came back: running users continue with the
 * old attachment, and new users attach again. */
static void
renew_peer(kvp_peers_t *p, kvp_peer_t *peer)
{
    if (leave_peer(p, peer, false))
        kvp_log_info("client", "node %s is attached again: a device was removed, or came back", peer->where);
}

void
kvp_peers_destroy(kvp_peers_t *p)
{
    if (p == NULL) return;
    kvp_trial_end(&p->trial);
    destroy_dead(p);
    for (size_t i = 0; i < p->slots_n; i++) {
        kvp_peer_destroy(p->slots[i]->peer);
        free(p->slots[i]);
    }
    for (size_t i = 0; i < p->conf.transports_n; i++)
        kvp_tp_destroy(p->tps[i]);
    free(p->slots);
    free(p->notices);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- attaching to a node */
static bool
leads_there(const kvp_peers_t *p, size_t transport, const char *host_id, const char *offered)
{
    const kvp_transport_ops_t *ops = p->conf.transports[transport];

    if (!kvp_is_listed(offered, ops->name)) return false;
    return (ops->caps & KVP_TP_SAME_HOST) == 0 || strcmp(host_id, p->conf.host_id) == 0;
}

kvp_err_t
kvp_peers_need_tp(kvp_peers_t *p, size_t transport, kvp_tp_t **tp_out)
{
    const kvp_hello_reply_t *hello = kvp_conn_hello(p->conn);
    kvp_tp_conf_t conf = {.incarnation = hello->incarnation, .trusts_adapters = p->conf.trusts_adapters};
    kvp_err_t err = KVP_OK;

    memcpy(conf.pool_id, hello->pool_id, sizeof conf.pool_id);
    pthread_mutex_lock(&p->lock);
    if (p->tps[transport] == NULL) err = kvp_tp_create(p->conf.transports[transport], &conf, &p->tps[transport]);
    *tp_out = p->tps[transport];
    pthread_mutex_unlock(&p->lock);
    return err;
}

typedef struct {
    kvp_peers_t *peers;
    size_t from; /* index of the first transport that the slot may use */
    uint64_t deadline_ns;
    bool is_news; /* log a failure to attach as a warning: the first in a row, and the node had time to answer */
    uint32_t out; /* bit i is set if transport i is left out while another one reaches the node */
    uint32_t leads;
    uint32_t lack; /* bit i is set if transport i cannot be used on this host */
    kvp_peer_t *peer;
    kvp_err_t err;
} attaching_t;

static kvp_err_t
attach_by(attaching_t *a, const Kvp__Pb__SegmentInfo *info, size_t transport)
{
    kvp_peers_t *p = a->peers;
    const kvp_hello_reply_t *hello = kvp_conn_hello(p->conn);
    bool is_same_host = (p->conf.transports[transport]->caps & KVP_TP_SAME_HOST) != 0;
    char detail[160] = "";
    kvp_attach_t how = {
        .segment_id = info->segment_id,
        .uuid = info->uuid.data,
        .node = info->node,
        .addr = info->addr,
        .unix_path = is_same_host ? info->unix_path : "",
        .chunks_n = info->chunk_n,
        .transport = transport,
        .names = p->conf.names,
        .is_given_up = p->conf.is_given_up,
        .hello =
            {
                .name = p->conf.name,
                .host_id = p->conf.host_id,
                .incarnation = hello->incarnation,
                .pool_id = hello->pool_id,
            },
    };
    kvp_err_t err =
        is_same_host && info->unix_path[0] == '\0' ? KVP_UNREACHABLE : kvp_peers_need_tp(p, transport, &how.tp);

    bool is_lacking =
        err != KVP_OK && (p->conf.transports[transport]->caps & KVP_TP_OWN_PORT) != 0 && a->leads != 1u << transport;

    if (is_lacking) a->lack |= 1u << transport; /* note_routes_locked logs this failure */
    if (err == KVP_OK) err = kvp_peer_open(&how, a->deadline_ns, detail, sizeof detail, &a->peer);
    if (err != KVP_OK && err != KVP_CLOSED)
        kvp_log_write(a->is_news && !is_lacking ? KVP_LOG_WARN : KVP_LOG_DEBUG, "client",
                      "cannot attach to node %s at %s transport=%s error=%s detail=%s", info->node,
                      is_same_host ? info->unix_path : info->addr, p->conf.transports[transport]->name,
                      kvp_err_name(err), detail);
    return err;
}

/* Attaches by the first of our transports that reaches the node. After a failure it tries the next one; each failure
 * is logged, and kvpool_stat shows the transport in use. A caller that named a single transport gets this transport
 * or an error. */
static bool
attach_to(void *arg, const Kvp__Pb__SegmentInfo *info)
{
    attaching_t *a = arg;
    uint32_t todo;

    if (info->state == KVP_SEG_LOST || info->chunk_n == 0 || info->chunk_n > CHUNKS_MAX) return false;
    for (size_t i = a->from; i < a->peers->conf.transports_n; i++)
        if (leads_there(a->peers, i, info->host_id, info->transports)) a->leads |= 1u << i;
    todo = (a->leads & ~a->out) != 0 ? a->leads & ~a->out : a->leads;
    for (size_t i = 0; i < a->peers->conf.transports_n; i++) {
        if ((todo & 1u << i) == 0) continue;
        a->err = attach_by(a, info, i);
        /* DEADLINE: a missing answer is no reason to use a slower transport for the rest of the session */
        if (a->err == KVP_OK || a->err == KVP_FENCED || a->err == KVP_DEADLINE || a->err == KVP_CLOSED) return false;
    }
    if (a->leads != 0) return false;
    a->err = KVP_NOTSUP;
    if (a->from > 0) return false; /* a transport of ours with an index below `from` reaches the node */
    kvp_log_warn("client", "none of the transports asked for leads to node %s, which offers %s", info->node,
                 info->transports);
    return false;
}

/* Asks the master for the segment and attaches to its node. The caller holds no lock. */
static kvp_err_t
attach_segment(attaching_t *a, uint32_t segment_id)
{
    kvp_peers_t *p = a->peers;
    kvp_err_t err = kvp_segments_find(p->conn, segment_id, a->deadline_ns, attach_to, a);

    if (err == KVP_OK) err = a->err;
    if (err == KVP_OK) kvp_count(&p->conf.counters->attaches, 1);
    /* FENCED: the session is over, and the node learned this before this client */
    if (err == KVP_FENCED) kvp_conn_break(p->conn);
    if (err == KVP_OK || err == KVP_NOTSUP || err == KVP_NOMEM || err == KVP_CLOSED) return err;
    return KVP_NODE_LOST;
}

/* Records in the slot which transports reach the node, and leaves out those that cannot be used on this host. */
static void
note_routes_locked(kvp_peers_t *p, kvp_slot_t *slot, const attaching_t *a, kvp_err_t err)
{
    if (a->leads != 0) slot->leads = a->leads;
    for (size_t i = 0; err == KVP_OK && i < p->conf.transports_n; i++)
        if ((a->lack & 1u << i) != 0)
            (void)kvp_route_leave_out(p, slot, i, a->peer->where, "it cannot be used on this host");
    if (err == KVP_NODE_LOST) kvp_routes_reset(slot);
}

/* Attaches to the slot's node. The caller holds peers->lock; the function releases it meanwhile. */
static kvp_err_t
attach_slot_locked(kvp_peers_t *p, kvp_slot_t *slot, uint64_t deadline_ns)
{
    bool is_retry = slot->fails > 0;
    uint64_t began_ns = kvp_now_ns();
    uint64_t patience_ns = kvp_ctl_patience(began_ns, deadline_ns);
    uint64_t end_ns = kvp_min_u64(deadline_ns, began_ns + (is_retry ? patience_ns / REATTACH_SHARE : patience_ns));
    bool is_hurry = end_ns < began_ns + KVP_HURRY_NS;
    attaching_t a = {
        .peers = p, .from = slot->from, .is_news = !is_retry && !is_hurry, .deadline_ns = end_ns, .err = KVP_NODE_LOST};
    kvp_err_t err;

    for (size_t i = 0; i < KVP_TRANSPORTS_MAX; i++)
        if (kvp_route_is_out(&slot->routes[i], began_ns)) a.out |= 1u << i;
    slot->is_attaching = true;
    pthread_mutex_unlock(&p->lock);
    err = attach_segment(&a, slot->segment_id);
    pthread_mutex_lock(&p->lock);
    slot->is_attaching = false;
    slot->peer = a.peer;
    if (a.peer != NULL) a.peer->from = slot->from;
    if (a.peer != NULL) a.peer->is_on_trial = is_retry || slot->silent_ns > 0;
    note_routes_locked(p, slot, &a, err);
    slot->is_out_of_reach = err == KVP_NOTSUP;
    /* a caller with a very short deadline proves little about the node */
    if (err == KVP_NODE_LOST && kvp_now_ns() >= deadline_ns && deadline_ns - began_ns < KVP_HURRY_NS)
        err = kvp_slot_note_silence(slot, began_ns, kvp_now_ns()) ? KVP_NODE_LOST : KVP_DEADLINE;
    if (err == KVP_NODE_LOST) kvp_slot_trip(slot);
    pthread_cond_broadcast(&p->changed);
    return err;
}

/* Finds the attachment to a segment's node, or makes it, and returns it with a reference. deadline_ns 0: EAGAIN if
 * the attachment would have to be made. */
static kvp_err_t
hold_peer(kvp_peers_t *p, uint32_t segment_id, size_t from, uint64_t deadline_ns, kvp_peer_t **peer_out)
{
    kvp_err_t err = KVP_OK;
    kvp_slot_t *slot;

    pthread_mutex_lock(&p->lock);
    slot = kvp_slot_find(p, segment_id, from);
    if (slot == NULL) slot = kvp_slot_make(p, segment_id, from);
    if (slot == NULL) err = KVP_NOMEM;
    while (err == KVP_OK && slot->peer == NULL) {
        uint64_t now = kvp_now_ns();

        bool is_left_alone = slot->is_attaching ? slot->fails > 0 : now < slot->next_try_ns;

        if (slot->is_out_of_reach)
            err = KVP_NOTSUP;
        else if (is_left_alone)
            err = KVP_NODE_LOST;
        else if (deadline_ns == 0)
            err = KVP_EAGAIN;
        else if (now >= deadline_ns)
            err = KVP_DEADLINE;
        else if (slot->is_attaching)
            kvp_cond_wait_until(&p->changed, &p->lock, deadline_ns);
        else
            err = attach_slot_locked(p, slot, deadline_ns);
    }
    if (err == KVP_OK) {
        slot->peer->refs++;
        *peer_out = slot->peer;
    }
    pthread_mutex_unlock(&p->lock);
    return err;
}

/* ---- paths */
/* Takes an endpoint of the attachment for the path. On failure it releases the caller's reference. STALE: the node
 * failed over to another transport. */
static kvp_err_t
take_ep(kvp_peers_t *p, kvp_peer_t *peer, uint64_t deadline_ns, kvp_path_t *path_out)
{
    uint64_t began_ns = deadline_ns == 0 ? 0 : kvp_now_ns();
    kvp_err_t err;

    *path_out = (kvp_path_t){.peer = peer, .transport = peer->transport};
    err = kvp_peer_take_ep(peer, deadline_ns, &path_out->ep);
    if (err == KVP_OK) return KVP_OK;
    if (err == KVP_DEADLINE && note_silence(p, peer, began_ns, kvp_now_ns())) err = KVP_UNREACHABLE;
    if (kvp_routes_fail_over(p, peer, err)) {
        err = KVP_STALE;
    } else if (err == KVP_NODE_LOST || err == KVP_FENCED || (kvp_routes_is_fault(err) && err != KVP_NOMEM)) {
        if (err != KVP_NODE_LOST)
            kvp_log_warn("client", "no data connection to node %s by %s%s: %s (%s); `kvpool doctor` shows details",
                         peer->where, peer->tp->ops->name,
                         p->conf.transports_n == 1 ? ", and no other transport was named" : "", kvp_err_text(err),
                         kvp_err_name(err));
        drop_peer(p, peer);
        err = KVP_NODE_LOST;
    }
    kvp_peers_rele(p, peer);
    return err == KVP_BUSY ? KVP_DEADLINE : err;
}

kvp_err_t
kvp_peers_take(kvp_peers_t *p, uint32_t segment_id, size_t from, uint64_t deadline_ns, kvp_path_t *path_out)
{
    kvp_peer_t *peer;
    kvp_err_t err;

    if (from >= p->conf.transports_n) return KVP_NOTSUP;
    do {
        err = hold_peer(p, segment_id, from, deadline_ns, &peer);
        if (err == KVP_OK) err = take_ep(p, peer, deadline_ns, path_out);
    } while (err == KVP_STALE);
    return err;
}

void
kvp_path_rele(kvp_peers_t *p, kvp_path_t *path, bool is_spent)
{
    bool is_stale = path->peer->tp->ops->ep_is_stale(path->ep);

    kvp_peer_give_ep(path->peer, path->ep, is_spent || is_stale);
    if (is_stale) renew_peer(p, path->peer);
    kvp_peers_rele(p, path->peer);
    *path = (kvp_path_t){.peer = NULL};
}

kvp_peer_t *
kvp_path_keep(kvp_peers_t *p, const kvp_path_t *path)
{
    pthread_mutex_lock(&p->lock);
    path->peer->refs++;
    pthread_mutex_unlock(&p->lock);
    return path->peer;
}

uint32_t
kvp_peers_rank(kvp_peers_t *p, uint32_t segment_id)
{
    const kvp_slot_t *slot;
    uint32_t rank = 1;

    pthread_mutex_lock(&p->lock);
    slot = kvp_slot_find(p, segment_id, 0);
    if (slot != NULL && slot->avoid_until_ns != 0 && kvp_now_ns() < slot->avoid_until_ns)
        rank = 3;
    else if (slot != NULL && slot->peer != NULL)
        rank = (slot->peer->tp->ops->caps & KVP_TP_SAME_HOST) != 0 ? 0 : 2;
    else if (slot != NULL && (slot->is_out_of_reach || slot->fails > 0))
        rank = 3;
    pthread_mutex_unlock(&p->lock);
    return rank;
}

static bool
is_avoided(const kvp_slot_t *slot, uint64_t now)
{
    return slot->is_out_of_reach || (slot->peer == NULL && now < slot->next_try_ns) || now < slot->avoid_until_ns;
}

uint32_t
kvp_peers_avoid(kvp_peers_t *p, uint32_t ids[KVP_AVOID_MAX])
{
    uint64_t now = kvp_now_ns();
    uint32_t n = 0;

    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->slots_n && n < KVP_AVOID_MAX; i++)
        if (p->slots[i]->from == 0 && is_avoided(p->slots[i], now)) ids[n++] = p->slots[i]->segment_id;
    pthread_mutex_unlock(&p->lock);
    return n;
}

bool
kvp_peers_are_many(kvp_peers_t *p)
{
    uint64_t now = kvp_now_ns();
    uint32_t n = 0;

    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->slots_n; i++)
        n += p->slots[i]->from == 0 && !is_avoided(p->slots[i], now);
    pthread_mutex_unlock(&p->lock);
    return n > 1;
}

void
kvp_path_fail(kvp_peers_t *p, const kvp_path_t *path, const char *why)
{
    if (path->peer->state == KVP_PEER_ATTACHED)
        kvp_log_warn("client", "node %s is given up for a while: %s", path->peer->where, why);
    drop_peer(p, path->peer);
}

void
kvp_path_ended(kvp_peers_t *p, const kvp_path_t *path)
{
    if (!kvp_peer_has_hung_up(path->peer) && kvp_routes_fail_over(p, path->peer, KVP_DISCONNECTED)) return;
    kvp_path_fail(p, path, "its data connection ended");
}

void
kvp_path_silent(kvp_peers_t *p, const kvp_path_t *path, uint64_t since_ns, uint64_t now_ns)
{
    if (note_silence(p, path->peer, since_ns, now_ns)) kvp_path_fail(p, path, "nothing moves there");
}

void
kvp_peers_late(kvp_peers_t *p, uint32_t segment_id)
{
    kvp_slot_t *slot;

    pthread_mutex_lock(&p->lock);
    slot = kvp_slot_find(p, segment_id, 0);
    if (slot != NULL) slot->avoid_until_ns = kvp_now_ns() + KVP_AVOID_NS;
    pthread_mutex_unlock(&p->lock);
}

void
kvp_path_ok(kvp_peers_t *p, const kvp_path_t *path)
{
    kvp_slot_t *slot;

    if (!atomic_load_explicit(&path->peer->is_on_trial, memory_order_relaxed)) return;
    pthread_mutex_lock(&p->lock);
    path->peer->is_on_trial = false;
    slot = kvp_slot_of(p, path->peer);
    if (slot != NULL && slot->peer == path->peer) {
        slot->fails = 0;
        slot->silent_ns = slot->avoid_until_ns = 0;
    }
    pthread_mutex_unlock(&p->lock);
}

/* ---- chunks */
/* Records that the node needs a drain notice. This happens before the first question for memory for writing, because
 * the node may open the memory although its answer never arrives. */
static void
note_written(kvp_peers_t *p, kvp_peer_t *peer)
{
    kvp_drain_notice_t *notices = NULL;
    bool is_known = false;

    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->notices_n; i++)
        is_known |= memcmp(p->notices[i].uuid, peer->uuid, sizeof peer->uuid) == 0;
    if (!is_known) notices = realloc(p->notices, (p->notices_n + 1) * sizeof *notices);
    if (notices != NULL) {
        kvp_drain_notice_t *notice = &notices[p->notices_n++];

        p->notices = notices;
        notice->until_ns = 0;
        notice->incarnation = kvp_conn_hello(p->conn)->incarnation;
        memcpy(notice->pool_id, kvp_peers_pool_id(p), sizeof notice->pool_id);
        memcpy(notice->uuid, peer->uuid, sizeof peer->uuid);
    }
    atomic_store_explicit(&peer->needs_notice, true, memory_order_release);
    pthread_mutex_unlock(&p->lock);
    if (!is_known && notices == NULL)
        kvp_log_error("client", "out of memory: node %s will not be told that writes are over", peer->where);
}

kvp_err_t
kvp_path_chunk(kvp_peers_t *p, const kvp_path_t *path, uint32_t chunk, kvp_access_t access, uint64_t deadline_ns,
               kvp_chunk_mem_t *mem_out)
{
    kvp_peer_t *peer = path->peer;
    bool may_write = access == KVP_ACCESS_WRITE && (peer->tp->ops->caps & KVP_TP_SAME_HOST) != 0;
    kvp_err_t err;

    if (may_write && !atomic_load_explicit(&peer->needs_notice, memory_order_acquire)) note_written(p, peer);
    err = kvp_peer_chunk(peer, chunk, access, deadline_ns, mem_out);
    if (err == KVP_FENCED) kvp_conn_break(p->conn);
    if (err == KVP_OK || err == KVP_EAGAIN || err == KVP_NOTSUP || err == KVP_DEADLINE || err == KVP_PROTO) return err;
    if (kvp_routes_fail_over(p, peer, err)) return KVP_STALE;
    if (err == KVP_NOMEM) return err;
    drop_peer(p, peer);
    return KVP_NODE_LOST;
}

/* ---- work of the background thread */
/* Returns the i-th slot's attachment with a reference, or NULL in *peer_out if it has none. Returns false after the
 * last slot. */
static bool
hold_nth(kvp_peers_t *p, size_t i, kvp_peer_t **peer_out)
{
    bool is_there;

    *peer_out = NULL;
    pthread_mutex_lock(&p->lock);
    is_there = i < p->slots_n;
    if (is_there) *peer_out = p->slots[i]->peer;
    if (*peer_out != NULL) (*peer_out)->refs++;
    pthread_mutex_unlock(&p->lock);
    return is_there;
}

/* Closes the least recently used idle endpoint if there are more than the limit, because connections take memory here
 * and at the node. */
static void
drop_idle_ep(kvp_peers_t *p)
{
    uint32_t max = p->conf.max_idle_eps == 0 ? IDLE_EPS_MAX : p->conf.max_idle_eps;
    uint64_t now_ns = kvp_now_ns(), oldest_ns = UINT64_MAX;
    kvp_peer_t *peer, *oldest = NULL;
    uint32_t n = 0;

    for (size_t i = 0; hold_nth(p, i, &peer); i++) {
        uint64_t unused_ns = 0;

        if (peer != NULL) n += kvp_peer_look_idle(peer, now_ns, &unused_ns);
        if (unused_ns != 0 && unused_ns < oldest_ns) {
            if (oldest != NULL) kvp_peers_rele(p, oldest);
            oldest_ns = unused_ns;
            oldest = peer;
        } else if (peer != NULL) {
            kvp_peers_rele(p, peer);
        }
    }
    if (oldest == NULL) return; /* every endpoint was used a moment ago */
    if (n > max) kvp_peer_drop_idle(oldest);
    kvp_peers_rele(p, oldest);
}

/* Lets each transport do its periodic work. Needs no attachment: a transport may wait for a removed device to
 * return. */
static void
tend_transports(kvp_peers_t *p)
{
    for (size_t i = 0; i < p->conf.transports_n; i++) {
        kvp_tp_t *tp;

        pthread_mutex_lock(&p->lock);
        tp = p->tps[i]; /* destroyed together with the link only */
        pthread_mutex_unlock(&p->lock);
        if (tp != NULL) tp->ops->tend(tp);
    }
}

bool
kvp_peers_tend(kvp_peers_t *p)
{
    kvp_peer_t *peer;
    bool has_more = kvp_routes_try(p);

    destroy_dead(p);
    tend_transports(p);
    drop_idle_ep(p);
    for (size_t i = 0; hold_nth(p, i, &peer); i++) {
        if (peer == NULL) continue;
        if (kvp_peer_has_hung_up(peer)) {
            kvp_log_info("client", "node %s closed its connection", peer->where);
            drop_peer(p, peer);
        } else if (kvp_peer_is_stale(peer)) {
            renew_peer(p, peer);
        } else {
            has_more |= kvp_peer_map_some(peer);
        }
        kvp_peers_rele(p, peer);
    }
    return has_more;
}

void
kvp_peers_let_go(kvp_peers_t *p)
{
    kvp_peer_t *peer;

    kvp_trial_end(&p->trial);
    for (size_t i = 0; hold_nth(p, i, &peer); i++) {
        if (peer == NULL) continue;
        pthread_mutex_lock(&p->lock);
        p->slots[i]->peer = NULL;
        pthread_mutex_unlock(&p->lock);
        kvp_peers_rele(p, peer); /* the slot's reference */
        kvp_peers_rele(p, peer); /* the reference of hold_nth */
    }
    destroy_dead(p);
}

kvp_err_t
kvp_peers_drain_notices(kvp_peers_t *p, kvp_drain_notice_t **notices_out, size_t *n_out)
{
    kvp_drain_notice_t *copy = NULL;
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&p->lock);
    if (p->notices_n > 0) {
        copy = malloc(p->notices_n * sizeof *copy);
        if (copy != NULL)
            memcpy(copy, p->notices, p->notices_n * sizeof *copy);
        else
            err = KVP_NOMEM;
    }
    *n_out = copy == NULL ? 0 : p->notices_n;
    *notices_out = copy;
    pthread_mutex_unlock(&p->lock);
    return err;
}

typedef struct {
    const uint8_t *uuid;
    uint32_t segment_id;
    bool is_found;
} by_uuid_t;

static bool
match_uuid(void *arg, const Kvp__Pb__SegmentInfo *info)
{
    by_uuid_t *by = arg;

    if (memcmp(info->uuid.data, by->uuid, 16) != 0) return true;
    by->segment_id = info->segment_id;
    by->is_found = true;
    return false;
}

/* Returns the existing attachment to the segment with a reference; NULL = none. */
static kvp_peer_t *
hold_attached(kvp_peers_t *p, const uint8_t *uuid)
{
    kvp_peer_t *peer = NULL;

    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->slots_n && peer == NULL; i++)
        if (p->slots[i]->peer != NULL && memcmp(p->slots[i]->peer->uuid, uuid, sizeof p->slots[i]->peer->uuid) == 0)
            peer = p->slots[i]->peer;
    if (peer != NULL) peer->refs++;
    pthread_mutex_unlock(&p->lock);
    return peer;
}

static kvp_err_t
hold_by_uuid(kvp_peers_t *p, const uint8_t *uuid, uint64_t deadline_ns, kvp_peer_t **peer_out)
{
    by_uuid_t by = {.uuid = uuid};
    kvp_err_t err;

    *peer_out = hold_attached(p, uuid);
    if (*peer_out != NULL) {
        if (!kvp_peer_has_hung_up(*peer_out)) return KVP_OK;
        kvp_peers_rele(p, *peer_out);
    }
    err = kvp_segments_walk(p->conn, deadline_ns, match_uuid, &by);
    if (err != KVP_OK) return err;
    return by.is_found ? hold_peer(p, by.segment_id, 0, deadline_ns, peer_out) : KVP_NO_SEGMENT;
}

kvp_err_t
kvp_peers_send_drained(kvp_peers_t *p, const kvp_drain_notice_t *notice, uint64_t deadline_ns)
{
    kvp_peer_t *peer;
    kvp_err_t err = hold_by_uuid(p, notice->uuid, deadline_ns, &peer);

    if (err != KVP_OK) return err;
    err = kvp_peer_drained(peer, notice->incarnation, deadline_ns);
    if (err == KVP_NODE_LOST) drop_peer(p, peer);
    kvp_peers_rele(p, peer);
    return err;
}

const char *
kvp_peers_transport(kvp_peers_t *p, uint32_t segment_id, const char *host_id, const char *offered,
                    const char *unix_path)
{
    const char *name = NULL, *other = "none";
    uint64_t now_ns = kvp_now_ns();
    const kvp_slot_t *slot;

    pthread_mutex_lock(&p->lock);
    slot = kvp_slot_find(p, segment_id, 0);
    if (slot != NULL && slot->peer != NULL) name = p->conf.transports[slot->peer->transport]->name;
    for (size_t i = 0; name == NULL && i < p->conf.transports_n; i++) {
        if (!leads_there(p, i, host_id, offered)) continue;
        if ((p->conf.transports[i]->caps & KVP_TP_SAME_HOST) != 0 && unix_path[0] != '\0' &&
            access(unix_path, W_OK) != 0)
            continue;
        other = p->conf.transports[i]->name;
        if (slot == NULL || !kvp_route_is_out(&slot->routes[i], now_ns)) name = other;
    }
    pthread_mutex_unlock(&p->lock);
    return name == NULL ? other : name;
}
