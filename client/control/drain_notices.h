/* SPDX-License-Identifier: Apache-2.0
 * Drain notices: with a drain notice this process informs a node that it has no running transfer of an incarnation
 * any more. A node that mapped its memory for our writes keeps freed space in quarantine until the notice arrives, or
 * until the process ends. A node accepts the notice in any session of the process, so unsent notices belong to the
 * process and outlive sessions and handles. Any thread may call. */
#ifndef KVP_CLIENT_CONTROL_DRAIN_NOTICES_H
#define KVP_CLIENT_CONTROL_DRAIN_NOTICES_H

#include "client/memory/peers.h"

#define KVP_DRAIN_NOTICES_MAX 4096u /* most waiting notices; a further notice replaces the oldest */

/* kvp_drain_notices_send sends the notice of the peers' incarnation to every node that needs it. The caller has ended
 * all transfers of the incarnation. A notice that a node has not answered by until_ns waits for
 * kvp_drain_notices_resend. */
void kvp_drain_notices_send(kvp_peers_t *peers, uint64_t until_ns);

/* kvp_drain_notices_resend sends the waiting notices for nodes of the peers' pool over these peers, the oldest first,
 * until until_ns. A notice that its node does not accept goes to the end of the list. */
void kvp_drain_notices_resend(kvp_peers_t *peers, uint64_t until_ns);

/* kvp_drain_notices_count returns the number of notices that wait for nodes of the given pool. */
size_t kvp_drain_notices_count(const uint8_t pool_id[16]);

#endif
