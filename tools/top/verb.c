/* SPDX-License-Identifier: Apache-2.0
 * The verb top: a live view of the pool on the whole terminal, in plain ANSI escapes. The main thread has the terminal.
 * A thread asks the master, so that a master that does not answer holds up no key. model.c and draw.c do the rest. */
#include "tools/base/cli.h"

#include "tools/base/http.h"
#include "tools/base/json_out.h"
#include "tools/base/opts.h"
#include "tools/top/draw.h"
#include "tools/top/model.h"

#include "common/clock.h"
#include "common/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#define HTTP_PORT "9003" /* the default of a master's --http */
#define COLUMNS_LIMIT 1000u
#define ROWS_LIMIT 500u
#define SLOW_NS (2 * KVP_NS_PER_S) /* an answer that takes longer than this is reported before it arrives */

/* ---- the terminal */
/* State of the terminal before the view, which the handlers of crashes restore. stderr_fd: the original standard error;
 * meanwhile standard error is /dev/null, because log lines of the library would spoil the view. */
static struct termios saved_mode;
static volatile sig_atomic_t is_on_screen;
static int stderr_fd = -1;

/* Async-signal-safe. */
static void
leave_screen(void)
{
    static const char end[] = "\x1b[0m\x1b[?25h\x1b[?1049l";
    if (!is_on_screen) return;
    is_on_screen = 0;
    const ssize_t n = write(STDOUT_FILENO, end, sizeof end - 1);
    (void)n; /* if the terminal is closed, nothing can be restored */
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &saved_mode);
    (void)dup2(stderr_fd, STDERR_FILENO);
}

static void
on_crash(int sig)
{
    leave_screen();
    (void)raise(sig); /* SA_RESETHAND: the default action ends the process */
}

static bool
write_all(const char *text, size_t len)
{
    while (len > 0) {
        const ssize_t n = write(STDOUT_FILENO, text, len);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        text += n;
        len -= (size_t)n;
    }
    return true;
}

static bool
enter_screen(void)
{
    struct termios mode = saved_mode;
    const int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

    mode.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    is_on_screen = 1;
    if (null_fd >= 0) (void)dup2(null_fd, STDERR_FILENO);
    if (null_fd >= 0) close(null_fd);
    return tcsetattr(STDIN_FILENO, TCSAFLUSH, &mode) == 0 && write_all("\x1b[?1049h\x1b[?25l", 14);
}

/* ---- samples */
typedef struct {
    kvpool_t *pool;
    kvp_cli_common_t *common;
    /* the master's HTTP address; NULL = as the master reports, or the leader's host and the default port */
    const char *http;
    bool is_same_pool; /* flag: the HTTP server that last answered belongs to the pool */
    int orders[2], answers[2]; /* two pipes: a byte in `orders` requests a sample; `answers` returns a pointer to it */
} sampler_t;

/* Writes the address of the leader's HTTP port; false if no leader is known. */
static bool
find_http(const sampler_t *s, struct json_object *stat, char at[KVP_HTTP_TEXT_MAX])
{
    struct json_object *masters;
    const size_t n = kvp_json_get_list(stat, "masters", &masters);

    for (size_t i = 0; i < n && s->http == NULL; i++) {
        struct json_object *master = json_object_array_get_idx(masters, i);
        const char *address = kvp_json_get_text(master, "address"), *colon = strrchr(address, ':');

        if (strcmp(kvp_json_get_text(master, "state"), "leader") != 0 || colon == NULL) continue;
        if (kvp_cli_http_of(master, at)) return true;
        snprintf(at, KVP_HTTP_TEXT_MAX, "%.*s:" HTTP_PORT, (int)(colon - address), address);
        return true;
    }
    if (s->http != NULL) snprintf(at, KVP_HTTP_TEXT_MAX, "%s", s->http);
    return s->http != NULL;
}

/* Returns NULL if the HTTP server belongs to the same pool as the stat, else the reason why that cannot be confirmed.
 */
static const char *
compare_pools(const char *at, struct json_object *stat)
{
    const char *why = "its answer is not of a master";
    struct json_object *health = NULL;

    if (kvp_cli_http(at, KVP_IS_MASTER, "/health", NULL, &health, &why, NULL) == KVP_OK)
        why =
            strcmp(kvp_json_get_text(health, "pool_id"), kvp_json_get_text(kvp_json_get(stat, "pool"), "pool_id")) == 0
                ? NULL
                : "the server there belongs to another pool";
    json_object_put(health);
    return why;
}

