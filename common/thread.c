/* SPDX-License-Identifier: Apache-2.0 */
#include "common/thread.h"

#include "common/log.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

/* Blocks all signals before it creates the thread, because a new thread inherits its creator's mask. If the thread
 * itself blocked signals, a signal could arrive before that. */
int
kvp_thread_create(pthread_t *thread_out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(thread_out, attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

bool
kvp_detach(void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    pthread_t thread;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    errno = kvp_thread_create(&thread, &attr, fn, arg);
    pthread_attr_destroy(&attr);
    return errno == 0;
}

kvp_err_t
kvp_thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *), void *arg)
{
    int rc = kvp_thread_create(thread_out, NULL, fn, arg);

    if (rc != 0) {
        kvp_log_error("thread", "cannot start thread %s: %s", name, strerror(rc));
        return KVP_SYS;
    }
    pthread_setname_np(*thread_out, name);
    return KVP_OK;
}

uint32_t
kvp_usable_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return (uint32_t)CPU_COUNT(&set);
}
