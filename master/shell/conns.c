/* SPDX-License-Identifier: Apache-2.0
 * The server's connections: bytes in, frames to the core, answers out. Read on_read, feed_frames and
 * kvp_server_flush_one first.
 *
 * - The server stops reading from a peer that does not read its answers (KVP_CONN_WAITS_READER): the peer cannot make
 *   the queue grow. Output that other connections cause is limited by output_max.
 * - No connection gets more than TURN_NS of the core's work in a turn of the loop. It keeps its remaining frames, is
 *   not read, and continues after the connections before it in waits_turn. The connections in waits_turn together get
 *   TURNS_NS of a turn: a short request on another connection waits no longer for them. A connection whose bytes come
 *   when the turn has lasted FRESH_NS also waits there: if 1,000 clients return at once, no turn serves all of them.
 * - A connection is in at most one of three queues for its timeout: before Hello, within a frame, ending. Each queue
 *   has one fixed delay, so it is sorted, and the timer checks only its head.
 * - Only libuv's close callback frees a connection: a callback with a pointer to a connection may use it until the
 *   callback returns, also after kvp_server_close_conn. */
#include "master/shell/server_priv.h"

#include <stdlib.h>
#include <unistd.h>

/* limit of a connection's queued answers: above it they are written before the next frame is handled */
#define WRITE_BYTES (64u << 10)
#define PAUSE_BYTES (1u << 20) /* limit of a peer's unread answers: above it no more of its frames are handled */
#define SPARE_MAX_BYTES (256u << 10)
#define TURN_NS 500000 /* limit of the core's work for one connection in a turn of the loop */
/* limit of the time that a connection is charged for one frame: in a longer time the thread may not have run */
#define OVERRUN_NS 2000000u
/* time limit of kvp_server_take_turns, for all connections in waits_turn; then the loop reads other connections */
#define TURNS_NS 2000000u
#define FRESH_NS 1000000u /* time from the beginning of a turn in which received bytes are handled at once */

static void feed_frames(kvp_server_conn_t *conn);
static void open_frames(kvp_server_conn_t *conn, const void *bytes, size_t n);
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf);
static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf);

/* end_answer records the time of the answer to a request; called after each write. conn->asked_ns is 0 if the output
 * answers no request of this callback. */
static void
end_answer(kvp_server_conn_t *conn)
{
    kvp_server_t *server = conn->server;
    if (conn->asked_ns == 0) return;
    if (kvp_times_answer(server->times, conn->asked_ns, kvp_boot_ns())) kvp_server_note_times(server);
    conn->asked_ns = 0;
}

/* end_calls reports the slow ones among the requests whose answers are sent now. */
static void
end_calls(kvp_server_conn_t *conn)
{
    uv_os_fd_t fd;
    if (conn->slow.longest.conn == 0 || uv_fileno(&conn->uv.handle, &fd) != 0) return;
    conn->server->stats.slow_calls += kvp_slow_sent(&conn->server->slow, &conn->slow, fd, kvp_boot_ns());
}

kvp_server_conn_t *
kvp_server_find_conn(kvp_server_t *server, uint64_t id)
{
    uint64_t slot = id & ((1u << KVP_SERVER_SLOT_BITS) - 1);
    kvp_server_conn_t *conn = slot < server->slot_cap ? server->slots[slot].conn : NULL;
    return conn != NULL && conn->id == id ? conn : NULL;
}

size_t
kvp_server_unsent_bytes(const kvp_server_conn_t *conn)
{
    return uv_stream_get_write_queue_size(&conn->uv.stream) + conn->waiting.len;
}

/* kvp_server_set_deadline sets the connection's deadline, and moves the connection to the end of the queue. The queue
 * stays sorted, because all its deadlines have the same delay. */
void
kvp_server_set_deadline(kvp_server_conn_t *conn, kvp_list_t *queue, uint64_t at_ns)
{
    conn->deadline_ns = at_ns;
    kvp_list_del(&conn->deadline_link);
    kvp_list_add_tail(queue, &conn->deadline_link);
}

