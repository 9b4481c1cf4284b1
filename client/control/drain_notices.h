/* SPDX-License-Identifier: Apache-2.0
 * Drain notices: this process informs a node that no transfer of an incarnation is under way any
 * more. A node that mapped memory for writing keeps space in quarantine until the notice arrives,
 * or until the process ends. A node accepts the notice from the process in any session, so unsent
 * notices belong to the process, and outlive sessions and handles. Any thread. */
#ifndef KVP_CLIENT_CONTROL_DRAIN_NOTICES_H
#define KVP_CLIENT_CONTROL_DRAIN_NOTICES_H

#include "client/memory/peers.h"

#define KVP_DRAIN_NOTICES_MAX 4096u /* waiting notices; one more replaces the oldest */

/* kvp_drain_notices_send sends the notice of the peers' own incarnation, of which nothing is under
 * way any more, to every node that needs it. What a node has not answered by until_ns waits. */
void kvp_drain_notices_send(kvp_peers_t *peers, uint64_t until_ns);

/* kvp_drain_notices_resend sends, over these peers, the notices that wait for nodes of their pool,
 * the oldest first, until until_ns. A notice that its node does not take comes last the next time. */
void kvp_drain_notices_resend(kvp_peers_t *peers, uint64_t until_ns);

/* kvp_drain_notices_count returns how many notices wait for that pool. */
size_t kvp_drain_notices_count(const uint8_t pool_id[16]);

#endif
