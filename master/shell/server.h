/* SPDX-License-Identifier: Apache-2.0
 * The shell around the master's core: connections in, whole frames to the core, its answers out. One thread runs a
 * libuv loop and owns the core; the shell does not interpret frames. */
#ifndef KVP_MASTER_SHELL_SERVER_H
#define KVP_MASTER_SHELL_SERVER_H

#include "common/parse.h"
#include "common/trust/creds.h"
#include "master/core/api/master.h"
#include "master/events/publisher.h"
#include "master/shell/authn.h"
#include "master/shell/log_writer.h"
#include "master/shell/times.h"

#include <uv.h>

typedef struct kvp_server kvp_server_t;

/* The callbacks for connections that do not belong to the core but to master/ha. The loop's thread calls them. */
typedef struct {
    /* called with the first frame of a connection; true = the connection belongs to these callbacks from now on */
    bool (*on_first)(void *arg, uint64_t conn, const kvp_frame_t *frame);
    /* called with a later frame of such a connection; the frame is borrowed */
    void (*on_frame)(void *arg, uint64_t conn, const kvp_frame_t *frame);
    void (*on_gone)(void *arg, uint64_t conn); /* called when such a connection has ended */
    void (*on_turn)(void *arg); /* called when the loop is about to wait */
    void (*on_fenced)(void *arg); /* called once when the time set by kvp_server_act_until has passed */
    void *arg;
} kvp_server_ops_t;

typedef struct {
    kvp_hostport_t listen;
    uint32_t max_conns; /* limit of open connections; 0 = 65536 */
    uint32_t hello_ms; /* a connection is closed if its first whole frame does not arrive within this time; 0 = 5 s */
    /* time limit for receiving a whole frame; a tenth of it while other connections wait for memory; 0 = 10 s */
    uint32_t partial_ms;
    /* time that a peer gets to read its pending bytes before its connection is closed; 0 = 500 ms */
    uint32_t linger_ms;
    uint64_t input_max; /* limit of the memory for unhandled frames of all connections; 0 = 64 MiB */
    uint64_t output_max; /* limit of the bytes queued for a peer that does not read; 0 = 64 MiB */
    /* Callback that saves a changed term or pool identity durably. After false the server calls it again in 5 s. NULL =
     * the identity is not saved. Called in a thread of libuv's pool, one call at a time. */
    bool (*save_ident)(void *arg, const kvp_master_ident_t *ident);
    void *save_ident_arg;
    /* limit of the time of a request, above which it is counted and logged as slow; 0 = no limit */
    uint64_t slow_call_ns;
    kvp_log_writer_t *log; /* opened writer of the log; borrowed until destroy; NULL = no log */
    kvp_authn_t *authn; /* borrowed until destroy; NULL = peers need no identity */
    const kvp_creds_t *tls; /* files for TLS, which every TCP connection then needs; borrowed; NULL = no TLS */
    const kvp_server_ops_t *ops; /* borrowed; NULL = all connections belong to the core */
} kvp_server_conf_t;

/* Statistics of the shell. X(name, help), marked as in KVP_MASTER_STATS. */
#define KVP_SERVER_STATS(X)                                                                                            \
    X(connections, "open connections (gauge)")                                                                         \
    X(accepted, "connections accepted")                                                                                \
    X(refused, "connections refused for their number or for want of memory")                                           \
    X(accept_pauses, "pauses of accepting for want of descriptors")                                                    \
    X(received_bytes, "bytes received")                                                                                \
    X(sent_bytes, "bytes sent or queued")                                                                              \
    X(read_pauses, "times that a connection was not read for its unread answers")                                      \
    X(turn_waits, "times that a connection had to wait for its next turn")                                             \
    X(room_waits, "times that a connection was not read because too much of others' frames is kept")                   \
    X(input_bytes, "memory for frames that are not whole, or not handled yet (gauge)")                                 \
    X(framing_errors, "connections closed because framing was lost")                                                   \
    X(timeouts, "connections closed for want of a Hello or of the rest of a frame")                                    \
    X(revoked, "connections closed because their identity had ended or was deleted")                                   \
    X(overflows, "connections closed because the peer did not read")                                                   \
    X(slow_calls, "requests that took longer than --slow-call, until their answer was sent")                           \
    X(pages_ready, "pieces of memory for the core that had been touched before they were wanted")                      \
    X(pages_missed, "pieces of memory for the core that had not, for want of time")                                    \
    X(pages_kept_bytes, "memory that has been touched for the core, and is not in use yet (gauge)")                    \
    X(turn_longest_ns, "longest turn of the loop without waiting (gauge)")                                             \
    X(step_frame_longest_ns, "longest step of the core for a frame (gauge)")                                           \
    X(step_tick_longest_ns, "longest step of the core for its own work (gauge)")                                       \
    X(step_close_longest_ns, "longest step of the core for a connection's end (gauge)")                                \
    X(step_run_longest_ns, "longest that the loop's thread ran in a step of the core (gauge)")

