/* SPDX-License-Identifier: Apache-2.0
 * The common part of every daemon's libuv loop: it stops the daemon on a signal, runs calls from other threads on
 * the loop's thread, and reports readiness. A daemon has one kvp_loop_t, on the loop that runs its core. */
#ifndef KVP_COMMON_DAEMON_LOOP_H
#define KVP_COMMON_DAEMON_LOOP_H

#include "common/list.h"
#include "common/parse.h"

#include <uv.h>

typedef void (*kvp_loop_fn)(void *arg);

typedef struct {
    uv_loop_t *uv; /* the libuv loop; borrowed; NULL = not started */
    kvp_loop_fn on_stop;
    void *on_stop_arg;
    bool is_stopping; /* a flag: a stop signal has arrived; only the loop's thread uses it */
    uv_signal_t sigterm;
    uv_signal_t sigint;
    uv_async_t wake;
    uv_mutex_t lock;
    bool has_lock;
    bool is_closed; /* a flag: kvp_loop_stop was called; guarded by lock */
    kvp_list_t calls; /* calls from other threads that have not begun; guarded by lock */
} kvp_loop_t;

/* kvp_loop_start installs signal handlers on uv. The first SIGTERM or SIGINT runs on_stop(arg) on the loop's thread;
 * the second one ends the process at once with exit code 1. SIGPIPE is ignored. The handles keep uv_run running until
 * kvp_loop_stop. loop must not move afterwards. After SYS, uv needs one more turn before kvp_loop_fini. */
kvp_err_t kvp_loop_start(kvp_loop_t *loop, uv_loop_t *uv, kvp_loop_fn on_stop, void *arg) KVP_MUST_USE;

/* kvp_loop_stop ends waiting calls with CLOSED and closes the handles, which takes a turn of uv_run. It must run
 * on the loop's thread, and may be repeated. kvp_loop_fini must come after uv_run has returned, when no thread
 * makes calls any more; legal on a zeroed loop. */
void kvp_loop_stop(kvp_loop_t *loop);
void kvp_loop_fini(kvp_loop_t *loop);

/* kvp_loop_call runs fn(arg) on the loop's thread and waits until it has ended; call it from any other thread.
 * DEADLINE: the loop did not begin fn within timeout_ms, and will never run it. Once fn has begun, the call waits
 * without a limit, so arg may be on the caller's stack. CLOSED: kvp_loop_stop was called, and fn did not run. */
kvp_err_t kvp_loop_call(kvp_loop_t *loop, kvp_loop_fn fn, void *arg, uint32_t timeout_ms) KVP_MUST_USE;

/* kvp_daemon_ready_line prints "ready listen=HOST:PORT unix=PATH http=HOST:PORT data=DIR|none" to standard output
 * and flushes it. A part that is NULL is omitted. SYS if writing fails. */
kvp_err_t kvp_daemon_ready_line(const char *listen, const char *unix_path, const char *http, const char *data)
    KVP_MUST_USE;

#endif
