/* SPDX-License-Identifier: Apache-2.0
 * Connections and dispatch. Read on_read, feed_frames and collect_output first: a frame's way in
 * and an answer's way out.
 *
 * Design notes.
 * - Answers are collected from the core after every frame and written once, at the end of the
 *   callback: one system call for a batch of pipelined requests. One spare buffer moves between the
 *   core and the connections, so a small frame costs no allocation.
 * - The server stops reading from a peer that does not read its answers (CONN_WAITS_READER): the
 *   peer cannot make the queue grow. Output that other connections cause is bounded by output_max.
 * - No connection gets more than TURN_NS of the core's work in a turn of the loop. It keeps its
 *   remaining frames, is not read, and continues after the connections before it in waits_turn. All
 *   of these share TURNS_NS of a turn, so that another connection's short question waits for this
 *   time only.
 * - A connection is in at most one of three queues for its timeout: before Hello, within a frame,
 *   ending. Each has one fixed delay, so it is sorted, and the timer checks only its head.
 * - Only libuv's close callback frees a connection: a callback with a pointer to one may use it to
 *   the callback's end, also after close_conn. */
#include "master/shell/server.h"

#include "master/shell/inbuf.h"
#include "master/shell/listener.h"

#include "common/clock.h"
#include "common/list.h"
#include "common/log.h"
#include "common/pages.h"
#include "proto/pb.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CONNS 65536u
#define SLOT_BITS 20 /* bits of a connection's slot in its number; the rest counts up, so that no number is reused */
#define SHARED_BYTES (256u << 10)
#define WRITE_BYTES (64u << 10) /* answers over this are written before the next frame is handled */
#define PAUSE_BYTES (1u << 20) /* with unread answers over this, no more frames are taken */
#define SPARE_MAX_BYTES (256u << 10)
#define SAVE_AGAIN_NS (5000 * KVP_NS_PER_MS)
#define SWEEP_NS (500 * KVP_NS_PER_MS) /* resolution of the timeouts */
#define TURN_NS 500000 /* of the core's work for one connection in a turn of the loop */
#define OVERRUN_NS 2000000u /* limit of what one frame counts: a longer one may just not have been scheduled */
#define TURNS_NS 2000000u /* for all connections that wait for their next turn; then others are read */

typedef enum {
    CONN_READS,
    CONN_WAITS_READER, /* not read until the peer has read its answers */
    CONN_WAITS_TURN, /* used up its share of this turn; in server->waits_turn */
    CONN_WAITS_ROOM, /* for a frame over the shared memory budget; in server->waits_room */
} conn_state_t;

typedef struct {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv;
    kvp_server_t *server;
    uint64_t id; /* for the core: a count << SLOT_BITS | slot */
    uint32_t slot;
    bool is_greeted; /* its first whole frame has come, */
    bool is_in_core; /* and the core knows it, */
    bool is_foreign; /* or others have */
    bool is_reading;
    conn_state_t state;
    kvp_list_t wait_link; /* in server->waits_turn, waits_room */
    uint64_t turn; /* of the loop, in which it last had its share */
    int64_t share_ns; /* the rest of it; the excess of a long frame is taken from the next share */
    size_t input_bytes; /* counted of `in` */
    bool is_ending; /* frames are ignored; closed when everything is sent and read, or at the deadline */
    bool is_overflown; /* to be closed at once */
    bool has_end; /* ending, and its deadline runs */
    bool is_shut; /* our direction is shut down */
    bool is_writing; /* `sending` is libuv's until on_written */

    kvp_inbuf_t in;
    kvp_buf_t sending;
    kvp_buf_t waiting; /* answers behind it */
    uv_write_t write;
    uv_shutdown_t shutdown;
    kvp_list_t unsent_link; /* in server->unsent while something may have to be written */
    uint64_t asked_ns; /* when its request of this callback became readable; 0 = none */
    uint64_t received_ns; /* when the last received bytes became readable */

    uint64_t deadline_ns;
    kvp_list_t deadline_link; /* in one of server->before_hello, cut, ending */
} conn_t;

typedef struct {
    conn_t *conn; /* NULL = free */
    uint32_t next_free;
} slot_t;

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
    uint64_t act_until_ns; /* the core rests from then on, */
    bool is_fenced; /* the last known value, */
    bool is_fence_told; /* and conf.ops knows it */
    uv_timer_t timer;
    uv_idle_t work; /* active while the core has work: turns do not wait then */
    uv_prepare_t turn_end;
    uint64_t timer_at_ns;

    slot_t *slots;
    uint32_t slot_cap;
    uint32_t slot_free; /* head of the free list; slot_cap = none */
    uint64_t conn_count;
    kvp_list_t before_hello;
    kvp_list_t cut;
    kvp_list_t ending;
    kvp_list_t unsent;
    uint64_t turn; /* of the loop */
    kvp_list_t waits_turn, waits_room; /* connections that wait for a turn, or for room; first come, first served */
    conn_t *over_budget; /* the connection with a frame over the budget; NULL = none */

    uint8_t *shared; /* received bytes lie here while their callback runs */
    kvp_buf_t spare;
    kvp_master_ident_t ident; /* the core's last identity; while is_saving it is the saving thread's, */
    uint64_t save_due_ns; /* time of the next attempt after a failure; UINT64_MAX = it is saved */
    uv_work_t save;
    bool is_saving;
    bool is_saved; /* how that ended */
    kvp_log_limit_t log_limit;
    kvp_server_stats_t stats;
};

