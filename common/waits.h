/* SPDX-License-Identifier: Apache-2.0
 * Waiting until a deadline in nanoseconds of CLOCK_MONOTONIC; UINT64_MAX = no deadline. Header only. */
#ifndef KVP_COMMON_WAITS_H
#define KVP_COMMON_WAITS_H

#include "common/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static inline void
kvp_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

static inline struct timespec
kvp_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / KVP_NS_PER_S), .tv_nsec = (long)(ns % KVP_NS_PER_S)};
}

/* kvp_cond_wait_until waits until the deadline or a signal. It may return early, so the caller checks its
 * condition and the clock. */
static inline void
kvp_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    struct timespec at = kvp_timespec(deadline_ns);

    if (deadline_ns == UINT64_MAX)
        pthread_cond_wait(cond, lock);
    else
        pthread_cond_timedwait(cond, lock, &at);
}

/* kvp_left_ms returns the time until the deadline, in ms, but at least 1, for callers for which 0 has another
 * meaning. */
static inline uint32_t
kvp_left_ms(uint64_t deadline_ns)
{
    uint64_t now = kvp_now_ns();
    uint64_t left_ms = deadline_ns > now ? (deadline_ns - now) / KVP_NS_PER_MS : 0;

    return (uint32_t)kvp_max_u64(1, kvp_min_u64(left_ms, UINT32_MAX));
}

/* kvp_cpu_relax pauses the processor briefly; for the body of a spin loop. */
static inline void
kvp_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* kvp_poll_until is poll(2) with a deadline. It returns the number of ready descriptors; 0 also after a signal. */
static inline int
kvp_poll_until(struct pollfd *fds, nfds_t n, uint64_t deadline_ns)
{
    uint64_t now = kvp_now_ns();
    struct timespec left = kvp_timespec(deadline_ns > now ? deadline_ns - now : 0);
    int ready = ppoll(fds, n, deadline_ns == UINT64_MAX ? NULL : &left, NULL);

    return ready < 0 ? 0 : ready;
}

#define KVP_POLL_SLICE_NS (100 * KVP_NS_PER_MS)

/* kvp_is_given_up returns whether the waiting thread shall stop waiting. flag NULL = the wait cannot be given up. */
static inline bool
kvp_is_given_up(const _Atomic bool *flag)
{
    return flag != NULL && atomic_load_explicit(flag, memory_order_relaxed);
}

/* kvp_poll_slice waits for p until the deadline, but for at most KVP_POLL_SLICE_NS, so that the caller can check
 * regularly whether to give up. */
static inline void
kvp_poll_slice(struct pollfd *p, uint64_t deadline_ns)
{
    kvp_poll_until(p, 1, kvp_min_u64(deadline_ns, kvp_now_ns() + KVP_POLL_SLICE_NS));
}

#endif