/* Adds the master's metrics to the sample, or the reason why they are missing. */
static void
add_metrics(sampler_t *s, struct json_object *stat)
{
    const char *why = "its answer is not of a master";
    char at[KVP_HTTP_TEXT_MAX] = "the master", error[400], *text = NULL;

    if (json_object_get_boolean(kvp_json_get(kvp_json_get(stat, "pool"), "is_standby"))) {
        json_object_object_add(stat, "metrics_error", json_object_new_string("A standby answers no calls."));
        return;
    }
    if (!find_http(s, stat, at)) {
        why = "no master leads";
    } else {
        const char *difference = s->is_same_pool ? NULL : compare_pools(at, stat);

        s->is_same_pool = difference == NULL;
        if (difference != NULL)
            why = difference;
        else
            s->is_same_pool = kvp_cli_http_text(at, KVP_IS_MASTER, "/metrics", &text, &why) == KVP_OK;
    }
    if (text != NULL) {
        json_object_object_add(stat, "metrics", kvp_top_metrics(text));
        free(text);
        return;
    }
    snprintf(error, sizeof error, "No metrics from %s%s: %s. --http HOST:PORT names the master's HTTP port.",
             strncmp(at, "https://", 8) == 0 ? "" : "http://", at, why);
    json_object_object_add(stat, "metrics_error", json_object_new_string(error));
}

/* Thread of the sampler. A sample that failed has the member "error" alone. */
static void *
take_samples(void *arg)
{
    sampler_t *s = arg;
    struct json_object *sample;
    char byte;

    while (read(s->orders[0], &byte, 1) == 1) {
        const int err = kvp_json_stat(s->pool, 0, &sample);

        if (err == KVPOOL_OK) {
            add_metrics(s, sample);
        } else {
            sample = json_object_new_object();
            json_object_object_add(sample, "error", json_object_new_string(kvpool_strerror(err)));
        }
        if (write(s->answers[1], &sample, sizeof sample) != sizeof sample) break;
    }
    return NULL;
}

/* ---- the view */
typedef struct {
    sampler_t sampler;
    pthread_t thread;
    uint64_t interval_ns, due_ns, asked_ns;
    bool is_asking;
    struct json_object *last, *model; /* last: the last sample without an error; model: the shown one */
    char title[200], error[200]; /* error: the last sample's error; "" = none */
    kvp_top_view_t view;
    char *cells, *styles, *frame;
} top_t;

static bool
draw_screen(top_t *t)
{
    struct winsize size = {0};
    char trouble[300];
    size_t len = 0;
    const bool is_slow = t->is_asking && kvp_now_ns() - t->asked_ns > t->interval_ns + SLOW_NS;

    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    const uint32_t columns = size.ws_col == 0 ? 80 : (uint32_t)kvp_min_u64(size.ws_col, COLUMNS_LIMIT);
    const uint32_t rows = size.ws_row == 0 ? 24 : (uint32_t)kvp_min_u64(size.ws_row, ROWS_LIMIT);
    const size_t frame_cap = (size_t)rows * (columns + 32);
    t->cells = kvp_cli_realloc(t->cells, (size_t)rows * columns, 1);
    t->styles = kvp_cli_realloc(t->styles, rows, 1);
    t->frame = kvp_cli_realloc(t->frame, frame_cap, 1);
    snprintf(trouble, sizeof trouble, "for %.0f s. %s%sAsking again.",
             t->is_asking ? (double)(kvp_now_ns() - t->asked_ns) / 1e9 : 0.0, t->error,
             t->error[0] == '\0' ? "" : ". ");
    kvp_top_draw(t->model, t->title, t->error[0] != '\0' || is_slow ? trouble : NULL, &t->view, columns, rows, t->cells,
                 t->styles);
    for (uint32_t r = 0; r < rows; r++)
        len += (size_t)snprintf(t->frame + len, frame_cap - len, "\x1b[%u;1H%s%.*s\x1b[0m", r + 1,
                                t->styles[r] == 'r'   ? "\x1b[7m"
                                : t->styles[r] == 'b' ? "\x1b[1m"
                                                      : "",
                                (int)columns, t->cells + (size_t)r * columns);
    return write_all(t->frame, len);
}

static void
take_answer(top_t *t)
{
    struct json_object *sample;

    if (read(t->sampler.answers[0], &sample, sizeof sample) != sizeof sample) return;
    t->is_asking = false;
    snprintf(t->error, sizeof t->error, "%s", kvp_json_get_text(sample, "error"));
    if (t->error[0] != '\0') {
        json_object_put(sample);
        return;
    }
    if (!t->view.is_paused) {
        json_object_put(t->model);
        t->model = kvp_top_model(t->last, sample);
    }
    json_object_put(t->last);
    t->last = sample;
}

/* Reads keys and passes them to the view. Returns false if a key quits, or the terminal is closed. */
static bool
take_keys(top_t *t)
{
    char bytes[64];
    const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);

    if (n <= 0) return n < 0 && errno == EINTR;
    for (ssize_t i = 0; i < n; i++) {
        int key = (unsigned char)bytes[i];

        if (key == 0x1b && i + 2 < n && (bytes[i + 1] == '[' || bytes[i + 1] == 'O')) {
            const char kind = bytes[i + 2];

            key = kind == 'A'   ? KVP_TOP_KEY_UP
                  : kind == 'B' ? KVP_TOP_KEY_DOWN
                  : kind == '5' ? KVP_TOP_KEY_PAGE_UP
                  : kind == '6' ? KVP_TOP_KEY_PAGE_DOWN
                                : 0;
            for (i += 2; i + 1 < n && (bytes[i] < '@' || bytes[i] > '~'); i++)
                continue;
        }
        if (!kvp_top_key(&t->view, key)) return false;
    }
    return true;
}

