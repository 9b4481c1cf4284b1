/* SPDX-License-Identifier: Apache-2.0
 * Which pool this is. A master that finds nothing of the masters before it, because the pool is new or its disk is gone,
 * makes up an id and a seed. Nodes whose memory outlived the disk have the real ones, and with another seed none of their
 * digests would be found again: so the first of them that comes names the pool, as long as nothing hangs on the made-up
 * name (ADR 0011).
 */
#include "master/core/session/identity.h"

#include "master/core/session/peers.h"

void
kvp_pool_granted(kvp_peers_t *peers)
{
    if (peers->is_named) return;
    peers->is_named = true;
    peers->is_ident_news = true;
}
