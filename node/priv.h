/* SPDX-License-Identifier: Apache-2.0
 * The node's inside, shared by lifecycle.c and the control thread's files: loop.c (the loop,
 * memory and its reset), serve.c (listeners, connections), attach.c (clients' requests, and their
 * processes), link.c (the master), report.c (the report of the memory), keep.c (the keeper). */
#ifndef KVP_NODE_PRIV_H
#define KVP_NODE_PRIV_H

#include "net/epoll.h"
#include "node/node.h"
#include "node/dial.h"
#include "node/keeper/link.h"
#include "node/keeper/table.h"
#include "node/memory/book.h"
#include "node/memory/segment.h"
#include "node/memory/tps.h"
#include "common/clock.h"
#include "common/log.h"
#include "proto/wire.h"

struct Kvp__Pb__MountReply;

#define KVP_NODE_TURN_NS (20 * KVP_NS_PER_MS)

/* A descriptor in the control thread's epoll set. fn may end the object that holds this: see kvp_node_free_later. */
typedef struct kvp_node_ev {
    int fd; /* -1 = none */
    uint32_t events; /* asked for; 0 = not in the set */
    void (*fn)(kvp_node_t *node, struct kvp_node_ev *ev, uint32_t events); /* NULL = its object waits to be freed */
} kvp_node_ev_t;

/* An object that is freed when the turn of the loop is over: later events of the same turn may still point to it. */
typedef struct {
    kvp_list_t link;
    void *mem;
} kvp_node_deferred_t;

typedef struct {
    kvp_node_ev_t ev;
    uint64_t paused_until_ns; /* 0 = accepts */
    bool is_unix;
    kvp_log_limit_t noise; /* lines that its clients can cause: strangers on the network do not drown local ones */
} kvp_node_listener_t;

typedef struct {
    kvp_node_listener_t tcp;
    kvp_node_listener_t local;
    kvp_list_t fresh; /* connections before Hello or being closed, oldest first */
    kvp_list_t settled;
    uint32_t conns_n;
    kvp_list_t procs; /* processes with a pidfd */
    uint64_t requests;
    uint64_t protocol_errors;
    uint64_t refused;
} kvp_node_serve_t;

typedef enum {
    KVP_LINK_DOWN, /* the dial is looking for a master */
    KVP_LINK_SWEEPING, /* its term is not obeyed yet; then it is mounted */
    KVP_LINK_MOUNTING,
    KVP_LINK_REPORTING, /* mounted, but the master asks what is in the memory first */
    KVP_LINK_UP,
    KVP_LINK_UNMOUNTING,
} kvp_node_link_state_t;

typedef struct {
    kvp_node_link_state_t state;
    kvp_node_ev_t ev;
    kvp_framed_t conn;
    uint64_t number; /* number of this connection; late answers for an older one are dropped */
    uint64_t next_request;
    uint64_t incarnation;
    uint32_t segment_id;
    uint64_t heartbeat_ns;
    uint64_t ttl_ns;
    uint64_t heard_ns;
    uint64_t heartbeat_at_ns;
    char local_host[KVP_HOST_MAX];
    kvp_list_t fences; /* asked of the transports, not yet answered */
    uint64_t report_request; /* the page that is not answered; 0 = none */
    bool was_told_fresh; /* stated by the Mount without an answer yet */
    bool is_report_whole;
    bool is_report_last; /* that page is */
    bool is_done; /* no unmount is under way or to be asked: the control thread ends */
    kvp_log_limit_t noise;
    uint64_t mounts;
} kvp_node_link_t;

/* The SSD tier: tiering.c. */
typedef enum {
    KVP_TIERING_DOWN, /* not mounted */
    KVP_TIERING_MOUNTING,
    KVP_TIERING_REPORTING,
    KVP_TIERING_UP,
    KVP_TIERING_LEAVING, /* DOWN after the master's confirmation */
} kvp_tiering_state_t;

#define KVP_NODE_SSD_DIR_MAX 4096u

