/* SPDX-License-Identifier: Apache-2.0
 * What must hold, and the reference that it is held against: everything that clients were told, everything that the
 * master says, and every extent with what became of it. Rules are named by the design's invariants: I1 to I9.
 */
#ifndef KVP_TESTS_SIM_ORACLE_H
#define KVP_TESTS_SIM_ORACLE_H

#include "proto/frame.h"
#include "tests/sim/sim_mem.h"

/* One put of a key by one call; all its attempts write the same marks. */
typedef struct put {
    uint64_t id;
    uint32_t key;
    uint64_t len;
    uint64_t begun_ns;
    uint64_t acked_ns; /* UINT64_MAX = not, or another's */
    uint64_t gone_ns; /* since when nobody may get it: acknowledgement of a removal or of a newer version */
    bool is_commit_sent;
    struct put *older; /* of the key */
} put_t;

void oracle_init(sim_t *s);
void oracle_fini(sim_t *s);
void oracle_step(sim_t *s); /* after every event */
void oracle_end(sim_t *s); /* all clients are gone: nothing may be left */

/* ---- what the master hears and says, in the order in which it does */
void oracle_master_hears(sim_t *s, conn_t *conn, const kvp_frame_t *f);
void oracle_master_says(sim_t *s, conn_t *conn, const kvp_frame_t *f);
void oracle_conn_over(sim_t *s, conn_t *conn); /* it heard that, or closed it */
void oracle_master_died(sim_t *s);
void oracle_mem_gone(sim_t *s, mem_t *mem);
mem_t *oracle_mem_of(sim_t *s, uint32_t term, uint32_t segment_id); /* NULL = never mounted */
void oracle_freed(sim_t *s, mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t generation); /* its node says so */

/* ---- what clients call and are told */
put_t *oracle_put_begins(sim_t *s, uint32_t key, uint64_t len);
void oracle_put_ends(sim_t *s, put_t *put, kvp_err_t err);
void oracle_remove_ends(sim_t *s, uint32_t key, uint64_t begun_ns, kvp_err_t err);
/* units: what the call was given, with OK, for that key. */
void oracle_got(sim_t *s, uint32_t key, uint64_t begun_ns, const uint64_t *units, uint64_t len);

#endif
