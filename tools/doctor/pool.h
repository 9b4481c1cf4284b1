/* SPDX-License-Identifier: Apache-2.0
 * Collects facts from libkvpool: the transports of this machine, the pool's nodes, and whether they can be
 * reached. A probe of each node puts and gets an object, which is then removed. */
#ifndef KVP_TOOLS_DOCTOR_POOL_H
#define KVP_TOOLS_DOCTOR_POOL_H

#include "tools/base/cli.h"
#include "tools/doctor/facts.h"

/* kvp_doctor_ask_library adds the transports and RDMA ports that libkvpool uses here. It returns KVP_EXIT_DONE, or
 * KVP_EXIT_USAGE after it has printed the wrong name or variable. */
int kvp_doctor_ask_library(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvp_doctor_facts_t *facts);

/* kvp_doctor_ask_pool adds the pool, its nodes (the caller frees the array) and the probes. Errors are recorded as
 * facts. */
void kvp_doctor_ask_pool(const kvp_cli_common_t *common, kvp_doctor_facts_t *facts);

/* kvp_doctor_look_at_disks finds daemons on this machine whose file systems have too little space, as far as this user
 * may see their files. kvp_doctor_ask_daemons asks daemons for their version and clock, and conductors for the engines
 * that they cannot reach; `list` has HTTP addresses separated by commas, and is changed. A daemon that does not answer
 * is a finding only if the user named it. Call both after kvp_doctor_ask_pool. */
void kvp_doctor_look_at_disks(kvp_doctor_facts_t *facts);
void kvp_doctor_ask_daemons(kvp_doctor_facts_t *facts, char *list, bool is_named);

#endif
