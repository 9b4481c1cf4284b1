/* SPDX-License-Identifier: Apache-2.0
 * The node's internal types and functions, shared by lifecycle.c, figures.c (what other threads see) and the files of
 * the control thread, from top to bottom: loop.c, link.c (the master), report.c (the report of the memory), adopt.c
 * (memory of the previous process), memory.c (the segment's memory), settle.c (what the core asks for), serve.c
 * (listeners, connections), attach.c (requests of clients), procs.c (their processes), tiering.c (the SSD tier),
 * copying.c (copies of other nodes' objects), extent.c (the extents that both write), leave.c (the drain before the
 * end), keep.c (the keeper), watch.c (the epoll set). */
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
#include "common/trust/handshakes.h"
#include "proto/explained.h"
#include "proto/wire.h"

struct Kvp__Pb__MountReply;

#define KVP_NODE_TURN_NS (20 * KVP_NS_PER_MS)

/* A file descriptor in the control thread's epoll set, as a part of a larger object. fn may end this object: see
 * kvp_node_free_later. */
typedef struct kvp_node_ev {
    int fd; /* the watched descriptor; -1 = none */
    uint32_t events; /* the epoll events that are requested for the descriptor; 0 = the descriptor is not in the set */
    /* the function that handles the events; NULL = the object waits to be freed */
    void (*fn)(kvp_node_t *node, struct kvp_node_ev *ev, uint32_t events);
} kvp_node_ev_t;

/* An object that is freed at the end of the current turn of the loop, because later events of this turn may still
 * point to it. */
typedef struct {
    kvp_list_t link;
    void *mem;
} kvp_node_deferred_t;

typedef struct {
    kvp_node_ev_t ev;
    uint64_t paused_until_ns; /* the time until which accepting is paused; 0 = not paused */
    bool is_unix;
    /* limits log lines that clients can cause, for each listener: remote strangers do not suppress lines about local
     * clients */
    kvp_log_limit_t noise;
} kvp_node_listener_t;

typedef struct {
    kvp_node_listener_t tcp;
    kvp_node_listener_t local;
    kvp_list_t fresh; /* connections that have not sent Hello or are being refused, oldest first */
    kvp_list_t settled;
    uint32_t conns_n;
    kvp_handshakes_t *handshakes; /* NULL = the node has no TLS */
    kvp_list_t procs; /* the processes of this host that are watched by their pidfd */
    uint64_t requests;
    uint64_t protocol_errors;
    uint64_t refused;
} kvp_node_serve_t;

typedef enum {
    KVP_LINK_DOWN, /* no connection: the dial is looking for a master */
    KVP_LINK_SWEEPING, /* the memory is being swept for the master's new term; the mount follows */
    KVP_LINK_MOUNTING,
    KVP_LINK_REPORTING, /* the master accepted the mount, and gets the report that it asked for; UP follows */
    KVP_LINK_UP,
    KVP_LINK_UNMOUNTING,
} kvp_node_link_state_t;

typedef struct {
    kvp_node_link_state_t state;
    kvp_node_ev_t ev;
    kvp_framed_t conn;
    uint64_t number; /* the number of the connection to the master; answers to requests of older ones are dropped */
    uint64_t next_request;
    uint64_t incarnation;
    uint32_t segment_id;
    uint64_t heartbeat_ns;
    uint64_t ttl_ns;
    uint64_t heard_ns;
    uint64_t heartbeat_at_ns;
    char local_host[KVP_HOST_MAX];
    kvp_list_t fences; /* FENCE orders that the transports have not finished */
    uint64_t report_request; /* the request id of the report's page that is not answered yet; 0 = none */
    bool was_told_fresh; /* the last Mount stated that the memory is fresh, and has no answer yet */
    bool is_report_whole;
    bool is_report_last; /* the unanswered page is the last page */
    bool is_done; /* the unmount is over or not needed, so the control thread ends */
    kvp_log_limit_t noise;
    uint64_t mounts;
} kvp_node_link_t;

/* The state of the SSD tier's connection with the master, used by tiering.c. */
typedef enum {
    KVP_TIERING_DOWN, /* the tier is not mounted */
    KVP_TIERING_MOUNTING,
    KVP_TIERING_REPORTING,
    KVP_TIERING_UP,
    KVP_TIERING_LEAVING, /* the tier is being unmounted; DOWN after the master's confirmation */
} kvp_tiering_state_t;

