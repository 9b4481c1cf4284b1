/* SPDX-License-Identifier: Apache-2.0
 * The table of the shm transport, whose slots may be empty (kvp_transport_find returns the filled table), and access
 * to the mapping of a peer's memory, for views and for populating the mapping. */
#ifndef KVP_TRANSPORT_SHM_TABLE_H
#define KVP_TRANSPORT_SHM_TABLE_H

#include "transport/transport.h"

extern const kvp_transport_ops_t kvp_shm_ops;

/* kvp_shm_rseg_addr returns the address at which this process has mapped the opened memory, borrowed until
 * rseg_close. The mapping is read-only unless the memory was opened with KVP_ACCESS_WRITE. The mapping is not
 * populated: call madvise(MADV_POPULATE_READ) from any thread. */
void *kvp_shm_rseg_addr(const kvp_rseg_t *rseg);

#endif
