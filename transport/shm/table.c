/* SPDX-License-Identifier: Apache-2.0
 * The shm transport: shared memory between the processes of one host. Memory is a sealed memfd, mapped by each process
 * that opens it; submit is a copy by the calling thread. The transport has no serving side: a peer's stores are
 * invisible to the node.
 *
 * Design notes.
 * - The owner of a memfd that can shrink could kill this process with SIGBUS, so a memfd without seals is refused. A
 *   memfd of hugetlbfs is refused as well: if the system has no huge page left, a touch also ends in SIGBUS.
 * - peer_fence never calls done. A process that mapped our memory for writing keeps the mapping. Its stores end only
 *   with its death, which the node proves by pidfd, or when the process reports that it has unmapped the memory. The
 *   node that fences a peer gets this proof, not this transport.
 * - quiesce calls done at once (the default), because the serving side makes no copies.
 * - Mappings are MADV_DONTFORK: a forked child must not hold a writable mapping that the node does not know. */
#include "transport/shm/table.h"

#include "transport/inside.h"
#include "transport/local.h"
#include "transport/shm/mapping.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TMPFS_KIND 0x01021994 /* the value of TMPFS_MAGIC in linux/magic.h */
#define SEALS_NEEDED (F_SEAL_SHRINK | F_SEAL_GROW)

typedef struct {
    kvp_mr_t base;
    /* the memory's own descriptor, borrowed. Peers' descriptors are made on request, because their number is limited */
    int fd;
} shm_mr_t;

typedef struct {
    kvp_rseg_t base;
    void *addr;
    bool is_writable;
} shm_rseg_t;

typedef struct {
    kvp_ep_t base;
    kvp_local_t local;
} shm_ep_t;

static kvp_err_t
shm_init(kvp_tp_t *tp, const kvp_tp_conf_t *conf)
{
    (void)tp, (void)conf;
    return KVP_OK;
}

static void
shm_fini(kvp_tp_t *tp)
{
    (void)tp;
}

static void
shm_peer_fence(kvp_tp_t *tp, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg)
{
    (void)tp, (void)dead, (void)live_min, (void)done, (void)arg;
}

/* Checks that fd is a memory file of at least len bytes that cannot shrink. */
static kvp_err_t
check_memfd(int fd, uint64_t len)
{
    struct statfs fs;
    struct stat st;
    int seals;

    if (fd < 0 || len == 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return KVP_INVALID;
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS_NEEDED) != SEALS_NEEDED) {
        kvp_log_warn("transport", "shared memory refused: it could shrink or grow");
        return KVP_INVALID;
    }
    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_KIND) {
        kvp_log_warn("transport", "shared memory refused: it uses huge pages, which may run out");
        return KVP_INVALID;
    }
    if ((uint64_t)st.st_size < len) {
        kvp_log_warn("transport", "shared memory refused: it is smaller than announced bytes=%lld announced=%llu",
                     (long long)st.st_size, (unsigned long long)len);
        return KVP_INVALID;
    }
    return KVP_OK;
}

static void
shm_mr_dereg(kvp_mr_t *base)
{
    (void)base;
}

static kvp_err_t
shm_mr_reg(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t *base)
{
    shm_mr_t *mr = kvp_container_of(base, shm_mr_t, base);
    kvp_err_t err = check_memfd(mem->fd, mem->len);

    (void)tp;
    if (err != KVP_OK) return err;
    mr->fd = mem->fd;
    /* A memfd is created with mode 0777. Without this chmod a reader of another user could open its read-only
     * descriptor again for writing. */
    if (fchmod(mr->fd, S_IRUSR | S_IWUSR) == 0) return KVP_OK;
    kvp_log_error("transport", "cannot keep shared memory from other users: %m");
    return KVP_SYS;
}

static kvp_err_t
shm_mr_export(const kvp_mr_t *base, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out)
{
    const shm_mr_t *mr = kvp_container_of(base, shm_mr_t, base);
    char path[64];

    (void)incarnation;
    snprintf(path, sizeof path, "/proc/self/fd/%d", mr->fd);
    *token_out = (kvp_token_t){.fd = access == KVP_ACCESS_WRITE ? fcntl(mr->fd, F_DUPFD_CLOEXEC, 3)
                                                                : open(path, O_RDONLY | O_CLOEXEC)};
    return token_out->fd >= 0 ? KVP_OK : KVP_SYS;
}

