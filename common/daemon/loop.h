/* SPDX-License-Identifier: Apache-2.0
 * What every daemon does with its libuv loop: stop on a signal, answer questions of other threads on the loop's thread,
 * and say that it is ready. A daemon has one kvp_loop_t, on the loop that runs its core.
 */
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
    kvp_list_t calls; /* guarded by lock; those not begun */
} kvp_loop_t;

/* kvp_loop_start installs the signal handling on uv: the first SIGTERM or SIGINT runs on_stop(arg) on the loop's thread,
 * the second ends the process at once with exit code 1; SIGPIPE is ignored. Its handles keep uv_run going until
 * kvp_loop_stop. loop must not move afterwards. SYS, after which uv still needs a turn before kvp_loop_fini. */
kvp_err_t kvp_loop_start(kvp_loop_t *loop, uv_loop_t *uv, kvp_loop_fn on_stop, void *arg) KVP_MUST_USE;

/* kvp_loop_stop ends waiting calls with CLOSED and closes the handles, which takes a turn of uv_run. On the loop's thread.
 * May be repeated. kvp_loop_fini comes after uv_run has returned and no thread can call any more; legal on a zeroed loop. */
void kvp_loop_stop(kvp_loop_t *loop);
void kvp_loop_fini(kvp_loop_t *loop);

/* kvp_loop_call runs fn(arg) on the loop's thread and waits for it; from any other thread. DEADLINE if the loop did not
 * get to it within timeout_ms: fn will then never run. Once fn has begun the call waits for its end, however late, so
 * arg and what it points to may lie on the caller's stack. CLOSED after kvp_loop_stop, fn not run. */
kvp_err_t kvp_loop_call(kvp_loop_t *loop, kvp_loop_fn fn, void *arg, uint32_t timeout_ms) KVP_MUST_USE;

/* kvp_daemon_ready_line prints "ready listen=HOST:PORT unix=PATH http=HOST:PORT data=DIR|none" to standard output and
 * flushes it. A part that is NULL is left out. SYS if it cannot be written. */
kvp_err_t kvp_daemon_ready_line(const char *listen, const char *unix_path, const char *http, const char *data)
    KVP_MUST_USE;

#endif
