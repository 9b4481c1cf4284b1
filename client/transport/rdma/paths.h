/* SPDX-License-Identifier: Apache-2.0
 * Which paths to peers have failed. A path leads from one of our ports to one of a peer's. Its failures outlive the connections
 * over it, and all endpoints of an instance know them: a bad cable costs that pair of ports, and nobody else who has one of them.
 * Any thread.
 */
#ifndef KVP_CLIENT_TRANSPORT_RDMA_PATHS_H
#define KVP_CLIENT_TRANSPORT_RDMA_PATHS_H

#include "common/base.h"

#include <pthread.h>
#include <sys/socket.h>

#define KVP_RDMA_PATHS 256u /* beyond, the one that was tried first is forgotten: its failures with it */

/* A rail's path; the caller fills in the ends and leaves the rest to the table. */
typedef struct {
    uint32_t ours; /* number of our device: one port, with one GID */
    struct sockaddr_storage
        theirs; /* the address of the peer's: a GID of one port; at which TCP port is all the same */
    uint32_t slot; /* where it was found last */
} kvp_rdma_path_t;

typedef struct {
    uint32_t fails; /* in a row */
    uint64_t retry_ns; /* not to be connected before */
} kvp_rdma_fails_t;

typedef struct {
    struct sockaddr_storage theirs; /* port 0; family 0 = none */
    uint32_t ours;
    uint64_t failed_ns; /* when it last did; 0 = never */
    kvp_rdma_fails_t fails;
} kvp_rdma_path_entry_t;

typedef struct {
    pthread_mutex_t lock; /* guards the rest */
    kvp_rdma_path_entry_t entries[KVP_RDMA_PATHS];
    uint32_t next;
} kvp_rdma_paths_t;

void kvp_rdma_paths_init(kvp_rdma_paths_t *paths);
void kvp_rdma_paths_fini(kvp_rdma_paths_t *paths);

/* kvp_rdma_paths_look gives the failures of a path; none where it was never tried. kvp_rdma_paths_reset forgets them, once a
 * connection has carried enough. kvp_rdma_paths_failed: a connection that was begun at since_ns is over, or never stood; it
 * returns the failures after that. The path is not to be tried for a moment then, and for twice as long with each failure in a
 * row, up to some seconds; dice (any number) spreads those who lost theirs together. Connections that stood together when a path
 * failed count as one failure. */
kvp_rdma_fails_t kvp_rdma_paths_look(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path);
void kvp_rdma_paths_reset(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path);
kvp_rdma_fails_t kvp_rdma_paths_failed(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path, uint64_t since_ns,
                                       uint64_t now_ns, uint64_t dice);

#endif
