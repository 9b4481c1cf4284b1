/* SPDX-License-Identifier: Apache-2.0 */
#include "net/pidfd.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

int
kvp_pidfd_pid(int pidfd)
{
    char path[64], line[128];
    int pid = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    f = fopen(path, "re");
    if (f == NULL) return -1;
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "Pid: %d", &pid) == 1) break;
    }
    fclose(f);
    return pid;
}

bool
kvp_pidfd_is_over(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

kvp_err_t
kvp_pidfd_check(int socket_fd, int pidfd, int *pid_out)
{
    struct ucred cred;
    socklen_t len = sizeof cred;

    if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) return KVP_SYS;
    /* pid 0: the peer's process namespace is not visible to this process */
    if (cred.pid <= 0 || kvp_pidfd_pid(pidfd) != cred.pid) return KVP_INVALID;
    *pid_out = cred.pid;
    return KVP_OK;
}
