/* SPDX-License-Identifier: Apache-2.0
 * Pins. What is pinned hard is no victim at all. What is pinned softly is one after everything else, and all of it
 * together has a budget: beyond it those that were used longest ago lose the pin, and are ordinary objects that were
 * just used. An object's pin is what the put that made it said. A group is pinned as its members are: hard, if one of them
is, else softly, if one of them is.
 */
#include "master/core/state.h"

#include "common/mutate.h"

#define SOFT_SHARE 4u /* budget: a quarter of the pool */

void
kvp_pin_count(kvp_master_t *m, const kvp_obj_t *o, int64_t bytes)
{
    if (o->pin == KVP_PIN_SOFT) {
        m->ctx.st.soft_pinned_bytes += (uint64_t)bytes;
        kvp_obj_tenant(&m->cat, o)->soft_pinned_bytes += (uint64_t)bytes;
    } else if (o->pin == KVP_PIN_HARD) {
        m->ctx.st.hard_pinned_bytes += (uint64_t)bytes;
        kvp_obj_tenant(&m->cat, o)->hard_pinned_bytes += (uint64_t)bytes;
    }
}

/* Segments whose node is away count as well: it costs nobody's pin that one comes back a second later. And while nodes may
 * come that this master does not know yet, nobody knows how large the pool is. What is held when its turn comes is set
 * aside, and loses its pin, if it must, when it is on the list again. */
bool
kvp_pin_is_over(const kvp_master_t *m)
{
    return m->pinned.n > 0 && !kvp_owed_is_rebuilding(&m->log) &&
           m->ctx.st.soft_pinned_bytes > m->cat.known_bytes / SOFT_SHARE && KVP_RULE(PIN_BUDGET);
}

void
kvp_pin_lose(kvp_master_t *m, kvp_obj_t *o)
{
    kvp_pin_count(m, o, -(int64_t)kvp_obj_bytes(&m->cat, o));
    o->pin = KVP_PIN_NONE;
    m->ctx.st.pins_lost++;
}

void
kvp_pin_trim(kvp_master_t *m)
{
    while (m->ctx.slice_left > 0 && kvp_pin_is_over(m)) {
        uint32_t unit = kvp_victim_behind(m, &m->pinned, KVP_OID_NONE);
        const kvp_member_t *mb;

        if (unit == KVP_OID_NONE) return;
        mb = kvp_group_member(&m->cat, kvp_obj(m->cat.index, unit));
        kvp_victim_removed(m, unit);
        if (mb == NULL)
            kvp_pin_lose(m, kvp_obj(m->cat.index, unit));
        else
            kvp_group_unpin(m, mb->group);
        kvp_victim_used(m, unit);
        kvp_ctx_spend(&m->ctx, 1);
    }
}
