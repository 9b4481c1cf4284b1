/* SPDX-License-Identifier: Apache-2.0
 * Tombstones: removals that are owed to other nodes, kept here so that they outlive the master. Open addressing with
 * linear probing; deleting moves what follows.
 */
#include "client/node/core/node_core_priv.h"

#include <stdlib.h>

static uint32_t
home_of(const kvp_node_tombs_t *t, kvp_digest_t digest)
{
    return (uint32_t)digest.lo & (t->cap - 1);
}

/* place_of returns where the digest is, or where it would go. The table is never full. */
static uint32_t
place_of(const kvp_node_tombs_t *t, kvp_digest_t digest)
{
    uint32_t at = home_of(t, digest);

    while (t->slots[at].version != 0 && !kvp_digest_eq(t->slots[at].digest, digest))
        at = (at + 1) & (t->cap - 1);
    return at;
}

static bool
grow(kvp_node_tombs_t *t)
{
    kvp_node_tombs_t grown = {.cap = t->cap == 0 ? 64 : t->cap * 2, .n = t->n};

    grown.slots = calloc(grown.cap, sizeof *grown.slots);
    if (grown.slots == NULL) return false;
    for (uint32_t i = 0; i < t->cap; i++)
        if (t->slots[i].version != 0) grown.slots[place_of(&grown, t->slots[i].digest)] = t->slots[i];
    free(t->slots);
    *t = grown;
    return true;
}

static void
drop(kvp_node_tombs_t *t, kvp_digest_t digest)
{
    uint32_t hole;

    if (t->cap == 0) return;
    hole = place_of(t, digest);
    if (t->slots[hole].version == 0) return;
    t->n--;
    /* What probed over the hole moves into it. */
    for (uint32_t at = (hole + 1) & (t->cap - 1); t->slots[at].version != 0; at = (at + 1) & (t->cap - 1)) {
        uint32_t home = home_of(t, t->slots[at].digest);

        if (((at - home) & (t->cap - 1)) < ((at - hole) & (t->cap - 1))) continue;
        t->slots[hole] = t->slots[at];
        hole = at;
    }
    t->slots[hole].version = 0;
}

static kvp_err_t
keep(kvp_node_tombs_t *t, const kvp_wire_tomb_t *tomb)
{
    uint32_t at;

    if (t->n + 1 > t->cap / 2 && !grow(t)) return KVP_NOMEM;
    at = place_of(t, tomb->digest);
    if (t->slots[at].version == 0) {
        if (t->n >= KVP_NODE_TOMBS_MAX) return KVP_LIMIT;
        t->n++;
        t->slots[at] = *tomb;
    } else if (t->slots[at].version < tomb->version) {
        t->slots[at].version = tomb->version;
    }
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
            drop(&core->tombs, tombs[i].digest);
        else
            one = keep(&core->tombs, &tombs[i]);
        if (err == KVP_OK) err = one;
    }
    core->stats.tombs = core->tombs.n;
    return err;
}

uint32_t
kvp_node_tombs_page(const kvp_node_core_t *core, uint32_t *at, kvp_buf_t *tail, uint32_t max)
{
    const kvp_node_tombs_t *t = &core->tombs;
    uint32_t n = 0;

    for (; *at < t->cap && n < max; ++*at) {
        if (t->slots[*at].version == 0) continue;
        kvp_buf_append(tail, &t->slots[*at], sizeof t->slots[*at]);
        n++;
    }
    return n;
}

void
kvp_node_tombs_fini(kvp_node_core_t *core)
{
    free(core->tombs.slots);
    core->tombs = (kvp_node_tombs_t){0};
    core->stats.tombs = 0;
}
