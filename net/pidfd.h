/* SPDX-License-Identifier: Apache-2.0
 * Processes by their descriptors, which name no other process when the number does. Any thread.
 */
#ifndef KVP_NET_PIDFD_H
#define KVP_NET_PIDFD_H

#include "common/base.h"

/* kvp_pidfd_pid returns the process id of a pidfd; -1 = not a pidfd, or the process was reaped.
 * kvp_pidfd_is_over: the process has exited. */
int kvp_pidfd_pid(int pidfd);
bool kvp_pidfd_is_over(int pidfd);

/* kvp_pidfd_check verifies that pidfd belongs to the process at the other end of the Unix socket,
 * and returns its id: INVALID, SYS. */
kvp_err_t kvp_pidfd_check(int socket_fd, int pidfd, int *pid_out) KVP_MUST_USE;

#endif
