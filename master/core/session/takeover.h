/* SPDX-License-Identifier: Apache-2.0
 * The consequences of a take-over from another master, which last for a while. */
#ifndef KVP_MASTER_CORE_SESSION_TAKEOVER_H
#define KVP_MASTER_CORE_SESSION_TAKEOVER_H

#include "master/core/session/peers.h"
#include "master/core/catalog/index.h"
#include "master/core/base/conf.h"

/* kvp_takeover_begin: another master served the pool, perhaps until just now. kvp_takeover_knows_all: the log has
 * every committed object, so no node can report an unknown one. kvp_takeover_lacks: the same, except for the lost end
 * of the log, whose objects only nodes that mount soon can report. kvp_takeover_lacks_nothing ends this wait for
 * reports and returns true, if the wait has lasted 2 s with have_all_told (every node with memory in the log has
 * reported), and report_grace_ns without. The caller then calls kvp_record_oldest before it appends other records.
 * kvp_takeover_expect_tickets: clients may restore tickets of the previous master. kvp_takeover_reported: a node's
 * report has ended, so clients may restore tickets for 500 ms more. kvp_takeover_may_tickets_come returns true while
 * clients may restore tickets; kvp_takeover_may_ticket_name: and the object is of an earlier term. */
void kvp_takeover_begin(kvp_sessions_t *peers);
void kvp_takeover_knows_all(kvp_sessions_t *peers);
void kvp_takeover_lacks(kvp_sessions_t *peers);
bool kvp_takeover_lacks_nothing(kvp_sessions_t *peers, bool have_all_told);
void kvp_takeover_expect_tickets(kvp_sessions_t *peers);
void kvp_takeover_reported(kvp_sessions_t *peers);
bool kvp_takeover_may_tickets_come(const kvp_sessions_t *peers);
bool kvp_takeover_may_ticket_name(const kvp_sessions_t *peers, const kvp_obj_t *o);

#endif
