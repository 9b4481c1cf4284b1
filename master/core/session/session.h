/* SPDX-License-Identifier: Apache-2.0
 * Sessions: one a connection, and the core's output to it. */
#ifndef KVP_MASTER_CORE_SESSION_SESSION_H
#define KVP_MASTER_CORE_SESSION_SESSION_H

#include "common/buf.h"
#include "common/list.h"
#include "master/core/session/peers.h"
#include "master/core/base/heap.h"
#include "master/core/base/recent.h"
#include "master/core/base/umap.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef struct kvp_lease kvp_lease_t;
typedef struct kvp_tenant kvp_tenant_t;

#define KVP_HEARTBEAT_MS 1000u
/* after this silence of its writer, a key is given to another client that asks for it */
#define KVP_WRITER_SILENT_MS 1250u

typedef enum {
    KVP_SESSION_OPEN,
    KVP_SESSION_CLOSING, /* the connection is closed after the output is sent; input is ignored */
    KVP_SESSION_OVER, /* the same, and it owns only attempts and tickets whose turn to end has not come */
} kvp_session_life_t;

typedef struct kvp_session kvp_session_t;
struct kvp_session {
    uint64_t conn; /* 0 = it has ended, and the record stays until its state is freed */
    kvp_list_t link; /* all sessions that have a connection, in the order of their last frame */
    kvp_list_t over; /* master->over */
    kvp_list_t born; /* live clients, in the order of their incarnation */
    kvp_list_t dirty; /* output waits */
    kvp_list_t attempts, tickets, reqs, deferred, jobs, segments, retire_reqs;
    kvp_list_t stagewaits; /* GETs that wait for loads */
    kvp_list_t abandoned; /* retire records of attempts that were taken from it while it was silent */
    kvp_list_t members; /* that it owns */
    uint32_t members_n;
    uint32_t stagewaits_n;
    uint32_t segments_n, retire_reqs_n, tickets_n, deferred_n;
    uint32_t abandoned_n;
    uint32_t deferred_keys;
    uint32_t ticket_objects;
    uint64_t incarnation; /* 0 = no Hello yet */
    uint64_t seen_ns;
    uint64_t stall_seen_ns; /* the master's own stalls, when the session was last seen */
    uint64_t attempt_bytes; /* of unfinished attempts */
    uint64_t quarantine_bytes; /* of attempts that it aborted without a statement about its stores */
    uint64_t reserved_bytes;
    uint64_t deferred_seq;
    kvp_umap_t attempt_ids;
    kvp_recent_t recent; /* finished attempts */
    kvp_buf_t out;
    uint32_t number; /* in peers->sessions */
    uint32_t role;
    bool is_fence_edge; /* nodes refuse incarnations above it: its end has to extend their fence */
    bool is_state_only; /* it may only ask for the state */
    bool is_drained; /* its word, with Bye: none of its stores is under way */
    kvp_session_life_t life;
    char name[KVP_NAME_MAX + 1];
    char host_id[KVP_NAME_MAX + 1];
    kvp_tenant_t *tenant; /* a client's */
    kvp_lease_t *lease; /* NULL = it may not read from known locations */
    uint64_t born_seq; /* its tenant's revocations at its Hello */
};

kvp_session_t *kvp_session_find(kvp_sessions_t *peers, uint64_t conn);
kvp_session_t *kvp_session_open(kvp_sessions_t *peers, uint64_t conn);
void kvp_session_close(kvp_sessions_t *peers, kvp_session_t *s,
                       const char *why); /* breach or expiry; freed at on_close */
static inline void
kvp_session_shut(kvp_session_t *s) /* its connection is closed after its output */
{
    if (s->life == KVP_SESSION_OPEN) s->life = KVP_SESSION_CLOSING;
}
bool kvp_session_is_silent(const kvp_sessions_t *peers, const kvp_session_t *s); /* too long for a writer */
void kvp_session_dirty(kvp_sessions_t *peers, kvp_session_t *s);
/* kvp_reply_begin begins the answer to ask and returns the buffer for its tail; kvp_frame_end(buffer, *at_out) ends it.
 * The answer to a one-way question goes nowhere. */
kvp_buf_t *kvp_reply_begin(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *msg,
                           size_t *at_out);
/* kvp_reply_results: OK, and of each of the n that were asked for a result of `each` bytes. */
void kvp_reply_results(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *results,
                       uint32_t n, size_t each);
void kvp_reply_plain(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, kvp_err_t err,
                     const char *detail);
uint64_t kvp_incarnation_make(const kvp_sessions_t *peers, uint64_t seq); /* of this term */
/* kvp_fence_tell: all incarnations above `above`, up to and including `incarnation`, are dead; 0 =
 * sends only the oldest live one. */
void kvp_fence_tell(kvp_sessions_t *peers, kvp_session_t *node, uint64_t above, uint64_t incarnation);
/* kvp_peers_ident_changed: the term or the pool's name has changed, and there is no output until then. */
void kvp_peers_ident_changed(kvp_sessions_t *peers, kvp_mute_t until);
void
kvp_pool_granted(kvp_sessions_t *peers); /* a grant of space, or a promise: from here on the pool's identity is final */

#endif
