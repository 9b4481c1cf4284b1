/* SPDX-License-Identifier: Apache-2.0
 * Opcodes, limits and the records of raw tails. All records are little-endian, naturally aligned and without padding,
 * and tails start 8-aligned, so records are used in place in the receive buffer. PROTOCOL "Messages". */
#ifndef KVP_PROTO_WIRE_H
#define KVP_PROTO_WIRE_H

#include "common/hash.h"

#ifndef KVP_PROTO_VERSION /* a test builds a master of the next version by defining this */
#define KVP_PROTO_VERSION 1u
#endif
#define KVP_PROTO_VERSION_MIN 1u
#define KVP_BATCH_MAX 8192u /* most keys of a message */
#define KVP_PLACES_MAX 512u /* most keys of a message with costly keys: PUT_*, GET, REMOVE, USED, PRESENT, FREED */
#define KVP_LIST_MAX 4096u
#define KVP_SEGMENTS_MAX 64u
#define KVP_NAME_MAX 128u
/* Number of bytes of a pool's id that STATUS and HTTP show. The whole id is a secret: with it a client proves to nodes
 * that a master knows it. */
#define KVP_POOL_ID_SHOWN 4u
#define KVP_PATTERN_MAX 1024u
#define KVP_REPLICAS_MAX 8u
/* The points of a curve in Status are hit ratios of caches from 2^20 bytes on, eight points for each doubling. */
#define KVP_CURVE_FIRST 20u
#define KVP_CURVE_OCTAVE 8u
#define KVP_CURVE_POINTS 209u /* number of points: the last cache has 2^46 bytes */
static inline uint64_t
kvp_curve_bytes(uint32_t i) /* bytes of the cache of point i */
{
    static const uint64_t eighths[KVP_CURVE_OCTAVE] = {1048576, 1143480, 1246974, 1359835,
                                                       1482910, 1617125, 1763488, 1923097};

    return eighths[i % KVP_CURVE_OCTAVE] << (i / KVP_CURVE_OCTAVE);
}
#define KVP_EXPLAINED_MAX 16u /* most tenants in an answer to EXPLAIN */
#define KVP_EXPLAINED_KEYS_MAX 64u /* most members of a group in it */
#define KVP_UNREADABLE_MAX 64u /* most places that one RELEASE can report as unreadable */
#define KVP_AVOID_MAX 16u /* most segments that a PUT_BEGIN asks the master not to use */
#define KVP_GROUP_MEMBERS_MAX 4096u
#define KVP_REVOKED_MAX 4096u /* most revoked locations in one HeartbeatReply; with more, it revokes all locations */
/* number of low bits of an incarnation that are a sequence number; the bits above are the master's term, so later terms
 * give greater incarnations */
#define KVP_INCARNATION_SEQ_BITS 40
#define KVP_OWNER_ANY UINT64_MAX /* value of `owner` in RETIRE: any client that could write before this term */

typedef enum {
    KVP_ROLE_CLIENT = 1,
    KVP_ROLE_NODE = 2,
} kvp_role_t;

/* How eviction treats an object. */
typedef enum {
    KVP_PIN_NONE = 0,
    KVP_PIN_SOFT = 1, /* the object is evicted after all unpinned ones; a budget of the pool limits soft-pinned bytes */
    KVP_PIN_HARD = 2, /* never evicted, only removed by a client */
} kvp_pin_t;

typedef enum {
    KVP_SEG_UP = 1, /* serves reads and accepts puts */
    KVP_SEG_DRAINING = 2, /* serves reads, accepts no puts */
    KVP_SEG_LOST = 3, /* its node is lost */
    KVP_SEG_CONNECTING =
        /* in SegmentInfo: the node is connected and serves reads; it accepts puts after the master has compared it with
         * its log */
    4,
} kvp_segment_state_t;

typedef enum {
    KVP_MASTER_LEADER = 1,
    KVP_MASTER_STANDBY = 2, /* state of a master: a standby; if the leader reports it, a standby in the in-sync set */
    KVP_MASTER_LAGGING = 3, /* a standby that follows the leader, and is not in the in-sync set */
    KVP_MASTER_APART = 4, /* a master registered in etcd that does not follow the leader */
    KVP_MASTER_MISSING = 5, /* a master that was registered in etcd earlier, and is not any more */
} kvp_master_state_t;

