/* SPDX-License-Identifier: Apache-2.0
 * Formats a log line on the stack and passes it to the sink in one piece. It takes no lock and allocates nothing,
 * so any thread may log, also with locks held. */
#include "common/log.h"

#include "common/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static _Atomic int log_level = KVP_LOG_INFO;
static kvp_log_sink_fn sink_fn;
static void *sink_arg;
static _Thread_local bool is_hushed;
static _Thread_local struct {
    char *text; /* buffer for the diverted message; NULL = lines are not diverted */
    size_t cap;
    kvp_log_level_t level; /* level of the diverted message */
} diverted;

void
kvp_log_set_level(kvp_log_level_t level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

bool
kvp_log_is_on(kvp_log_level_t level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void
kvp_log_set_sink(kvp_log_sink_fn fn, void *arg)
{
    sink_fn = fn;
    sink_arg = arg;
}

void
kvp_log_divert(char *text, size_t cap)
{
    diverted.text = cap > 0 ? text : NULL;
    diverted.cap = cap;
    diverted.level = KVP_LOG_WARN;
}

void
kvp_log_hush(bool is_on)
{
    is_hushed = is_on;
}

static void
replace_control(char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f) text[i] = '?';
    }
}

/* Writes the time, level and component. The wall clock is only for readers of the log; no decision depends on it. */
static size_t
format_prefix(char *line, size_t size, kvp_log_level_t level, const char *component)
{
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &tm);
    int more = snprintf(line + n, size - n, ".%03ldZ %-5s %s: ", ts.tv_nsec / 1000000, level_names[level], component);
    return more > 0 ? n + kvp_min_u64((uint64_t)more, size - n - 1) : n;
}

void
kvp_log_write(kvp_log_level_t level, const char *component, const char *fmt, ...)
{
    if (!kvp_log_is_on(level) || is_hushed) return;
    int saved_errno = errno;

    char line[LINE_MAX_BYTES]; /* buffer of the line; the last byte is for the newline, or for a sink's terminator */
    bool is_diverted = diverted.text != NULL && level <= KVP_LOG_WARN;
    size_t len = is_diverted ? 0 : format_prefix(line, sizeof(line), level, component);
    va_list ap;
    va_start(ap, fmt);
    errno = saved_errno; /* restores errno for %m in the format */
    int more = vsnprintf(line + len, sizeof(line) - len, fmt, ap);
    va_end(ap);
    if (more > 0) len += kvp_min_u64((uint64_t)more, sizeof(line) - len - 1);

    replace_control(line, len);
    if (is_diverted && level > diverted.level) {
        /* A warning after a stored error is dropped, because the caller shall get the error as the cause. */
    } else if (is_diverted) {
        diverted.level = level;
        snprintf(diverted.text, diverted.cap, "%.*s", (int)len, line);
    } else if (sink_fn != NULL) {
        line[len] = '\0';
        sink_fn(sink_arg, level, line);
    } else {
        line[len] = '\n';
        ssize_t n = write(STDERR_FILENO, line, len + 1);
        (void)n; /* an error of writing to standard error cannot be reported */
    }
    errno = saved_errno;
}

bool
kvp_log_limit_ok(kvp_log_limit_t *limit, uint32_t *missed_out)
{
    uint64_t now = kvp_now_ns();
    uint64_t interval_ns = limit->interval_ms * KVP_NS_PER_MS;
    uint64_t last = atomic_load_explicit(&limit->window_start_ns, memory_order_relaxed);
    uint64_t quiet_ns = now > last ? now - last : 0;
    bool is_ok = false;

    if (quiet_ns >= interval_ns) {
        /* If several threads ask at once, only the first may write the line of this interval. After burst + 1
         * intervals without a line, the whole burst is available again. */
        is_ok = atomic_compare_exchange_strong(&limit->window_start_ns, &last, now);
        if (is_ok && quiet_ns / (limit->burst + 1ull) >= interval_ns) atomic_store(&limit->in_window, 1);
    }
    if (!is_ok && atomic_load(&limit->in_window) < limit->burst) {
        is_ok = atomic_fetch_add(&limit->in_window, 1) < limit->burst;
    }
    if (!is_ok) {
        atomic_fetch_add(&limit->missed, 1);
        return false;
    }
    *missed_out = atomic_exchange(&limit->missed, 0);
    return true;
}
