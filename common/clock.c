/* SPDX-License-Identifier: Apache-2.0
 * The system's clocks and random numbers. No function returns an error, because these system calls fail only on
 * kernels that lack them. */
#include "common/clock.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

static uint64_t
read_clock(clockid_t id)
{
    struct timespec ts;
    if (clock_gettime(id, &ts) != 0) kvp_panic("clock %d: %m", (int)id);
    return (uint64_t)ts.tv_sec * KVP_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t
kvp_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t
kvp_boot_ns(void)
{
    return read_clock(CLOCK_BOOTTIME);
}

uint64_t
kvp_thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void
kvp_random_bytes(void *dst, size_t len)
{
    uint8_t *at = dst;
    while (len > 0) {
        ssize_t n = getrandom(at, len, 0);
        if (n < 0 && errno == EINTR) continue; /* a signal interrupted the wait for the kernel's entropy at boot */
        if (n <= 0) kvp_panic("getrandom: %m");
        at += n;
        len -= (size_t)n;
    }
}

uint64_t
kvp_random_u64(void)
{
    uint64_t v = 0;
    while (v == 0)
        kvp_random_bytes(&v, sizeof(v));
    return v;
}
