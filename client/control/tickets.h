/* SPDX-License-Identifier: Apache-2.0
 * What a handle holds at the master, for many threads: core/tickets.h under a lock. Callers add and release, the session's
 * background thread presents. Any thread may call, but for kvp_holdings_present.
 */
#ifndef KVP_CLIENT_CONTROL_TICKETS_H
#define KVP_CLIENT_CONTROL_TICKETS_H

#include "client/net/conn.h"
#include "client/core/tickets.h"

#include <pthread.h>

typedef struct {
    pthread_mutex_t lock; /* a leaf */
    kvp_held_t held; /* guarded by lock */
} kvp_holdings_t;

void kvp_holdings_init(kvp_holdings_t *holdings);
void kvp_holdings_fini(kvp_holdings_t *holdings);

/* As kvp_held_add and kvp_held_release; until_ns is by kvp_boot_ns. */
uint64_t kvp_holdings_add(kvp_holdings_t *holdings, const kvp_held_new_t *what);
bool kvp_holdings_release(kvp_holdings_t *holdings, uint64_t id, uint64_t incarnation, kvp_buf_t *tickets);

/* kvp_holdings_present presents over that connection what is to be presented now, and waits for the answers. Returns how
 * long until it is to be called again, should the session last; one whose answers make no sense is broken. One thread. */
uint64_t kvp_holdings_present(kvp_holdings_t *holdings, kvp_conn_t *conn);

/* kvp_holdings_give_back sends the tickets' RELEASE, in `frame`, and waits for nothing. */
void kvp_holdings_give_back(kvp_conn_t *conn, const kvp_buf_t *tickets, kvp_buf_t *frame);

#endif
