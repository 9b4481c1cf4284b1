/* SPDX-License-Identifier: Apache-2.0
 * Design notes. sysfs resolves a device's directory to its path through the PCI bridges,
 * ".../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0". The common prefix of two paths is the part of the
 * PCI tree above both devices. */
#include "transport/rdma/verbs/rank.h"

#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Distances of places without a common PCI root, larger than any number of steps under one root. */
#define SAME_NODE 100u
#define UNKNOWN_NODE 200u
#define OTHER_NODE 300u

/* ---- places */
void
kvp_rdma_place_at(const char *sysfs_dir, int *numa_node_out, char pci_out[KVP_RDMA_PCI_MAX])
{
    char path[PATH_MAX], real[PATH_MAX];
    const char *way;
    FILE *f;

    *numa_node_out = -1;
    pci_out[0] = '\0';
    snprintf(path, sizeof path, "%s/numa_node", sysfs_dir);
    f = fopen(path, "re");
    if (f != NULL && fscanf(f, "%d", numa_node_out) != 1) *numa_node_out = -1;
    if (f != NULL) fclose(f);
    if (realpath(sysfs_dir, real) == NULL) return;
    way = strstr(real, "/devices/pci");
    if (way == NULL) return;
    way += strlen("/devices/");
    if (strlen(way) < KVP_RDMA_PCI_MAX) strcpy(pci_out, way);
}

/* Returns the number of steps in a PCI path: its names between slashes. */
static uint32_t
steps_n(const char *way)
{
    uint32_t n = *way != '\0';

    for (; *way != '\0'; way++)
        n += *way == '/';
    return n;
}

static uint32_t
common_steps(const char *a, const char *b)
{
    uint32_t n = 0;

    while (*a != '\0' && *b != '\0') {
        size_t len = strcspn(a, "/");

        if (len != strcspn(b, "/") || memcmp(a, b, len) != 0) break;
        n++;
        a += len + (a[len] == '/');
        b += len + (b[len] == '/');
    }
    return n;
}

uint32_t
kvp_rdma_distance(const kvp_rdma_place_t *a, const kvp_rdma_place_t *b)
{
    uint32_t common = common_steps(a->pci, b->pci);

    if (common > 0) return steps_n(a->pci) + steps_n(b->pci) - 2 * common;
    if (a->numa_node < 0 || b->numa_node < 0) return UNKNOWN_NODE;
    return a->numa_node == b->numa_node ? SAME_NODE : OTHER_NODE;
}

void
kvp_rdma_rank(kvp_rdma_dev_t *const *devs, size_t n, const kvp_rdma_place_t *near_to, uint32_t *order_out)
{
    uint32_t far[KVP_RDMA_DEVS_MAX];

    for (size_t i = 0; i < n; i++) {
        kvp_rdma_place_t at = kvp_rdma_place_of(devs[i]);
        size_t slot = i;

        far[i] = kvp_rdma_distance(&at, near_to);
        for (; slot > 0 && far[order_out[slot - 1]] > far[i]; slot--)
            order_out[slot] = order_out[slot - 1];
        order_out[slot] = (uint32_t)i;
    }
}

size_t
kvp_rdma_keep_nearest(kvp_rdma_dev_t **devs, size_t n, const kvp_rdma_place_t *near_to, size_t cap)
{
    uint32_t order[KVP_RDMA_DEVS_MAX];
    bool is_kept[KVP_RDMA_DEVS_MAX] = {false};
    size_t kept = 0;

    if (n <= cap) return n;
    kvp_rdma_rank(devs, n, near_to, order);
    for (size_t i = 0; i < cap; i++)
        is_kept[order[i]] = true;
    for (size_t i = 0; i < n; i++)
        if (is_kept[i]) devs[kept++] = devs[i];
    return kept;
}

/* ---- pairs of adapters */
static void
addr_bytes(const struct sockaddr_storage *addr, uint8_t bytes[16])
{
    memset(bytes, 0, 16);
    if (addr->ss_family == AF_INET)
        memcpy(bytes + 12, &((const struct sockaddr_in *)(const void *)addr)->sin_addr, 4);
    else
        memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr, 16);
}

uint32_t
kvp_rdma_alike_bits(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    uint8_t x[16], y[16];
    uint32_t i = 0;

    if (a->ss_family != b->ss_family) return 0;
    addr_bytes(a, x);
    addr_bytes(b, y);
    while (i < 16 && x[i] == y[i])
        i++;
    return i == 16 ? 128 : i * 8 + (uint32_t)__builtin_clz((uint32_t)(x[i] ^ y[i])) - 24;
}

typedef struct {
    kvp_rdma_dev_t *const *ours;
    const struct sockaddr_storage *theirs;
    size_t n, m;
    bool is_ours_used[KVP_RDMA_DEVS_MAX];
    bool is_theirs_used[KVP_RDMA_DEVS_MAX];
} match_t;

static void
use_pair(match_t *t, const kvp_rdma_pair_t *pair)
{
    t->is_ours_used[pair->ours] = true;
    t->is_theirs_used[pair->theirs] = true;
}

/* Finds the best pair of two unused adapters or, with may_share, of an unused adapter and any adapter of the other
 * side. Returns false if no unused adapter is left. Among equal pairs prefers adapters with the same number on both
 * sides. */
static bool
next_pair(match_t *t, bool may_share, kvp_rdma_pair_t *pair_out)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        for (uint32_t j = 0; j < t->m; j++) {
            uint32_t score = 2 * kvp_rdma_alike_bits(&t->ours[i]->info.addr, &t->theirs[j]) + (i == j) + 1;
            bool is_new =
                may_share ? !t->is_ours_used[i] || !t->is_theirs_used[j] : !t->is_ours_used[i] && !t->is_theirs_used[j];

            if (!is_new || score <= best) continue;
            best = score;
            *pair_out = (kvp_rdma_pair_t){i, j};
        }
    }
    return best > 0;
}

size_t
kvp_rdma_pairs(kvp_rdma_dev_t *const *ours, size_t n, const struct sockaddr_storage *theirs, size_t m,
               kvp_rdma_pair_t *pairs_out)
{
    match_t t = {.ours = ours, .theirs = theirs, .n = n, .m = m};
    size_t count = 1;

    use_pair(&t, &pairs_out[0]);
    for (int may_share = 0; may_share <= 1; may_share++)
        for (; next_pair(&t, may_share == 1, &pairs_out[count]); count++)
            use_pair(&t, &pairs_out[count]);
    return count;
}
