/* SPDX-License-Identifier: Apache-2.0
 * The core's own structures and who owns what. Only files of master/core include this.
 *
 * Life of an extent: free -> (PutBegin) WRITING -> (PutCommit) live -> (evict, remove, abort) retiring -> free. An
 * extent's owner number in the chunk's allocator says which: an oid, or RETIRING_BIT | number of a retire record.
 *
 * Generations come from one sequence a master, so that the generation of an object's extent is its version as well:
 * unique in the pool and rising. A version that is not would lie in the object's extension.
 */
#ifndef KVP_MASTER_CORE_INTERNAL_H
#define KVP_MASTER_CORE_INTERNAL_H

#include "common/digestmap.h"
#include "common/list.h"
#include "common/segfmt.h"
#include "common/slab.h"
#include "common/mutate.h"
#include "common/recpool.h"
#include "master/core/blocks.h"
#include "master/core/group.h"
#include "master/core/heap.h"
#include "master/core/journal.h"
#include "master/core/master.h"
#include "master/core/objindex.h"
#include "master/core/policy.h"
#include "master/core/recent.h"
#include "master/core/umap.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <string.h>

#define KVP_MS(n) ((uint64_t)(n)*1000000u)
#define KVP_TICK_NS KVP_MS(10)
#define KVP_HEARTBEAT_MS 1000u
#define KVP_WRITER_SILENT_MS 1250u /* whose writer says nothing for so long, that key is given to who asks for it */
#define KVP_OWED_MS 50u /* a removal answers after that, dead or not */
#define KVP_PUT_WAIT_MS 1000u /* PutBegin with wait_ms 0 */
#define KVP_PUT_WAIT_MAX_MS 10000u
#define KVP_RETIRING_BIT 0x80000000u
#define KVP_SLICE 1024u /* records that a step may touch for what can wait: kvp_master_spend */
#define KVP_STEP_WORK 8192u /* extents that the search for space looks at in one step */
#define KVP_PUT_WHEEL 1024u /* a list for each tick in which a waiting put may be due */

#define KVP_LOST_LEASES_MAX 16u /* of clients whose connection ended, kept apart in a tenant */

/* What one peer can make the core remember. */
#define KVP_WAITERS_MAX 1024u /* of a client: removals, upserts and bumps that are not answered, */
#define KVP_WAITER_KEYS_MAX (1u << 20) /* and keys in them */
#define KVP_ATTEMPTS_MAX 65536u /* a client's */
#define KVP_STRAYS_MAX 16u /* extents taken from a silent client, which its own word can still free early */
#define KVP_TICKETS_MAX 16384u /* a client's */
#define KVP_TICKET_OBJECTS_MAX (1u << 20) /* in all tickets of a client */
#define KVP_GAP_WAIT_NS KVP_MS(3000) /* for the word of older writers, after a report */
#define KVP_SPOILED_MAX 16u /* segments that are remembered for a bad report, */
#define KVP_CUT_REPORTS_MAX 256u /* and for one that was cut */
#define KVP_NODE_SEGMENTS_MAX 64u /* mounted by one node */
#define KVP_UNDEAD_KEYS (1u << 16) /* counters; by a part of the digest */
#define KVP_RETIRE_REQS_MAX 8u /* orders that a node has not answered; the rest waits here */

/* ---- tables that give records a small number and get them back by it */
#define KVP_NONE UINT32_MAX

typedef struct {
    kvp_blocks_t records;
    uint32_t limit, free_head, n;
} kvp_ptab_t;

uint32_t kvp_ptab_add(kvp_ptab_t *t, void *rec);
void kvp_ptab_del(kvp_ptab_t *t, uint32_t number);
void *kvp_ptab_get(const kvp_ptab_t *t, uint32_t number); /* NULL where there is none */
void kvp_ptab_fini(kvp_ptab_t *t);

/* ---- tenants */
typedef struct kvp_job kvp_job_t;
typedef struct kvp_chunk kvp_chunk_t;

/* A chunk on its way from one tenant to another: share.c. A tenant takes one at a time. */
typedef enum {
    KVP_TAKE_NONE,
    KVP_TAKE_LOOK, /* whether all in it can go, and is worth it */
    KVP_TAKE_CLEAR, /* its objects are evicted */
    KVP_TAKE_KEPT, /* it is empty, and waits for the taker's next put */
} kvp_take_state_t;

typedef struct {
    kvp_list_t link; /* master->taking */
    kvp_take_state_t state;
    kvp_chunk_t *chunk;
    uint32_t age; /* of the taker's own first victim, when it began */
    uint32_t slot; /* where the walk goes on; KVP_SLAB_NONE = at the start */
    uint64_t young_bytes; /* in what was walked: used since that victim */
    bool has_stayed; /* something that was walked could not go just then */
    uint64_t next_ns, end_ns; /* the next look at what is in the way, and when it is given up */
} kvp_take_t;

typedef struct {
    uint64_t applied; /* the last revocation that it has applied */
    uint64_t until_ns;
} kvp_lost_lease_t;

typedef struct {
    uint32_t id;
    uint32_t number; /* in master->tenants */
    uint32_t refs; /* sessions, chunks, jobs */
    uint32_t epoch; /* of the namespace */
    uint32_t chunks; /* that are its own, */
    uint64_t chunk_bytes; /* and how long they are */
    uint64_t objects; /* committed, older epochs included */
    uint64_t used_bytes; /* extents in its chunks, */
    uint64_t going_bytes; /* and those of them that nothing keeps from becoming free */
    uint64_t soft_pinned_bytes, hard_pinned_bytes; /* committed objects', all copies */
    kvp_job_t *sweep; /* behind a bump; NULL = none is under way */
    uint64_t min_version; /* what was put up to this version is from an older epoch */
    kvp_objlist_t lru; /* what can be evicted of it */
    kvp_list_t owning; /* master->owners, while it has chunks */
    kvp_take_t take;
    uint64_t put_bytes; /* placed since it looked for a chunk of others last */
    uint32_t foreign_clears; /* chunks of others that are cleared for puts of it */

    /* lease.c */
    uint64_t revoke_seq; /* the last revocation */
    uint64_t revoked_from; /* those up to this one are not in the ring */
    kvp_digest_t *revoked; /* the ring: revocation seq at seq % revoked_cap */
    uint32_t revoked_cap;
    uint32_t lost_n;
    kvp_lost_lease_t lost[KVP_LOST_LEASES_MAX];
    kvp_heap_t leases; /* of the sessions, by the revocation applied */
    kvp_list_t waiters; /* for leases, by rising revoke_seq */
    kvp_list_t leasing; /* master->leasing, while there is anything in lost or waiters */
} kvp_tenant_t;

/* ---- probes */
#define KVP_PROBE_TICK_NS KVP_MS(100)

typedef struct {
    kvp_objlist_t list;
    uint64_t bytes;
} kvp_probe_slot_t;

typedef struct {
    uint64_t tick;
    uint64_t seen; /* the time that was looked at last, in ticks */
    uint64_t first; /* nothing in the ring is from before */
    uint64_t n, bytes; /* objects aside, and what their end would give */
    uint16_t lasts; /* ticks */
    uint32_t ring_n;
    kvp_probe_slot_t *ring; /* aside, by the tick of the first probe, modulo ring_n */
    kvp_objlist_t older;
    uint32_t cursor; /* the next of these that is looked at */
} kvp_probes_t;

/* ---- sessions */
typedef struct kvp_session kvp_session_t;

typedef struct {
    kvp_heapnode_t applied; /* tenant->leases */
    kvp_list_t link; /* master->leases, by rising until_ns */
    kvp_session_t *session;
    uint64_t until_ns;
    uint64_t told_seq; /* the oldest news that it may not have applied yet, and since when */
    uint64_t told_ns;
} kvp_lease_t;

