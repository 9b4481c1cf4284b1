/* SPDX-License-Identifier: Apache-2.0
 * Facts from libkvpool: the transports of this machine, the pool's nodes, and whether they can be
 * reached, by a put and a get of a probe at each, which is removed again. */
#ifndef KVP_TOOLS_DOCTOR_POOL_H
#define KVP_TOOLS_DOCTOR_POOL_H

#include "tools/base/cli.h"
#include "tools/doctor/facts.h"

/* kvp_doctor_ask_library adds the transports and RDMA ports that libkvpool uses here.
 * KVP_EXIT_DONE, or KVP_EXIT_USAGE after printing which name or variable is wrong. */
int kvp_doctor_ask_library(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvp_doctor_facts_t *facts);

/* kvp_doctor_ask_pool adds the pool, its nodes (returned to free) and the probes; what goes wrong is a fact too. */
void kvp_doctor_ask_pool(const kvp_cli_common_t *common, kvp_doctor_facts_t *facts);

#endif
