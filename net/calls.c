/* SPDX-License-Identifier: Apache-2.0 */
#include "net/calls.h"

#include "common/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOSED (1ull << 63)

void
kvp_calls_init(kvp_calls_t *calls)
{
    *calls = (kvp_calls_t){.is_idle = false};
    pthread_mutex_init(&calls->lock, NULL);
    pthread_cond_init(&calls->idle, NULL);
}

void
kvp_calls_fini(kvp_calls_t *calls)
{
    pthread_cond_destroy(&calls->idle);
    pthread_mutex_destroy(&calls->lock);
}

static void
say_idle(kvp_calls_t *calls)
{
    pthread_mutex_lock(&calls->lock);
    calls->is_idle = true;
    pthread_cond_broadcast(&calls->idle);
    pthread_mutex_unlock(&calls->lock);
}

kvp_err_t
kvp_calls_enter(kvp_calls_t *calls)
{
    if ((atomic_fetch_add_explicit(&calls->under_way, 1, memory_order_acq_rel) & CLOSED) == 0) return KVP_OK;
    kvp_calls_leave(calls);
    return KVP_CLOSED;
}

void
kvp_calls_leave(kvp_calls_t *calls)
{
    if (atomic_fetch_sub_explicit(&calls->under_way, 1, memory_order_acq_rel) == (CLOSED | 1)) say_idle(calls);
}

bool
kvp_calls_are_closed(const kvp_calls_t *calls)
{
    return (atomic_load_explicit(&calls->under_way, memory_order_relaxed) & CLOSED) != 0;
}

kvp_err_t
kvp_calls_close(kvp_calls_t *calls)
{
    uint64_t before = atomic_fetch_or(&calls->under_way, CLOSED);

    if ((before & CLOSED) != 0) return KVP_CLOSED;
    if (before == 0) say_idle(calls);
    return KVP_OK;
}

void
kvp_calls_wait(kvp_calls_t *calls)
{
    pthread_mutex_lock(&calls->lock);
    while (!calls->is_idle)
        pthread_cond_wait(&calls->idle, &calls->lock);
    pthread_mutex_unlock(&calls->lock);
}

kvp_err_t
kvp_refuse(char *detail, size_t cap, kvp_err_t err, const char *what, const char *why)
{
    if (detail != NULL && cap > 0)
        snprintf(detail, cap, "%s: %s", what, why);
    else
        kvp_log_error("client", "%s: %s", what, why);
    return err;
}
