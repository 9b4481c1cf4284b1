/* SPDX-License-Identifier: Apache-2.0
 * The calls of the core, and the loop's turns. conns.c has the connections: the way of a frame in (on_read,
 * feed_frames) and the way of an answer out (kvp_server_flush_one).
 *
 * Answers are collected from the core after every frame and written once, at the end of the callback: one system call
 * for a batch of pipelined requests. One spare buffer moves between the core and the connections, so a small frame
 * costs no allocation. */
#include "master/shell/server_priv.h"

#include <stdlib.h>
#include <unistd.h>

#define MAX_CONNS 65536u
#define SAVE_AGAIN_NS (5000 * KVP_NS_PER_MS)
#define SWEEP_NS (500 * KVP_NS_PER_MS) /* resolution of the timeouts */

static void on_save_end(uv_work_t *work, int status);
static void on_timer(uv_timer_t *timer);

/* kvp_server_begin returns the time at the beginning of a callback; the first one of a turn starts the turn's clock. */
uint64_t
kvp_server_begin(kvp_server_t *server)
{
    uint64_t now = kvp_boot_ns();
    if (kvp_times_begin(server->times, now)) (void)kvp_times_look(server->times, now, kvp_thread_ns());
    return now;
}

/* Returns true while the core must not act, because act_until_ns has passed: it gets no input, and sends no output. */
bool
kvp_server_is_fenced(kvp_server_t *server, uint64_t now)
{
    if (now >= server->act_until_ns && server->fence == KVP_FENCE_OPEN) server->fence = KVP_FENCE_SHUT;
    return server->fence != KVP_FENCE_OPEN;
}

void
kvp_server_note_times(kvp_server_t *server)
{
    kvp_master_note_times(server->master, kvp_times_step_longest(server->times), server->times->answer_longest_ns);
}

/* kvp_server_end_step is called after each call of the core. It records the call's duration, and returns the time. */
uint64_t
kvp_server_end_step(kvp_server_t *server, kvp_step_kind_t kind, uint64_t began)
{
    kvp_times_t *times = server->times;
    const uint64_t now = kvp_boot_ns();
    const uint64_t waited_ns = kvp_times_is_look_due(times, now) ? kvp_times_look(times, now, kvp_thread_ns()) : 0;
    if (kvp_times_step(times, kind, began, now, waited_ns)) kvp_server_note_times(server);
    return now;
}

/* kvp_server_arm_timer makes the timer fire at at_ns or earlier. The timer only ever moves to an earlier time, so
 * that frames that extend a deadline do not touch it. */
void
kvp_server_arm_timer(kvp_server_t *server, uint64_t at_ns, uint64_t now)
{
    if (at_ns >= server->timer_at_ns) return;
    server->timer_at_ns = at_ns;
    uint64_t delay_ns = at_ns > now ? at_ns - now : 0;
    uv_update_time(server->uv);
    uv_timer_start(&server->timer, on_timer, (delay_ns + KVP_NS_PER_MS - 1) / KVP_NS_PER_MS, 0);
}

/* kvp_server_log_complaint logs a line that a peer can cause, with the peer's address and a limited rate. */
void
kvp_server_log_complaint(kvp_server_t *server, kvp_server_conn_t *conn, const char *reason)
{
    char peer[KVP_PEER_TEXT_MAX] = "none";
    uv_os_fd_t fd;
    uint32_t missed;

    if (!kvp_log_limit_ok(&server->log_limit, &missed)) return;
    if (conn != NULL && uv_fileno(&conn->uv.handle, &fd) == 0) kvp_peer_text(fd, peer);
    kvp_log_warn("master", "%s peer=%s missed=%u", reason, peer, missed);
}

/* Saves the identity in a thread of libuv's pool, because a disk may take seconds. */
static void
on_save(uv_work_t *work)
{
    kvp_server_t *server = work->data;

    server->is_saved = server->conf.save_ident(server->conf.save_ident_arg, &server->ident);
}

/* Begins to save next_ident, or the last identity again after a failure. */
static void
save_ident(kvp_server_t *server)
{
    if (server->is_saving) return;
    if (server->next_ident.term != 0) server->ident = server->next_ident;
    server->next_ident.term = 0;
    server->is_saving = true;
    server->save_due_ns = UINT64_MAX;
    server->save.data = server;
    (void)uv_queue_work(server->uv, &server->save, on_save, on_save_end);
}

