/* SPDX-License-Identifier: Apache-2.0
 * The exchange between the batch cores (putop, getop) and their shell. A core returns its next
 * step, the shell carries the step out and reports back; the core knows no sockets, memory or
 * clocks. One thread runs one core.
 *
 *     while ((step = next(op, now)).kind != KVP_STEP_DONE) { carry it out; report } */
#ifndef KVP_CLIENT_CORE_OP_H
#define KVP_CLIENT_CORE_OP_H

#include "proto/segfmt.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef enum {
    KVP_STEP_DONE, /* every item has its result */
    KVP_STEP_KNOWN, /* find a session whose location lease holds, without a message: report with on_known */
    KVP_STEP_SESSION, /* find a session: report with on_session, or with fail */
    KVP_STEP_CALL, /* send the frame in op->out on that session; report with on_reply or on_call_failed */
    KVP_STEP_SEND, /* send the frame and continue; its arrival does not affect the result */
    KVP_STEP_MOVE, /* move the bytes of op->moves[0..moves_n); report with on_moved */
    KVP_STEP_SLEEP, /* until until_ns, then ask again */
} kvp_step_kind_t;

typedef struct {
    kvp_step_kind_t kind;
    uint64_t until_ns;
} kvp_step_t;

typedef struct kvp_known kvp_known_t; /* core/loccache.h */

/* Constants of a session with the master. Attempts, tickets and segment ids are valid only within
 * it. */
typedef struct {
    uint64_t incarnation;
    uint64_t digest_seed;
    uint32_t term;
    uint32_t tenant;
    const kvp_known_t *known; /* locations of the session; NULL = no cache. Outlives the operation */
    uint64_t boot_ns; /* when the operation was given it, by the location lease's clock; counted only with known */
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
    KVP_MOVE_READ, /* the payload to the item's memory, then the descriptor's first line to desc */
    KVP_MOVE_FILL, /* WRITING to the word, then the payload under that guard */
    KVP_MOVE_SEAL, /* key and descriptor under the guard, then SEALED to the word */
    /* both, one after the other: the shell computes the sum before it sends the descriptor
     * (kvp_move_set_sum) */
    KVP_MOVE_PUT,
    /* Of a shell that moves an object in parts; cores ask for none. */
    KVP_MOVE_READ_PART, /* payload that comes before the payload of a READ */
    KVP_MOVE_FILL_MORE, /* payload that follows the payload of a FILL, under the same guard */
} kvp_move_kind_t;

/* How a READ may be verified. */
#define KVP_READ_SUM 0x01u /* compute the sum even where the transport does not need it */
#define KVP_READ_SUM_ALONE 0x02u /* the sum is enough, where the transport has KVP_TP_SUM_ALONE */
#define KVP_READ_NO_SUM 0x04u /* the object has no sum: the node sends the sum of its bytes, where it can */

#define KVP_SUM_ALONE_MAX (64u << 10) /* bytes of an object that its sum alone may vouch for */
#define KVP_PUT_AT_ONCE_MAX                                                                                            \
    (64u << 10) /* bytes of an object that are worth summing before they are sent: see putop.c */

/* The transfer of one object at one location. */
typedef struct {
    kvp_move_kind_t kind;
    uint32_t item; /* index in the batch: whose memory */
    uint32_t copy; /* of a write: which location of the grant, */
    uint64_t granted_ns; /* and the time of its request */
    kvp_wire_loc_t loc;
    uint64_t len;
    const void *key; /* SEAL, PUT; borrowed */
    uint32_t key_len;
    uint32_t flags; /* READ: KVP_READ_* */

    /* The shell's report. err: OK, STALE, NODE_LOST, DEADLINE, CLOSED, NOTSUP, NOMEM, CORRUPT
     * (NO_SUM), NOT_REGISTERED (local memory was unregistered), PROTO (the location does not
     * exist at its node), EAGAIN (the grant is older than the connection: a new grant will work). */
    kvp_err_t err;
    bool has_sum; /* false for bytes that only adapters touched */
    bool has_desc; /* READ: desc was read after the payload; else there is a sum */
    bool is_sum_path; /* READ: the transport has KVP_TP_SUM_ALONE, whether it was made use of or not */
    bool is_drained; /* nothing of this move can land any more */
    uint64_t sum;

    kvp_desc_t desc; /* READ: the line, out, where has_desc. SEAL: the whole, in. PUT: in, but for the sum. */
} kvp_move_t;

/* kvp_move_set_sum makes the descriptor of a PUT whole. */
static inline void
kvp_move_set_sum(kvp_move_t *mv, uint64_t sum)
{
    mv->desc.sum = sum;
    kvp_desc_seal(&mv->desc);
}

/* Returns whether a failed call means that the session is over, so that the operation starts again
 * in the next one. */
static inline bool
kvp_op_is_session_loss(kvp_err_t err)
{
    return err == KVP_DISCONNECTED || err == KVP_FENCED || err == KVP_STALE_TERM || err == KVP_NOT_LEADER;
}

/* Converts a peer's error: any unknown error number is PROTO. */
static inline kvp_err_t
kvp_op_peer_err(int64_t err)
{
    return err > 0 || err < -1000 ? KVP_PROTO : (kvp_err_t)err;
}

#endif
