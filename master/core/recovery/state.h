/* SPDX-License-Identifier: Apache-2.0
 * The core as a whole. Only files of master/core, and tests of them, include this.
 *
 * Life of an extent: free -> (PutBegin) WRITING -> (PutCommit) live -> (evict, remove, abort)
 * retiring -> free. An extent's owner number in the chunk's allocator shows the state: an oid, or
 * RETIRING_BIT | number of a retire record.
 *
 * Generations come from one sequence a master, so the generation of an object's extent is its
 * version as well: unique in the pool and rising. A version that differs is stored in the object's
 * extension. */
#ifndef KVP_MASTER_CORE_RECOVERY_STATE_H
#define KVP_MASTER_CORE_RECOVERY_STATE_H

#include "master/core/base/ctx.h"
#include "master/core/catalog/catalog.h"
#include "master/core/evict/eviction.h"
#include "master/core/log/journal.h"
#include "master/core/protect/protection.h"
#include "master/core/put/puts.h"
#include "master/core/session/peers.h"
#include "master/core/space/space.h"

/* The last base of the log: logbase.c. */
typedef struct {
    bool is_relied_on; /* once durable, the log has every committed object */
    bool is_basing; /* a base is under way */
    bool is_based; /* records before the last base are not needed, and the shell does not know yet */
    bool is_sync_broken; /* what was written may be lost: nothing more counts as synced before a base that is */
    uint64_t from, end; /* positions of the last base; end 0 = its last record is not written, or it is durable */
    uint32_t bases; /* bases begun by this master, */
    /* and of these the one whose older files are being removed, and the one whose older files are
     * removed */
    uint32_t taking, taken;
    uint64_t file_bytes; /* of all remaining files */
    uint32_t cursor, to; /* oids, */
    /* then come records of extents not dead yet, of objects to be dropped from a tier, and entries of
     * protect->gone */
    uint32_t retire, drop, gone;
} kvp_logbase_t;

/* The log that was read back: replay.c. */
typedef struct {
    kvp_buf_t rest; /* of what was given: the beginning of a record */
    uint32_t term; /* of the last record; 0 = nothing was read */
    uint32_t oldest_term; /* term of the last OLDEST; 0 = none */
    kvp_err_t err; /* CORRUPT: nothing more is believed */
    uint64_t records[16]; /* by their kinds */
    bool is_whole; /* the log read has every committed object, */
    bool is_anew; /* or will have: when it was begun, there was memory that it did not know */
    kvp_segment_t *named; /* segment of the last read place; NULL = none */
} kvp_replay_t;

/* Reports of nodes that were ended: rebuild.c. */
#define KVP_BAD_REPORTS_MAX 16u /* segments that are remembered for a bad report, */
#define KVP_CUT_REPORTS_MAX 256u /* and for a cut one */

/* A node that was given up after its grace, and has not come back. */
#define KVP_LOST_NODES_MAX 32u
typedef struct {
    char name[KVP_NAME_MAX + 1]; /* of its memory; "" = free */
    uint64_t dropped_ns;
} kvp_lost_node_t;

typedef struct kvp_master kvp_master_t;

struct kvp_master {
    /* The layers, from the lowest up. Each knows those before it by pointers, and no other. */
    kvp_ctx_t ctx;
    kvp_journal_t log;
    kvp_catalog_t cat;
    kvp_sessions_t peers;
    kvp_protect_t prot;
    kvp_space_t space;
    kvp_puts_t puts;
    kvp_evict_t evict;

    kvp_logbase_t base;
    kvp_replay_t replay;

    char host_id[KVP_NAME_MAX + 1];
    char unix_path[256];
    uint64_t ticked_ns;
    kvp_list_t jobs;
    kvp_list_t stagewaits; /* GETs that wait for loads */
    kvp_list_t over; /* sessions, while they have attempts or tickets */
    uint32_t turn; /* whose slice comes first in a step */
    uint32_t dropping; /* segments being purged */
    uint32_t reports; /* under way, */
    uint32_t closing; /* of these, the ones after their last page */
    char leader[KVP_NAME_MAX + 1]; /* the leader that a standby names; "" = unknown */
    kvp_master_peer_t masters[KVP_MASTERS_MAX]; /* as passed by the shell */
    uint32_t masters_n;
    kvp_lost_node_t lost_nodes[KVP_LOST_NODES_MAX]; /* a ring */
    uint32_t lost_nodes_at;
    uint32_t dropped_term; /* in which a segment was dropped last; 0 = none was */
    /* segments whose reports broke the rules: to be created again. A ring */
    uint8_t bad_reports[KVP_BAD_REPORTS_MAX][16];
    uint32_t bad_reports_at;
    uint8_t cut[KVP_CUT_REPORTS_MAX]
               [16]; /* segments whose reports in this term were cut: no put was ever placed there */
    uint32_t cut_n, cut_seq;
    void *match_ctx, *match_data; /* PCRE2's, for removals by pattern */
    uint32_t match_left; /* steps that the match under way may still take */
    char note_out[256];
};

#endif
