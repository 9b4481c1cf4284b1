/* SPDX-License-Identifier: Apache-2.0
 * Starts threads in which all signals are blocked. Signals are for the program's own threads, also if this code is
 * a library in the program. */
#ifndef KVP_COMMON_THREAD_H
#define KVP_COMMON_THREAD_H

#include "common/base.h"

#include <pthread.h>

/* kvp_thread_start runs fn(arg) in a new thread with that name (at most 15 bytes) and with all signals blocked.
 * The caller joins the thread. SYS (logged) if the system creates no thread. */
kvp_err_t kvp_thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *), void *arg) KVP_MUST_USE;

/* kvp_thread_create works as pthread_create, with the same result, but blocks all signals in the new thread. It
 * logs nothing. */
int kvp_thread_create(pthread_t *thread_out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg) KVP_MUST_USE;

/* kvp_detach starts a detached thread, which must report its end itself. On failure it returns false, with errno. */
bool kvp_detach(void *(*fn)(void *), void *arg) KVP_MUST_USE;

/* kvp_usable_cpus returns the number of processors on which the calling thread may run; 1 if this is unknown. */
uint32_t kvp_usable_cpus(void);

#endif