static void feed_frames(conn_t *conn);
static void flush_all(kvp_server_t *server);
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf);
static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf);
static void on_save_end(uv_work_t *work, int status);
static void on_timer(uv_timer_t *timer);

/* begin gives the time of a callback; the first of a turn starts the turn's clock. */
static uint64_t
begin_callback(kvp_server_t *server)
{
    uint64_t now = kvp_boot_ns();
    if (kvp_times_begin(server->times, now)) (void)kvp_times_look(server->times, now, kvp_thread_ns());
    return now;
}

/* The core may not act any more, or not yet again: nothing is given to it, and nothing of it leaves. */
static bool
is_fenced(kvp_server_t *server, uint64_t now)
{
    if (now >= server->act_until_ns) server->is_fenced = true;
    return server->is_fenced;
}

static void
note_times(kvp_server_t *server)
{
    kvp_master_note_times(server->master, kvp_times_step_longest(server->times), server->times->answer_longest_ns);
}

/* end_step follows each call of the core, and returns the time. */
static uint64_t
end_step(kvp_server_t *server, kvp_step_kind_t kind, uint64_t began)
{
    kvp_times_t *times = server->times;
    const uint64_t now = kvp_boot_ns();
    const uint64_t waited_ns = kvp_times_is_look_due(times, now) ? kvp_times_look(times, now, kvp_thread_ns()) : 0;
    if (kvp_times_step(times, kind, began, now, waited_ns)) note_times(server);
    return now;
}

/* end_answer follows each write. A connection with unrequested output, or with a request that
 * waited for another one, has no request in this callback. */
static void
end_answer(conn_t *conn)
{
    kvp_server_t *server = conn->server;
    if (conn->asked_ns == 0) return;
    if (kvp_times_answer(server->times, conn->asked_ns, kvp_boot_ns())) note_times(server);
    conn->asked_ns = 0;
}

/* arm_timer makes the timer fire at at_ns or before: it only ever moves nearer, so that frames that
 * extend a deadline do not touch it. */
static void
arm_timer(kvp_server_t *server, uint64_t at_ns, uint64_t now)
{
    if (at_ns >= server->timer_at_ns) return;
    server->timer_at_ns = at_ns;
    uint64_t delay_ns = at_ns > now ? at_ns - now : 0;
    uv_update_time(server->uv);
    uv_timer_start(&server->timer, on_timer, (delay_ns + KVP_NS_PER_MS - 1) / KVP_NS_PER_MS, 0);
}

/* log_complaint writes a line that a peer can cause, with the peer's address. */
static void
log_complaint(kvp_server_t *server, conn_t *conn, const char *reason)
{
    char peer[KVP_PEER_TEXT_MAX] = "none";
    uv_os_fd_t fd;
    uint32_t missed;

    if (!kvp_log_limit_ok(&server->log_limit, &missed)) return;
    if (conn != NULL && uv_fileno(&conn->uv.handle, &fd) == 0) kvp_peer_text(fd, peer);
    kvp_log_warn("master", "%s peer=%s missed=%u", reason, peer, missed);
}

static void
log_notes(kvp_server_t *server, conn_t *conn)
{
    for (const char *note = kvp_master_take_note(server->master); note != NULL;
         note = kvp_master_take_note(server->master))
        log_complaint(server, conn, note);
}

static conn_t *
find_conn(kvp_server_t *server, uint64_t id)
{
    uint64_t slot = id & ((1u << SLOT_BITS) - 1);
    conn_t *conn = slot < server->slot_cap ? server->slots[slot].conn : NULL;
    return conn != NULL && conn->id == id ? conn : NULL;
}

static size_t
unsent_bytes(const conn_t *conn)
{
    return uv_stream_get_write_queue_size(&conn->uv.stream) + conn->waiting.len;
}

/* set_deadline moves the connection to the end of a queue; queues stay sorted, since each has one fixed delay. */
static void
set_deadline(conn_t *conn, kvp_list_t *queue, uint64_t at_ns)
{
    conn->deadline_ns = at_ns;
    kvp_list_del(&conn->deadline_link);
    kvp_list_add_tail(queue, &conn->deadline_link);
}

static void
count_input(conn_t *conn)
{
    conn->server->stats.input_bytes += conn->in.own_cap - conn->input_bytes;
    conn->input_bytes = conn->in.own_cap;
}

static void
on_closed(uv_handle_t *handle)
{
    conn_t *conn = handle->data;
    kvp_server_t *server = conn->server;

    server->slots[conn->slot].conn = NULL;
    server->slots[conn->slot].next_free = server->slot_free;
    server->slot_free = conn->slot;
    server->stats.connections--;
    kvp_inbuf_fini(&conn->in);
    count_input(conn);
    kvp_buf_fini(&conn->sending);
    kvp_buf_fini(&conn->waiting);
    free(conn);
    if (server->is_stopping) kvp_server_stop(server);
}

/* mark_unsent makes sure that flush_all looks at the connection. */
static void
mark_unsent(conn_t *conn)
{
    kvp_list_del(&conn->unsent_link);
    kvp_list_add_tail(&conn->server->unsent, &conn->unsent_link);
}

