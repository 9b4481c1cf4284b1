/* SPDX-License-Identifier: Apache-2.0
 * Held tickets: a handle's tickets at the master (for reservations and views), over all its sessions. The master ends
 * a ticket together with its session. Restore of tickets: in the next session the client sends the protected objects
 * to the master, in pages, and again while the master cannot protect them yet (PROTOCOL "PRESENT"). Pure: the shell
 * (client/control/tickets.c) has the lock, the clock and the connection.
 *
 * Design notes.
 * - The holder of a ticket knows it by an id of this library, which stays the same across sessions. A reservation may
 *   have several tickets: objects that nodes mount later get another ticket.
 * - A set has the objects of one id. If its restore is running, its release only marks it; the answer frees it.
 * - Callers need not release an expired reservation. Expired reservations are freed when there is no room for a new
 *   one. */
#ifndef KVP_CLIENT_CORE_TICKETS_H
#define KVP_CLIENT_CORE_TICKETS_H

#include "common/buf.h"
#include "proto/frame.h"
#include "proto/wire.h"

#define KVP_TICKETS_SETS_MAX 65536u

typedef struct kvp_tickets_set kvp_tickets_set_t;

typedef struct {
    kvp_tickets_set_t **sets; /* owned array of sets; the index is the low half of a set's id; NULL = free place */
    uint32_t *free; /* owned array of the free indices in sets */
    uint32_t free_n; /* number of free indices */
    uint32_t cap;
    uint32_t seq; /* high half of the last id */
    uint64_t incarnation; /* incarnation of the session in which tickets are being restored; 0 = none yet */
    uint32_t set_at, item_at; /* position of the current round of restores; set_at == cap = the round is over */
    bool is_due_again; /* another round of restores is needed */
    uint64_t due_ns; /* time before which the next round does not begin */
} kvp_tickets_t;

/* A new set: n digests under one ticket, which was granted in the session of the incarnation. */
typedef struct {
    kvp_present_kind_t kind;
    uint64_t incarnation;
    uint64_t ticket;
    uint64_t version; /* version of the object; HOLD only */
    uint64_t until_ns; /* kinds other than HOLD: end of the reservation, on the caller's clock */
    const kvp_digest_t *digests;
    uint32_t n;
} kvp_tickets_new_t;

/* One message that restores tickets. kvp_tickets_next fills the page, and kvp_tickets_on_reply or
 * kvp_tickets_on_call_failed ends its use. */
typedef struct {
    uint32_t n;
    kvp_wire_present_t recs[KVP_PLACES_MAX];
    struct {
        kvp_tickets_set_t *set;
        uint32_t item;
    } of[KVP_PLACES_MAX];
} kvp_tickets_page_t;

/* A zeroed struct is empty and valid. */
void kvp_tickets_fini(kvp_tickets_t *held); /* frees all sets; no page may be in use */

/* kvp_tickets_add returns the id of the new set, never 0. It returns 0 if memory is short or there are too many
 * sets. */
uint64_t kvp_tickets_add(kvp_tickets_t *held, const kvp_tickets_new_t *what, uint64_t now_ns);

/* kvp_tickets_release forgets the set with the id. It appends to `tickets` the set's tickets that are to be released
 * in the session of the incarnation. Returns true if all objects of the set were protected in the session. Returns
 * false also for an unknown id: the set may have expired. */
bool kvp_tickets_release(kvp_tickets_t *held, uint64_t id, uint64_t incarnation, kvp_buf_t *tickets);

/* kvp_tickets_next fills a page with objects to restore in the session of the incarnation. Returns OK, or EAGAIN if
 * nothing is to be restored before *due_ns_out (UINT64_MAX = nothing at all). */
kvp_err_t kvp_tickets_next(kvp_tickets_t *held, uint64_t incarnation, uint64_t now_ns, kvp_tickets_page_t *page,
                           uint64_t *due_ns_out);

/* kvp_tickets_on_reply handles the answer to a page, and appends tickets that are no longer needed to `tickets`.
 * Returns PROTO for a malformed answer. kvp_tickets_on_call_failed ends a page without an answer; the restore is
 * repeated. */
kvp_err_t kvp_tickets_on_reply(kvp_tickets_t *held, kvp_tickets_page_t *page, const kvp_frame_t *frame, uint64_t now_ns,
                               kvp_buf_t *tickets);
void kvp_tickets_on_call_failed(kvp_tickets_t *held, kvp_tickets_page_t *page, uint64_t now_ns);

/* kvp_tickets_encode builds the frame of a page. */
void kvp_tickets_encode(const kvp_tickets_page_t *page, kvp_buf_t *out);

#endif
