/* SPDX-License-Identifier: Apache-2.0
 * Processes that a test forks. They die with it. Header only. */
#ifndef KVP_TEST_FORKED_H
#define KVP_TEST_FORKED_H

#include "tests/cases.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    pid_t pid;
    int from, to; /* pipes */
} other_t;

/* Forks, and runs what is given in a process of its own, which dies with this one. No endpoint may be open. */
static inline other_t
start(void (*run)(int from, int to))
{
    int up[2], down[2];
    other_t other;

    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    other.pid = fork();
    assert_true(other.pid >= 0);
    if (other.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(up[1]);
        close(down[0]);
        run(up[0], down[1]);
        _exit(0);
    }
    close(up[0]);
    close(down[1]);
    other.to = up[1];
    other.from = down[0];
    return other;
}

static inline void
finish(other_t *other)
{
    kill(other->pid, SIGKILL);
    assert_int_equal(waitpid(other->pid, NULL, 0), other->pid);
    close(other->from);
    close(other->to);
}

/* Stopped, when every thread of it is: one may be in the middle of a copy. */
static inline void
stop(const other_t *other)
{
    int status;

    assert_int_equal(kill(other->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(other->pid, &status, WUNTRACED), other->pid);
    assert_true(WIFSTOPPED(status));
}

/* in_child runs it in a forked child and returns what it returns, 0 to 255; -1: it was killed. expect_in_child: that
 * has to be 0. */
static inline int
in_child(int (*run)(void *arg), void *arg)
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(run(arg));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline void
expect_in_child(int (*run)(void *arg), void *arg)
{
    assert_int_equal(in_child(run, arg), 0);
}

#endif
