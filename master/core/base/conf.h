/* SPDX-License-Identifier: Apache-2.0
 * Configuration and statistics of the master's core, shared by the shell and all layers of the core. */
#ifndef KVP_MASTER_CORE_BASE_CONF_H
#define KVP_MASTER_CORE_BASE_CONF_H

#include "common/base.h"
#include "common/trust/identity.h"
#include "proto/cause.h"

/* When the log is synced to disk, and which of the master's answers wait for the sync of their log records. */
typedef enum {
    /* the log is synced at intervals: answers to removals, upserts and bumps wait for it, those to commits do not */
    KVP_LOG_SYNC_INTERVAL,
    KVP_LOG_SYNC_ALWAYS, /* every answer waits for the sync of its log records */
    KVP_LOG_SYNC_NONE, /* the log is never synced */
} kvp_log_sync_t;

typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint64_t seed; /* seed of the core's random numbers (placement); peers may be able to find it out */
    uint64_t secret; /* secret key of the hash tables whose keys peers choose; never sent */
    uint32_t term; /* 1 or more */
    uint64_t lease_ns; /* longest life of a reservation; 0 = 10 s */
    uint64_t session_ttl_ns; /* a session without a message for this time ends; 0 = 10 s */
    /* time for which clients may read from cached locations before they must ask the master again; 0 = 1 s */
    uint64_t location_lease_ns;
    /* while no master answers, clients use cached locations for at most this time; at least location_lease_ns; 0 = 10 s
     */
    uint64_t location_grace_ns;
    /* Flag: another master served this pool before, so clients may still read under its leases. Without the flag
     * and without a log the pool is new, or all its state is lost. Such a pool has no identity yet. It takes the
     * identity from the first node that mounts memory of an existing pool, if this node comes before the first
     * grant of space. */
    bool had_master;
    uint64_t node_grace_ns; /* time for which a disconnected node's objects are kept in case it reconnects; 0 = 30 s */
    /* how long a master that takes over waits for the reports of nodes that have not connected; 0 = node_grace_ns */
    uint64_t report_grace_ns;
    /* limit of the bytes in the unfinished puts of one client, its quarantined extents included; 0 = 4 GiB */
    uint64_t attempt_bytes;
    const char *host_id; /* this host's id; copied */
    const char *protection; /* text for people: how the master's ports are protected; NULL = not known; borrowed */
    const char *unix_path; /* path of the master's Unix socket, sent in HelloReply; "" = none; copied */
    uint64_t curve_uses; /* limit of the uses a second that a miss-ratio curve tracks; 0 = no curves */
    uint64_t departed_bytes; /* bytes of the table of objects that left the index; 0 = no table */
    uint32_t max_sessions; /* limit of open sessions; 0 = 65536 */
    bool saves_ident; /* flag: the shell saves the pool's identity, so outputs wait for KVP_DONE_IDENT */
    bool has_journal; /* flag: there is a log; kvp_master_open_log comes before the first input */
    /* flag: etcd elects the leader. This master is idle until kvp_master_lead, and no peer's message raises its term */
    bool is_elected;
    /* flag: removal records in the log contain the object's key, for readers that keep no index (master/events) */
    bool log_names_gone;
    /* Bytes a second. An object gets a copy on another node if one host reads it at this rate from other hosts, or all
     * hosts together at four times this rate: evict/hot.h. 0 = no copies; answers then name an object's places in the
     * order of the log. */
    uint64_t hot_bytes_per_s;
    uint64_t hot_window_ns; /* length of the windows in which these reads are counted; 0 = 10 s */
    bool ssd_wants_use; /* flag: objects that were not read since their put are not written to an SSD */
    kvp_log_sync_t log_sync;
} kvp_master_conf_t;

