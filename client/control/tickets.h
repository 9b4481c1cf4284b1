/* SPDX-License-Identifier: Apache-2.0
 * Held tickets: the tickets of a handle's holds and reservations at the master, for use by many threads
 * (core/tickets.h under a lock). Callers add and release tickets. The session's background thread restores the
 * tickets in the next session. Any thread may call any function but kvp_held_tickets_restore. */
#ifndef KVP_CLIENT_CONTROL_TICKETS_H
#define KVP_CLIENT_CONTROL_TICKETS_H

#include "net/conn.h"
#include "client/core/tickets.h"

#include <pthread.h>

typedef struct {
    pthread_mutex_t lock; /* lock of the tickets, a leaf: its holder takes no other lock */
    kvp_tickets_t tickets; /* guarded by lock */
} kvp_held_tickets_t;

void kvp_held_tickets_init(kvp_held_tickets_t *held);
void kvp_held_tickets_fini(kvp_held_tickets_t *held);

/* kvp_held_tickets_add and _release are kvp_tickets_add and _release under the lock; until_ns is by kvp_boot_ns. */
uint64_t kvp_held_tickets_add(kvp_held_tickets_t *held, const kvp_tickets_new_t *what);
bool kvp_held_tickets_release(kvp_held_tickets_t *held, uint64_t id, uint64_t incarnation, kvp_buf_t *tickets);

/* kvp_held_tickets_restore sends the tickets that are due to the master over the connection and waits for the
 * answers. Returns the time until the next call in the same session. Breaks the connection if an answer is invalid.
 * Only one thread may call. */
uint64_t kvp_held_tickets_restore(kvp_held_tickets_t *held, kvp_conn_t *conn);

/* kvp_held_tickets_give_back builds a RELEASE of the tickets in `frame` and sends it. It does not wait for an
 * answer. */
void kvp_held_tickets_give_back(kvp_conn_t *conn, const kvp_buf_t *tickets, kvp_buf_t *frame);

#endif
