/* SPDX-License-Identifier: Apache-2.0
 * The attachment to one node that this incarnation uses: the control connection, the chunks of memory that the node
 * opened to this process, and the endpoints. client/memory/peers.c creates and finds attachments. Only files in
 * client/memory/ include this header. */
#ifndef KVP_CLIENT_MEMORY_ATTACH_H
#define KVP_CLIENT_MEMORY_ATTACH_H

#include "client/memory/peers.h"
#include "common/clock.h"
#include "common/parse.h"

/* a failed attempt to reach a node with less time than this proves nothing about the node */
#define KVP_HURRY_NS (100 * KVP_NS_PER_MS)
#define KVP_REFUSED_NS (10 * KVP_NS_PER_S) /* pause before asking again for a chunk that the transport cannot serve */
#define KVP_SPARE_EPS 8u /* most endpoints to one node if the transport works in the background */
#define KVP_SYNC_EPS 64u /* most endpoints to one node if the transport copies in the caller's thread (cheap) */

typedef struct kvp_remote_chunk kvp_remote_chunk_t;

typedef struct {
    kvp_remote_chunk_t *_Atomic read; /* the chunk opened for reading; NULL = not opened yet. Never replaced */
    kvp_remote_chunk_t *_Atomic write; /* the chunk opened for writing, also serves reads; NULL = not opened yet */
    /* the node cannot serve the chunk by this transport: do not ask again before this time */
    _Atomic uint64_t refused_until_ns;
} kvp_chunk_slot_t;

/* The question on the control connection whose answer has not arrived yet. */
typedef struct {
    uint8_t opcode; /* opcode of the question; 0 = no answer is due */
    uint32_t chunk; /* index of the chunk, for OPEN_CHUNK */
    kvp_access_t access;
    uint64_t id;
    uint64_t asked_ns;
    uint64_t last_ns; /* latest time for the answer, by the most patient caller */
} kvp_ctl_due_t;

/* States of an attachment. The state only changes to a later one. */
typedef enum {
    KVP_PEER_ATTACHED,
    KVP_PEER_BROKEN, /* lost: waiting threads give up */
    KVP_PEER_FAILED_OVER, /* lost, and another transport reaches the node and replaces this attachment */
} kvp_peer_state_t;

struct kvp_peer {
    uint32_t segment_id;
    size_t from; /* index of the first transport that the attachment's slot allows */
    uint8_t uuid[16];
    char where[KVP_HOSTPORT_TEXT_MAX]; /* the node's address, for log lines */
    kvp_hostport_t addr; /* address for data connections: the peer of the control connection, if not a Unix socket */
    kvp_tp_t *tp; /* the transport's instance; borrowed from the peers */
    size_t transport; /* index of the transport in conf.transports */
    const _Atomic bool *is_given_up; /* borrowed: set when the session is being closed; NULL = never set */
    _Atomic uint32_t refs; /* reference count; raised, and lowered from 1 to 0, under peers->lock */
    _Atomic bool is_on_trial; /* the node failed or was silent, and no bytes have moved since; set under peers->lock */
    kvp_peer_t *next_dead; /* next in peers->dead; guarded by peers->lock */
    _Atomic kvp_peer_state_t state; /* set under lock; FAILED_OVER is set under peers->lock as well */
    /* the node was asked for shared memory to write, so it gets a drain notice when no transfer of the incarnation is
     * running any more */
    _Atomic bool needs_notice;

    uint32_t chunks_n;
    kvp_chunk_slot_t *chunks;
    _Atomic uint32_t unmapped_n; /* opened chunks whose memory was not yet mapped completely in advance */
    uint32_t map_at; /* index of the chunk that is being mapped; used by the mapping thread only */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* signals a change of ctl_busy, idle_n or state */
    bool ctl_busy; /* a thread is using the control connection; guarded by lock */
    kvp_framed_t ctl; /* ctl, ctl_id and due belong to the thread that set ctl_busy */
    uint64_t ctl_id;
    kvp_ctl_due_t due;
    kvp_ep_t *idle[KVP_SYNC_EPS]; /* unused endpoints; lock guards this field and all fields below */
    uint32_t idle_n;
    uint32_t low_n; /* fewest idle endpoints since the last kvp_peer_look_idle: idle[0..low_n) were not used since */
    uint64_t unused_ns; /* time since which kvp_peer_look_idle has found idle[0] unused; 0 = used, or none idle */
    uint32_t eps_n; /* number of endpoints, idle or in use */
};

