/* SPDX-License-Identifier: Apache-2.0
 * The list of the pool's masters: see roster.h. */
#include "master/ha/roster.h"

#include "common/clock.h"

#include <stdio.h>
#include <string.h>

static const kvp_election_master_t *
find_registered(const kvp_ha_status_t *st, const char *id, const char *address)
{
    for (uint32_t i = 0; i < st->masters_n; i++) {
        const kvp_election_master_t *it = &st->masters[i];

        if (strcmp(it->id, id) == 0 || (address[0] != '\0' && strcmp(it->address, address) == 0)) return it;
    }
    return NULL;
}

/* see_master records that the master was seen. If the list is full, the entry that was not seen for the longest time
 * is dropped. */
static void
see_master(kvp_masterlist_t *r, const char *id, const char *address, uint64_t now_ns)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < KVP_MASTERS_MAX; i++) {
        if (strcmp(r->ones[i].id, id) == 0) {
            at = i;
            break;
        }
        if (r->ones[i].seen_ns < r->ones[at].seen_ns) at = i;
    }
    if (strcmp(r->ones[at].id, id) != 0) memset(&r->ones[at], 0, sizeof r->ones[at]);
    snprintf(r->ones[at].id, sizeof r->ones[at].id, "%s", id);
    if (address[0] != '\0') snprintf(r->ones[at].address, sizeof r->ones[at].address, "%s", address);
    r->ones[at].seen_ns = now_ns;
}

static bool
is_remembered(const kvp_masterlist_t *r, const char *id)
{
    for (uint32_t i = 0; i < KVP_MASTERS_MAX; i++)
        if (strcmp(r->ones[i].id, id) == 0) return true;
    return false;
}

/* state_of returns the state of a registered master other than this one. On a standby, all masters but the leader
 * count as standbys. */
static uint32_t
state_of(const kvp_ha_status_t *st, const kvp_election_master_t *it, uint64_t *lag_out)
{
    if (strcmp(it->id, st->leader.id) == 0) return KVP_MASTER_LEADER;
    if (strcmp(st->leader.id, st->self.id) != 0) return KVP_MASTER_STANDBY;
    for (uint32_t i = 0; i < st->standbys_n; i++) {
        if (strcmp(st->standbys[i].id, it->id) != 0) continue;
        *lag_out = st->standbys[i].lag_bytes;
        return st->standbys[i].is_insync ? KVP_MASTER_STANDBY : KVP_MASTER_LAGGING;
    }
    return KVP_MASTER_APART;
}

static void
add_row(kvp_master_peer_t *row, const char *id, const char *address, const char *http, uint32_t state)
{
    memset(row, 0, sizeof *row);
    snprintf(row->id, sizeof row->id, "%s", id);
    snprintf(row->address, sizeof row->address, "%s", address);
    snprintf(row->http, sizeof row->http, "%s", http);
    row->state = state;
}

uint32_t
kvp_roster_update(kvp_masterlist_t *r, const kvp_ha_status_t *st, uint64_t now_ns,
                  kvp_master_peer_t rows[KVP_MASTERS_MAX])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < st->masters_n; i++)
        see_master(r, st->masters[i].id, st->masters[i].address, now_ns);
    for (uint32_t i = 0; i < st->insync.n; i++)
        if (!is_remembered(r, st->insync.ids[i])) see_master(r, st->insync.ids[i], "", now_ns);

    add_row(&rows[n], st->self.id, st->self.address, st->self.http,
            strcmp(st->leader.id, st->self.id) == 0 ? KVP_MASTER_LEADER : KVP_MASTER_STANDBY);
    rows[n++].lag_bytes = st->lag_bytes;
    for (uint32_t i = 0; i < st->masters_n && n < KVP_MASTERS_MAX; i++) {
        uint64_t lag = 0;

        if (strcmp(st->masters[i].id, st->self.id) == 0) continue;
        add_row(&rows[n], st->masters[i].id, st->masters[i].address, st->masters[i].http,
                state_of(st, &st->masters[i], &lag));
        rows[n++].lag_bytes = lag;
    }
    for (uint32_t i = 0; i < KVP_MASTERS_MAX && n < KVP_MASTERS_MAX; i++) {
        const char *id = r->ones[i].id, *address = r->ones[i].address;

        if (id[0] == '\0' || strcmp(id, st->self.id) == 0) continue;
        const kvp_election_master_t *there = find_registered(st, id, address);
        if (there != NULL && strcmp(there->id, id) == 0) continue;
        if (there != NULL || strcmp(address, st->self.address) == 0 ||
            now_ns - r->ones[i].seen_ns >= KVP_ROSTER_FORGET_NS)
            /* the missing master's address has a new master, or it was missing for too long */
            memset(&r->ones[i], 0, sizeof r->ones[i]);
        else
            add_row(&rows[n++], id, address, "", KVP_MASTER_MISSING);
    }
    return n;
}