/* The opcodes. A comment has the sender and the receiver, then the head (a protobuf message) and the tail of the
 * request, then those of the answer. n is the number of records in a tail. */
typedef enum {
    KVP_OP_HELLO = 1, /* client or node to master, client to node: Hello; answer: HelloReply */
    KVP_OP_BYE = 2, /* client or node to master: empty; answer: Reply: ends a session without running transfers */
    KVP_OP_HEARTBEAT = 3, /* client or node to master: Heartbeat; answer: HeartbeatReply */
    KVP_OP_WATCH = 4, /* any process to a master, before Hello: empty; answer: WatchReply, sent when the master leads */
    KVP_OP_FOLLOW = 5, /* standby to leader: Follow, n kvp_wire_term_t; answer: FollowReply, then LOG */
    KVP_OP_LOG = 6, /* leader to standby: Log, bytes of the log; one-way */
    KVP_OP_FOLLOWED = 7, /* standby to leader: Followed; one-way */
    KVP_OP_SWITCH = 8, /* client to master: Switch; answer: Reply: asks the leader to let another master lead */

    /* client to master: PutBegin, n kvp_wire_put_t, groups, lineages, keys; answer: Places, objs, locs */
    KVP_OP_PUT_BEGIN = 16,
    KVP_OP_PUT_COMMIT = 17, /* client to master: PutCommit, n kvp_wire_commit_t; answer: Reply, n i32 */
    KVP_OP_PUT_ABORT = 18, /* client to master: PutAbort, n u64 attempts; answer: Reply, n i32 */
    KVP_OP_GET = 19, /* client to master: Get, n kvp_digest_t; answer: Places, objs, locs, lineages */
    KVP_OP_EXISTS = 20, /* client to master: Exists, n kvp_digest_t; answer: Reply, n u8 */
    KVP_OP_LOOKUP = 21, /* client to master: Lookup, n kvp_digest_t; answer: LookupReply, n u8 */
    /* client to master: Release, n u64 tickets, kvp_wire_unreadable_t; answer: Reply; usually one-way */
    KVP_OP_RELEASE = 22,
    KVP_OP_REMOVE = 23, /* client to master: Remove, n kvp_digest_t; answer: Reply, n i32 */
    KVP_OP_REMOVE_MANY = 24, /* client to master: RemoveMany; answer: RemoveManyReply */
    KVP_OP_LIST = 25, /* client to master: List; answer: ListReply, n kvp_wire_entry_t, keys */
    KVP_OP_SEGMENTS = 26, /* client or node to master: Segments; answer: SegmentsReply */
    KVP_OP_STATUS = 27, /* client or node to master: Status; answer: StatusReply */
    KVP_OP_USED = 28, /* client to master: Used, n kvp_wire_used_t: reads of cached places; one-way, or answer: Reply */
    KVP_OP_BUMP = 29, /* client to master: Bump; answer: BumpReply: begins a new namespace epoch */
    /* client to master: Present, n kvp_wire_present_t; answer: PresentReply, n kvp_wire_presented_t */
    KVP_OP_PRESENT = 30,
    KVP_OP_SNAPSHOT = 31, /* client to master: Snapshot; answer: SnapshotReply: asks for a new base of the log */
    KVP_OP_EXPLAIN =
        32, /* client to master: Explain; answer: ExplainReply: where an object is, or why it is not there */
    KVP_OP_TASK = 33, /* client to master: Task; answer: TaskReply: copies or moves an object, or reports on that */
    KVP_OP_DRAIN =
        /* client or node to master: Drain; answer: DrainReply: begins or ends the drain of a node, or reports its
         * progress */
    35,
    KVP_OP_SESSIONS = 36, /* client to master: Sessions; answer: SessionsReply: lists the sessions, or ends one */

    KVP_OP_MOUNT = 48, /* node to master: Mount; answer: MountReply */
    KVP_OP_UNMOUNT = 49, /* node to master: Unmount; answer: Reply */
    KVP_OP_FREED = 50, /* node to master: Freed, n kvp_wire_slot_t; one-way */
    KVP_OP_RETIRE = 51, /* master to node: Retire, n kvp_wire_slot_t; answer: Reply, n u8 */
    KVP_OP_FENCE = 52, /* master to node: Fence; answer: Reply */
    /* node to master: Report, extents, keys; answer: Reply, n u8: KVP_RETIRE_DEAD = an unwanted extent */
    KVP_OP_REPORT = 53,
    /* master to node: Retire, n kvp_wire_check_t; answer: Reply, n u8: KVP_RETIRE_DEAD = unreadable place */
    KVP_OP_CHECK = 54,
    KVP_OP_OWNER = 55, /* master to node: Owner; one-way */
    /* master to node: Retire, n kvp_wire_demote_t; answer: Reply, n u8: 1 = the object is on the SSD */
    KVP_OP_DEMOTE = 56,
    KVP_OP_STAGE = 57, /* master to node: Stage, n kvp_wire_stage_t; answer: Reply, n u8: KVP_STAGE_* */
    /* master to node: Drop, n kvp_wire_tiered_t; answer: Reply: the SSD serves none of the records, now or after a
     * restart */
    KVP_OP_DROP = 58,
    /* node to master: TierReport, n kvp_wire_tiered_t, or whole records; answer: Reply, n u8: 1 = not wanted */
    KVP_OP_TIER_REPORT = 59,
    /* node to master: Reclaim, n kvp_wire_tiered_t; answer: Reply, n u8: 1 = the node must keep the record */
    KVP_OP_RECLAIM = 60,
    KVP_OP_COPY = 61, /* master to node: Retire, n kvp_wire_copy_t; answer: Reply, n u8: KVP_COPY_* */

    KVP_OP_OPEN_CHUNK = 64, /* client to node: OpenChunk; answer: OpenChunkReply, with descriptors */
    KVP_OP_DRAINED = 65, /* client to node: Drained; answer: Reply */
    /* client to node: DataHello; answer: Reply; then the connection changes to the data protocol */
    KVP_OP_DATA_HELLO = 66,

    KVP_OP_PEER_HELLO = 80, /* between endpoints, like all PEER_ opcodes: PeerHello; answer: PeerHelloReply */
    KVP_OP_PEER_FIND = 81, /* peer to peer: PeerFind, n kvp_peer_at_t; answer: Reply, n kvp_peer_range_t */
    KVP_OP_PEER_MOVE = 82, /* peer to peer: PeerMove, n kvp_peer_piece_t; answer: Reply, n kvp_peer_moved_t */
    KVP_OP_PEER_NOTIFY = 83, /* peer to peer: PeerNotify; answer: Reply */
    KVP_OP_PEER_CUT = 84, /* peer to peer: PeerCut, n u64; answer: Reply */
    /* peer to peer: PeerMap; answer: Reply, 1 u64: index of the piece's cell in the memory `words`; with file
     * descriptors */
    KVP_OP_PEER_MAP = 85,
    KVP_OP_PEER_RDMA = 86, /* peer to peer: PeerRdma; answer: Reply */
    /* peer to peer: PeerStage; answer: Reply, 1 kvp_peer_at_t: the bounce buffer; none if it is given back */
    KVP_OP_PEER_STAGE = 87,
} kvp_op_t;

