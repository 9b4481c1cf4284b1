/* SPDX-License-Identifier: Apache-2.0
 * e2e_clock: preloaded into a program, the clock of a host that is set wrong: E2E_CLOCK seconds are added to the time
 * of day. Clocks that measure intervals go on as before. Any thread. */
#include <stdlib.h>
#include <time.h>

__attribute__((visibility("default"))) time_t time(time_t *to);

time_t
time(time_t *to)
{
    const char *shift = getenv("E2E_CLOCK");
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += shift == NULL ? 0 : atol(shift);
    if (to != NULL) *to = now.tv_sec;
    return now.tv_sec;
}
