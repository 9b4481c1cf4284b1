/* SPDX-License-Identifier: Apache-2.0
 * Sessions: one for each connection, and the core's output to it. */
#ifndef KVP_MASTER_CORE_SESSION_SESSION_H
#define KVP_MASTER_CORE_SESSION_SESSION_H

#include "common/buf.h"
#include "common/list.h"
#include "common/trust/identity.h"
#include "master/core/session/peers.h"
#include "master/core/base/heap.h"
#include "master/core/base/recent.h"
#include "master/core/base/umap.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef struct kvp_lease kvp_lease_t;
typedef struct kvp_tenant kvp_tenant_t;

#define KVP_HEARTBEAT_MS 1000u
/* a client that sends no frame for this time may lose its unfinished puts: another client may put their keys */
#define KVP_WRITER_SILENT_MS 1250u

typedef enum {
    KVP_SESSION_OPEN,
    KVP_SESSION_CLOSING, /* the session's connection is closed after its output is sent; input is ignored */
    KVP_SESSION_OVER, /* the session has ended; only its attempts and tickets are left to be freed */
} kvp_session_life_t;

typedef struct kvp_session kvp_session_t;
/* What a session's peer may ask for. */
typedef enum {
    KVP_USE_ALL,
    KVP_USE_STATE, /* the peer may only ask for the master's state */
    KVP_USE_PROBE, /* the client's puts evict nothing and do not wait; its gets and refused puts are not counted */
} kvp_session_use_t;

struct kvp_session {
    uint64_t conn; /* number of the connection; 0 = it has ended, and the record stays until its state is freed */
    kvp_list_t link; /* link in peers->seen: all sessions with a connection, in the order of their last frame */
    kvp_list_t over; /* link in master->over */
    kvp_list_t born; /* link in peers->born: live clients, in the order of their incarnation */
    kvp_list_t dirty; /* link in peers->dirty: sessions with output to send */
    kvp_list_t attempts, tickets, reqs, deferred, jobs, segments, retire_reqs;
    kvp_list_t stagewaits; /* requests that wait for loads from a tier, or for nodes: stagewait.c */
    kvp_list_t abandoned; /* retire records of put attempts that were aborted because this client was silent */
    kvp_list_t members; /* group memberships that the client owns */
    uint32_t members_n;
    uint32_t stagewaits_n;
    uint32_t segments_n, retire_reqs_n, tickets_n, deferred_n;
    uint32_t abandoned_n;
    uint32_t deferred_keys;
    uint32_t ticket_objects;
    uint64_t incarnation; /* number of this life of the peer; 0 = no Hello yet */
    uint64_t seen_ns;
    uint64_t stall_seen_ns; /* total stall time of the master's event loop at the peer's last frame */
    uint64_t attempt_bytes; /* bytes of unfinished put attempts */
    /* bytes in quarantine because the client aborted puts without reporting that its writes had ended */
    uint64_t quarantine_bytes;
    uint64_t reserved_bytes;
    uint64_t deferred_seq;
    kvp_umap_t attempt_ids;
    kvp_recent_t recent; /* outcomes of finished attempts */
    kvp_buf_t out;
    uint32_t number; /* number in peers->sessions */
    uint32_t role;
    /* flag: nodes refuse the incarnations directly above this client's; its end must extend the refused range */
    bool is_fence_edge;
    kvp_session_use_t use;
    bool is_revoked; /* flag: an administrator ended the session: all nodes close its attachments */
    bool is_drained; /* flag: the client reported with Bye that none of its writes is in progress */
    kvp_session_life_t life;
    char name[KVP_NAME_MAX + 1];
    char host_id[KVP_NAME_MAX + 1];
    kvp_tenant_t *tenant; /* tenant of a client */
    kvp_identity_t *who; /* identity of the peer; NULL = this master requires none */
    kvp_authrole_t rights; /* the client's role, which limits its requests; KVP_MAY_ADMIN without an identity */
    kvp_lease_t *lease; /* the client's location lease; NULL = it may not read from cached locations */
    uint64_t born_seq; /* number of the tenant's last revocation when the client sent Hello */
};

kvp_session_t *kvp_session_find(kvp_sessions_t *peers, uint64_t conn);
kvp_session_t *kvp_session_open(kvp_sessions_t *peers, uint64_t conn);
void kvp_session_close(kvp_sessions_t *peers, kvp_session_t *s,
                       const char *why); /* closes s because its peer broke the protocol, or was silent too long */
/* kvp_session_shut has the connection closed after its output is sent. */
static inline void
kvp_session_shut(kvp_session_t *s)
{
    if (s->life == KVP_SESSION_OPEN) s->life = KVP_SESSION_CLOSING;
}
/* kvp_session_is_silent returns true if the client sent no frame for KVP_WRITER_SILENT_MS. */
bool kvp_session_is_silent(const kvp_sessions_t *peers, const kvp_session_t *s);
void kvp_session_dirty(kvp_sessions_t *peers, kvp_session_t *s);
/* kvp_session_sees_all returns true if the peer may see the figures of all tenants. */
static inline bool
kvp_session_sees_all(const kvp_session_t *s)
{
    return s->rights == KVP_MAY_MONITOR || s->rights == KVP_MAY_ADMIN;
}
/* kvp_session_audit reports a refusal (err), or an allowed request that destroys something (OK), to the shell. why is
 * static text, or text of the session. */
void kvp_session_audit(kvp_sessions_t *peers, const kvp_session_t *s, uint8_t opcode, kvp_err_t err, const char *why);
/* kvp_session_audit_object adds the object of the request to the latest report. */
KVP_PRINTF(2, 3) void kvp_session_audit_object(kvp_sessions_t *peers, const char *fmt, ...);
/* kvp_reply_begin begins the answer to `ask` and returns the buffer for the rest of the answer; kvp_frame_end(buffer,
 * *at_out) ends it. The answer to a one-way request is dropped. */
kvp_buf_t *kvp_reply_begin(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *msg,
                           size_t *at_out);
/* kvp_reply_results answers OK with n results of `each` bytes, one for each key of the request. */
void kvp_reply_results(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, const void *results,
                       uint32_t n, size_t each);
void kvp_reply_plain(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask, kvp_err_t err,
                     const char *detail);
/* kvp_reply_stale answers STALE, with the tenant's epoch, to a GET or PUT_BEGIN that has another epoch. */
void kvp_reply_stale(kvp_sessions_t *peers, kvp_session_t *s, const kvp_frame_hdr_t *ask);
uint64_t kvp_incarnation_make(const kvp_sessions_t *peers, uint64_t seq); /* an incarnation of this term */
/* kvp_fence_tell tells the node that all incarnations above `above`, up to and including `incarnation`, are dead.
 * With incarnation 0 it sends only the oldest live incarnation. */
void kvp_fence_tell(kvp_sessions_t *peers, kvp_session_t *node, uint64_t above, uint64_t incarnation);
/* kvp_peers_ident_changed: the term or the pool's identity changed; output to peers is held back up to `until`. */
void kvp_peers_ident_changed(kvp_sessions_t *peers, kvp_mute_t until);
void
kvp_pool_granted(kvp_sessions_t *peers); /* space was granted or a promise given: the pool's identity is final now */

#endif
