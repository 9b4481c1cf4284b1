/* SPDX-License-Identifier: Apache-2.0
 * What has changed in the pool lately: nodes that joined, were lost or came back, the leader, problems, evictions. The
 * master looks once a second, and compares with what it saw before. Each change is logged, and the newest ones are kept
 * for the page, in about 0.3 MB. Pure but for the log; the caller serializes the calls. */
#ifndef KVP_MASTER_CHANGES_H
#define KVP_MASTER_CHANGES_H

#include "common/log.h"
#include "master/ha/election.h"
#include "master/labelled.h"

#define KVP_CHANGES_MAX 128u
#define KVP_CHANGE_TEXT_MAX 256u

/* What the master sees at one moment. */
typedef struct {
    uint64_t at_ms;
    uint32_t term;
    bool is_leader; /* false: the nodes are not compared, as a standby knows them only from the log */
    /* address of the leader of several masters; "" = none, or a single master */
    char leader[KVP_ELECTION_ADDRESS_MAX + 1];
    kvp_master_wrong_t wrong;
    kvp_master_node_t nodes[KVP_LABELLED_NODES];
    uint32_t nodes_n;
    uint64_t counts[2]; /* evictions, and refused puts */
} kvp_look_t;

typedef struct {
    uint64_t at_ms;
    char text[KVP_CHANGE_TEXT_MAX];
} kvp_change_t;

typedef struct {
    kvp_change_t ring[KVP_CHANGES_MAX];
    uint32_t n, next; /* number of changes; index of the next change in the ring */
    kvp_look_t before, now; /* the caller fills in `now`; before.at_ms 0 = there was no earlier state */
    uint64_t rose_ms[2]; /* time at which each count last rose; 0 = not in the last minute */
    kvp_log_limit_t limit;
} kvp_changes_t;

/* kvp_changes_note compares `now` with `before`, records and logs the differences, and copies `now` to `before`. In the
 * first state, and in the first state after this master began to lead, all nodes are new: they are not recorded.
 * kvp_changes_get returns the i-th change from the newest on; i < n. Borrowed until the next note. */
void kvp_changes_note(kvp_changes_t *changes);
const kvp_change_t *kvp_changes_get(const kvp_changes_t *changes, uint32_t i);

#endif
