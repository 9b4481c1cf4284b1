/* SPDX-License-Identifier: Apache-2.0
 * See tty.h. */
#include "tools/base/tty.h"

#include "common/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHOW_NS (KVP_NS_PER_S / 5)

bool
kvp_cli_can_ask(void)
{
    return isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
}

bool
kvp_cli_confirm(const char *fmt, ...)
{
    char line[16] = "";
    va_list args;

    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, " Type yes to go on: ");
    return fgets(line, sizeof line, stdin) != NULL && strcmp(line, "yes\n") == 0;
}

void
kvp_progress_show(kvp_progress_t *p, const char *what, uint64_t done, uint64_t all)
{
    const uint64_t now = kvp_now_ns();

    if (p->began_ns == 0) p->began_ns = p->shown_ns = now;
    if (now - p->shown_ns < SHOW_NS || isatty(STDERR_FILENO) != 1) return;
    p->shown_ns = now;
    const double s = (double)(now - p->began_ns) / 1e9;
    if (all == 0 || done == 0)
        fprintf(stderr, "\r\x1b[K%llu %s, %.0f s", (unsigned long long)done, what, s);
    else
        fprintf(stderr, "\r\x1b[K%.0f %%, %llu of %llu %s, %.0f s left",
                100.0 * (double)kvp_min_u64(done, all) / (double)all, (unsigned long long)done, (unsigned long long)all,
                what, done < all ? s / (double)done * (double)(all - done) : 0.0);
    fflush(stderr);
}

void
kvp_progress_end(kvp_progress_t *p)
{
    if (p->shown_ns > p->began_ns) fprintf(stderr, "\r\x1b[K");
    p->shown_ns = p->began_ns;
}
