/* SPDX-License-Identifier: Apache-2.0
 * Design notes. A peer's messages are checked on arrival, so each range that this file returns contains the requested
 * piece. A lane with an error is closed, never repaired; the next transfer opens another lane. */
#include "p2p/ask/lane.h"

#include "p2p/ask/path.h"

#include "net/hello.h"
#include "common/waits.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SEEN_MAX 16384u /* most ranges of one peer in a lane's cache */

/* ---- questions to the peer */
uint64_t
kvp_p2p_lane_id(kvp_p2p_lane_t *lane)
{
    return ++lane->last_id;
}

kvp_err_t
kvp_p2p_lane_ask(kvp_p2p_lane_t *lane, uint8_t opcode, uint32_t n, size_t record_bytes, uint64_t deadline_ns,
                 const void **records_out)
{
    kvp_frame_t frame;
    kvp_err_t err = lane->io.out.err;

    if (err == KVP_OK) err = kvp_exchange(&lane->io, lane->last_id, deadline_ns, &frame);
    if (err == KVP_LIMIT) err = KVP_PROTO; /* LIMIT: the peer's answer is longer than any valid answer */
    if (err == KVP_OK && KVP_FRAME_HDR_BYTES + (size_t)frame.hdr.length > KVP_PEER_REPLY_MAX) err = KVP_PROTO;
    return err != KVP_OK ? err : kvp_peer_reply_decode(&frame, opcode, n, record_bytes, records_out);
}

kvp_err_t
kvp_p2p_lane_look(const kvp_p2p_lane_t *lane, uint64_t deadline_ns)
{
    if (kvp_now_ns() >= deadline_ns) return KVP_DEADLINE;
    return kvp_is_given_up(lane->conf->is_given_up) ? KVP_CLOSED : KVP_OK;
}

