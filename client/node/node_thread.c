/* SPDX-License-Identifier: Apache-2.0
 * Starting and waking threads.
 */
#include "client/node/node_thread.h"

#include "common/log.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

kvp_err_t
kvp_thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(thread_out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        kvp_log_error("node", "cannot start thread %s: %s", name, strerror(rc));
        return KVP_SYS;
    }
    pthread_setname_np(*thread_out, name);
    return KVP_OK;
}

void
kvp_wake(int wake_fd)
{
    uint64_t one = 1;

    /* Fails only with the counter full, and then it is readable anyway. */
    if (write(wake_fd, &one, sizeof one) < 0) return;
}

void
kvp_gather_done(kvp_gather_t *g)
{
    int wake_fd = g->wake_fd;

    if (atomic_fetch_sub(&g->left, 1) == 1) kvp_wake(wake_fd);
}
