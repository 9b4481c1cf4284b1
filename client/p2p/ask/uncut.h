/* SPDX-License-Identifier: Apache-2.0
 * Connections of the transport that ended with writes under way: what was sent on one of them may still land, and goes on to until its
 * peer has cut it (PEER_CUT). They are remembered here until it was asked to. Any thread.
 */
#ifndef KVP_CLIENT_P2P_ASK_UNCUT_H
#define KVP_CLIENT_P2P_ASK_UNCUT_H

#include "common/list.h"

#include <pthread.h>

#define KVP_P2P_OWED_MAX 4096u /* beyond, the oldest are forgotten: of peers that were not heard of since */

/* One connection; made with it, so that remembering it cannot fail. */
typedef struct {
    kvp_list_t link;
    uint64_t peer; /* incarnation of the endpoint that it went to */
    uint64_t conn; /* and its own */
} kvp_p2p_owed_t;

typedef struct {
    pthread_mutex_t lock; /* a leaf */
    kvp_list_t list; /* oldest first; guarded by lock, as is n */
    uint32_t n;
} kvp_p2p_owing_t;

void kvp_p2p_owing_init(kvp_p2p_owing_t *owing);
void kvp_p2p_owing_fini(kvp_p2p_owing_t *owing);

/* kvp_p2p_owing_add takes owed. find copies up to cap connections to that peer and returns how many; paid forgets those that it has cut. */
void kvp_p2p_owing_add(kvp_p2p_owing_t *owing, kvp_p2p_owed_t *owed);
uint32_t kvp_p2p_owing_find(kvp_p2p_owing_t *owing, uint64_t peer, uint64_t *conns, uint32_t cap);
void kvp_p2p_owing_paid(kvp_p2p_owing_t *owing, const uint64_t *conns, uint32_t n);

#endif
