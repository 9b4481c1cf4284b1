/* SPDX-License-Identifier: Apache-2.0
 * Which pool this is. A master that finds nothing of the masters before it, because the pool is new or its disk is gone,
 * makes up an id and a seed. Nodes whose memory outlived the disk have the real ones, and with another seed none of their
 * digests would be found again: so the first of them that comes names the pool, as long as nothing hangs on the made-up
 * name (ADR 0011).
 */
#include "master/core/state.h"

#include <string.h>

void
kvp_master_ident(const kvp_master_t *m, kvp_master_ident_t *ident_out)
{
    memcpy(ident_out->pool_id, m->ctx.conf.pool_id, sizeof ident_out->pool_id);
    ident_out->digest_seed = m->ctx.conf.digest_seed;
    ident_out->term = m->ctx.term;
}

bool
kvp_master_take_ident(kvp_master_t *m, kvp_master_ident_t *ident_out)
{
    if (!m->is_ident_news) return false;
    m->is_ident_news = false;
    kvp_master_ident(m, ident_out);
    return true;
}

void
kvp_pool_granted(kvp_master_t *m)
{
    if (m->is_named) return;
    m->is_named = true;
    m->is_ident_news = true;
}
