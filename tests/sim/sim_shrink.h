/* SPDX-License-Identifier: Apache-2.0
 * Shrinking: the fewest choices of a plan with which it still breaks the same rule. */
#ifndef KVP_TESTS_SIM_SHRINK_H
#define KVP_TESTS_SIM_SHRINK_H

#include "tests/sim/sim_plan.h"

/* shrink leaves choices out of a plan that fails and prints the command that replays what is left. */
void shrink(plan_t *plan);

#endif
