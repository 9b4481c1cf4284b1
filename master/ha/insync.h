/* SPDX-License-Identifier: Apache-2.0
 * The positions of the standbys, and the standbys for which an acknowledgement waits: a state
 * machine that the sender and the simulator run. Positions are those of the stream. */
#ifndef KVP_MASTER_HA_INSYNC_H
#define KVP_MASTER_HA_INSYNC_H

#include "master/ha/election.h"

#define KVP_STANDBYS_MAX (KVP_ELECTION_MEMBERS_MAX - 1u)

typedef struct {
    char id[KVP_ELECTION_ID_MAX + 1]; /* "" = free */
    uint64_t written; /* end position of its files */
    uint64_t moved_ns; /* when it was level last, or got on */
    bool is_joined; /* it is waited for, and to be in the set */
} kvp_insync_one_t;

typedef struct {
    kvp_insync_one_t ones[KVP_STANDBYS_MAX];
} kvp_insync_t;

/* kvp_insync_add: a standby follows, with the log up to the position. NULL: there are too many.
 * kvp_insync_del: it has stopped following. kvp_insync_wrote: it has now written up to the
 * position; end is ours. */
kvp_insync_one_t *kvp_insync_add(kvp_insync_t *in, const char *id, uint64_t written, uint64_t now_ns);
void kvp_insync_del(kvp_insync_t *in, const char *id);
void kvp_insync_wrote(kvp_insync_t *in, const char *id, uint64_t written, uint64_t end, uint64_t now_ns);
const kvp_insync_one_t *kvp_insync_find(const kvp_insync_t *in, const char *id);

/* kvp_insync_tick: a standby with every acknowledged record and a small lag joins; one without
 * progress leaves. acked: the last acknowledged position. */
void kvp_insync_tick(kvp_insync_t *in, uint64_t acked, uint64_t end, uint64_t now_ns);

/* kvp_insync_members: the set as it is to be written, self included. kvp_insync_all_have: the
 * position up to which all have the log that are in the set as it is written, or have joined;
 * UINT64_MAX where self is alone. kvp_insync_nth_has: n standbys, whichever; 0 where there are not
 * so many. */
void kvp_insync_members(const kvp_insync_t *in, const char *self, kvp_election_set_t *set_out);
uint64_t kvp_insync_all_have(const kvp_insync_t *in, const kvp_election_set_t *written, const char *self);
uint64_t kvp_insync_nth_has(const kvp_insync_t *in, uint32_t n);

#endif
