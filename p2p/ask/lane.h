/* SPDX-License-Identifier: Apache-2.0
 * The asking side: a lane is a control connection to one peer, with a cache of the peer's ranges,
 * and a transport path once needed. One thread at a time uses a lane; idle lanes wait in a list for
 * the next transfer to the peer. */
#ifndef KVP_P2P_ASK_LANE_H
#define KVP_P2P_ASK_LANE_H

#include "net/names.h"
#include "p2p/base/cma.h"
#include "p2p/base/maps.h"
#include "p2p/base/pull.h"
#include "p2p/base/ranges.h"
#include "transport/bounce.h"
#include "transport/transport.h"
#include "transport/routes.h"
#include "common/parse.h"
#include "common/list.h"

#include <pthread.h>

#define KVP_P2P_UNCUTS_MAX 4096u /* over this number the oldest are forgotten: of peers without later contact */

/* One connection to cut later; allocated with the connection, so that recording it cannot fail. */
typedef struct {
    kvp_list_t link;
    uint64_t peer; /* incarnation of the peer's endpoint */
    uint64_t conn; /* and its own */
} kvp_p2p_uncut_t;

typedef struct {
    pthread_mutex_t lock; /* a leaf */
    kvp_list_t list; /* oldest first; guarded by lock, as is n */
    uint32_t n;
} kvp_p2p_uncuts_t;

void kvp_p2p_uncuts_init(kvp_p2p_uncuts_t *uncuts);
void kvp_p2p_uncuts_fini(kvp_p2p_uncuts_t *uncuts);

#define KVP_P2P_IDLE_MAX 64u /* idle lanes, to all peers together */
#define KVP_P2P_WORK_KEPT (80u << 10) /* working memory of an idle lane: enough to copy 1024 pieces */

typedef struct {
    kvp_names_t *names; /* borrowed, as is the rest */
    kvp_tp_t *tp;
    kvp_tp_t *rdma; /* NULL = none */
    const kvp_peer_hello_t *me; /* without proc: no copies between processes */
    bool has_tcp; /* else peers that nothing else reaches are refused */
    const _Atomic bool *is_given_up;
    kvp_p2p_uncuts_t *uncuts;
    kvp_p2p_maps_t *maps;
    kvp_p2p_ranges_t *ranges; /* this endpoint's own */
    kvp_p2p_pullers_t *pullers;
    kvp_bounces_t *bounces;
    void (*watch)(void *arg, int fd); /* once fd is readable, lanes_sweep is called */
    void *watch_arg;
    _Atomic uint64_t *connects;
} kvp_p2p_lanes_conf_t;

/* A range of the peer's. */
typedef struct {
    uint64_t base, len, token;
    kvp_rseg_t *rseg; /* NULL: memory of a device, reached through a bounce buffer */
    bool is_asked; /* the peer was asked for its mapping */
    kvp_p2p_map_t *map; /* held; NULL = not mapped */
} kvp_p2p_seen_t;

typedef struct {
    kvp_list_t link;
    const kvp_p2p_lanes_conf_t *conf;
    kvp_hostport_t where;
    kvp_framed_t io;
    uint64_t last_id;
    kvp_cma_proc_t proc; /* the peer's, where both may read the other; then io is a Unix socket */
    kvp_hostport_t addr; /* of the peer, resolved */
    kvp_tp_t *tp; /* which its ranges' keys are of, and ep */
    bool has_tcp; /* TCP can reach the peer as well */
    uint16_t rdma_port; /* 0 = not by rdma; else */
    kvp_route_t rdma_route; /* whether that works */
    uint64_t peer; /* incarnation of the endpoint at the other end */
    kvp_ep_t *ep; /* NULL = not connected by the transport */
    kvp_p2p_uncut_t *uncut; /* of ep, should it end with writes under way; NULL without one */
    void *work; /* working memory of the current transfer, */
    size_t work_bytes; /* sized by the longest transfer, within the limit for idle lanes */
    bool has_devices; /* some ranges of the peer are device memory */
    bool has_bounce; /* the peer's, for the transfer that has the lane */
    kvp_p2p_seen_t *seen; /* by address, never overlapping */
    size_t seen_n, seen_cap;
} kvp_p2p_lane_t;