static kvp_err_t
shm_rseg_open(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *base)
{
    shm_rseg_t *rseg = kvp_container_of(base, shm_rseg_t, base);
    kvp_err_t err = check_memfd(token->fd, len);
    int prot = access == KVP_ACCESS_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    void *addr;

    (void)tp;
    if (err != KVP_OK) return err;
    addr = kvp_map_shared(token->fd, len, prot);
    if (addr == NULL) {
        kvp_log_warn("transport", "cannot map shared memory bytes %llu: %m%s", (unsigned long long)len,
                     errno == ENOMEM ? "; a process may have vm.max_map_count mappings" : "");
        if (errno == EACCES) return KVP_INVALID; /* a writable mapping was asked for with a reader's descriptor */
        return errno == ENOMEM ? KVP_NOMEM : KVP_SYS;
    }
    if (madvise(addr, len, MADV_DONTFORK) != 0) {
        kvp_log_error("transport", "cannot keep shared memory from children: %m");
        munmap(addr, len);
        return KVP_SYS;
    }
    rseg->addr = addr;
    rseg->is_writable = access == KVP_ACCESS_WRITE;
    return KVP_OK;
}

static void
shm_rseg_close(kvp_rseg_t *base)
{
    shm_rseg_t *rseg = kvp_container_of(base, shm_rseg_t, base);

    munmap(rseg->addr, base->len);
}

void *
kvp_shm_rseg_addr(const kvp_rseg_t *base)
{
    return kvp_container_of(base, const shm_rseg_t, base)->addr;
}

static kvp_err_t
shm_ep_connect(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_t *base, kvp_ep_done_fn done, void *arg)
{
    (void)tp, (void)to, (void)base;
    done(arg, KVP_OK);
    return KVP_OK;
}

static void
shm_ep_close(kvp_ep_t *base)
{
    (void)base;
}

static kvp_err_t
run_one(shm_ep_t *ep, kvp_xfer_t *xfer)
{
    kvp_err_t err = kvp_xfer_check(xfer);
    const shm_rseg_t *rseg;
    const uint8_t *guard = NULL;

    if (err != KVP_OK) return err;
    rseg = kvp_container_of(xfer->rseg, const shm_rseg_t, base);
    if (xfer->kind != KVP_XFER_READ && !rseg->is_writable) return KVP_INVALID;
    if (xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_GUARDED) != 0)
        guard = (const uint8_t *)kvp_shm_rseg_addr(xfer->guard_rseg) + xfer->guard_off;
    return kvp_local_run(&ep->local, xfer, (uint8_t *)rseg->addr + xfer->roffset, guard);
}

static kvp_err_t
shm_submit(kvp_ep_t *base, kvp_xfer_t *const *xfers, size_t n, size_t *n_out)
{
    shm_ep_t *ep = kvp_container_of(base, shm_ep_t, base);

    kvp_local_begin(&ep->local);
    for (size_t i = 0; i < n; i++) {
        xfers[i]->status = run_one(ep, xfers[i]);
        xfers[i]->done(xfers[i]);
    }
    *n_out = n;
    return KVP_OK;
}

const kvp_transport_ops_t kvp_shm_ops = {
    .name = "shm",
    .caps = KVP_TP_SAME_HOST | KVP_TP_GUARDS | KVP_TP_SYNC,
    .tp_size = sizeof(kvp_tp_t),
    .mr_size = sizeof(shm_mr_t),
    .ep_size = sizeof(shm_ep_t),
    .rseg_size = sizeof(shm_rseg_t),
    .init = shm_init,
    .fini = shm_fini,
    .peer_fence = shm_peer_fence,
    .mr_reg = shm_mr_reg,
    .mr_dereg = shm_mr_dereg,
    .mr_export = shm_mr_export,
    .rseg_open = shm_rseg_open,
    .rseg_close = shm_rseg_close,
    .ep_connect = shm_ep_connect,
    .ep_close = shm_ep_close,
    .submit = shm_submit,
};
