/* SPDX-License-Identifier: Apache-2.0
 * The RDMA devices that the user selected for this process. Devices belong to the process, and so does the selection.
 * It is made before the devices are opened: by the node from its options, by libkvpool from the environment. */
#ifndef KVP_TRANSPORT_RDMA_VERBS_SELECT_H
#define KVP_TRANSPORT_RDMA_VERBS_SELECT_H

#include "common/base.h"

#define KVP_RDMA_PICKS_MAX 16u
#define KVP_RDMA_PICK_MAX 64u /* the size of a device's name with its terminating NUL */
#define KVP_RDMA_GIDS_MAX 65535u
#define KVP_RDMA_GID_BEST (-1)

typedef struct {
    char name[KVP_RDMA_PICK_MAX];
    uint8_t port; /* the number of a port; 0 = all ports of the device */
} kvp_rdma_pick_t;

typedef struct {
    kvp_rdma_pick_t picks[KVP_RDMA_PICKS_MAX];
    size_t picks_n; /* the number of picks; 0 = every device is selected */
    int gid_index; /* the index of the GID to use on each port; KVP_RDMA_GID_BEST = the one with the best address */
} kvp_rdma_select_t;

/* kvp_rdma_select_parse parses a list of devices such as "mlx5_0,mlx5_1:2" and a GID index such as "3". NULL or
 * empty: no selection. INVALID, with the reason in why. */
kvp_err_t kvp_rdma_select_parse(const char *devices, const char *gid_index, kvp_rdma_select_t *select_out, char *why,
                                size_t cap) KVP_MUST_USE;

/* kvp_rdma_select_takes returns whether the port of the device is selected. kvp_rdma_select_is_any returns whether
 * nothing is selected, so that every device may be used. */
bool kvp_rdma_select_takes(const kvp_rdma_select_t *selected, const char *name, uint8_t port);
bool kvp_rdma_select_is_any(const kvp_rdma_select_t *selected);

/* kvp_rdma_select_set stores the selection of the process, which applies to devices opened later. kvp_rdma_select_get
 * copies the selection. Any thread. */
void kvp_rdma_select_set(const kvp_rdma_select_t *selected);
void kvp_rdma_select_get(kvp_rdma_select_t *select_out);

/* kvp_rdma_select parses a selection and stores it. It is called before rdma is first used. INVALID, with a sentence
 * in why. */
kvp_err_t kvp_rdma_select(const char *devices, const char *gid_index, char *why, size_t cap) KVP_MUST_USE;

/* kvp_rdma_has_adapter returns whether this machine has an RDMA adapter, usable or not. */
bool kvp_rdma_has_adapter(void);

#endif
