/* SPDX-License-Identifier: Apache-2.0
 * Reads another process's memory (process_vm_readv), if this host permits it. There is no function to write it: a
 * process writes its own memory itself, so an owner that takes memory back does not depend on a peer's good
 * behaviour. Any thread may call. */
#ifndef KVP_P2P_BASE_CMA_H
#define KVP_P2P_BASE_CMA_H

#include "p2p/base/wire.h"

#include <sys/types.h>
#include <sys/uio.h>

/* A process whose identity was verified. The empty value is {.fd = -1}. */
typedef struct {
    int fd; /* pidfd; -1 = the process must not be read */
    pid_t pid;
} kvp_cma_proc_t;

/* kvp_cma_open verifies the process at the other end of the Unix socket: it belongs to our user and has its nonce at
 * the stated address. NOTSUP if not, SYS without a free file descriptor. Only the kernel's statement of the process id
 * counts, because a peer that could name any process could read that process through us. */
kvp_err_t kvp_cma_open(int unix_fd, const kvp_peer_proc_t *told, kvp_cma_proc_t *proc_out) KVP_MUST_USE;
void kvp_cma_close(kvp_cma_proc_t *proc);

/* kvp_cma_readv copies n pieces from the process; there[i] and here[i] have the same length. The call changes both
 * arrays. OK, DISCONNECTED (the process has ended), INVALID (some bytes cannot be read there, or written here).
 * *done_n_out, also after an error, is the number of completely copied pieces: the next piece caused the error, and
 * its bytes here are undefined. */
kvp_err_t kvp_cma_readv(const kvp_cma_proc_t *proc, struct iovec *there, struct iovec *here, uint32_t n,
                        uint32_t *done_n_out) KVP_MUST_USE;

/* kvp_cma_allow lets any process of this user read our memory, on systems that require permission for this (Yama,
 * ptrace_scope 1). */
void kvp_cma_allow(void);

#endif
