/* SPDX-License-Identifier: Apache-2.0
 * The positions of the standbys, and the standbys for which acknowledgements wait: a state machine that the sender
 * and the simulator run. Positions are those of the log's files. */
#ifndef KVP_MASTER_HA_INSYNC_H
#define KVP_MASTER_HA_INSYNC_H

#include "master/ha/election.h"

#define KVP_STANDBYS_MAX (KVP_ELECTION_MEMBERS_MAX - 1u)

typedef struct {
    char id[KVP_ELECTION_ID_MAX + 1]; /* "" = the entry is free */
    uint64_t written; /* end position of the standby's files */
    uint64_t moved_ns; /* when the standby last had the whole log, or made progress */
    bool is_joined; /* flag: acknowledgements wait for this standby, and the in-sync set should name it */
} kvp_insync_one_t;

typedef struct {
    kvp_insync_one_t ones[KVP_STANDBYS_MAX];
} kvp_insync_t;

/* kvp_insync_add: a standby begins to follow, with the log up to the position. NULL: there are too many.
 * kvp_insync_del: it has stopped following. kvp_insync_wrote: it has written up to the position; `end` is the end of
 * the leader's log. */
kvp_insync_one_t *kvp_insync_add(kvp_insync_t *in, const char *id, uint64_t written, uint64_t now_ns);
void kvp_insync_del(kvp_insync_t *in, const char *id);
void kvp_insync_wrote(kvp_insync_t *in, const char *id, uint64_t written, uint64_t end, uint64_t now_ns);
const kvp_insync_one_t *kvp_insync_find(const kvp_insync_t *in, const char *id);

/* kvp_insync_tick: a standby that has every acknowledged record and a small lag joins; a standby without progress
 * leaves. acked: the last acknowledged position. */
void kvp_insync_tick(kvp_insync_t *in, uint64_t acked, uint64_t end, uint64_t now_ns);

/* kvp_insync_members returns the set to write to etcd, this master included. kvp_insync_all_have returns the position
 * up to which the log is on all standbys that are in the written set or have joined; UINT64_MAX if there are none.
 * kvp_insync_nth_has returns the position that at least n standbys have reached; 0 if there are fewer. */
void kvp_insync_members(const kvp_insync_t *in, const char *self, kvp_election_set_t *set_out);
uint64_t kvp_insync_all_have(const kvp_insync_t *in, const kvp_election_set_t *written, const char *self);
uint64_t kvp_insync_nth_has(const kvp_insync_t *in, uint32_t n);

#endif