static void
queue_output(conn_t *conn, kvp_buf_t *bytes)
{
    kvp_server_t *server = conn->server;

    server->stats.sent_bytes += bytes->len;
    if (conn->waiting.len == 0) {
        kvp_buf_t empty = conn->waiting;
        conn->waiting = *bytes;
        *bytes = empty;
    } else {
        kvp_buf_append(&conn->waiting, bytes->data, bytes->len);
    }
    if (conn->waiting.err != KVP_OK || unsent_bytes(conn) > server->conf.output_max) conn->is_overflown = true;
}

/* In a thread of libuv's: a disk may take seconds. */
static void
on_save(uv_work_t *work)
{
    kvp_server_t *server = work->data;

    server->is_saved = server->conf.save_ident(server->conf.save_ident_arg, &server->ident);
}

static void
save_ident(kvp_server_t *server)
{
    server->is_saving = true;
    server->save_due_ns = UINT64_MAX;
    server->save.data = server;
    (void)uv_queue_work(server->uv, &server->save, on_save, on_save_end);
}

/* collect_output queues the core's output; nothing is written yet. */
static void
collect_output(kvp_server_t *server)
{
    uint64_t id;
    bool is_last;

    if (server->conf.save_ident != NULL && !server->is_saving && kvp_master_take_ident(server->master, &server->ident))
        save_ident(server);
    while (kvp_master_take_output(server->master, &id, &server->spare, &is_last)) {
        conn_t *conn = find_conn(server, id);
        if (conn != NULL && !conn->is_ending) {
            if (server->spare.len > 0 || server->spare.err != KVP_OK) queue_output(conn, &server->spare);
            if (is_last) conn->is_ending = true;
            mark_unsent(conn);
        }
        kvp_buf_reset(&server->spare);
    }
}

/* close_conn closes at once. The core's output on this event goes to other connections. */
static void
close_conn(conn_t *conn)
{
    kvp_server_t *server = conn->server;

    if (uv_is_closing(&conn->uv.handle)) return;
    conn->is_ending = true;
    kvp_list_del(&conn->deadline_link);
    kvp_list_del(&conn->unsent_link);
    kvp_list_del(&conn->wait_link);
    if (server->over_budget == conn) server->over_budget = NULL;
    if (!server->is_stopping && conn->is_foreign) {
        conn->is_foreign = false;
        server->conf.ops->on_gone(server->conf.ops->arg, conn->id);
    } else if (!server->is_stopping && conn->is_in_core) {
        const uint64_t now = begin_callback(server);
        conn->is_in_core = false;
        kvp_master_on_close(server->master, conn->id, now);
        (void)end_step(server, KVP_STEP_CLOSE, now);
        log_notes(server, conn);
        collect_output(server);
    }
    uv_close(&conn->uv.handle, on_closed);
}

static void
on_written(uv_write_t *write, int status)
{
    conn_t *conn = write->data;

    conn->is_writing = false;
    if (uv_is_closing(&conn->uv.handle)) return;
    begin_callback(conn->server);
    kvp_buf_fini(&conn->sending);
    if (status < 0) {
        close_conn(conn);
    } else {
        mark_unsent(conn);
    }
    flush_all(conn->server);
}

/* write_waiting gives the queued bytes to the socket; libuv keeps the rest. False: the connection
 * is closed. */
static bool
write_waiting(conn_t *conn)
{
    kvp_buf_t *waiting = &conn->waiting;
    uv_buf_t bytes = uv_buf_init((char *)waiting->data, (unsigned)waiting->len);
    int n = uv_try_write(&conn->uv.stream, &bytes, 1);

    if (n < 0 && n != UV_EAGAIN) goto fail;
    end_answer(conn);
    if (n == (int)waiting->len) {
        kvp_buf_reset(waiting);
        return true;
    }
    if (n > 0) bytes = uv_buf_init(bytes.base + n, (unsigned)waiting->len - (unsigned)n);
    conn->sending = *waiting;
    kvp_buf_init(waiting, 0);
    conn->write.data = conn;
    if (uv_write(&conn->write, &conn->uv.stream, &bytes, 1, on_written) != 0) goto fail;
    conn->is_writing = true;
    return true;
fail:
    close_conn(conn);
    return false;
}

/* recycle puts an empty buffer back into circulation; a large one is not kept. */
static void
recycle_buf(kvp_server_t *server, kvp_buf_t *empty)
{
    if (server->spare.data == NULL && empty->cap <= SPARE_MAX_BYTES) {
        server->spare = *empty;
        kvp_buf_init(empty, 0);
    } else {
        kvp_buf_fini(empty);
    }
}

/* set_reading starts or stops reading, by the connection's state. */
static void
set_reading(conn_t *conn)
{
    bool reads = conn->state == CONN_READS;

    if (reads == conn->is_reading || uv_is_closing(&conn->uv.handle)) return;
    conn->is_reading = reads;
    if (!reads)
        uv_read_stop(&conn->uv.stream);
    else if (uv_read_start(&conn->uv.stream, on_alloc, on_read) != 0)
        close_conn(conn);
}

static void
wait_in(conn_t *conn, conn_state_t state, kvp_list_t *queue)
{
    conn->state = state;
    kvp_list_del(&conn->wait_link);
    kvp_list_add_tail(queue, &conn->wait_link);
}

