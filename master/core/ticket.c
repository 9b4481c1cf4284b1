/* SPDX-License-Identifier: Apache-2.0
 * Tickets: holds (a get under way) and reservations (a lookup). While an object has a ticket it is no candidate for
 * eviction. Reservations expire. Bounds: a quarter of the pool, a twentieth a client.
 */
#include "master/core/internal.h"

#include "common/mutate.h"

#include <stdlib.h>

#define RESERVE_POOL_SHARE 4u
#define RESERVE_CLIENT_SHARE 20u

/* ---- tickets */
static uint64_t
reserve_budget(const kvp_master_t *m, const kvp_session_t *s)
{
    uint64_t pool = m->st.size_bytes / RESERVE_POOL_SHARE;
    uint64_t client = m->st.size_bytes / RESERVE_CLIENT_SHARE;
    uint64_t pool_left = pool > m->st.reserved_bytes ? pool - m->st.reserved_bytes : 0;
    uint64_t client_left = client > s->reserved_bytes ? client - s->reserved_bytes : 0;

    if (!KVP_RULE(RESERVATION_BOUND)) return UINT64_MAX;
    return KVP_RULE(RESERVATION_SHARE) ? kvp_min_u64(pool_left, client_left) : pool_left;
}

static void
object_take(kvp_master_t *m, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(m->index, oid);

    if (o->tickets++ == 0) {
        kvp_victim_removed(m, kvp_victim_unit(m, oid));
        kvp_group_hold(m, oid, true);
    }
    kvp_obj_count_held(m, o, 1);
}

static void
object_release(kvp_master_t *m, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(m->index, oid);

    kvp_master_spend(m, 1);
    o->tickets--;
    kvp_obj_count_held(m, o, -1);
    if (o->tickets > 0) return;
    if (o->state == KVP_OBJ_GONE) {
        kvp_objindex_free(m->index, oid);
        return;
    }
    kvp_group_hold(m, oid, false);
    kvp_victim_used(m, oid);
    kvp_master_space_news(m);
}

static uint64_t
object_bytes(const kvp_master_t *m, uint32_t oid)
{
    return kvp_obj_bytes(m, kvp_obj(m->index, oid)); /* a ticket protects all copies */
}

bool
kvp_ticket_may_take(const kvp_master_t *m, const kvp_session_t *s, const uint32_t *oids, uint32_t n)
{
    if (s->tickets_n >= KVP_TICKETS_MAX || n > KVP_TICKET_OBJECTS_MAX - s->ticket_objects) return false;
    /* All n may name the same object. */
    for (uint32_t i = 0; i < n; i++)
        if (kvp_obj(m->index, oids[i])->tickets > KVP_OBJ_TICKETS_MAX - n) return false;
    return true;
}

/* A ticket's id is its number, with a count above it that tells it from the ones which had that number before. */
static uint64_t
make_id(kvp_master_t *m, uint32_t number)
{
    return (++m->ticket_seq % UINT32_MAX + 1) << 32 | number;
}

static kvp_ticket_t *
ticket_open(kvp_master_t *m, kvp_session_t *s, kvp_ticket_kind_t kind, uint32_t n)
{
    kvp_ticket_t *t = kvp_core_alloc(1, sizeof *t);

    t->session = s;
    t->kind = kind;
    t->n = n;
    t->number = kvp_ptab_add(&m->tickets, t);
    t->id = make_id(m, t->number);
    kvp_list_add_tail(&s->tickets, &t->link);
    s->tickets_n++;
    s->ticket_objects += n;
    return t;
}

static void
count_reserved(kvp_master_t *m, kvp_ticket_t *t, uint64_t ttl_ns)
{
    kvp_heap_add(&m->expiries, &t->expiry, m->now_ns + ttl_ns);
    t->session->reserved_bytes += t->bytes;
    m->st.reserved_bytes += t->bytes;
}

uint64_t
kvp_ticket_take(kvp_master_t *m, kvp_session_t *s, kvp_ticket_kind_t kind, const uint32_t *oids, uint32_t n,
                uint64_t ttl_ns)
{
    kvp_ticket_t *t;

    if (n == 0) return 0;
    t = ticket_open(m, s, kind, n);
    t->oids = kvp_core_alloc(n, sizeof *t->oids);
    for (uint32_t i = 0; i < n; i++) {
        t->oids[i] = oids[i];
        t->bytes += object_bytes(m, oids[i]);
        object_take(m, oids[i]);
    }
    if (kind == KVP_TICKET_RESERVE)
        count_reserved(m, t, ttl_ns);
    else
        m->st.held_bytes += t->bytes;
    return t->id;
}

