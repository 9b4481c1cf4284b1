/* SPDX-License-Identifier: Apache-2.0
 * Design notes. A process id may be given to another process as soon as its owner has ended. The pidfd was opened
 * before the nonce was read, and is checked after every copy: a process that still lives after the copy had this id all
 * the time. Before the pidfd was opened, the peer may have passed its socket on and ended; the new owner of the id is a
 * process of the same user, which could read whatever this process can. */
#include "p2p/base/cma.h"

#include "common/forkguard.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool
has_ended(const kvp_cma_proc_t *proc)
{
    struct pollfd p = {.fd = proc->fd, .events = POLLIN};

    int n;

    do
        n = poll(&p, 1, 0);
    while (n < 0 && errno == EINTR);
    return n != 0;
}

static bool
has_nonce(const kvp_cma_proc_t *proc, const kvp_peer_proc_t *told)
{
    uint8_t nonce[KVP_PEER_NONCE_BYTES];
    struct iovec there = {.iov_base = (void *)(uintptr_t)told->nonce_at, .iov_len = sizeof nonce};
    struct iovec here = {.iov_base = nonce, .iov_len = sizeof nonce};
    uint32_t done_n;

    if (kvp_cma_readv(proc, &there, &here, 1, &done_n) != KVP_OK) return false;
    return memcmp(nonce, told->nonce, sizeof nonce) == 0;
}

kvp_err_t
kvp_cma_open(int unix_fd, const kvp_peer_proc_t *told, kvp_cma_proc_t *proc_out)
{
    kvp_cma_proc_t proc = {.fd = -1};
    struct ucred who;
    socklen_t len = sizeof who;

    *proc_out = proc;
    if (!told->is_told || getsockopt(unix_fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0) return KVP_NOTSUP;
    if (who.pid <= 0 || who.uid != geteuid()) return KVP_NOTSUP; /* pid 0: a process of another namespace */
    proc.pid = who.pid;
    proc.fd = (int)syscall(SYS_pidfd_open, proc.pid, 0);
    if (proc.fd < 0) return errno == EMFILE || errno == ENFILE ? KVP_SYS : KVP_NOTSUP;
    if (!has_nonce(&proc, told)) {
        close(proc.fd);
        return KVP_NOTSUP;
    }
    kvp_forkguard_add(proc.fd);
    *proc_out = proc;
    return KVP_OK;
}

void
kvp_cma_close(kvp_cma_proc_t *proc)
{
    kvp_forkguard_close(proc->fd);
    *proc = (kvp_cma_proc_t){.fd = -1};
}

/* Advances both iovec lists by `got` copied bytes. Returns the number of pieces that are completely copied by now. */
static uint32_t
advance_lists(struct iovec *there, struct iovec *here, size_t got)
{
    uint32_t i = 0;

    for (; got > 0 && got >= here[i].iov_len; i++)
        got -= here[i].iov_len;
    if (got == 0) return i;
    there[i].iov_base = (uint8_t *)there[i].iov_base + got;
    here[i].iov_base = (uint8_t *)here[i].iov_base + got;
    there[i].iov_len = here[i].iov_len -= got;
    return i;
}

kvp_err_t
kvp_cma_readv(const kvp_cma_proc_t *proc, struct iovec *there, struct iovec *here, uint32_t n, uint32_t *done_n_out)
{
    *done_n_out = 0;
    while (*done_n_out < n) {
        uint32_t at = *done_n_out;
        ssize_t got = process_vm_readv(proc->pid, here + at, n - at, there + at, n - at, 0);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == ESRCH) return KVP_DISCONNECTED;
        if (got <= 0) return has_ended(proc) ? KVP_DISCONNECTED : KVP_INVALID;
        *done_n_out += advance_lists(there + at, here + at, (size_t)got);
    }
    return has_ended(proc) ? KVP_DISCONNECTED : KVP_OK;
}

void
kvp_cma_allow(void)
{
    /* prctl fails if the kernel has no Yama; then copies between processes need no permission */
    if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) != 0) kvp_log_debug("client", "PR_SET_PTRACER: %m");
}
