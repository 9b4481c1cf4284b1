/* SPDX-License-Identifier: Apache-2.0
 * The daemon's loop: calls from other threads and their deadlines, signals, the ready line. Signals are tried in a
 * child process of each test's own. */
#include "common/daemon/loop.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void
stop_loop(void *arg)
{
    kvp_loop_stop(arg);
}

/* Tests that fork come first, while the process has one thread. */
static void
stay(void *arg)
{
    (void)arg;
}

/* run_daemon is a child's whole life; it stops on the first signal only if is_willing. */
static void
run_daemon(bool is_willing)
{
    uv_loop_t uv;
    kvp_loop_t loop;
    if (uv_loop_init(&uv) != 0) _exit(100);
    if (kvp_loop_start(&loop, &uv, is_willing ? stop_loop : stay, &loop) != KVP_OK) _exit(101);
    if (kvp_daemon_ready_line("127.0.0.1:1", NULL, NULL, "none") != KVP_OK) _exit(102);
    raise(SIGPIPE);
    uv_run(&uv, UV_RUN_DEFAULT);
    kvp_loop_fini(&loop);
    _exit(uv_loop_close(&uv) == 0 ? 0 : 103);
}

/* fork_daemon returns when the child is ready. Its standard error is read from *log_fd_out. */
static pid_t
fork_daemon(bool is_willing, int *log_fd_out)
{
    int out[2], err[2];
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(err), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        run_daemon(is_willing);
    }
    close(out[1]);
    close(err[1]);
    char line[128] = {0};
    assert_true(read(out[0], line, sizeof(line) - 1) > 0);
    close(out[0]);
    assert_string_equal(line, "ready listen=127.0.0.1:1 data=none\n");
    *log_fd_out = err[0];
    return pid;
}