struct kvp_session {
    uint64_t conn; /* 0 = it has ended, and the record stays until what it had is gone */
    kvp_list_t link; /* all sessions that have a connection, in the order of their last frame */
    kvp_list_t over; /* master->over */
    kvp_list_t born; /* live clients, in the order of their incarnation */
    kvp_list_t dirty; /* output waits */
    kvp_list_t attempts, tickets, pends, waiters, jobs, segments, retire_reqs;
    kvp_list_t strays; /* retire records of attempts that were taken from it while it was silent */
    kvp_list_t members; /* that it owns */
    kvp_list_t greeting; /* master->greeting: a node that is still told what is owed to others, */
    uint32_t tombs_at; /* from there on */
    uint64_t
        tombs_from; /* told by requests up to this one, a tombstone may be one that it does not know; all ones = it keeps no more */
    uint64_t tombs_whole; /* request; when that is answered it knows all; 0 = it does */
    uint64_t tombs_told, tombs_kept; /* the last one that it was sent, and that it has answered */
    uint32_t members_n;
    uint32_t segments_n, retire_reqs_n, tickets_n, waiters_n;
    uint32_t strays_n;
    uint32_t waiter_keys;
    uint32_t ticket_objects;
    uint64_t incarnation; /* 0 = no Hello yet */
    uint64_t seen_ns;
    uint64_t stall_seen_ns; /* the master's own stalls, when the session was last seen */
    uint64_t attempt_bytes; /* of unfinished attempts */
    uint64_t quarantine_bytes; /* of attempts that it aborted without a word about its stores */
    uint64_t reserved_bytes;
    uint64_t waiter_seq;
    kvp_umap_t attempt_ids;
    kvp_recent_t recent; /* attempts that are over */
    kvp_buf_t out;
    uint32_t number; /* in master->sessions */
    uint32_t role;
    bool is_drained; /* its word, with Bye: none of its stores is under way */
    bool is_closing; /* close after the output is sent; input is ignored */
    bool is_over; /* it owns nothing any more but attempts and tickets, whose turn to end has not come */
    char name[KVP_NAME_MAX + 1];
    char host_id[KVP_NAME_MAX + 1];
    kvp_tenant_t *tenant; /* a client's */
    kvp_lease_t *lease; /* NULL = it may not read from known locations */
    uint64_t born_seq; /* its tenant's revocations when it was greeted */
};

/* ---- segments and chunks */
typedef struct kvp_pkey kvp_pkey_t;

/* An allocator whose chunk is gone, or a pool of records whose owner is. */
typedef struct {
    kvp_list_t link; /* master->graves */
    kvp_slab_t *slab; /* NULL = a pool */
    kvp_recpool_t pool;
} kvp_grave_t;

typedef struct kvp_segment kvp_segment_t;
typedef struct kvp_report kvp_report_t;

struct kvp_chunk {
    kvp_segment_t *segment;
    kvp_slab_t *slab; /* NULL = nothing was ever placed here */
    kvp_slab_t *long_keys; /* made with the first long key */
    kvp_chunk_geo_t geo;
    uint64_t bytes;
    kvp_tenant_t *tenant; /* whose objects are in it; NULL = it is empty */
    kvp_pkey_t *clearing; /* for whom a large window of it is cleared; NULL = nobody: then it is open to others */
    kvp_tenant_t *taker; /* for whom all of it is cleared, or kept; NULL = nobody */
    uint64_t untaken_ns; /* until then it is not looked at again as one to be taken */
    uint32_t gaps; /* extents that a writer of an earlier term might still store to */
    uint8_t *sealed; /* while there are: a bit for each slot that was SEALED when it was reported; NULL = for none */
    uint32_t index; /* in the segment */
    uint32_t number; /* below KVP_OBJ_CHUNK_NONE */
    uint64_t memory_bytes; /* of its allocators, as counted in master->slab_bytes */
};

struct kvp_segment {
    kvp_list_t link; /* master->segments, by rising id */
    kvp_list_t of_node;
    kvp_list_t sending; /* master->sending while orders might have to go out */
    kvp_list_t retires; /* records not yet free */
    kvp_list_t unsent; /* of these, to go out with the next Retire */
    kvp_list_t sent; /* of these, told to the node that is connected now, and not free */
    kvp_list_t claims; /* pkeys with a window here */
    kvp_objlist_t aside; /* victims that are passed over: victims.c */
    kvp_session_t *node; /* NULL = lost */
    kvp_report_t *report; /* owned: its node is telling what is in it; until that is over it is as good as lost */
    kvp_chunk_t *chunks; /* kvp_segment_chunk makes one of them */
    uint32_t *room; /* a tree over the chunks: the longest free extent in each, and the longest of each pair above */
    uint32_t room_leaves;
    uint32_t chunk_n;
    uint32_t id;
    uint32_t host; /* a number: the same for segments of one host */
    uint32_t state; /* kvp_segment_state_t */
    uint32_t up_at; /* UP: its place in master->up, */
    kvp_heapnode_t up_chunk; /* and in master->up_chunks */
    uint32_t purge_chunk, purge_slot; /* where dropping it goes on */
    bool is_dropped; /* being purged; nothing in it exists any more */
    bool is_slow; /* its node owes an answer to a Retire for too long */
    uint64_t lost_ns;
    uint64_t lost_stall_ns; /* the master's own stalls, when the node was lost */
    uint64_t size_bytes, chunk_bytes, objects, epoch;
    uint64_t used_bytes, retiring_bytes, quarantine_bytes; /* in the pool's totals while the segment is not lost */
    uint64_t held; /* tickets on objects here */
    uint8_t uuid[16];
    char name[KVP_NAME_MAX + 1];
    char host_id[KVP_NAME_MAX + 1];
    char *addr, *unix_path, *transports; /* owned */
    uint64_t unmount_conn; /* 0 = nobody asked */
    kvp_frame_hdr_t unmount_ask;
    uint64_t unmount_due_ns;
};

/* ---- retiring extents */
typedef enum {
    KVP_RT_QUEUED, /* Retire never sent */
    KVP_RT_SENT,
    KVP_RT_DEAD, /* unreadable; not yet free */
    KVP_RT_HELD, /* free, and kept for the put that claimed it */
} kvp_retire_state_t;

/* What may have to make room: the next kind when without it all was looked at in vain. */
typedef enum {
    KVP_TAKES_PLAIN,
    KVP_TAKES_PROBED, /* also what only a probe protects */
    KVP_TAKES_PINNED, /* also what is pinned softly */
} kvp_takes_t;

typedef struct kvp_waiter kvp_waiter_t;

typedef struct {
    kvp_list_t link; /* segment->retires */
    kvp_list_t queue; /* segment->unsent, or ->sent */
    kvp_list_t claimed; /* claim->claimed */
    kvp_list_t stray; /* session->strays */
    kvp_chunk_t *chunk;
    uint32_t slot;
    uint32_t number;
    uint32_t long_key_slot;
    kvp_retire_state_t state;
    uint32_t *undead; /* counts it for its key until it is dead; NULL = it was never served */
    uint64_t attempt; /* whose extent a stray was; 0 = it is none */
    uint64_t generation;
    uint64_t owner; /* incarnation of a writer that may still store; 0 = none */
    uint64_t bytes;
    uint64_t sent_in; /* the Retire that it went out with last: numbers are reused, requests are not */
    kvp_pkey_t *claim;
    kvp_waiter_t *waiter; /* to be told when it is dead */
    kvp_list_t of_waiter; /* waiter->retires */
    uint64_t after; /* it goes out when the journal is durable up to there; 0 = at once */
    kvp_wire_tomb_t held_back; /* what nodes are told then */
    bool has_tomb; /* nodes remember it */
    kvp_wire_tomb_t tomb; /* what they do, or would; version 0 = nothing */
} kvp_retire_t;

typedef struct {
    kvp_list_t link; /* session->retire_reqs */
    uint64_t request_id;
    uint64_t sent_ns;
    uint64_t sent_stall_ns; /* the master's own stalls, when it was sent */
    uint32_t n;
    uint32_t *numbers; /* owned: retire records; one that went since has another sent_in, or none */
} kvp_retire_req_t;

/* ---- attempts */
typedef struct kvp_pend kvp_pend_t;

typedef struct {
    kvp_list_t link; /* session->attempts */
    kvp_list_t of_pend;
    kvp_session_t *session;
    kvp_tenant_t *tenant;
    uint32_t epoch; /* of the namespace, when it was begun */
    uint64_t id;
    uint64_t bytes; /* of one copy */
    kvp_digest_t digest;
    uint32_t oid;
    uint32_t over; /* the object that it is to replace; KVP_OID_NONE = none */
    bool is_upsert; /* though what it was to replace may have gone since */
    kvp_pin_t pin;
    kvp_wire_group_t group; /* that it is put into */
    uint32_t number;
    kvp_pend_t *pend; /* its PutBegin, while that is not answered */
    uint32_t at; /* index in that message */
    kvp_list_t pkeys; /* copies that still wait for space */
    uint64_t *granted; /* owned: generations of the copies as the client was told, where these are several */
    uint32_t granted_n;
    uint32_t copies; /* wanted, each on a host of its own */
} kvp_attempt_t;

/* ---- puts that wait for space: one kvp_pend_t a message, one kvp_pkey_t a key that has no extent yet */

