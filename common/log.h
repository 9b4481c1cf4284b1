/* SPDX-License-Identifier: Apache-2.0
 * Log lines to standard error: time, level, component, sentence, key value tail. One write(2) a
 * line, so lines of several threads do not mix. The sink and the level are the only globals of the
 * tree. Any thread may log. */
#ifndef KVP_COMMON_LOG_H
#define KVP_COMMON_LOG_H

#include "common/base.h"

typedef enum {
    KVP_LOG_ERROR = 0,
    KVP_LOG_WARN = 1,
    KVP_LOG_INFO = 2,
    KVP_LOG_DEBUG = 3,
} kvp_log_level_t;

void kvp_log_set_level(kvp_log_level_t level);
bool kvp_log_is_on(kvp_log_level_t level);

/* kvp_log_set_sink sends finished lines (no newline) to fn instead of standard error; fn NULL restores it. Not to be
 * called while other threads log. */
typedef void (*kvp_log_sink_fn)(void *arg, kvp_log_level_t level, const char *line);
void kvp_log_set_sink(kvp_log_sink_fn fn, void *arg);

/* kvp_log_divert keeps the calling thread's last error message, or without an error its last
 * warning, as text and writes no line. Only the sentence is kept, cut to cap bytes with the
 * terminator. text NULL ends the diversion. For calls that return the cause to their caller. */
void kvp_log_divert(char *text, size_t cap);

/* kvp_log_write formats and writes one line of at most 1 KiB (longer ones are cut). component is a
 * static string such as "master". Control characters in the result are replaced, since parts of it
 * may come from a peer. Saves errno. */
void kvp_log_write(kvp_log_level_t level, const char *component, const char *fmt, ...) KVP_PRINTF(3, 4);

#define kvp_log_error(component, ...) kvp_log_write(KVP_LOG_ERROR, component, __VA_ARGS__)
#define kvp_log_warn(component, ...) kvp_log_write(KVP_LOG_WARN, component, __VA_ARGS__)
#define kvp_log_info(component, ...) kvp_log_write(KVP_LOG_INFO, component, __VA_ARGS__)
#define kvp_log_debug(component, ...)                                                                                  \
    do {                                                                                                               \
        if (kvp_log_is_on(KVP_LOG_DEBUG)) kvp_log_write(KVP_LOG_DEBUG, component, __VA_ARGS__);                        \
    } while (0)

/* A rate limiter for lines that a peer can cause: at most burst lines, then one each interval_ms.
 * Thread-safe; a zero value plus the two numbers is valid. kvp_log_limit_ok returns whether the
 * line may be written, and sets *missed_out to the number of lines suppressed since the last
 * written line. */
typedef struct {
    uint32_t burst;
    uint32_t interval_ms;
    _Atomic uint64_t window_start_ns;
    _Atomic uint32_t in_window;
    _Atomic uint32_t missed;
} kvp_log_limit_t;
bool kvp_log_limit_ok(kvp_log_limit_t *limit, uint32_t *missed_out);

#endif
