/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The libraries are never unloaded, because their providers have threads and atfork handlers. */
#include "transport/rdma/verbs/libs.h"

#include "common/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static kvp_rdma_libs_t libs;
static const char *why_not; /* the reason why the libraries cannot be used; NULL = they are loaded */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Looks up a symbol of a library and stores its address in a function pointer: ISO C has no cast for this. */
static bool
find_symbol(void *lib, const char *name, void *fn_out)
{
    void *at = dlsym(lib, name);

    memcpy(fn_out, &at, sizeof at);
    return at != NULL;
}

/* Protects registered memory at forks. Before Linux 5.12, when the parent writes to a registered page after a fork, the
 * parent gets a copy, and the device goes on with the old page. ibv_fork_init, before the first registration, keeps
 * registered pages from children. Later kernels copy such pages for the child at the fork. */
static void
guard_forks(void *ibv)
{
    __typeof__(ibv_is_fork_initialized) *state; /* this function exists since rdma-core 35 */
    int no;

    if (find_symbol(ibv, "ibv_is_fork_initialized", &state) && state() == IBV_FORK_UNNEEDED) return;
    no = (libs.ibv_fork_init)();
    if (no != 0)
        kvp_log_info("rdma", "libibverbs was in use before and does not guard registered memory at forks: %s",
                     strerror(no));
}

static void
load_libs(void)
{
    void *cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_NODELETE);
    void *ibv = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NODELETE);
    bool is_whole = true;

    why_not = "librdmacm.so.1 and libibverbs.so.1 are not installed (Debian: librdmacm1, ibverbs-providers)";
    if (cm == NULL || ibv == NULL) return;
#define X(name) is_whole = find_symbol(ibv, #name, &libs.name) && is_whole;
    KVP_RDMA_IBV_CALLS(X)
#undef X
#define X(name) is_whole = find_symbol(cm, #name, &libs.name) && is_whole;
    KVP_RDMA_CM_CALLS(X)
#undef X
    why_not = is_whole ? NULL : "librdmacm or libibverbs is too old";
    if (is_whole) guard_forks(ibv);
}

const kvp_rdma_libs_t *
kvp_rdma_libs(const char **why_out)
{
    pthread_once(&once, load_libs);
    *why_out = why_not;
    return why_not == NULL ? &libs : NULL;
}
