/* SPDX-License-Identifier: Apache-2.0
 * Threads of ours take no signals: these are the program's, also where we are a library inside it.
 */
#ifndef KVP_COMMON_THREAD_H
#define KVP_COMMON_THREAD_H

#include "common/base.h"

#include <pthread.h>

/* kvp_thread_start runs fn(arg) in a new thread of that name (at most 15 bytes), with every signal
 * blocked. The caller joins the thread. SYS (logged) if the system creates no thread. */
kvp_err_t kvp_thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *), void *arg) KVP_MUST_USE;

/* kvp_thread_create is pthread_create, its result included, with every signal blocked in the new
 * thread. Logs nothing. */
int kvp_thread_create(pthread_t *thread_out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg) KVP_MUST_USE;

/* kvp_detach starts a detached thread: the thread itself has to report its end. Returns false, with
 * errno, on failure. */
bool kvp_detach(void *(*fn)(void *), void *arg) KVP_MUST_USE;

/* kvp_usable_cpus returns how many processors the calling thread may run on; 1 where that is not to be learnt. */
uint32_t kvp_usable_cpus(void);

#endif
