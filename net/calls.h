/* SPDX-License-Identifier: Apache-2.0
 * What the handles of the C API share: the calls under way, which close waits for, and at open what the environment says and how to
 * say what is wrong. Calls of any number of threads; fork is the handle's own to look at, before it comes here.
 */
#ifndef KVP_NET_CALLS_H
#define KVP_NET_CALLS_H

#include "common/base.h"

#include <pthread.h>

typedef struct {
    _Atomic uint64_t under_way; /* and whether it is closed */
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t idle;
    bool is_idle; /* closed, and the last call has gone; guarded by lock */
} kvp_calls_t;

void kvp_calls_init(kvp_calls_t *calls);
void kvp_calls_fini(kvp_calls_t *calls);

/* kvp_calls_enter begins a call, which kvp_calls_leave ends; CLOSED where there are to be no more, and then none has begun. */
kvp_err_t kvp_calls_enter(kvp_calls_t *calls) KVP_MUST_USE;
void kvp_calls_leave(kvp_calls_t *calls);

/* kvp_calls_are_closed is for calls that last: they end early. */
bool kvp_calls_are_closed(const kvp_calls_t *calls);

/* kvp_calls_close lets no more begin; CLOSED where somebody has done so before. kvp_calls_wait, after it, returns when those that
 * had begun have ended: what keeps them is the caller's to interrupt first. */
kvp_err_t kvp_calls_close(kvp_calls_t *calls) KVP_MUST_USE;
void kvp_calls_wait(kvp_calls_t *calls);

/* kvp_refuse says "what: why" in the caller's detail, or in the log where that is NULL or of no bytes. Returns err. */
kvp_err_t kvp_refuse(char *detail, size_t cap, kvp_err_t err, const char *what, const char *why);

#endif
