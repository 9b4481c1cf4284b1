/* SPDX-License-Identifier: Apache-2.0
 * What a take-over from another master leaves for a while.
 */
#ifndef KVP_MASTER_CORE_SESSION_TAKEOVER_H
#define KVP_MASTER_CORE_SESSION_TAKEOVER_H

#include "master/core/session/peers.h"
#include "master/core/catalog/index.h"
#include "master/core/base/conf.h"

/* kvp_takeover_begin: another master served the pool, perhaps until just now.
 * kvp_takeover_knows_all: its log has every committed object, so nodes have no news.
 * kvp_takeover_lacks: except the end of the log, which the nodes know that mount soon.
 * kvp_takeover_lacks_nothing: all have reported or the time is over: true, and the log has to
 * record it before anything else (kvp_record_oldest). kvp_takeover_expect_tickets: sessions may
 * come with tickets of the previous master. kvp_takeover_reported: and with tickets of the report's
 * objects. kvp_takeover_may_tickets_come: they still may; kvp_takeover_may_ticket_name: for the
 * object. */
void kvp_takeover_begin(kvp_sessions_t *peers);
void kvp_takeover_knows_all(kvp_sessions_t *peers);
void kvp_takeover_lacks(kvp_sessions_t *peers);
bool kvp_takeover_lacks_nothing(kvp_sessions_t *peers, bool have_all_told);
void kvp_takeover_expect_tickets(kvp_sessions_t *peers);
void kvp_takeover_reported(kvp_sessions_t *peers);
bool kvp_takeover_may_tickets_come(const kvp_sessions_t *peers);
bool kvp_takeover_may_ticket_name(const kvp_sessions_t *peers, const kvp_obj_t *o);

#endif
