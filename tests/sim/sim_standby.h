/* SPDX-License-Identifier: Apache-2.0
 * A standby: a core as it is shipped that follows what the master's disk has, piece by piece and late, and what the
 * master may acknowledge meanwhile (master/ha/insync.h). It may be stuck, and then it is left behind. Where it is in
 * the in-sync set it can take over. */
#ifndef KVP_TESTS_SIM_STANDBY_H
#define KVP_TESTS_SIM_STANDBY_H

#include "tests/sim/sim.h"

void standby_start(sim_t *s); /* its log is empty */
void standby_stop(sim_t *s);
void standby_written(sim_t *s); /* the disk has more */
void standby_new_leader(sim_t *s); /* the master is another one, with the same log: the set is itself alone */
uint64_t standby_allows(const sim_t *s); /* position up to which the master may acknowledge what is gone */
bool standby_may_lead(const sim_t *s); /* the set that was written has it */
void standby_rebase(sim_t *s, uint64_t by); /* positions of the disk are lower by that from now on */
/* standby_take gives the core to the caller, with the positions of its log's begin and end. */
kvp_master_t *standby_take(sim_t *s, uint64_t *origin_out, uint64_t *end_out);

#endif
