/* SPDX-License-Identifier: Apache-2.0
 * Which pool this is.
 */
#ifndef KVP_MASTER_CORE_SESSION_IDENTITY_H
#define KVP_MASTER_CORE_SESSION_IDENTITY_H

#include "master/core/session/peers.h"
#include "master/core/master.h"

void
kvp_pool_granted(kvp_peers_t *peers); /* space of it, or a promise: from here on it is the pool that it says it is */

#endif
