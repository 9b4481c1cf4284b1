/* SPDX-License-Identifier: Apache-2.0
 * Formats a log line on the stack and passes it to the sink in one piece. It takes no lock and allocates nothing,
 * so any thread may log, also with locks held. */
#include "common/log.h"

#include "common/clock.h"
#include "common/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096u /* a pipe takes so many bytes in one piece (PIPE_BUF) */
#define END_MAX_BYTES 4u /* most bytes after the last value: quotation mark, brace, newline */
#define TEXT_MAX_BYTES 2048u /* most bytes of the sentence and the pairs together, before they are escaped */
#define MESSAGE_MAX_BYTES 1024u
#define VALUE_MAX_BYTES 512u
#define KEY_MAX_BYTES 40u
#define FORMAT_MAX_BYTES 512u /* a longer format is one sentence */

static const char *const level_names[] = {"error", "warn", "info", "debug"};

typedef struct {
    char bytes[LINE_MAX_BYTES];
    size_t len;
    bool has_pair;
} line_t;

static _Atomic int log_level = KVP_LOG_INFO;
static _Atomic int log_format = KVP_LOG_TEXT;
static _Atomic bool is_journal; /* standard error is a stream of journald */
static kvp_log_sink_fn sink_fn;
static void *sink_arg;
static struct {
    const char *path; /* file of the audit; NULL = audit lines go to standard error; borrowed */
    pthread_mutex_t lock; /* guards fd */
    int fd;
} audit = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};
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

void
kvp_log_set_format(kvp_log_format_t format)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    atomic_store_explicit(&log_format, (int)format, memory_order_relaxed);
    is_journal = stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
                 fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

const char *
kvp_log_format_name(void)
{
    return atomic_load_explicit(&log_format, memory_order_relaxed) == KVP_LOG_JSON ? "json" : "text";
}

bool
kvp_log_format_parse(const char *text, kvp_log_format_t *format_out)
{
    const bool is_json = text != NULL && strcmp(text, "json") == 0;
    if (text != NULL && text[0] != '\0' && !is_json && strcmp(text, "text") != 0) return false;
    *format_out = is_json ? KVP_LOG_JSON : KVP_LOG_TEXT;
    return true;
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

/* Appends the bytes, or nothing if they do not fit. */
static bool
append_bytes(line_t *line, const char *bytes, size_t len)
{
    if (line->len + len > LINE_MAX_BYTES - END_MAX_BYTES) return false;
    memcpy(line->bytes + line->len, bytes, len);
    line->len += len;
    return true;
}

static bool
needs_quotes(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] <= ' ' || text[i] > '~' || strchr("\"=\\", text[i]) != NULL) return true;
    }
    return len == 0;
}

/* Appends key=value, or "key":"value". A value is cut to `most` bytes, and then ends with "...". */
static void
append_pair(line_t *line, const char *key, size_t key_len, const char *value, size_t len, size_t most, bool is_number)
{
    const bool is_json = atomic_load_explicit(&log_format, memory_order_relaxed) == KVP_LOG_JSON;
    const bool is_quoted = is_json ? !is_number : needs_quotes(value, len);
    const char *blank = line->has_pair ? is_json ? "," : " " : is_json ? "{" : "";
    char text[KEY_MAX_BYTES + 8];
    int n = snprintf(text, sizeof text, is_json ? "%s\"%.*s\":%s" : "%s%.*s=%s", blank, (int)key_len, key,
                     is_quoted ? "\"" : "");

    if (!append_bytes(line, text, (size_t)n)) return;
    line->has_pair = true;
    for (size_t at = 0, used; at < len; at += used) {
        char escaped[KVP_ESCAPED_MAX];
        size_t escaped_len = kvp_utf8_escape(value + at, len - at, escaped, &used);
        if (at + used > most || !append_bytes(line, escaped, escaped_len)) {
            (void)append_bytes(line, "...", 3);
            break;
        }
    }
    if (is_quoted) line->bytes[line->len++] = '"';
}

/* Appends the time, which journald would add a second time, the level and the component. The wall clock is only for
 * readers of the log; no decision depends on it. */
static void
append_prefix(line_t *line, kvp_log_level_t level, const char *component, bool is_audit)
{
    char text[40];
    struct timespec ts;
    struct tm tm;

    if (is_journal && sink_fn == NULL && !is_audit) {
        static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
        (void)append_bytes(line, text, (size_t)snprintf(text, sizeof text, "<%d>", priorities[level]));
    } else {
        clock_gettime(CLOCK_REALTIME, &ts);
        gmtime_r(&ts.tv_sec, &tm);
        size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
        n += (size_t)snprintf(text + n, sizeof text - n, ".%03ldZ", ts.tv_nsec / 1000000);
        append_pair(line, "time", 4, text, n, VALUE_MAX_BYTES, false);
    }
    append_pair(line, "level", 5, level_names[level], strlen(level_names[level]), VALUE_MAX_BYTES, false);
    append_pair(line, "part", 4, component, strlen(component), VALUE_MAX_BYTES, false);
}

/* Returns a pointer to the blank before the format's next "key=", or to the format's end. */
static char *
find_pair(char *format)
{
    for (char *at = strchr(format, ' '); at != NULL; at = strchr(at + 1, ' ')) {
        size_t n = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz0123456789_");
        if (n > 0 && n <= KEY_MAX_BYTES && at[1 + n] == '=') return at;
    }
    return format + strlen(format);
}

