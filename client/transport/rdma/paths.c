/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/transport/rdma/paths.h"

#include "client/transport/rdma/verbs/dev.h"

#include <string.h>

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
    kvp_rdma_health_init(&e->health);
    return e;
}

kvp_rdma_health_t
kvp_rdma_paths_look(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path)
{
    kvp_rdma_health_t health;

    pthread_mutex_lock(&paths->lock);
    health = find(paths, path)->health;
    pthread_mutex_unlock(&paths->lock);
    return health;
}

void
kvp_rdma_paths_note(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path, const kvp_rdma_health_t *health)
{
    pthread_mutex_lock(&paths->lock);
    find(paths, path)->health = *health;
    pthread_mutex_unlock(&paths->lock);
}

kvp_rdma_health_t
kvp_rdma_paths_failed(kvp_rdma_paths_t *paths, kvp_rdma_path_t *path, uint64_t since_ns, uint64_t now_ns, uint64_t dice)
{
    kvp_rdma_path_entry_t *e;
    kvp_rdma_health_t health;

    pthread_mutex_lock(&paths->lock);
    e = find(paths, path);
    if (e->failed_ns == 0 || since_ns > e->failed_ns) {
        kvp_rdma_health_failed(&e->health, now_ns, dice);
        e->failed_ns = now_ns;
    }
    health = e->health;
    pthread_mutex_unlock(&paths->lock);
    return health;
}