/* ---- the peer's ranges */
static size_t
upper_bound(const kvp_p2p_lane_t *lane, uint64_t addr)
{
    size_t lo = 0, hi = lane->seen_n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (lane->seen[mid].base <= addr)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

kvp_p2p_seen_t *
kvp_p2p_lane_seen(const kvp_p2p_lane_t *lane, const kvp_peer_at_t *at)
{
    size_t i = upper_bound(lane, at->addr);
    kvp_p2p_seen_t *seen = i > 0 ? &lane->seen[i - 1] : NULL;

    if (seen == NULL || (at->token != 0 && at->token != seen->token)) return NULL;
    uint64_t off = at->addr - seen->base;
    return off < seen->len && at->len <= seen->len - off ? seen : NULL;
}

static void
seen_drop(kvp_p2p_lane_t *lane, kvp_p2p_seen_t *seen)
{
    kvp_rseg_destroy(seen->rseg);
    kvp_p2p_maps_rele(lane->conf->maps, seen->map);
}

void
kvp_p2p_lane_forget(kvp_p2p_lane_t *lane)
{
    for (size_t i = 0; i < lane->seen_n; i++)
        seen_drop(lane, &lane->seen[i]);
    lane->seen_n = 0;
}

/* drop_overlapping drops the cached ranges that overlap [base, base + len): the peer has replaced them. */
static void
drop_overlapping(kvp_p2p_lane_t *lane, uint64_t base, uint64_t len)
{
    size_t first = upper_bound(lane, base), end = first;

    if (first > 0 && base - lane->seen[first - 1].base < lane->seen[first - 1].len) first--;
    while (end < lane->seen_n && lane->seen[end].base - base < len)
        end++;
    if (end == first) return;
    for (size_t i = first; i < end; i++)
        seen_drop(lane, &lane->seen[i]);
    memmove(lane->seen + first, lane->seen + end, (lane->seen_n - end) * sizeof *lane->seen);
    lane->seen_n -= end - first;
}

static kvp_err_t
add_seen(kvp_p2p_lane_t *lane, const kvp_peer_range_t *range)
{
    kvp_p2p_seen_t seen = {.base = range->base, .len = range->len, .token = range->token};
    kvp_token_t key = {.len = (uint8_t)range->key_len, .fd = -1};
    kvp_p2p_seen_t *grown;
    kvp_err_t err;

    memcpy(key.bytes, range->key, range->key_len);
    drop_overlapping(lane, range->base, range->len);
    grown = kvp_grow(lane->seen, lane->seen_n, &lane->seen_cap, 16, sizeof *grown);
    if (grown == NULL) return KVP_NOMEM;
    lane->seen = grown;
    if (range->key_len == 0) {
        lane->has_devices = true;
    } else {
        err = kvp_rseg_create(lane->tp, &key, range->len, KVP_ACCESS_WRITE, &seen.rseg);
        if (err != KVP_OK) return err == KVP_NOMEM ? err : KVP_PROTO;
    }
    size_t i = upper_bound(lane, range->base);
    memmove(lane->seen + i + 1, lane->seen + i, (lane->seen_n - i) * sizeof *lane->seen);
    lane->seen[i] = seen;
    lane->seen_n++;
    return KVP_OK;
}

/* Asks the peer for the ranges of n places, at most as many as one message takes, and caches them. */
static kvp_err_t
find_ranges(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
{
    const kvp_peer_range_t *ranges;
    const void *records = NULL;
    kvp_peer_find_t asked = {.at = at, .n = n, .by_rdma = kvp_p2p_lane_is_by_rdma(lane), .may_stage = true};
    kvp_err_t err;

    kvp_peer_find_encode(&lane->io.out, kvp_p2p_lane_id(lane), &asked);
    err = kvp_p2p_lane_ask(lane, KVP_OP_PEER_FIND, n, sizeof *ranges, deadline_ns, &records);
    ranges = records;
    for (uint32_t i = 0; err == KVP_OK && i < n; i++) {
        err = kvp_peer_range_check(&ranges[i], &at[i]);
        if (err == KVP_OK && kvp_p2p_lane_seen(lane, &at[i]) == NULL) err = add_seen(lane, &ranges[i]);
    }
    return err;
}

kvp_err_t
kvp_p2p_lane_learn(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
{
    kvp_peer_at_t unknown[64];
    uint32_t unknown_n = 0;

    if (lane->seen_n + n > SEEN_MAX) kvp_p2p_lane_forget(lane);
    for (uint32_t i = 0; i < n; i++) {
        if (kvp_p2p_lane_seen(lane, &at[i]) == NULL) unknown[unknown_n++] = at[i];
        if (unknown_n == 0 || (unknown_n < KVP_ARRAY_LEN(unknown) && i + 1 < n)) continue;
        kvp_err_t err = find_ranges(lane, unknown, unknown_n, deadline_ns);
        if (err != KVP_OK) return err;
        unknown_n = 0;
    }
    return KVP_OK;
}

/* ---- working memory */
static void
drop_work(kvp_p2p_lane_t *lane)
{
    free(lane->work);
    lane->work = NULL;
    lane->work_bytes = 0;
}

void *
kvp_p2p_lane_work(kvp_p2p_lane_t *lane, size_t bytes)
{
    if (lane->work != NULL && bytes <= lane->work_bytes) return lane->work;
    drop_work(lane);
    lane->work = malloc(bytes);
    if (lane->work != NULL) lane->work_bytes = bytes;
    return lane->work;
}

/* ---- lanes */
static void
lane_close(kvp_p2p_lane_t *lane)
{
    kvp_p2p_path_disconnect(lane, false);
    kvp_p2p_lane_forget(lane);
    free(lane->uncut);
    drop_work(lane);
    free(lane->seen);
    kvp_cma_close(&lane->proc);
    kvp_framed_fini(&lane->io);
    free(lane);
}

/* Records the address that the control connection reached. The transport connects to the same address, so the name is
 * not resolved again. */
static kvp_err_t
note_addr(kvp_p2p_lane_t *lane)
{
    struct sockaddr_storage there = {0};
    socklen_t len = sizeof there;
    const void *addr = &((struct sockaddr_in *)&there)->sin_addr;

    if (getpeername(lane->io.fd, (struct sockaddr *)&there, &len) != 0) return KVP_DISCONNECTED;
    if (there.ss_family == AF_INET6) addr = &((struct sockaddr_in6 *)&there)->sin6_addr;
    if (inet_ntop(there.ss_family, addr, lane->addr.host, sizeof lane->addr.host) == NULL) return KVP_SYS;
    lane->addr.port = lane->where.port;
    return KVP_OK;
}

/* Chooses the way to move bytes to and from the peer: copies within the host if both sides can, else RDMA, else TCP.
 * near_err is the error of the attempt to prepare copies within the host. */
static kvp_err_t
judge_reply(kvp_p2p_lane_t *lane, const kvp_peer_hello_reply_t *reply, kvp_err_t near_err)
{
    const kvp_p2p_lanes_conf_t *conf = lane->conf;
    char text[KVP_HOSTPORT_TEXT_MAX];

    lane->has_tcp = conf->has_tcp && strcmp(reply->transport, conf->tp->ops->name) == 0;
    if (lane->proc.fd >= 0) return KVP_OK;
    if (conf->rdma != NULL) lane->rdma_port = reply->rdma_port;
    if (lane->rdma_port != 0) lane->tp = conf->rdma;
    if (lane->rdma_port != 0 || lane->has_tcp) return KVP_OK;
    kvp_format_hostport(&lane->where, text);
    kvp_log_warn("client", "peer %s is not reached: cma: %s, rdma %s, tcp %s, and the peer has %s%s", text,
                 conf->me->proc.is_told ? kvp_err_text(near_err) : "not to be used",
                 conf->rdma != NULL ? "is here" : "is not here", conf->has_tcp ? "is here" : "is not to be used",
                 reply->transport, reply->rdma_port != 0 ? " and rdma" : "");
    if (near_err == KVP_SYS) return KVP_SYS; /* SYS: this process had no free file descriptor, and may have one soon */
    return KVP_NOTSUP;
}

static kvp_err_t
say_hello(kvp_p2p_lane_t *lane, kvp_framed_t *io, uint64_t deadline_ns, kvp_peer_hello_reply_t *reply_out)
{
    kvp_frame_t frame;
    kvp_err_t err;

    kvp_peer_hello_encode(&io->out, kvp_p2p_lane_id(lane), lane->conf->me);
    err = kvp_exchange(io, lane->last_id, deadline_ns, &frame);
    if (err == KVP_OK) err = kvp_peer_hello_reply_decode(&frame, reply_out);
    if (err != KVP_OK) return err == KVP_LIMIT ? KVP_PROTO : err;
    if (reply_out->err != KVP_OK) {
        kvp_log_warn("client", "peer %s port %u refuses: %s", lane->where.host, lane->where.port, reply_out->detail);
        return reply_out->err;
    }
    if (reply_out->version < KVP_PROTO_VERSION_MIN || reply_out->version > KVP_PROTO_VERSION) return KVP_VERSION;
    return KVP_OK;
}

static void
init_io(const kvp_p2p_lane_t *lane, kvp_framed_t *io)
{
    kvp_framed_init(io);
    io->is_given_up = lane->conf->is_given_up;
    io->in.limit = 2 * (size_t)KVP_PEER_REPLY_MAX;
}

/* come_near moves the lane to the peer's Unix socket if each side may read the other's memory. On failure the lane
 * stays on TCP. */
static kvp_err_t
come_near(kvp_p2p_lane_t *lane, const kvp_peer_hello_reply_t *far, uint64_t deadline_ns)
{
    const kvp_p2p_lanes_conf_t *conf = lane->conf;
    kvp_peer_hello_reply_t near;
    kvp_framed_t io;
    const char *why;
    kvp_err_t err;

    if (!conf->me->proc.is_told || far->unix_path[0] == '\0') return KVP_NOTSUP;
    init_io(lane, &io);
    err = kvp_framed_connect_told(&io, KVP_SOCKET_PEER, far->unix_path, deadline_ns, &why);
    if (err == KVP_INVALID) err = KVP_NOTSUP;
    if (err == KVP_OK) err = say_hello(lane, &io, deadline_ns, &near);
    if (err == KVP_OK && (near.incarnation != far->incarnation || !near.can_pull)) err = KVP_NOTSUP;
    if (err == KVP_OK) err = kvp_cma_open(io.fd, &near.proc, &lane->proc);
    if (err != KVP_OK) {
        kvp_framed_fini(&io);
        return err;
    }
    kvp_framed_fini(&lane->io);
    lane->io = io;
    conf->watch(conf->watch_arg, lane->proc.fd);
    return KVP_OK;
}

static kvp_err_t
introduce_lane(kvp_p2p_lane_t *lane, uint64_t deadline_ns)
{
    kvp_peer_hello_reply_t reply;
    kvp_err_t err = say_hello(lane, &lane->io, deadline_ns, &reply);

    if (err != KVP_OK) return err;
    lane->peer = reply.incarnation;
    return judge_reply(lane, &reply, come_near(lane, &reply, deadline_ns));
}

static kvp_err_t
lane_open(kvp_p2p_lanes_t *lanes, const kvp_hostport_t *where, uint64_t deadline_ns, kvp_p2p_lane_t **lane_out)
{
    kvp_p2p_lane_t *lane = calloc(1, sizeof *lane);
    kvp_err_t err;

    if (lane == NULL) return KVP_NOMEM;
    kvp_list_init(&lane->link);
    lane->conf = &lanes->conf;
    lane->tp = lanes->conf.tp;
    lane->proc = (kvp_cma_proc_t){.fd = -1};
    init_io(lane, &lane->io);
    lane->where = *where;
    err = kvp_names_connect(lanes->conf.names, where->host, where->port, deadline_ns, &lane->io);
    if (err == KVP_OK) {
        atomic_fetch_add(lanes->conf.connects, 1);
        err = note_addr(lane);
    }
    if (err == KVP_OK) err = introduce_lane(lane, deadline_ns);
    if (err != KVP_OK) {
        lane_close(lane);
        return err;
    }
    *lane_out = lane;
    return KVP_OK;
}

void
kvp_p2p_lanes_init(kvp_p2p_lanes_t *lanes, const kvp_p2p_lanes_conf_t *conf)
{
    *lanes = (kvp_p2p_lanes_t){.conf = *conf};
    pthread_mutex_init(&lanes->lock, NULL);
    kvp_list_init(&lanes->idle);
}

static void
close_all(kvp_list_t *list)
{
    while (!kvp_list_is_empty(list)) {
        kvp_p2p_lane_t *lane = kvp_list_first(list, kvp_p2p_lane_t, link);

        kvp_list_del(&lane->link);
        lane_close(lane);
    }
}

void
kvp_p2p_lanes_fini(kvp_p2p_lanes_t *lanes)
{
    close_all(&lanes->idle);
    pthread_mutex_destroy(&lanes->lock);
}

static kvp_p2p_lane_t *
take_idle(kvp_p2p_lanes_t *lanes, const kvp_hostport_t *where)
{
    kvp_p2p_lane_t *found = NULL;

    pthread_mutex_lock(&lanes->lock);
    kvp_list_foreach (pos, &lanes->idle) {
        kvp_p2p_lane_t *lane = kvp_list_entry(pos, kvp_p2p_lane_t, link);

        if (lane->where.port != where->port || strcmp(lane->where.host, where->host) != 0) continue;
        kvp_list_del(&lane->link);
        lanes->idle_n--;
        found = lane;
        break;
    }
    pthread_mutex_unlock(&lanes->lock);
    return found;
}

/* Returns true if the lane's connection is open and the peer's process runs. An idle peer sends nothing, so a readable
 * descriptor means the end of the connection or the process. */
bool
kvp_p2p_lane_is_alive(const kvp_p2p_lane_t *lane)
{
    struct pollfd p[2] = {{.fd = lane->io.fd, .events = POLLIN}, {.fd = lane->proc.fd, .events = POLLIN}};
    int n;

    do
        n = poll(p, 2, 0); /* poll skips a descriptor of -1 */
    while (n < 0 && errno == EINTR);
    return n == 0;
}

void
kvp_p2p_lanes_sweep(kvp_p2p_lanes_t *lanes)
{
    kvp_list_t dead;

    kvp_list_init(&dead);
    pthread_mutex_lock(&lanes->lock);
    kvp_list_foreach_safe (pos, tmp, &lanes->idle) {
        kvp_p2p_lane_t *lane = kvp_list_entry(pos, kvp_p2p_lane_t, link);

        if (kvp_p2p_lane_is_alive(lane) && !kvp_p2p_path_is_stale(lane)) continue;
        kvp_list_del(&lane->link);
        kvp_list_add_tail(&dead, &lane->link);
        lanes->idle_n--;
    }
    pthread_mutex_unlock(&lanes->lock);
    close_all(&dead);
}

kvp_err_t
kvp_p2p_lane_take(kvp_p2p_lanes_t *lanes, const kvp_hostport_t *where, bool is_new, uint64_t deadline_ns,
                  kvp_p2p_lane_t **lane_out)
{
    kvp_p2p_lane_t *lane;

    while (!is_new && (lane = take_idle(lanes, where)) != NULL) {
        if (kvp_p2p_lane_is_alive(lane)) {
            *lane_out = lane;
            return KVP_OK;
        }
        lane_close(lane);
    }
    return lane_open(lanes, where, deadline_ns, lane_out);
}

void
kvp_p2p_lane_give(kvp_p2p_lanes_t *lanes, kvp_p2p_lane_t *lane, bool is_good)
{
    kvp_p2p_lane_t *last = NULL;

    if (!is_good) {
        lane_close(lane);
        return;
    }
    if (lane->work_bytes > KVP_P2P_WORK_KEPT) drop_work(lane);
    pthread_mutex_lock(&lanes->lock);
    kvp_list_add_head(&lanes->idle, &lane->link);
    lanes->idle_n++;
    if (!kvp_p2p_lane_is_alive(
            lane)) { /* checked with the lock held; if the lane ends later, kvp_p2p_lanes_sweep closes it */
        last = lane;
        kvp_list_del(&lane->link);
        lanes->idle_n--;
    } else if (lanes->idle_n > KVP_P2P_IDLE_MAX) {
        last = kvp_list_entry(lanes->idle.prev, kvp_p2p_lane_t, link);
        kvp_list_del(&last->link);
        lanes->idle_n--;
    }
    pthread_mutex_unlock(&lanes->lock);
    if (last != NULL) lane_close(last);
}
