/* SPDX-License-Identifier: Apache-2.0
 * Connections of the transport that ended with writes under way: what was sent on one of them may still land, and goes on to until its
 * peer has cut it (PEER_CUT). They are remembered here until it was asked to. Any thread.
 */
#ifndef KVP_CLIENT_P2P_ASK_UNCUT_H
#define KVP_CLIENT_P2P_ASK_UNCUT_H

#include "common/list.h"

#include <pthread.h>

#define KVP_P2P_UNCUTS_MAX 4096u /* beyond, the oldest are forgotten: of peers that were not heard of since */

/* One connection; made with it, so that remembering it cannot fail. */
typedef struct {
    kvp_list_t link;
    uint64_t peer; /* incarnation of the endpoint that it went to */
    uint64_t conn; /* and its own */
} kvp_p2p_uncut_t;

typedef struct {
    pthread_mutex_t lock; /* a leaf */
    kvp_list_t list; /* oldest first; guarded by lock, as is n */
    uint32_t n;
} kvp_p2p_uncuts_t;

void kvp_p2p_uncuts_init(kvp_p2p_uncuts_t *uncuts);
void kvp_p2p_uncuts_fini(kvp_p2p_uncuts_t *uncuts);

/* kvp_p2p_uncuts_add takes uncut. find copies up to cap connections to that peer and returns how many; forget drops those that the
 * peer has cut. */
void kvp_p2p_uncuts_add(kvp_p2p_uncuts_t *uncuts, kvp_p2p_uncut_t *uncut);
uint32_t kvp_p2p_uncuts_find(kvp_p2p_uncuts_t *uncuts, uint64_t peer, uint64_t *conns, uint32_t cap);
void kvp_p2p_uncuts_forget(kvp_p2p_uncuts_t *uncuts, const uint64_t *conns, uint32_t n);

#endif