struct kvp_pkey {
    kvp_list_t link; /* master->waiting, unless it has claimed a window */
    kvp_list_t of_attempt;
    kvp_list_t of_pend;
    kvp_list_t claimed; /* retire records of the window */
    kvp_list_t of_segment; /* segment->claims */
    kvp_pend_t *pend;
    kvp_attempt_t *attempt;
    kvp_chunk_t *chunk; /* of the window; NULL = none */
    uint64_t from, to; /* the window in the chunk, bytes */
    uint32_t oid;
    uint32_t claim_left; /* records of the window that are not free yet */
    uint32_t scan_chunk, scan_slot; /* where the search through all chunks goes on, */
    uint32_t scan_run; /* and the run that reaches to there: its first slot, where that lies, */
    uint64_t scan_run_off;
    uint64_t scan_cost; /* and what it costs up to there */
    uint64_t scan_news; /* master->space_news when that search began */
    bool is_scanned; /* it came to the end, in vain */
    kvp_takes_t takes;
    uint32_t met; /* a bit for each kind that was left out */
    bool is_taking; /* it looks through the chunks of other tenants: scan_left more, from scan_chunk and scan_slot on */
    uint32_t scan_left;

    /* clear.c */
    kvp_list_t clearing; /* master->clearings: its window is large, and not claimed but cleared */
    bool is_clearing;
    bool is_foreign; /* a whole chunk of another tenant */
    bool is_walked; /* the window, to its end; what was blocked is tried again */
    uint32_t clear_slot; /* where the walk goes on; KVP_SLAB_NONE = at the start */
    uint64_t clear_next_ns, clear_end_ns; /* the next walk, and when it is given up */
};

struct kvp_pend {
    kvp_list_t link; /* session->pends */
    kvp_list_t due; /* master->pends, by the tick */
    kvp_list_t attempts; /* begun by it */
    kvp_list_t keys; /* those that wait */
    kvp_session_t *session;
    kvp_frame_hdr_t ask;
    uint64_t due_ns;
    uint32_t n;
    uint32_t left; /* keys not decided */
    uint32_t claims; /* of these, with a window */
    uint32_t grants; /* copies */
    uint32_t copies; /* wanted of each object */
    uint32_t epoch; /* of the namespace, when it came */
    bool is_upsert;
    bool is_refused; /* some key that waited, for good, */
    uint64_t refused_news; /* after so many space_news */
    kvp_pin_t pin;
    kvp_wire_obj_t *objs; /* owned, n */
    uint32_t avoid[KVP_AVOID_MAX]; /* segments that its client does not reach */
    uint32_t avoid_n; /* 0 also when that wish was dropped */
    uint32_t only; /* the segment that its client wants it in; 0 = any */
};

/* ---- tickets */
typedef enum { KVP_TICKET_HOLD, KVP_TICKET_RESERVE } kvp_ticket_kind_t;

typedef struct {
    kvp_list_t link; /* session->tickets, or master->ending */
    kvp_session_t *session; /* NULL = it is no ticket any more, and lets go of its objects in slices */
    uint64_t id;
    kvp_heapnode_t expiry; /* RESERVE: in master->expiries */
    uint64_t bytes;
    uint32_t number;
    uint32_t n;
    kvp_ticket_kind_t kind;
    uint32_t *oids; /* owned */
    kvp_group_t **groups; /* owned, in their place: a reservation of groups */
    /* A reservation's, to tell when it ends whether it is a use of what it names: */
    uint32_t mark; /* of uses, when it began */
    bool has_hole; /* something that was asked for was not there, */
    kvp_digest_t hole; /* this first, */
    uint32_t tenant; /* by its id, */
    uint64_t version; /* and versions up to this one are from before */
    bool is_judged, is_use;
} kvp_ticket_t;

/* ---- answers that wait for dead, or for leases */
/* One waiter is answered after another one. */
typedef struct {
    kvp_list_t of_first; /* first->followers */
    kvp_list_t of_repeat; /* repeat->behind */
    kvp_waiter_t *repeat;
} kvp_follow_t;

struct kvp_waiter {
    kvp_list_t link; /* session->waiters, by rising id */
    uint64_t id; /* of all in its session's life */
    kvp_list_t leases; /* tenant->waiters */
    kvp_heapnode_t due; /* master->waiters */
    kvp_list_t durable; /* journal.waiters */
    kvp_list_t keeping; /* master->keeping */
    kvp_list_t retires; /* records that are not dead, and of which no node was told by a tombstone */
    kvp_list_t followers, behind; /* kvp_follow_t: who says again what this one says first; whom it comes after */
    uint64_t kept_from, kept_after; /* master->request_seq before the first of its tombstones, and before the last */
    uint64_t after; /* what it promises is written before that position of the journal */
    kvp_session_t *session; /* NULL = answered, or nobody to answer to */
    kvp_frame_hdr_t ask; /* REMOVE, PUT_COMMIT, PUT_ABORT, REMOVE_MANY or BUMP */
    uint64_t revoke_seq;
    uint32_t left; /* records not dead yet; the request itself counts one */
    bool is_dead_awaited, is_lease_awaited, is_durable_awaited, is_kept_awaited;
    bool has_tombs; /* of which kept_from and kept_after tell, */
    bool has_strays; /* some of them of extents whose records are not its own */
    bool is_unkept; /* there were too many to make one more: it waits until all is dead */
    uint32_t n;
    int32_t *results; /* owned: REMOVE, PUT_COMMIT, PUT_ABORT */
    kvp_err_t err; /* REMOVE_MANY, BUMP, as the rest */
    uint64_t removed, held;
    uint32_t wait_ms, epoch; /* BUMP */
};

/* ---- long walks */
struct kvp_job {
    kvp_list_t link; /* master->jobs */
    kvp_list_t of_session; /* session->jobs; a sweep is of none */
    kvp_tenant_t *tenant;
    kvp_waiter_t *waiter; /* NULL = the sweep behind a bump */
    void *pattern; /* compiled; NULL = all */
    uint32_t cursor; /* oid */
    uint32_t end; /* what is put behind it was put after the question */
    bool is_forced, heeds_probes;
    bool is_due_again; /* a sweep: from the start, when it has come to the end */
};

