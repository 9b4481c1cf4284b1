/* SPDX-License-Identifier: Apache-2.0
 */
#include "common/detach.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

bool
kvp_detach(void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;

    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return errno == 0;
}
