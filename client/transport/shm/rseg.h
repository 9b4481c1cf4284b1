/* SPDX-License-Identifier: Apache-2.0
 * What shared memory offers beside the transport table: the mapping itself, for views and for populating it.
 */
#ifndef KVP_CLIENT_TRANSPORT_SHM_RSEG_H
#define KVP_CLIENT_TRANSPORT_SHM_RSEG_H

#include "client/transport/transport.h"

/* kvp_shm_rseg_addr returns where the rseg of a shm transport is mapped, borrowed until rseg_close. Read-only unless it
 * was opened for KVP_ACCESS_WRITE. The mapping is not populated: madvise(MADV_POPULATE_READ) from any thread. */
void *kvp_shm_rseg_addr(const kvp_rseg_t *rseg);

#endif
