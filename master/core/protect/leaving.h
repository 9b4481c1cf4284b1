/* SPDX-License-Identifier: Apache-2.0
 * Copies that are being dropped after their object was moved. Clients are not sent to such a copy any more while
 * another copy is served. The copy is dropped when the log record that names the other copy is synced, and when all
 * tickets that were taken on the object before have ended. ADR 0050. */
#ifndef KVP_MASTER_CORE_PROTECT_LEAVING_H
#define KVP_MASTER_CORE_PROTECT_LEAVING_H

#include "common/list.h"
#include "master/core/catalog/index.h"
#include "master/core/protect/protection.h"

typedef struct {
    kvp_list_t link; /* protect->leaving_synced, leaving_held or leaving_ready */
    uint32_t number; /* number in protect->leavings */
    /* number of tickets on the object that were taken before the copy began to leave, and have not ended */
    uint32_t tickets;
    uint64_t last_ticket; /* sequence number of the last ticket taken before that */
    kvp_digest_t digest;
    uint64_t version;
    uint64_t generation; /* generation of the copy that is leaving */
    uint64_t after; /* position in the log after the record of the object's other copies */
    uint64_t due_ns; /* time from which on tickets do not protect the copy; UINT64_MAX = never */
} kvp_leaving_t;

/* kvp_leaving_begin: the copy begins to leave, and the object's places are recorded, so that the next master goes on.
 * Returns false without any record if a copy of this version leaves already; then the earlier due_ns counts.
 * kvp_leaving_ticket_taken: a ticket on the object was taken; where answers name the leaving copy, because no other
 * copy is served, all tickets count as taken before. kvp_leaving_ticket_over: a ticket with this sequence number on the
 * object has ended. kvp_leaving_ticket_back: a client has restored a ticket on the object, which counts as one that was
 * taken before. kvp_leaving_next returns a copy that may be dropped now, to be passed to kvp_leaving_end; NULL = none,
 * or the step's budget is used up. kvp_leaving_end: the copy was dropped, or stays. kvp_leaving_wants_sync returns true
 * if a copy waits for the sync of a record. */
bool kvp_leaving_begin(kvp_protect_t *prot, uint32_t oid, const kvp_place_t *at, uint64_t due_ns);
void kvp_leaving_ticket_taken(kvp_protect_t *prot, const kvp_obj_t *o);
void kvp_leaving_ticket_over(kvp_protect_t *prot, const kvp_obj_t *o, uint64_t ticket);
void kvp_leaving_ticket_back(kvp_protect_t *prot, const kvp_obj_t *o);
kvp_leaving_t *kvp_leaving_next(kvp_protect_t *prot);
void kvp_leaving_end(kvp_protect_t *prot, kvp_leaving_t *l);
bool kvp_leaving_wants_sync(const kvp_protect_t *prot);
void kvp_leaving_fini(kvp_protect_t *prot);

#endif