static void
count_input(kvp_server_conn_t *conn)
{
    const size_t bytes = conn->in.own_cap + (conn->tls == NULL ? 0 : kvp_tls_held(conn->tls));

    conn->server->stats.input_bytes += bytes - conn->input_bytes;
    conn->input_bytes = bytes;
}

static void
on_closed(uv_handle_t *handle)
{
    kvp_server_conn_t *conn = handle->data;
    kvp_server_t *server = conn->server;

    server->slots[conn->slot].conn = NULL;
    server->slots[conn->slot].next_free = server->slot_free;
    server->slot_free = conn->slot;
    server->stats.connections--;
    kvp_inbuf_fini(&conn->in);
    kvp_tls_destroy(conn->tls);
    conn->tls = NULL;
    count_input(conn);
    free(conn->who);
    kvp_buf_fini(&conn->sending);
    kvp_buf_fini(&conn->waiting);
    free(conn);
    if (server->is_stopping) kvp_server_stop(server);
}

/* kvp_server_mark_unsent makes sure that kvp_server_flush_all writes the connection's output. */
void
kvp_server_mark_unsent(kvp_server_conn_t *conn)
{
    kvp_list_del(&conn->unsent_link);
    kvp_list_add_tail(&conn->server->unsent, &conn->unsent_link);
}

void
kvp_server_queue_output(kvp_server_conn_t *conn, kvp_buf_t *bytes)
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
    if (conn->waiting.err != KVP_OK || kvp_server_unsent_bytes(conn) > server->conf.output_max)
        conn->is_overflown = true;
}

/* kvp_server_end_conn: further frames are ignored, and the connection is closed when its output is sent. */
void
kvp_server_end_conn(kvp_server_conn_t *conn)
{
    if (conn->end == KVP_CONN_OPEN) conn->end = KVP_CONN_ENDS;
}

/* kvp_server_close_conn closes the connection at once. The core may react with output to other connections. */
void
kvp_server_close_conn(kvp_server_conn_t *conn)
{
    kvp_server_t *server = conn->server;

    if (uv_is_closing(&conn->uv.handle)) return;
    kvp_server_end_conn(conn);
    kvp_list_del(&conn->deadline_link);
    kvp_list_del(&conn->unsent_link);
    kvp_list_del(&conn->wait_link);
    if (server->over_budget == conn) server->over_budget = NULL;
    if (!server->is_stopping && conn->owner == KVP_CONN_OF_OPS) {
        conn->owner = KVP_CONN_OF_NOBODY;
        server->conf.ops->on_gone(server->conf.ops->arg, conn->id);
    } else if (!server->is_stopping && conn->owner == KVP_CONN_OF_CORE) {
        const uint64_t now = kvp_server_begin(server);
        conn->owner = KVP_CONN_OF_NOBODY;
        kvp_master_on_close(server->master, conn->id, now);
        (void)kvp_server_end_step(server, KVP_STEP_CLOSE, now);
        kvp_server_hand_on(server, conn);
    }
    uv_close(&conn->uv.handle, on_closed);
}

static void
on_written(uv_write_t *write, int status)
{
    kvp_server_conn_t *conn = write->data;

    conn->is_writing = false;
    if (uv_is_closing(&conn->uv.handle)) return;
    kvp_server_begin(conn->server);
    kvp_buf_fini(&conn->sending);
    if (status < 0) {
        kvp_server_close_conn(conn);
    } else {
        end_calls(conn);
        kvp_server_mark_unsent(conn);
    }
    kvp_server_flush_all(conn->server);
}

/* seal_waiting encrypts the queued bytes. */
static bool
seal_waiting(kvp_server_conn_t *conn)
{
    if (kvp_tls_seal(conn->tls, conn->waiting.data, conn->waiting.len) != KVP_OK) {
        conn->server->stats.framing_errors++; /* TLS failed: a message of the peer was wrong after the handshake */
        kvp_server_log_complaint(conn->server, conn, kvp_tls_why(conn->tls));
        return false;
    }
    kvp_buf_reset(&conn->waiting);
    kvp_tls_take_all(conn->tls, &conn->waiting);
    return conn->waiting.err == KVP_OK;
}

