/* SPDX-License-Identifier: Apache-2.0
 * What plans are made of, shared by sim_plan.c and the profiles in files of their own. */
#ifndef KVP_TESTS_SIM_PLAN_PRIV_H
#define KVP_TESTS_SIM_PLAN_PRIV_H

#include "tests/sim/sim_plan.h"

#define US 1000ull
#define MS 1000000ull
#define SEC 1000000000ull

/* plan_make_room comes first: for so many calls of each thread, and all faults that a plan may have. */
void plan_make_room(plan_t *plan, uint32_t calls);
choice_t *plan_add(plan_t *plan, choice_kind_t kind, uint64_t at_ns);
void plan_add_calls(plan_t *plan, rng_t *rng, uint32_t each, uint64_t pause_max);

void plan_make_partition(plan_t *plan);
void plan_make_slots(plan_t *plan);
void plan_make_tiers(plan_t *plan);
void plan_make_keepers(plan_t *plan);
void plan_make_standbys(plan_t *plan);
void plan_make_moves(plan_t *plan);

#endif