/* resume_conn handles the frames that the connection kept, then reads on. */
static void
resume_conn(conn_t *conn)
{
    kvp_list_del(&conn->wait_link);
    conn->state = CONN_READS;
    kvp_inbuf_again(&conn->in);
    feed_frames(conn);
}

/* end_sending goes on until everything is sent, then shuts our direction down, and leaves the rest
 * to the peer or to the deadline. A plain close could take the last answer away from it, if
 * something of its own is still unread here. */
static void
end_sending(conn_t *conn)
{
    kvp_server_t *server = conn->server;

    if (!conn->has_end) {
        uint64_t now = begin_callback(server);
        conn->has_end = true;
        set_deadline(conn, &server->ending, now + server->conf.linger_ms * KVP_NS_PER_MS);
        arm_timer(server, conn->deadline_ns, now);
        kvp_list_del(&conn->wait_link);
        conn->state = CONN_READS;
        set_reading(conn);
    }
    if (conn->is_shut || conn->waiting.len > 0 || uv_is_closing(&conn->uv.handle)) return;
    conn->is_shut = true;
    /* libuv does it after its pending writes. */
    if (uv_shutdown(&conn->shutdown, &conn->uv.stream, NULL) != 0) close_conn(conn);
}

static void
flush_one(conn_t *conn)
{
    kvp_server_t *server = conn->server;

    if (conn->is_in_core && is_fenced(server, kvp_boot_ns())) return; /* it is dropped at the end of the turn */
    if (conn->is_overflown) {
        server->stats.overflows++;
        log_complaint(server, conn, "connection closed: too much waits to be sent");
        close_conn(conn);
        return;
    }
    if (!conn->is_writing && conn->waiting.len > 0 && !write_waiting(conn)) return;
    if (conn->waiting.len == 0) recycle_buf(server, &conn->waiting);
    if (conn->is_ending) {
        end_sending(conn);
    } else if (conn->state == CONN_WAITS_READER && unsent_bytes(conn) <= PAUSE_BYTES / 2 &&
               !kvp_master_is_mute(server->master)) {
        resume_conn(conn);
    }
}

/* Reads the connections that were not read while the core was silent. */
static void
wake_if_not_mute(kvp_server_t *server)
{
    for (uint32_t i = 0; i < server->slot_cap && !kvp_master_is_mute(server->master); i++)
        if (server->slots[i].conn != NULL && server->slots[i].conn->state == CONN_WAITS_READER)
            mark_unsent(server->slots[i].conn);
}

/* run_log writes the core's records, and reports the written positions, so that the core answers. */
static void
run_log(kvp_server_t *server)
{
    if (server->conf.log == NULL || server->is_stopping) return;
    if (is_fenced(server, kvp_boot_ns())) {
        if (server->events != NULL) kvp_publisher_turn(server->events, NULL);
        return;
    }
    const bool was_mute = kvp_master_is_mute(server->master);
    for (uint64_t now = begin_callback(server); kvp_log_writer_run(server->conf.log, now);) {
        now = end_step(server, KVP_STEP_TICK, now);
        log_notes(server, NULL);
        collect_output(server);
    }
    if (server->events != NULL) kvp_publisher_turn(server->events, server->master);
    if (was_mute) wake_if_not_mute(server);
}

static void
on_log_moved(void *arg)
{
    kvp_server_t *server = arg;

    begin_callback(server);
    flush_all(server);
}

/* flush_all ends every callback. Closing one connection may give the core output for others: they
 * join the end of the list. */
static void
flush_all(kvp_server_t *server)
{
    for (run_log(server); !kvp_list_is_empty(&server->unsent); run_log(server)) {
        conn_t *conn = kvp_list_first(&server->unsent, conn_t, unsent_link);
        kvp_list_del(&conn->unsent_link);
        flush_one(conn);
    }
}

/* The core learns of a connection with its first frame. False: the frame belongs to conf.ops. */
static bool
admit_conn(conn_t *conn, const kvp_frame_t *frame)
{
    kvp_server_t *server = conn->server;
    const kvp_server_ops_t *ops = server->conf.ops;

    conn->is_greeted = true;
    kvp_list_del(&conn->deadline_link);
    conn->is_foreign = ops != NULL;
    if (ops != NULL && ops->on_first(ops->arg, conn->id, frame)) return false;
    conn->is_foreign = false;
    conn->is_in_core = true;
    kvp_master_on_connect(server->master, conn->id, begin_callback(server));
    return true;
}

static void
handle_frame(conn_t *conn, const kvp_frame_t *frame)
{
    kvp_server_t *server = conn->server;

    if (conn->is_foreign) {
        server->conf.ops->on_frame(server->conf.ops->arg, conn->id, frame);
        return;
    }
    if (!conn->is_in_core && !admit_conn(conn, frame)) return;
    const uint64_t now = begin_callback(server);
    conn->asked_ns = conn->received_ns;
    kvp_master_on_frame(server->master, conn->id, frame, now);
    conn->share_ns -= (int64_t)kvp_min_u64(end_step(server, KVP_STEP_FRAME, now) - now, OVERRUN_NS);
    log_notes(server, conn);
    collect_output(server);
    const bool is_mute = kvp_master_is_mute(server->master); /* requests to a silent core would pile up in it */
    if (conn->is_ending || (conn->waiting.len <= WRITE_BYTES && !is_mute)) return;
    if (!conn->is_writing && conn->waiting.len > 0 && !write_waiting(conn)) return;
    if (unsent_bytes(conn) > PAUSE_BYTES || is_mute) {
        server->stats.read_pauses++;
        conn->state = CONN_WAITS_READER;
    }
}

