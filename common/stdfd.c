/* SPDX-License-Identifier: Apache-2.0 */
#include "common/stdfd.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

void
kvp_stdfd_hold(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDWR}; /* the first two are the wrong way round on purpose */

    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) != -1) continue;
        /* The lowest free number is fd itself: those below are taken. */
        if (open("/dev/null", modes[fd]) != fd) abort();
    }
}
