/* SPDX-License-Identifier: Apache-2.0
 * The types that the files of the rdma transport share: an instance with its devices, registered memory, and peers'
 * opened memory. */
#ifndef KVP_TRANSPORT_RDMA_BASE_TP_H
#define KVP_TRANSPORT_RDMA_BASE_TP_H

#include "transport/exports.h"
#include "transport/rdma/base/mrcache.h"
#include "transport/rdma/base/wire.h"
#include "common/hash.h"

#include <pthread.h>
#include <sys/socket.h>

/* the number of paths whose failures are remembered; one more replaces the oldest entry */
#define KVP_RDMA_PATHS 256u

/* The path of a rail: our port and the peer's port, set by the caller; `slot` belongs to the table of paths. */
typedef struct {
    uint32_t ours; /* the index of our device in the instance: one port with one GID */
    struct sockaddr_storage theirs; /* the address of the peer's port (a GID); its TCP port is ignored */
    uint32_t slot; /* the index of the path's entry at the last look-up */
} kvp_rdma_path_t;

typedef struct {
    uint32_t fails; /* the number of failures of the path in a row */
    uint64_t retry_ns; /* the time before which the path must not be connected */
} kvp_rdma_fails_t;

typedef struct {
    struct sockaddr_storage theirs; /* the peer's address with port 0; family 0 = the entry is empty */
    uint32_t ours;
    uint64_t failed_ns; /* the time of the path's last failure; 0 = never */
    kvp_rdma_fails_t fails;
} kvp_rdma_path_entry_t;

typedef struct {
    pthread_mutex_t lock; /* guards the other fields of the table of paths */
    kvp_rdma_path_entry_t entries[KVP_RDMA_PATHS];
    uint32_t next;
} kvp_rdma_paths_t;

void kvp_rdma_paths_init(kvp_rdma_paths_t *paths);
void kvp_rdma_paths_fini(kvp_rdma_paths_t *paths);

/* kvp_rdma_paths_look returns the failures of a path; zero for a path that was never tried. kvp_rdma_paths_reset clears
 * them, after a connection has carried enough data. kvp_rdma_paths_failed counts that a connection begun at since_ns
 * failed, and returns the failures; connections begun before the path's last failure do not count again. The path then
 * rests (back-off), twice as long with each failure in a row, up to some seconds; dice is any random number, which
 * spreads the retries of rails that failed together. */
kvp_rdma_fails_t kvp_rdma_paths_look(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path);
void kvp_rdma_paths_reset(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path);
kvp_rdma_fails_t kvp_rdma_paths_failed(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path, uint64_t since_ns,
                                       uint64_t now_ns, uint64_t dice);

#define KVP_RDMA_CACHED_PEERS 64u /* the number of peers in the cache; one more replaces the oldest entry */

typedef struct {
    struct sockaddr_storage known; /* the peer's configured address; family 0 = the entry is empty */
    struct sockaddr_storage others[KVP_RDMA_RAILS_MAX];
    uint32_t others_n;
    uint32_t turn; /* the address to try next: 0 = `known`, n = others[n - 1] */
} kvp_rdma_cached_peer_t;

typedef struct {
    pthread_mutex_t lock; /* guards the other fields of the address cache */
    kvp_rdma_cached_peer_t peers[KVP_RDMA_CACHED_PEERS];
    uint32_t next;
} kvp_rdma_address_cache_t;

void kvp_rdma_address_cache_init(kvp_rdma_address_cache_t *addresses);
void kvp_rdma_address_cache_fini(kvp_rdma_address_cache_t *addresses);

/* kvp_rdma_address_cache_look returns the address to try for the peer with the configured address `known`.
 * kvp_rdma_address_cache_note stores the addresses in a peer's answer. kvp_rdma_address_cache_failed records that the
 * tried address gave no answer, so that the next look returns another address. */
struct sockaddr_storage kvp_rdma_address_cache_look(kvp_rdma_address_cache_t *addresses,
                                                    const struct sockaddr_storage *known);
void kvp_rdma_address_cache_note(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known,
                                 const kvp_rdma_answer_t *answer);
void kvp_rdma_address_cache_failed(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known);

#define KVP_RDMA_PEER_BUCKETS 256u