/* write_waiting writes the queued bytes to the socket; libuv writes later what the socket does not accept now.
 * Returns false if the connection was closed. */
static bool
write_waiting(kvp_server_conn_t *conn)
{
    kvp_buf_t *waiting = &conn->waiting;
    if (conn->tls != NULL && !seal_waiting(conn)) goto fail;
    uv_buf_t bytes = uv_buf_init((char *)waiting->data, (unsigned)waiting->len);
    int n = uv_try_write(&conn->uv.stream, &bytes, 1);

    if (n < 0 && n != UV_EAGAIN) goto fail;
    end_answer(conn);
    if (n == (int)waiting->len) {
        end_calls(conn);
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
    kvp_server_close_conn(conn);
    return false;
}

/* recycle_buf keeps one empty buffer for reuse; a second buffer and a large buffer are freed. */
static void
recycle_buf(kvp_server_t *server, kvp_buf_t *empty)
{
    if (server->ready.frames.data == NULL && empty->cap <= SPARE_MAX_BYTES) {
        server->ready.frames = *empty;
        kvp_buf_init(empty, 0);
    } else {
        kvp_buf_fini(empty);
    }
}

/* set_reading starts or stops reading, depending on the connection's state. */
static void
set_reading(kvp_server_conn_t *conn)
{
    bool reads = conn->state == KVP_CONN_READS;

    if (reads == conn->is_reading || uv_is_closing(&conn->uv.handle)) return;
    conn->is_reading = reads;
    if (!reads)
        uv_read_stop(&conn->uv.stream);
    else if (uv_read_start(&conn->uv.stream, on_alloc, on_read) != 0)
        kvp_server_close_conn(conn);
}

static void
wait_in(kvp_server_conn_t *conn, kvp_server_conn_state_t state, kvp_list_t *queue)
{
    conn->state = state;
    kvp_list_del(&conn->wait_link);
    kvp_list_add_tail(queue, &conn->wait_link);
}

/* resume_conn handles the received frames in the connection's own buffer, then reads on. */
static void
resume_conn(kvp_server_conn_t *conn)
{
    kvp_list_del(&conn->wait_link);
    conn->state = KVP_CONN_READS;
    kvp_inbuf_again(&conn->in);
    feed_frames(conn);
    if (conn->tls != NULL) open_frames(conn, NULL, 0);
}

/* end_sending waits until everything is sent, then shuts down our direction of the connection, and waits for the
 * peer's close or the deadline. A plain close could destroy the last answer before the peer reads it, if input of the
 * peer is still unread here. */
static void
end_sending(kvp_server_conn_t *conn)
{
    kvp_server_t *server = conn->server;

    if (conn->end < KVP_CONN_ENDS_SOON) {
        uint64_t now = kvp_server_begin(server);
        conn->end = KVP_CONN_ENDS_SOON;
        kvp_server_set_deadline(conn, &server->ending, now + server->conf.linger_ms * KVP_NS_PER_MS);
        kvp_server_arm_timer(server, conn->deadline_ns, now);
        kvp_list_del(&conn->wait_link);
        conn->state = KVP_CONN_READS;
        set_reading(conn);
    }
    if (conn->end == KVP_CONN_SHUT || conn->waiting.len > 0 || uv_is_closing(&conn->uv.handle)) return;
    conn->end = KVP_CONN_SHUT;
    /* libuv shuts down after its pending writes. */
    if (uv_shutdown(&conn->shutdown, &conn->uv.stream, NULL) != 0) kvp_server_close_conn(conn);
}

void
kvp_server_flush_one(kvp_server_conn_t *conn)
{
    kvp_server_t *server = conn->server;

    if (conn->owner == KVP_CONN_OF_CORE && kvp_server_is_fenced(server, kvp_boot_ns()))
        return; /* the core is fenced: its output is not sent; ops->on_fenced is called at the end of the turn */
    if (conn->is_overflown) {
        server->stats.overflows++;
        kvp_server_log_complaint(server, conn, "connection closed: too much waits to be sent");
        kvp_server_close_conn(conn);
        return;
    }
    if (!conn->is_writing && conn->waiting.len > 0 && !write_waiting(conn)) return;
    if (conn->waiting.len == 0) recycle_buf(server, &conn->waiting);
    if (conn->end != KVP_CONN_OPEN) {
        end_sending(conn);
    } else if (conn->state == KVP_CONN_WAITS_READER && kvp_server_unsent_bytes(conn) <= PAUSE_BYTES / 2 &&
               !kvp_server_is_mute(server)) {
        resume_conn(conn);
    }
}

static bool
is_greeted(const kvp_server_conn_t *conn)
{
    return conn->owner != KVP_CONN_OF_STRANGER;
}

/* Assigns a connection to conf.ops or the core, by its first frame. Returns false if conf.ops took the frame. */
static bool
admit_conn(kvp_server_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_server_t *server = conn->server;
    const kvp_server_ops_t *ops = server->conf.ops;

    kvp_list_del(&conn->deadline_link);
    conn->owner = KVP_CONN_OF_OPS;
    if (ops != NULL && ops->on_first(ops->arg, conn->id, frame)) return false;
    conn->owner = KVP_CONN_OF_CORE;
    kvp_master_on_connect(server->master, conn->id, kvp_server_begin(server));
    if (conn->who != NULL) kvp_master_on_identity(server->master, conn->id, conn->who, kvp_server_begin(server));
    return true;
}

static void
handle_frame(kvp_server_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_server_t *server = conn->server;

    if (conn->owner == KVP_CONN_OF_OPS) {
        server->conf.ops->on_frame(server->conf.ops->arg, conn->id, frame);
        return;
    }
    if (server->conf.authn != NULL && conn->who == NULL && !kvp_server_authenticate(conn, frame)) return;
    if (conn->owner != KVP_CONN_OF_CORE && !admit_conn(conn, frame)) return;
    const uint64_t now = kvp_server_begin(server);
    conn->asked_ns = conn->received_ns;
    kvp_master_on_frame(server->master, conn->id, frame, now);
    const uint64_t took_ns = kvp_server_end_step(server, KVP_STEP_FRAME, now) - now;
    kvp_times_call(server->times, frame->hdr.opcode, took_ns);
    kvp_slow_ask(&server->slow, conn->id, &frame->hdr, conn->received_ns, now, now + took_ns);
    conn->share_ns -= (int64_t)kvp_min_u64(took_ns, OVERRUN_NS);
    kvp_server_hand_on(server, conn);
    kvp_slow_keep(&server->slow);
    const bool is_mute = kvp_server_is_mute(server); /* the core may not answer yet: give it no more requests */
    if (conn->end != KVP_CONN_OPEN || (conn->waiting.len <= WRITE_BYTES && !is_mute)) return;
    if (!conn->is_writing && conn->waiting.len > 0 && !write_waiting(conn)) return;
    if (kvp_server_unsent_bytes(conn) > PAUSE_BYTES || is_mute) {
        server->stats.read_pauses++;
        conn->state = KVP_CONN_WAITS_READER;
    }
}

/* must_wait_turn lets the connection wait for its turn if this turn has lasted too long. */
static bool
must_wait_turn(kvp_server_conn_t *conn)
{
    kvp_server_t *server = conn->server;

    if (server->is_taking_turns || kvp_server_has_time(server)) return false;
    server->stats.turn_waits++;
    wait_in(conn, KVP_CONN_WAITS_TURN, &server->waits_turn);
    return true;
}

/* handle_frames gives whole frames to the connection's owner until the connection's share of the turn is used up.
 * Returns the number of frames. */
static uint32_t
handle_frames(kvp_server_conn_t *conn)
{
    kvp_server_t *server = conn->server;
    bool has_frame = true;
    uint32_t n = 0;

    if (conn->end == KVP_CONN_OPEN && conn->state == KVP_CONN_READS && must_wait_turn(conn)) return 0;
    if (conn->turn != server->turn) conn->share_ns = conn->share_ns < 0 ? conn->share_ns + TURN_NS : TURN_NS;
    conn->turn = server->turn;
    while (has_frame && conn->end == KVP_CONN_OPEN && conn->state == KVP_CONN_READS && conn->share_ns > 0) {
        if (conn->owner == KVP_CONN_OF_CORE && kvp_server_is_fenced(server, kvp_server_begin(server))) break;
        uint32_t length_max = is_greeted(conn) ? KVP_FRAME_MAX : KVP_FRAME_FIRST_MAX;
        kvp_frame_t frame;
        if (kvp_inbuf_next(&conn->in, length_max, &frame, &has_frame) != KVP_OK) {
            server->stats.framing_errors++;
            kvp_server_log_complaint(server, conn,
                                     kvp_tls_is_hello(conn->in.at, conn->in.left)
                                         ? "connection closed: the peer begins TLS, and this master has no --tls-cert"
                                         : "connection closed: malformed frame header");
            kvp_server_close_conn(conn);
        } else if (has_frame) {
            handle_frame(conn, &frame);
            n++;
        }
    }
    if (conn->share_ns <= 0 && conn->state == KVP_CONN_READS && conn->end == KVP_CONN_OPEN) {
        server->stats.turn_waits++;
        wait_in(conn, KVP_CONN_WAITS_TURN, &server->waits_turn);
    }
    return n;
}

/* feed_frames handles the received whole frames, and keeps the beginning of the next frame. The deadline of that frame
 * is set once, when its first bytes are kept. No deadline runs while the connection is not read. */
static void
feed_frames(kvp_server_conn_t *conn)
{
    kvp_server_t *server = conn->server;
    const bool is_next = handle_frames(conn) > 0;

    if (is_next && server->over_budget == conn) server->over_budget = NULL;
    if (conn->end != KVP_CONN_OPEN) {
        kvp_inbuf_fini(&conn->in);
    } else if (kvp_inbuf_keep(&conn->in) != KVP_OK) {
        kvp_server_log_complaint(server, conn, "connection closed: no memory for its frame");
        kvp_server_close_conn(conn);
    } else if (!is_greeted(conn)) {
        ; /* the deadline for the connection's first frame (Hello) stays */
    } else if (conn->in.own_len == 0 || conn->state != KVP_CONN_READS) {
        kvp_list_del(&conn->deadline_link);
    } else if (is_next || kvp_list_is_empty(&conn->deadline_link)) {
        kvp_server_set_deadline(conn, &server->cut, kvp_server_begin(server) + server->conf.partial_ms * KVP_NS_PER_MS);
    }
    count_input(conn);
    set_reading(conn);
}

/* kvp_server_let_in resumes connections that wait for memory, each when the rest of its frame fits in conf.input_max.
 * One connection at a time may exceed this limit: otherwise all could wait for one another. */
void
kvp_server_let_in(kvp_server_t *server)
{
    while (!kvp_list_is_empty(&server->waits_room)) {
        kvp_server_conn_t *conn = kvp_list_first(&server->waits_room, kvp_server_conn_t, wait_link);
        bool fits = server->stats.input_bytes + kvp_inbuf_wanted(&conn->in) <= server->conf.input_max;
        if (!fits && server->over_budget != NULL) return;
        if (!fits) server->over_budget = conn;
        kvp_list_del(&conn->wait_link);
        conn->state = KVP_CONN_READS;
        if (kvp_inbuf_make_room(&conn->in) != KVP_OK) {
            kvp_server_log_complaint(server, conn, "connection closed: no memory for its frame");
            kvp_server_close_conn(conn);
            continue;
        }
        count_input(conn);
        if (is_greeted(conn))
            kvp_server_set_deadline(conn, &server->cut,
                                    kvp_server_begin(server) + server->conf.partial_ms * KVP_NS_PER_MS);
        set_reading(conn);
        if (conn->tls != NULL) open_frames(conn, NULL, 0);
    }
}

/* kvp_server_has_time returns false if the turn has lasted so long that nothing new may begin in it. */
bool
kvp_server_has_time(kvp_server_t *server)
{
    return kvp_server_begin(server) - server->times->begin_ns < FRESH_NS;
}

/* kvp_server_take_turns serves the connections that wait for a turn, each at most once. */
void
kvp_server_take_turns(kvp_server_t *server)
{
    uint64_t began = kvp_boot_ns(), now = began;

    server->turn++;
    server->is_taking_turns = true;
    while (!kvp_list_is_empty(&server->waits_turn) && now - began < TURNS_NS) {
        kvp_server_conn_t *conn = kvp_list_first(&server->waits_turn, kvp_server_conn_t, wait_link);
        if (conn->turn == server->turn) break;
        kvp_server_begin(server);
        resume_conn(conn);
        kvp_server_flush_all(server);
        conn->asked_ns = 0;
        now = kvp_boot_ns();
    }
    server->is_taking_turns = false;
}

static void
find_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    kvp_server_conn_t *conn = handle->data;
    kvp_server_t *server = conn->server;
    const uint64_t kept = server->stats.input_bytes, max = server->conf.input_max;
    /* The more of input_max is used, the less is received in one read (1 KiB from half of it on): the connection may
     * have to wait for memory, and keeps the received bytes meanwhile. */
    const uint64_t at_once = kvp_max_u64(max / 2 - kvp_min_u64(max / 2, kept), KVP_INBUF_SMALL_BYTES);
    uint8_t *at;
    size_t len;

    (void)suggested;
    kvp_server_begin(server);
    kvp_err_t err = kvp_inbuf_room(&conn->in, server->shared, kvp_min_u64(KVP_SERVER_SHARED_BYTES, at_once),
                                   max - kvp_min_u64(max, kept), &at, &len);
    count_input(conn);
    if (err == KVP_OK) {
        *buf = uv_buf_init((char *)at, (unsigned)len);
        return;
    }
    *buf = uv_buf_init(NULL, 0); /* on_read gets ENOBUFS */
    if (err != KVP_EAGAIN) return;
    server->stats.room_waits++;
    if (is_greeted(conn)) kvp_list_del(&conn->deadline_link);
    wait_in(conn, KVP_CONN_WAITS_ROOM, &server->waits_room);
}

