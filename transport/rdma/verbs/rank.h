/* SPDX-License-Identifier: Apache-2.0
 * Which adapter is near to what, and which of ours goes with which of a peer's. Pure but for
 * place_at, which reads sysfs. */
#ifndef KVP_TRANSPORT_RDMA_VERBS_RANK_H
#define KVP_TRANSPORT_RDMA_VERBS_RANK_H

#include "transport/rdma/verbs/dev.h"

/* Location in the machine of an adapter, a GPU or memory (a NUMA node alone); unknown is -1 and "". */
typedef struct {
    int numa_node;
    const char *pci; /* borrowed; see kvp_rdma_info_t */
} kvp_rdma_place_t;

static inline kvp_rdma_place_t
kvp_rdma_place_of(const kvp_rdma_dev_t *dev)
{
    return (kvp_rdma_place_t){dev->info.numa_node, dev->info.pci};
}

/* kvp_rdma_place_at reads a device's location from its directory in sysfs
 * ("/sys/class/infiniband/mlx5_0/device", "/sys/bus/pci/devices/0000:3b:00.0"); unknown parts are
 * -1 and "". */
void kvp_rdma_place_at(const char *sysfs_dir, int *numa_node_out, char pci_out[KVP_RDMA_PCI_MAX]);

/* kvp_rdma_distance: smaller is nearer. Under one PCI root it is the number of bridges between the
 * two, which a GPU's bytes would cross. Beyond, the same NUMA node is nearer than an unknown one,
 * and an unknown one nearer than another node. */
uint32_t kvp_rdma_distance(const kvp_rdma_place_t *a, const kvp_rdma_place_t *b);

/* kvp_rdma_rank puts the numbers 0 to n-1 of devices in order: nearest to that place first, equally near ones as they
 * are. */
void kvp_rdma_rank(kvp_rdma_dev_t *const *devs, size_t n, const kvp_rdma_place_t *near_to, uint32_t *order_out);

/* kvp_rdma_keep_nearest leaves the cap nearest devices in place, in the order in which they are: peers number their
 * adapters in the same order, and the n-th of all hosts are often on one switch. Returns how many are left. */
size_t kvp_rdma_keep_nearest(kvp_rdma_dev_t **devs, size_t n, const kvp_rdma_place_t *near_to, size_t cap);

/* kvp_rdma_alike_bits: by how many bits two addresses begin alike; 0 where they are of different families. */
uint32_t kvp_rdma_alike_bits(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

typedef struct {
    uint32_t ours;
    uint32_t theirs;
} kvp_rdma_pair_t;

/* kvp_rdma_pairs pairs our n adapters with a peer's m: pairs_out[0] is given (its connection
 * stands), and every adapter of either side is in some pair, which makes at most max(n, m) pairs.
 * Pairs addresses with a long common prefix, which are likelier in one network. Returns the number
 * of pairs. */
size_t kvp_rdma_pairs(kvp_rdma_dev_t *const *ours, size_t n, const struct sockaddr_storage *theirs, size_t m,
                      kvp_rdma_pair_t *pairs_out);

#endif
