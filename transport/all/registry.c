/* SPDX-License-Identifier: Apache-2.0
 * The registry: the names of all transports, and the tables of functions of those in this build. Filled once, then
 * constant. Any thread. */
#include "transport/all/registry.h"

#include "transport/inside.h"
#include "transport/rdma/table.h"
#include "transport/rdma/verbs/select.h"
#include "transport/shm/table.h"
#include "transport/tcp/table.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* The entries for every name that a configuration may contain. builtin is NULL if this build lacks the transport. */
static struct {
    const char *name;
    const kvp_transport_ops_t *builtin;
    kvp_transport_ops_t ops;
} registry[] = {
    {.name = "shm", .builtin = &kvp_shm_ops},
#ifdef KVP_HAVE_RDMA
    {.name = "rdma", .builtin = &kvp_rdma_ops},
#else
    {.name = "rdma"},
#endif
    {.name = "tcp", .builtin = &kvp_tcp_ops},
};
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

static void
register_all(void)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(registry); i++) {
        if (registry[i].builtin == NULL) continue;
        registry[i].ops = *registry[i].builtin;
        kvp_transport_fill(&registry[i].ops);
    }
}

void
kvp_transports_init(void)
{
    pthread_once(&registry_once, register_all);
}

const kvp_transport_ops_t *
kvp_transport_find(const char *name)
{
    kvp_transports_init();
    for (size_t i = 0; i < KVP_ARRAY_LEN(registry); i++)
        if (registry[i].builtin != NULL && strcmp(registry[i].name, name) == 0) return &registry[i].ops;
    return NULL;
}

static bool
is_name(const char *name, const char *text, size_t len)
{
    return strlen(name) == len && memcmp(name, text, len) == 0;
}

/* find_usable finds the transport with the name text[0..len). INVALID: unknown name. NOTSUP: this build or this
 * machine lacks the transport. On failure why has the reason. */
static kvp_err_t
find_usable(const char *text, size_t len, const kvp_transport_ops_t **ops_out, char *why, size_t why_cap)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(registry); i++) {
        const char *lacks = "this build has none";

        if (!is_name(registry[i].name, text, len)) continue;
        if (registry[i].builtin != NULL && registry[i].ops.probe(&lacks) == KVP_OK) {
            *ops_out = &registry[i].ops;
            return KVP_OK;
        }
        snprintf(why, why_cap, "%s cannot be used here: %s", registry[i].name, lacks);
        return KVP_NOTSUP;
    }
    snprintf(why, why_cap, "there is no transport \"%.*s\", but shm, rdma and tcp", (int)kvp_min_u64(len, 64), text);
    return KVP_INVALID;
}

kvp_err_t
kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why,
                     size_t why_cap)
{
    const char *at = text;
    size_t n = 0;

    kvp_transports_init();
    /* Each turn of the loop reads a name up to a comma or the end, so an empty name next to a comma is an error. */
    for (bool is_more = true; is_more; is_more = *at++ == ',') {
        size_t len = strcspn(at, ",");
        const kvp_transport_ops_t *ops = NULL;
        kvp_err_t err = find_usable(at, len, &ops, why, why_cap);

        if (err != KVP_OK) return err;
        for (size_t i = 0; i < n; i++) {
            if (list[i] != ops) continue;
            snprintf(why, why_cap, "%s is named twice", ops->name);
            return KVP_INVALID;
        }
        if (n == cap) return KVP_LIMIT;
        list[n++] = ops;
        at += len;
    }
    *n_out = n;
    return KVP_OK;
}

kvp_err_t
kvp_transports_default(const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why, size_t why_cap)
{
    static const char *const names[] = {"shm", "rdma", "tcp"};
    kvp_rdma_select_t selected;
    size_t n = 0;

    if (why_cap > 0) why[0] = '\0';
    kvp_transports_init();
    kvp_rdma_select_get(&selected);
    for (size_t i = 0; i < KVP_ARRAY_LEN(names) && n < cap; i++) {
        if (find_usable(names[i], strlen(names[i]), &list[n], why, why_cap) == KVP_OK)
            n++;
        else if (strcmp(names[i], "rdma") == 0 && !kvp_rdma_select_is_any(&selected))
            return KVP_NOTSUP; /* the user selected RDMA devices or a GID, so a missing rdma is an error */
    }
    *n_out = n;
    return KVP_OK;
}

size_t
kvp_transports_rdma_ports(kvp_rdma_info_t *ports_out, size_t cap)
{
    size_t n = 0;
#ifdef KVP_HAVE_RDMA
    kvp_rdma_dev_t *devs[KVP_RDMA_DEVS_MAX];
    kvp_rdma_select_t selected;
    const char *why;

    kvp_rdma_select_get(&selected);
    if (kvp_verbs_ibv.devs_open(&selected, devs, KVP_ARRAY_LEN(devs), &n, &why) != KVP_OK) return 0;
    n = kvp_min_u64(n, cap);
    for (size_t i = 0; i < n; i++)
        ports_out[i] = devs[i]->info;
    kvp_verbs_ibv.devs_close();
#else
    (void)ports_out, (void)cap;
#endif
    return n;
}

void
kvp_transports_tend(void)
{
#ifdef KVP_HAVE_RDMA
    kvp_verbs_ibv.devs_look();
#endif
}
