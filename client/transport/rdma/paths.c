/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/transport/rdma/paths.h"

#include "client/transport/rdma/verbs/dev.h"
#include "common/clock.h"

#include <string.h>

#define RETRY_FIRST_NS (50 * KVP_NS_PER_MS)
#define RETRY_SHIFT_MAX 7u /* 6.4 s, and as much again by chance */

void
kvp_rdma_paths_init(kvp_rdma_paths_t *paths)
{
    pthread_mutex_init(&paths->lock, NULL);
}

void
kvp_rdma_paths_fini(kvp_rdma_paths_t *paths)
{
    pthread_mutex_destroy(&paths->lock);
}

static bool
is_of(const kvp_rdma_path_entry_t *e, const kvp_rdma_path_t *path, const struct sockaddr_storage *theirs)
{
    return e->ours == path->ours && memcmp(&e->theirs, theirs, sizeof *theirs) == 0;
}

/* Addresses are zeroed before they are filled in, so they are compared as they lie. */
static kvp_rdma_path_entry_t *
find(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path)
{
    struct sockaddr_storage theirs = path->theirs;
    kvp_rdma_path_entry_t *e = &paths->entries[path->slot];

    kvp_rdma_set_port(&theirs, 0);
    if (is_of(e, path, &theirs)) return e;
    for (path->slot = 0; path->slot < KVP_RDMA_PATHS; path->slot++) {
        e = &paths->entries[path->slot];
        if (is_of(e, path, &theirs)) return e;
    }
    path->slot = paths->next++ % KVP_RDMA_PATHS;
    e = &paths->entries[path->slot];
    *e = (kvp_rdma_path_entry_t){.theirs = theirs, .ours = path->ours};
    return e;
}

kvp_rdma_fails_t
kvp_rdma_paths_look(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path)
{
    kvp_rdma_fails_t fails;

    pthread_mutex_lock(&paths->lock);
    fails = find(paths, path)->fails;
    pthread_mutex_unlock(&paths->lock);
    return fails;
}

void
kvp_rdma_paths_reset(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path)
{
    pthread_mutex_lock(&paths->lock);
    find(paths, path)->fails = (kvp_rdma_fails_t){0};
    pthread_mutex_unlock(&paths->lock);
}

/* One that did well until now may be tried again at once. */
static void
count_failure(kvp_rdma_fails_t *fails, uint64_t now_ns, uint64_t dice)
{
    uint64_t wait_ns = RETRY_FIRST_NS << kvp_min_u64(fails->fails, RETRY_SHIFT_MAX);

    fails->retry_ns = now_ns + dice % wait_ns + (fails->fails == 0 ? 0 : wait_ns);
    fails->fails++;
}

kvp_rdma_fails_t
kvp_rdma_paths_failed(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path, uint64_t since_ns, uint64_t now_ns, uint64_t dice)
{
    kvp_rdma_path_entry_t *e;
    kvp_rdma_fails_t fails;

    pthread_mutex_lock(&paths->lock);
    e = find(paths, path);
    if (e->failed_ns == 0 || since_ns > e->failed_ns) {
        count_failure(&e->fails, now_ns, dice);
        e->failed_ns = now_ns;
    }
    fails = e->fails;
    pthread_mutex_unlock(&paths->lock);
    return fails;
}
