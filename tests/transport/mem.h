/* SPDX-License-Identifier: Apache-2.0
 * The mem transport: transfers inside one process, for tests alone.
 */
#ifndef KVP_TESTS_TRANSPORT_MEM_H
#define KVP_TESTS_TRANSPORT_MEM_H

#include "client/transport/transport.h"

/* mem_transport returns its table, with every slot filled. Any thread. */
const kvp_transport_ops_t *mem_transport(void);

#endif