typedef struct {
    struct kvp_tier *tier; /* NULL = none */
    kvp_tiering_state_t state;
    bool is_used; /* for this pool, under this uuid */
    _Atomic bool is_over; /* never mounted again; set by other threads */
    uint8_t pool_id[16], uuid[16];
    uint32_t segment_id;
    uint64_t request; /* MOUNT, TIER_REPORT or RECLAIM that is not answered; 0 = none */
    uint64_t again_ns; /* not mounted before this time; for a mounted tier, the time of the next check of its size */
    uint64_t told_bytes; /* that size, */
    uint64_t told_stalled; /* the hanging devices */
    uint8_t told_away[KVP_TIER_AWAY_BYTES]; /* and their slots, as the master knows them */
    uint64_t cursor; /* of the report */
    kvp_wire_tiered_t *told; /* owned: the page that is not answered, of told_n */
    uint32_t told_n;
    bool is_told_last; /* the last page was sent */
    bool is_whole; /* the report has all data that a master without a log needs */
    kvp_list_t orders; /* in the order in which they are answered */
} kvp_node_tiering_t;

/* The keeper: keep.c. */
typedef enum {
    KVP_KEEP_AWAY, /* called at due_ns */
    KVP_KEEP_ASKED, /* Hello was sent; given up at due_ns */
    KVP_KEEP_UP,
} kvp_node_keep_state_t;

typedef struct {
    kvp_keep_mode_t mode;
    kvp_node_keep_state_t state;
    kvp_keeper_link_t link;
    kvp_node_ev_t ev;
    kvp_node_book_t book; /* of the memory that the node has, or had */
    bool is_unsaved; /* the book is outdated */
    uint32_t pid;
    uint64_t due_ns, again_ns;
    uint64_t processes; /* the last number given */
    uint64_t adopted_objects;
    uint64_t held_bytes; /* bytes that the keeper had at the start, adopted or freed */
    kvp_log_limit_t noise;
} kvp_node_keep_t;

/* A round of quiesce; number 0 = unused. */
typedef struct {
    kvp_gather_t gather;
    uint64_t number;
} kvp_node_round_t;

struct kvp_node {
    /* Settings; constant. */
    char name[KVP_NAME_MAX + 1];
    char host_id[KVP_HOST_ID_MAX + 1];
    kvp_hostport_t listen; /* what was bound */
    char unix_path[108]; /* empty = none */
    const kvp_transport_ops_t *ops[KVP_NODE_TPS_MAX];
    size_t ops_n;
    uint32_t needed; /* a bit for each transport that the user named: it must not be left out */
    uint64_t size_bytes;
    uint64_t chunk_bytes;
    uint32_t lanes;
    uint32_t max_attachments;
    uint64_t epoch;

    /* Control thread. */
    kvp_epoll_t epoll; /* the tag is a kvp_node_ev_t */
    kvp_node_core_t *core;
    kvp_node_mem_t *mem; /* NULL before the first Hello */
    bool is_fresh; /* nothing was ever granted in mem */
    kvp_node_tps_t tps;
    kvp_node_serve_t serve;
    kvp_node_link_t link;
    kvp_node_tiering_t tiering;
    kvp_node_keep_t keep;
    kvp_node_round_t rounds[KVP_NODE_ROUNDS_MAX];
    kvp_gather_t unwaited;
    kvp_gather_t revoke; /* the transports end connections of older terms */
    bool is_revoking;
    kvp_list_t deferred;
    uint64_t turn_ns; /* start of the current turn's handling of arrived bytes */

    kvp_node_dial_t dial;
    kvp_node_populate_t populate;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    kvp_node_info_t info; /* guarded by lock; the control thread writes it once a turn */
    kvp_err_t last_err; /* guarded by lock: why it is not mounted */
    bool is_stopping; /* guarded by lock */
    uint64_t stop_by_ns; /* guarded by lock */
};

/* loop.c. kvp_node_loop is the control thread (its argument is the node); it ends when the node is
 * stopped. kvp_node_watch requests events of ev->fd (0 = none, but errors are still reported);
 * kvp_node_unwatch removes it, before the descriptor is closed. kvp_node_free_later frees mem at
 * the end of the turn, by kvp_node_free_deferred. */
void *kvp_node_loop(void *arg);
kvp_err_t kvp_node_watch(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events) KVP_MUST_USE;
void kvp_node_unwatch(kvp_node_t *node, kvp_node_ev_t *ev);
void kvp_node_free_later(kvp_node_t *node, kvp_node_deferred_t *deferred, void *mem);
void kvp_node_free_deferred(kvp_node_t *node);

