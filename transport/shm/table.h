/* SPDX-License-Identifier: Apache-2.0
 * The table of the shm transport, with slots that may be empty (kvp_transport_find gives the filled
 * one), and what shared memory offers beside the table: the mapping itself, for views and for
 * populating it. */
#ifndef KVP_TRANSPORT_SHM_TABLE_H
#define KVP_TRANSPORT_SHM_TABLE_H

#include "transport/transport.h"

extern const kvp_transport_ops_t kvp_shm_ops;

/* kvp_shm_rseg_addr returns where the rseg of a shm transport is mapped, borrowed until rseg_close.
 * The mapping is read-only unless the rseg was opened for KVP_ACCESS_WRITE. It is not populated:
 * madvise(MADV_POPULATE_READ) from any thread. */
void *kvp_shm_rseg_addr(const kvp_rseg_t *rseg);

#endif
