/* SPDX-License-Identifier: Apache-2.0
 * A signalfd.
 */
#include "client/cli/base/stop.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void
stop_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
}

int
kvp_stop_catch(void)
{
    sigset_t set;
    stop_signals(&set);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) return -1;
    return signalfd(-1, &set, SFD_CLOEXEC);
}

bool
kvp_stop_has_come(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct signalfd_siginfo taken;
    sigset_t set;
    if (poll(&p, 1, 0) <= 0 || read(fd, &taken, sizeof(taken)) < 0) return false;
    stop_signals(&set);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    return true;
}
