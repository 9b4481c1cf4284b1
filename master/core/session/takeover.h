/* SPDX-License-Identifier: Apache-2.0
 * The consequences of a take-over from another master, which last for a while. */
#ifndef KVP_MASTER_CORE_SESSION_TAKEOVER_H
#define KVP_MASTER_CORE_SESSION_TAKEOVER_H

#include "master/core/session/peers.h"
#include "master/core/catalog/index.h"
#include "master/core/base/conf.h"

/* kvp_takeover_begin: another master served the pool, perhaps until just now. kvp_takeover_knows_all: the log has
 * every committed object, so no node can report an unknown one. kvp_takeover_lacks: the end of the log is missing, and
 * only nodes that mount soon can report its objects. kvp_takeover_lacks_nothing returns true, and ends this wait for
 * reports, after 2 s if have_all_told (every node with memory in the log has reported), else after report_grace_ns.
 * The caller then calls kvp_record_oldest before it appends other records. kvp_takeover_expect_tickets: clients may
 * restore tickets of the previous master. kvp_takeover_reported: a node's report has ended, so clients may restore
 * tickets for 500 ms more, within lease_ns of the take-over. kvp_takeover_may_tickets_come returns true while clients
 * may restore tickets; kvp_takeover_may_ticket_name: if they may, and the object is of an earlier term. */
void kvp_takeover_begin(kvp_sessions_t *peers);
void kvp_takeover_knows_all(kvp_sessions_t *peers);
void kvp_takeover_lacks(kvp_sessions_t *peers);
bool kvp_takeover_lacks_nothing(kvp_sessions_t *peers, bool have_all_told);
void kvp_takeover_expect_tickets(kvp_sessions_t *peers);
void kvp_takeover_reported(kvp_sessions_t *peers);
bool kvp_takeover_may_tickets_come(const kvp_sessions_t *peers);
bool kvp_takeover_may_ticket_name(const kvp_sessions_t *peers, const kvp_obj_t *o);

#endif