typedef struct {
    kvp_rdma_id_t *id; /* the listening id; NULL = the device was removed */
    kvp_rdma_dev_t *dev; /* the device at which the listener listens; NULL = all devices */
    struct sockaddr_storage at;
} kvp_rdma_listener_t;

/* The serving side of an instance. It is initialized with the instance, and serves after listen. */
typedef struct {
    pthread_mutex_t lock; /* guards all fields of the serving side, and every use of its connection ids */
    kvp_rdma_cm_t *cm;
    kvp_rdma_listener_t listeners[1 + KVP_RDMA_RAILS_MAX]; /* the first listener is at the address given to listen */
    size_t listeners_n;
    uint16_t port;
    int wake_fd; /* the eventfd that makes serve return; -1 = none */
    kvp_list_t peers; /* the peers (peers.h) that are attached or connected, or have write keys */
    kvp_list_t peers_of[KVP_RDMA_PEER_BUCKETS]; /* the peers of `peers`, in hash buckets by incarnation */
    kvp_mix_t mix; /* the random key of the hash by which peers_of is ordered */
    kvp_list_t ended; /* the ended grants that must be deregistered */
    bool is_ending; /* a thread is deregistering ended grants */
    pthread_cond_t granted; /* signalled when a registration or deregistration of write keys has ended */
    uint32_t conns_n;
    uint64_t tend_ns; /* the time when lane 0 calls tend next; used only by this lane */
    kvp_idset_t fenced;
} kvp_rdma_serving_t;

typedef struct {
    kvp_tp_t base;
    const kvp_verbs_ops_t *verbs;
    kvp_rdma_dev_t *devs[KVP_RDMA_RAILS_MAX];
    size_t devs_n; /* the number of open devices; 0 = not open */
    /* a device is an untrusted software adapter, so bytes that a READ brings are valid only with the right checksum */
    bool needs_sums;
    kvp_mrcache_t *cache; /* the registration cache of local memory */
    uint64_t incarnation;
    bool is_incarnation_drawn; /* flag: each endpoint draws and sends an incarnation of its own instead */
    uint64_t epoch; /* the instance's random epoch; see kvp_rdma_epoch */
    uint8_t pool_id[16];
    uint32_t max_conns;
    bool needs_attachment;
    kvp_rdma_serving_t serving;
    kvp_rdma_address_cache_t addresses;
    kvp_rdma_paths_t paths;
} kvp_rdma_tp_t;

typedef struct {
    kvp_mr_t base;
    kvp_rdma_reg_t *regs[KVP_RDMA_RAILS_MAX]; /* the registrations for readers, by device */
    kvp_list_t grants; /* the peers' write keys for this memory (grants); guarded by the serving lock */
} kvp_rdma_mr_t;

typedef struct {
    kvp_rseg_t base;
    kvp_rdma_token_t keys;
    bool is_writable;
} kvp_rdma_rseg_t;

static inline kvp_rdma_tp_t *
kvp_rdma_tp_of(const kvp_tp_t *tp)
{
    return (kvp_rdma_tp_t *)(uintptr_t)tp; /* the cast is valid because base is the first field */
}

/* kvp_rdma_epoch returns the epoch of the keys that are given out now. It changes whenever a device returns, because
 * the device then has other keys. */
uint64_t kvp_rdma_epoch(const kvp_rdma_tp_t *tp);

/* kvp_rdma_regs_make registers memory with every device; on failure no registration is left. kvp_rdma_regs_drop ends
 * all registrations of the array. */
kvp_err_t kvp_rdma_regs_make(const kvp_rdma_tp_t *tp, void *addr, size_t len, kvp_rdma_access_t access,
                             kvp_rdma_reg_t *regs_out[KVP_RDMA_RAILS_MAX]) KVP_MUST_USE;
void kvp_rdma_regs_drop(const kvp_rdma_tp_t *tp, kvp_rdma_reg_t *regs[KVP_RDMA_RAILS_MAX]);

/* kvp_rdma_addr translates a host, by name or number, and a port to an address. UNREACHABLE if the name does not
 * resolve. */
kvp_err_t kvp_rdma_addr(const kvp_hostport_t *at, struct sockaddr_storage *addr_out) KVP_MUST_USE;

#endif
