/* SPDX-License-Identifier: Apache-2.0
 * Log lines on standard error, in logfmt: time=... level=info part=tier msg="2 records found" dir=/nvme/kv. Each line
 * is one write(2) of at most 4 KiB, so lines of several threads do not mix. The sink, the level and the format are
 * global variables. Any thread may log. */
#ifndef KVP_COMMON_LOG_H
#define KVP_COMMON_LOG_H

#include "common/base.h"

typedef enum {
    KVP_LOG_ERROR = 0,
    KVP_LOG_WARN = 1,
    KVP_LOG_INFO = 2,
    KVP_LOG_DEBUG = 3,
} kvp_log_level_t;

typedef enum {
    KVP_LOG_TEXT = 0, /* logfmt */
    KVP_LOG_JSON = 1, /* one JSON object a line; the value of a pair is a number if its format is one integer */
} kvp_log_format_t;

void kvp_log_set_level(kvp_log_level_t level);
bool kvp_log_is_on(kvp_log_level_t level);

/* kvp_log_set_format sets the format of the lines. If standard error is a stream of journald (JOURNAL_STREAM), lines
 * begin with the priority, such as <6>, and have no time, because journald adds one. Until the first call, they have
 * the time. */
void kvp_log_set_format(kvp_log_format_t format);

/* kvp_log_format_parse reads "text", "json", or nothing (NULL or ""), which is text. Returns false for other texts. */
bool kvp_log_format_parse(const char *text, kvp_log_format_t *format_out);
const char *kvp_log_format_name(void); /* name of the format in use; constant */

/* kvp_log_set_sink sends complete lines (without newline) to fn instead of standard error; fn NULL restores
 * standard error. Do not call it while other threads log. */
typedef void (*kvp_log_sink_fn)(void *arg, kvp_log_level_t level, const char *line);
void kvp_log_set_sink(kvp_log_sink_fn fn, void *arg);

/* kvp_log_audit_open makes the lines of the component "audit" go to that file instead, at every level; NULL changes
 * nothing. The file is made with mode 0600, and made again after another process has moved it away. A line that cannot
 * be written goes to standard error. SYS, logged. Call it before other threads log. kvp_log_audit_ok limits these lines
 * of the process to 50 at once and 50 a second, as kvp_log_limit_ok does. */
kvp_err_t kvp_log_audit_open(const char *path) KVP_MUST_USE;
bool kvp_log_audit_ok(uint32_t *missed_out);

/* kvp_log_divert stores messages of the calling thread in text instead of logging them, for calls that return the
 * cause of an error to their caller. text keeps the last error, or if there is none the last warning: only the
 * sentence, cut to cap bytes with the terminator. text NULL ends the diversion. */
void kvp_log_divert(char *text, size_t cap);

/* kvp_log_hush drops the messages of the calling thread until it is called with false: for an attempt whose failure is
 * expected. */
void kvp_log_hush(bool is_on);

/* kvp_log_write writes one line. component is a static string such as "master". fmt has a sentence, then pairs, each a
 * blank, a key of lower-case letters, digits and _, an equals sign and the value: "2 records found dir=%s". A value
 * ends where the format's next pair begins, so it may have blanks, and bytes from a peer cannot add a pair. Values are
 * quoted and escaped; they are cut to 512 bytes, the sentence to 1 KiB, and both together to 2 KiB. errno is preserved.
 */
void kvp_log_write(kvp_log_level_t level, const char *component, const char *fmt, ...) KVP_PRINTF(3, 4);

#define kvp_log_error(component, ...) kvp_log_write(KVP_LOG_ERROR, component, __VA_ARGS__)
#define kvp_log_warn(component, ...) kvp_log_write(KVP_LOG_WARN, component, __VA_ARGS__)
#define kvp_log_info(component, ...) kvp_log_write(KVP_LOG_INFO, component, __VA_ARGS__)
#define kvp_log_debug(component, ...)                                                                                  \
    do {                                                                                                               \
        if (kvp_log_is_on(KVP_LOG_DEBUG)) kvp_log_write(KVP_LOG_DEBUG, component, __VA_ARGS__);                        \
    } while (0)

/* A rate limiter for log lines that a peer can cause: at most `burst` lines, then one line in each interval.
 * Thread-safe; set burst and interval_ms, and zero all other fields. kvp_log_limit_ok returns whether the line may
 * be written, and sets *missed_out to the number of lines suppressed since the last written line. */
typedef struct {
    uint32_t burst;
    uint32_t interval_ms;
    _Atomic uint64_t window_start_ns;
    _Atomic uint32_t in_window;
    _Atomic uint32_t missed;
} kvp_log_limit_t;
bool kvp_log_limit_ok(kvp_log_limit_t *limit, uint32_t *missed_out);

#endif
