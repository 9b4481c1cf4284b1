/* SPDX-License-Identifier: Apache-2.0
 * The core as a whole. Only files of master/core, and tests of them, include this.
 *
 * Life of an extent: free -> (PutBegin) WRITING -> (PutCommit) live -> (evict, remove, abort) retiring -> free. An
 * extent's owner number in the chunk's allocator shows the state: an oid, or RETIRING_BIT | number of a retire record.
 *
 * All generations of a master come from one sequence, so the generation of an object's extent is also the object's
 * version: unique in the pool and rising. If a version differs from the generation, the generation is stored in the
 * object's extension. */
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
    bool is_relied_on; /* flag: once the last base is durable, the log has every committed object */
    bool is_basing; /* flag: a base is being recorded */
    bool is_based; /* flag: records before the last base are not needed any more, and the shell was not told yet */
    bool is_sync_broken; /* flag: a sync failed, so nothing counts as synced before a later base is synced */
    /* log positions of the last base; end 0 = its last record is not appended yet, or the base is durable */
    uint64_t from, end;
    uint32_t bases; /* number of bases begun by this master */
    /* Numbers of bases: log files before base `taking` are being removed, before base `taken` they were. */
    uint32_t taking, taken;
    uint64_t file_bytes; /* bytes of all remaining log files */
    uint32_t cursor, to; /* the walk of the base over the objects: the next oid, and its end */
    /* Positions of the walks that follow: retire records, drops from tiers, and entries of protect->gone. */
    uint32_t retire, drop, gone;
} kvp_logbase_t;

/* The state of reading the log: replay.c. */
typedef struct {
    kvp_buf_t rest; /* the first part of a log record whose other bytes the shell has not passed yet */
    uint32_t term; /* term of the last record; 0 = nothing was read */
    uint32_t oldest_term; /* term of the last OLDEST record; 0 = none */
    uint64_t newest; /* greatest version of a COMMIT record; 0 = no COMMIT was read */
    kvp_err_t err; /* CORRUPT: no further record is accepted */
    uint64_t records[16]; /* number of records of each kind */
    bool is_whole; /* flag: the log has every committed object */
    /* flag: the last base began when there was memory that the master did not know; the log is not whole before the
     * base ends */
    bool is_anew;
    kvp_segment_t *named; /* segment of the last place that was read; NULL = none */
} kvp_replay_t;

/* Reports of nodes that ended early: rebuild.c. */
#define KVP_BAD_REPORTS_MAX 16u /* limit of the segments that are remembered for a bad report */
#define KVP_CUT_REPORTS_MAX 256u /* limit of the segments that are remembered for an interrupted report */

/* A node whose memory was dropped after its grace period, and that has not connected again. */
#define KVP_LOST_NODES_MAX 32u
typedef struct {
    char name[KVP_NAME_MAX + 1]; /* name of the node's memory; "" = the entry is free */
    uint64_t dropped_ns;
} kvp_lost_node_t;

typedef struct kvp_master kvp_master_t;

struct kvp_master {
    /* The layers, from the lowest to the highest. Each layer has pointers to the layers before it, and to no other. */
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
    kvp_list_t stagewaits; /* requests that wait for loads from a tier, or for nodes: stagewait.c */
    kvp_list_t over; /* ended sessions that still have attempts or tickets */
    uint32_t turn; /* number of the tick; selects the background job that runs first in this tick */
    uint32_t dropping; /* number of segments being purged */
    uint32_t reports; /* number of reports in progress */
    uint32_t closing; /* number of reports with a page that is not answered yet */
    char leader[KVP_NAME_MAX + 1]; /* address of the leader that a standby sends with a refusal; "" = unknown */
    kvp_master_peer_t masters[KVP_MASTERS_MAX]; /* all masters, as passed by the shell */
    uint32_t masters_n;
    uint64_t etcd_silent_ns; /* time since the last successful request to etcd; 0 = etcd answers, or there is no etcd */
    char etcd_trouble[KVP_MASTER_TROUBLE_MAX]; /* the last failure */
    kvp_lost_node_t lost_nodes[KVP_LOST_NODES_MAX]; /* ring buffer */
    uint32_t lost_nodes_at;
    uint32_t dropped_term; /* term in which a segment was last dropped; 0 = none was */
    /* Ring of uuids of segments whose reports were invalid: their memory must be created again. */
    uint8_t bad_reports[KVP_BAD_REPORTS_MAX][16];
    uint32_t bad_reports_at;
    /* uuids of segments whose reports in this term were interrupted; no put was ever placed in these segments */
    uint8_t cut[KVP_CUT_REPORTS_MAX][16];
    uint32_t cut_n, cut_seq;
    void *match_ctx, *match_data; /* PCRE2's match context and data, for removals by pattern */
    uint32_t match_left; /* number of steps that the running pattern match may still take */
    char note_out[256];
    kvp_master_audit_t audit_out;
    /* reason why a request was refused for the client's role; used during one step */
    char denied[KVP_IDENTITY_WHY_MAX];
};

#endif
