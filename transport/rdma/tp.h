/* SPDX-License-Identifier: Apache-2.0
 * What the parts of the rdma transport share: an instance with its devices, registered memory, and what peers opened.
 */
#ifndef KVP_TRANSPORT_RDMA_TP_H
#define KVP_TRANSPORT_RDMA_TP_H

#include "transport/exports.h"
#include "transport/rdma/mrcache.h"
#include "transport/rdma/wire.h"
#include "common/hash.h"

#include <pthread.h>
#include <sys/socket.h>

#define KVP_RDMA_PATHS 256u /* over this number the least recently tried path is forgotten, with its failures */

/* A rail's path; the caller fills in the ends and leaves the rest to the table. */
typedef struct {
    uint32_t ours; /* number of our device: one port, with one GID */
    struct sockaddr_storage
        theirs; /* the address of the peer's: a GID of one port; at which TCP port is all the same */
    uint32_t slot; /* slot of the last look-up */
} kvp_rdma_path_t;

typedef struct {
    uint32_t fails; /* in a row */
    uint64_t retry_ns; /* not to be connected before */
} kvp_rdma_fails_t;

typedef struct {
    struct sockaddr_storage theirs; /* port 0; family 0 = none */
    uint32_t ours;
    uint64_t failed_ns; /* time of the last failure; 0 = never */
    kvp_rdma_fails_t fails;
} kvp_rdma_path_entry_t;

typedef struct {
    pthread_mutex_t lock; /* guards the rest */
    kvp_rdma_path_entry_t entries[KVP_RDMA_PATHS];
    uint32_t next;
} kvp_rdma_paths_t;

void kvp_rdma_paths_init(kvp_rdma_paths_t *paths);
void kvp_rdma_paths_fini(kvp_rdma_paths_t *paths);

/* kvp_rdma_paths_look returns the failures of a path; none for an untried path.
 * kvp_rdma_paths_reset clears them, after a connection has carried enough. kvp_rdma_paths_failed
 * records that a connection begun at since_ns ended or never stood, and returns the failures. The
 * path then rests for a moment, twice as long with each failure in a row, up to some seconds; dice
 * (any number) spreads rails that failed together. Connections that stood together when a path
 * failed count as one failure. */
kvp_rdma_fails_t kvp_rdma_paths_look(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path);
void kvp_rdma_paths_reset(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path);
kvp_rdma_fails_t kvp_rdma_paths_failed(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path, uint64_t since_ns,
                                       uint64_t now_ns, uint64_t dice);

#define KVP_RDMA_CACHED_PEERS 64u /* over this number the oldest entry is forgotten */

typedef struct {
    struct sockaddr_storage known; /* family 0 = none */
    struct sockaddr_storage others[KVP_RDMA_RAILS_MAX];
    uint32_t others_n;
    uint32_t turn; /* 0 = try the known address, else the address of this number, from 1 */
} kvp_rdma_cached_peer_t;

typedef struct {
    pthread_mutex_t lock; /* guards the rest */
    kvp_rdma_cached_peer_t peers[KVP_RDMA_CACHED_PEERS];
    uint32_t next;
} kvp_rdma_address_cache_t;

void kvp_rdma_address_cache_init(kvp_rdma_address_cache_t *addresses);
void kvp_rdma_address_cache_fini(kvp_rdma_address_cache_t *addresses);

/* kvp_rdma_address_cache_look returns the address to try for a peer of a known address.
 * kvp_rdma_address_cache_note stores the addresses of an acceptance. kvp_rdma_address_cache_failed:
 * the tried address gave no answer; the next look returns another one. */
struct sockaddr_storage kvp_rdma_address_cache_look(kvp_rdma_address_cache_t *addresses,
                                                    const struct sockaddr_storage *known);
void kvp_rdma_address_cache_note(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known,
                                 const kvp_rdma_answer_t *answer);
void kvp_rdma_address_cache_failed(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known);

#define KVP_RDMA_PEER_BUCKETS 256u

typedef struct {
    kvp_rdma_id_t *id; /* NULL = the device was removed */
    kvp_rdma_dev_t *dev; /* NULL = all */
    struct sockaddr_storage at;
} kvp_rdma_listener_t;

/* The serving side. Made with the first listen; the zero value is none. */
typedef struct {
    pthread_mutex_t lock; /* guards all of it, and every use of the ids */
    kvp_rdma_cm_t *cm;
    kvp_rdma_listener_t listeners[1 + KVP_RDMA_RAILS_MAX]; /* the first is at the address that was asked for */
    size_t listeners_n;
    uint16_t port;
    int wake_fd; /* -1 = none */
    kvp_list_t peers; /* incarnations that are attached or connected, or have keys to write with (peers.h) */
    kvp_list_t peers_of[KVP_RDMA_PEER_BUCKETS]; /* the same peers, hashed by the incarnation that they sent */
    kvp_mix_t mix; /* and a secret */
    kvp_list_t ended; /* ended grants, to be deregistered */
    bool is_ending; /* a thread deregisters them */
    pthread_cond_t granted; /* keys were made, or could not be, or were deregistered */
    uint32_t conns_n;
    uint64_t tend_ns; /* time of lane 0's next tend; used by this lane alone */
    kvp_idset_t fenced;
} kvp_rdma_serving_t;

