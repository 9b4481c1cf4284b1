/* SPDX-License-Identifier: Apache-2.0
 * Shared by the handles of the C API: the count of running calls, for which close waits, and the report of errors at
 * open. Any number of threads may call. The handle itself checks for fork before. */
#ifndef KVP_NET_CALLS_H
#define KVP_NET_CALLS_H

#include "common/base.h"

#include <pthread.h>

typedef struct {
    _Atomic uint64_t under_way; /* number of running calls in the low bits; the top bit is set by kvp_calls_close */
    pthread_mutex_t lock; /* guards is_idle; its holder takes no other lock */
    pthread_cond_t idle;
    bool is_idle; /* true after close when the last call has ended; guarded by lock */
} kvp_calls_t;

void kvp_calls_init(kvp_calls_t *calls);
void kvp_calls_fini(kvp_calls_t *calls);

/* kvp_calls_enter begins a call, which kvp_calls_leave ends. Returns CLOSED after kvp_calls_close; then no call has
 * begun. */
kvp_err_t kvp_calls_enter(kvp_calls_t *calls) KVP_MUST_USE;
void kvp_calls_leave(kvp_calls_t *calls);

/* kvp_calls_are_closed returns true after kvp_calls_close. Long calls use it to end early. */
bool kvp_calls_are_closed(const kvp_calls_t *calls);

/* kvp_calls_close makes kvp_calls_enter refuse new calls. It returns CLOSED if another thread has closed already.
 * kvp_calls_wait, called after it, returns when the last running call has ended. Before the wait the caller
 * interrupts blocked calls. */
kvp_err_t kvp_calls_close(kvp_calls_t *calls) KVP_MUST_USE;
void kvp_calls_wait(kvp_calls_t *calls);

/* kvp_refuse writes "what: why" to the caller's detail, or to the log if detail is NULL or cap is 0. Returns err. */
kvp_err_t kvp_refuse(char *detail, size_t cap, kvp_err_t err, const char *what, const char *why);

#endif
