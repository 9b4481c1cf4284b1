/* SPDX-License-Identifier: Apache-2.0
 * What the batch cores (putop, getop) and their shell say to each other. A core is asked for its next step, the shell
 * carries it out and reports back; the core knows neither sockets nor memory nor clocks. One thread runs one core.
 *
 *     while ((step = next(op, now)).kind != KVP_STEP_DONE) { carry it out; report }
 */
#ifndef KVP_CLIENT_CORE_OP_H
#define KVP_CLIENT_CORE_OP_H

#include "common/segfmt.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef enum {
    KVP_STEP_DONE, /* every item has its result */
    KVP_STEP_KNOWN, /* find a session whose location lease holds, without a message: report with on_known */
    KVP_STEP_SESSION, /* find a session: report with on_session, or with fail */
    KVP_STEP_CALL, /* send the frame in op->out on that session; report with on_reply or on_call_failed */
    KVP_STEP_SEND, /* send it and go on; whether it arrives does not matter to the result */
    KVP_STEP_MOVE, /* move the bytes of op->moves[0..moves_n); report with on_moved */
    KVP_STEP_SLEEP, /* until until_ns, then ask again */
} kvp_step_kind_t;

typedef struct {
    kvp_step_kind_t kind;
    uint64_t until_ns;
} kvp_step_t;

typedef struct kvp_known kvp_known_t; /* core/known.h */

/* What a session with the master fixes. Attempts, tickets and segment ids mean nothing outside of it. */
typedef struct {
    uint64_t incarnation;
    uint64_t digest_seed;
    uint32_t term;
    uint32_t tenant;
    const kvp_known_t *known; /* locations of that session; NULL = none are kept. Outlives the operation's use of it */
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
    KVP_MOVE_READ, /* the payload to the item's memory, and behind it the descriptor's first line to desc */
    KVP_MOVE_FILL, /* WRITING to the word, then the payload under that guard */
    KVP_MOVE_SEAL, /* key and descriptor under the guard, then SEALED to the word */
    /* Of a shell that moves an object in parts; cores ask for none. */
    KVP_MOVE_READ_PART, /* payload that comes before that of a READ */
    KVP_MOVE_FILL_MORE, /* payload that comes behind that of a FILL, under the same guard */
} kvp_move_kind_t;

/* One object's share of the data path at one location. */
typedef struct {
    kvp_move_kind_t kind;
    uint32_t item; /* index in the batch: whose memory */
    uint32_t copy; /* FILL, SEAL: which location of the grant */
    kvp_wire_loc_t loc;
    uint64_t len;
    const void *key; /* SEAL; borrowed */
    uint32_t key_len;
    bool wants_sum; /* READ: compute the sum even where the transport does not need it */

    /* The shell's report. err: OK, STALE, NODE_LOST, DEADLINE, CLOSED, NOTSUP, NOMEM, PROTO (a location that does not
     * exist at its node). */
    kvp_err_t err;
    bool has_sum;
    bool is_drained; /* nothing of this move can land any more */
    uint64_t sum;

    kvp_desc_t desc; /* READ: the line, out. SEAL: the whole, in. */
} kvp_move_t;

/* Whether a failed call means that the session is over, so that the operation starts again in the next one. */
static inline bool
kvp_op_is_session_loss(kvp_err_t err)
{
    return err == KVP_DISCONNECTED || err == KVP_FENCED || err == KVP_STALE_TERM;
}

/* An error that a peer told: anything that is no error number of ours is PROTO. */
static inline kvp_err_t
kvp_op_peer_err(int64_t err)
{
    return err > 0 || err < -1000 ? KVP_PROTO : (kvp_err_t)err;
}

#endif
