/* SPDX-License-Identifier: Apache-2.0
 * The serving side's bounce buffers: memory of the host, registered like any other, through which peers reach memory of a device. One
 * belongs to one control connection at a time. All of it is the control thread's. docs/adr/0023-p2p-device.md.
 */
#ifndef KVP_CLIENT_P2P_SERVE_BOUNCE_H
#define KVP_CLIENT_P2P_SERVE_BOUNCE_H

#include "client/p2p/base/ranges.h"
#include "client/data/bounce.h"

#define KVP_P2P_BOUNCES_MAX 64u /* of an endpoint; whoever finds none asks again */

typedef struct {
    kvp_p2p_ranges_t *ranges; /* borrowed */
    bool is_private;
    kvp_bounces_t memory;
    kvp_list_t idle; /* registered */
} kvp_p2p_bounces_t;

typedef struct {
    kvp_list_t link; /* of the idle ones */
    kvp_bounce_t *bounce;
    uint64_t token;
} kvp_p2p_bounce_t;

/* is_private: who had a bounce buffer before knows nothing of it afterwards, neither its bytes nor a key. */
void kvp_p2p_bounces_init(kvp_p2p_bounces_t *bounces, kvp_p2p_ranges_t *ranges, bool is_private);
void kvp_p2p_bounces_fini(kvp_p2p_bounces_t *bounces); /* all were given back */

/* kvp_p2p_bounces_take: NOTSUP (no memory of a device is registered), BUSY, NOMEM, SYS. kvp_p2p_bounces_give takes it back; is_quiet: nothing
 * that its peer sent can land in it any more. Otherwise it is unregistered, which waits for that. */
kvp_err_t kvp_p2p_bounces_take(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t **bounce_out) KVP_MUST_USE;
void kvp_p2p_bounces_give(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t *bounce, bool is_quiet);

/* kvp_p2p_bounce_at tells a peer where it is. */
kvp_peer_at_t kvp_p2p_bounce_at(const kvp_p2p_bounce_t *bounce);

/* kvp_p2p_bounce_takes: the pieces of such a move lie in the bounce buffer. */
bool kvp_p2p_bounce_takes(const kvp_peer_moves_t *moves);

/* kvp_p2p_bounce_copy copies some of the pieces, whose outcome goes into moved, and returns how many it has dealt with: 1 or more. */
uint32_t kvp_p2p_bounce_copy(kvp_p2p_bounces_t *bounces, kvp_p2p_bounce_t *bounce, const kvp_peer_moves_t *moves,
                             kvp_peer_moved_t *moved);

#endif
