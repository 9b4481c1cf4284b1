/* SPDX-License-Identifier: Apache-2.0
 * kvpool_p2p_*: opens and closes an endpoint, and begins and ends its calls.
 *
 * Life of an endpoint, as of a pool's handle (client/api/pool.c): open, calls by any threads, close, free. Close
 * makes running calls end with CLOSED and waits for them. In a forked child every call returns FORKED, and
 * kvpool_p2p_free frees nothing but the endpoint itself. */
#include "client/api/env.h"
#include "p2p/endpoint.h"

#include "common/waits.h"
#include "transport/all/registry.h"
#include "common/forkguard.h"
#include "common/hostid.h"
#include "common/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_DEFAULT_MS 30000u
#define LISTEN_DEFAULT "127.0.0.1:0"
#define TRANSPORTS_DEFAULT "cma,rdma,tcp"
#define STAT_V1_BYTES offsetof(kvpool_p2p_stat_t, rdma_bytes)
#define WHY_MAX 512
#define OWN_STAGES_MAX                                                                                                 \
    32u /* most bounce buffers: one for each background thread, because a stopped peer may block any thread */
#define FLAGS_ALL (KVPOOL_P2P_TOKENS | KVPOOL_P2P_TRACEABLE)

/* Pool id for the transport's connections between peers, which belong to no pool. */
static const uint8_t pool_of_peers[16] = "kvpool peers 1";

/* ---- begin and end of every call */
kvp_err_t
kvp_p2p_enter(kvpool_p2p_t *p2p)
{
    if (p2p == NULL) return KVP_INVALID;
    if (kvp_forkguard_is_forked(&p2p->guard)) return KVP_FORKED;
    return kvp_calls_enter(&p2p->calls);
}

kvp_err_t
kvp_p2p_leave(kvpool_p2p_t *p2p, kvp_err_t err)
{
    kvp_calls_leave(&p2p->calls);
    return err;
}

uint64_t
kvp_p2p_deadline(const kvpool_p2p_t *p2p, uint32_t deadline_ms)
{
    return kvp_now_ns() + (deadline_ms != 0 ? deadline_ms : p2p->deadline_ms) * KVP_NS_PER_MS;
}

kvp_err_t
kvp_p2p_check(const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n, kvp_hostport_t *where_out)
{
    if (peer == NULL || (ops == NULL && n > 0)) return KVP_INVALID;
    if (kind != KVPOOL_P2P_READ && kind != KVPOOL_P2P_WRITE) return KVP_INVALID;
    for (size_t i = 0; i < n; i++) {
        if (ops[i].len == 0) continue;
        if (ops[i].local == NULL || ops[i].len > UINT64_MAX - ops[i].remote) return KVP_INVALID;
        if (ops[i].len > UINTPTR_MAX - (uintptr_t)ops[i].local) return KVP_INVALID;
    }
    if (kvp_parse_hostport(peer, where_out) != KVP_OK) return KVP_INVALID;
    return where_out->port != 0 && where_out->host[0] != '\0' ? KVP_OK : KVP_INVALID;
}

/* ---- transfers */

/* Returns true if the lane may be used again after a transfer with this result. */
static bool
is_lane_good(kvp_err_t err)
{
    return err == KVP_OK || err == KVP_NOT_REGISTERED;
}

static kvp_err_t
run_once(kvpool_p2p_t *p2p, const kvp_hostport_t *peer, const kvp_p2p_transfer_t *t, bool has_device, bool is_new)
{
    kvp_p2p_moved_t moved = {0};
    kvp_p2p_lane_t *lane;
    kvp_err_t err = kvp_p2p_lane_take(&p2p->lanes, peer, is_new, t->deadline_ns, &lane);

    if (err != KVP_OK) return err;
    err = has_device ? KVP_NOTSUP : kvp_p2p_move(lane, t, &moved);
    if (has_device || moved.met_device) {
        moved = (kvp_p2p_moved_t){0};
        err = kvp_p2p_bounced_move(lane, t, &moved);
    }
    kvp_p2p_lane_give(&p2p->lanes, lane, is_lane_good(err) && !lane->has_bounce);
    atomic_fetch_add(&p2p->cma_bytes, moved.cma_bytes);
    atomic_fetch_add(&p2p->mapped_bytes, moved.mapped_bytes);
    atomic_fetch_add(&p2p->rdma_bytes, moved.rdma_bytes);
    atomic_fetch_add(&p2p->tcp_bytes, moved.tcp_bytes);
    return err;
}