uint64_t
kvp_ticket_take_groups(kvp_master_t *m, kvp_session_t *s, kvp_group_t *const *groups, uint32_t n, uint64_t ttl_ns)
{
    kvp_ticket_t *t;

    if (n == 0) return 0;
    t = ticket_open(m, s, KVP_TICKET_RESERVE, n);
    t->groups = kvp_core_alloc(n, sizeof *t->groups);
    for (uint32_t i = 0; i < n; i++) {
        t->groups[i] = groups[i];
        t->bytes += groups[i]->bytes;
        kvp_group_reserve(m, groups[i]);
    }
    count_reserved(m, t, ttl_ns);
    return t->id;
}

uint32_t
kvp_ticket_grantable(const kvp_master_t *m, const kvp_session_t *s, const uint32_t *oids, uint32_t n)
{
    uint64_t left = reserve_budget(m, s);
    uint32_t i;

    if (!kvp_ticket_may_take(m, s, oids, n)) return 0;
    for (i = 0; i < n; i++) {
        uint64_t bytes = object_bytes(m, oids[i]);

        if (bytes > left) break;
        left -= bytes;
    }
    return i;
}

uint32_t
kvp_ticket_grantable_groups(const kvp_master_t *m, const kvp_session_t *s, kvp_group_t *const *groups, uint32_t n)
{
    uint64_t left = reserve_budget(m, s);
    uint32_t i;

    if (!kvp_ticket_may_take(m, s, NULL, 0) || n > KVP_TICKET_OBJECTS_MAX - s->ticket_objects) return 0;
    for (i = 0; i < n && groups[i]->bytes <= left; i++)
        left -= groups[i]->bytes;
    return i;
}

void
kvp_ticket_drop(kvp_master_t *m, kvp_ticket_t *t)
{
    if (t->kind == KVP_TICKET_RESERVE) {
        kvp_heap_del(&m->expiries, &t->expiry);
        t->session->reserved_bytes -= t->bytes;
    }
    t->session->tickets_n--;
    t->session->ticket_objects -= t->n;
    t->session = NULL;
    kvp_list_del(&t->link);
    kvp_list_add_tail(&m->ending, &t->link);
    kvp_master_spend(m, 1);
}

static void
ticket_free(kvp_master_t *m, kvp_ticket_t *t)
{
    if (t->kind == KVP_TICKET_RESERVE)
        m->st.reserved_bytes -= t->bytes;
    else
        m->st.held_bytes -= t->bytes;
    kvp_list_del(&t->link);
    kvp_ptab_del(&m->tickets, t->number);
    free(t->oids);
    free(t->groups);
    free(t);
}

void
kvp_ticket_end_some(kvp_master_t *m)
{
    while (!kvp_list_is_empty(&m->ending)) {
        kvp_ticket_t *t = kvp_list_first(&m->ending, kvp_ticket_t, link);

        for (; t->n > 0; t->n--) {
            if (m->slice_left == 0) return;
            if (t->oids != NULL)
                object_release(m, t->oids[t->n - 1]);
            else
                kvp_group_unreserve(m, t->groups[t->n - 1]);
        }
        ticket_free(m, t);
    }
}

void
kvp_ticket_release(kvp_master_t *m, kvp_session_t *s, uint64_t id)
{
    kvp_ticket_t *t = kvp_ptab_get(&m->tickets, (uint32_t)id);

    if (t == NULL || t->id != id || t->session != s) return;
    kvp_ticket_drop(m, t);
    kvp_ticket_end_some(m);
}

void
kvp_ticket_tick(kvp_master_t *m)
{
    const kvp_heapnode_t *first;

    if (!KVP_RULE(RESERVATION_TIME)) return;
    while ((first = kvp_heap_least(&m->expiries)) != NULL && first->key <= m->now_ns && m->slice_left > 0)
        kvp_ticket_drop(m, kvp_heap_entry(first, kvp_ticket_t, expiry));
}