static void
queue_frames(kvp_server_t *server)
{
    kvp_master_ready_t *ready = &server->ready;
    kvp_server_conn_t *conn = kvp_server_find_conn(server, ready->conn);

    if (conn != NULL && conn->end == KVP_CONN_OPEN) {
        kvp_slow_answer(&server->slow, conn->id, &ready->frames, &conn->slow);
        if (ready->frames.len > 0 || ready->frames.err != KVP_OK) kvp_server_queue_output(conn, &ready->frames);
        if (ready->is_last) kvp_server_end_conn(conn);
        kvp_server_mark_unsent(conn);
    }
    kvp_buf_reset(&ready->frames);
}

/* kvp_server_hand_on is called after each input of the core. It passes the core's outputs on: records to the log,
 * frames to the connections, which are written at the end of the callback. conn is the connection of the input, for
 * log lines; NULL = none. */
void
kvp_server_hand_on(kvp_server_t *server, kvp_server_conn_t *conn)
{
    kvp_master_ready_t *ready = &server->ready;

    while (server->fence == KVP_FENCE_OPEN && kvp_master_ready(server->master, ready)) {
        if (ready->audit != NULL) kvp_server_note_audit(server, ready->audit);
        if (ready->note != NULL) kvp_server_log_complaint(server, conn, ready->note);
        if (server->conf.log != NULL) kvp_log_writer_add(server->conf.log, ready);
        if (ready->ident.term != 0 && server->conf.save_ident != NULL) {
            server->next_ident = ready->ident;
            save_ident(server);
        }
        if (ready->conn != 0) queue_frames(server);
    }
}

bool
kvp_server_is_mute(const kvp_server_t *server)
{
    return (server->ready.wishes & KVP_MASTER_MUTES) != 0;
}

/* Resumes the connections that were not read while the core could not answer. */
static void
wake_if_not_mute(kvp_server_t *server)
{
    for (uint32_t i = 0; i < server->slot_cap && !kvp_server_is_mute(server); i++)
        if (server->slots[i].conn != NULL && server->slots[i].conn->state == KVP_CONN_WAITS_READER)
            kvp_server_mark_unsent(server->slots[i].conn);
}

/* run_log starts long writes and syncs, and reports the written positions to the core, so that the core answers. */
static void
run_log(kvp_server_t *server)
{
    if (server->conf.log == NULL || server->is_stopping) return;
    if (kvp_server_is_fenced(server, kvp_boot_ns())) {
        if (server->events != NULL) kvp_publisher_turn(server->events, NULL);
        return;
    }
    const bool was_mute = kvp_server_is_mute(server);
    uint64_t now = kvp_server_begin(server);
    for (kvp_server_hand_on(server, NULL); kvp_log_writer_run(server->conf.log, &server->ready, now);) {
        now = kvp_server_end_step(server, KVP_STEP_TICK, now);
        kvp_server_hand_on(server, NULL);
    }
    const bool tells = (server->ready.wishes & KVP_MASTER_TELLS) != 0;
    if (server->events != NULL) kvp_publisher_turn(server->events, tells ? server->master : NULL);
    if (was_mute) wake_if_not_mute(server);
}

static void
on_log_moved(void *arg)
{
    kvp_server_t *server = arg;

    kvp_server_begin(server);
    kvp_server_flush_all(server);
}

/* kvp_server_flush_all is called at the end of every callback and sends all queued output. Closing one connection may
 * make the core produce output for others, which are added to the end of the list. */
void
kvp_server_flush_all(kvp_server_t *server)
{
    for (run_log(server); !kvp_list_is_empty(&server->unsent); run_log(server)) {
        kvp_server_conn_t *conn = kvp_list_first(&server->unsent, kvp_server_conn_t, unsent_link);
        kvp_list_del(&conn->unsent_link);
        kvp_server_flush_one(conn);
    }
}

static void
on_tick(kvp_server_t *server)
{
    const uint64_t now = kvp_server_begin(server);
    if (server->is_stopping || kvp_server_is_fenced(server, now)) return;
    kvp_master_on_tick(server->master, now);
    (void)kvp_server_end_step(server, KVP_STEP_TICK, now);
    kvp_server_hand_on(server, NULL);
}

