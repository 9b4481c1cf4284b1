/* SPDX-License-Identifier: Apache-2.0
 * What the parts of the oracle at the master's door (sim_watch*.c) have of each other. */
#ifndef KVP_TESTS_SIM_WATCH_H
#define KVP_TESTS_SIM_WATCH_H

#include "tests/sim/sim_oracle_priv.h"

#include "proto/kvpool.pb-c.h"

uint32_t tenant_of(const sim_t *s, const conn_t *conn);
/* What the elder says of that memory is void: its node obeys the next one. */
bool has_left_elder(const sim_t *s, const mem_t *mem);
void note_segment(sim_t *s, uint32_t id, mem_t *mem);
void know(sim_t *s, grant_t *g);
/* All grants in a memory: the next one behind *slot of *chunk, of each slot the newest. */
grant_t *grant_next(const mem_t *mem, uint32_t *chunk, uint32_t *slot);
void note_gap(sim_t *s, mem_t *mem, const kvp_wire_slot_t *slot);
/* What nodes may still report under that digest, up to that version, need not come back; of whichever tenant, where
 * digests collide. digest NULL: of all the tenant's keys. */
void let_go(sim_t *s, uint32_t tenant, const kvp_digest_t *digest, uint64_t version);
/* The newest version of what is told wins, whatever becomes of it, from when the master hears it: another node's
 * report may end before this one does. A journal knows that anyway. */
void let_go_older(sim_t *s, const kvp_frame_t *f, const Kvp__Pb__Report *head);
void reported(sim_t *s, mem_t *mem);
void watch_told_by_tier(sim_t *s, put_t *put, const kvp_desc_t *desc); /* a master without a log hears of it */
ask_t *asked_take(sim_t *s, conn_t *conn, const kvp_frame_t *f);
/* Reservations that have run out protect nothing any more. */
void expire_holds(sim_t *s);
attempt_t *attempt_of(sim_t *s, const conn_t *conn, uint64_t id);

#endif
