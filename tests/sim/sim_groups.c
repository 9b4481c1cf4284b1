/* SPDX-License-Identifier: Apache-2.0
 * The oracle's view of groups: which members the master was told to commit, and with that whether a group may be
 * seen, goes as one, and is left behind by nobody. What it cannot know (when the master began a group anew) it takes
 * for the case in which less is asked of the master. */
#include "tests/sim/sim_oracle_priv.h"

struct group {
    uint32_t tenant, size;
    kvp_digest_t digest;
    uint32_t seen; /* a bit for each member whose commit was heard since none was there */
    grant_t **missed; /* these were all its members, and it, or one of them, was not found */
    grant_t *grants; /* newest first */
    struct group *next;
};

static group_t *
find(sim_t *s, uint32_t tenant, kvp_digest_t digest)
{
    group_t *g = s->oracle->groups;

    while (g != NULL && (g->tenant != tenant || !kvp_digest_eq(g->digest, digest)))
        g = g->next;
    return g;
}

void
group_join(sim_t *s, grant_t *grant, const kvp_wire_group_t *want)
{
    group_t *g;

    if (want->group.lo == 0 && want->group.hi == 0) return;
    g = find(s, grant->tenant, want->group);
    if (g == NULL) {
        g = sim_alloc(s, sizeof *g);
        *g = (group_t){grant->tenant, want->members, want->group, 0, NULL, NULL, s->oracle->groups};
        s->oracle->groups = g;
    }
    grant->group = g;
    grant->member = want->member;
    grant->group_next = g->grants;
    g->grants = grant;
}

/* As far as the master can know: that memory is gone it may hear later. */
static bool
is_there(const grant_t *m)
{
    return m->is_commit_asked && !m->is_retired && !m->is_outdated;
}

/* Of what lies on a node that is away, an order to retire it may be waiting. */
static bool
is_served(const grant_t *m)
{
    return grant_is_served_for_ever(m) && !m->is_outdated && m->mem->conn != 0;
}

static uint32_t
all_of(const group_t *g)
{
    return (1u << g->size) - 1;
}

/* The members that satisfy it, a bit for each number. */
static uint32_t
members(const group_t *g, bool (*is_one)(const grant_t *m))
{
    uint32_t bits = 0;

    for (const grant_t *m = g->grants; m != NULL; m = m->group_next)
        if (is_one(m)) bits |= 1u << m->member;
    return bits;
}

static bool
is_whole(const group_t *g)
{
    return g->size > 0 && members(g, is_served) == all_of(g);
}

bool
group_must_show(const grant_t *m)
{
    return m->group == NULL || m->group->size == 0;
}

static bool
are_all_served(const group_t *g, grant_t *const *all)
{
    for (uint32_t i = 0; all != NULL && i < g->size; i++)
        if (!is_served(all[i])) return false;
    return all != NULL;
}

/* Those that are there by now need not be those that were: the master may have dropped one that it has not ordered a
 * busy node to retire. So it is kept in mind who they were. */
void
group_missed(sim_t *s, const grant_t *m)
{
    group_t *g = m->group;

    if (!is_whole(g) || are_all_served(g, g->missed)) return;
    g->missed = sim_alloc(s, g->size * sizeof(*g->missed));
    for (grant_t *each = g->grants; each != NULL; each = each->group_next)
        if (is_served(each) && g->missed[each->member] == NULL) g->missed[each->member] = each;
}

static bool
is_hidden(const grant_t *m)
{
    return m->group != NULL && m->group->size > 0 && m->group->seen != all_of(m->group);
}

void
group_commit_heard(const grant_t *m)
{
    if (m->group != NULL && m->group->size > 0) m->group->seen |= 1u << m->member;
}