void
kvp_p2p_count(kvpool_p2p_t *p2p, kvp_err_t err)
{
    atomic_fetch_add(err == KVP_OK ? &p2p->transfers : &p2p->failed, 1);
}

kvp_err_t
kvp_p2p_run(kvpool_p2p_t *p2p, const kvp_hostport_t *peer, const kvp_p2p_transfer_t *transfer)
{
    bool has_device;
    kvp_err_t err = kvp_p2p_ranges_have_device(&p2p->ranges, transfer->ops, transfer->n, &has_device);

    if (err != KVP_OK) return err;
    err = run_once(p2p, peer, transfer, has_device, false);
    /* After DISCONNECTED repeat once on a new lane: the peer may have restarted, or unregistered memory meanwhile. A
     * CORRUPT read is repeated too; not a CORRUPT write, whose range may belong to another transfer by now. */
    if (err == KVP_DISCONNECTED || (err == KVP_CORRUPT && !transfer->is_write))
        err = run_once(p2p, peer, transfer, has_device, true);
    return err;
}

static kvp_err_t
hold_and_run(kvpool_p2p_t *p2p, const kvp_hostport_t *peer, const kvp_p2p_transfer_t *transfer)
{
    kvp_regs_held_t held = {0};
    kvp_err_t err = kvp_p2p_ranges_hold_local(&p2p->ranges, transfer->ops, transfer->n, &held);

    if (err != KVP_OK) return err;
    err = kvp_p2p_run(p2p, peer, transfer);
    kvp_regs_rele_all(&p2p->ranges.regs, &held);
    return err;
}

int
kvpool_p2p_transfer(kvpool_p2p_t *p2p, const char *peer, int kind, const kvpool_p2p_op_t *ops, size_t n,
                    uint32_t deadline_ms)
{
    kvp_p2p_transfer_t transfer = {.is_write = kind == KVPOOL_P2P_WRITE, .ops = ops, .n = n};
    kvp_hostport_t where;
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    transfer.deadline_ns = kvp_p2p_deadline(p2p, deadline_ms);
    err = kvp_p2p_check(peer, kind, ops, n, &where);
    if (err == KVP_OK) err = hold_and_run(p2p, &where, &transfer);
    kvp_p2p_count(p2p, err);
    return kvp_p2p_leave(p2p, err);
}

/* ---- questions to a peer, outside of transfers */
typedef kvp_err_t (*question_fn)(kvp_p2p_lane_t *lane, void *arg, uint64_t deadline_ns);

static kvp_err_t
ask_peer(kvpool_p2p_t *p2p, const char *peer, uint32_t deadline_ms, question_fn question, void *arg)
{
    uint64_t deadline_ns = kvp_p2p_deadline(p2p, deadline_ms);
    kvp_p2p_lane_t *lane;
    kvp_hostport_t where;
    kvp_err_t err = kvp_p2p_check(peer, KVPOOL_P2P_READ, NULL, 0, &where);

    for (int is_new = 0; err == KVP_OK && is_new <= 1; is_new++) {
        err = kvp_p2p_lane_take(&p2p->lanes, &where, is_new != 0, deadline_ns, &lane);
        if (err == KVP_OK) {
            err = question(lane, arg, deadline_ns);
            kvp_p2p_lane_give(&p2p->lanes, lane, is_lane_good(err) || err == KVP_LIMIT);
        }
        if (err != KVP_DISCONNECTED) return err;
        if (is_new == 0) err = KVP_OK;
    }
    return err;
}

