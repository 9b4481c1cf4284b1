/* SPDX-License-Identifier: Apache-2.0 */
#include "common/stdfd.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

void
kvp_stdfd_hold(void)
{
    /* open modes for the three descriptors; standard input is write-only and standard output read-only on purpose,
     * so that their use fails */
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDWR};

    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) != -1) continue;
        /* open returns the lowest free number, which is fd, because all lower ones are in use. */
        if (open("/dev/null", modes[fd]) != fd) abort();
    }
}
