/* SPDX-License-Identifier: Apache-2.0
 * Copies from node to node, drains, and the oracle over both. The steps of the real node are taken one by one: it reads
 * a copy unit by unit, then descriptor and key, and its control thread stores it in pieces. */
#ifndef KVP_TESTS_SIM_COPY_H
#define KVP_TESTS_SIM_COPY_H

#include "proto/frame.h"
#include "tests/sim/sim_mem.h"

struct node;

/* ---- the node's. copy_on_order: false: it is none to copy. node_drain: it asks to be drained, or not any more. */
bool copy_on_order(sim_t *s, struct node *n, const kvp_frame_t *f, kvp_err_t *err_out);
void copy_poll(sim_t *s, struct node *n); /* its link is up: without faults nothing is drained */
void node_drain(sim_t *s, uint32_t index, bool is_begin);

/* ---- the oracle's */
void copy_says_order(sim_t *s, conn_t *conn, const kvp_frame_t *f);
void copy_says_drain(sim_t *s, const conn_t *conn, const kvp_frame_t *f);
void copy_hears(sim_t *s, const conn_t *conn, const kvp_frame_t *f); /* the answer to an order, or DRAIN */
void copy_heard(sim_t *s); /* the master has taken it */
void copy_known(sim_t *s, grant_t *g); /* it is a place of its object, as the master has it */
void copy_granted(sim_t *s, const grant_t *g, uint64_t heard_ns); /* the place of a put that was heard then */
void copy_removed(sim_t *s, kvp_digest_t digest, uint64_t heard_ns); /* says the answer to what was heard then */
/* copy_retires: the master drops that extent. Returns true if its object was moved: another copy is served. */
bool copy_retires(sim_t *s, grant_t *g);
bool copy_is_held(sim_t *s, const grant_t *g); /* by a get or a view, and not only by a look-up */
bool copy_must_return(sim_t *s, const grant_t *g); /* the last copy of what was moved */
void copy_conn_over(sim_t *s, const conn_t *conn);
bool copy_was_dropped(sim_t *s, grant_t *g);
void copy_master_died(sim_t *s);

#endif
