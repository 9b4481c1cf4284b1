/* SPDX-License-Identifier: Apache-2.0
 * Shared by the handles of the C API: the count of calls under way, which close waits for, and at
 * open the environment's settings and the report of errors. Any number of threads may call. The
 * handle itself checks for fork first. */
#ifndef KVP_NET_CALLS_H
#define KVP_NET_CALLS_H

#include "common/base.h"

#include <pthread.h>

typedef struct {
    _Atomic uint64_t under_way; /* calls under way, and a bit for closed */
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t idle;
    bool is_idle; /* closed, and the last call has ended; guarded by lock */
} kvp_calls_t;

void kvp_calls_init(kvp_calls_t *calls);
void kvp_calls_fini(kvp_calls_t *calls);

/* kvp_calls_enter begins a call, which kvp_calls_leave ends; CLOSED where there are to be no more,
 * and then none has begun. */
kvp_err_t kvp_calls_enter(kvp_calls_t *calls) KVP_MUST_USE;
void kvp_calls_leave(kvp_calls_t *calls);

/* kvp_calls_are_closed is for calls that last: they end early. */
bool kvp_calls_are_closed(const kvp_calls_t *calls);

/* kvp_calls_close refuses new calls; CLOSED if another thread has closed already. kvp_calls_wait,
 * called after it, returns when the last call under way has ended. The caller interrupts blocked
 * calls first. */
kvp_err_t kvp_calls_close(kvp_calls_t *calls) KVP_MUST_USE;
void kvp_calls_wait(kvp_calls_t *calls);

/* kvp_refuse writes "what: why" to the caller's detail, or to the log if detail is NULL or of no
 * bytes. Returns err. */
kvp_err_t kvp_refuse(char *detail, size_t cap, kvp_err_t err, const char *what, const char *why);

#endif
