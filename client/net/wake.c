/* SPDX-License-Identifier: Apache-2.0
 * Waking threads.
 */
#include "client/net/wake.h"

#include <unistd.h>

void
kvp_wake(int wake_fd)
{
    uint64_t one = 1;

    /* Fails only with the counter full, and then it is readable anyway. */
    if (write(wake_fd, &one, sizeof one) < 0) return;
}

void
kvp_gather_done(kvp_gather_t *g)
{
    int wake_fd = g->wake_fd;

    if (atomic_fetch_sub(&g->left, 1) == 1) kvp_wake(wake_fd);
}
