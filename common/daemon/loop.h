/* SPDX-License-Identifier: Apache-2.0
 * The common part of every daemon's libuv loop: stop on a signal, run calls of other threads on the
 * loop's thread, and report readiness. A daemon has one kvp_loop_t, on the loop that runs its core. */
#ifndef KVP_COMMON_DAEMON_LOOP_H
#define KVP_COMMON_DAEMON_LOOP_H

#include "common/list.h"

#include <uv.h>

typedef void (*kvp_loop_fn)(void *arg);

typedef struct {
    uv_loop_t *uv; /* borrowed; NULL = not started */
    kvp_loop_fn on_stop;
    void *on_stop_arg;
    bool is_stopping; /* a signal has come; loop thread only */
    uv_signal_t sigterm;
    uv_signal_t sigint;
    uv_async_t wake;
    uv_mutex_t lock;
    bool has_lock;
    bool is_closed; /* guarded by lock */
    kvp_list_t calls; /* calls not begun yet; guarded by lock */
} kvp_loop_t;

/* kvp_loop_start installs the signal handling on uv: the first SIGTERM or SIGINT runs on_stop(arg)
 * on the loop's thread, the second ends the process at once with exit code 1; SIGPIPE is ignored.
 * Its handles keep uv_run going until kvp_loop_stop. loop must not move afterwards. SYS, after
 * which uv still needs a turn before kvp_loop_fini. */
kvp_err_t kvp_loop_start(kvp_loop_t *loop, uv_loop_t *uv, kvp_loop_fn on_stop, void *arg) KVP_MUST_USE;

/* kvp_loop_stop ends waiting calls with CLOSED and closes the handles, which takes a turn of
 * uv_run. On the loop's thread. May be repeated. kvp_loop_fini comes after uv_run has returned and
 * no thread can call any more; legal on a zeroed loop. */
void kvp_loop_stop(kvp_loop_t *loop);
void kvp_loop_fini(kvp_loop_t *loop);

/* kvp_loop_call runs fn(arg) on the loop's thread and waits for the end; call from any other
 * thread. DEADLINE if the loop did not begin fn within timeout_ms: fn will never run. After fn has
 * begun, the call waits for its end without a limit, so arg may lie on the caller's stack. CLOSED
 * after kvp_loop_stop, without running fn. */
kvp_err_t kvp_loop_call(kvp_loop_t *loop, kvp_loop_fn fn, void *arg, uint32_t timeout_ms) KVP_MUST_USE;

/* kvp_daemon_ready_line prints "ready listen=HOST:PORT unix=PATH http=HOST:PORT data=DIR|none" to
 * standard output and flushes it. Omits a part that is NULL. SYS if writing fails. */
kvp_err_t kvp_daemon_ready_line(const char *listen, const char *unix_path, const char *http, const char *data)
    KVP_MUST_USE;

#endif