/* kvp_node_is_turn_over: arrived bytes had their share of this turn, and the rest has to wait for
 * the next turn, after heartbeats and orders. */
static inline bool
kvp_node_is_turn_over(const kvp_node_t *node)
{
    return kvp_now_ns() - node->turn_ns > KVP_NODE_TURN_NS;
}

/* kvp_node_settle does what the core asks for by now: writers to cut, rounds of quiesce,
 * connections to close, processes to forget. */
void kvp_node_settle(kvp_node_t *node);
/* kvp_node_revoke informs the transports after the core's term rose; is_revoking until they have
 * obeyed. */
void kvp_node_revoke(kvp_node_t *node);
/* kvp_node_make_memory serves new memory for the pool of the Hello, after dropping the old memory:
 * SYS, NOMEM, logged. kvp_node_use_memory serves existing memory, with the core at its beginning,
 * and takes it: the same errors. kvp_node_drop_memory ends all access to the memory from outside,
 * then hands it over to be freed. */
kvp_err_t kvp_node_make_memory(kvp_node_t *node, const kvp_hello_reply_t *hello) KVP_MUST_USE;
kvp_err_t kvp_node_use_memory(kvp_node_t *node, kvp_node_mem_t *mem) KVP_MUST_USE;
void kvp_node_drop_memory(kvp_node_t *node);
/* kvp_node_fence_anew gives new transports the fences of the old ones. No wait is needed: they have
 * no connections to end. */
void kvp_node_fence_anew(kvp_node_t *node);
/* kvp_node_failed records why the node is not mounted, for waiting threads. */
void kvp_node_failed(kvp_node_t *node, kvp_err_t err);

/* A control connection of a client. */
typedef struct {
    kvp_node_ev_t ev;
    kvp_framed_t io;
    kvp_node_att_t att;
    kvp_list_t link;
    kvp_node_deferred_t deferred;
    kvp_node_listener_t *listener; /* the listener that accepted it */
    struct kvp_node_process *proc; /* the attached process; NULL = none, or of another host */
    uint64_t since_ns;
    bool has_hello;
    bool is_writer; /* the client got memory that it can store to without our control */
    bool has_rest; /* its turn was over before its requests were */
    bool is_leaving; /* refused: no more bytes are read, and it closes after the peer has read the reason */
} kvp_node_conn_t;

/* attach.c: a client's requests. An error is a breach of the protocol, with *why_out for the log:
 * the connection has to be closed. */
kvp_err_t kvp_node_on_frame(kvp_node_t *node, kvp_node_conn_t *conn, const kvp_frame_t *frame, const char **why_out)
    KVP_MUST_USE;

/* serve.c */
kvp_err_t kvp_node_serve_open(kvp_node_t *node, const kvp_hostport_t *at) KVP_MUST_USE;
void kvp_node_serve_close(kvp_node_t *node);
void kvp_node_serve_close_att(kvp_node_t *node, kvp_node_att_t *att);
void kvp_node_serve_tick(kvp_node_t *node, uint64_t now_ns);
uint64_t kvp_node_serve_due(const kvp_node_t *node);

/* attach.c: a process that attached over a Unix socket, held by its pidfd. */
typedef struct kvp_node_process {
    kvp_node_ev_t ev; /* the pidfd */
    kvp_node_proc_t core;
    kvp_list_t link;
    kvp_node_deferred_t deferred;
    int pid;
    uint64_t number; /* its number for the keeper, never reused */
} kvp_node_process_t;

/* kvp_node_proc_get finds the process or enters it; takes pidfd in every case. NOMEM, SYS. */
kvp_err_t kvp_node_proc_get(kvp_node_t *node, int pid, int pidfd, kvp_node_process_t **proc_out) KVP_MUST_USE;

/* kvp_node_proc_drop forgets a process of which the core remembers nothing. */
void kvp_node_proc_drop(kvp_node_t *node, kvp_node_process_t *proc);

/* report.c: the report to a master that asked. begin starts it, and each call of next continues it
 * until the link is UP; on_answer handles the answer to a page: PROTO, or the master's refusal. */
kvp_err_t kvp_node_report_begin(kvp_node_t *node, uint64_t since) KVP_MUST_USE;
kvp_err_t kvp_node_report_next(kvp_node_t *node) KVP_MUST_USE;
kvp_err_t kvp_node_report_on_answer(kvp_node_t *node, const kvp_frame_t *frame) KVP_MUST_USE;