/* The tail of PUT_BEGIN: n kvp_wire_put_t; with has_groups n kvp_wire_group_t; with has_lineages n
 * kvp_wire_lineage_t; then the keys' bytes. */
typedef struct {
    kvp_digest_t digest;
    uint64_t len; /* bytes of the payload */
    uint64_t attempt; /* number of this put, which the client chose: never twice in an incarnation, never 0 */
    uint32_t key_at; /* offset of the object's key in the key bytes after the records */
    uint32_t key_len;
} kvp_wire_put_t;

/* The group of an object in PUT_BEGIN. members > 0: no object of the group is visible until this number of them is
 * committed, and all are evicted together. members 0: the objects are only evicted together. */
typedef struct {
    kvp_digest_t group; /* digest of the group's id; zero = the object is in no group */
    uint32_t members; /* number of members, at most KVP_GROUP_MEMBERS_MAX */
    uint32_t member; /* index of the object in the group, below members; 0 if members is 0 */
} kvp_wire_group_t;

/* An object's place in an engine's sequence of blocks. The pool stores this lineage and does not interpret it. */
typedef struct {
    uint64_t sequence; /* hash of all blocks from the first up to and including this block */
    uint64_t parent; /* hash of the previous block */
    uint32_t depth; /* number of blocks before this block */
    uint32_t is_told; /* 1, or 0 = the object has no lineage, and the other fields are 0 */
} kvp_wire_lineage_t;

