/* SPDX-License-Identifier: Apache-2.0
 * The asking side of transfers: a lane is a control connection to one peer, with a cache of the peer's ranges, and a
 * transport connection once it is needed. One thread at a time uses a lane. Idle lanes wait in a list for the next
 * transfer to the same peer. */
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

#define KVP_P2P_UNCUTS_MAX 4096u /* most entries in kvp_p2p_uncuts_t; one more entry removes the oldest */

/* A transport connection that must be cut at the peer later, because writes may still be running on it. Allocated
 * together with the connection, because the later recording must not fail. */
typedef struct {
    kvp_list_t link;
    uint64_t peer; /* incarnation of the endpoint at the peer */
    uint64_t conn; /* incarnation of the connection */
} kvp_p2p_uncut_t;

typedef struct {
    pthread_mutex_t lock; /* leaf lock: its holder takes no other lock */
    kvp_list_t list; /* connections that peers must cut, the oldest first; lock guards list and n */
    uint32_t n;
} kvp_p2p_uncuts_t;

void kvp_p2p_uncuts_init(kvp_p2p_uncuts_t *uncuts);
void kvp_p2p_uncuts_fini(kvp_p2p_uncuts_t *uncuts);

#define KVP_P2P_IDLE_MAX 64u /* most idle lanes, over all peers */
#define KVP_P2P_WORK_KEPT (80u << 10) /* most working memory of an idle lane in bytes: enough to copy 1024 pieces */

typedef struct {
    kvp_names_t *names; /* resolves host names; borrowed, like all pointers in this struct */
    kvp_tp_t *tp;
    kvp_tp_t *rdma; /* the RDMA transport; NULL = no RDMA */
    const kvp_peer_hello_t *me; /* our Hello message to peers; if its proc is empty, no copies between processes */
    bool has_tcp; /* TCP may be used; else peers that only TCP reaches are refused */
    const _Atomic bool *is_given_up;
    kvp_p2p_uncuts_t *uncuts;
    kvp_p2p_maps_t *maps;
    kvp_p2p_ranges_t *ranges; /* memory that this endpoint has registered */
    kvp_p2p_pullers_t *pullers;
    kvp_bounces_t *bounces;
    void (*watch)(void *arg, int fd); /* callback: watches fd, and calls kvp_p2p_lanes_sweep when fd is readable */
    void *watch_arg;
    _Atomic uint64_t *connects;
} kvp_p2p_lanes_conf_t;

/* A range of memory that the peer has registered. */
typedef struct {
    uint64_t base, len, token;
    kvp_rseg_t *rseg; /* the transport's handle of this range of the peer's memory; NULL = the range is device memory,
                         which is reached through the peer's bounce buffer */
    bool is_asked; /* this side has asked the peer for the mapping of this range */
    kvp_p2p_map_t *map; /* our mapping of the range, with a reference; NULL = not mapped */
} kvp_p2p_seen_t;

typedef struct {
    kvp_list_t link;
    const kvp_p2p_lanes_conf_t *conf;
    kvp_hostport_t where;
    kvp_framed_t io;
    uint64_t last_id;
    kvp_cma_proc_t proc; /* the peer's process, if each process may read the other's memory; then io is a Unix socket */
    kvp_hostport_t addr; /* resolved address of the peer */
    kvp_tp_t *tp; /* the transport of ep and of the keys of the peer's ranges */
    bool has_tcp; /* TCP can reach the peer as well */
    uint16_t rdma_port; /* port of the peer's RDMA listener; 0 = the peer has no RDMA */
    kvp_route_t rdma_route; /* whether the lane uses RDMA, or the time of its next attempt to use RDMA */
    uint64_t peer; /* incarnation of the endpoint at the peer */
    kvp_ep_t *ep; /* the transport connection; NULL = not connected */
    kvp_p2p_uncut_t *uncut; /* entry for kvp_p2p_uncuts_t if ep is closed while writes run; not NULL if ep exists */
    void *work; /* working memory of the current transfer */
    size_t work_bytes; /* size of work, as the longest transfer needed; an idle lane keeps KVP_P2P_WORK_KEPT at most */
    bool has_devices; /* some ranges of the peer are device memory */
    bool has_bounce; /* the lane has a bounce buffer of the peer for the current transfer */
    kvp_p2p_seen_t *seen; /* the cached ranges, sorted by address, never overlapping */
    size_t seen_n, seen_cap;
} kvp_p2p_lane_t;