struct kvp_master {
    kvp_master_conf_t conf;
    char host_id[KVP_NAME_MAX + 1];
    char unix_path[256];
    uint32_t term;
    uint64_t now_ns;
    uint64_t ticked_ns;
    uint64_t stall_ns; /* time in which the master's own loop did not run */
    uint64_t started_ns;
    uint64_t rng;
    uint64_t incarnation_seq, ticket_seq, request_seq;
    uint64_t gen_seq; /* of every extent that is granted: a generation is also the object's version */
    uint32_t segment_seq;
    kvp_objindex_t *index;
    const kvp_policy_ops_t *policy;
    kvp_objlist_t pinned; /* what goes after all that is on the tenants' lists: pinned softly, in the order of uses */
    kvp_list_t owners; /* tenants that have chunks, in the order of who looks at whom */
    uint32_t owners_n;
    uint64_t owned_bytes; /* of their chunks */
    kvp_tenant_t *placing; /* borrowed: whose object got a place last; NULL = nobody's */
    kvp_list_t taking; /* tenants that take a chunk */
    bool has_take_news; /* a chunk that is taken may be empty, or its walk goes on */
    kvp_umap_t by_conn, by_incarnation; /* -> numbers in sessions */
    kvp_ptab_t sessions, tenants, chunks, attempts, tickets, retires;
    kvp_list_t seen, born, dirty;
    kvp_list_t segments, sending, waiting, jobs;
    kvp_umap_t tenant_ids; /* id + 1 -> number in tenants */
    kvp_list_t leases, leasing;
    kvp_htab_t groups;
    uint64_t groups_seed;
    kvp_list_t doomed; /* memberships: their objects are still to be dropped */
    kvp_list_t leavers; /* memberships whose owner's session is over */
    kvp_list_t orphans; /* that were reported, and whose group is not whole */
    uint64_t doomed_bytes;
    kvp_probes_t probes;
    uint64_t took_over_ns; /* when it did from the master before */
    uint64_t presents_due_ns; /* until then sessions may come for what they held before; 0 = they have */
    uint64_t old_leases_end_ns; /* until then clients may read under leases of the master before */
    kvp_heap_t waiters; /* by the time when they are answered come what may */
    kvp_list_t keeping; /* waiters whose tombstones no node has said to keep, by rising kept_after */
    kvp_list_t over; /* sessions, while they have attempts or tickets */
    kvp_list_t ending; /* tickets that let go of their objects */
    kvp_list_t pends[KVP_PUT_WHEEL]; /* by the tick of their due_ns */
    uint64_t put_tick; /* the last one looked at */
    kvp_segment_t **up; /* segments that take puts */
    uint32_t up_n, up_cap;
    kvp_umap_t up_hosts; /* their hosts' numbers -> how many of them are there */
    kvp_heap_t up_chunks; /* these segments, that with the longest chunks first */
    uint32_t lost_n; /* segments whose node is away */
    uint32_t host_seq;
    uint32_t slow_n; /* of the segments that take puts, with a node that does not answer */
    bool is_leaving; /* some windows are still to be given up, in segments that take no puts */
    bool has_aside; /* victims put aside are on their way back */
    uint64_t known_bytes; /* of all segments that are mounted, or may come back */
    uint32_t work_left; /* of this step's search for space */
    kvp_takes_t takes; /* of the key for which it is, as the next */
    uint32_t met;
    uint32_t slice_left; /* records that this step may still touch for what can wait */
    bool has_orders; /* that may go out, and did not for want of budget */
    bool is_behind; /* something that was due was left for the next step */
    kvp_heap_t expiries; /* reservations, by the time when they end */
    uint32_t *undead; /* KVP_UNDEAD_KEYS: extents of keys that may still be read where the key is gone */
    kvp_buf_t unwanted; /* answers to one-way questions go here */
    uint64_t waiting_attempts; /* of which some copy has no place yet */
    uint64_t claims; /* keys that wait for a window of theirs */
    bool has_space_news; /* something became free or evictable: waiting puts look again */
    uint64_t space_news; /* how often that was so */
    uint64_t slab_bytes; /* memory of all allocators of chunks */
    uint32_t turn; /* whose slice comes first in a step */
    kvp_list_t graves;
    kvp_list_t clearings;
    bool has_clear_news; /* a window that is cleared may be free, or its walk goes on */
    uint32_t chunks_n; /* of all segments, made or not */
    uint32_t dropping; /* segments being purged */
    uint32_t reports; /* under way */
    uint32_t closing; /* of these, behind their last page */
    uint64_t rebuild_until_ns; /* until then nodes may come whose memory is of an older term */
    kvp_digestmap_t removed; /* while they may: keys -> versions that went meanwhile, each with a tombstone */
    uint32_t removed_at; /* when they may not any more: how far these are paid */
    bool is_rebuild_over; /* these were too many: nothing that is reported is believed any more */
    kvp_digestmap_t tombs,
        tomb_refs; /* keys -> versions, and how many retires, and what else, they are owed by; none: learned */
    kvp_list_t greeting; /* nodes */
    kvp_digestmap_t strays; /* keys with a tombstone of extents that were evicted and are not dead */
    uint32_t strays_at; /* where the next look at them begins */
    uint32_t tombs_touched; /* places of tombs and tomb_refs whose memory is there, */
    bool is_touching; /* and more are to come */
    uint64_t tombs_idle_ns; /* since when nothing is owed; 0 = something is, or the maps are not there */
    kvp_buf_t tomb_news; /* kvp_wire_tomb_t that nodes are to be told with the end of this step */
    uint64_t gaps; /* extents that a writer of an older term might still store to */
    uint64_t gaps_due_ns; /* until then it is waited for them rather than evicted; 0 = not */
    uint32_t dropped_term; /* in which a segment was dropped last; 0 = none was */
    bool is_named; /* the pool is what conf says: a master before, a node or a grant has made that a fact */
    bool is_ident_news; /* the term or the name changed, and the shell was not told yet */
    uint8_t spoiled[KVP_SPOILED_MAX][16]; /* segments whose reports broke the rules: to be made anew. A ring */
    uint32_t spoiled_at;
    uint8_t cut[KVP_CUT_REPORTS_MAX]
               [16]; /* segments whose reports to this term were cut: none of it was ever placed there */
    uint32_t cut_n, cut_seq;
    kvp_journal_t journal;
    kvp_master_stats_t st;
    void *match_ctx, *match_data; /* PCRE2's, for removals by pattern */
    uint32_t match_left; /* steps that the match under way may still take */
    char note[256], note_out[256];
};

