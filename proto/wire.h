/* SPDX-License-Identifier: Apache-2.0
 * Opcodes, limits and the records of raw tails. All records are little-endian, naturally aligned and free of padding,
 * and tails start 8-aligned, so they are used in place from the receive buffer. PROTOCOL "Messages".
 */
#ifndef KVP_PROTO_WIRE_H
#define KVP_PROTO_WIRE_H

#include "common/hash.h"

#ifndef KVP_PROTO_VERSION /* tests build a master of the next one */
#define KVP_PROTO_VERSION 1u
#endif
#define KVP_PROTO_VERSION_MIN 1u
#define KVP_BATCH_MAX 8192u /* keys a message, */
#define KVP_PLACES_MAX 512u /* and where each is much work: PUT_*, GET, REMOVE, USED, PRESENT, FREED */
#define KVP_LIST_MAX 4096u
#define KVP_SEGMENTS_MAX 64u
#define KVP_NAME_MAX 128u
#define KVP_PATTERN_MAX 1024u
#define KVP_REPLICAS_MAX 8u
#define KVP_UNREADABLE_MAX 64u /* places in one RELEASE that the reader could not read */
#define KVP_AVOID_MAX 16u /* segments that a PUT_BEGIN asks to be passed over */
#define KVP_GROUP_MEMBERS_MAX 4096u
#define KVP_REVOKED_MAX 4096u /* revocations in one HeartbeatReply; beyond the limit the reply revokes all */
#define KVP_INCARNATION_SEQ_BITS 40 /* of an incarnation: its term is above, so a later term's are greater */
#define KVP_OWNER_ANY UINT64_MAX /* in RETIRE: any client that could write before this term */

typedef enum {
    KVP_ROLE_CLIENT = 1,
    KVP_ROLE_NODE = 2,
} kvp_role_t;

/* The limits of eviction for an object. */
typedef enum {
    KVP_PIN_NONE = 0,
    KVP_PIN_SOFT = 1, /* evicted after all that is not pinned; at most a budget of the pool is pinned so */
    KVP_PIN_HARD = 2, /* never evicted, only removed */
} kvp_pin_t;

typedef enum {
    KVP_SEG_UP = 1, /* serves and takes puts */
    KVP_SEG_DRAINING = 2, /* serves, takes none */
    KVP_SEG_LOST = 3, /* its node does not answer */
} kvp_segment_state_t;

typedef enum {
    KVP_MASTER_LEADER = 1,
    KVP_MASTER_STANDBY = 2, /* of a leader's answer: it is in the in-sync set */
    KVP_MASTER_LAGGING = 3, /* it follows, and is not in the in-sync set */
    KVP_MASTER_APART = 4, /* it is registered in etcd, and does not follow the leader */
    KVP_MASTER_MISSING = 5, /* it was registered in etcd, and is not any more */
} kvp_master_state_t;

