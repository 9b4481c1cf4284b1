/* SPDX-License-Identifier: Apache-2.0
 * Tickets: protection from eviction for a client, until release or expiry. */
#ifndef KVP_MASTER_CORE_PROTECT_TICKET_H
#define KVP_MASTER_CORE_PROTECT_TICKET_H

#include "common/hash.h"
#include "common/list.h"
#include "master/core/protect/protection.h"
#include "master/core/base/heap.h"
#include "master/core/protect/group.h"
#include "master/core/session/session.h"

#define KVP_TICKETS_MAX 16384u /* a client's */
#define KVP_TICKET_OBJECTS_MAX (1u << 20) /* in all tickets of a client */

typedef enum { KVP_TICKET_HOLD, KVP_TICKET_RESERVE } kvp_ticket_kind_t;

typedef struct kvp_ticket {
    kvp_list_t link; /* session->tickets, or protect->ending */
    kvp_session_t *session; /* NULL = it is no ticket any more, and lets go of its objects in slices */
    uint64_t id;
    kvp_heapnode_t expiry; /* RESERVE: in protect->expiries */
    uint64_t bytes;
    uint32_t number;
    uint32_t n;
    kvp_ticket_kind_t kind;
    uint32_t *oids; /* owned */
    kvp_group_t **groups; /* owned, in their place: a reservation of groups */
    /* For a reservation, to decide at its end whether it is a use of its objects: */
    uint32_t mark; /* clock of uses at its beginning */
    bool has_hole; /* some requested key was absent, */
    kvp_digest_t hole; /* this first, */
    uint32_t tenant; /* by its id, */
    uint64_t version; /* and versions up to this one are older */
    bool is_judged, is_use;
} kvp_ticket_t;

/* kvp_ticket_may_take: within the client's bound, and every object has room for one more ticket. */
bool kvp_ticket_may_take(const kvp_protect_t *prot, const kvp_session_t *s, const uint32_t *oids, uint32_t n);
uint64_t kvp_ticket_take_groups(kvp_protect_t *prot, kvp_session_t *s, kvp_group_t *const *groups, uint32_t n,
                                uint64_t ttl_ns);
uint64_t kvp_ticket_take(kvp_protect_t *prot, kvp_session_t *s, kvp_ticket_kind_t kind, const uint32_t *oids,
                         uint32_t n, uint64_t ttl_ns);
void kvp_ticket_note_hole(kvp_protect_t *prot, uint64_t id,
                          kvp_digest_t hole); /* the first absent key of the look-up */
void kvp_ticket_release(kvp_protect_t *prot, kvp_session_t *s, uint64_t id);
/* kvp_ticket_drop takes a ticket from its session; its objects are let go of by kvp_ticket_end_some. */
void kvp_ticket_drop(kvp_protect_t *prot, kvp_ticket_t *t);
void kvp_ticket_end_some(kvp_protect_t *prot);
void kvp_ticket_tick(kvp_protect_t *prot);
/* How many of the objects, from the first on, may be reserved within the bounds. */
uint32_t kvp_ticket_grantable(const kvp_protect_t *prot, const kvp_session_t *s, const uint32_t *oids, uint32_t n);
uint32_t kvp_ticket_grantable_groups(const kvp_protect_t *prot, const kvp_session_t *s, kvp_group_t *const *groups,
                                     uint32_t n);

#endif