/* Handles a signal. Returns false if the signal ends the view. */
static bool
take_signal(int fd)
{
    struct signalfd_siginfo info;

    if (read(fd, &info, sizeof info) != sizeof info) return true;
    if (info.ssi_signo == SIGWINCH) return true;
    if (info.ssi_signo != SIGTSTP) return false;
    leave_screen();
    (void)raise(SIGSTOP);
    return enter_screen();
}

static void
show_until_quit(top_t *t, int signals)
{
    struct pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {t->sampler.answers[0], POLLIN, 0}, {signals, POLLIN, 0}};
    bool goes_on = enter_screen();

    while (goes_on) {
        const uint64_t now = kvp_now_ns();

        if (!t->is_asking && now >= t->due_ns) {
            t->is_asking = write(t->sampler.orders[1], "", 1) == 1;
            t->asked_ns = now;
            t->due_ns = kvp_max_u64(t->due_ns + t->interval_ns, now);
        }
        goes_on = draw_screen(t);
        const uint64_t wait_ns = t->is_asking ? KVP_NS_PER_S / 2 : t->due_ns - kvp_min_u64(now, t->due_ns);
        if (!goes_on || poll(fds, KVP_ARRAY_LEN(fds), (int)(wait_ns / KVP_NS_PER_MS) + 1) < 0) continue;
        if (fds[1].revents != 0) take_answer(t);
        if (fds[2].revents != 0) goes_on = take_signal(signals);
        if (goes_on && fds[0].revents != 0) goes_on = take_keys(t);
    }
    leave_screen();
}

/* Sets up signals and the thread, and shows the view. */
static int
run_view(const kvp_cli_verb_t *verb, top_t *t)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    const struct sigaction crash = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND | SA_NODEFER};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < KVP_ARRAY_LEN(ends); i++)
        sigaddset(&set, ends[i]);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL); /* before threads start, which inherit the mask */
    const int signals = signalfd(-1, &set, SFD_CLOEXEC);
    const int code = kvp_cli_open(verb, t->sampler.common, &t->sampler.pool);
    if (code != KVP_EXIT_DONE) return code;
    stderr_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (signals < 0 || stderr_fd < 0 || tcgetattr(STDIN_FILENO, &saved_mode) != 0 ||
        pipe2(t->sampler.orders, O_CLOEXEC) != 0 || pipe2(t->sampler.answers, O_CLOEXEC) != 0 ||
        pthread_create(&t->thread, NULL, take_samples, &t->sampler) != 0)
        return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "setting up the view: %s", strerror(errno));
    for (size_t i = 0; i < KVP_ARRAY_LEN(crashes); i++)
        (void)sigaction(crashes[i], &crash, NULL);
    (void)atexit(leave_screen);
    t->due_ns = kvp_now_ns();
    show_until_quit(t, signals);
    /* The sampler's thread may wait for a master until its deadline. The user does not wait for the thread: the kernel
     * frees everything. */
    if (t->is_asking) _exit(KVP_EXIT_DONE);
    close(t->sampler.orders[1]);
    pthread_join(t->thread, NULL);
    kvpool_free(t->sampler.pool);
    json_object_put(t->last);
    json_object_put(t->model);
    free(t->cells);
    free(t->styles);
    free(t->frame);
    return KVP_EXIT_DONE;
}

int
kvp_cli_top(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    static top_t t = {.interval_ns = KVP_NS_PER_S};
    const kvp_cli_opt_t opts[] = {
        {"interval", KVP_CLI_DURATION, &t.interval_ns, "TIME", "the time between two samples (default 1s)", 100000000,
         3600 * KVP_NS_PER_S},
        {"http", KVP_CLI_TEXT, &t.sampler.http, "[https://]HOST:PORT",
         "the master's HTTP port, for latencies and tenants (default: as the master reports, else port " HTTP_PORT ")",
         0, 0}};
    const char *terminal = getenv("TERM");
    kvp_cli_common_t common;
    kvp_hostport_t at;
    bool has_tls;
    int first, code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    if (t.sampler.http != NULL && kvp_parse_http(t.sampler.http, &at, &has_tls) != KVP_OK)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "\"%s\" is not HOST:PORT", t.sampler.http);
    if (common.is_json || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) ||
        (terminal != NULL && strcmp(terminal, "dumb") == 0))
        return kvp_cli_complain(verb, KVP_EXIT_USAGE,
                                "needs a terminal; kvpool stat --watch prints a line each interval instead");
    common.state_only = common.masters_n == 1; /* a single named master is asked even if it does not lead */
    t.sampler.common = &common;
    snprintf(t.title, sizeof t.title, "kvpool top   %s   every %.6gs",
             common.master == NULL ? "127.0.0.1:50051" : common.master, (double)t.interval_ns / 1e9);
    return run_view(verb, &t);
}