/* opcode, who asks whom (C client, N node, M master), head -> head of the answer */
typedef enum {
    KVP_OP_HELLO = 1, /* C,N->M, C->N  Hello -> HelloReply */
    KVP_OP_BYE = 2, /* C,N->M  none -> Reply: the session ends, nothing is under way */
    KVP_OP_HEARTBEAT = 3, /* C,N->M  Heartbeat -> HeartbeatReply */
    KVP_OP_WATCH = 4, /* anybody, before Hello ->M  none -> WatchReply, as soon as that master leads */
    KVP_OP_FOLLOW = 5, /* standby->leader  Follow, n kvp_wire_term_t -> FollowReply, then LOG */
    KVP_OP_LOG = 6, /* leader->standby Log, bytes of the log; one-way */
    KVP_OP_FOLLOWED = 7, /* standby->leader  Followed; one-way */
    KVP_OP_SWITCH = 8, /* C->M  Switch -> Reply: another master is to lead */

    KVP_OP_PUT_BEGIN = 16, /* C->M  PutBegin, n kvp_wire_put_t, groups, lineages, keys -> Places, objs, locs */
    KVP_OP_PUT_COMMIT = 17, /* C->M  PutCommit, n kvp_wire_commit_t -> Reply, n i32 */
    KVP_OP_PUT_ABORT = 18, /* C->M  PutAbort, n u64 attempts -> Reply, n i32 */
    KVP_OP_GET = 19, /* C->M  Get, n kvp_digest_t -> Places, objs, locs, lineages */
    KVP_OP_EXISTS = 20, /* C->M  Exists, n kvp_digest_t -> Reply, n u8 */
    KVP_OP_LOOKUP = 21, /* C->M  Lookup, n kvp_digest_t -> LookupReply, n u8 */
    KVP_OP_RELEASE = 22, /* C->M  Release, n u64 tickets, kvp_wire_unreadable_t -> Reply; usually one-way */
    KVP_OP_REMOVE = 23, /* C->M  Remove, n kvp_digest_t -> Reply, n i32 */
    KVP_OP_REMOVE_MANY = 24, /* C->M  RemoveMany -> RemoveManyReply */
    KVP_OP_LIST = 25, /* C->M  List -> ListReply, n kvp_wire_entry_t, keys */
    KVP_OP_SEGMENTS = 26, /* C->M  Segments -> SegmentsReply */
    KVP_OP_STATUS = 27, /* C->M  Status -> StatusReply */
    KVP_OP_USED = 28, /* C->M Used, n kvp_wire_used_t; one-way: reads from cached locations */
    KVP_OP_BUMP = 29, /* C->M  Bump -> BumpReply: a new namespace epoch */
    KVP_OP_PRESENT = 30, /* C->M  Present, n kvp_wire_present_t -> PresentReply, n kvp_wire_presented_t */
    KVP_OP_SNAPSHOT = 31, /* C->M  Snapshot -> SnapshotReply: a base of the log */

    KVP_OP_MOUNT = 48, /* N->M  Mount -> MountReply */
    KVP_OP_UNMOUNT = 49, /* N->M  Unmount -> Reply */
    KVP_OP_FREED = 50, /* N->M Freed, n kvp_wire_slot_t; one-way */
    KVP_OP_RETIRE = 51, /* M->N  Retire, n kvp_wire_slot_t -> Reply, n u8 */
    KVP_OP_FENCE = 52, /* M->N  Fence -> Reply */
    KVP_OP_REPORT = 53, /* N->M  Report, extents, keys -> Reply, n u8: KVP_RETIRE_DEAD = not wanted */
    /* M->N  Retire, n kvp_wire_check_t -> Reply, n u8: KVP_RETIRE_DEAD = no reader accepts the
     * place */
    KVP_OP_CHECK = 54,
    KVP_OP_OWNER = 55, /* M->N  Owner; one-way */
    KVP_OP_DEMOTE = 56, /* M->N  Retire, n kvp_wire_demote_t -> Reply, n u8: 1 = it is on the tier */
    KVP_OP_STAGE = 57, /* M->N Stage, n kvp_wire_stage_t -> Reply, n u8: KVP_STAGE_* */
    KVP_OP_DROP =
        58, /* M->N  Drop, n kvp_wire_tiered_t -> Reply: none of them is served from the tier, now or after a restart */
    KVP_OP_TIER_REPORT =
        59, /* N->M  TierReport, n kvp_wire_tiered_t, or whole records -> Reply, n u8: 1 = not wanted */
    KVP_OP_RECLAIM = 60, /* N->M  Reclaim, n kvp_wire_tiered_t -> Reply, n u8: 1 = to be kept */

    KVP_OP_OPEN_CHUNK = 64, /* C->N  OpenChunk -> OpenChunkReply (+ descriptors) */
    KVP_OP_DRAINED = 65, /* C->N  Drained -> Reply */
    KVP_OP_DATA_HELLO = 66, /* C->N  DataHello -> Reply, then the data protocol */

    KVP_OP_PEER_HELLO = 80, /* between endpoints  PeerHello -> PeerHelloReply */
    KVP_OP_PEER_FIND = 81, /* PeerFind, n kvp_peer_at_t -> Reply, n kvp_peer_range_t */
    KVP_OP_PEER_MOVE = 82, /* PeerMove, n kvp_peer_piece_t -> Reply, n kvp_peer_moved_t */
    KVP_OP_PEER_NOTIFY = 83, /* PeerNotify -> Reply */
    KVP_OP_PEER_CUT = 84, /* PeerCut, n u64 -> Reply */
    KVP_OP_PEER_MAP = 85, /* PeerMap -> Reply, 1 u64: the cell (+ descriptors) */
    KVP_OP_PEER_RDMA = 86, /* PeerRdma -> Reply */
    KVP_OP_PEER_STAGE = 87, /* PeerStage -> Reply, 1 kvp_peer_at_t; none where it is given back */
} kvp_op_t;