typedef struct {
    kvp_p2p_lanes_conf_t conf;
    pthread_mutex_t lock; /* leaf lock: its holder takes no other lock */
    kvp_list_t idle; /* idle lanes, the most recently used first; lock guards idle and idle_n */
    uint32_t idle_n;
} kvp_p2p_lanes_t;

void kvp_p2p_lanes_init(kvp_p2p_lanes_t *lanes, const kvp_p2p_lanes_conf_t *conf);
void kvp_p2p_lanes_fini(kvp_p2p_lanes_t *lanes); /* the caller has given back every lane */

/* kvp_p2p_lanes_sweep closes the idle lanes of peers that have ended, because their mappings keep the peer's memory
 * in use, and the idle lanes on removed devices, because they delay the removal. */
void kvp_p2p_lanes_sweep(kvp_p2p_lanes_t *lanes);

/* kvp_p2p_lane_take returns an idle lane to the peer (unless is_new), or a new lane. Errors: UNREACHABLE, DEADLINE,
 * VERSION, PROTO, NOTSUP, CLOSED and others. kvp_p2p_lane_give gives the lane back. It is kept for later if is_good,
 * and closed after an error that may leave transfers running. */
kvp_err_t kvp_p2p_lane_take(kvp_p2p_lanes_t *lanes, const kvp_hostport_t *where, bool is_new, uint64_t deadline_ns,
                            kvp_p2p_lane_t **lane_out) KVP_MUST_USE;
void kvp_p2p_lane_give(kvp_p2p_lanes_t *lanes, kvp_p2p_lane_t *lane, bool is_good);

/* kvp_p2p_lane_is_alive returns true if the peer has neither ended nor closed the connection. It must not be called
 * while a question to the peer is open. */
bool kvp_p2p_lane_is_alive(const kvp_p2p_lane_t *lane);

/* kvp_p2p_lane_look is called between slices of work. Returns DEADLINE after deadline_ns, CLOSED if the endpoint is
 * being closed, else OK. */
kvp_err_t kvp_p2p_lane_look(const kvp_p2p_lane_t *lane, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_p2p_lane_work returns working memory of `bytes` bytes, aligned as by malloc, not zeroed. It belongs to the lane
 * and is valid until the next call. NULL without memory. */
void *kvp_p2p_lane_work(kvp_p2p_lane_t *lane, size_t bytes) KVP_MUST_USE;

/* kvp_p2p_lane_ask sends the question in lane->io.out, which the caller encoded with an id from kvp_p2p_lane_id. It
 * returns the n records of the answer, borrowed until the next question, or the error with which the peer refused. */
uint64_t kvp_p2p_lane_id(kvp_p2p_lane_t *lane);
kvp_err_t kvp_p2p_lane_ask(kvp_p2p_lane_t *lane, uint8_t opcode, uint32_t n, size_t record_bytes, uint64_t deadline_ns,
                           const void **records_out) KVP_MUST_USE;

/* kvp_p2p_lane_learn asks the peer for the ranges that contain the pieces in `at` and are not cached. NOT_REGISTERED if
 * a range does not exist. kvp_p2p_lane_seen returns a cached range, or NULL; valid until the next learn or forget.
 * kvp_p2p_lane_forget empties the cache. */
kvp_err_t kvp_p2p_lane_learn(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
    KVP_MUST_USE;
kvp_p2p_seen_t *kvp_p2p_lane_seen(const kvp_p2p_lane_t *lane, const kvp_peer_at_t *at);
void kvp_p2p_lane_forget(kvp_p2p_lane_t *lane);

/* kvp_p2p_lane_is_by_rdma returns true if the next piece that leaves the host goes by RDMA. */
static inline bool
kvp_p2p_lane_is_by_rdma(const kvp_p2p_lane_t *lane)
{
    return lane->tp == lane->conf->rdma;
}

#endif