/* tiering.c. kvp_node_tiering_open: INVALID, SYS, NOMEM, logged. kvp_node_tiering_poll does the due
 * work: it reads finished operations, mounts, proposes pages. kvp_node_tiering_on_order: false =
 * malformed; *err_out is the reason to refuse it. kvp_node_tiering_on_mounted: false = the answer
 * is about memory. kvp_node_tiering_leave_memory returns when no read of the memory is under way. */
kvp_err_t kvp_node_tiering_open(kvp_node_t *node, const kvp_node_conf_t *from) KVP_MUST_USE;
void kvp_node_tiering_close(kvp_node_t *node);
void kvp_node_tiering_poll(kvp_node_t *node, uint64_t now_ns);
bool kvp_node_tiering_on_order(kvp_node_t *node, const kvp_frame_t *frame, kvp_err_t *err_out);
bool kvp_node_tiering_on_mounted(kvp_node_t *node, const kvp_frame_t *frame, const struct Kvp__Pb__MountReply *msg);
kvp_err_t kvp_node_tiering_on_answer(kvp_node_t *node, const kvp_frame_t *frame) KVP_MUST_USE;
/* whether the answer is about the tier */
bool kvp_node_tiering_on_unmounted(kvp_node_t *node, const kvp_frame_t *frame);
void kvp_node_tiering_link_lost(kvp_node_t *node);
void kvp_node_tiering_leave_memory(kvp_node_t *node);

/* fit.c. kvp_node_check_fit checks that the node's memory fits into the machine and its control
 * groups: NOMEM, logged with the largest size that fits. held_bytes of it exist already. */
kvp_err_t kvp_node_check_fit(const kvp_node_t *node, uint64_t held_bytes) KVP_MUST_USE;

/* keep.c. kvp_node_keep_open finds or starts the keeper, and adopts its memory: SYS, logged, if
 * another node of this name runs; without a keeper the node continues alone.
 * kvp_node_keep_hand_over gives it the memory. kvp_node_keep_save saves the state for the next
 * process, before other processes learn of it. kvp_node_keep_writer adds a process that gets memory
 * to write to, before the process has it. kvp_node_keep_writer_over: the incarnation of the process
 * has no such memory any more, with 0 the whole process. kvp_node_keep_drop: the memory is freed.
 * kvp_node_keep_is_staying: the memory outlives a stop of this node. kvp_node_keep_close releases
 * the keeper; kvp_node_drop_memory then leaves the pages in place if they stay. */
kvp_err_t kvp_node_keep_open(kvp_node_t *node, const kvp_node_conf_t *conf) KVP_MUST_USE;
void kvp_node_keep_close(kvp_node_t *node);
void kvp_node_keep_hand_over(kvp_node_t *node);
void kvp_node_keep_save(kvp_node_t *node);
void kvp_node_keep_writer(kvp_node_t *node, kvp_node_process_t *proc, uint64_t incarnation);
void kvp_node_keep_writer_over(kvp_node_t *node, const kvp_node_process_t *proc, uint64_t incarnation);
void kvp_node_keep_drop(kvp_node_t *node);
bool kvp_node_keep_is_staying(const kvp_node_t *node);
void kvp_node_keep_tick(kvp_node_t *node, uint64_t now_ns);
uint64_t kvp_node_keep_due(const kvp_node_t *node);

/* link.c */
/* kvp_node_link_sweep continues a sweep of the memory by one slice, and mounts at the end; true
 * while slices remain. */
bool kvp_node_link_sweep(kvp_node_t *node);
void kvp_node_link_up(kvp_node_t *node); /* mounted, and nothing is left to report */
void kvp_node_link_begin(kvp_node_t *node); /* looks for a master */
void kvp_node_link_on_dial(kvp_node_t *node); /* the dial may have a result */
void kvp_node_link_tick(kvp_node_t *node, uint64_t now_ns);
uint64_t kvp_node_link_due(const kvp_node_t *node);
void kvp_node_link_on_settled(kvp_node_t *node); /* reports freed extents, answers fences */
void kvp_node_link_unmount(kvp_node_t *node, uint64_t now_ns, uint64_t by_ns);
void kvp_node_link_close(kvp_node_t *node);

#endif
