/* SPDX-License-Identifier: Apache-2.0
 * What a thread of ours has of its creator: no signals; and what the creator keeps: its own. */
#include "common/thread.h"
#include "tests/cases.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>

typedef struct {
    sem_t named; /* the thread has its name: it may look */
    sem_t done;
    bool is_blocked; /* every signal that can be */
    char name[16];
} seen_t;

static bool
takes_no_signal(void)
{
    sigset_t mask;

    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int sig = 1; sig < SIGSYS; sig++)
        if (sig != SIGKILL && sig != SIGSTOP && sigismember(&mask, sig) == 0) return false;
    return sigismember(&mask, SIGRTMIN) == 1 && sigismember(&mask, SIGRTMAX) == 1;
}

static void *
look(void *arg)
{
    seen_t *seen = arg;

    sem_wait(&seen->named);
    seen->is_blocked = takes_no_signal();
    pthread_getname_np(pthread_self(), seen->name, sizeof seen->name);
    sem_post(&seen->done);
    return NULL;
}

static seen_t *
seen_make(void)
{
    static seen_t seen;

    memset(&seen, 0, sizeof seen);
    assert_int_equal(sem_init(&seen.named, 0, 0), 0);
    assert_int_equal(sem_init(&seen.done, 0, 0), 0);
    return &seen;
}

/* The mask of the caller, one signal blocked already, is as before. */
static void
block_usr1(void)
{
    sigset_t one;

    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &one, NULL), 0);
}

static void
check_usr1_alone_is_blocked(void)
{
    sigset_t mask;

    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    for (int sig = 1; sig < SIGSYS; sig++)
        assert_int_equal(sigismember(&mask, sig), sig == SIGUSR1);
}

TEST(test_thread_start_takes_no_signals_and_has_its_name)
{
    seen_t *seen = seen_make();
    pthread_t thread;

    block_usr1();
    assert_int_equal(kvp_thread_start(&thread, "kvp-test-thread", look, seen), KVP_OK);
    check_usr1_alone_is_blocked();
    sem_post(&seen->named);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(seen->is_blocked);
    assert_string_equal(seen->name, "kvp-test-thread");
}

TEST(test_detach_takes_no_signals)
{
    seen_t *seen = seen_make();

    block_usr1();
    assert_true(kvp_detach(look, seen));
    check_usr1_alone_is_blocked();
    sem_post(&seen->named);
    sem_wait(&seen->done);
    assert_true(seen->is_blocked);
}

/* A stack larger than the address space: there is no thread. */
TEST(test_thread_says_that_there_is_none)
{
    pthread_attr_t usual, huge;
    pthread_t thread;
    int rc;

    block_usr1();
    assert_int_equal(pthread_getattr_default_np(&usual), 0);
    assert_int_equal(pthread_attr_init(&huge), 0);
    assert_int_equal(pthread_attr_setstacksize(&huge, (size_t)1 << 50), 0);
    rc = kvp_thread_create(&thread, &huge, look, NULL);
    assert_int_equal(rc, EAGAIN);
    assert_int_equal(pthread_setattr_default_np(&huge), 0);
    assert_int_equal(kvp_thread_start(&thread, "kvp-test-thread", look, NULL), KVP_SYS);
    assert_false(kvp_detach(look, NULL));
    assert_int_equal(errno, EAGAIN);
    check_usr1_alone_is_blocked();
    assert_int_equal(pthread_setattr_default_np(&usual), 0);
    pthread_attr_destroy(&usual);
    pthread_attr_destroy(&huge);
}

TEST_MAIN()