#define KVP_NODE_SSD_DIR_MAX 4096u

typedef struct {
    struct kvp_tier *tier; /* NULL = the node has no SSD tier */
    kvp_tiering_state_t state;
    bool is_used; /* kvp_tier_use was called for pool_id, and returned uuid */
    _Atomic bool is_over; /* the tier must not be mounted again; set by other threads */
    uint8_t pool_id[16], uuid[16];
    uint32_t segment_id;
    uint64_t request; /* the request id of a MOUNT, UNMOUNT, TIER_REPORT or RECLAIM that is not answered; 0 = none */
    /* before this time the tier is not mounted; for a mounted tier, the time of the next check of its size */
    uint64_t again_ns;
    uint64_t told_bytes; /* the size that was last sent to the master */
    uint64_t told_stalled; /* the number of hanging devices that was last sent to the master */
    uint8_t told_away[KVP_TIER_AWAY_BYTES]; /* the slots of unavailable devices that were last sent to the master */
    uint64_t cursor; /* the report's position in the list of the tier's records */
    kvp_wire_tiered_t *told; /* owned: the told_n records of the page that is not answered */
    uint32_t told_n;
    bool is_told_last; /* the report's last page was sent */
    bool is_whole; /* the tier's report has all metadata of each object, because the master rebuilds and no log names
                      the tier's objects */
    kvp_log_limit_t noise; /* for the lines on slow loads */
    kvp_list_t orders; /* orders that are not answered yet, in the order of arrival */
} kvp_node_tiering_t;

/* The state of the orders to copy objects from other nodes, used by copying.c. */
typedef struct {
    const kvp_fetch_ops_t *ops; /* NULL = the node takes no copies */
    char *masters, *cluster; /* owned: as in kvp_node_conf_t */
    pthread_t thread; /* the thread that reads, if has_thread */
    bool has_thread;
    kvp_list_t orders; /* orders that are not answered yet */
    uint32_t orders_n;
    kvp_list_t storing; /* jobs (records of orders) whose objects the control thread stores */
    kvp_log_limit_t noise; /* for the lines on failed copies */
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed; /* signals wanted, buffer_bytes and is_stopping to the thread */
    kvp_list_t wanted; /* jobs whose objects are to be read */
    kvp_list_t read; /* jobs whose objects were read, or could not be */
    uint64_t buffer_bytes; /* the number of bytes of objects that are being read, or were read and are not stored yet */
    bool is_stopping;
    kvp_fetcher_t *fetcher; /* set by the thread; NULL = no session */
} kvp_node_copying_t;

/* The state of the drain before the node's end, used by leave.c. */
typedef struct {
    _Atomic bool is_wanted; /* set by other threads */
    bool has_begun; /* the master of this connection has begun to drain the node */
    bool is_drained; /* no object is left in the memory */
    uint64_t request; /* the request id of the unanswered DRAIN; 0 = none */
    uint64_t next_ns; /* the time of the next DRAIN */
    kvp_err_t err; /* of the last answer */
    uint64_t left_objects, left_bytes; /* in the memory, by the last answer */
    char why[KVP_DRAIN_WHY_MAX]; /* the reason in the last answer why the objects cannot move; "" = they move */
} kvp_node_leave_t;

/* The state of the connection with the keeper, used by keep.c. */
typedef enum {
    KVP_KEEP_AWAY, /* no connection; the keeper is called at due_ns */
    KVP_KEEP_ASKED, /* HELLO was sent to the keeper; the connection is given up at due_ns */
    KVP_KEEP_UP,
} kvp_node_keep_state_t;

typedef struct {
    kvp_keep_mode_t mode;
    kvp_node_keep_state_t state;
    kvp_keeper_link_t link;
    kvp_node_ev_t ev;
    kvp_node_book_t book; /* the book (a file with the core's state) of the memory that the node has or had */
    bool is_unsaved; /* flag: the core's state has changed since it was saved in the book */
    uint32_t pid;
    uint64_t due_ns, again_ns;
    uint64_t processes; /* the number that was given to the last new process */
    uint64_t adopted_objects;
    uint64_t held_bytes; /* the bytes that the keeper held at the node's start, which were adopted or freed */
    kvp_log_limit_t noise;
} kvp_node_keep_t;