/* ---- what is shown */
void
group_shown(sim_t *s, grant_t *m)
{
    if (m->group == NULL) return;
    if (is_hidden(m))
        sim_fail(s, "GROUP", "slot %u generation %lx is shown before all members of its group are committed", m->slot,
                 (unsigned long)m->generation);
    else if (m->must_go)
        sim_fail(s, "GROUP", "slot %u generation %lx is shown after another of its group was evicted", m->slot,
                 (unsigned long)m->generation);
    m->shown_ns = s->now;
}

void
group_key_shown(sim_t *s, uint32_t tenant, kvp_digest_t digest)
{
    const known_t *hidden = NULL;

    for (known_t *k = known_first(s, digest); k != NULL; k = known_next(k, digest)) {
        if (k->grant->tenant != tenant || !is_there(k->grant)) continue;
        if (!is_hidden(k->grant)) return;
        hidden = k;
    }
    if (hidden != NULL) group_shown(s, hidden->grant);
}

void
group_looked_up(sim_t *s, uint32_t tenant, kvp_digest_t digest, bool is_found)
{
    group_t *g = find(s, tenant, digest);
    uint32_t there;

    if (g == NULL) {
        if (is_found) sim_fail(s, "GROUP", "a group is found that nobody has put");
        return;
    }
    there = members(g, is_there);
    if (is_found && (there == 0 || (g->size > 0 && there != all_of(g))))
        sim_fail(s, "GROUP", "a group is found of whose %u members these are there: %x", g->size, there);
    if (!is_found) group_missed(s, g->grants);
}

uint32_t
group_hold(sim_t *s, uint32_t tenant, kvp_digest_t digest, grant_t **grants, uint32_t max)
{
    group_t *g = find(s, tenant, digest);
    uint32_t n = 0, taken = 0;

    if (g == NULL || g->size == 0) return 0;
    for (grant_t *m = g->grants; m != NULL && n < max; m = m->group_next) {
        if (!is_there(m) || (taken >> m->member & 1) != 0) continue;
        taken |= 1u << m->member;
        grants[n++] = m;
    }
    return n;
}

/* ---- what goes */
void
group_may_leave(sim_t *s, uint32_t tenant, const kvp_digest_t *digest)
{
    for (group_t *g = s->oracle->groups; g != NULL; g = g->next)
        for (grant_t *m = g->grants; m != NULL; m = m->group_next)
            m->may_leave |= m->tenant == tenant && (digest == NULL || kvp_digest_eq(m->digest, *digest));
}

void
group_bumped(sim_t *s, uint32_t tenant)
{
    for (group_t *g = s->oracle->groups; g != NULL; g = g->next) {
        if (g->tenant != tenant) continue;
        g->seen = 0;
        for (grant_t *m = g->grants; m != NULL; m = m->group_next)
            m->is_outdated = m->may_leave = true;
    }
}

/* Who was there when it was last seen was of the same group as it, and goes with it. */
static void
evicted(const group_t *g, const grant_t *gone)
{
    for (grant_t *m = g->grants; m != NULL; m = m->group_next)
        if (is_there(m) && !m->may_leave && m->shown_ns > 0 && m->shown_ns <= gone->shown_ns) m->must_go = true;
}

void
group_retired(grant_t *gone)
{
    group_t *g = gone->group;

    if (g == NULL || !gone->is_commit_asked) return;
    if (!gone->may_leave && gone->shown_ns > 0) evicted(g, gone);
    if (members(g, is_there) == 0) g->seen = 0;
}

/* ---- at the end, when all who put something are gone */
void
groups_end(sim_t *s)
{
    for (const group_t *g = s->oracle->groups; g != NULL; g = g->next) {
        if (are_all_served(g, g->missed)) sim_fail(s, "I3", "all members of a group are there, and it was not found");
        for (const grant_t *m = g->grants; m != NULL; m = m->group_next)
            if (is_hidden(m) && grant_is_served_for_ever(m))
                sim_fail(s, "I9", "slot %u generation %lx is left of a group that will never be whole", m->slot,
                         (unsigned long)m->generation);
    }
}