typedef struct {
    kvp_tp_t base;
    const kvp_verbs_ops_t *verbs;
    kvp_rdma_dev_t *devs[KVP_RDMA_RAILS_MAX];
    size_t devs_n; /* 0 = not open */
    bool needs_sums; /* a device is soft and not trusted: bytes that it reads count only with the right sum */
    kvp_mrcache_t *cache; /* of local memory */
    uint64_t incarnation;
    bool is_incarnation_drawn; /* each endpoint sends an incarnation of its own instead */
    uint64_t epoch; /* at first; see kvp_rdma_epoch */
    uint8_t pool_id[16];
    uint32_t max_conns;
    bool needs_attachment;
    kvp_rdma_serving_t serving;
    kvp_rdma_address_cache_t addresses;
    kvp_rdma_paths_t paths;
} kvp_rdma_tp_t;

typedef struct {
    kvp_mr_t base;
    kvp_rdma_reg_t *regs[KVP_RDMA_RAILS_MAX]; /* readers' keys, by device */
    kvp_list_t grants; /* writers' keys; guarded by the serving lock */
} kvp_rdma_mr_t;

typedef struct {
    kvp_rseg_t base;
    kvp_rdma_token_t keys;
    bool is_writable;
} kvp_rdma_rseg_t;

static inline kvp_rdma_tp_t *
kvp_rdma_tp_of(const kvp_tp_t *tp)
{
    return (kvp_rdma_tp_t *)(uintptr_t)tp; /* base comes first */
}

/* kvp_rdma_epoch is the epoch of newly given keys; it changes whenever a device returns with other
 * keys. */
uint64_t kvp_rdma_epoch(const kvp_rdma_tp_t *tp);

/* kvp_rdma_regs_make registers memory with every device; on failure nothing is left. regs_drop takes what there is. */
kvp_err_t kvp_rdma_regs_make(const kvp_rdma_tp_t *tp, void *addr, size_t len, kvp_rdma_access_t access,
                             kvp_rdma_reg_t *regs_out[KVP_RDMA_RAILS_MAX]) KVP_MUST_USE;
void kvp_rdma_regs_drop(const kvp_rdma_tp_t *tp, kvp_rdma_reg_t *regs[KVP_RDMA_RAILS_MAX]);

/* serve.c: the slots of the table that serve. */
void kvp_rdma_serving_init(kvp_rdma_serving_t *s);
void kvp_rdma_serving_fini(kvp_rdma_tp_t *tp);
/* kvp_rdma_serving_tend closes connections on removed devices, and listens again at returned ones. */
void kvp_rdma_serving_tend(kvp_rdma_tp_t *tp);
kvp_err_t kvp_rdma_listen(kvp_tp_t *tp, const kvp_hostport_t *at, kvp_hostport_t *bound_out);
kvp_err_t kvp_rdma_serve(kvp_tp_t *tp, uint32_t lane, int timeout_ms);
void kvp_rdma_wake(kvp_tp_t *tp);
void kvp_rdma_peer_fence(kvp_tp_t *tp, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg);
void kvp_rdma_peer_cut(kvp_tp_t *tp, uint64_t incarnation);
void kvp_rdma_peer_came(kvp_tp_t *tp, uint64_t incarnation);
void kvp_rdma_peer_left(kvp_tp_t *tp, uint64_t incarnation);

/* kvp_rdma_addr resolves a host, by name or number, and a port. UNREACHABLE if it does not resolve. */
kvp_err_t kvp_rdma_addr(const kvp_hostport_t *at, struct sockaddr_storage *addr_out) KVP_MUST_USE;

/* ep.c: the slots of an endpoint. */
kvp_err_t kvp_rdma_ep_connect(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_t *ep, kvp_ep_done_fn done, void *arg);
void kvp_rdma_ep_close(kvp_ep_t *ep);
kvp_err_t kvp_rdma_submit(kvp_ep_t *ep, kvp_xfer_t *const *xfers, size_t n, size_t *n_out);
kvp_err_t kvp_rdma_drain(kvp_ep_t *ep, uint64_t deadline_ns);
size_t kvp_rdma_ep_poll(kvp_ep_t *ep);
int kvp_rdma_ep_event_fd(kvp_ep_t *ep);
short kvp_rdma_ep_arm(kvp_ep_t *ep);
bool kvp_rdma_ep_is_broken(const kvp_ep_t *ep);
bool kvp_rdma_ep_is_stale(const kvp_ep_t *ep);

#endif
