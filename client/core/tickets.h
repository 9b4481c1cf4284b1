/* SPDX-License-Identifier: Apache-2.0
 * Held tickets: what a handle holds at the master (reservations and views), over all its sessions. A ticket ends with its session.
 * Ticket restore: what the ticket protected is presented to the master in the next session, in pages, and again where the master
 * cannot honour it yet (PROTOCOL "PRESENT").
 * Pure: the shell (client/control/tickets.c) has the lock, the clock and the connection.
 *
 * Design notes.
 * - Whoever holds something knows it by an id of ours, which stays the same whatever ticket stands behind it. A reservation
 *   may have several: what nodes bring later comes under another one.
 * - What is presented at the moment is not freed: it is marked, and given back when the answer is there.
 * - Callers need not give back a reservation that has run out. Those are swept out when there is no room.
 */
#ifndef KVP_CLIENT_CORE_TICKETS_H
#define KVP_CLIENT_CORE_TICKETS_H

#include "common/buf.h"
#include "proto/frame.h"
#include "proto/wire.h"

#define KVP_TICKETS_SETS_MAX 65536u

typedef struct kvp_tickets_set kvp_tickets_set_t;

typedef struct {
    kvp_tickets_set_t **sets; /* owned, by the low half of their ids; NULL = free */
    uint32_t *free; /* owned: places that are free, */
    uint32_t free_n; /* and how many */
    uint32_t cap;
    uint32_t seq; /* the high half of the last id */
    uint64_t incarnation; /* of the session in which is presented; 0 = none yet */
    uint32_t set_at, item_at; /* where the round goes on; cap = it is over */
    bool is_due_again; /* something is to be presented in another round, */
    uint64_t due_ns; /* not before */
} kvp_tickets_t;

/* What is new: n digests under one ticket that the session of that incarnation was given. */
typedef struct {
    kvp_present_kind_t kind;
    uint64_t incarnation;
    uint64_t ticket;
    uint64_t version; /* HOLD */
    uint64_t until_ns; /* the others: when their time is over, as the caller counts it */
    const kvp_digest_t *digests;
    uint32_t n;
} kvp_tickets_new_t;

/* One message: what kvp_tickets_next fills, and kvp_tickets_on_reply or kvp_tickets_on_call_failed gives back. */
typedef struct {
    uint32_t n;
    kvp_wire_present_t recs[KVP_PLACES_MAX];
    struct {
        kvp_tickets_set_t *set;
        uint32_t item;
    } of[KVP_PLACES_MAX];
} kvp_tickets_page_t;

/* The zero value is empty. */
void kvp_tickets_fini(kvp_tickets_t *held); /* no page is out */

/* kvp_tickets_add returns the id, never 0; 0 = no memory, or too many. */
uint64_t kvp_tickets_add(kvp_tickets_t *held, const kvp_tickets_new_t *what, uint64_t now_ns);

/* kvp_tickets_release forgets it and appends the tickets that are to be released in the session of that incarnation. True
 * where all of it was protected in that session; false also for an id that is unknown, or has run out. */
bool kvp_tickets_release(kvp_tickets_t *held, uint64_t id, uint64_t incarnation, kvp_buf_t *tickets);

/* kvp_tickets_next fills a page for the session of that incarnation: OK, or EAGAIN where nothing is to be presented before
 * *due_ns_out (UINT64_MAX = as things are, nothing at all). */
kvp_err_t kvp_tickets_next(kvp_tickets_t *held, uint64_t incarnation, uint64_t now_ns, kvp_tickets_page_t *page,
                           uint64_t *due_ns_out);

/* kvp_tickets_on_reply takes the answer, and appends tickets that nobody wants any more. PROTO: it is none.
 * kvp_tickets_on_call_failed: there was none; it is presented again. */
kvp_err_t kvp_tickets_on_reply(kvp_tickets_t *held, kvp_tickets_page_t *page, const kvp_frame_t *frame, uint64_t now_ns,
                               kvp_buf_t *tickets);
void kvp_tickets_on_call_failed(kvp_tickets_t *held, kvp_tickets_page_t *page, uint64_t now_ns);

/* kvp_tickets_encode builds the frame of a page. */
void kvp_tickets_encode(const kvp_tickets_page_t *page, kvp_buf_t *out);

#endif
