/* SPDX-License-Identifier: Apache-2.0
 * The internals of the server: conns.c has the connections, server.c the calls of the core and the loop. */
#ifndef KVP_MASTER_SHELL_SERVER_PRIV_H
#define KVP_MASTER_SHELL_SERVER_PRIV_H

#include "common/clock.h"
#include "common/hostid.h"
#include "common/list.h"
#include "common/log.h"
#include "common/pages.h"
#include "common/trust/handshakes.h"
#include "master/shell/inbuf.h"
#include "master/shell/listener.h"
#include "master/shell/server.h"
#include "master/shell/slow.h"
#include "proto/pb.h"

/* number of bits of a connection's number that hold its slot; the other bits count up, so that no number is reused */
#define KVP_SERVER_SLOT_BITS 20
#define KVP_SERVER_SHARED_BYTES (256u << 10)
#define KVP_SERVER_SEALED_BYTES (64u << 10)

typedef enum {
    KVP_CONN_READS,
    KVP_CONN_WAITS_READER, /* the connection is not read until the peer has read its answers, and the core may answer */
    KVP_CONN_WAITS_TURN, /* its share of this turn, or the turn, is used up; in server->waits_turn */
    KVP_CONN_WAITS_ROOM, /* waits for memory, because its frame would exceed conf.input_max; in server->waits_room */
} kvp_server_conn_state_t;

/* The owner of a connection: the core, or conf.ops (master/ha). */
typedef enum {
    KVP_CONN_OF_STRANGER, /* the connection's first whole frame has not arrived yet */
    KVP_CONN_OF_CORE, /* the core knows it */
    KVP_CONN_OF_OPS,
    KVP_CONN_OF_NOBODY, /* the owner has ended the connection, or was informed of its end */
} kvp_server_conn_owner_t;

typedef enum {
    KVP_CONN_OPEN,
    /* frames are ignored; the connection is closed when everything is sent and read, or at its deadline */
    KVP_CONN_ENDS,
    KVP_CONN_ENDS_SOON, /* as KVP_CONN_ENDS, and the deadline is set */
    KVP_CONN_SHUT, /* as KVP_CONN_ENDS_SOON, and our sending direction is shut down */
} kvp_server_conn_end_t;

typedef struct {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv;
    kvp_server_t *server;
    uint64_t id; /* number of the connection for the core: a count << KVP_SERVER_SLOT_BITS | slot */
    uint32_t slot;
    kvp_server_conn_owner_t owner;
    kvp_server_conn_end_t end;
    bool is_reading;
    kvp_server_conn_state_t state;
    kvp_list_t wait_link; /* link in server->waits_turn or waits_room */
    uint64_t turn; /* number of the loop's turn in which share_ns was last renewed */
    /* time of the core left to the connection in this turn; negative = a long frame used time of the next share */
    int64_t share_ns;
    size_t input_bytes; /* memory of `in` that is counted in the server's statistics */
    bool is_overflown; /* flag: too much output is queued, so the connection must be closed at once */
    bool is_writing; /* flag: `sending` belongs to libuv until on_written */

    kvp_tls_t *tls; /* encrypts the connection; NULL = it is not encrypted */
    kvp_identity_t *who; /* identity of the peer; NULL = not found yet, or this master requires none */
    kvp_inbuf_t in;
    kvp_buf_t sending;
    kvp_buf_t waiting; /* answers that are sent after `sending`; with TLS they are encrypted when `sending` is empty */
    uv_write_t write;
    uv_shutdown_t shutdown;
    kvp_list_t unsent_link; /* link in server->unsent, while output may have to be written */
    uint64_t asked_ns; /* when the request handled in this callback became readable; 0 = none */
    uint64_t received_ns; /* when the last received bytes became readable */
    kvp_slow_answers_t slow; /* answers in `sending` and `waiting` */

    uint64_t deadline_ns;
    kvp_list_t deadline_link; /* link in server->before_hello, cut or ending */
} kvp_server_conn_t;

typedef struct {
    kvp_server_conn_t *conn; /* NULL = the slot is free */
    uint32_t next_free;
} kvp_server_slot_t;

typedef enum {
    KVP_FENCE_OPEN, /* the core may act */
    KVP_FENCE_SHUT, /* act_until_ns has passed, so the core must not act */
    KVP_FENCE_TOLD, /* as KVP_FENCE_SHUT, and conf.ops->on_fenced was called */
} kvp_server_fence_t;

/* A refusal that is not in the audit yet: a process of the master's host may connect to the Unix socket next, and be
 * accepted there. The audit gets the refusal if no peer of this name does so soon. */
#define KVP_SERVER_PARTED_MAX 64u
typedef struct {
    uint64_t due_ns;
    char name[KVP_AUDIT_OBJECT_MAX], from[KVP_PEER_TEXT_MAX], why[KVP_IDENTITY_WHY_MAX];
} kvp_server_parted_t;

struct kvp_server {
    kvp_server_conf_t conf;
    kvp_hostport_t bound;
    kvp_listener_t tcp;
    kvp_listener_t local; /* the Unix socket */

