/* SPDX-License-Identifier: Apache-2.0
 * The exchange between the state machines of batches (putop, getop) and their shell. The machine returns its next
 * step; the shell carries the step out and reports the result. The machine knows no sockets, memory or clocks. One
 * thread runs one machine.
 *
 *   while ((step = next(op, now)).kind != KVP_STEP_DONE) { carry it out; report } */
#ifndef KVP_CLIENT_CORE_OP_H
#define KVP_CLIENT_CORE_OP_H

#include "proto/segfmt.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef enum {
    KVP_STEP_DONE, /* every item has its result */
    KVP_STEP_KNOWN, /* find a session with a valid location lease, without a message: report with on_known */
    KVP_STEP_SESSION, /* find a session: report with on_session, or with fail */
    KVP_STEP_CALL, /* send the frame in op->out in the session; report with on_reply or on_call_failed */
    KVP_STEP_SEND, /* send the frame and continue; the result does not depend on its arrival */
    KVP_STEP_MOVE, /* move the bytes of op->moves[0..moves_n); report with on_moved */
    KVP_STEP_SLEEP, /* sleep until until_ns, then call next again */
} kvp_step_kind_t;

typedef struct {
    kvp_step_kind_t kind;
    uint64_t until_ns;
} kvp_step_t;

typedef struct kvp_known kvp_known_t; /* defined in core/loccache.h */

/* Constants of a session with the master. Attempt numbers, tickets and segment ids are valid only within their
 * session. */
typedef struct {
    uint64_t incarnation;
    uint64_t digest_seed;
    uint32_t term;
    uint32_t tenant;
    const kvp_known_t *known; /* cached locations of the session, valid longer than the operation; NULL = no cache */
    uint64_t boot_ns; /* when the operation got the session, by the clock of the location lease; 0 if known is NULL */
} kvp_op_session_t;

static inline kvp_digest_t
kvp_op_digest(const kvp_op_session_t *session, const void *key, size_t len)
{
    return kvp_key_digest(session->digest_seed, session->tenant, key, len);
}

static inline uint64_t
kvp_op_hash2(const kvp_op_session_t *session, const void *key, size_t len)
{
    return kvp_key_hash2(session->digest_seed, session->tenant, key, len);
}

typedef enum {
    KVP_MOVE_READ, /* read the payload to the item's memory, then the first line of the descriptor to desc */
    KVP_MOVE_FILL, /* set the descriptor's state word to WRITING, then write the payload while the word stays so */
    KVP_MOVE_SEAL, /* write key and descriptor while the state word is WRITING, then set the word to SEALED */
    /* FILL and SEAL, one after the other: the shell computes the checksum before it sends the descriptor
     * (kvp_move_set_sum) */
    KVP_MOVE_PUT,
    /* Two kinds of moves for a shell that transfers an object in parts; getop and putop never request them. */
    KVP_MOVE_READ_PART, /* read one part of the payload; a READ reads the object's last part */
    KVP_MOVE_FILL_MORE, /* write one part of the payload; a FILL wrote the object's first part and the state word */
    /* For a node that copies an object: read the payload, then the key and the descriptor; the descriptor's first line
     * is read last. */
    KVP_MOVE_READ_WHOLE,
} kvp_move_kind_t;

/* Flags: how a READ may be verified. */
#define KVP_READ_SUM 0x01u /* compute the checksum even if the transport does not need it */
/* a correct checksum alone is enough if the transport has KVP_TP_SUM_ALONE, or if the read is cut before the
 * descriptor */
#define KVP_READ_SUM_ALONE 0x02u
#define KVP_READ_NO_SUM 0x04u /* the object has no checksum: the node sends the checksum of its bytes, if it can */

#define KVP_SUM_ALONE_MAX (64u << 10) /* most bytes of an object for KVP_READ_SUM_ALONE */
/* most bytes of a host object whose checksum is computed before the object is sent: see putop.c */
#define KVP_PUT_AT_ONCE_MAX (64u << 10)

/* A move: the transfer of an object's bytes to or from one location. */
typedef struct {
    kvp_move_kind_t kind;
    uint32_t item; /* index of the item in the batch, whose memory is used */
    uint32_t copy; /* of a write: index of the location in the master's grant */
    uint64_t granted_ns; /* of a write: time at which the grant was requested */
    kvp_wire_loc_t loc;
    uint64_t len;
    const void *key; /* of SEAL and PUT: the object's key; of READ_WHOLE: the memory to read the key to; borrowed */
    uint32_t key_len;
    uint32_t flags; /* of READ: KVP_READ_* flags */

    /* Result of the move, set by the shell. err is OK, STALE, NODE_LOST, DEADLINE, CLOSED, NOTSUP, NOMEM, CORRUPT
     * (with NO_SUM), NOT_REGISTERED (local memory was unregistered), PROTO (the node has no such location), or EAGAIN
     * (the grant is older than the connection: a new grant will work). */
    kvp_err_t err;
    bool has_sum; /* sum is the checksum of the moved bytes; false if only network adapters touched the bytes */
    bool has_desc; /* READ: desc was read after the payload; if false, has_sum is true */
    bool is_sum_path; /* READ: the transport has KVP_TP_SUM_ALONE, whether this read used it or not */
    bool is_drained; /* no write of this move can reach the node's memory any more */
    uint64_t sum;

    kvp_desc_t desc; /* READ: output, the descriptor's first line, if has_desc. SEAL: input. PUT: input, no checksum */
} kvp_move_t;

/* kvp_move_set_sum completes the descriptor of a PUT with the checksum of the payload. */
static inline void
kvp_move_set_sum(kvp_move_t *mv, uint64_t sum)
{
    mv->desc.sum = sum;
    kvp_desc_seal(&mv->desc);
}

/* Returns true if the error of a failed call means that the session is over. The operation then starts again in the
 * next session. */
static inline bool
kvp_op_is_session_loss(kvp_err_t err)
{
    return err == KVP_DISCONNECTED || err == KVP_FENCED || err == KVP_STALE_TERM || err == KVP_NOT_LEADER;
}

/* Converts an error number from the master or a node: an unknown number becomes PROTO. */
static inline kvp_err_t
kvp_op_peer_err(int64_t err)
{
    return err > 0 || err < -1000 ? KVP_PROTO : (kvp_err_t)err;
}

#endif