/* PUT_BEGIN: n of these, with has_groups n kvp_wire_group_t, with has_lineages n
 * kvp_wire_lineage_t, then the keys' bytes. */
typedef struct {
    kvp_digest_t digest;
    uint64_t len; /* payload bytes */
    uint64_t attempt; /* chosen by the client, never twice in an incarnation, never 0 */
    uint32_t key_at; /* offset in the key bytes after the records */
    uint32_t key_len;
} kvp_wire_put_t;

/* The group that an object is a member of. members > 0: invisible until that many are committed, and evicted as one;
 * members 0: no more than one unit of eviction. */
typedef struct {
    kvp_digest_t group; /* zero = in no group */
    uint32_t members; /* at most KVP_GROUP_MEMBERS_MAX */
    uint32_t member; /* below members; 0 if members is 0 */
} kvp_wire_group_t;

/* Place of an object in a sequence of blocks. The pool stores the lineage and does not interpret
 * it. */
typedef struct {
    uint64_t sequence; /* hash of all up to and with this block */
    uint64_t parent; /* hash of the block before */
    uint32_t depth; /* blocks before it */
    uint32_t is_told; /* 1; 0 = the object has none, and the rest is 0 */
} kvp_wire_lineage_t;

typedef struct {
    uint64_t attempt;
    uint64_t sum; /* 0 = none */
    uint32_t replicas; /* bit i: location i of the grant is sealed; at least one */
    uint32_t reserved; /* 0 */
} kvp_wire_commit_t;

/* USED: reads from known locations, since the last such message. */
typedef struct {
    kvp_digest_t digest;
    uint32_t reads;
    uint32_t reserved; /* 0 */
} kvp_wire_used_t;

/* FOLLOW: where a term of a standby's log begins. */
typedef struct {
    uint64_t position; /* of its BASE or TERM */
    uint32_t term;
    uint32_t reserved; /* 0 */
} kvp_wire_term_t;

/* PRESENT: a ticket of an earlier session and the objects that the ticket protected. Consecutive
 * records of the same set, kind and ttl_ms share one new ticket. */
typedef enum {
    KVP_PRESENT_HOLD = 1, /* of a view */
    KVP_PRESENT_RESERVE = 2,
    KVP_PRESENT_GROUP = 3, /* a reservation of a group: the digest is its */
} kvp_present_kind_t;

typedef struct {
    kvp_digest_t digest;
    uint64_t version; /* 0 = any version */
    uint32_t set; /* chosen by the client */
    uint32_t ttl_ms; /* RESERVE, GROUP: remaining time; 0 = none */
    uint32_t kind;
    uint32_t reserved; /* 0 */
} kvp_wire_present_t;

/* err: OK, protected under the ticket; NOT_FOUND, the object no longer exists; LIMIT, over the
 * bounds; RETRY_AFTER, a node may still mount the object. */
typedef struct {
    uint64_t ticket;
    int32_t err;
    uint32_t reserved; /* 0 */
} kvp_wire_presented_t;

/* Places: one record a key, in the order of the request. The next nloc locations of the list belong
 * to the record, in order. */
typedef struct {
    int32_t err;
    uint32_t nloc;
    uint64_t version;
    uint64_t len;
    uint64_t sum;
} kvp_wire_obj_t;

typedef struct {
    uint32_t segment_id;
    uint32_t chunk;
    uint32_t slot;
    uint32_t key_off; /* units of 64 bytes in the chunk's metadata */
    uint64_t generation;
    uint64_t offset;
} kvp_wire_loc_t;

typedef struct {
    uint64_t len;
    uint64_t version;
    uint32_t key_at;
    uint32_t key_len;
} kvp_wire_entry_t;

/* RETIRE: owner is the client incarnation whose stores may still be under way; 0 = no client's.
 * With an owner the node answers FREE only once no store of the writer can land any more (the
 * quarantine: PROTOCOL). */