typedef struct {
    uint64_t attempt;
    uint64_t sum; /* checksum of the payload; 0 = none */
    uint32_t replicas; /* bit i: the client has sealed location i of the grant; at least one bit is set */
    uint32_t reserved; /* always 0 */
} kvp_wire_commit_t;

/* A record of the message USED: how often the client read one object from a cached location since the last such
 * message. */
typedef struct {
    kvp_digest_t digest;
    uint32_t reads;
    uint32_t reserved; /* always 0 */
} kvp_wire_used_t;

/* A record of FOLLOW: the position at which a term begins in the standby's log. */
typedef struct {
    uint64_t position; /* position in the log of the term's BASE or TERM record */
    uint32_t term;
    uint32_t reserved; /* always 0 */
} kvp_wire_term_t;

/* A record of PRESENT: an object that a ticket of an earlier session protected. Adjacent records of the same set, kind
 * and ttl_ms get one new ticket together. */
typedef enum {
    KVP_PRESENT_HOLD = 1, /* the hold of a view */
    KVP_PRESENT_RESERVE = 2,
    KVP_PRESENT_GROUP = 3, /* a reservation of a whole group; the digest is the group's */
} kvp_present_kind_t;

typedef struct {
    kvp_digest_t digest;
    uint64_t version; /* version of the protected object; 0 = any version */
    uint32_t set; /* records of PRESENT with the same number belong to one old ticket; the client chooses the number */
    uint32_t ttl_ms; /* RESERVE and GROUP: milliseconds for which the reservation still lasts; 0 = it is over */
    uint32_t kind;
    uint32_t reserved; /* always 0 */
} kvp_wire_present_t;

/* The answer to one record of PRESENT. err: OK: the ticket protects the object; NOT_FOUND: the object does not exist
 * any more; LIMIT: over the limits of protected objects; RETRY_AFTER: a node may still mount the object. */
typedef struct {
    uint64_t ticket;
    int32_t err;
    uint32_t reserved; /* always 0 */
} kvp_wire_presented_t;

/* A record of Places (the answer to PUT_BEGIN and GET), one for each key, in the order of the request. The list of all
 * locations follows the records; the next nloc locations of it belong to this record. */
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
    uint32_t key_off; /* offset of the key in the chunk's metadata, in units of 64 bytes */
    uint64_t generation;
    uint64_t offset;
} kvp_wire_loc_t;

typedef struct {
    uint64_t len;
    uint64_t version;
    uint32_t key_at;
    uint32_t key_len;
} kvp_wire_entry_t;

/* A record of RETIRE: an extent to free. owner is the client incarnation whose stores may be under way, 0 = none. With
 * an owner the node answers FREE only when no store of the owner can arrive any more (the quarantine: PROTOCOL). */
typedef struct {
    uint32_t chunk;
    uint32_t slot;
    uint64_t generation;
    uint64_t owner;
} kvp_wire_slot_t;

/* A record of RELEASE: a place of the key at which the reader did not find the object. */
typedef struct {
    kvp_digest_t digest;
    uint64_t generation;
} kvp_wire_unreadable_t;

/* A record of CHECK: a place, and the descriptor that a reader expects there. */
typedef struct {
    uint32_t chunk;
    uint32_t slot;
    uint64_t generation;
    uint64_t version;
    kvp_digest_t digest;
    uint64_t offset;
    uint64_t len;
} kvp_wire_check_t;

/* A record of REPORT: a SEALED extent (WRITING extents were revoked before). Records are sorted by chunk, then by
 * offset. In a Report with whole descriptors each record is followed by its kvp_desc_t and key_len bytes of key, padded
 * to 8. */
typedef struct {
    uint32_t chunk;
    uint32_t slot;
    uint64_t word;
} kvp_wire_extent_t;

/* A record of DROP, TIER_REPORT, RECLAIM: a record on an SSD. DROP also means all older records of the digest. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
} kvp_wire_tiered_t;

/* A record of DEMOTE: an extent whose object the node writes to its SSD. */
typedef struct {
    kvp_wire_slot_t at;
    kvp_wire_lineage_t lineage; /* the object's lineage, which descriptors do not have */
} kvp_wire_demote_t;