static kvp_err_t
ask_first(kvp_p2p_lane_t *lane, void *arg, uint64_t deadline_ns)
{
    kvp_peer_range_t *range = arg;
    kvp_peer_at_t at = {0};
    kvp_peer_find_t asked = {.at = &at, .n = 1, .may_stage = true};
    const void *records = NULL;
    kvp_err_t err;

    kvp_peer_find_encode(&lane->io.out, kvp_p2p_lane_id(lane), &asked);
    err = kvp_p2p_lane_ask(lane, KVP_OP_PEER_FIND, 1, sizeof *range, deadline_ns, &records);
    if (err != KVP_OK) return err;
    memcpy(range, records, sizeof *range);
    return kvp_peer_range_check(range, &at);
}

int
kvpool_p2p_first_range(kvpool_p2p_t *p2p, const char *peer, uint32_t deadline_ms, uint64_t *addr_out, size_t *len_out)
{
    kvp_peer_range_t range;
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    err = addr_out == NULL || len_out == NULL ? KVP_INVALID : ask_peer(p2p, peer, deadline_ms, ask_first, &range);
    if (err == KVP_OK) {
        *addr_out = range.base;
        *len_out = (size_t)range.len;
    }
    return kvp_p2p_leave(p2p, err);
}

static kvp_err_t
ask_notify(kvp_p2p_lane_t *lane, void *arg, uint64_t deadline_ns)
{
    const char *const *note = arg; /* note[0] is the name of the notification, note[1] its message */
    const void *records = NULL;

    kvp_peer_note_encode(&lane->io.out, kvp_p2p_lane_id(lane), note[0], note[1]);
    return kvp_p2p_lane_ask(lane, KVP_OP_PEER_NOTIFY, 0, 0, deadline_ns, &records);
}

int
kvpool_p2p_notify(kvpool_p2p_t *p2p, const char *peer, const char *name, const char *message, uint32_t deadline_ms)
{
    const char *note[2] = {name, message};
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    if (name == NULL || message == NULL || strlen(name) > KVP_PEER_NOTIFY_NAME_MAX ||
        strlen(message) > KVP_PEER_NOTIFY_MAX)
        err = KVP_INVALID;
    else
        err = ask_peer(p2p, peer, deadline_ms, ask_notify, note);
    return kvp_p2p_leave(p2p, err);
}

int
kvpool_p2p_take_notify(kvpool_p2p_t *p2p, char **name_out, char **message_out)
{
    kvp_peer_note_t *note;
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    if (name_out == NULL || message_out == NULL) return kvp_p2p_leave(p2p, KVP_INVALID);
    note = kvp_p2p_server_note(p2p->server);
    if (note == NULL) return kvp_p2p_leave(p2p, KVP_NOT_FOUND);
    /* Both texts follow the note's header. Move both texts to the beginning of the note: the caller gets one
     * allocation to free. */
    size_t name_len = strlen(note->name) + 1, message_len = strlen(note->message) + 1;
    *name_out = memmove(note, note->name, name_len + message_len);
    *message_out = *name_out + name_len;
    return kvp_p2p_leave(p2p, KVP_OK);
}

/* ---- figures */
uint16_t
kvpool_p2p_port(const kvpool_p2p_t *p2p)
{
    return p2p != NULL ? p2p->port : 0;
}

int
kvpool_p2p_stat(kvpool_p2p_t *p2p, kvpool_p2p_stat_t *stat_out)
{
    kvp_err_t err = kvp_p2p_enter(p2p);

    if (err != KVP_OK) return err;
    if (stat_out == NULL || (stat_out->struct_size != sizeof *stat_out && stat_out->struct_size != STAT_V1_BYTES))
        return kvp_p2p_leave(p2p, KVP_INVALID);
    stat_out->transfers = atomic_load(&p2p->transfers);
    stat_out->failed = atomic_load(&p2p->failed);
    stat_out->cma_bytes = atomic_load(&p2p->cma_bytes);
    stat_out->mapped_bytes = atomic_load(&p2p->mapped_bytes);
    stat_out->tcp_bytes = atomic_load(&p2p->tcp_bytes);
    stat_out->connects = atomic_load(&p2p->connects);
    if (stat_out->struct_size > STAT_V1_BYTES) stat_out->rdma_bytes = atomic_load(&p2p->rdma_bytes);
    return kvp_p2p_leave(p2p, KVP_OK);
}