typedef struct {
    uint32_t chunk;
    uint32_t slot;
    uint64_t generation;
    uint64_t owner;
} kvp_wire_slot_t;

/* RELEASE: a place of the key that the reader tried without finding the object. */
typedef struct {
    kvp_digest_t digest;
    uint64_t generation;
} kvp_wire_unreadable_t;

/* CHECK: the descriptor that a reader of the place expects. */
typedef struct {
    uint32_t chunk;
    uint32_t slot;
    uint64_t generation;
    uint64_t version;
    kvp_digest_t digest;
    uint64_t offset;
    uint64_t len;
} kvp_wire_check_t;

/* REPORT: a SEALED extent (WRITING extents are revoked before the report). Records come by rising
 * chunk, within a chunk by rising offset. In a Report with whole descriptors each record is
 * followed by its kvp_desc_t and key_len bytes of key, padded to 8. */
typedef struct {
    uint32_t chunk;
    uint32_t slot;
    uint64_t word;
} kvp_wire_extent_t;

/* DROP, TIER_REPORT, RECLAIM: a record of a tier. DROP: and all older ones of that digest. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
} kvp_wire_tiered_t;

/* DEMOTE: an extent whose object is to be written to the tier. */
typedef struct {
    kvp_wire_slot_t at;
    kvp_wire_lineage_t lineage; /* lineage of the object, which descriptors do not have */
} kvp_wire_demote_t;

/* TIER_REPORT to a master that does not know the tier: all that it needs of an object; key_len
 * bytes of key follow, padded to 8. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
    uint64_t key_hash2;
    uint64_t len; /* payload bytes */
    uint64_t sum;
    kvp_wire_lineage_t lineage;
    uint32_t tenant; /* its number */
    uint16_t flags; /* as in descriptors */
    uint16_t key_len;
} kvp_wire_whole_t;
#define KVP_WHOLE_MAX 256u /* of one page */

/* STAGE: load the SSD's record into the extent and seal the extent. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
    uint64_t len; /* payload bytes */
    uint64_t generation;
    uint64_t offset;
    uint32_t chunk;
    uint32_t slot;
    uint32_t key_off; /* units of 64 bytes in the chunk's metadata */
    uint32_t reserved; /* 0 */
} kvp_wire_stage_t;

/* Records of an SSD tier are divided into slots by their digests. A device has all records of a slot. */
#define KVP_TIER_SLOTS 256u
#define KVP_TIER_AWAY_BYTES (KVP_TIER_SLOTS / 8u) /* a bit for each: slot s is bit s % 8 of byte s / 8 */
static inline uint32_t
kvp_tier_slot_of(kvp_digest_t digest)
{
    return (uint32_t)(digest.lo ^ digest.hi >> 7) % KVP_TIER_SLOTS;
}

#define KVP_STAGE_OK 0u
#define KVP_STAGE_GONE 1u /* the SSD has no readable record: the master drops the copy */
#define KVP_STAGE_FAILED 2u /* not now */

#define KVP_RETIRE_DEAD 0x01u /* unreadable from now on */
#define KVP_RETIRE_FREE 0x02u /* no access of the node itself is under way: the extent may be reused */

_Static_assert(sizeof(kvp_wire_put_t) == 40, "wire format");
_Static_assert(sizeof(kvp_wire_commit_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_present_t) == 40, "wire format");
_Static_assert(sizeof(kvp_wire_presented_t) == 16, "wire format");
_Static_assert(sizeof(kvp_wire_obj_t) == 32, "wire format");
_Static_assert(sizeof(kvp_wire_loc_t) == 32, "wire format");
_Static_assert(sizeof(kvp_wire_entry_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_slot_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_tiered_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_demote_t) == 48, "wire format");
_Static_assert(sizeof(kvp_wire_whole_t) == 80, "wire format");
_Static_assert(sizeof(kvp_wire_stage_t) == 64, "wire format");
_Static_assert(sizeof(kvp_wire_unreadable_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_check_t) == 56, "wire format");
_Static_assert(sizeof(kvp_wire_group_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_lineage_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_used_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_extent_t) == 16, "wire format");
_Static_assert(sizeof(kvp_wire_term_t) == 16, "wire format");