/* Reasons for refusing a peer: it has no known identity, its identity has expired, its role, tenant or name does not
 * permit the request, or its TLS handshake failed. */
#define KVP_SERVER_DENIALS(X) X(identity) X(expired) X(role) X(tls)
typedef enum {
#define KVP_SERVER_DENIAL(name) KVP_DENIED_##name,
    KVP_SERVER_DENIALS(KVP_SERVER_DENIAL)
#undef KVP_SERVER_DENIAL
        KVP_DENIALS_N
} kvp_server_denial_t;

typedef struct {
#define KVP_SERVER_STAT_FIELD(name, help) uint64_t name;
    KVP_SERVER_STATS(KVP_SERVER_STAT_FIELD)
#undef KVP_SERVER_STAT_FIELD
    uint64_t denied[KVP_DENIALS_N];
} kvp_server_stats_t;

/* kvp_server_create binds the TCP address and, if it can, the Unix socket; nothing is accepted yet. Errors are those
 * of kvp_listener_open_tcp, and NOMEM. kvp_server_destroy must be called after uv_run has returned, or for a server
 * that was never started. */
kvp_err_t kvp_server_create(const kvp_server_conf_t *conf, kvp_server_t **server_out) KVP_MUST_USE;
void kvp_server_destroy(kvp_server_t *server);

/* kvp_server_bound returns the TCP address on which the server listens. kvp_server_unix_path returns the path of the
 * Unix socket; "" = none. Both are borrowed for the server's life. */
const kvp_hostport_t *kvp_server_bound(const kvp_server_t *server);
const char *kvp_server_unix_path(const kvp_server_t *server);

/* kvp_server_start serves the master on uv. Both are borrowed until destroy, and so is times, which the server keeps
 * up to date. SYS. After a failure, as after a success: stop, uv_run, destroy. */
kvp_err_t kvp_server_start(kvp_server_t *server, uv_loop_t *uv, kvp_master_t *master, kvp_times_t *times) KVP_MUST_USE;

/* Functions for an election. kvp_server_swap replaces the core; the old core belongs to the caller again, and all
 * connections of the core are closed. kvp_server_act_until: from this time on (kvp_boot_ns) the core gets no input
 * and sends no output, even if this process was stopped meanwhile; UINT64_MAX, the initial value, is no limit.
 * kvp_server_drop closes all connections of the core. */
void kvp_server_swap(kvp_server_t *server, kvp_master_t *master);
void kvp_server_act_until(kvp_server_t *server, uint64_t until_ns);
void kvp_server_drop(kvp_server_t *server);
kvp_master_t *kvp_server_core(const kvp_server_t *server);

/* Functions for connections that do not belong to the core. kvp_server_send queues *bytes, and leaves it empty.
 * kvp_server_unsent returns the number of queued bytes. kvp_server_end closes the connection after they are sent.
 * kvp_server_reply answers a request with a message. kvp_server_give gives the connection to the core, as a new one.
 * kvp_server_flush sends the core's outputs after it got input from elsewhere. Unknown connections are ignored. */
void kvp_server_send(kvp_server_t *server, uint64_t conn, kvp_buf_t *bytes);
void kvp_server_reply(kvp_server_t *server, uint64_t conn, uint8_t opcode, uint64_t request_id, const void *msg);
size_t kvp_server_unsent(kvp_server_t *server, uint64_t conn);
void kvp_server_end(kvp_server_t *server, uint64_t conn);
void kvp_server_give(kvp_server_t *server, uint64_t conn);
void kvp_server_flush(kvp_server_t *server);

/* kvp_server_publish sets the publisher of events (borrowed; NULL, the initial value: none). The server calls its
 * kvp_publisher_turn at the end of each callback, after the log's records. */
void kvp_server_publish(kvp_server_t *server, kvp_eventpub_t *events);

/* kvp_server_stop stops accepting and unlinks the Unix socket at once, sends queued output (for linger_ms at most)
 * and closes everything, without input to the core. Afterwards no handle of the server keeps uv_run running. In the
 * loop's thread; may be repeated. */
void kvp_server_stop(kvp_server_t *server);

/* kvp_server_stats and kvp_server_log_stats copy the statistics, in the loop's thread. kvp_server_log_stats returns
 * false if no log is kept in files. why_out: why the log cannot be written, "" = it can be. */
void kvp_server_stats(const kvp_server_t *server, kvp_server_stats_t *stats_out);
bool kvp_server_log_stats(const kvp_server_t *server, kvp_log_stats_t *stats_out, char why_out[KVP_LOG_WHY_BYTES]);

#endif