static int
exit_code(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(test_first_signal_stops_cleanly)
{
    static const int signals[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < KVP_ARRAY_LEN(signals); i++) {
        int log_fd;
        pid_t pid = fork_daemon(true, &log_fd);
        kill(pid, signals[i]);
        assert_int_equal(exit_code(pid), 0);
        close(log_fd);
    }
}

static void
read_until(int fd, const char *want)
{
    char text[1024] = {0};
    size_t len = 0;
    while (strstr(text, want) == NULL) {
        ssize_t n = read(fd, text + len, sizeof(text) - 1 - len);
        if (n <= 0) fail_msg("'%s' is not in the log: %s", want, text);
        len += (size_t)n;
    }
}

TEST(test_second_signal_ends_at_once)
{
    int log_fd;
    pid_t pid = fork_daemon(false, &log_fd);
    kill(pid, SIGTERM);
    read_until(log_fd, "stopping");
    kill(pid, SIGINT);
    assert_int_equal(exit_code(pid), 1);
    read_until(log_fd, "second signal");
    close(log_fd);
}

TEST(test_ready_line_has_all_parts_in_order)
{
    int out[2];
    assert_int_equal(pipe(out), 0);
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    dup2(out[1], STDOUT_FILENO);
    kvp_err_t err = kvp_daemon_ready_line("a:1", "/run/x", "b:2", "/d");
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(out[1]);
    char line[128] = {0};
    assert_true(read(out[0], line, sizeof(line) - 1) > 0);
    close(out[0]);
    assert_int_equal(err, KVP_OK);
    assert_string_equal(line, "ready listen=a:1 unix=/run/x http=b:2 data=/d\n");
}

/* A loop that runs on a thread of its own until stop. */
typedef struct {
    uv_loop_t uv;
    kvp_loop_t loop;
    pthread_t thread;
} fixture_t;

static void *
run_loop(void *arg)
{
    fixture_t *fix = arg;
    uv_run(&fix->uv, UV_RUN_DEFAULT);
    return NULL;
}

static int
setup(void **state)
{
    fixture_t *fix = calloc(1, sizeof(*fix));
    assert_non_null(fix);
    assert_int_equal(uv_loop_init(&fix->uv), 0);
    assert_int_equal(kvp_loop_start(&fix->loop, &fix->uv, stop_loop, &fix->loop), KVP_OK);
    assert_int_equal(pthread_create(&fix->thread, NULL, run_loop, fix), 0);
    *state = fix;
    return 0;
}

static int
teardown(void **state)
{
    fixture_t *fix = *state;
    kvp_err_t err = kvp_loop_call(&fix->loop, stop_loop, &fix->loop, 10000);
    assert_true(err == KVP_OK || err == KVP_CLOSED);
    pthread_join(fix->thread, NULL);
    assert_int_equal(uv_loop_close(&fix->uv), 0);
    kvp_loop_fini(&fix->loop);
    free(fix);
    return 0;
}

static void
note_thread(void *arg)
{
    *(pthread_t *)arg = pthread_self();
}

TEST_WITH(test_call_runs_on_the_loops_thread, setup, teardown)
{
    fixture_t *fix = *state;
    pthread_t ran_on = pthread_self();
    assert_int_equal(kvp_loop_call(&fix->loop, note_thread, &ran_on, 10000), KVP_OK);
    assert_true(pthread_equal(ran_on, fix->thread));
}

typedef struct {
    _Atomic bool has_begun;
    _Atomic bool may_end;
    _Atomic uint32_t count;
} gate_t;

static void
wait_at_gate(void *arg)
{
    gate_t *gate = arg;
    gate->has_begun = true;
    while (!gate->may_end)
        usleep(100);
}

static void
count_up(void *arg)
{
    atomic_fetch_add((_Atomic uint32_t *)arg, 1);
}

typedef struct {
    fixture_t *fix;
    gate_t *gate;
    kvp_err_t err;
} caller_t;

static void *
call_gate(void *arg)
{
    caller_t *caller = arg;
    /* On a busy machine the loop may not get to it in time, as it should not have to. */
    do {
        caller->err = kvp_loop_call(&caller->fix->loop, wait_at_gate, caller->gate, 1);
    } while (caller->err == KVP_DEADLINE);
    return NULL;
}

TEST_WITH(test_call_that_is_never_begun_ends_at_its_deadline, setup, teardown)
{
    fixture_t *fix = *state;
    gate_t gate = {0};
    caller_t caller = {.fix = fix, .gate = &gate};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, call_gate, &caller), 0);
    while (!gate.has_begun)
        usleep(100);

    uint64_t start = kvp_now_ns();
    assert_int_equal(kvp_loop_call(&fix->loop, count_up, &gate.count, 20), KVP_DEADLINE);
    assert_true(kvp_now_ns() - start >= 20 * KVP_NS_PER_MS);
    gate.may_end = true;
    pthread_join(thread, NULL);
    /* The call that had begun was waited for, far beyond its own deadline. */
    assert_int_equal(caller.err, KVP_OK);
    /* And the one that was given up never runs. */
    _Atomic uint32_t other = 0;
    assert_int_equal(kvp_loop_call(&fix->loop, count_up, &other, 10000), KVP_OK);
    assert_int_equal(other, 1);
    assert_int_equal(gate.count, 0);
}

enum { THREADS = 4, CALLS = 2000 };

static void *
call_many(void *arg)
{
    caller_t *caller = arg;
    uint32_t ok = 0;
    for (int i = 0; i < CALLS; i++) {
        kvp_err_t err = kvp_loop_call(&caller->fix->loop, count_up, &caller->gate->count, i % 3 == 0 ? 0 : 10000);
        if (err == KVP_OK) ok++;
    }
    caller->err = (kvp_err_t)ok;
    return NULL;
}

TEST_WITH(test_calls_of_many_threads_run_once_each, setup, teardown)
{
    fixture_t *fix = *state;
    gate_t gate = {0};
    caller_t callers[THREADS];
    pthread_t threads[THREADS];
    uint32_t ok = 0;
    for (int i = 0; i < THREADS; i++) {
        callers[i] = (caller_t){.fix = fix, .gate = &gate};
        assert_int_equal(pthread_create(&threads[i], NULL, call_many, &callers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        ok += (uint32_t)callers[i].err;
    }
    assert_int_equal(ok, gate.count);
    assert_true(ok >= THREADS * CALLS / 2);
}

TEST_WITH(test_call_after_stop_is_closed, setup, teardown)
{
    fixture_t *fix = *state;
    _Atomic uint32_t count = 0;
    assert_int_equal(kvp_loop_call(&fix->loop, stop_loop, &fix->loop, 10000), KVP_OK);
    assert_int_equal(kvp_loop_call(&fix->loop, count_up, &count, 10000), KVP_CLOSED);
    assert_int_equal(count, 0);
}

TEST_MAIN()