/* A record of TIER_REPORT to a master that does not know the SSD: all that the master needs to know of an object.
 * key_len bytes of key follow, padded to 8. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
    uint64_t key_hash2;
    uint64_t len; /* bytes of the payload */
    uint64_t sum;
    kvp_wire_lineage_t lineage;
    uint32_t tenant; /* number of the tenant */
    uint16_t flags; /* flags of the object, as in descriptors */
    uint16_t key_len;
} kvp_wire_whole_t;
#define KVP_WHOLE_MAX 256u /* most kvp_wire_whole_t records on one page */

/* A record of STAGE: the node loads the object from its SSD into the extent, and seals the extent. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
    uint64_t len; /* bytes of the payload */
    uint64_t generation;
    uint64_t offset;
    uint32_t chunk;
    uint32_t slot;
    uint32_t key_off; /* offset of the key in the chunk's metadata, in units of 64 bytes */
    uint32_t reserved; /* always 0 */
} kvp_wire_stage_t;

/* A record of COPY: the node reads the object from another node's memory, stores it in the extent, and seals the
 * extent. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
    uint64_t len; /* bytes of the payload */
    uint64_t sum; /* checksum of the payload; 0 = none */
    uint64_t key_sum; /* checksum of the key's bytes */
    uint64_t generation; /* the source */
    uint64_t offset;
    uint32_t segment_id;
    uint32_t chunk;
    uint32_t slot;
    uint32_t key_off;
    uint64_t to_generation; /* the extent to write */
    uint64_t to_offset;
    uint32_t to_chunk;
    uint32_t to_slot;
    uint32_t to_key_off;
    uint16_t key_len;
    uint16_t reserved; /* always 0 */
} kvp_wire_copy_t;

/* The digest of an object gives its slot on a node's SSDs. One SSD has all records of a slot. */
#define KVP_TIER_SLOTS 256u
#define KVP_TIER_AWAY_BYTES (KVP_TIER_SLOTS / 8u) /* bytes of a bit set of slots: slot s is bit s % 8 of byte s / 8 */
static inline uint32_t
kvp_tier_slot_of(kvp_digest_t digest)
{
    return (uint32_t)(digest.lo ^ digest.hi >> 7) % KVP_TIER_SLOTS;
}

/* Bits of an object's byte in the answer to a LOOKUP with wants_places. */
#define KVP_FOUND_PRESENT 0x01u
#define KVP_FOUND_ON_TIER 0x02u /* all copies are on SSDs */
#define KVP_FOUND_ON_HOST 0x04u /* a copy lies in memory of a node on the asking session's host */

#define KVP_STAGE_OK 0u
#define KVP_STAGE_GONE 1u /* STAGE failed: the SSD has no readable record of the object; the master drops the copy */
#define KVP_STAGE_FAILED 2u /* STAGE failed: the load from the SSD may succeed later */

#define KVP_COPY_OK 0u
#define KVP_COPY_STALE 1u /* COPY failed: the source does not have the object any more */
#define KVP_COPY_AWAY 2u /* COPY failed: this node cannot read from the source at present */
/* COPY failed: the node has no memory, the deadline passed, or the extent is no longer free for the object */
#define KVP_COPY_FAILED 3u

/* States in an answer to TASK. */
typedef enum {
    KVP_TASK_WAITS = 0, /* no copy was begun yet */
    KVP_TASK_RUNS = 1,
    KVP_TASK_FAILED = 2,
    KVP_TASK_DONE = 3, /* the records of the copies are synced; of a move: the old copy is dropped */
} kvp_task_state_t;

/* What a DRAIN asks for. */
#define KVP_DRAIN_ASK 0u
#define KVP_DRAIN_BEGIN 1u
#define KVP_DRAIN_END 2u
/* States in an answer to DRAIN. */
#define KVP_DRAIN_NONE 0u /* the node is not draining */
#define KVP_DRAIN_RUNS 1u
#define KVP_DRAIN_DONE 2u /* no object is left in the node's memory, and, with with_ssd, none on its SSD */
/* The last failure in an answer to DRAIN, beside KVP_COPY_*: an object on the SSD could not be loaded. */
#define KVP_DRAIN_UNREAD 4u