/* The master's statistics: X(name, help) for each. Counters since the start, unless marked (gauge). */
#define KVP_MASTER_STATS(X)                                                                                            \
    X(objects, "committed objects (gauge)")                                                                            \
    X(attempts, "puts under way (gauge)")                                                                              \
    X(leases, "client sessions that may read from known locations (gauge)")                                            \
    X(clients, "client sessions (gauge)")                                                                              \
    X(nodes, "node sessions (gauge)")                                                                                  \
    X(segments, "segments mounted (gauge)")                                                                            \
    X(size_bytes, "mounted payload bytes (gauge)")                                                                     \
    X(used_bytes, "payload bytes in extents, retiring ones included (gauge)")                                          \
    X(unowned_bytes, "bytes of chunks that belong to no tenant: free for any put (gauge)")                             \
    X(owned_free_bytes, "free bytes in chunks of tenants, each only for the chunk's tenant (gauge)")                   \
    X(owners, "tenants that have chunks (gauge)")                                                                      \
    X(retiring_bytes, "bytes on their way from an object back to free space (gauge)")                                  \
    X(quarantine_bytes, "bytes that a dead writer might still touch (gauge)")                                          \
    X(held_bytes, "bytes under holds of gets (gauge)")                                                                 \
    X(reserved_bytes, "bytes under lookup tickets (gauge)")                                                            \
    X(memory_bytes, "memory of the index, keys, allocators and reservations (gauge)")                                  \
    X(led_ms, "time for which this master has led; 0 at a standby (gauge)")                                            \
    X(pending_puts, "puts waiting for space (gauge)")                                                                  \
    X(log_refuses, "1 while puts and removals are refused because the log cannot be written (gauge)")                  \
    X(work, "records that steps have touched")                                                                         \
    X(frames, "frames handled")                                                                                        \
    X(put_begins, "keys in PutBegin")                                                                                  \
    X(put_already, "puts of a committed key")                                                                          \
    X(put_in_progress, "puts refused because another writer is putting the key")                                       \
    X(put_taken, "puts given up for another writer of the key, because their own writer was silent")                   \
    X(put_no_space, "puts refused with NO_SPACE")                                                                      \
    X(put_retry_after, "puts refused with RETRY_AFTER")                                                                \
    X(put_collisions, "puts refused with COLLISION")                                                                   \
    X(commits, "committed puts")                                                                                       \
    X(put_bytes, "payload bytes of them")                                                                              \
    X(aborts, "aborted attempts")                                                                                      \
    X(gets, "keys in Get")                                                                                             \
    X(get_misses, "of these, not found")                                                                               \
    X(get_bytes, "payload bytes of the found ones, and of objects read from known locations")                          \
    X(exists, "keys in Exists")                                                                                        \
    X(exists_misses, "of these, not found")                                                                            \
    X(lookups, "keys in Lookup")                                                                                       \
    X(lookup_found, "of these, found")                                                                                 \
    X(lookup_ungranted, "found but not reserved, for the bound on reservations")                                       \
    X(presented, "objects that clients of lost sessions presented again, and kept")                                    \
    X(removes, "removed objects")                                                                                      \
    X(bumped, "objects dropped because their namespace was bumped")                                                    \
    X(evictions, "evicted objects")                                                                                    \
    X(evicted_bytes, "evicted payload bytes")                                                                          \
    X(evicted_age_ms, "times from the puts of evicted objects to their evictions, all together")                       \
    X(evict_foreground, "evictions with a put waiting")                                                                \
    X(evict_window, "evictions as a neighbour in a window")                                                            \
    X(evict_beside_free, "evictions while an eighth of the memory was free in chunks of other tenants")                \
    X(chunks_taken, "chunks that passed from one tenant to another")                                                   \
    X(probe_asides, "victims passed over for a while, because a client asked for them")                                \
    X(probed_bytes, "bytes of victims passed over for a while, because a client asked for them (gauge)")               \
    X(ticket_asides, "victims passed over for a while, because a ticket keeps them")                                   \
    X(groups, "groups (gauge)")                                                                                        \
    X(group_evictions, "evicted groups")                                                                               \
    X(soft_pinned_bytes, "bytes pinned softly (gauge)")                                                                \
    X(hard_pinned_bytes, "bytes pinned hard (gauge)")                                                                  \
    X(pins_lost, "soft pins removed because of their limit")                                                           \
    X(used, "objects that clients report as read from known locations")                                                \
    X(passed_over, "victims passed over for a while, because their node does not answer")                              \
    X(tier_size_bytes, "bytes of the SSD tiers of connected nodes (gauge)")                                            \
    X(tier_objects, "objects that are only on a tier (gauge)")                                                         \
    X(tier_bytes, "payload bytes of them (gauge)")                                                                     \
    X(demotes, "writes of objects to tiers, as ordered")                                                               \
    X(demoted, "of these, written")                                                                                    \
    X(demoted_bytes, "payload bytes of them")                                                                          \
    X(demotes_refused, "of demotes, those that failed, or whose object was removed meanwhile")                         \
    X(tier_missed, "objects evicted before they were on their node's tier")                                            \
    X(tier_unused, "objects not written to a tier, because no client asked for them (--ssd-admission used)")           \
    X(tier_evictions, "objects evicted from tiers")                                                                    \
    X(tier_lost, "objects that a tier should have, but lost or damaged")                                               \
    X(tier_drops, "drops of objects from tiers, as ordered")                                                           \
    X(stages, "loads of objects from tiers into memory, as ordered")                                                   \
    X(staged, "of these, read")                                                                                        \
    X(staged_bytes, "payload bytes of them")                                                                           \
    X(stages_failed, "of stages, those that failed: no room, or no such record")                                       \
    X(draining, "nodes that are being drained (gauge)")                                                                \
    X(draining_bytes, "memory of nodes that are being drained, which is not in size_bytes (gauge)")                    \
    X(moved, "objects moved off draining nodes")                                                                       \
    X(moved_bytes, "payload bytes of them")                                                                            \
    X(copies_failed, "copies for drains that failed, and are tried again")                                             \
    X(hot_copies, "copies made of objects that other hosts read much")                                                 \
    X(hot_bytes, "payload bytes of them")                                                                              \
    X(hot_dropped, "of these copies, those that were dropped again")                                                   \
    X(retires, "extents retired")                                                                                      \
    X(fences, "clients fenced")                                                                                        \
    X(sessions_expired, "sessions ended for silence")                                                                  \
    X(protocol_errors, "connections closed for a breach of the protocol")                                              \
    X(unreadable, "copies dropped, because their node reports that no reader would accept them")                       \
    X(purged, "objects dropped with a lost segment")                                                                   \
    X(adopted, "unknown objects that nodes reported")                                                                  \
    X(log_records, "records written to the log, or followed")                                                          \
    X(log_record_bytes, "bytes of them")                                                                               \
    X(step_longest_ns, "longest step of the core (gauge)")                                                             \
    X(answer_longest_ns, "longest from a readable request to its answer (gauge)")