static void
on_timer(uv_timer_t *timer)
{
    kvp_server_t *server = timer->data;
    uint64_t now = kvp_server_begin(server);

    server->timer_at_ns = UINT64_MAX;
    kvp_server_arm_timer(server, now + SWEEP_NS, now);
    kvp_server_expire_queue(server, &server->before_hello, now, "connection closed: no Hello in time");
    const uint64_t partial_ns = server->conf.partial_ms * KVP_NS_PER_MS;
    const uint64_t early_ns = kvp_list_is_empty(&server->waits_room) ? 0 : partial_ns - partial_ns / 10;
    kvp_server_expire_queue(server, &server->cut, now + early_ns,
                            "connection closed: the rest of a frame did not come");
    kvp_server_expire_queue(server, &server->ending, now, NULL);
    if (!server->is_stopping) kvp_server_check_identities(server);
    if (server->save_due_ns <= now && !server->is_stopping) save_ident(server);
    if (server->ready.tick_ns <= now) on_tick(server);
    kvp_server_flush_all(server);
}

static void
on_save_end(uv_work_t *work, int status)
{
    kvp_server_t *server = work->data;
    uint64_t now;

    (void)status;
    server->is_saving = false;
    if (server->is_stopping) return;
    now = kvp_server_begin(server);
    /* The core set a newer identity during the save: save that one, and report no result for the older one. */
    if (server->next_ident.term != 0) {
        save_ident(server);
        return;
    }
    if (!server->is_saved) server->save_due_ns = now + SAVE_AGAIN_NS;
    kvp_server_arm_timer(server, server->save_due_ns, now);
    const kvp_master_done_t done = {.kind = server->is_saved ? KVP_DONE_IDENT : KVP_DONE_IDENT_FAILED,
                                    .ident = &server->ident};
    kvp_master_done(server->master, &done, now);
    kvp_server_hand_on(server, NULL);
    wake_if_not_mute(server);
    kvp_server_flush_all(server);
}

static void
on_work(uv_idle_t *work)
{
    kvp_server_t *server = work->data;
    if ((server->ready.wishes & KVP_MASTER_WORKS) == 0) return; /* the core has no work: connections or the log have */
    on_tick(server);
    kvp_server_flush_all(server);
}

/* on_turn_end runs at the end of each turn, before the loop waits, for work that is needed once a turn instead of
 * once a frame. */
static void
on_turn_end(uv_prepare_t *prepare)
{
    kvp_server_t *server = prepare->data;

    if (!server->is_stopping) {
        kvp_server_let_in(server);
        kvp_server_take_turns(server);
    }
    if (server->conf.ops != NULL && !server->is_stopping) {
        kvp_server_begin(server);
        if (kvp_server_is_fenced(server, kvp_boot_ns()) && server->fence == KVP_FENCE_SHUT) {
            server->fence = KVP_FENCE_TOLD;
            server->conf.ops->on_fenced(server->conf.ops->arg);
        }
        server->conf.ops->on_turn(server->conf.ops->arg);
        kvp_server_flush_all(server);
    }
    const uint64_t now = kvp_boot_ns();
    if (!kvp_times_end(server->times, now) || server->is_stopping) return;
    const bool has_write = server->conf.log != NULL && kvp_log_writer_wants_write(server->conf.log, now);
    const bool has_work = (server->ready.wishes & KVP_MASTER_WORKS) != 0 && server->fence == KVP_FENCE_OPEN;
    if (has_write || has_work || !kvp_list_is_empty(&server->waits_turn)) {
        uv_idle_start(&server->work, on_work);
    } else {
        uv_idle_stop(&server->work);
    }
    if (server->fence != KVP_FENCE_OPEN) return; /* the core and the log get no timer while the core is fenced */
    kvp_server_arm_timer(server, server->ready.tick_ns, now);
    if (server->conf.log != NULL) kvp_server_arm_timer(server, kvp_log_writer_due(server->conf.log), now);
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
    server->conf.max_conns = (uint32_t)kvp_min_u64(or_default(conf->max_conns, MAX_CONNS), 1u << KVP_SERVER_SLOT_BITS);
    server->conf.hello_ms = or_default(conf->hello_ms, 5000);
    server->conf.partial_ms = or_default(conf->partial_ms, 10000);
    server->conf.linger_ms = or_default(conf->linger_ms, 500);
    if (server->conf.input_max == 0) server->conf.input_max = 64u << 20;
    if (server->conf.output_max == 0) server->conf.output_max = 64u << 20;
    server->save_due_ns = UINT64_MAX;
    server->act_until_ns = UINT64_MAX;
    server->log_limit.burst = 10;
    server->log_limit.interval_ms = 1000;
    server->slow.limit_ns = conf->slow_call_ns;
    server->slow.log_limit = (kvp_log_limit_t){.burst = 5, .interval_ms = 1000};
    kvp_listener_init(&server->tcp);
    kvp_listener_init(&server->local);
    kvp_list_init(&server->before_hello);
    kvp_list_init(&server->cut);
    kvp_list_init(&server->ending);
    kvp_list_init(&server->unsent);
    kvp_list_init(&server->waits_turn);
    kvp_list_init(&server->waits_room);

    server->shared = aligned_alloc(64, KVP_SERVER_SHARED_BYTES);
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
    kvp_buf_fini(&server->ready.log);
    kvp_buf_fini(&server->ready.frames);
    free(server->slots);
    free(server->shared);
    free(server->sealed);
    free(server);
}