/* sessions.c */
kvp_session_t *kvp_session_find(kvp_master_t *m, uint64_t conn);
kvp_session_t *kvp_session_open(kvp_master_t *m, uint64_t conn);
void kvp_session_end(kvp_master_t *m, kvp_session_t *s); /* its connection is gone; freed here or in a later step */
void kvp_session_end_some(kvp_master_t *m); /* attempts and tickets of sessions that are over */
void kvp_session_close(kvp_master_t *m, kvp_session_t *s, const char *why); /* breach or expiry; freed at on_close */
void kvp_session_dirty(kvp_master_t *m, kvp_session_t *s);
void kvp_session_tick(kvp_master_t *m);
void kvp_on_hello(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_heartbeat(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
/* kvp_reply_begin begins the answer to ask and returns the buffer for its tail; kvp_frame_end(buffer, *at_out) ends it.
 * The answer to a one-way question goes nowhere. */
kvp_buf_t *kvp_reply_begin(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *msg,
                           size_t *at_out);
/* kvp_reply_results: OK, and of each of the n that were asked for a result of `each` bytes. */
void kvp_reply_results(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *results, uint32_t n,
                       size_t each);
void kvp_reply_plain(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask, kvp_err_t err, const char *detail);
void kvp_fence_tell(kvp_master_t *m, kvp_session_t *node, uint64_t incarnation); /* 0 = only who is alive at all */

/* tenant.c */
kvp_tenant_t *kvp_tenant_find(const kvp_master_t *m, uint32_t id); /* NULL = unknown */
bool kvp_tenant_may_open(const kvp_master_t *m, uint32_t id); /* there are not too many */
kvp_tenant_t *kvp_tenant_open(kvp_master_t *m, uint32_t id); /* one reference more */
void kvp_tenant_rele(kvp_master_t *m, kvp_tenant_t *t);
void kvp_tenant_prune(kvp_master_t *m, kvp_tenant_t *t); /* frees it if nothing needs it any more */
void kvp_tenants_fini(kvp_master_t *m);

/* lease.c */
/* kvp_revoke takes a key's location away from all who know it: called when an object is removed or superseded, and not
 * when it is evicted. Returns the revocation's number. kvp_revoke_all: all locations of the tenant. */
uint64_t kvp_revoke(kvp_tenant_t *t, kvp_digest_t digest);
uint64_t kvp_revoke_all(kvp_tenant_t *t);
/* kvp_lease_is_over: no client can read from a location that the revocation took away. */
bool kvp_lease_is_over(const kvp_master_t *m, const kvp_tenant_t *t, uint64_t seq);
void kvp_lease_wait(kvp_master_t *m, kvp_waiter_t *w); /* for its revoke_seq, the greatest that anybody waits for */
/* kvp_lease_renew gives the session a lease from now on, or not (false): it has applied the revocations up to seq. */
bool kvp_lease_renew(kvp_master_t *m, kvp_session_t *s, uint64_t applied_seq);
/* kvp_lease_news finds what was revoked after applied_seq. NULL = more than is known here; news has room for
 * KVP_REVOKED_MAX and is returned otherwise. */
const kvp_digest_t *kvp_lease_news(const kvp_tenant_t *t, uint64_t applied_seq, kvp_digest_t *news, uint32_t *n_out);
/* kvp_lease_end: the session is over. is_given_up: by its own word, so that it reads nothing from now on. */
void kvp_lease_end(kvp_master_t *m, kvp_session_t *s, bool is_given_up);
void kvp_lease_tick(kvp_master_t *m);

/* waiter.c */
/* kvp_waiter_open makes the answer to a request that drops n named objects: results has a place for each. Retire
 * records that get the waiter count in it; kvp_waiter_arm is called when everything was dropped and revoked, and the
 * answer goes out when all is dead, or owed, and with `wait` when no lease names it any more. Before: may_open, or the
 * client has too many of them. */
bool kvp_waiter_may_open(const kvp_session_t *s, uint32_t n);
kvp_waiter_t *kvp_waiter_open(kvp_session_t *s, const kvp_frame_hdr_t *ask, uint32_t n);
void kvp_waiter_arm(kvp_master_t *m, kvp_waiter_t *w, bool wait);
void kvp_waiter_dead(kvp_master_t *m, kvp_waiter_t *w); /* one record less */
void kvp_waiter_revoked(kvp_master_t *m, kvp_waiter_t *w); /* no lease stands in its way */
void kvp_waiter_durable(kvp_master_t *m, kvp_waiter_t *w); /* nor the journal */
/* kvp_waiter_told: a tombstone that it may have to wait for goes out with this step. kvp_waiters_kept: some node has said
 * what it keeps. */
void kvp_waiter_told(const kvp_master_t *m, kvp_waiter_t *w);
void kvp_waiter_follow(const kvp_master_t *m, kvp_waiter_t *w); /* what others wait for, it waits for as well */
void kvp_waiters_kept(kvp_master_t *m);
/* kvp_waiter_find: NULL where it has been answered. kvp_waiter_line_up: w is answered after first, which is another of its
 * session. */
kvp_waiter_t *kvp_waiter_find(const kvp_session_t *s, uint64_t id);
void kvp_waiter_line_up(kvp_waiter_t *w, kvp_waiter_t *first);
void kvp_waiter_end_all(kvp_master_t *m, kvp_session_t *s);
void kvp_waiter_tick(kvp_master_t *m);

/* segment.c */
void kvp_on_mount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_unmount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_segments(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_segments_lost(kvp_master_t *m, kvp_session_t *node);
void kvp_segment_tick(kvp_master_t *m);
void kvp_segment_drop(kvp_master_t *m, kvp_segment_t *g);
void kvp_segment_free(kvp_master_t *m, kvp_segment_t *g);
/* A chunk is made with its first use: until then its record is zero, and all of it is free. */
kvp_chunk_t *kvp_segment_chunk(kvp_master_t *m, kvp_segment_t *g, uint32_t index);
static inline uint64_t
kvp_segment_chunk_bytes(const kvp_segment_t *g, uint32_t index)
{
    return kvp_min_u64(g->chunk_bytes, g->size_bytes - (uint64_t)index * g->chunk_bytes);
}
uint64_t kvp_segment_longest_chunk(const kvp_master_t *m); /* bytes, of those in which something can be put */
kvp_segment_t *kvp_segment_find(kvp_master_t *m, uint32_t id);
/* A segment whose node does not answer is passed over for puts as long as there are others. */
static inline bool
kvp_segment_is_passed_over(const kvp_master_t *m, const kvp_segment_t *g)
{
    return g->is_slow && m->slow_n < m->up_n;
}

/* kvp_segment_up: its node, which is that session, answers for it from now on. */
void kvp_segment_up(kvp_master_t *m, kvp_segment_t *g, kvp_session_t *s);

/* rebuild.c: see there. kvp_report_lost: nothing more will come from that node; what it had reported is dropped.
 * kvp_report_slice does some of what is left behind the last page; false while there is more. kvp_report_was_cut: the last
 * report of that memory did not come to its end, so that it may begin again in the same term. */
void kvp_report_begin(kvp_master_t *m, kvp_segment_t *g, kvp_session_t *node);
void kvp_on_report(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_report_lost(kvp_master_t *m, const kvp_session_t *node);
bool kvp_report_was_cut(const kvp_master_t *m, const uint8_t uuid[16]);
bool kvp_report_slice(kvp_master_t *m, kvp_segment_t *g, uint32_t *left);
void kvp_report_free(kvp_master_t *m, kvp_segment_t *g);
kvp_segment_t *kvp_report_by(const kvp_master_t *m,
                             const kvp_session_t *node); /* of which that node reports, or NULL */

/* owed.c. kvp_owed_is_rebuilding: memory of older terms may be reported. kvp_owed_version: no version of the key up to
 * that one exists, 0 = nothing is known.
 * What goes is held against what nodes report. kvp_owed_dropped: the object is about to leave the index; returns what is
 * to be told of it, version 0 = nothing. kvp_owed_lost: it is, because its memory is gone. kvp_owed_unknown: a key was
 * removed, whatever of it up to that version nodes may report: the answer waits until some node keeps it in mind. kvp_owed_bumped: a namespace was.
 * kvp_owed_retire: an extent of it is on its way out; kvp_owed_tell: nodes are to keep that in mind (false: they are told too
 * much already); kvp_owed_paid: it is dead, or given up. kvp_owed_stray: versions of that key up to that one are gone, and
 * what was evicted of them may not be dead: the answer waits until some node keeps it in mind, where no journal does.
 * kvp_owed_learn: a node kept that tombstone; kvp_owed_answer: it says that it keeps what it was told. kvp_owed_flush tells nodes what is new, kvp_owed_greet tells one of them all, in as many steps as that
 * takes (kvp_owed_some). kvp_owed_remind tells one that reports why some of it is not wanted, before it hears that it is not;
 * empties the buffer. */
bool kvp_owed_is_rebuilding(const kvp_master_t *m);
uint64_t kvp_owed_version(const kvp_master_t *m, uint32_t tenant, kvp_digest_t digest);
kvp_wire_tomb_t kvp_owed_tomb(const kvp_master_t *m, uint32_t tenant, kvp_digest_t digest); /* which says so */
void kvp_owed_remind(kvp_master_t *m, kvp_segment_t *g, kvp_session_t *node, kvp_buf_t *tombs);
bool kvp_owed_bumped(kvp_master_t *m, const kvp_tenant_t *t); /* false: nodes are told too much already */
kvp_wire_tomb_t kvp_owed_dropped(kvp_master_t *m, const kvp_obj_t *o, bool is_promised);
void kvp_owed_lost(kvp_master_t *m, const kvp_obj_t *o);
void kvp_owed_unknown(kvp_master_t *m, kvp_digest_t digest, uint64_t version, kvp_waiter_t *w);
void kvp_owed_retire(kvp_master_t *m, kvp_retire_t *r, const kvp_wire_tomb_t *tomb);
bool kvp_owed_tell(kvp_master_t *m, kvp_retire_t *r);
void kvp_owed_stray(kvp_master_t *m, kvp_digest_t digest, uint64_t version, kvp_waiter_t *w);
void kvp_owed_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_owed_paid(kvp_master_t *m, kvp_retire_t *r);
void kvp_owed_learn(kvp_master_t *m, const kvp_wire_tomb_t *tomb);
void kvp_owed_flush(kvp_master_t *m);
void kvp_owed_greet(kvp_master_t *m, kvp_session_t *node);
void kvp_owed_expect(kvp_master_t *m, uint64_t objects); /* to be owed: they lie where nobody answers */
void kvp_owed_some(kvp_master_t *m); /* what of this can wait */
void kvp_owed_tick(kvp_master_t *m);
uint64_t kvp_owed_memory_bytes(const kvp_master_t *m); /* of its maps */
void kvp_owed_fini(kvp_master_t *m);

/* journal.c: see there. Without a journal none of it does anything.
 * What happens is written: kvp_journal_commit, of an object with its version; _gone, of one that is about to go; _lost, with
 * its memory, which may be reported yet; _forget, of a key that is not there; _bumped; _term: ours; _base: all that is there
 * once more, is_anew where nothing that was written before counts any more. */
void kvp_journal_init(kvp_master_t *m);
void kvp_journal_fini(kvp_master_t *m);
void kvp_journal_commit(kvp_master_t *m, uint32_t oid, kvp_digest_t digest);
void kvp_journal_gone(kvp_master_t *m, const kvp_obj_t *o);
void kvp_journal_lost(kvp_master_t *m, const kvp_obj_t *o);
void kvp_journal_forget(kvp_master_t *m, kvp_digest_t digest, uint64_t version);
void kvp_journal_bumped(kvp_master_t *m, const kvp_tenant_t *t);
void kvp_journal_term(kvp_master_t *m);
void kvp_journal_base(kvp_master_t *m, bool is_anew);
/* kvp_journal_withholds: some of what is written is not durable, so that a promise must wait. kvp_journal_is_behind: so
 * much that nothing new is to be begun. */
bool kvp_journal_withholds(const kvp_master_t *m);
bool kvp_journal_is_behind(const kvp_master_t *m);
bool kvp_journal_remembers(const kvp_master_t *m); /* the next master believes it, whatever nodes report */
void kvp_journal_durable(kvp_master_t *m, uint64_t end);
void kvp_journal_tick(kvp_master_t *m);
bool kvp_journal_has_work(const kvp_master_t *m);
const char *kvp_journal_check(const kvp_master_t *m);

/* ledger.c. What a master before had committed: kvp_ledger_admits, that version may be adopted; _knows, it was written;
 * _drop, versions up to that one are gone; _unknown, a key was removed that is not there. _begin_anew: what was written is
 * not to be relied on. */
bool kvp_ledger_admits(const kvp_master_t *m, kvp_digest_t digest, uint64_t version);
bool kvp_ledger_knows(const kvp_master_t *m, kvp_digest_t digest, uint64_t version);
void kvp_ledger_drop(kvp_master_t *m, kvp_digest_t digest, uint64_t version);
void kvp_ledger_unknown(kvp_master_t *m, kvp_digest_t digest);
void kvp_ledger_begin_anew(kvp_master_t *m);
void kvp_ledger_settle_some(kvp_master_t *m);

/* place.c */
kvp_err_t kvp_place_alloc(kvp_master_t *m, const kvp_attempt_t *a); /* gives its object one copy more; NO_SPACE */
kvp_err_t kvp_place_alloc_in(kvp_master_t *m, kvp_chunk_t *c, uint32_t oid);
void kvp_place_room_init(kvp_segment_t *g); /* every chunk is empty */
void kvp_place_room_changed(kvp_chunk_t *c); /* its allocator was used */
void kvp_place_chunk_fini(kvp_master_t *m, kvp_chunk_t *c); /* nothing is in it any more; its allocators go in slices */
void kvp_place_bury_pool(kvp_master_t *m, kvp_recpool_t *pool); /* taken: its blocks go in slices */
void kvp_place_bury_some(kvp_master_t *m);
void kvp_place_memory_changed(kvp_master_t *m, kvp_chunk_t *c); /* perhaps: that of its allocators in this process */
/* kvp_place_is_promised: a free extent, or one that mine has just got, is part of the window of a put that waits. */
bool kvp_place_is_promised(const kvp_master_t *m, const kvp_chunk_t *c, uint32_t slot, uint32_t mine);
void kvp_place_chunk_take(kvp_master_t *m, kvp_chunk_t *c, kvp_tenant_t *t); /* something of it is in the chunk */
void kvp_place_chunk_leave(kvp_master_t *m, kvp_chunk_t *c); /* nothing is */
static inline bool
kvp_place_is_open_to(const kvp_chunk_t *c, const kvp_tenant_t *t)
{
    return c->clearing == NULL && (c->taker == NULL || c->taker == t) && (c->tenant == NULL || c->tenant == t);
}
/* It has something of the tenant's in it, which makes room for the tenant when it goes. */
static inline bool
kvp_place_is_own(const kvp_chunk_t *c, const kvp_tenant_t *t)
{
    return c->tenant == t && kvp_place_is_open_to(c, t);
}
/* kvp_place_note_sealed notes, in a report, a slot that no old writer has in hand; forget_sealed, that no old writer has any. */
void kvp_place_note_sealed(kvp_chunk_t *c, uint32_t slot);
void kvp_place_forget_sealed(kvp_chunk_t *c);
bool kvp_place_has_key_room(const kvp_chunk_t *c, uint16_t key_len); /* now; a chunk with gaps may have it later */
/* Where the key lies in the chunk's metadata, in units of 64 bytes. */
uint32_t kvp_place_key_off(const kvp_chunk_t *c, const kvp_place_t *at);
/* kvp_place_may_lie: the attempt has no copy on that segment's host, nor waits for one there, and its client does not want
 * to be spared the segment. */
bool kvp_place_may_lie(const kvp_master_t *m, const kvp_attempt_t *a, const kvp_segment_t *g);

/* group.c */
static inline kvp_member_t *
kvp_group_member(const kvp_master_t *m, const kvp_obj_t *o) /* its membership; NULL = of no group */
{
    return o->has_ext == 0 ? NULL : kvp_obj_ext(m->index, o)->member;
}
static inline bool
kvp_group_is_doomed(const kvp_master_t *m, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(m, o);

    return mb != NULL && mb->group->is_doomed;
}
/* kvp_group_hides: committed, and yet not to be seen. */
static inline bool
kvp_group_hides(const kvp_master_t *m, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(m, o);

    if (mb == NULL || mb->group->is_doomed) return mb != NULL;
    return mb->group->size > 0 && !mb->group->is_whole && KVP_RULE(GROUP_HIDDEN);
}
static inline bool
kvp_group_is_named(const kvp_wire_group_t *want)
{
    return want->group.lo != 0 || want->group.hi != 0;
}
kvp_err_t kvp_group_check_named(const kvp_wire_group_t *want); /* INVALID in itself */
/* kvp_group_may_join: INVALID, LIMIT. over: what an upsert replaces, whose place it may take; KVP_OID_NONE = nothing. */
kvp_err_t kvp_group_may_join(kvp_master_t *m, const kvp_session_t *s, const kvp_wire_group_t *want, uint32_t over);
void kvp_group_join(kvp_master_t *m, kvp_session_t *s, uint32_t oid, const kvp_wire_group_t *want); /* it may */
/* kvp_group_enter gives what is about to be committed the membership that it wants, where it has none, or none that is
 * worth anything any more. kvp_group_committed: now it is. */
kvp_err_t kvp_group_enter(kvp_master_t *m, kvp_session_t *s, const kvp_attempt_t *a);
void kvp_group_committed(kvp_master_t *m, uint32_t oid);
void kvp_group_leave(kvp_master_t *m, uint32_t oid); /* the object is on its way out */
/* kvp_group_claim says what a put by s of a key means that is committed and hidden: ALREADY, IN_PROGRESS, or OK: the
 * object is good for nobody any more. */
kvp_err_t kvp_group_claim(kvp_master_t *m, kvp_session_t *s, uint32_t oid);
/* What nodes report. kvp_group_may_adopt: a version of a key may have that place; over: what it replaces, or KVP_OID_NONE.
 * Of two that have one place the newer is right, so kvp_group_adopt drops the older. Its object is committed by then. */
bool kvp_group_may_adopt(kvp_master_t *m, const kvp_tenant_t *t, const kvp_wire_group_t *want, uint64_t version,
                         uint32_t over);
void kvp_group_adopt(kvp_master_t *m, kvp_tenant_t *t, uint32_t oid, const kvp_wire_group_t *want);
void kvp_group_evict(kvp_master_t *m, uint32_t oid); /* all of its group goes, if it is in one */
void kvp_group_hold(kvp_master_t *m, uint32_t oid, bool is_held); /* it has its first ticket, or lost the last */
void kvp_group_bytes(kvp_master_t *m, const kvp_obj_t *o, int64_t bytes); /* a committed member's extents changed */
void kvp_group_reserve(kvp_master_t *m, kvp_group_t *g);
void kvp_group_unreserved(kvp_master_t *m, kvp_group_t *g); /* frees it if nothing needs it any more */
static inline bool
kvp_group_is_reserved(const kvp_master_t *m, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(m, o);

    return mb != NULL && mb->group->reserved_n > 0;
}
/* kvp_group_seen finds a group all of whose members are there and served; NULL. */
kvp_group_t *kvp_group_seen(kvp_master_t *m, const kvp_tenant_t *t, kvp_digest_t digest);
void kvp_group_unpin(kvp_master_t *m, kvp_group_t *g); /* takes all soft pins in it */
void kvp_groups_abandon(kvp_master_t *m, kvp_session_t *s); /* its session is over */
uint32_t kvp_group_next_doomed(const kvp_master_t *m, uint32_t after); /* KVP_OID_NONE at the end */
void kvp_groups_tick(kvp_master_t *m);
bool kvp_groups_have_work(const kvp_master_t *m);
void kvp_groups_init(kvp_master_t *m);
void kvp_groups_fini(kvp_master_t *m);
const char *kvp_groups_check(const kvp_master_t *m, uint64_t reserved); /* so often by tickets */

/* copies.c */
/* The chunk in which an object lies; NULL = nowhere. */
static inline kvp_chunk_t *
kvp_obj_chunk(const kvp_master_t *m, const kvp_obj_t *o)
{
    return o->chunk == KVP_OBJ_CHUNK_NONE ? NULL : kvp_ptab_get(&m->chunks, o->chunk);
}
/* Whose an object is that has a place. */
static inline kvp_tenant_t *
kvp_obj_tenant(const kvp_master_t *m, const kvp_obj_t *o)
{
    return kvp_obj_chunk(m, o)->tenant;
}
kvp_place_t kvp_obj_place(const kvp_master_t *m, const kvp_obj_t *o); /* the first copy */
uint32_t kvp_obj_places(const kvp_master_t *m, const kvp_obj_t *o, kvp_place_t places[KVP_REPLICAS_MAX]);
bool kvp_obj_lies_at(const kvp_master_t *m, const kvp_obj_t *o, const kvp_chunk_t *c, uint32_t slot);
/* What becomes of the extent is the caller's. */
void kvp_obj_add_place(kvp_master_t *m, uint32_t oid, const kvp_place_t *at, uint64_t slack);
void kvp_obj_del_place(kvp_master_t *m, uint32_t oid, const kvp_place_t *at);
uint64_t kvp_obj_bytes(const kvp_master_t *m, const kvp_obj_t *o); /* extents of all copies */
/* kvp_copy_lose takes the copy in that extent from its object, which goes with its last one. The extent is retired. */
void kvp_copy_lose(kvp_master_t *m, const kvp_chunk_t *c, uint32_t slot);
/* kvp_copy_set_long_key: where the key of the copy in that extent lies, once that is known. */
void kvp_copy_set_long_key(kvp_master_t *m, uint32_t oid, const kvp_chunk_t *c, uint32_t slot, uint32_t long_key_slot);
void kvp_obj_count_held(kvp_master_t *m, const kvp_obj_t *o, int32_t sign); /* a ticket more or less, in its segments */
/* kvp_obj_len: without an extent it is what its attempt asked for. */
uint64_t kvp_obj_len(const kvp_master_t *m, const kvp_obj_t *o);
static inline uint64_t
kvp_obj_version(const kvp_obj_t *o)
{
    return o->generation;
}
/* Copies whose nodes answer; 0: not committed, or before a bump. kvp_obj_served_n: 0 also while its group hides it. */
uint32_t kvp_obj_up_n(const kvp_master_t *m, const kvp_obj_t *o);
static inline uint32_t
kvp_obj_served_n(const kvp_master_t *m, const kvp_obj_t *o)
{
    return kvp_group_hides(m, o) ? 0 : kvp_obj_up_n(m, o);
}
static inline bool
kvp_obj_is_served(const kvp_master_t *m, const kvp_obj_t *o)
{
    return kvp_obj_served_n(m, o) > 0;
}
bool kvp_obj_is_reported(const kvp_master_t *m, const kvp_obj_t *o); /* it will be served when a report is over */
void kvp_place_wire(const kvp_master_t *m, const kvp_place_t *at, kvp_wire_loc_t *loc);
/* kvp_obj_wire tells the copies whose nodes answer, one on that host first. Returns how many they are. */
uint32_t kvp_obj_wire(const kvp_master_t *m, const kvp_obj_t *o, const char *host_id, kvp_wire_obj_t *obj,
                      kvp_wire_loc_t locs[KVP_REPLICAS_MAX]);

/* retire.c */
kvp_retire_t *kvp_retire_place(kvp_master_t *m, const kvp_place_t *at, uint64_t owner, kvp_waiter_t *waiter);
/* kvp_retire_hold_back: its order, and what nodes are to be told, wait until what is written so far is durable;
 * kvp_retire_go_on: it is. */
void kvp_retire_hold_back(kvp_master_t *m, kvp_retire_t *r, const kvp_wire_tomb_t *tomb);
void kvp_retire_go_on(kvp_master_t *m, kvp_retire_t *r);
void kvp_retire_flush(kvp_master_t *m);
void kvp_retire_lost(kvp_session_t *node); /* nothing that it was sent will be answered */
bool kvp_retire_is_late(const kvp_master_t *m, const kvp_session_t *node); /* an answer of it is overdue */
void kvp_retire_resend(kvp_master_t *m, kvp_segment_t *g); /* all that is not free goes out (again) */
void kvp_retire_forget(kvp_master_t *m, kvp_retire_t *r); /* its segment is gone */
void kvp_retire_unclaim(kvp_master_t *m, kvp_pkey_t *k);
/* kvp_retire_of_key: the extent was served under that key, by half of its digest. kvp_retire_is_readable: some extent
 * that was may not be dead yet; also for a key with which that one shares a counter. */
void kvp_retire_of_key(kvp_master_t *m, kvp_retire_t *r, uint64_t id);
bool kvp_retire_is_readable(const kvp_master_t *m, uint64_t id);
/* kvp_retire_stray keeps in mind that the extent was that attempt's, whose client lives; kvp_retire_drained: by its word
 * nothing of the attempt is under way, so that the node need not wait for its end. */
void kvp_retire_stray(kvp_retire_t *r, kvp_session_t *s, uint64_t attempt);
void kvp_retire_drained(kvp_master_t *m, kvp_session_t *s, uint64_t attempt);
void kvp_retire_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_freed(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
kvp_retire_t *kvp_retire_of(const kvp_master_t *m, const kvp_chunk_t *c, uint32_t slot); /* NULL = not retiring */

/* victims.c */
/* What is evicted together stands on the lists as one: kvp_victim_unit is the object that stands for this one. */
static inline uint32_t
kvp_victim_unit(const kvp_master_t *m, uint32_t oid)
{
    const kvp_member_t *mb = kvp_group_member(m, kvp_obj(m->index, oid));

    return mb == NULL || !mb->is_committed || mb->group->is_doomed ? oid : mb->group->lead;
}
uint64_t kvp_victim_bytes(const kvp_master_t *m, uint32_t unit); /* extents that evicting it frees */
static inline bool
kvp_victim_is_listed(const kvp_obj_t *o)
{
    return o->list != KVP_OBJLIST_NONE;
}
bool kvp_victim_may_go(const kvp_master_t *m, uint32_t unit); /* it is listed, and no ticket keeps it */
void kvp_victim_removed(kvp_master_t *m, uint32_t oid); /* no candidate any more; legal for one that is none */
void kvp_victim_used(kvp_master_t *m, uint32_t oid); /* listed, if it ever is, as the youngest */
void kvp_victim_back(kvp_master_t *m, uint32_t oid); /* one that was aside, to the place that its last use gives */
/* kvp_victim_keep: a ticket begins to keep it, or its unit. kvp_victim_let_go: a ticket is over, perhaps the last. */
void kvp_victim_keep(kvp_master_t *m, uint32_t oid);
void kvp_victim_let_go(kvp_master_t *m, uint32_t oid);
/* kvp_victim_behind: what follows `after` on a list of the policy's; what a ticket keeps is set aside on the way.
 * kvp_victim_next: candidates of a tenant, the first by policy first. Both begin after KVP_OID_NONE; KVP_OID_NONE at the
 * end, or where the step's work is used up. */
uint32_t kvp_victim_behind(kvp_master_t *m, kvp_objlist_t *list, uint32_t after);
uint32_t kvp_victim_next(kvp_master_t *m, kvp_tenant_t *t, uint32_t after);
bool kvp_victims_back(kvp_master_t *m, kvp_segment_t *g,
                      uint32_t *left); /* what was put aside; true when that is all */

/* probe.c */
void kvp_probe_init(kvp_master_t *m);
void kvp_probe_fini(kvp_master_t *m);
void kvp_probe_advance(kvp_master_t *m); /* every input begins with it */
void kvp_probe_begin(kvp_master_t *m, uint32_t oid); /* a probe that follows upon no live one */
static inline bool
kvp_probe_is_live(const kvp_master_t *m, const kvp_obj_t *o)
{
    uint16_t left = (uint16_t)(o->probe_until - (uint16_t)m->probes.tick);

    return o->has_probe != 0 && left > 0 && left <= m->probes.lasts;
}
static inline void
kvp_probe_leave(kvp_master_t *m, uint32_t oid) /* of a group: its lead */
{
    kvp_obj_t *o = kvp_obj(m->index, oid);

    if (!kvp_probe_is_live(m, o)) kvp_probe_begin(m, oid);
    o->probe_until = (uint16_t)(m->probes.tick + m->probes.lasts);
}
/* kvp_probe_protects: the object goes only when nothing else can. */
bool kvp_probe_protects(const kvp_master_t *m, uint32_t unit);
uint64_t kvp_probe_young_bytes(const kvp_master_t *m); /* aside, and probed not long ago */
void kvp_probe_set_aside(kvp_master_t *m, uint32_t oid); /* a victim that is protected */
void kvp_probe_forget(kvp_master_t *m, uint32_t oid); /* takes it from those aside, where it is */
uint32_t kvp_probe_victim(kvp_master_t *m, uint32_t after); /* those aside in their order; KVP_OID_NONE at the end */
void kvp_probe_tick(kvp_master_t *m);
const char *kvp_probe_check(const kvp_master_t *m);

/* pin.c */
/* kvp_pin_count: a pinned object has so many bytes more in extents, or fewer. */
void kvp_pin_count(kvp_master_t *m, const kvp_obj_t *o, int64_t bytes);
void kvp_pin_lose(kvp_master_t *m, kvp_obj_t *o); /* its pin */
bool kvp_pin_is_over(const kvp_master_t *m); /* some pins are to be lost */
void kvp_pin_trim(kvp_master_t *m); /* takes them, a slice at a time */

/* evict.c */
/* Takes an object out of the index and retires its extents; the record goes with its last ticket. */
void kvp_obj_drop(kvp_master_t *m, uint32_t oid, uint64_t owner, kvp_waiter_t *waiter);
void kvp_obj_supersede(kvp_master_t *m, uint32_t oid, kvp_waiter_t *waiter); /* the same, by a commit that is written */
void kvp_obj_lose(kvp_master_t *m,
                  uint32_t oid); /* the same, because its memory is gone: its node may report it again */
/* kvp_evict_for claims a window for the key. NO_SPACE: nothing can be evicted for it now. EAGAIN: the step's work is
 * used up before everything was looked at. */
kvp_err_t kvp_evict_for(kvp_master_t *m, kvp_pkey_t *k);
bool kvp_evict_is_early(const kvp_master_t *m); /* nothing is evicted yet: after a take-over */
void kvp_evict_one(kvp_master_t *m, uint32_t oid); /* and no other member of its group */
void kvp_evict_tick(kvp_master_t *m);
void kvp_evict_unit(kvp_master_t *m, uint32_t oid); /* and with it all of its group */
bool kvp_evict_may_go(const kvp_master_t *m, const kvp_pkey_t *k, uint32_t oid); /* for this key, as things are */

/* ahead.c */
void kvp_evict_ahead(kvp_master_t *m);

/* clear.c */
/* kvp_clear_begin clears the window from slot `first` up to offset `to` for the key, in as many steps as it takes: its
 * objects are evicted, and the chunk is closed to others. The key gets its place as soon as there is room, or waits again
 * where that does not come. kvp_clear_end: that is over, or given up. */
void kvp_clear_begin(kvp_master_t *m, kvp_pkey_t *k, kvp_chunk_t *c, uint32_t first, uint64_t to);
void kvp_clear_end(kvp_pkey_t *k);
void kvp_clear_tick(kvp_master_t *m);
/* kvp_clear_foreign looks for a whole chunk of another tenant, the coldest first, and begins to clear it. NO_SPACE: there
 * is none without something that cannot go, or its tenant is being given one already. EAGAIN: the step's work is used
 * up. */
kvp_err_t kvp_clear_foreign(kvp_master_t *m, kvp_pkey_t *k);

/* share.c: see there. kvp_share_look: the tenant has to evict something of its own for so many bytes; now and then it
 * looks whether to take a chunk of others instead. kvp_share_coldest: the chunk of others that is to go first, in which
 * so many bytes fit; NULL = none is known. kvp_share_leave_segment: what is taken in it is given up. */
void kvp_share_look(kvp_master_t *m, kvp_tenant_t *t, uint64_t len);
kvp_chunk_t *kvp_share_coldest(kvp_master_t *m, const kvp_tenant_t *t, uint64_t len);
void kvp_share_leave_segment(kvp_master_t *m, const kvp_segment_t *g);
void kvp_share_tick(kvp_master_t *m);

/* ticket.c */
/* kvp_ticket_may_take: within what a client may have in tickets, and none of the objects has all that it can have. */
bool kvp_ticket_may_take(const kvp_master_t *m, const kvp_session_t *s, const uint32_t *oids, uint32_t n);
uint64_t kvp_ticket_take_groups(kvp_master_t *m, kvp_session_t *s, kvp_group_t *const *groups, uint32_t n,
                                uint64_t ttl_ns);
uint64_t kvp_ticket_take(kvp_master_t *m, kvp_session_t *s, kvp_ticket_kind_t kind, const uint32_t *oids, uint32_t n,
                         uint64_t ttl_ns);
void kvp_ticket_note_hole(kvp_master_t *m, uint64_t id, kvp_digest_t hole); /* what the look-up did not find first */
void kvp_ticket_release(kvp_master_t *m, kvp_session_t *s, uint64_t id);
/* kvp_ticket_drop takes a ticket from its session; its objects are let go of by kvp_ticket_end_some. */
void kvp_ticket_drop(kvp_master_t *m, kvp_ticket_t *t);
void kvp_ticket_end_some(kvp_master_t *m);
void kvp_ticket_tick(kvp_master_t *m);
/* How many of the objects, from the first on, may be reserved within the bounds. */
uint32_t kvp_ticket_grantable(const kvp_master_t *m, const kvp_session_t *s, const uint32_t *oids, uint32_t n);
uint32_t kvp_ticket_grantable_groups(const kvp_master_t *m, const kvp_session_t *s, kvp_group_t *const *groups,
                                     uint32_t n);

/* present.c
 * kvp_present_expect: this master took over just now, and sessions may come with tickets of the one before;
 * kvp_present_reported: and with those on what that report has brought. kvp_present_may_come: they still may;
 * kvp_present_may_name: for that object. */
void kvp_present_expect(kvp_master_t *m);
void kvp_present_reported(kvp_master_t *m);
bool kvp_present_may_come(const kvp_master_t *m);
bool kvp_present_may_name(const kvp_master_t *m, const kvp_obj_t *o);
void kvp_on_present(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* attempt.c */
kvp_attempt_t *kvp_attempt_find(const kvp_master_t *m, const kvp_session_t *s, uint64_t id); /* NULL = none */
kvp_attempt_t *kvp_attempt_of(const kvp_master_t *m, const kvp_obj_t *o); /* of one that is not committed */
const kvp_tenant_t *kvp_obj_owner(const kvp_master_t *m, const kvp_obj_t *o); /* whose it is, committed or not */
kvp_attempt_t *kvp_attempt_open(kvp_master_t *m, kvp_pend_t *p, uint32_t at, const kvp_wire_put_t *put,
                                const kvp_wire_group_t *group, uint32_t oid);
void kvp_attempt_close(kvp_master_t *m, kvp_attempt_t *a); /* ends it; the object stays as it is */
/* kvp_attempt_take ends it where its writer is gone or silent for too long: the key is free then. False: it lives. */
bool kvp_attempt_take(kvp_master_t *m, kvp_attempt_t *a);
bool kvp_attempt_is_silent(const kvp_master_t *m, const kvp_session_t *s); /* too long for a writer */
/* kvp_attempt_abort ends it with its object. A message that is not answered says err for it. */
void kvp_attempt_abort(kvp_master_t *m, kvp_attempt_t *a, bool is_drained, kvp_err_t err);
/* kvp_attempt_refuse: its commit is refused, and the waiter's answer says so once what it had sealed is dead, or owed. */
void kvp_attempt_refuse(kvp_master_t *m, kvp_attempt_t *a, bool is_drained, kvp_waiter_t *waiter);
/* kvp_attempt_void: its key turned out to be committed, or another one with its digest; its client is told err. */
void kvp_attempt_void(kvp_master_t *m, kvp_attempt_t *a, kvp_err_t err);
/* Who may still be storing to its places; 0 = nobody. A writer that was not told of them is not. */
uint64_t kvp_attempt_owner(const kvp_attempt_t *a, bool is_drained);
/* Its object is not in the index, and replaces `over` when it is committed. kvp_attempt_heir: the attempt that is to
 * replace this object, or NULL; kvp_attempt_inherit: that object is out of the index, and the heir comes in its place. */
void kvp_attempt_draft(kvp_master_t *m, kvp_attempt_t *a, uint32_t over);
kvp_attempt_t *kvp_attempt_heir(const kvp_master_t *m, const kvp_obj_t *old);
void kvp_attempt_inherit(kvp_master_t *m, kvp_attempt_t *a);
void kvp_attempt_lose_copy(kvp_master_t *m, uint32_t oid, const kvp_place_t *at); /* the memory it wrote to is gone */
void kvp_attempt_abort_over(kvp_master_t *m,
                            kvp_attempt_t *a); /* of a session that is over; its message goes with its last */

/* wait.c */
kvp_pend_t *kvp_pend_open(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask, const Kvp__Pb__PutBegin *msg);
void kvp_pend_place(kvp_master_t *m, const kvp_attempt_t *a); /* a copy of it has its place */
void kvp_pend_answer(kvp_master_t *m, kvp_pend_t *p); /* frees it */
void kvp_pend_end(kvp_pend_t *p); /* without an answer */
void kvp_pkey_open(kvp_master_t *m, kvp_attempt_t *a); /* one copy of it waits */
void kvp_pkey_close(kvp_master_t *m, kvp_pkey_t *k); /* it waits no more; what becomes of its attempt is the caller's */
void kvp_pkey_window_free(kvp_master_t *m, kvp_pkey_t *k); /* every record of its window is free */
void kvp_pkey_restart(kvp_master_t *m, kvp_pkey_t *k); /* its window is lost */
bool kvp_put_may_nodes_come(const kvp_master_t *m); /* a segment may be mounted soon, or again */
/* kvp_put_leave_segment gives up the windows in it, as far as the step reaches; false while there are more. */
bool kvp_put_leave_segment(kvp_master_t *m, kvp_segment_t *g);
void kvp_put_tick(kvp_master_t *m);
void kvp_put_retry_waiting(kvp_master_t *m);

/* put.c */
void kvp_on_put_begin(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_put_commit(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_put_abort(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* read.c */
void kvp_on_get(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_used(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_exists(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_lookup(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_release(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_list(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_status(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* remove.c */
void kvp_on_remove(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_bump(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_remove_many(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_remove_end_all(kvp_master_t *m, kvp_session_t *s); /* its walks end where they are */
void kvp_remove_tick(kvp_master_t *m);
void kvp_bump_sweep(kvp_master_t *m, kvp_tenant_t *t); /* gives back the space of what min_version took away */
void kvp_remove_init(kvp_master_t *m);
void kvp_remove_fini(kvp_master_t *m);

/* master.c */
void kvp_master_space_news(kvp_master_t *m);
void kvp_master_take_over(kvp_master_t *m); /* another master served the pool, maybe until just now */
/* kvp_master_spend counts n records that the step has touched. Work that can wait asks slice_left first. */
static inline void
kvp_master_spend(kvp_master_t *m, uint32_t n)
{
    m->st.work += n;
    m->slice_left -= (uint32_t)kvp_min_u64(n, m->slice_left);
}
void kvp_master_note(kvp_master_t *m, const char *fmt, ...) KVP_PRINTF(2, 3);
uint64_t kvp_master_random(kvp_master_t *m);
/* kvp_master_outdated: somebody obeys that term, so ours has to be higher. Every connection is closed. False where no
 * term is left. */
bool kvp_master_outdated(kvp_master_t *m, uint32_t term);

/* poolname.c */
void kvp_pool_granted(kvp_master_t *m); /* space of it, or a promise: from here on it is the pool that it says it is */
/* kvp_pool_named_by: a node says which pool its memory is of; NULL = it has none. True where the pool had no name, and has
 * that one now: every connection is closed, and who comes again hears it. */
bool kvp_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known);

#endif
