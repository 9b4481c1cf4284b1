/* SPDX-License-Identifier: Apache-2.0
 * One node in use by this incarnation: the control connection, the chunks that the node opened to
 * us, the endpoints. Created and found by client/memory/peers.c; only peers.c and this header's .c
 * file include it. */
#ifndef KVP_CLIENT_MEMORY_ATTACH_H
#define KVP_CLIENT_MEMORY_ATTACH_H

#include "client/memory/peers.h"
#include "common/clock.h"
#include "common/parse.h"

#define KVP_HURRY_NS (100 * KVP_NS_PER_MS) /* a deadline shorter than this is no measure of a node */
#define KVP_REFUSED_NS (10 * KVP_NS_PER_S) /* pause before asking again for a chunk that was refused for good */
#define KVP_SPARE_EPS 8u /* endpoints to one node whose transport works in the background */
#define KVP_SYNC_EPS 64u /* of a transport that copies in the caller's thread: they cost next to nothing */

typedef struct kvp_remote_chunk kvp_remote_chunk_t;

typedef struct {
    kvp_remote_chunk_t *_Atomic read; /* opened for reading; NULL = not yet. Never replaced */
    kvp_remote_chunk_t *_Atomic write; /* opened for writing, which serves readers too */
    /* the node cannot serve it by this transport: not asked again before this time */
    _Atomic uint64_t refused_until_ns;
} kvp_chunk_slot_t;

/* The question to which the node's answer is due. */
typedef struct {
    uint8_t opcode; /* 0 = none is */
    uint32_t chunk; /* OPEN_CHUNK */
    kvp_access_t access;
    uint64_t id;
    uint64_t asked_ns;
    uint64_t last_ns; /* latest time, for the most patient waiting caller */
} kvp_ctl_due_t;

/* The states of an attachment, which only moves to later ones. */
typedef enum {
    KVP_PEER_ATTACHED,
    KVP_PEER_BROKEN, /* waiting threads give up */
    KVP_PEER_FAILED_OVER, /* broken, because another transport reaches the node, and is used from now on */
} kvp_peer_state_t;

struct kvp_peer {
    uint32_t segment_id;
    size_t from; /* the slot's */
    uint8_t uuid[16];
    char where[KVP_HOSTPORT_TEXT_MAX]; /* for log lines */
    kvp_hostport_t addr; /* for data connections: the address of the control connection, if that is by network */
    kvp_tp_t *tp; /* borrowed from the peers */
    size_t transport; /* index in conf.transports */
    const _Atomic bool *is_given_up; /* borrowed: the session is being closed. NULL = never set */
    _Atomic uint32_t refs; /* raised, and taken from 1 to 0, under peers->lock */
    _Atomic bool is_on_trial; /* its slot has failed, and nothing was moved since; set under peers->lock */
    kvp_peer_t *next_dead; /* the same */
    _Atomic kvp_peer_state_t state; /* set under lock; FAILED_OVER under peers->lock, too */
    _Atomic bool
        needs_notice; /* memory was asked for to write: the node gets a drain notice when nothing is under way */

    uint32_t chunks_n;
    kvp_chunk_slot_t *chunks;
    _Atomic uint32_t unmapped_n; /* chunks whose memory was not yet touched throughout */
    uint32_t map_at; /* the chunk being touched; of the mapping thread */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* ctl_busy, idle_n, state */
    bool ctl_busy; /* a thread has the control connection for itself; guarded by lock */
    kvp_framed_t ctl; /* of the thread that set ctl_busy, like the two below */
    uint64_t ctl_id;
    kvp_ctl_due_t due;
    kvp_ep_t *idle[KVP_SYNC_EPS]; /* guarded by lock, like the rest */
    uint32_t idle_n;
    uint32_t low_n; /* the fewest idle ones since tend looked: so many, from the first on, were not used */
    uint64_t unused_ns; /* since when tend has found the first one unused; 0 = used, or none */
    uint32_t eps_n; /* idle ones and those in use */
};

/* The parameters of an attachment. */
typedef struct {
    uint32_t segment_id;
    const uint8_t *uuid;
    const char *addr; /* HOST:PORT */
    const char *unix_path; /* used unless empty */
    uint32_t chunks_n;
    kvp_tp_t *tp;
    size_t transport;
    kvp_hello_ask_t hello; /* pidfd is filled in here */
    kvp_names_t *names;
    const _Atomic bool *is_given_up;
} kvp_attach_t;

/* kvp_peer_open makes the control connection; CLOSED if given up. detail has more for people. */
kvp_err_t kvp_peer_open(const kvp_attach_t *how, uint64_t deadline_ns, char *detail, size_t cap, kvp_peer_t **peer_out)
    KVP_MUST_USE;
/* kvp_peer_destroy: with no user left. */
void kvp_peer_destroy(kvp_peer_t *peer);

/* kvp_peer_break makes every thread that waits at the peer give up. state: BROKEN or FAILED_OVER. */
void kvp_peer_break(kvp_peer_t *peer, kvp_peer_state_t state);

/* kvp_peer_take_ep returns an idle endpoint, or a new one, or one that another thread returns by
 * deadline_ns (0: EAGAIN instead of a wait). BUSY: no endpoint was returned. DEADLINE: a new one
 * could not be connected by then. NODE_LOST: the attachment is broken. Any other error: the reason
 * of a failed connection. kvp_peer_give_ep returns it, or closes it. */
kvp_err_t kvp_peer_take_ep(kvp_peer_t *peer, uint64_t deadline_ns, kvp_ep_t **ep_out) KVP_MUST_USE;
void kvp_peer_give_ep(kvp_peer_t *peer, kvp_ep_t *ep, bool is_spent);

/* kvp_peer_look_idle is called by one thread, now and then: returns the number of idle endpoints,
 * and since when the least recently used one is unused (0 = used, or none). kvp_peer_drop_idle
 * closes this one. */
uint32_t kvp_peer_look_idle(kvp_peer_t *peer, uint64_t now_ns, uint64_t *unused_ns_out);
void kvp_peer_drop_idle(kvp_peer_t *peer);

/* kvp_peer_chunk: see kvp_path_chunk. DEADLINE leaves the chunk to be opened: the next call finds it. */
kvp_err_t kvp_peer_chunk(kvp_peer_t *peer, uint32_t chunk, kvp_access_t access, uint64_t deadline_ns,
                         kvp_chunk_mem_t *mem_out) KVP_MUST_USE;

/* kvp_peer_drained reports to the node that no transfer of the incarnation is under way. */
kvp_err_t kvp_peer_drained(kvp_peer_t *peer, uint64_t incarnation, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_peer_map_some maps some more of the opened memory, before first use: true if more is left.
 * Called by one thread. */
bool kvp_peer_map_some(kvp_peer_t *peer);

/* kvp_peer_has_hung_up looks whether the node closed the control connection. Does not wait. */
bool kvp_peer_has_hung_up(kvp_peer_t *peer);
/* kvp_peer_is_stale: an idle endpoint is stale, so the node should be attached again. Does not
 * wait. */
bool kvp_peer_is_stale(kvp_peer_t *peer);

#endif