/* Makes a connection from an accepted socket. With TLS, the handshake comes first. */
static void
on_accept(void *arg, int fd, bool is_unix)
{
    kvp_server_t *server = arg;

    if (is_unix || server->handshakes == NULL) {
        kvp_server_open_conn(server, fd, is_unix, NULL, false);
    } else if (kvp_handshakes_add(server->handshakes, fd) != KVP_OK) {
        server->stats.refused++;
        kvp_server_log_complaint(server, NULL, "connection refused: too many handshakes of TLS");
        close(fd);
    }
}

/* Makes connections from the sockets whose handshakes have ended. A peer without TLS gets a refusal with the reason, as
 * the answer to its first message. */
static void
on_handshakes(uv_async_t *async)
{
    kvp_server_t *server = async->data;
    kvp_handshake_t ended;

    while (server->handshakes != NULL && kvp_server_has_time(server) &&
           kvp_handshakes_take(server->handshakes, &ended)) {
        if (ended.err != KVP_OK) server->stats.denied[KVP_DENIED_tls]++;
        if (ended.err != KVP_OK && server->conf.authn != NULL)
            kvp_authn_audit(&ended.who, ended.peer, "TLS", "", ended.who.name, ended.err, ended.why);
        kvp_server_open_conn(server, ended.fd, false, ended.tls, ended.err != KVP_OK);
    }
    kvp_server_flush_all(server);
    if (!kvp_server_has_time(server)) (void)uv_async_send(async); /* the next turn takes the others, if there are any */
}

/* Called by the threads of the handshakes. */
static void
wake_loop(void *arg)
{
    (void)uv_async_send(arg);
}

static kvp_err_t
start_tls(kvp_server_t *server)
{
    char why[KVP_TLS_WHY_MAX];
    kvp_err_t err;

    if (server->conf.tls == NULL) return KVP_OK;
    server->sealed = malloc(KVP_SERVER_SEALED_BYTES);
    if (server->sealed == NULL) return KVP_NOMEM;
    if (uv_async_init(server->uv, &server->handshakes_wake, on_handshakes) != 0) return KVP_SYS;
    server->handshakes_wake.data = server;
    err = kvp_handshakes_start(server->conf.tls, KVP_IS_MASTER, wake_loop, &server->handshakes_wake,
                               &server->handshakes, why);
    if (err != KVP_OK) kvp_log_error("master", "TLS: %s", why);
    return err;
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
    kvp_server_hand_on(server, NULL);

    kvp_err_t err = start_tls(server);
    if (err == KVP_OK) err = kvp_listener_start(&server->tcp, uv, on_accept, server);
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
        kvp_server_begin(server);
        kvp_listener_close(&server->tcp);
        kvp_listener_close(&server->local);
        kvp_handshakes_stop(server->handshakes);
        server->handshakes = NULL;
        uv_idle_stop(&server->work);
        for (uint32_t i = 0; i < server->slot_cap; i++) {
            kvp_server_conn_t *conn = server->slots[i].conn;
            if (conn == NULL || uv_is_closing(&conn->uv.handle)) continue;
            kvp_server_end_conn(conn);
            kvp_server_mark_unsent(conn);
        }
        kvp_server_flush_all(server);
    }
    if (server->stats.connections > 0) return;
    close_handle((uv_handle_t *)&server->timer);
    close_handle((uv_handle_t *)&server->work);
    close_handle((uv_handle_t *)&server->turn_end);
    if (server->handshakes_wake.data != NULL) close_handle((uv_handle_t *)&server->handshakes_wake);
}