    uv_loop_t *uv; /* borrowed, as is master; NULL = not started */
    kvp_eventpub_t *events; /* borrowed; NULL = no publisher */
    kvp_master_t *master;
    kvp_times_t *times;
    bool is_stopping;
    uint64_t act_until_ns; /* from this time on the core must not act */
    kvp_server_fence_t fence; /* state of the fence when it was last checked */
    uv_timer_t timer;
    uv_idle_t work; /* active while the core, the log or a connection has work, so that the loop does not wait */
    uv_prepare_t turn_end;
    uint64_t timer_at_ns;

    kvp_server_slot_t *slots;
    uint32_t slot_cap;
    uint32_t slot_free; /* head of the list of free slots; slot_cap = none */
    uint64_t conn_count;
    kvp_server_parted_t parted[KVP_SERVER_PARTED_MAX]; /* the oldest first */
    uint32_t parted_n;
    uint32_t check_slot; /* slot at which the check of the identities continues */
    kvp_list_t before_hello;
    kvp_list_t cut;
    kvp_list_t ending;
    kvp_list_t unsent;
    uint64_t turn; /* number of the loop's turn */
    kvp_list_t waits_turn, waits_room; /* connections that wait for a turn, or for memory; first come, first served */
    bool is_taking_turns; /* kvp_server_take_turns is running */
    kvp_server_conn_t *over_budget; /* the connection whose frame may exceed conf.input_max; NULL = none */

    kvp_handshakes_t *handshakes; /* NULL = no TLS */
    uv_async_t handshakes_wake; /* data NULL = not used */
    uint8_t *sealed; /* buffer for received encrypted bytes, used during one callback; NULL = no TLS */
    uint8_t *shared; /* buffer for received bytes, used during one callback */
    kvp_master_ready_t ready; /* the core's outputs; `frames` is also a spare buffer for connections */
    kvp_master_ident_t next_ident; /* the core's latest identity, which is saved next; term 0 = none */
    /* the identity that is being saved or was saved; belongs to the saving thread while is_saving */
    kvp_master_ident_t ident;
    uint64_t save_due_ns; /* time of the next attempt to save after a failure; UINT64_MAX = no failure */
    uv_work_t save;
    bool is_saving;
    bool is_saved; /* flag: the last save succeeded */
    kvp_log_limit_t log_limit;
    kvp_slow_t slow;
    kvp_server_stats_t stats;
};

/* Functions of server.c. */
uint64_t kvp_server_begin(kvp_server_t *server);
bool kvp_server_is_fenced(kvp_server_t *server, uint64_t now);
void kvp_server_note_times(kvp_server_t *server);
uint64_t kvp_server_end_step(kvp_server_t *server, kvp_step_kind_t kind, uint64_t began);
void kvp_server_arm_timer(kvp_server_t *server, uint64_t at_ns, uint64_t now);
void kvp_server_log_complaint(kvp_server_t *server, kvp_server_conn_t *conn, const char *reason);
bool kvp_server_is_mute(const kvp_server_t *server);
void kvp_server_hand_on(kvp_server_t *server, kvp_server_conn_t *conn);
void kvp_server_flush_all(kvp_server_t *server);

/* Functions of access.c. kvp_server_authenticate is called with each frame of a connection that has no identity yet;
 * false: the frame was refused, and the connection ends. */
bool kvp_server_authenticate(kvp_server_conn_t *conn, const kvp_frame_t *frame);
void kvp_server_note_audit(kvp_server_t *server, const kvp_master_audit_t *audit);
void kvp_server_check_identities(kvp_server_t *server);

/* Functions of conns.c. */
kvp_server_conn_t *kvp_server_find_conn(kvp_server_t *server, uint64_t id);
size_t kvp_server_unsent_bytes(const kvp_server_conn_t *conn);
void kvp_server_set_deadline(kvp_server_conn_t *conn, kvp_list_t *queue, uint64_t at_ns);
void kvp_server_mark_unsent(kvp_server_conn_t *conn);
void kvp_server_queue_output(kvp_server_conn_t *conn, kvp_buf_t *bytes);
void kvp_server_end_conn(kvp_server_conn_t *conn);
void kvp_server_close_conn(kvp_server_conn_t *conn);
void kvp_server_flush_one(kvp_server_conn_t *conn);
void kvp_server_let_in(kvp_server_t *server);
bool kvp_server_has_time(kvp_server_t *server);
void kvp_server_take_turns(kvp_server_t *server);
/* kvp_server_open_conn makes a connection of an accepted socket; takes fd and tls (NULL = not encrypted). has_failed:
 * the handshake failed, and the connection ends when the peer has read the reason. */
void kvp_server_open_conn(kvp_server_t *server, int fd, bool is_unix, kvp_tls_t *tls, bool has_failed);
void kvp_server_expire_queue(kvp_server_t *server, kvp_list_t *queue, uint64_t now, const char *reason);

#endif
