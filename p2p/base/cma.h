/* SPDX-License-Identifier: Apache-2.0
 * Reading another process's memory (process_vm_readv), where this host lets us. Only reading: what is written into a process, that
 * process writes itself, so nobody depends on another's good manners after it took memory back. Any thread.
 */
#ifndef KVP_P2P_BASE_CMA_H
#define KVP_P2P_BASE_CMA_H

#include "p2p/base/wire.h"

#include <sys/types.h>
#include <sys/uio.h>

/* A process that was seen to be the right one. The empty value is {.fd = -1}. */
typedef struct {
    int fd; /* pidfd; -1 = not to be read */
    pid_t pid;
} kvp_cma_proc_t;

/* kvp_cma_open: OK where the process at the other end of this Unix socket is of our user and its nonce is where it was told
 * to be; NOTSUP where not, SYS where no descriptor was left for it. Only the kernel's word of who that is counts: who could name a process would read any, through us. */
kvp_err_t kvp_cma_open(int unix_fd, const kvp_peer_proc_t *told, kvp_cma_proc_t *proc_out) KVP_MUST_USE;
void kvp_cma_close(kvp_cma_proc_t *proc);

/* kvp_cma_read copies len bytes at from in that process to dst: OK, DISCONNECTED (it has ended), INVALID (not all of it can be
 * read there, or written here). After an error dst is undefined. */
kvp_err_t kvp_cma_read(const kvp_cma_proc_t *proc, uint64_t from, void *dst, size_t len) KVP_MUST_USE;

/* kvp_cma_readv does the same for n pieces of one length here and there, both arrays being used up. *done_n_out, also after an error,
 * is how many were copied whole: the next one is what the error is about. */
kvp_err_t kvp_cma_readv(const kvp_cma_proc_t *proc, struct iovec *there, struct iovec *here, uint32_t n,
                        uint32_t *done_n_out) KVP_MUST_USE;

/* kvp_cma_allow lets any process of this user read ours where the system wants that to be said (Yama, ptrace_scope 1). */
void kvp_cma_allow(void);

#endif
