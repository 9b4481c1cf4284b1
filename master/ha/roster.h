/* SPDX-License-Identifier: Apache-2.0
 * The list of a pool's masters as one of them knows it: the masters in etcd now, and earlier ones. A state machine
 * without a clock, in the loop's thread. */
#ifndef KVP_MASTER_HA_ROSTER_H
#define KVP_MASTER_HA_ROSTER_H

#include "master/core/api/master.h"
#include "master/ha/ha.h"

/* a master that is missing for this long counts as removed from the pool */
#define KVP_ROSTER_FORGET_NS (24 * 3600 * KVP_NS_PER_S)

typedef struct {
    struct {
        char id[KVP_ELECTION_ID_MAX + 1]; /* "" = the entry is free */
        char address[KVP_ELECTION_ADDRESS_MAX + 1]; /* "" = unknown */
        uint64_t seen_ns;
    } ones[KVP_MASTERS_MAX];
} kvp_masterlist_t;

/* kvp_roster_update takes the present status, writes a row for each master, and returns the number of rows. A master
 * that was registered, or is in the in-sync set, and is not registered any more is missing: until its id or its
 * address is registered again, or KVP_ROSTER_FORGET_NS have passed. */
uint32_t kvp_roster_update(kvp_masterlist_t *roster, const kvp_ha_status_t *status, uint64_t now_ns,
                           kvp_master_peer_t rows_out[KVP_MASTERS_MAX]);

#endif
