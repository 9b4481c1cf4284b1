/* SPDX-License-Identifier: Apache-2.0
 * Held tickets: what a handle holds at the master, for many threads (core/tickets.h under a lock).
 * Callers add and release; the session's background thread restores them in the next session. Any
 * thread may call, but for kvp_held_tickets_restore. */
#ifndef KVP_CLIENT_CONTROL_TICKETS_H
#define KVP_CLIENT_CONTROL_TICKETS_H

#include "net/conn.h"
#include "client/core/tickets.h"

#include <pthread.h>

typedef struct {
    pthread_mutex_t lock; /* a leaf */
    kvp_tickets_t tickets; /* guarded by lock */
} kvp_held_tickets_t;

void kvp_held_tickets_init(kvp_held_tickets_t *held);
void kvp_held_tickets_fini(kvp_held_tickets_t *held);

/* As kvp_tickets_add and kvp_tickets_release; until_ns is by kvp_boot_ns. */
uint64_t kvp_held_tickets_add(kvp_held_tickets_t *held, const kvp_tickets_new_t *what);
bool kvp_held_tickets_release(kvp_held_tickets_t *held, uint64_t id, uint64_t incarnation, kvp_buf_t *tickets);

/* kvp_held_tickets_restore sends the due tickets to the master over the connection, and waits for
 * the answers. Returns the time until the next call in the same session. Breaks a connection whose
 * answers are invalid. One thread. */
uint64_t kvp_held_tickets_restore(kvp_held_tickets_t *held, kvp_conn_t *conn);

/* kvp_held_tickets_give_back sends the tickets' RELEASE, in `frame`, and waits for nothing. */
void kvp_held_tickets_give_back(kvp_conn_t *conn, const kvp_buf_t *tickets, kvp_buf_t *frame);

#endif