/* A quiesce of all transports; number 0 = unused. */
typedef struct {
    kvp_gather_t gather;
    uint64_t number;
} kvp_node_round_t;

/* Each part belongs to the file named beside it; other files change it by this file's functions. After the start, other
 * threads than the control thread use only dial, populate, tps (lanes, pin), shared and tiering.is_over. */
struct kvp_node {
    struct { /* lifecycle.c; constant after the start */
        char name[KVP_NAME_MAX + 1];
        char host_id[KVP_HOST_ID_MAX + 1];
        kvp_hostport_t listen; /* the address at which the node listens for clients */
        char unix_path[108]; /* the path of the Unix socket; empty = none */
        const kvp_transport_ops_t *ops[KVP_NODE_TPS_MAX];
        size_t ops_n;
        uint32_t needed; /* a bit for each transport that the user requires: the node does not start without it */
        uint64_t size_bytes;
        uint64_t chunk_bytes;
        uint32_t lanes;
        uint32_t max_attachments;
    } conf;
    struct { /* watch.c */
        kvp_epoll_t epoll; /* the tag of each descriptor is a kvp_node_ev_t */
        kvp_list_t deferred;
        uint64_t turn_ns; /* the time when this turn began to handle arrived bytes */
    } events;
    struct { /* settle.c */
        kvp_node_round_t rounds[KVP_NODE_ROUNDS_MAX];
        kvp_gather_t revoke; /* the transports' fences that end the connections of older terms */
        bool is_revoking;
    } quiesce;
    kvp_node_core_t *core;

    /* memory.c */
    kvp_node_mem_t *mem; /* the segment's memory; NULL before the first Hello of a master */
    uint64_t epoch;
    bool is_fresh; /* no space in mem was ever granted to a client */
    kvp_node_tps_t tps;
    kvp_node_populate_t populate;
    kvp_gather_t unwaited;

    kvp_node_serve_t serve; /* serve.c, and procs.c for its processes */
    kvp_node_link_t link; /* link.c and report.c */
    kvp_node_tiering_t tiering; /* tiering.c */
    kvp_node_copying_t copying; /* copying.c */
    kvp_node_leave_t leave; /* leave.c */
    kvp_node_keep_t keep; /* keep.c and adopt.c */
    kvp_node_dial_t dial;
    pthread_t thread;
    bool has_thread;

    kvp_node_times_t times; /* figures.c */
    struct { /* figures.c; the lock guards the other fields */
        pthread_mutex_t lock;
        pthread_cond_t changed;
        kvp_node_info_t info; /* the node's figures, updated by the control thread once in each turn */
        kvp_err_t last_err; /* the reason why the node is not mounted */
        bool is_stopping; /* the node must stop */
        uint64_t stop_by_ns; /* the deadline of the stop */
    } shared;
};

/* kvp_node_loop (loop.c) is the control thread (its argument is the node); it ends when the node is stopped. */
void *kvp_node_loop(void *arg);

/* Functions of watch.c. kvp_node_watch requests events of ev->fd (0 = only errors). kvp_node_unwatch removes the
 * descriptor from the epoll set; call it before closing the descriptor. kvp_node_free_later frees mem at the end of
 * the turn, by kvp_node_free_deferred. */
kvp_err_t kvp_node_watch(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events) KVP_MUST_USE;
void kvp_node_unwatch(kvp_node_t *node, kvp_node_ev_t *ev);
void kvp_node_free_later(kvp_node_t *node, kvp_node_deferred_t *deferred, void *mem);
void kvp_node_free_deferred(kvp_node_t *node);

/* kvp_node_is_turn_over returns whether arrived bytes have had their share of this turn. The rest then waits for the
 * next turn, after heartbeats and orders. */
static inline bool
kvp_node_is_turn_over(const kvp_node_t *node)
{
    return kvp_now_ns() - node->events.turn_ns > KVP_NODE_TURN_NS;
}

/* Functions of settle.c. kvp_node_settle carries out the core's current requests: it cuts writers, runs rounds of
 * quiesce, closes connections and forgets processes. kvp_node_revoke starts a fence in the transports after the core's
 * term rose; is_revoking is true until all transports have finished the fence. kvp_node_rounds_over ends all rounds
 * and the fence, after the transports have stopped. */
