/* SPDX-License-Identifier: Apache-2.0
 * Handles signals, and runs calls from other threads on the loop's thread.
 *
 * Design notes.
 * - A call is on its caller's stack and is in exactly one state, guarded by the loop's lock: queued, running or ended.
 *   A caller can give up only a queued call. For a running call it must wait, because the loop's thread is inside fn,
 *   which does not block. So calls need no reference counts, copies or cleanup after a caller that gave up.
 * - uv_async_send is called with the lock held, after a check of is_closed, so that the handle cannot be closed
 *   meanwhile. */
#include "common/daemon/loop.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef enum {
    CALL_QUEUED,
    CALL_RUNNING,
    CALL_ENDED,
} call_state_t;

typedef struct {
    kvp_list_t link;
    kvp_loop_fn fn;
    void *arg;
    call_state_t state;
    kvp_err_t err;
    uv_cond_t ended;
} call_t;

static void
end_call(call_t *call, kvp_err_t err)
{
    call->state = CALL_ENDED;
    call->err = err;
    uv_cond_signal(&call->ended);
}

static call_t *
pop_call(kvp_loop_t *loop)
{
    if (kvp_list_is_empty(&loop->calls)) return NULL;
    call_t *call = kvp_list_first(&loop->calls, call_t, link);
    kvp_list_del(&call->link);
    return call;
}

static void
on_wake(uv_async_t *wake)
{
    kvp_loop_t *loop = wake->data;
    uv_mutex_lock(&loop->lock);
    for (call_t *call = pop_call(loop); call != NULL; call = pop_call(loop)) {
        call->state = CALL_RUNNING;
        uv_mutex_unlock(&loop->lock);
        call->fn(call->arg);
        uv_mutex_lock(&loop->lock);
        end_call(call, KVP_OK);
    }
    uv_mutex_unlock(&loop->lock);
}

static void
on_signal(uv_signal_t *handle, int signum)
{
    kvp_loop_t *loop = handle->data;
    if (loop->is_stopping) {
        kvp_log_warn("loop", "second signal: leaving at once signal=%s", strsignal(signum));
        _exit(1);
    }
    loop->is_stopping = true;
    kvp_log_info("loop", "stopping signal=%s", strsignal(signum));
    loop->on_stop(loop->on_stop_arg);
}

static int
start_signal(kvp_loop_t *loop, uv_signal_t *handle, int signum)
{
    handle->data = loop;
    int rc = uv_signal_init(loop->uv, handle);
    return rc == 0 ? uv_signal_start(handle, on_signal, signum) : rc;
}

kvp_err_t
kvp_loop_start(kvp_loop_t *loop, uv_loop_t *uv, kvp_loop_fn on_stop, void *arg)
{
    memset(loop, 0, sizeof(*loop));
    loop->uv = uv;
    loop->on_stop = on_stop;
    loop->on_stop_arg = arg;
    loop->wake.data = loop;
    kvp_list_init(&loop->calls);
    signal(SIGPIPE, SIG_IGN);

    int rc = uv_mutex_init(&loop->lock);
    if (rc != 0) goto fail;
    loop->has_lock = true;
    rc = uv_async_init(uv, &loop->wake, on_wake);
    if (rc != 0) goto fail;
    rc = start_signal(loop, &loop->sigterm, SIGTERM);
    if (rc != 0) goto fail;
    rc = start_signal(loop, &loop->sigint, SIGINT);
    if (rc != 0) goto fail;
    return KVP_OK;
fail:
    kvp_log_error("loop", "cannot start: %s", uv_strerror(rc));
    kvp_loop_stop(loop);
    return KVP_SYS;
}

static void
close_handle(uv_handle_t *handle)
{
    if (handle->type != UV_UNKNOWN_HANDLE && !uv_is_closing(handle)) uv_close(handle, NULL);
}

void
kvp_loop_stop(kvp_loop_t *loop)
{
    if (loop->uv == NULL || !loop->has_lock) return;
    uv_mutex_lock(&loop->lock);
    loop->is_closed = true;
    for (call_t *call = pop_call(loop); call != NULL; call = pop_call(loop))
        end_call(call, KVP_CLOSED);
    uv_mutex_unlock(&loop->lock);
    close_handle((uv_handle_t *)&loop->wake);
    close_handle((uv_handle_t *)&loop->sigterm);
    close_handle((uv_handle_t *)&loop->sigint);
}

void
kvp_loop_fini(kvp_loop_t *loop)
{
    if (loop->has_lock) uv_mutex_destroy(&loop->lock);
    memset(loop, 0, sizeof(*loop));
}

kvp_err_t
kvp_loop_call(kvp_loop_t *loop, kvp_loop_fn fn, void *arg, uint32_t timeout_ms)
{
    call_t call = {.fn = fn, .arg = arg, .state = CALL_QUEUED};
    if (uv_cond_init(&call.ended) != 0) return KVP_NOMEM;
    uint64_t deadline_ns = kvp_now_ns() + timeout_ms * KVP_NS_PER_MS;

    uv_mutex_lock(&loop->lock);
    if (loop->is_closed) {
        call.err = KVP_CLOSED;
        call.state = CALL_ENDED;
    } else {
        kvp_list_add_tail(&loop->calls, &call.link);
        uv_async_send(&loop->wake);
    }
    while (call.state != CALL_ENDED) {
        uint64_t now = kvp_now_ns();
        if (call.state == CALL_RUNNING) {
            uv_cond_wait(&call.ended, &loop->lock);
        } else if (now < deadline_ns) {
            (void)uv_cond_timedwait(&call.ended, &loop->lock, deadline_ns - now);
        } else {
            kvp_list_del(&call.link);
            call.err = KVP_DEADLINE;
            call.state = CALL_ENDED;
        }
    }
    uv_mutex_unlock(&loop->lock);
    uv_cond_destroy(&call.ended);
    return call.err;
}

kvp_err_t
kvp_daemon_ready_line(const char *listen, const char *unix_path, const char *http, const char *data)
{
    const char *const parts[][2] = {{"listen", listen}, {"unix", unix_path}, {"http", http}, {"data", data}};
    fputs("ready", stdout);
    for (size_t i = 0; i < KVP_ARRAY_LEN(parts); i++) {
        if (parts[i][1] != NULL) printf(" %s=%s", parts[i][0], parts[i][1]);
    }
    putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout)) {
        kvp_log_error("loop", "cannot write the ready line: %m");
        return KVP_SYS;
    }
    return KVP_OK;
}