/* handle_frames gives the core whole frames as long as the connection's share of the turn lasts,
 * and returns how many. */
static uint32_t
handle_frames(conn_t *conn)
{
    kvp_server_t *server = conn->server;
    bool has_frame = true;
    uint32_t n = 0;

    if (conn->turn != server->turn) conn->share_ns = conn->share_ns < 0 ? conn->share_ns + TURN_NS : TURN_NS;
    conn->turn = server->turn;
    while (has_frame && !conn->is_ending && conn->state == CONN_READS && conn->share_ns > 0) {
        if (conn->is_in_core && is_fenced(server, begin_callback(server))) break;
        uint32_t length_max = conn->is_greeted ? KVP_FRAME_MAX : KVP_FRAME_FIRST_MAX;
        kvp_frame_t frame;
        if (kvp_inbuf_next(&conn->in, length_max, &frame, &has_frame) != KVP_OK) {
            server->stats.framing_errors++;
            log_complaint(server, conn, "connection closed: malformed frame header");
            close_conn(conn);
        } else if (has_frame) {
            handle_frame(conn, &frame);
            n++;
        }
    }
    if (conn->share_ns <= 0 && conn->state == CONN_READS && !conn->is_ending) {
        server->stats.turn_waits++;
        wait_in(conn, CONN_WAITS_TURN, &server->waits_turn);
    }
    return n;
}

/* feed hands whole frames to the core, and keeps what is left of the bytes. A frame's deadline is
 * set once, when its first bytes are kept; it does not run while the connection is not read. */
static void
feed_frames(conn_t *conn)
{
    kvp_server_t *server = conn->server;
    const bool is_next = handle_frames(conn) > 0;

    if (is_next && server->over_budget == conn) server->over_budget = NULL;
    if (conn->is_ending) {
        kvp_inbuf_fini(&conn->in);
    } else if (kvp_inbuf_keep(&conn->in) != KVP_OK) {
        log_complaint(server, conn, "connection closed: no memory for its frame");
        close_conn(conn);
    } else if (!conn->is_greeted) {
        ; /* its deadline is its Hello's */
    } else if (conn->in.own_len == 0 || conn->state != CONN_READS) {
        kvp_list_del(&conn->deadline_link);
    } else if (is_next || kvp_list_is_empty(&conn->deadline_link)) {
        set_deadline(conn, &server->cut, begin_callback(server) + server->conf.partial_ms * KVP_NS_PER_MS);
    }
    count_input(conn);
    set_reading(conn);
}

/* let_in resumes connections that wait for room, each when the rest of its frame fits. One at a
 * time may exceed the budget: else all could wait for one another. */
static void
let_in(kvp_server_t *server)
{
    while (!kvp_list_is_empty(&server->waits_room)) {
        conn_t *conn = kvp_list_first(&server->waits_room, conn_t, wait_link);
        bool fits = server->stats.input_bytes + kvp_inbuf_wanted(&conn->in) <= server->conf.input_max;
        if (!fits && server->over_budget != NULL) return;
        if (!fits) server->over_budget = conn;
        kvp_list_del(&conn->wait_link);
        conn->state = CONN_READS;
        if (kvp_inbuf_make_room(&conn->in) != KVP_OK) {
            log_complaint(server, conn, "connection closed: no memory for its frame");
            close_conn(conn);
            continue;
        }
        count_input(conn);
        if (conn->is_greeted)
            set_deadline(conn, &server->cut, begin_callback(server) + server->conf.partial_ms * KVP_NS_PER_MS);
        set_reading(conn);
    }
}

/* take_turns serves the connections that wait for a turn, each at most once. */
static void
take_turns(kvp_server_t *server)
{
    uint64_t began = kvp_boot_ns(), now = began;

    server->turn++;
    while (!kvp_list_is_empty(&server->waits_turn) && now - began < TURNS_NS) {
        conn_t *conn = kvp_list_first(&server->waits_turn, conn_t, wait_link);
        if (conn->turn == server->turn) return;
        begin_callback(server);
        resume_conn(conn);
        flush_all(server);
        conn->asked_ns = 0;
        now = kvp_boot_ns();
    }
}

static void
on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    conn_t *conn = handle->data;
    kvp_server_t *server = conn->server;
    const uint64_t kept = server->stats.input_bytes, max = server->conf.input_max;
    /* Where half is used up only small frames come for nothing: who has to wait shall not keep much meanwhile. */
    const uint64_t at_once = kvp_max_u64(max / 2 - kvp_min_u64(max / 2, kept), KVP_INBUF_SMALL_BYTES);
    uint8_t *at;
    size_t len;

    (void)suggested;
    begin_callback(server);
    kvp_err_t err = kvp_inbuf_room(&conn->in, server->shared, kvp_min_u64(SHARED_BYTES, at_once),
                                   max - kvp_min_u64(max, kept), &at, &len);
    count_input(conn);
    if (err == KVP_OK) {
        *buf = uv_buf_init((char *)at, (unsigned)len);
        return;
    }
    *buf = uv_buf_init(NULL, 0); /* on_read gets ENOBUFS */
    if (err != KVP_EAGAIN) return;
    server->stats.room_waits++;
    if (conn->is_greeted) kvp_list_del(&conn->deadline_link);
    wait_in(conn, CONN_WAITS_ROOM, &server->waits_room);
}