/* ---- open */
enum { USE_CMA = 1u << 0, USE_RDMA = 1u << 1, USE_TCP = 1u << 2 };

typedef struct {
    kvpool_p2p_conf_t conf; /* the caller's configuration with defaults */
    kvp_hostport_t listen;
    uint32_t transports; /* bit set of USE_* */
    bool needs_rdma; /* the caller named the transports: if RDMA is among them, RDMA must work */
    bool trusts_adapters;
} opening_t;

static kvp_err_t
refuse_opening(const opening_t *o, kvp_err_t err, const char *what, const char *why)
{
    return kvp_refuse(o->conf.detail, o->conf.detail_cap, err, what, why);
}

static kvp_err_t
read_transports(opening_t *o)
{
    static const char *const words[] = {"cma", "rdma", "tcp"}; /* in the order of the bits USE_* */
    const char *at = o->conf.transports;

    for (;;) {
        size_t len = strcspn(at, ","), i = 0;

        while (i < KVP_ARRAY_LEN(words) && (strlen(words[i]) != len || memcmp(at, words[i], len) != 0))
            i++;
        if (i == KVP_ARRAY_LEN(words))
            return refuse_opening(o, KVP_INVALID, "transports", "\"cma,rdma,tcp\" or some of these are expected");
        o->transports |= 1u << i;
        if (at[len] == '\0') return KVP_OK;
        at += len + 1;
    }
}

static kvp_err_t
read_conf(const kvpool_p2p_conf_t *conf, opening_t *o)
{
    uint32_t verify = KVPOOL_VERIFY_AUTO;
    kvp_err_t err;

    memset(o, 0, sizeof *o);
    if (conf != NULL) {
        if (conf->struct_size != sizeof *conf) return KVP_INVALID;
        o->conf = *conf;
        if (o->conf.detail != NULL && o->conf.detail_cap > 0) o->conf.detail[0] = '\0';
    }
    if (o->conf.listen == NULL || o->conf.listen[0] == '\0') o->conf.listen = LISTEN_DEFAULT;
    o->needs_rdma = o->conf.transports != NULL && o->conf.transports[0] != '\0'; /* the caller named transports */
    if (!o->needs_rdma) o->conf.transports = TRANSPORTS_DEFAULT;
    if (o->conf.deadline_ms == 0) o->conf.deadline_ms = DEADLINE_DEFAULT_MS;
    if ((o->conf.flags & ~FLAGS_ALL) != 0) return refuse_opening(o, KVP_INVALID, "flags", "unknown flags");
    if (o->conf.host_id != NULL && strlen(o->conf.host_id) > KVP_HOST_ID_MAX)
        return refuse_opening(o, KVP_INVALID, "host_id", "at most 128 bytes are expected");
    if (kvp_parse_hostport(o->conf.listen, &o->listen) != KVP_OK)
        return refuse_opening(o, KVP_INVALID, "listen", "\"HOST:PORT\" is expected");
    err = kvp_env_log(o->conf.detail, o->conf.detail_cap);
    if (err == KVP_OK) err = kvp_env_verify(o->conf.detail, o->conf.detail_cap, &verify);
    if (err != KVP_OK) return err;
    o->trusts_adapters = verify == KVPOOL_VERIFY_ADAPTERS;
    return read_transports(o);
}

static void
fill_hello(kvpool_p2p_t *p2p, const opening_t *o)
{
    kvp_peer_hello_t *me = &p2p->me;

    me->version = KVP_PROTO_VERSION;
    me->version_min = KVP_PROTO_VERSION_MIN;
    me->incarnation = kvp_random_u64();
    if (o->conf.host_id != NULL && o->conf.host_id[0] != '\0')
        snprintf(me->host_id, sizeof me->host_id, "%s", o->conf.host_id);
    else
        kvp_host_id(me->host_id);
    if ((o->transports & USE_CMA) == 0) return;
    if ((o->conf.flags & KVPOOL_P2P_TRACEABLE) != 0) kvp_cma_allow();
    me->proc.is_told = true;
    me->proc.nonce_at = (uintptr_t)me->proc.nonce;
    kvp_random_bytes(me->proc.nonce, sizeof me->proc.nonce);
}

