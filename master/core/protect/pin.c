/* SPDX-License-Identifier: Apache-2.0
 * Pins. What is pinned hard is no victim at all. What is pinned softly is one after everything else, and all of it
 * together has a budget: beyond it those that were used longest ago lose the pin, and are ordinary objects that were
 * just used. An object's pin is what the put that made it said. A group is pinned as its members are: hard, if one of them
is, else softly, if one of them is.
 */
#include "master/core/protect/gone.h"
#include "master/core/protect/pin.h"

#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/log/interim.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/protect/protection.h"
#include "proto/wire.h"

#define SOFT_SHARE 4u /* budget: a quarter of the pool */

void
kvp_pin_count(kvp_protect_t *prot, const kvp_obj_t *o, int64_t bytes)
{
    if (o->pin == KVP_PIN_SOFT) {
        prot->ctx->st.soft_pinned_bytes += (uint64_t)bytes;
        kvp_obj_tenant(prot->cat, o)->soft_pinned_bytes += (uint64_t)bytes;
    } else if (o->pin == KVP_PIN_HARD) {
        prot->ctx->st.hard_pinned_bytes += (uint64_t)bytes;
        kvp_obj_tenant(prot->cat, o)->hard_pinned_bytes += (uint64_t)bytes;
    }
}

/* Segments whose node is away count as well: it costs nobody's pin that one comes back a second later. And while nodes may
 * come that this master does not know yet, nobody knows how large the pool is. What is held when its turn comes is
 * parked, and loses its pin, if it must, when it is on the list again. */
bool
kvp_pin_is_over(const kvp_protect_t *prot)
{
    return prot->pinned.n > 0 && !kvp_gone_is_rebuilding(prot) &&
           prot->ctx->st.soft_pinned_bytes > prot->cat->known_bytes / SOFT_SHARE && KVP_RULE(PIN_BUDGET);
}

void
kvp_pin_lose(kvp_protect_t *prot, kvp_obj_t *o)
{
    kvp_pin_count(prot, o, -(int64_t)kvp_obj_bytes(prot->cat, o));
    o->pin = KVP_PIN_NONE;
    prot->ctx->st.pins_lost++;
}

void
kvp_pin_trim(kvp_protect_t *prot)
{
    while (prot->ctx->slice_left > 0 && kvp_pin_is_over(prot)) {
        uint32_t unit = kvp_victim_behind(prot, &prot->pinned, KVP_OID_NONE);
        const kvp_member_t *mb;

        if (unit == KVP_OID_NONE) return;
        mb = kvp_group_member(prot->cat, kvp_obj(prot->cat->index, unit));
        kvp_victim_removed(prot, unit);
        if (mb == NULL)
            kvp_pin_lose(prot, kvp_obj(prot->cat->index, unit));
        else
            kvp_group_unpin(prot, mb->group);
        kvp_victim_used(prot, unit);
        kvp_ctx_spend(prot->ctx, 1);
    }
}