/* Parameters of a new attachment. */
typedef struct {
    uint32_t segment_id;
    const uint8_t *uuid;
    const char *node; /* name that the node's certificate must have; NULL = any name */
    const char *addr; /* address of the node, HOST:PORT */
    const char *unix_path; /* Unix socket of the node; empty = use addr */
    uint32_t chunks_n;
    kvp_tp_t *tp;
    size_t transport;
    kvp_hello_ask_t hello; /* the Hello message; kvp_peer_open fills in pidfd */
    kvp_names_t *names;
    const _Atomic bool *is_given_up;
} kvp_attach_t;

/* kvp_peer_open opens the control connection. CLOSED if *is_given_up is set. detail gets a text about an error, for
 * people. */
kvp_err_t kvp_peer_open(const kvp_attach_t *how, uint64_t deadline_ns, char *detail, size_t cap, kvp_peer_t **peer_out)
    KVP_MUST_USE;
/* kvp_peer_destroy closes and frees the attachment. The caller has made sure that no user is left. */
void kvp_peer_destroy(kvp_peer_t *peer);

/* kvp_peer_break marks the attachment as lost and makes every thread that waits for it give up. state is BROKEN or
 * FAILED_OVER. */
void kvp_peer_break(kvp_peer_t *peer, kvp_peer_state_t state);

/* kvp_peer_take_ep returns an idle endpoint, or a new one, or one that another thread gives back by deadline_ns.
 * deadline_ns 0: EAGAIN instead of a wait. BUSY: no endpoint was given back in time. DEADLINE: a new
 * endpoint was not connected in time. NODE_LOST: the attachment is broken. Any other error is that of the failed
 * connection. kvp_peer_give_ep gives the endpoint back, or closes it if is_spent or broken. */
kvp_err_t kvp_peer_take_ep(kvp_peer_t *peer, uint64_t deadline_ns, kvp_ep_t **ep_out) KVP_MUST_USE;
void kvp_peer_give_ep(kvp_peer_t *peer, kvp_ep_t *ep, bool is_spent);

/* kvp_peer_look_idle returns the number of idle endpoints, and the time since which the least recently used one is
 * unused (0 = used, or no idle endpoint). One thread calls it from time to time. kvp_peer_drop_idle closes the least
 * recently used endpoint. */
uint32_t kvp_peer_look_idle(kvp_peer_t *peer, uint64_t now_ns, uint64_t *unused_ns_out);
void kvp_peer_drop_idle(kvp_peer_t *peer);

/* kvp_peer_chunk returns a chunk's memory, see kvp_path_chunk. After DEADLINE the question stays open, and a later
 * call receives the answer. */
kvp_err_t kvp_peer_chunk(kvp_peer_t *peer, uint32_t chunk, kvp_access_t access, uint64_t deadline_ns,
                         kvp_chunk_mem_t *mem_out) KVP_MUST_USE;

/* kvp_peer_drained sends the node a notice that no transfer of the incarnation is running any more, and waits for the
 * answer. */
kvp_err_t kvp_peer_drained(kvp_peer_t *peer, uint64_t incarnation, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_peer_map_some maps one more slice of the opened memory before its first use. Returns true if more is left. One
 * thread calls it. */
bool kvp_peer_map_some(kvp_peer_t *peer);

/* kvp_peer_has_hung_up returns true if the node closed the control connection. Does not wait. */
bool kvp_peer_has_hung_up(kvp_peer_t *peer);
/* kvp_peer_is_stale returns true if an idle endpoint is stale, so that the node should be attached again. Does not
 * wait. */
bool kvp_peer_is_stale(kvp_peer_t *peer);

#endif
