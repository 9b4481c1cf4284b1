/* SPDX-License-Identifier: Apache-2.0
 * Tickets: a ticket protects objects from eviction for a client, until it is released or expires. */
#ifndef KVP_MASTER_CORE_PROTECT_TICKET_H
#define KVP_MASTER_CORE_PROTECT_TICKET_H

#include "common/hash.h"
#include "common/list.h"
#include "master/core/protect/protection.h"
#include "master/core/base/heap.h"
#include "master/core/protect/group.h"
#include "master/core/session/session.h"

#define KVP_TICKETS_MAX 16384u /* limit of one client's tickets */
#define KVP_TICKET_OBJECTS_MAX (1u << 20) /* limit of the objects in all tickets of one client */

typedef enum { KVP_TICKET_HOLD, KVP_TICKET_RESERVE } kvp_ticket_kind_t;

typedef struct kvp_ticket {
    kvp_list_t link; /* link in session->tickets, or in protect->ending */
    kvp_session_t *session; /* the client's session; NULL = the ticket has ended, and releases its objects in slices */
    uint64_t id;
    uint64_t sequence; /* number of tickets that were taken before, plus a constant */
    kvp_heapnode_t expiry; /* of a reservation: entry in protect->expiries */
    uint64_t bytes;
    uint32_t number;
    uint32_t n;
    kvp_ticket_kind_t kind;
    uint32_t *oids; /* owned array of n objects; NULL for a reservation of groups */
    kvp_group_t **groups; /* owned array of n groups; NULL for a ticket on objects */
    /* These fields of a reservation decide at its end whether it counts as a use of its objects. */
    uint32_t mark; /* clock of uses when the reservation began */
    bool has_hole; /* flag: a requested key was absent */
    kvp_digest_t hole; /* digest of the first absent key */
    uint32_t tenant; /* tenant id of the absent key */
    uint64_t version; /* highest version at the look-up: an absent key with a higher version was put later */
    bool is_judged, is_use;
} kvp_ticket_t;

/* kvp_ticket_may_take returns true if the client is below its limits, and every object can have n more tickets. */
bool kvp_ticket_may_take(const kvp_protect_t *prot, const kvp_session_t *s, const uint32_t *oids, uint32_t n);
uint64_t kvp_ticket_take_groups(kvp_protect_t *prot, kvp_session_t *s, kvp_group_t *const *groups, uint32_t n,
                                uint64_t ttl_ns);
uint64_t kvp_ticket_take(kvp_protect_t *prot, kvp_session_t *s, kvp_ticket_kind_t kind, const uint32_t *oids,
                         uint32_t n, uint64_t ttl_ns);
/* kvp_ticket_restored: the ticket, which was just taken, replaces a ticket of an earlier session. If a copy of its
 * objects is leaving, the copy waits for the ticket's end. */
void kvp_ticket_restored(kvp_protect_t *prot, uint64_t id);
void kvp_ticket_note_hole(kvp_protect_t *prot, uint64_t id,
                          kvp_digest_t hole); /* records the first absent key of the look-up */
void kvp_ticket_release(kvp_protect_t *prot, kvp_session_t *s, uint64_t id);
/* kvp_ticket_drop takes a ticket from its session; kvp_ticket_end_some releases its objects in slices. */
void kvp_ticket_drop(kvp_protect_t *prot, kvp_ticket_t *t);
void kvp_ticket_end_some(kvp_protect_t *prot);
void kvp_ticket_tick(kvp_protect_t *prot);
/* kvp_ticket_holder returns a client with a ticket on the object; NULL = the search, which is bounded, found none. */
const kvp_session_t *kvp_ticket_holder(const kvp_protect_t *prot, uint32_t oid);
/* Returns how many of the objects or groups, from the first one on, may be reserved within the limits. */
uint32_t kvp_ticket_grantable(const kvp_protect_t *prot, const kvp_session_t *s, const uint32_t *oids, uint32_t n);
uint32_t kvp_ticket_grantable_groups(const kvp_protect_t *prot, const kvp_session_t *s, kvp_group_t *const *groups,
                                     uint32_t n);

#endif