static void
watch_peer(void *arg, int fd)
{
    const kvpool_p2p_t *p2p = arg;

    kvp_p2p_server_watch(p2p->server, fd);
}

static void
on_peer_gone(void *arg)
{
    kvpool_p2p_t *p2p = arg;

    kvp_p2p_lanes_sweep(&p2p->lanes);
}

/* Opens RDMA. If RDMA is only a default and cannot be used, it is left out. It is required if the caller named the
 * transports or $KVPOOL_RDMA_DEVICE names a device. */
static kvp_err_t
open_rdma(kvpool_p2p_t *p2p, const opening_t *o, const kvp_tp_conf_t *tp_conf)
{
    const char *device = getenv("KVPOOL_RDMA_DEVICE");
    bool is_needed = o->needs_rdma || (device != NULL && device[0] != '\0');
    char why[WHY_MAX] = "";
    kvp_err_t err;

    if ((o->transports & USE_RDMA) == 0) return KVP_OK;
    err = kvp_p2p_rdma_open(&p2p->rdma, tp_conf, o->listen.host, why, sizeof why);
    if (err == KVP_OK || err == KVP_NOMEM) return err;
    if (is_needed) return refuse_opening(o, err, "rdma", why);
    kvp_log_debug("client", "peers are not reached by rdma: %s", why);
    return KVP_OK;
}

static kvp_err_t
start_parts(kvpool_p2p_t *p2p, const opening_t *o)
{
    kvp_tp_conf_t tp_conf = {.incarnation = p2p->me.incarnation,
                             .is_incarnation_drawn = true,
                             .needs_attachment = true,
                             .trusts_adapters = o->trusts_adapters,
                             .lanes = KVP_P2P_LANES,
                             .max_conns = KVP_P2P_CONNS_MAX};
    kvp_p2p_server_conf_t server = {.listen = o->listen,
                                    .ranges = &p2p->ranges,
                                    .owns = &p2p->owns,
                                    .pullers = &p2p->pullers,
                                    .watched = on_peer_gone,
                                    .watched_arg = p2p,
                                    .me = &p2p->me,
                                    .needs_tokens = (o->conf.flags & KVPOOL_P2P_TOKENS) != 0};
    kvp_p2p_lanes_conf_t lanes = {.me = &p2p->me,
                                  .has_tcp = (o->transports & USE_TCP) != 0,
                                  .is_given_up = &p2p->is_given_up,
                                  .uncuts = &p2p->uncuts,
                                  .maps = &p2p->maps,
                                  .ranges = &p2p->ranges,
                                  .pullers = &p2p->pullers,
                                  .bounces = &p2p->bounces,
                                  .watch = watch_peer,
                                  .watch_arg = p2p,
                                  .connects = &p2p->connects};
    kvp_err_t err = kvp_names_create(&p2p->names);

    if (err != KVP_OK) return err;
    kvp_transports_init();
    memcpy(tp_conf.pool_id, pool_of_peers, sizeof tp_conf.pool_id);
    err = kvp_tp_create(kvp_transport_find("tcp"), &tp_conf, &p2p->tp);
    if (err == KVP_OK) err = kvp_tp_create(kvp_transport_find("shm"), &tp_conf, &p2p->shm);
    if (err == KVP_OK) err = open_rdma(p2p, o, &tp_conf);
    if (err != KVP_OK) return err;
    kvp_p2p_owns_init(&p2p->owns, p2p->shm);
    p2p->has_owns = true;
    kvp_p2p_ranges_init(&p2p->ranges, p2p->tp, p2p->rdma.tp, (o->transports & USE_TCP) == 0);
    kvp_p2p_pullers_init(&p2p->pullers);
    kvp_bounces_init(&p2p->bounces, OWN_STAGES_MAX, 1);
    lanes.names = p2p->names;
    lanes.tp = p2p->tp;
    lanes.rdma = p2p->rdma.tp;
    kvp_p2p_uncuts_init(&p2p->uncuts);
    kvp_p2p_maps_init(&p2p->maps, p2p->shm);
    kvp_p2p_lanes_init(&p2p->lanes, &lanes);
    p2p->has_parts = true;
    err = kvp_p2p_async_create(p2p, &p2p->async);
    if (err != KVP_OK) return err;
    err = kvp_p2p_rdma_start(&p2p->rdma, on_peer_gone, p2p);
    if (err != KVP_OK) return err;
    server.tp = p2p->tp;
    server.rdma = p2p->rdma.tp;
    server.rdma_port = p2p->rdma.port;
    return kvp_p2p_server_start(&server, &p2p->server, &p2p->port);
}