static void
on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    conn_t *conn = stream->data;
    kvp_server_t *server = conn->server;

    (void)buf;
    if (nread == 0) return;
    begin_callback(server);
    if (nread < 0 && conn->state == CONN_WAITS_ROOM) {
        set_reading(conn);
    } else if (nread < 0) {
        close_conn(conn);
    } else if (!conn->is_ending) {
        server->stats.received_bytes += (size_t)nread;
        conn->received_ns = server->times->readable_ns;
        kvp_inbuf_received(&conn->in, (size_t)nread);
        feed_frames(conn);
    }
    flush_all(server);
    conn->asked_ns = 0;
}

/* take_slot gives the connection its number; false when there are too many. */
static bool
take_slot(kvp_server_t *server, conn_t *conn)
{
    if (server->slot_free == server->slot_cap) {
        uint32_t cap = (uint32_t)kvp_min_u64(kvp_max_u64((uint64_t)server->slot_cap * 2, 64), server->conf.max_conns);
        slot_t *slots = cap > server->slot_cap ? realloc(server->slots, cap * sizeof(*slots)) : NULL;
        if (slots == NULL) return false;
        for (uint32_t i = server->slot_cap; i < cap; i++)
            slots[i] = (slot_t){.next_free = i + 1};
        server->slots = slots;
        server->slot_cap = cap;
    }
    conn->slot = server->slot_free;
    conn->id = ++server->conn_count << SLOT_BITS | conn->slot;
    server->slot_free = server->slots[conn->slot].next_free;
    server->slots[conn->slot].conn = conn;
    server->stats.connections++;
    return true;
}

/* open_stream makes the libuv handle around fd. On failure the handle is to be closed, and fd with it. */
static int
open_stream(kvp_server_t *server, conn_t *conn, int fd, bool is_unix)
{
    int rc = is_unix ? uv_pipe_init(server->uv, &conn->uv.pipe, 0) : uv_tcp_init(server->uv, &conn->uv.tcp);
    conn->uv.handle.data = conn;
    if (rc == 0) rc = is_unix ? uv_pipe_open(&conn->uv.pipe, fd) : uv_tcp_open(&conn->uv.tcp, fd);
    if (rc != 0) {
        close(fd);
        return rc;
    }
    conn->is_reading = true;
    return uv_read_start(&conn->uv.stream, on_alloc, on_read);
}

static void
on_accept(void *arg, int fd, bool is_unix)
{
    kvp_server_t *server = arg;
    conn_t *conn = calloc(1, sizeof(*conn));
    uint64_t now = begin_callback(server);

    if (conn == NULL || !take_slot(server, conn)) {
        server->stats.refused++;
        log_complaint(server, NULL, "connection refused: there are too many");
        free(conn);
        close(fd);
        return;
    }
    conn->server = server;
    kvp_list_init(&conn->unsent_link);
    kvp_list_init(&conn->deadline_link);
    kvp_list_init(&conn->wait_link);
    server->stats.accepted++;
    if (open_stream(server, conn, fd, is_unix) != 0) {
        conn->is_ending = true;
        uv_close(&conn->uv.handle, on_closed);
        return;
    }
    set_deadline(conn, &server->before_hello, now + server->conf.hello_ms * KVP_NS_PER_MS);
}

/* expire closes the connections at the head of a queue whose time has come. */
static void
expire_queue(kvp_server_t *server, kvp_list_t *queue, uint64_t now, const char *reason)
{
    while (!kvp_list_is_empty(queue)) {
        conn_t *conn = kvp_list_first(queue, conn_t, deadline_link);
        if (conn->deadline_ns > now) break;
        if (reason != NULL) {
            server->stats.timeouts++;
            log_complaint(server, conn, reason);
        }
        close_conn(conn);
    }
}

static void
on_tick(kvp_server_t *server)
{
    const uint64_t now = begin_callback(server);
    if (server->is_stopping || is_fenced(server, now)) return;
    kvp_master_on_tick(server->master, now);
    (void)end_step(server, KVP_STEP_TICK, now);
    log_notes(server, NULL);
    collect_output(server);
}

static void
on_timer(uv_timer_t *timer)
{
    kvp_server_t *server = timer->data;
    uint64_t now = begin_callback(server);

    server->timer_at_ns = UINT64_MAX;
    arm_timer(server, now + SWEEP_NS, now);
    expire_queue(server, &server->before_hello, now, "connection closed: no Hello in time");
    const uint64_t partial_ns = server->conf.partial_ms * KVP_NS_PER_MS;
    const uint64_t early_ns = kvp_list_is_empty(&server->waits_room) ? 0 : partial_ns - partial_ns / 10;
    expire_queue(server, &server->cut, now + early_ns, "connection closed: the rest of a frame did not come");
    expire_queue(server, &server->ending, now, NULL);
    if (server->save_due_ns <= now && !server->is_stopping) save_ident(server);
    if (kvp_master_due(server->master) <= now) on_tick(server);
    flush_all(server);
}

