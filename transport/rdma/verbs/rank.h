/* SPDX-License-Identifier: Apache-2.0
 * Functions that find which adapters are near to a GPU or to memory, and which of our adapters to pair with which
 * adapters of a peer. Pure functions, except kvp_rdma_place_at, which reads sysfs. */
#ifndef KVP_TRANSPORT_RDMA_VERBS_RANK_H
#define KVP_TRANSPORT_RDMA_VERBS_RANK_H

#include "transport/rdma/verbs/dev.h"

/* The place of an adapter, a GPU or memory in the machine. Memory has only a NUMA node. Unknown parts are -1 and "". */
typedef struct {
    int numa_node;
    const char *pci; /* the PCI path, borrowed; see kvp_rdma_info_t */
} kvp_rdma_place_t;

static inline kvp_rdma_place_t
kvp_rdma_place_of(const kvp_rdma_dev_t *dev)
{
    return (kvp_rdma_place_t){dev->info.numa_node, dev->info.pci};
}

/* kvp_rdma_place_at reads the place of a device from its directory in sysfs ("/sys/class/infiniband/mlx5_0/device",
 * "/sys/bus/pci/devices/0000:3b:00.0"). Unknown parts are -1 and "". */
void kvp_rdma_place_at(const char *sysfs_dir, int *numa_node_out, char pci_out[KVP_RDMA_PCI_MAX]);

/* kvp_rdma_distance returns the distance of two places; smaller is nearer. Under one PCI root it is the number of steps
 * in the PCI tree between both places. Otherwise places on the same NUMA node are nearest, then places of which a node
 * is unknown, then places on different nodes. */
uint32_t kvp_rdma_distance(const kvp_rdma_place_t *a, const kvp_rdma_place_t *b);

/* kvp_rdma_rank sorts the numbers 0 to n-1 of the devices by their distance to the place, nearest first. Devices at
 * the same distance keep their order. */
void kvp_rdma_rank(kvp_rdma_dev_t *const *devs, size_t n, const kvp_rdma_place_t *near_to, uint32_t *order_out);

/* kvp_rdma_keep_nearest keeps the cap devices that are nearest to the place, and removes the others. The kept devices
 * keep their order, which is the same on all hosts: the n-th adapters of all hosts are often on one switch. Returns the
 * number of devices kept. */
size_t kvp_rdma_keep_nearest(kvp_rdma_dev_t **devs, size_t n, const kvp_rdma_place_t *near_to, size_t cap);

/* kvp_rdma_alike_bits returns the length of the common prefix of two addresses in bits; 0 for different families. */
uint32_t kvp_rdma_alike_bits(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

typedef struct {
    uint32_t ours;
    uint32_t theirs;
} kvp_rdma_pair_t;

/* kvp_rdma_pairs pairs our n adapters with a peer's m adapters. The caller gives pairs_out[0], the pair that is
 * connected already. Every adapter of either side is in some pair, which makes at most max(n, m) pairs. Addresses with
 * a long common prefix are paired, because they are likely in one network. Returns the number of pairs. */
size_t kvp_rdma_pairs(kvp_rdma_dev_t *const *ours, size_t n, const struct sockaddr_storage *theirs, size_t m,
                      kvp_rdma_pair_t *pairs_out);

#endif
