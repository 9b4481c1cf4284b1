/* SPDX-License-Identifier: Apache-2.0
 * What this process owes to nodes: the word that nothing of an incarnation of its is under way any more, without which a
 * node that mapped memory for it to write keeps space in quarantine until the process ends. A node takes that word from
 * the process, in whatever session, so it is kept for the process: it outlives sessions and handles. Any thread.
 */
#ifndef KVP_CLIENT_CONTROL_DRAIN_NOTICES_H
#define KVP_CLIENT_CONTROL_DRAIN_NOTICES_H

#include "client/memory/peers.h"

#define KVP_DEBTS_MAX 4096u /* kept in mind; one more drives out the oldest */

/* kvp_debts_settle says the word of the peers' own incarnation, of which nothing is under way any more, to every node that
 * needs it and answers by until_ns; the rest is kept in mind. */
void kvp_debts_settle(kvp_peers_t *peers, uint64_t until_ns);

/* kvp_debts_pay says, over these peers, what is kept in mind for nodes of their pool, the oldest first, as far as it comes
 * by until_ns. What a node does not take comes last the next time. */
void kvp_debts_pay(kvp_peers_t *peers, uint64_t until_ns);

/* kvp_debts_count returns how many are kept in mind for that pool. */
size_t kvp_debts_count(const uint8_t pool_id[16]);

#endif