static void
take_bytes(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    kvp_server_conn_t *conn = stream->data;
    kvp_server_t *server = conn->server;

    (void)buf;
    if (nread == 0) return;
    kvp_server_begin(server);
    if (nread < 0 && conn->state == KVP_CONN_WAITS_ROOM) {
        set_reading(conn);
    } else if (nread < 0) {
        kvp_server_close_conn(conn);
    } else if (conn->end == KVP_CONN_OPEN) {
        server->stats.received_bytes += (size_t)nread;
        conn->received_ns = server->times->readable_ns;
        kvp_inbuf_received(&conn->in, (size_t)nread);
        feed_frames(conn);
    }
    kvp_server_flush_all(server);
    conn->asked_ns = 0;
}

/* open_frames decrypts the waiting encrypted bytes, then these n bytes, and handles the frames. */
static void
open_frames(kvp_server_conn_t *conn, const void *bytes, size_t n)
{
    kvp_err_t err = kvp_tls_feed(conn->tls, bytes, n);
    uv_buf_t room;

    if (conn->end == KVP_CONN_OPEN && conn->state == KVP_CONN_READS && err == KVP_OK && must_wait_turn(conn))
        set_reading(conn);
    while (err == KVP_OK && conn->end == KVP_CONN_OPEN && conn->state == KVP_CONN_READS) {
        find_room(&conn->uv.handle, 0, &room);
        if (room.base != NULL) err = kvp_tls_open(conn->tls, room.base, room.len, &n);
        if (err == KVP_OK) take_bytes(&conn->uv.stream, room.base == NULL ? UV_ENOBUFS : (ssize_t)n, &room);
    }
    if (err == KVP_OK || err == KVP_EAGAIN) return;
    if (err != KVP_DISCONNECTED) {
        conn->server->stats.framing_errors++;
        kvp_server_log_complaint(conn->server, conn, kvp_tls_why(conn->tls));
    }
    kvp_server_close_conn(conn);
}