static void
on_save_end(uv_work_t *work, int status)
{
    kvp_server_t *server = work->data;
    uint64_t now;

    (void)status;
    server->is_saving = false;
    if (server->is_stopping) return;
    now = begin_callback(server);
    if (!server->is_saved) server->save_due_ns = now + SAVE_AGAIN_NS;
    arm_timer(server, server->save_due_ns, now);
    kvp_master_ident_saved(server->master, &server->ident, server->is_saved);
    collect_output(server);
    wake_if_not_mute(server);
    flush_all(server);
}

static void
on_work(uv_idle_t *work)
{
    kvp_server_t *server = work->data;
    if (!kvp_master_has_work(server->master)) return; /* connections wait for a turn */
    on_tick(server);
    flush_all(server);
}

/* on_turn_end runs before the loop waits: what has to be looked at once a turn rather than once a frame. */
static void
on_turn_end(uv_prepare_t *prepare)
{
    kvp_server_t *server = prepare->data;

    if (!server->is_stopping) {
        let_in(server);
        take_turns(server);
    }
    if (server->conf.ops != NULL && !server->is_stopping) {
        begin_callback(server);
        if (is_fenced(server, kvp_boot_ns()) && !server->is_fence_told) {
            server->is_fence_told = true;
            server->conf.ops->on_fenced(server->conf.ops->arg);
        }
        server->conf.ops->on_turn(server->conf.ops->arg);
        flush_all(server);
    }
    const uint64_t now = kvp_boot_ns();
    if (!kvp_times_end(server->times, now) || server->is_stopping) return;
    const bool has_write = server->conf.log != NULL && kvp_log_writer_wants_write(server->conf.log, now);
    if (has_write || (kvp_master_has_work(server->master) && !server->is_fenced) ||
        !kvp_list_is_empty(&server->waits_turn)) {
        uv_idle_start(&server->work, on_work);
    } else {
        uv_idle_stop(&server->work);
    }
    if (server->is_fenced) return; /* nothing is done before the fence is lifted */
    arm_timer(server, kvp_master_due(server->master), now);
    if (server->conf.log != NULL) arm_timer(server, kvp_log_writer_due(server->conf.log), now);
}

static uint32_t
or_default(uint32_t value, uint32_t fallback)
{
    return value != 0 ? value : fallback;
}

kvp_err_t
kvp_server_create(const kvp_server_conf_t *conf, kvp_server_t **server_out)
{
    kvp_server_t *server = calloc(1, sizeof(*server));
    kvp_err_t err = KVP_NOMEM;

    if (server == NULL) return KVP_NOMEM;
    server->conf = *conf;
    server->conf.max_conns = (uint32_t)kvp_min_u64(or_default(conf->max_conns, MAX_CONNS), 1u << SLOT_BITS);
    server->conf.hello_ms = or_default(conf->hello_ms, 5000);
    server->conf.partial_ms = or_default(conf->partial_ms, 10000);
    server->conf.linger_ms = or_default(conf->linger_ms, 500);
    if (server->conf.input_max == 0) server->conf.input_max = 64u << 20;
    if (server->conf.output_max == 0) server->conf.output_max = 64u << 20;
    server->save_due_ns = UINT64_MAX;
    server->act_until_ns = UINT64_MAX;
    server->log_limit.burst = 10;
    server->log_limit.interval_ms = 1000;
    kvp_listener_init(&server->tcp);
    kvp_listener_init(&server->local);
    kvp_list_init(&server->before_hello);
    kvp_list_init(&server->cut);
    kvp_list_init(&server->ending);
    kvp_list_init(&server->unsent);
    kvp_list_init(&server->waits_turn);
    kvp_list_init(&server->waits_room);

    server->shared = aligned_alloc(64, SHARED_BYTES);
    if (server->shared == NULL) goto fail;
    err = kvp_listener_open_tcp(&server->tcp, &conf->listen, &server->bound);
    if (err != KVP_OK) goto fail;
    kvp_ignore(kvp_listener_open_unix(&server->local, server->bound.port), "has said so; TCP serves everybody");
    *server_out = server;
    return KVP_OK;
fail:
    kvp_server_destroy(server);
    return err;
}

void
kvp_server_destroy(kvp_server_t *server)
{
    if (server == NULL) return;
    kvp_listener_close(&server->tcp);
    kvp_listener_close(&server->local);
    kvp_buf_fini(&server->spare);
    free(server->slots);
    free(server->shared);
    free(server);
}

kvp_err_t
kvp_server_start(kvp_server_t *server, uv_loop_t *uv, kvp_master_t *master, kvp_times_t *times)
{
    server->uv = uv;
    server->master = master;
    server->times = times;
    server->timer.data = server->work.data = server->turn_end.data = server;
    uv_timer_init(uv, &server->timer);
    uv_idle_init(uv, &server->work);
    uv_prepare_init(uv, &server->turn_end);
    uv_prepare_start(&server->turn_end, on_turn_end);
    uv_timer_start(&server->timer, on_timer, 0, 0);
    server->timer_at_ns = 0;
    if (server->conf.log != NULL) kvp_log_writer_start(server->conf.log, uv, on_log_moved, server);

    kvp_err_t err = kvp_listener_start(&server->tcp, uv, on_accept, server);
    return err != KVP_OK ? err : kvp_listener_start(&server->local, uv, on_accept, server);
}

