/* SPDX-License-Identifier: Apache-2.0
 * Tombstones: removals of which other nodes have to be told, kept here so that they outlive the master.
 */
#include "client/node/core/priv.h"

static kvp_err_t
keep(kvp_node_core_t *core, const kvp_wire_tomb_t *tomb)
{
    uint64_t *version = kvp_digestmap_at(&core->tombs, tomb->digest);

    if (version == NULL && core->tombs.n >= KVP_NODE_TOMBS_MAX) return KVP_LIMIT;
    if (version == NULL) version = kvp_digestmap_insert(&core->tombs, tomb->digest);
    if (version == NULL) return KVP_NOMEM;
    *version = kvp_max_u64(*version, tomb->version);
    return KVP_OK;
}

kvp_err_t
kvp_node_core_tombs(kvp_node_core_t *core, uint32_t term, const kvp_wire_tomb_t *tombs, uint32_t n)
{
    kvp_err_t err = kvp_node_core_see_term(core, term);

    if (err != KVP_OK) return err;
    for (uint32_t i = 0; i < n; i++) {
        kvp_err_t one = KVP_OK;

        if (tombs[i].version == 0)
            (void)kvp_digestmap_del(&core->tombs, tombs[i].digest);
        else
            one = keep(core, &tombs[i]);
        if (err == KVP_OK) err = one;
    }
    core->stats.tombs = core->tombs.n;
    return err;
}

uint32_t
kvp_node_tombs_page(const kvp_node_core_t *core, uint32_t *at, kvp_buf_t *tail, uint32_t max)
{
    const kvp_digestmap_at_t *found;
    uint32_t n = 0;

    for (; n < max && (found = kvp_digestmap_next(&core->tombs, at)) != NULL; n++) {
        kvp_wire_tomb_t tomb = {.digest = found->digest, .version = found->val};

        kvp_buf_append(tail, &tomb, sizeof tomb);
    }
    return n;
}

void
kvp_node_tombs_fini(kvp_node_core_t *core)
{
    kvp_digestmap_fini(&core->tombs);
    core->stats.tombs = 0;
}