/* ---- election: several masters */
void
kvp_server_drop(kvp_server_t *server)
{
    for (uint32_t i = 0; i < server->slot_cap; i++) {
        kvp_server_conn_t *conn = server->slots[i].conn;
        if (conn != NULL && conn->owner == KVP_CONN_OF_CORE) kvp_server_close_conn(conn);
    }
}

void
kvp_server_swap(kvp_server_t *server, kvp_master_t *master)
{
    for (uint32_t i = 0; i < server->slot_cap; i++) {
        kvp_server_conn_t *conn = server->slots[i].conn;
        if (conn == NULL || conn->owner != KVP_CONN_OF_CORE) continue;
        conn->owner = KVP_CONN_OF_NOBODY; /* the core to which this connection belonged was removed */
        kvp_server_close_conn(conn);
    }
    server->master = master;
    kvp_server_hand_on(server, NULL);
}

void
kvp_server_act_until(kvp_server_t *server, uint64_t until_ns)
{
    server->act_until_ns = until_ns;
    /* on_fenced was not called, so close the core's connections: since the fence they may wait in vain for answers */
    if (server->fence == KVP_FENCE_SHUT) kvp_server_drop(server);
    server->fence = KVP_FENCE_OPEN;
}

kvp_master_t *
kvp_server_core(const kvp_server_t *server)
{
    return server->master;
}

void
kvp_server_send(kvp_server_t *server, uint64_t id, kvp_buf_t *bytes)
{
    kvp_server_conn_t *conn = kvp_server_find_conn(server, id);

    if (conn != NULL && conn->owner == KVP_CONN_OF_OPS && conn->end == KVP_CONN_OPEN) {
        kvp_server_queue_output(conn, bytes);
        kvp_server_mark_unsent(conn);
    }
    kvp_buf_reset(bytes);
}

void
kvp_server_reply(kvp_server_t *server, uint64_t id, uint8_t opcode, uint64_t request_id, const void *msg)
{
    kvp_buf_t out;

    kvp_buf_init(&out, 0);
    kvp_pb_frame(&out, opcode, KVP_FRAME_REPLY, request_id, msg, NULL, 0);
    kvp_server_send(server, id, &out);
    kvp_buf_fini(&out);
}

size_t
kvp_server_unsent(kvp_server_t *server, uint64_t id)
{
    const kvp_server_conn_t *conn = kvp_server_find_conn(server, id);

    return conn == NULL ? 0 : kvp_server_unsent_bytes(conn);
}

void
kvp_server_end(kvp_server_t *server, uint64_t id)
{
    kvp_server_conn_t *conn = kvp_server_find_conn(server, id);

    if (conn == NULL || conn->owner != KVP_CONN_OF_OPS) return;
    conn->owner = KVP_CONN_OF_NOBODY; /* ops asked for this end, so on_gone is not called */
    kvp_server_end_conn(conn);
    kvp_server_mark_unsent(conn);
}

void
kvp_server_give(kvp_server_t *server, uint64_t id)
{
    kvp_server_conn_t *conn = kvp_server_find_conn(server, id);

    if (conn == NULL || conn->owner != KVP_CONN_OF_OPS) return;
    conn->owner = KVP_CONN_OF_STRANGER;
    kvp_server_set_deadline(conn, &server->before_hello,
                            kvp_server_begin(server) + server->conf.hello_ms * KVP_NS_PER_MS);
}

void
kvp_server_flush(kvp_server_t *server)
{
    kvp_server_begin(server);
    kvp_server_hand_on(server, NULL);
    kvp_server_flush_all(server);
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