/* Returns true if a value's format is one conversion of an integer, such as %llu. */
static bool
is_number(const char *format, const char *end)
{
    return end - format >= 2 && format[0] == '%' && format + 1 + strspn(format + 1, "lzhj") == end - 1 &&
           (end[-1] == 'u' || end[-1] == 'd');
}

/* Formats the first part of the format, and returns the length of its text, at most cap. */
static size_t
measure_part(const char *format, va_list ap, size_t cap)
{
    va_list copy;
    va_copy(copy, ap);
    int n = vsnprintf(NULL, 0, format, copy);
    va_end(copy);
    return n > 0 ? kvp_min_u64((uint64_t)n, cap) : 0;
}

/* Appends the sentence and the pairs of text, which was formatted with fmt. The begin of a pair is found by the length
 * of the formatted part before it. So a value that contains "key=" cannot add a pair. */
static void
append_text(line_t *line, const char *text, size_t len, const char *fmt, va_list ap, int error)
{
    char format[FORMAT_MAX_BYTES];
    snprintf(format, sizeof format, "%s", fmt);
    char *end = strlen(fmt) < sizeof format ? find_pair(format) : format + strlen(format);
    size_t from = 0, to = len;

    for (char *key = NULL; from <= len; from = to) {
        char *next = *end != '\0' ? find_pair(end + 1) : NULL;
        if (next != NULL) {
            *end = '\0';
            errno = error;
            to = measure_part(format, ap, len);
            *end = ' ';
        } else {
            to = len;
        }
        if (key == NULL) {
            append_pair(line, "msg", 3, text, to, MESSAGE_MAX_BYTES, false);
        } else {
            size_t key_len = (size_t)(strchr(key, '=') - key);
            size_t at = from + 1 + key_len + 1;
            if (at <= to) /* if not, the text was cut before the value */
                append_pair(line, key, key_len, text + at, to - at, VALUE_MAX_BYTES, is_number(key + key_len + 1, end));
        }
        if (next == NULL) break;
        key = end + 1;
        end = next;
    }
}

/* Opens the file of the audit; makes it again if another process has moved it away. The caller holds the lock. */
static bool
reach_audit_file(void)
{
    struct stat now, had;

    if (audit.fd >= 0 && stat(audit.path, &now) == 0 && fstat(audit.fd, &had) == 0 && now.st_ino == had.st_ino)
        return true;
    if (audit.fd >= 0) close(audit.fd);
    audit.fd = open(audit.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    return audit.fd >= 0;
}

kvp_err_t
kvp_log_audit_open(const char *path)
{
    bool is_open;

    if (path == NULL) return KVP_OK;
    pthread_mutex_lock(&audit.lock);
    audit.path = path;
    is_open = reach_audit_file();
    if (!is_open) audit.path = NULL;
    pthread_mutex_unlock(&audit.lock);
    if (!is_open) kvp_log_error("audit", "--audit: cannot write the file: %m file=%s", path);
    return is_open ? KVP_OK : KVP_SYS;
}

bool
kvp_log_audit_ok(uint32_t *missed_out)
{
    static kvp_log_limit_t limit = {.burst = 50, .interval_ms = 20};

    return kvp_log_limit_ok(&limit, missed_out);
}

/* Writes a line to the file of the audit. Returns false if that fails. */
static bool
write_audit(const line_t *line)
{
    bool is_ok;

    pthread_mutex_lock(&audit.lock);
    is_ok = reach_audit_file() && write(audit.fd, line->bytes, line->len + 1) == (ssize_t)line->len + 1;
    pthread_mutex_unlock(&audit.lock);
    return is_ok;
}

void
kvp_log_write(kvp_log_level_t level, const char *component, const char *fmt, ...)
{
    const bool is_audit = audit.path != NULL && strcmp(component, "audit") == 0;

    if ((!kvp_log_is_on(level) && !is_audit) || is_hushed) return;
    int saved_errno = errno;

    char text[TEXT_MAX_BYTES];
    va_list ap, copy;
    va_start(ap, fmt);
    va_copy(copy, ap);
    /* errno must be unchanged here, because the format may contain %m */
    int n = vsnprintf(text, sizeof text, fmt, copy);
    va_end(copy);
    size_t len = n > 0 ? kvp_min_u64((uint64_t)n, sizeof text - 1) : 0;

    if (diverted.text != NULL && level <= KVP_LOG_WARN) {
        /* A warning after a stored error is dropped, because the caller shall get the error as the cause. */
        if (level <= diverted.level) {
            diverted.level = level;
            replace_control(text, len);
            snprintf(diverted.text, diverted.cap, "%.*s", (int)len, text);
        }
    } else {
        line_t line = {.len = 0};
        append_prefix(&line, level, component, is_audit);
        append_text(&line, text, len, fmt, ap, saved_errno);
        if (atomic_load_explicit(&log_format, memory_order_relaxed) == KVP_LOG_JSON) line.bytes[line.len++] = '}';
        line.bytes[line.len] = sink_fn != NULL ? '\0' : '\n';
        if (sink_fn != NULL)
            sink_fn(sink_arg, level, line.bytes);
        else if (!(is_audit && write_audit(&line)) && write(STDERR_FILENO, line.bytes, line.len + 1) < 0)
            errno = saved_errno; /* an error of writing to standard error cannot be reported */
    }
    va_end(ap);
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
