/* SPDX-License-Identifier: Apache-2.0
 * Process descriptors (pidfds). A pidfd keeps naming its process when the process id is reused. Any thread may call. */
#ifndef KVP_NET_PIDFD_H
#define KVP_NET_PIDFD_H

#include "common/base.h"

/* kvp_pidfd_pid returns the process id of a pidfd; -1 = not a pidfd, or the process was reaped. kvp_pidfd_is_over
 * returns true if the process has exited. */
int kvp_pidfd_pid(int pidfd);
bool kvp_pidfd_is_over(int pidfd);

/* kvp_pidfd_check verifies that pidfd belongs to the process at the other end of the Unix socket, and returns this
 * process's id. INVALID: another process, or one in a namespace not visible here. SYS: see errno. */
kvp_err_t kvp_pidfd_check(int socket_fd, int pidfd, int *pid_out) KVP_MUST_USE;

#endif
