/* SPDX-License-Identifier: Apache-2.0
 * Held tickets: a handle's tickets at the master (reservations and views), over all its sessions. A
 * ticket ends with its session. Ticket restore: in the next session the client sends the protected
 * objects to the master, in pages, and again while the master cannot honour them yet (PROTOCOL
 * "PRESENT"). Pure: the shell (client/control/tickets.c) has the lock, the clock and the
 * connection.
 *
 * Design notes.
 * - The holder of a ticket knows it by an id of ours, which stays the same across sessions. A
 *   reservation may have several tickets: objects that nodes mount later come under another one.
 * - A set whose restore is under way is not freed: it is marked, and freed with the answer.
 * - Callers need not release an expired reservation. Expired ones are swept out when there is no
 *   room. */
#ifndef KVP_CLIENT_CORE_TICKETS_H
#define KVP_CLIENT_CORE_TICKETS_H

#include "common/buf.h"
#include "proto/frame.h"
#include "proto/wire.h"

#define KVP_TICKETS_SETS_MAX 65536u

typedef struct kvp_tickets_set kvp_tickets_set_t;

typedef struct {
    kvp_tickets_set_t **sets; /* owned, by the low half of their ids; NULL = free */
    uint32_t *free; /* owned: free places, */
    uint32_t free_n; /* and how many */
    uint32_t cap;
    uint32_t seq; /* the high half of the last id */
    uint64_t incarnation; /* of the session of the restore; 0 = none yet */
    uint32_t set_at, item_at; /* where the round goes on; cap = it is over */
    bool is_due_again; /* another round of restores is needed, */
    uint64_t due_ns; /* not before */
} kvp_tickets_t;

/* A new set: n digests under one ticket from the session of the incarnation. */
typedef struct {
    kvp_present_kind_t kind;
    uint64_t incarnation;
    uint64_t ticket;
    uint64_t version; /* HOLD */
    uint64_t until_ns; /* the other kinds: end of their time, on the caller's clock */
    const kvp_digest_t *digests;
    uint32_t n;
} kvp_tickets_new_t;

/* One message: kvp_tickets_next fills it, and kvp_tickets_on_reply or kvp_tickets_on_call_failed
 * ends it. */
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

/* kvp_tickets_release forgets the id and appends its tickets to release in the session of the
 * incarnation. True if all of it was protected in the session; false also for an unknown or expired
 * id. */
bool kvp_tickets_release(kvp_tickets_t *held, uint64_t id, uint64_t incarnation, kvp_buf_t *tickets);

/* kvp_tickets_next fills a page for the session of the incarnation: OK, or EAGAIN without anything
 * to restore before *due_ns_out (UINT64_MAX = nothing at all). */
kvp_err_t kvp_tickets_next(kvp_tickets_t *held, uint64_t incarnation, uint64_t now_ns, kvp_tickets_page_t *page,
                           uint64_t *due_ns_out);

/* kvp_tickets_on_reply handles the answer, and appends tickets that are no longer needed. PROTO:
 * malformed. kvp_tickets_on_call_failed: without an answer; the restore is repeated. */
kvp_err_t kvp_tickets_on_reply(kvp_tickets_t *held, kvp_tickets_page_t *page, const kvp_frame_t *frame, uint64_t now_ns,
                               kvp_buf_t *tickets);
void kvp_tickets_on_call_failed(kvp_tickets_t *held, kvp_tickets_page_t *page, uint64_t now_ns);

/* kvp_tickets_encode builds the frame of a page. */
void kvp_tickets_encode(const kvp_tickets_page_t *page, kvp_buf_t *out);

#endif