/* Ends all parts of the endpoint that exist, except memory that kvpool_p2p_alloc gave out. No call is running. */
static void
stop_parts(kvpool_p2p_t *p2p)
{
    if (p2p->async != NULL) kvp_p2p_async_destroy(p2p->async);
    if (p2p->has_owns) kvp_p2p_owns_close(&p2p->owns);
    kvp_p2p_rdma_stop(&p2p->rdma); /* the thread of the RDMA transport ends first, because it uses the lanes */
    kvp_p2p_server_stop(p2p->server);
    if (p2p->has_parts) {
        kvp_p2p_lanes_fini(&p2p->lanes);
        kvp_p2p_maps_fini(&p2p->maps);
        kvp_p2p_uncuts_fini(&p2p->uncuts);
        kvp_bounces_fini(&p2p->bounces);
        kvp_p2p_pullers_fini(&p2p->pullers);
        kvp_p2p_ranges_fini(&p2p->ranges);
    }
    kvp_p2p_rdma_close(&p2p->rdma);
    if (p2p->tp != NULL) kvp_tp_destroy(p2p->tp);
    kvp_names_destroy(p2p->names);
    p2p->async = NULL;
    p2p->server = NULL;
    p2p->has_parts = false;
    p2p->tp = NULL;
    p2p->names = NULL;
}

int
kvpool_p2p_open(const kvpool_p2p_conf_t *conf, kvpool_p2p_t **p2p_out)
{
    kvpool_p2p_t *p2p;
    opening_t o;
    kvp_err_t err;

    if (p2p_out == NULL) return KVP_INVALID;
    err = read_conf(conf, &o);
    if (err != KVP_OK) return err;
    p2p = calloc(1, sizeof *p2p);
    if (p2p == NULL) return KVP_NOMEM;
    kvp_forkguard_init(&p2p->guard);
    kvp_calls_init(&p2p->calls);
    p2p->deadline_ms = o.conf.deadline_ms;
    fill_hello(p2p, &o);
    kvp_log_divert(o.conf.detail_cap > 0 ? o.conf.detail : NULL, o.conf.detail_cap);
    err = start_parts(p2p, &o);
    kvp_log_divert(NULL, 0);
    if (err != KVP_OK) {
        kvpool_p2p_free(p2p);
        return err;
    }
    *p2p_out = p2p;
    return KVP_OK;
}

/* ---- close */
int
kvpool_p2p_close(kvpool_p2p_t *p2p)
{
    kvp_err_t err;

    if (p2p == NULL) return KVP_INVALID;
    if (kvp_forkguard_is_forked(&p2p->guard)) return KVP_FORKED;
    err = kvp_calls_close(&p2p->calls);
    if (err != KVP_OK) return err;
    atomic_store(&p2p->is_given_up, true);
    kvp_calls_wait(&p2p->calls);
    stop_parts(p2p);
    return KVP_OK;
}

void
kvpool_p2p_free(kvpool_p2p_t *p2p)
{
    if (p2p == NULL) return;
    if (!kvp_forkguard_is_forked(&p2p->guard)) {
        kvp_ignore(kvpool_p2p_close(p2p), "it may be closed already");
        if (p2p->has_owns) kvp_p2p_owns_fini(&p2p->owns);
        if (p2p->shm != NULL) kvp_tp_destroy(p2p->shm);
        kvp_forkguard_fini(&p2p->guard);
        kvp_calls_fini(&p2p->calls);
    }
    free(p2p);
}