typedef struct {
#define KVP_MASTER_STAT_FIELD(name, help) uint64_t name;
    KVP_MASTER_STATS(KVP_MASTER_STAT_FIELD)
#undef KVP_MASTER_STAT_FIELD
    uint32_t term;
    /* number of look-ups, prefix look-ups and EXISTS messages with a missing key, by the cause of the first missing key
     */
    uint64_t lookup_misses[KVP_CAUSES_N];
    uint64_t get_misses_by[KVP_CAUSES_N]; /* get_misses, by cause */
} kvp_master_stats_t;

#define KVP_AUDIT_OBJECT_MAX 128u
/* A refusal, or an allowed request that destroys something, for the shell's audit. */
typedef struct {
    uint64_t conn; /* 0 = none */
    uint8_t opcode;
    bool goes_on; /* flag: the peer is a process of this host, and will prove its identity on the Unix socket */
    kvp_err_t err; /* the refusal; OK = allowed */
    /* the object of the request: a node, a session or keys; for HELLO the peer's name */
    char object[KVP_AUDIT_OBJECT_MAX];
    char tenant[KVP_IDENTITY_NAME_MAX + 1];
    char why[KVP_IDENTITY_WHY_MAX];
} kvp_master_audit_t;

/* What the shell knows about a master of the pool, for the answer to Status. */
#define KVP_MASTER_TROUBLE_MAX 200u
#define KVP_MASTERS_MAX 32u /* limit of masters in Status, connected and missing masters together */
typedef struct {
    char id[33]; /* the master's id; "" without etcd */
    char address[281]; /* the master's address; "" = unknown */
    char http[281]; /* address of its HTTP port; "" = none, or unknown */
    uint32_t state; /* kvp_master_state_t */
    uint64_t lag_bytes;
} kvp_master_peer_t;

#endif