void kvp_node_settle(kvp_node_t *node);
void kvp_node_revoke(kvp_node_t *node);
void kvp_node_rounds_over(kvp_node_t *node);

/* Functions of memory.c. kvp_node_make_memory drops the old memory, then creates and serves new memory for the pool in
 * the Hello reply: SYS, NOMEM, logged. kvp_node_use_memory serves existing memory, takes ownership in every case, and
 * tells the core of it; the same errors. kvp_node_drop_memory ends all outside access to the memory, then gives the
 * memory to the populate thread to be freed. kvp_node_fence_anew sends all fences so far to newly created transports.
 * The caller need not wait: new transports have no connections to end. */
kvp_err_t kvp_node_make_memory(kvp_node_t *node, const kvp_hello_reply_t *hello) KVP_MUST_USE;
kvp_err_t kvp_node_use_memory(kvp_node_t *node, kvp_node_mem_t *mem) KVP_MUST_USE;
void kvp_node_drop_memory(kvp_node_t *node);
void kvp_node_fence_anew(kvp_node_t *node);

/* Functions of figures.c. kvp_node_failed stores the reason why the node is not mounted, for threads in kvp_node_wait.
 * kvp_node_ask_stop requests a stop of the node, from another thread. kvp_node_publish copies the figures for other
 * threads, and returns whether a stop was requested; the node must stop by *stop_by_ns_out. kvp_node_times_init gives
 * the histograms their bounds. */
void kvp_node_failed(kvp_node_t *node, kvp_err_t err);
bool kvp_node_publish(kvp_node_t *node, uint64_t *stop_by_ns_out);
void kvp_node_times_init(kvp_node_times_t *times);
void kvp_node_ask_stop(kvp_node_t *node, uint64_t deadline_ns);

/* A control connection of a client to the node. */
typedef struct {
    kvp_node_ev_t ev;
    kvp_framed_t io;
    kvp_node_att_t att;
    kvp_list_t link;
    kvp_node_deferred_t deferred;
    kvp_node_listener_t *listener; /* the listener that accepted the connection */
    struct kvp_node_process *proc; /* the attached process; NULL = none, or a process of another host */
    uint64_t since_ns;
    bool has_hello;
    bool is_writer; /* the client got memory to which it can store without the node's control */
    bool has_rest; /* received requests that did not fit in the turn wait for the next turn */
    /* the client was refused: its bytes are discarded, and the connection closes after the peer has read the reason */
    bool is_leaving;
} kvp_node_conn_t;

/* kvp_node_on_frame (attach.c) handles a client's request. An error means a breach of the protocol, with *why_out for
 * the log: the caller must close the connection. */
kvp_err_t kvp_node_on_frame(kvp_node_t *node, kvp_node_conn_t *conn, const kvp_frame_t *frame, const char **why_out)
    KVP_MUST_USE;

/* Functions of serve.c. */
kvp_err_t kvp_node_serve_open(kvp_node_t *node, const kvp_hostport_t *at) KVP_MUST_USE;
void kvp_node_serve_close(kvp_node_t *node);
void kvp_node_serve_close_att(kvp_node_t *node, kvp_node_att_t *att);
void kvp_node_serve_on_handshakes(kvp_node_t *node); /* takes the ended handshakes of TLS */
void kvp_node_serve_tick(kvp_node_t *node, uint64_t now_ns);
uint64_t kvp_node_serve_due(const kvp_node_t *node);

/* A process that attached over a Unix socket, held by its pidfd (procs.c). */
typedef struct kvp_node_process {
    kvp_node_ev_t ev; /* the pidfd, readable when the process ends */
    kvp_node_proc_t core;
    kvp_list_t link;
    kvp_node_deferred_t deferred;
    int pid;
    uint64_t number; /* the process's number in messages to the keeper; never reused */
} kvp_node_process_t;

/* kvp_node_proc_get finds the process or adds it; owns pidfd in every case. Errors: NOMEM, SYS. */
kvp_err_t kvp_node_proc_get(kvp_node_t *node, int pid, int pidfd, kvp_node_process_t **proc_out) KVP_MUST_USE;

