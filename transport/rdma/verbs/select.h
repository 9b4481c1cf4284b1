/* SPDX-License-Identifier: Apache-2.0
 * Which RDMA devices a process is to use, as its user names them. Devices are the process's, so the choice is too: made
 * before they are opened, by the node from its options and by libkvpool from the environment.
 */
#ifndef KVP_TRANSPORT_RDMA_VERBS_SELECT_H
#define KVP_TRANSPORT_RDMA_VERBS_SELECT_H

#include "common/base.h"

#define KVP_RDMA_PICKS_MAX 16u
#define KVP_RDMA_PICK_MAX 64u /* bytes of a device's name, with the terminator */
#define KVP_RDMA_GIDS_MAX 65535u
#define KVP_RDMA_GID_BEST (-1)

typedef struct {
    char name[KVP_RDMA_PICK_MAX];
    uint8_t port; /* 0 = all ports of the device */
} kvp_rdma_pick_t;

typedef struct {
    kvp_rdma_pick_t picks[KVP_RDMA_PICKS_MAX];
    size_t picks_n; /* 0 = every device */
    int gid_index; /* of each port; KVP_RDMA_GID_BEST = the best of its addresses */
} kvp_rdma_select_t;

/* kvp_rdma_select_parse reads "mlx5_0,mlx5_1:2" and "3"; NULL or empty: no selection. INVALID, with
 * the reason in why. */
kvp_err_t kvp_rdma_select_parse(const char *devices, const char *gid_index, kvp_rdma_select_t *select_out, char *why,
                                size_t cap) KVP_MUST_USE;

/* kvp_rdma_select_takes returns whether the port of the device is selected. kvp_rdma_select_is_any:
 * there is no selection. */
bool kvp_rdma_select_takes(const kvp_rdma_select_t *selected, const char *name, uint8_t port);
bool kvp_rdma_select_is_any(const kvp_rdma_select_t *selected);

/* kvp_rdma_select_set makes it the process's choice, which counts for devices that are not open
 * yet; kvp_rdma_select_get copies the choice. Any thread. */
void kvp_rdma_select_set(const kvp_rdma_select_t *selected);
void kvp_rdma_select_get(kvp_rdma_select_t *select_out);

/* kvp_rdma_select is parse and set. It comes before rdma is first asked for. INVALID, with a sentence in why. */
kvp_err_t kvp_rdma_select(const char *devices, const char *gid_index, char *why, size_t cap) KVP_MUST_USE;

/* kvp_rdma_has_adapter: this machine has an RDMA adapter, which need not be fit for use. */
bool kvp_rdma_has_adapter(void);

#endif