typedef struct {
    kvp_p2p_lanes_conf_t conf;
    pthread_mutex_t lock; /* a leaf */
    kvp_list_t idle; /* the latest used first; guarded by lock, as is idle_n */
    uint32_t idle_n;
} kvp_p2p_lanes_t;

void kvp_p2p_lanes_init(kvp_p2p_lanes_t *lanes, const kvp_p2p_lanes_conf_t *conf);
void kvp_p2p_lanes_fini(kvp_p2p_lanes_t *lanes); /* every lane was given back */

/* kvp_p2p_lanes_sweep closes the idle lanes of peers that have ended: what they have mapped would
 * keep its pages; and those on devices that were removed, which would be kept from going. */
void kvp_p2p_lanes_sweep(kvp_p2p_lanes_t *lanes);

/* kvp_p2p_lane_take returns an idle lane to the peer (unless is_new), or creates one: UNREACHABLE,
 * DEADLINE, VERSION, PROTO, NOTSUP, CLOSED, ... kvp_p2p_lane_give returns the lane: it is kept, or
 * closed after an error that leaves transfers under way. */
kvp_err_t kvp_p2p_lane_take(kvp_p2p_lanes_t *lanes, const kvp_hostport_t *where, bool is_new, uint64_t deadline_ns,
                            kvp_p2p_lane_t **lane_out) KVP_MUST_USE;
void kvp_p2p_lane_give(kvp_p2p_lanes_t *lanes, kvp_p2p_lane_t *lane, bool is_good);

/* kvp_p2p_lane_is_alive: the peer has neither ended nor closed the connection; between questions. */
bool kvp_p2p_lane_is_alive(const kvp_p2p_lane_t *lane);

/* kvp_p2p_lane_look comes between slices of work: DEADLINE, CLOSED (the endpoint is being closed). */
kvp_err_t kvp_p2p_lane_look(const kvp_p2p_lane_t *lane, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_p2p_lane_work returns that many bytes, aligned as malloc's, not zeroed, the lane's until the
 * next call; NULL: no memory. */
void *kvp_p2p_lane_work(kvp_p2p_lane_t *lane, size_t bytes) KVP_MUST_USE;

/* kvp_p2p_lane_ask sends what the caller encoded into lane->io.out under kvp_p2p_lane_id, and
 * returns the n records of the answer, borrowed until the next question; or the peer's refusal. */
uint64_t kvp_p2p_lane_id(kvp_p2p_lane_t *lane);
kvp_err_t kvp_p2p_lane_ask(kvp_p2p_lane_t *lane, uint8_t opcode, uint32_t n, size_t record_bytes, uint64_t deadline_ns,
                           const void **records_out) KVP_MUST_USE;

/* kvp_p2p_lane_learn asks for the ranges of unknown pieces: NOT_REGISTERED if a range does not
 * exist. kvp_p2p_lane_seen returns a known range, or NULL; valid until learn or forget. */
kvp_err_t kvp_p2p_lane_learn(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
    KVP_MUST_USE;
kvp_p2p_seen_t *kvp_p2p_lane_seen(const kvp_p2p_lane_t *lane, const kvp_peer_at_t *at);
void kvp_p2p_lane_forget(kvp_p2p_lane_t *lane);

/* kvp_p2p_lane_is_by_rdma: the next piece that does not stay within the host goes by rdma. */
static inline bool
kvp_p2p_lane_is_by_rdma(const kvp_p2p_lane_t *lane)
{
    return lane->tp == lane->conf->rdma;
}

#endif
