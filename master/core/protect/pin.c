/* SPDX-License-Identifier: Apache-2.0
 * Pins. A hard-pinned object is no candidate for eviction. Softly pinned objects come after all other candidates, and
 * all of them together have a budget of bytes: beyond the budget, the objects with the oldest use lose the pin, and
 * become ordinary objects that were just used. An object's pin comes from its put. A group has its members' strongest
 * pin. */
#include "master/core/protect/gone.h"
#include "master/core/protect/pin.h"

#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/protect/protection.h"
#include "proto/wire.h"

#define SOFT_SHARE 4u /* the budget of soft pins is a quarter of the pool */

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

/* Returns true if soft pins exceed their budget. Segments whose node is disconnected count as part of the pool, so
 * that a node that returns a second later costs no pin. While unknown nodes may connect, the size of the pool is
 * unknown, so no pin is lost. An object with a ticket loses its pin, if necessary, after the ticket has ended. */
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
