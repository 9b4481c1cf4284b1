/* SPDX-License-Identifier: Apache-2.0
 * The oracle of what clients present again: what a master says it honours is held as by any ticket; and what was held
 * when a master went is not taken by the next one before its clients had the time to come. */
#include "tests/sim/sim_oracle_priv.h"

#define PRESENT_NS (2 * SEC) /* that a master which took over waits; no ticket of the simulation lasts longer */

/* ---- what is presented */
static void
hold_version(sim_t *s, uint32_t tenant, hold_t *h, const kvp_wire_present_t *rec)
{
    for (known_t *k = known_first(s, rec->digest); k != NULL; k = known_next(k, rec->digest)) {
        if (k->grant->tenant != tenant || k->grant->version != rec->version || !grant_is_served_for_ever(k->grant))
            continue;
        if (k->grant->is_dropped) continue; /* its order to retire waits for its node: the other copy is held */
        h->grants[h->grants_n++] = k->grant;
        k->grant->holds++;
    }
}

static hold_t *
hold_of(sim_t *s, const conn_t *conn, const kvp_wire_present_t *rec, uint64_t ticket)
{
    hold_t *h = sim_alloc(s, sizeof *h);

    *h = (hold_t){.conn = conn->id, .ticket = ticket, .until_ns = UINT64_MAX, .next = s->oracle->holds};
    if (rec->kind != KVP_PRESENT_HOLD) h->until_ns = master_now(s) + rec->ttl_ms * MS;
    h->grants = sim_alloc(s, HELD_A_DIGEST * sizeof(*h->grants));
    s->oracle->holds = h;
    return h;
}

void
says_presented(sim_t *s, conn_t *conn, uint32_t tenant, const ask_t *ask, const kvp_frame_t *f)
{
    const kvp_wire_present_t *recs = (const kvp_wire_present_t *)ask->frame.tail;
    const kvp_wire_presented_t *answers = (const kvp_wire_presented_t *)f->tail;

    /* A hold for each record: those of one ticket end together. */
    for (size_t i = 0; (i + 1) * sizeof *answers <= f->tail_len; i++) {
        TRACE(s, "presented kind %u of %s: %d", recs[i].kind, conn->end[0].who->name, answers[i].err);
        if (answers[i].err != KVP_OK) continue;
        if (recs[i].kind == KVP_PRESENT_HOLD)
            hold_version(s, tenant, hold_of(s, conn, &recs[i], answers[i].ticket), &recs[i]);
        else if (recs[i].kind == KVP_PRESENT_GROUP)
            hold_group(s, tenant, hold_of(s, conn, &recs[i], answers[i].ticket), recs[i].digest);
        else
            hold_found(s, tenant, hold_of(s, conn, &recs[i], answers[i].ticket), recs[i].digest);
    }
}

/* ---- over the end of a master */
void
holds_carry(sim_t *s, bool is_alone)
{
    uint64_t now = master_now(s);

    for (uint32_t b = 0; b < BUCKETS; b++)
        for (known_t *k = s->oracle->known[b]; k != NULL; k = k->next)
            k->grant->carried_until_ns = 0;
    for (const hold_t *h = s->oracle->holds; is_alone && h != NULL; h = h->next)
        for (uint32_t i = 0; i < h->grants_n; i++)
            if (h->until_ns > now && !is_forced(s, h->grants[i]))
                h->grants[i]->carried_until_ns = kvp_max_u64(h->grants[i]->carried_until_ns, h->until_ns);
}

void
oracle_master_begins(sim_t *s)
{
    s->oracle->took_over_ns = master_now(s);
}

bool
is_carried(const sim_t *s, const grant_t *g)
{
    uint64_t now = master_now(s);

    /* Time that a clock has made up is nobody's. */
    return !s->has_stepped && now < g->carried_until_ns && now < s->oracle->took_over_ns + PRESENT_NS &&
           s->oracle->took_over_ns > 0 && g->term < master_term(s);
}