/* kvp_node_proc_drop forgets a process about which the core keeps no record. */
void kvp_node_proc_drop(kvp_node_t *node, kvp_node_process_t *proc);

/* Functions of report.c: the report to a master that asked for one. kvp_node_report_begin starts the report, and each
 * call of kvp_node_report_next sends the next page until the link is UP. kvp_node_report_on_answer handles the answer
 * to a page: PROTO, or the master's refusal. *is_over_out is true after the last page. */
kvp_err_t kvp_node_report_begin(kvp_node_t *node, uint64_t since) KVP_MUST_USE;
kvp_err_t kvp_node_report_next(kvp_node_t *node) KVP_MUST_USE;
kvp_err_t kvp_node_report_on_answer(kvp_node_t *node, const kvp_frame_t *frame, bool *is_over_out) KVP_MUST_USE;

/* Functions of tiering.c. kvp_node_tiering_open opens the SSD tier: INVALID, SYS, NOMEM, logged.
 * kvp_node_tiering_poll does the due work: it collects finished operations, mounts, proposes pages to reclaim.
 * kvp_node_tiering_on_order handles an order of the master: false = malformed; *err_out is the reason to refuse the
 * order. kvp_node_tiering_on_mounted handles the answer to a Mount of the tier: false = the answer is about the
 * memory. kvp_node_tiering_leave_memory returns once no operation of the tier uses the memory. */
kvp_err_t kvp_node_tiering_open(kvp_node_t *node, const kvp_node_conf_t *from) KVP_MUST_USE;
void kvp_node_tiering_close(kvp_node_t *node);
void kvp_node_tiering_poll(kvp_node_t *node, uint64_t now_ns);
bool kvp_node_tiering_on_order(kvp_node_t *node, const kvp_frame_t *frame, kvp_err_t *err_out);
bool kvp_node_tiering_on_mounted(kvp_node_t *node, const kvp_frame_t *frame, const struct Kvp__Pb__MountReply *msg);
kvp_err_t kvp_node_tiering_on_answer(kvp_node_t *node, const kvp_frame_t *frame) KVP_MUST_USE;
/* kvp_node_tiering_on_unmounted handles the answer to an Unmount; false = not the tier's Unmount */
bool kvp_node_tiering_on_unmounted(kvp_node_t *node, const kvp_frame_t *frame);
void kvp_node_tiering_link_lost(kvp_node_t *node);
void kvp_node_tiering_leave_memory(kvp_node_t *node);

/* Functions of copying.c. kvp_node_copying_open: NOMEM. kvp_node_copying_on_order handles COPY as
 * kvp_node_tiering_on_order handles its orders. kvp_node_copying_poll stores the objects that were read, for a short
 * time; it returns true if objects are left. kvp_node_copying_close ends the thread and frees all orders. */
kvp_err_t kvp_node_copying_open(kvp_node_t *node, const kvp_node_conf_t *from) KVP_MUST_USE;
void kvp_node_copying_close(kvp_node_t *node);
bool kvp_node_copying_on_order(kvp_node_t *node, const kvp_frame_t *frame, kvp_err_t *err_out);
void kvp_node_copying_link_lost(kvp_node_t *node);
bool kvp_node_copying_poll(kvp_node_t *node);

/* Functions of leave.c. kvp_node_leave_tick sends DRAIN when it is due. kvp_node_leave_on_answer handles the answer:
 * PROTO. */
void kvp_node_leave_tick(kvp_node_t *node, uint64_t now_ns);
uint64_t kvp_node_leave_due(const kvp_node_t *node);
kvp_err_t kvp_node_leave_on_answer(kvp_node_t *node, const kvp_frame_t *frame) KVP_MUST_USE;
void kvp_node_leave_link_lost(kvp_node_t *node);
/* kvp_node_leave_end is called when the node stops: it logs the objects that a drain has left, and the reason. */
void kvp_node_leave_end(const kvp_node_t *node);

/* Functions of extent.c: storing an object in an extent that the master named. kvp_node_extent_begin checks the place
 * and sets the descriptor's state word to WRITING. kvp_node_extent_store copies len bytes to offset `from` of the
 * payload. kvp_node_extent_seal stores key and descriptor, then sets the word to SEALED. Both act only while the word
 * is WRITING. False: the place is invalid, or no longer free for this object. */