static void
on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    kvp_server_conn_t *conn = handle->data;

    if (conn->tls == NULL)
        find_room(handle, suggested, buf);
    else
        *buf = uv_buf_init((char *)conn->server->sealed, KVP_SERVER_SEALED_BYTES);
}

static void
on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    kvp_server_conn_t *conn = stream->data;

    if (conn->tls == NULL || nread <= 0)
        take_bytes(stream, nread, buf);
    else
        open_frames(conn, buf->base, (size_t)nread);
}

/* take_slot gives the connection its number. Returns false if there are too many connections. */
static bool
take_slot(kvp_server_t *server, kvp_server_conn_t *conn)
{
    if (server->slot_free == server->slot_cap) {
        uint32_t cap = (uint32_t)kvp_min_u64(kvp_max_u64((uint64_t)server->slot_cap * 2, 64), server->conf.max_conns);
        kvp_server_slot_t *slots = cap > server->slot_cap ? realloc(server->slots, cap * sizeof(*slots)) : NULL;
        if (slots == NULL) return false;
        for (uint32_t i = server->slot_cap; i < cap; i++)
            slots[i] = (kvp_server_slot_t){.next_free = i + 1};
        server->slots = slots;
        server->slot_cap = cap;
    }
    conn->slot = server->slot_free;
    conn->id = ++server->conn_count << KVP_SERVER_SLOT_BITS | conn->slot;
    server->slot_free = server->slots[conn->slot].next_free;
    server->slots[conn->slot].conn = conn;
    server->stats.connections++;
    return true;
}

