/* SPDX-License-Identifier: Apache-2.0
 * What goes first, in plans in which that can be told (PROFILE_USES): objects of one length on one node, which nobody
 * removes, and nobody fails. So whatever is retired was evicted, and of what could have gone instead nothing may be
 * that was not used since what is evicted was put. A put, a get and a view are uses. A look-up is one of what it
 * reserved only if one of the keys that it named was put or got before the reservation ended; who did so is not asked.
 */
#include "tests/sim/sim_oracle_priv.h"

#define SETTLED_NS (5 * MS) /* what is later than that may have happened while the order waited to be said */

/* When a key was last put or got, whether it is there or not. */
typedef struct touched {
    kvp_digest_t digest;
    uint64_t at_ns;
    struct touched *next;
} touched_t;

static touched_t *
touched_of(sim_t *s, kvp_digest_t digest)
{
    touched_t *t = s->oracle->touched;

    while (t != NULL && !kvp_digest_eq(t->digest, digest))
        t = t->next;
    if (t != NULL) return t;
    t = sim_alloc(s, sizeof *t);
    *t = (touched_t){digest, 0, s->oracle->touched};
    return s->oracle->touched = t;
}

void
uses_touch(sim_t *s, kvp_digest_t digest)
{
    if (s->plan->profile != PROFILE_USES) return;
    touched_of(s, digest)->at_ns = s->now;
    for (known_t *k = known_first(s, digest); k != NULL; k = known_next(k, digest))
        k->grant->used_ns = s->now;
}

static bool
was_followed(sim_t *s, const hold_t *h)
{
    for (uint32_t i = 0; i < h->asked_n; i++)
        if (touched_of(s, h->asked[i])->at_ns >= h->begun_ns) return true;
    return false;
}

void
uses_hold_ended(sim_t *s, const hold_t *h)
{
    bool is_read = h->until_ns == UINT64_MAX;

    if (s->plan->profile != PROFILE_USES) return;
    for (uint32_t i = 0; i < h->grants_n; i++) {
        grant_t *g = h->grants[i];

        g->let_go_ns = s->now;
        if (is_read) uses_touch(s, g->digest);
        if (!is_read && was_followed(s, h)) g->used_ns = s->now;
    }
}

/* It could have gone, and has not been used since what goes was put. */
static bool
was_due(const sim_t *s, const grant_t *g, const grant_t *gone)
{
    return grant_is_served_for_ever(g) && g->holds == 0 && g->used_ns < gone->commit_ns &&
           kvp_max_u64(g->used_ns, g->let_go_ns) + SETTLED_NS < s->now;
}

void
uses_evicted(sim_t *s, const grant_t *gone)
{
    const grant_t *youngest = s->oracle->evicted;

    if (s->plan->profile != PROFILE_USES || !gone->is_committed) return;
    if (youngest == NULL || youngest->commit_ns < gone->commit_ns) s->oracle->evicted = gone;
}

/* What is evicted in one step goes in any order. */
void
uses_step_ends(sim_t *s)
{
    const grant_t *gone = s->oracle->evicted;

    s->oracle->evicted = NULL;
    for (uint32_t b = 0; gone != NULL && b < BUCKETS; b++)
        for (const known_t *k = s->oracle->known[b]; k != NULL; k = k->next)
            if (was_due(s, k->grant, gone)) {
                sim_fail(s, "USE", "slot %u, put at %.3f us, is evicted, and slot %u stays, last used at %.3f us",
                         gone->slot, (double)gone->commit_ns / 1e3, k->grant->slot, (double)k->grant->used_ns / 1e3);
                return;
            }
}