#define KVP_RETIRE_DEAD 0x01u /* answer to RETIRE: the extent is unreadable from now on */
#define KVP_RETIRE_FREE 0x02u /* answer to RETIRE: the node itself does not access the extent any more: reuse it */

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
_Static_assert(sizeof(kvp_wire_copy_t) == 112, "wire format");
_Static_assert(sizeof(kvp_wire_unreadable_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_check_t) == 56, "wire format");
_Static_assert(sizeof(kvp_wire_group_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_lineage_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_used_t) == 24, "wire format");
_Static_assert(sizeof(kvp_wire_extent_t) == 16, "wire format");
_Static_assert(sizeof(kvp_wire_term_t) == 16, "wire format");

/* Peer-to-peer transfers: PROTOCOL "Peers". */
#define KVP_PEER_BATCH_MAX 1024u /* most records of one PEER_FIND, PEER_MOVE or PEER_CUT */
#define KVP_PEER_NOTIFY_NAME_MAX 256u
#define KVP_PEER_NOTIFY_MAX 16384u
#define KVP_PEER_KEY_MAX 96u
/* number of u64 cells in the memory `words` of an endpoint; a cell shows whether a piece of memory is still published
 */
#define KVP_PEER_CELLS 4096u

typedef struct {
    uint64_t addr; /* first address; if len is 0, the request is for the registered range with the lowest address */
    uint64_t len;
    uint64_t token; /* token of the range's registration; 0 = any current registration */
} kvp_peer_at_t;

/* The answer to one kvp_peer_at_t: the registered range that contains all its bytes. */
typedef struct {
    int32_t err;
    uint32_t key_len; /* length of `key` in bytes; 0 = device memory, which is reached through a bounce buffer */
    uint64_t base;
    uint64_t len;
    uint64_t token;
    uint8_t key[KVP_PEER_KEY_MAX]; /* the transport's key of the range; bytes after key_len are zero */
} kvp_peer_range_t;

typedef enum {
    KVP_PEER_PULL = 1, /* PEER_MOVE: copy len bytes from address `from` of the asking process to addr */
    KVP_PEER_SUM = 2, /* PEER_MOVE: return the checksum of the bytes at addr */
    KVP_PEER_CHECK = 3, /* PEER_MOVE: return whether the range is still registered under the token */
    KVP_PEER_FETCH = 4, /* PEER_MOVE: copy from device memory at addr to offset `from` of the bounce buffer */
    KVP_PEER_STORE = 5, /* PEER_MOVE: copy from offset `from` of the bounce buffer to device memory at addr */
} kvp_peer_move_t;

typedef struct {
    uint64_t token; /* token of the range, from PEER_FIND; never 0 */
    uint64_t addr;
    uint64_t len; /* number of bytes, 1 or more */
    uint64_t from; /* PULL: an address in the asking process; FETCH, STORE: an offset in the bounce buffer; else 0 */
} kvp_peer_piece_t;

typedef struct {
    int32_t err;
    uint32_t reserved; /* always 0 */
    uint64_t sum; /* SUM: the checksum; else 0 */
} kvp_peer_moved_t;

/* Data over TCP, after the exchange of DATA_HELLO. A request is a kvp_data_req_t and its operations: each a
 * kvp_data_op_t followed, for a WRITE, by its bytes. A request is either all READ, or all WRITE and PUBLISH.
 * Operations take effect in order. READ request: the answer is a kvp_data_rep_t and n i32 (padded to 8) at once, then
 * the bytes of the successful operations, in order. The peer loads an operation with AFTER_PRIOR only after the
 * bytes of all earlier operations were loaded: copied aside, or handed to the kernel. WRITE request: the answer is a
 * kvp_data_rep_t and n i32 (padded to 8) after the last operation. */
#define KVP_DATA_MAGIC 0x4b56u
#define KVP_DATA_OPS_MAX 1024u

typedef enum {
    KVP_DATA_READ = 1,
    KVP_DATA_WRITE = 2, /* a write; if GUARDED, done only while the word at guard_off of guard_key equals guard_word */
    KVP_DATA_PUBLISH = 3, /* stores the word guard_word at off if kvp_word_may_become allows it, else result STALE */
} kvp_data_op_kind_t;

#define KVP_DATA_AFTER_PRIOR 0x01u
#define KVP_DATA_GUARDED 0x02u
#define KVP_DATA_SUM 0x04u /* flag of a READ: 8 bytes with the checksum follow the operation's bytes */

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
    uint64_t key; /* key of the memory that the operation accesses, from the chunk's token */
    uint64_t off;
    uint64_t len;
    uint64_t guard_key; /* the memory that has the guard word */
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