bool kvp_node_extent_begin(kvp_node_t *node, const kvp_wire_stage_t *at, uint16_t key_len) KVP_MUST_USE;
bool kvp_node_extent_store(kvp_node_t *node, const kvp_wire_stage_t *at, uint64_t from, const void *bytes, uint64_t len)
    KVP_MUST_USE;
bool kvp_node_extent_seal(kvp_node_t *node, const kvp_wire_stage_t *at, const kvp_desc_t *desc, const void *key)
    KVP_MUST_USE;

/* kvp_node_check_fit (fit.c) checks that the node's memory fits into the machine and its control groups: NOMEM, logged
 * with the largest size that fits. held_bytes, which a keeper holds, count as free. */
kvp_err_t kvp_node_check_fit(const kvp_node_t *node, uint64_t held_bytes) KVP_MUST_USE;

/* kvp_node_keep_open (adopt.c) finds or starts the keeper, and takes over its memory. Errors, logged: SYS (another node
 * of this name runs), and those of serving the memory. Without a keeper the node continues alone. */
kvp_err_t kvp_node_keep_open(kvp_node_t *node, const kvp_node_conf_t *conf) KVP_MUST_USE;

/* Functions of keep.c, for adopt.c. kvp_node_keep_set_up starts to use the keeper that sent WELCOME.
 * kvp_node_keep_lose drops the keeper's connection and marks the book as not whole, so that no process adopts
 * its state; the node then calls a keeper again. kvp_node_keep_give_up makes the keeper close its files of
 * the memory (is_alone: and free their pages, which no node uses). kvp_node_keep_leave closes the connection
 * without a message: the keeper keeps the memory. kvp_node_keep_why says why a keeper cannot be used. */
void kvp_node_keep_set_up(kvp_node_t *node, const kvp_keeper_msg_t *welcome);
void kvp_node_keep_lose(kvp_node_t *node, const char *why);
void kvp_node_keep_give_up(kvp_node_t *node, bool is_alone);
void kvp_node_keep_leave(kvp_node_t *node);
const char *kvp_node_keep_why(kvp_err_t err);

/* Functions of keep.c. kvp_node_keep_hand_over gives the node's memory to the keeper. kvp_node_keep_save saves the
 * core's state for the next process; it is called before other processes can learn of the state. kvp_node_keep_writer
 * registers a process with the keeper, before the process gets memory that it can write. kvp_node_keep_writer_over
 * records that an incarnation of the process (0 = all of them) no longer has such memory. kvp_node_keep_drop makes the
 * keeper give up the memory, whose pages the node then frees. kvp_node_keep_is_staying returns whether the memory stays
 * after a stop of this node. kvp_node_keep_close leaves the keeper; kvp_node_drop_memory then does not free pages that
 * stay. */
void kvp_node_keep_close(kvp_node_t *node);
void kvp_node_keep_hand_over(kvp_node_t *node);
void kvp_node_keep_save(kvp_node_t *node);
void kvp_node_keep_writer(kvp_node_t *node, kvp_node_process_t *proc, uint64_t incarnation);
void kvp_node_keep_writer_over(kvp_node_t *node, const kvp_node_process_t *proc, uint64_t incarnation);
void kvp_node_keep_drop(kvp_node_t *node);
bool kvp_node_keep_is_staying(const kvp_node_t *node);
void kvp_node_keep_tick(kvp_node_t *node, uint64_t now_ns);
uint64_t kvp_node_keep_due(const kvp_node_t *node);

/* Functions of link.c: the connection to the master. */
/* kvp_node_link_sweep sweeps the next slice of the memory, and mounts after the last slice. Returns true while slices
 * remain. */
bool kvp_node_link_sweep(kvp_node_t *node);
void kvp_node_link_begin(kvp_node_t *node); /* starts looking for a master */
void kvp_node_link_on_dial(kvp_node_t *node); /* checks whether the dial has found a master */
void kvp_node_link_tick(kvp_node_t *node, uint64_t now_ns);
uint64_t kvp_node_link_due(const kvp_node_t *node);
void kvp_node_link_on_settled(kvp_node_t *node); /* reports freed extents and answers finished fences */
void kvp_node_link_unmount(kvp_node_t *node, uint64_t now_ns, uint64_t by_ns);
void kvp_node_link_close(kvp_node_t *node);

#endif
