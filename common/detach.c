/* SPDX-License-Identifier: Apache-2.0
 */
#include "common/detach.h"

#include "common/thread.h"

#include <errno.h>

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