/* open_stream makes the libuv handle for fd. On failure the caller must close the handle, which also closes fd. */
static int
open_stream(kvp_server_t *server, kvp_server_conn_t *conn, int fd, bool is_unix)
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

void
kvp_server_open_conn(kvp_server_t *server, int fd, bool is_unix, kvp_tls_t *tls, bool has_failed)
{
    kvp_server_conn_t *conn = calloc(1, sizeof(*conn));
    uint64_t now = kvp_server_begin(server);

    if (conn == NULL || !take_slot(server, conn)) {
        server->stats.refused++;
        kvp_server_log_complaint(server, NULL, "connection refused: too many connections");
        free(conn);
        kvp_tls_destroy(tls);
        close(fd);
        return;
    }
    conn->server = server;
    conn->tls = tls;
    kvp_list_init(&conn->unsent_link);
    kvp_list_init(&conn->deadline_link);
    kvp_list_init(&conn->wait_link);
    server->stats.accepted++;
    if (open_stream(server, conn, fd, is_unix) != 0) {
        kvp_server_end_conn(conn);
        uv_close(&conn->uv.handle, on_closed);
        return;
    }
    kvp_server_set_deadline(conn, &server->before_hello, now + server->conf.hello_ms * KVP_NS_PER_MS);
    if (has_failed) {
        kvp_server_end_conn(conn);
        kvp_server_mark_unsent(conn);
    } else if (tls != NULL) {
        open_frames(conn, NULL, 0); /* frames that arrived with the last bytes of the handshake */
    }
}

/* kvp_server_expire_queue closes the connections at the head of a queue whose deadline has passed. */
void
kvp_server_expire_queue(kvp_server_t *server, kvp_list_t *queue, uint64_t now, const char *reason)
{
    while (!kvp_list_is_empty(queue)) {
        kvp_server_conn_t *conn = kvp_list_first(queue, kvp_server_conn_t, deadline_link);
        if (conn->deadline_ns > now) break;
        if (reason != NULL) {
            server->stats.timeouts++;
            kvp_server_log_complaint(server, conn, reason);
        }
        kvp_server_close_conn(conn);
    }
}