/* Peer-to-peer transfers: PROTOCOL "Peers". */
#define KVP_PEER_BATCH_MAX 1024u /* records of one PEER_FIND, PEER_MOVE or PEER_CUT */
#define KVP_PEER_NOTIFY_NAME_MAX 256u
#define KVP_PEER_NOTIFY_MAX 16384u
#define KVP_PEER_KEY_MAX 96u
#define KVP_PEER_CELLS 4096u /* u64 in an endpoint's words */

typedef struct {
    uint64_t addr; /* with len 0: the range that begins lowest */
    uint64_t len;
    uint64_t token; /* of the registration; 0 = whichever is there now */
} kvp_peer_at_t;

/* The registered range that contains the whole asked range. */
typedef struct {
    int32_t err;
    uint32_t key_len; /* 0 = memory of a device, reached through a bounce buffer */
    uint64_t base;
    uint64_t len;
    uint64_t token;
    uint8_t key[KVP_PEER_KEY_MAX]; /* the transport's key, zero after key_len */
} kvp_peer_range_t;

typedef enum {
    KVP_PEER_PULL = 1, /* copy len bytes from the asker's memory at from to addr */
    KVP_PEER_SUM = 2, /* return the content sum of the bytes at addr */
    KVP_PEER_CHECK = 3, /* return whether the range is still registered under the token */
    KVP_PEER_FETCH = 4, /* copy from a device's memory at addr to offset `from` of the bounce buffer */
    KVP_PEER_STORE = 5, /* and the reverse */
} kvp_peer_move_t;

typedef struct {
    uint64_t token; /* from PEER_FIND; never 0 */
    uint64_t addr;
    uint64_t len; /* 1 or more */
    uint64_t from; /* PULL: an address in the asking process; FETCH, STORE: an offset in the bounce buffer; else 0 */
} kvp_peer_piece_t;

typedef struct {
    int32_t err;
    uint32_t reserved; /* 0 */
    uint64_t sum; /* SUM; else 0 */
} kvp_peer_moved_t;

/* Data over TCP, after the DATA_HELLO exchange. A request is a kvp_data_req_t, then its operations:
 * each a kvp_data_op_t followed, for a WRITE, by its bytes. A request is either all READ, or all
 * WRITE and PUBLISH. Operations take effect in order. READ request: the answer is a kvp_data_rep_t
 * and n i32 (padded to 8) at once, then the bytes of the operations that are OK, in order. The peer
 * loads an operation with AFTER_PRIOR only after all bytes before it were handed to the kernel.
 * WRITE request: the answer is a kvp_data_rep_t and n i32 (padded to 8) after the last operation. */
#define KVP_DATA_MAGIC 0x4b56u
#define KVP_DATA_OPS_MAX 1024u

typedef enum {
    KVP_DATA_READ = 1,
    KVP_DATA_WRITE = 2, /* guarded: lands only while the word at guard_off of guard_key equals guard_word */
    KVP_DATA_PUBLISH = 3, /* stores guard_word at off by the rule of kvp_word_may_become, else STALE */
} kvp_data_op_kind_t;

#define KVP_DATA_AFTER_PRIOR 0x01u
#define KVP_DATA_GUARDED 0x02u
#define KVP_DATA_SUM 0x04u /* READ: 8 bytes with the sum follow the operation's bytes */

typedef struct {
    uint16_t magic;
    uint16_t n_ops;
    uint32_t seq;
    uint64_t bytes; /* bytes of the request after this header */
} kvp_data_req_t;

typedef struct {
    uint8_t kind;
    uint8_t flags;
    uint16_t reserved0;
    uint32_t reserved1;
    uint64_t key; /* which memory: from the chunk's token */
    uint64_t off;
    uint64_t len;
    uint64_t guard_key; /* which memory holds the guarding word */
    uint64_t guard_off;
    uint64_t guard_word;
    uint64_t reserved2;
} kvp_data_op_t;

typedef struct {
    uint16_t magic;
    uint16_t n_ops;
    uint32_t seq;
    uint64_t bytes; /* bytes of the answer after this header */
} kvp_data_rep_t;

_Static_assert(sizeof(kvp_data_req_t) == 16, "wire format");
_Static_assert(sizeof(kvp_data_op_t) == 64, "wire format");
_Static_assert(sizeof(kvp_data_rep_t) == 16, "wire format");

#endif