static void
close_handle(uv_handle_t *handle)
{
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

void
kvp_server_stop(kvp_server_t *server)
{
    if (server->uv == NULL) return;
    if (!server->is_stopping) {
        server->is_stopping = true;
        begin_callback(server);
        kvp_listener_close(&server->tcp);
        kvp_listener_close(&server->local);
        uv_idle_stop(&server->work);
        for (uint32_t i = 0; i < server->slot_cap; i++) {
            conn_t *conn = server->slots[i].conn;
            if (conn == NULL || uv_is_closing(&conn->uv.handle)) continue;
            conn->is_ending = true;
            mark_unsent(conn);
        }
        flush_all(server);
    }
    if (server->stats.connections > 0) return;
    close_handle((uv_handle_t *)&server->timer);
    close_handle((uv_handle_t *)&server->work);
    close_handle((uv_handle_t *)&server->turn_end);
}

/* ---- several masters with an election */
void
kvp_server_drop(kvp_server_t *server)
{
    for (uint32_t i = 0; i < server->slot_cap; i++) {
        conn_t *conn = server->slots[i].conn;
        if (conn != NULL && conn->is_in_core) close_conn(conn);
    }
}

void
kvp_server_swap(kvp_server_t *server, kvp_master_t *master)
{
    for (uint32_t i = 0; i < server->slot_cap; i++) {
        conn_t *conn = server->slots[i].conn;
        if (conn == NULL || !conn->is_in_core) continue;
        conn->is_in_core = false; /* the core that knew it was removed */
        close_conn(conn);
    }
    server->master = master;
}

void
kvp_server_act_until(kvp_server_t *server, uint64_t until_ns)
{
    server->act_until_ns = until_ns;
    if (server->is_fenced && !server->is_fence_told) kvp_server_drop(server); /* some may have got stuck meanwhile */
    server->is_fenced = server->is_fence_told = false;
}

kvp_master_t *
kvp_server_core(const kvp_server_t *server)
{
    return server->master;
}

void
kvp_server_send(kvp_server_t *server, uint64_t id, kvp_buf_t *bytes)
{
    conn_t *conn = find_conn(server, id);

    if (conn != NULL && conn->is_foreign && !conn->is_ending) {
        queue_output(conn, bytes);
        mark_unsent(conn);
    }
    kvp_buf_reset(bytes);
}

void
kvp_server_reply(kvp_server_t *server, uint64_t id, uint8_t opcode, uint64_t request_id, const void *msg)
{
    kvp_buf_t out;
    size_t at;

    kvp_buf_init(&out, 0);
    kvp_pb_frame_begin(&out, opcode, KVP_FRAME_REPLY, request_id, msg, &at);
    kvp_frame_end(&out, at);
    kvp_server_send(server, id, &out);
    kvp_buf_fini(&out);
}

size_t
kvp_server_unsent(kvp_server_t *server, uint64_t id)
{
    const conn_t *conn = find_conn(server, id);

    return conn == NULL ? 0 : unsent_bytes(conn);
}

void
kvp_server_end(kvp_server_t *server, uint64_t id)
{
    conn_t *conn = find_conn(server, id);

    if (conn == NULL || !conn->is_foreign) return;
    conn->is_foreign = false; /* the closing caller knows */
    conn->is_ending = true;
    mark_unsent(conn);
}

void
kvp_server_give(kvp_server_t *server, uint64_t id)
{
    conn_t *conn = find_conn(server, id);

    if (conn == NULL || !conn->is_foreign) return;
    conn->is_foreign = false;
    conn->is_greeted = false;
    set_deadline(conn, &server->before_hello, begin_callback(server) + server->conf.hello_ms * KVP_NS_PER_MS);
}

void
kvp_server_flush(kvp_server_t *server)
{
    begin_callback(server);
    collect_output(server);
    flush_all(server);
}

void
kvp_server_publish(kvp_server_t *server, kvp_eventpub_t *events)
{
    server->events = events;
}

const kvp_hostport_t *
kvp_server_bound(const kvp_server_t *server)
{
    return &server->bound;
}

const char *
kvp_server_unix_path(const kvp_server_t *server)
{
    return server->local.path;
}

void
kvp_server_stats(const kvp_server_t *server, kvp_server_stats_t *stats_out)
{
    kvp_pages_stats_t pages;

    *stats_out = server->stats;
    kvp_pages_stats(&pages);
    stats_out->pages_ready = pages.ready;
    stats_out->pages_missed = pages.missed;
    stats_out->pages_kept_bytes = pages.kept_bytes;
    if (server->times != NULL) {
        stats_out->turn_longest_ns = server->times->turn_longest_ns;
        stats_out->step_frame_longest_ns = server->times->step_longest_ns[KVP_STEP_FRAME];
        stats_out->step_tick_longest_ns = server->times->step_longest_ns[KVP_STEP_TICK];
        stats_out->step_close_longest_ns = server->times->step_longest_ns[KVP_STEP_CLOSE];
        stats_out->step_run_longest_ns = server->times->run_longest_ns;
    }
    stats_out->accept_pauses = server->tcp.pauses + server->local.pauses;
}

bool
kvp_server_log_stats(const kvp_server_t *server, kvp_log_stats_t *stats_out, char why_out[KVP_LOG_WHY_BYTES])
{
    why_out[0] = '\0';
    if (server->conf.log == NULL) return false;
    kvp_log_writer_stats(server->conf.log, stats_out);
    snprintf(why_out, KVP_LOG_WHY_BYTES, "%s", stats_out->log_failed ? server->conf.log->failure : "");
    return !server->conf.log->is_kept_nowhere;
}
