/* SPDX-License-Identifier: Apache-2.0
 * The invariants of the core's allocator: extents without a gap, and each free one in its treap. */
#include "tests/world/check/slab_check.h"

#include "master/core/base/slab_priv.h"

/* treap_count returns the number of nodes of a treap, or UINT32_MAX if a node is not a free extent of this class, is
 * out of order, or has a higher priority than its parent. lo and hi bound the order of all nodes. */
static uint32_t
treap_count(const kvp_slab_t *slab, uint32_t root, uint32_t class_id, uint64_t lo, uint64_t hi)
{
    if (root == KVP_SLAB_NONE) return 0;
    if (!kvp_slab_is_live(slab, root)) return UINT32_MAX;
    const kvp_slab_rec_t *r = kvp_slab_rec(slab, root);
    const uint64_t order = kvp_slab_order_of(slab, r);
    uint32_t fl, sl;
    kvp_slab_class_of(kvp_slab_capacity_of(slab, r), &fl, &sl);
    if (kvp_slab_rec_is_allocated(r) || fl * KVP_SLAB_SL_COUNT + sl != class_id) return UINT32_MAX;
    if (order <= lo || order >= hi) return UINT32_MAX;
    if (r->left != KVP_SLAB_NONE && kvp_slab_priority_of(r->left) > kvp_slab_priority_of(root)) return UINT32_MAX;
    if (r->right != KVP_SLAB_NONE && kvp_slab_priority_of(r->right) > kvp_slab_priority_of(root)) return UINT32_MAX;
    uint32_t left = treap_count(slab, r->left, class_id, lo, order);
    uint32_t right = treap_count(slab, r->right, class_id, order, hi);
    return left == UINT32_MAX || right == UINT32_MAX ? UINT32_MAX : left + right + 1;
}

static bool
check_index(const kvp_slab_t *slab, uint32_t free_count)
{
    uint32_t found = 0;
    for (uint32_t fl = 0; fl < slab->fl_count; fl++) {
        if ((slab->sl_map[fl] != 0) != ((slab->fl_map >> fl & 1) != 0)) return false;
        for (uint32_t sl = 0; sl < KVP_SLAB_SL_COUNT; sl++) {
            uint32_t root = slab->roots[fl][sl];
            if ((root != KVP_SLAB_NONE) != ((slab->sl_map[fl] >> sl & 1) != 0)) return false;
            uint32_t n = treap_count(slab, root, fl * KVP_SLAB_SL_COUNT + sl, 0, UINT64_MAX);
            if (n == UINT32_MAX) return false;
            found += n;
        }
    }
    return found == free_count;
}

bool
kvp_slab_check(const kvp_slab_t *slab)
{
    uint32_t end = 0, used = 0, live = 0, free_count = 0;
    uint32_t prev = KVP_SLAB_NONE;
    bool is_prev_free = false;
    for (uint32_t slot = kvp_slab_first(slab); slot != KVP_SLAB_NONE; slot = kvp_slab_rec(slab, slot)->next) {
        if (!kvp_slab_is_live(slab, slot) || live++ >= slab->records.n) return false;
        const kvp_slab_rec_t *r = kvp_slab_rec(slab, slot);
        uint32_t len = kvp_slab_rec_len(slab, r);
        if (kvp_slab_rec_off(r) != end || r->prev != prev || len == 0 || len > slab->region_units - end) return false;
        if (kvp_slab_rec_is_allocated(r)) {
            used += len;
        } else {
            free_count++;
            if (is_prev_free) return false;
        }
        is_prev_free = !kvp_slab_rec_is_allocated(r);
        end += len;
        prev = slot;
    }
    return end == slab->region_units && used == slab->used_units && live == slab->records.n &&
           check_index(slab, free_count);
}
