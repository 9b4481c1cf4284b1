/* SPDX-License-Identifier: Apache-2.0
 * The shell around the master's core: connections in, whole frames to the core, its answers out.
 * One libuv loop thread runs all of it and owns the core; the shell does not interpret frames. */
#ifndef KVP_MASTER_SHELL_SERVER_H
#define KVP_MASTER_SHELL_SERVER_H

#include "common/parse.h"
#include "master/core/api/master.h"
#include "master/events/publisher.h"
#include "master/shell/log_writer.h"
#include "master/shell/times.h"

#include <uv.h>

typedef struct kvp_server kvp_server_t;

/* The callbacks for connections that do not belong to the core (master/ha). All in the loop's
 * thread. */
typedef struct {
    /* The first frame of a connection: true = it is theirs from now on. */
    bool (*on_first)(void *arg, uint64_t conn, const kvp_frame_t *frame);
    /* a later frame of such a connection; borrowed */
    void (*on_frame)(void *arg, uint64_t conn, const kvp_frame_t *frame);
    void (*on_gone)(void *arg, uint64_t conn); /* theirs has ended */
    void (*on_turn)(void *arg); /* the loop is about to wait */
    void (*on_fenced)(void *arg); /* the time is over in which the core may act */
    void *arg;
} kvp_server_ops_t;

typedef struct {
    kvp_hostport_t listen;
    uint32_t max_conns; /* 0 = 65536 */
    uint32_t hello_ms; /* a connection without its first whole frame is closed after this; 0 = 5 s */
    /* time limit of a frame from its first byte, and a tenth of it while others wait for room; 0 =
     * 10 s */
    uint32_t partial_ms;
    uint32_t linger_ms; /* time for a peer to read its pending bytes before a close; 0 = 500 ms */
    uint64_t input_max; /* bytes kept of all connections' frames that are not whole, or not handled; 0 = 64 MiB */
    uint64_t output_max; /* bytes queued for a peer that does not read; 0 = 64 MiB */
    /* The core's term or the pool's name changed: the call makes it durable. False: it failed, and
     * is repeated after 5 s. NULL = not saved. In a thread of libuv's pool, one call at a time. */
    bool (*save_ident)(void *arg, const kvp_master_ident_t *ident);
    void *save_ident_arg;
    kvp_log_writer_t *log; /* opened; borrowed until destroy; NULL = none */
    const kvp_server_ops_t *ops; /* borrowed; NULL = all connections are the core's */
} kvp_server_conf_t;

/* Figures of the shell. X(name, help), marked as in KVP_MASTER_STATS. */
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
    X(overflows, "connections closed because the peer did not read")                                                   \
    X(pages_ready, "pieces of memory for the core that had been touched before they were wanted")                      \
    X(pages_missed, "pieces of memory for the core that had not, for want of time")                                    \
    X(pages_kept_bytes, "memory that has been touched for the core, and is not in use yet (gauge)")                    \
    X(turn_longest_ns, "longest turn of the loop without waiting, ns (gauge)")                                         \
    X(step_frame_longest_ns, "longest step of the core for a frame, ns (gauge)")                                       \
    X(step_tick_longest_ns, "longest step of the core for its own work, ns (gauge)")                                   \
    X(step_close_longest_ns, "longest step of the core for a connection's end, ns (gauge)")                            \
    X(step_run_longest_ns, "longest that the loop's thread ran in a step of the core, ns (gauge)")

typedef struct {
#define KVP_SERVER_STAT_FIELD(name, help) uint64_t name;
    KVP_SERVER_STATS(KVP_SERVER_STAT_FIELD)
#undef KVP_SERVER_STAT_FIELD
} kvp_server_stats_t;

/* kvp_server_create binds the TCP address and, if it can, the Unix socket; nothing is accepted yet.
 * Errors are kvp_listener_open_tcp's, or NOMEM. destroy is for after uv_run has returned, or for a
 * server that was never started. */
kvp_err_t kvp_server_create(const kvp_server_conf_t *conf, kvp_server_t **server_out) KVP_MUST_USE;
void kvp_server_destroy(kvp_server_t *server);

/* Where it listens; borrowed for the server's life. The path is "" where there is no Unix socket. */
const kvp_hostport_t *kvp_server_bound(const kvp_server_t *server);
const char *kvp_server_unix_path(const kvp_server_t *server);

/* kvp_server_start serves master on uv; both are borrowed until destroy, as is times, which it keeps up to date. SYS.
 * After a failure, as after a success: stop, uv_run, destroy. */
kvp_err_t kvp_server_start(kvp_server_t *server, uv_loop_t *uv, kvp_master_t *master, kvp_times_t *times) KVP_MUST_USE;

/* With an election. kvp_server_swap replaces the core; the old one is the caller's again, and all
 * connections of the core are closed. kvp_server_act_until: from this time on (kvp_boot_ns) the
 * core takes no input and sends no output, even if this process was stopped in between; UINT64_MAX,
 * the initial value, is never. kvp_server_drop closes all connections of the core. */
void kvp_server_swap(kvp_server_t *server, kvp_master_t *master);
void kvp_server_act_until(kvp_server_t *server, uint64_t until_ns);
void kvp_server_drop(kvp_server_t *server);
kvp_master_t *kvp_server_core(const kvp_server_t *server);

/* Connections that do not belong to the core. kvp_server_send queues *bytes, and leaves it empty.
 * kvp_server_unsent returns the queued bytes. kvp_server_end closes the connection after they are
 * sent. kvp_server_reply answers the request with a message. kvp_server_give gives the connection
 * to the core, as a new one. kvp_server_flush: the core got input from elsewhere. Unknown numbers
 * are ignored. */
void kvp_server_send(kvp_server_t *server, uint64_t conn, kvp_buf_t *bytes);
void kvp_server_reply(kvp_server_t *server, uint64_t conn, uint8_t opcode, uint64_t request_id, const void *msg);
size_t kvp_server_unsent(kvp_server_t *server, uint64_t conn);
void kvp_server_end(kvp_server_t *server, uint64_t conn);
void kvp_server_give(kvp_server_t *server, uint64_t conn);
void kvp_server_flush(kvp_server_t *server);

/* kvp_server_publish: events gets the core at the end of each callback, after its log; borrowed;
 * NULL, the initial value: no publisher. */
void kvp_server_publish(kvp_server_t *server, kvp_eventpub_t *events);

/* kvp_server_stop ends accepting and unlinks the Unix socket at once, sends what waits (linger_ms at most) and closes
 * everything, without a word to the core. uv_run then has nothing of the server's left to wait for. On the loop's
 * thread; may be repeated. */
void kvp_server_stop(kvp_server_t *server);

/* kvp_server_stats: on the loop's thread, as kvp_server_log_stats; false: no log. why_out: why it
 * cannot be written, "" = no error. */
void kvp_server_stats(const kvp_server_t *server, kvp_server_stats_t *stats_out);
bool kvp_server_log_stats(const kvp_server_t *server, kvp_log_stats_t *stats_out, char why_out[KVP_LOG_WHY_BYTES]);

#endif
