/* SPDX-License-Identifier: Apache-2.0
 * The masters of a pool as one of them knows them: those in etcd now, and earlier ones. A state
 * machine without a clock; its caller runs it on the loop's thread. */
#ifndef KVP_MASTER_HA_ROSTER_H
#define KVP_MASTER_HA_ROSTER_H

#include "master/core/api/master.h"
#include "master/ha/ha.h"

#define KVP_ROSTER_FORGET_NS (24 * 3600 * KVP_NS_PER_S) /* a master that is absent for this long was decommissioned */

typedef struct {
    struct {
        char id[KVP_ELECTION_ID_MAX + 1]; /* "" = free */
        char address[KVP_ELECTION_ADDRESS_MAX + 1]; /* "" = not known */
        uint64_t seen_ns;
    } ones[KVP_MASTERS_MAX];
} kvp_masterlist_t;

/* kvp_roster_update takes the present status, and returns how many rows it wrote. A master that was
 * registered, or is in the in-sync set, and is not registered any more is missing: until its id or
 * its address is registered again, or KVP_ROSTER_FORGET_NS have passed. */
uint32_t kvp_roster_update(kvp_masterlist_t *roster, const kvp_ha_status_t *status, uint64_t now_ns,
                           kvp_master_peer_t rows_out[KVP_MASTERS_MAX]);

#endif
