/* SPDX-License-Identifier: Apache-2.0
 * A master that knows nothing learns from nodes which objects belong together, and what is pinned: groups are seen
 * whole or not at all, and go as one; what nobody can complete any more is dropped; pins protect, and count. */
#include "tests/unit/master/rig.h"
#include "tests/world/report.h"

#define LEN (4 * KIB)

static const rig_conf_t one_node = {.size = MIB};
static const rig_conf_t two_nodes = {.size = MIB, .mems = 2};
static const rig_conf_t second_away = {.size = MIB, .mems = 2, .nodes = 1};

/* ---- doing */
static kvp_err_t
put_pinned(peer_t *c, const char *key, kvp_wire_group_t group, kvp_pin_t pin)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    head.pin = pin;
    head.wait_ms = 100;
    return put_like(c, &(put_t){.key = key, .len = LEN, .group = group}, &head);
}

static kvp_err_t
put_member(peer_t *c, const char *name, uint32_t size, uint32_t i)
{
    return put_pinned(c, key_name(name, i), group_of(c, name, size, size == 0 ? 0 : i), KVP_PIN_NONE);
}

static void
put_members(peer_t *c, const char *name, uint32_t size, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(put_member(c, name, size, i), KVP_OK);
}

static void
put_plain(peer_t *c, const char *prefix, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(put_pinned(c, key_name(prefix, i), (kvp_wire_group_t){0}, KVP_PIN_NONE), KVP_OK);
}

/* ---- sized groups */
/* A pool of one node that has told its second master of a group's first three members, of four. */
static world_t *
open_with_three_of_four(void)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    mem_t *a = mem_make(w, "a", MIB, MIB);

    (void)node_open_on(w, a, "a");
    put_members(client_open(w), "g", 4, 0, 3);
    world_restart(w);
    (void)node_open_on(w, a, "a");
    return w;
}

RIG_TEST(test_group_when_all_of_it_is_reported, two_nodes)
{
    put_members(g->c, "g", 32, 0, 32); /* on both */
    rig_restart(g);
    (void)node_open_on(g->w, g->a, "a");
    assert_in_range(world_stats(g->w).adopted, 1, 31);
    assert_int_equal(count_of(g->c, "g", 0, 32), 0);
    assert_int_equal(put_member(g->c, "g", 32, 32), KVP_INVALID); /* no such number */
    (void)node_open_on(g->w, g->b, "b");
    assert_int_equal(count_of(g->c, "g", 0, 32), 32);
    assert_int_equal(put_member(g->c, "g", 32, 3), KVP_ALREADY);
    assert_int_equal(put_member(g->c, "g", 31, 0), KVP_ALREADY);
    assert_int_equal(put_pinned(g->c, "other", group_of(g->c, "g", 31, 0), KVP_PIN_NONE), KVP_INVALID);
    assert_int_equal(put_pinned(g->c, "other", group_of(g->c, "g", 32, 0), KVP_PIN_NONE), KVP_INVALID);
    world_advance(g->w, g->w->conf.node_grace_ns + SEC);
    assert_int_equal(count_of(g->c, "g", 0, 32), 32);
    put_plain(g->c, "fill", 2 * MIB / LEN - 32);
    put_plain(g->c, "more", 1);
    assert_int_equal(count_of(g->c, "g", 0, 32), 0); /* it was used first, and goes as one */
    assert_int_equal(world_stats(g->w).group_evictions, 1);
}

TEST(test_group_when_nobody_goes_on_with_it)
{
    world_t *w = open_with_three_of_four();
    peer_t *c = client_open(w);

    assert_int_equal(world_stats(w).adopted, 3);
    world_advance(w, w->conf.node_grace_ns - SEC);
    assert_int_equal(count_of(c, "g", 0, 4), 0);
    assert_int_equal(world_stats(w).used_bytes, 3 * LEN);
    world_advance(w, 2 * SEC);
    assert_int_equal(world_stats(w).used_bytes, 0);
    assert_int_equal(world_stats(w).groups, 0);
    put_members(c, "g", 4, 0, 4);
    assert_int_equal(count_of(c, "g", 0, 4), 4);
    world_close(w);
}

RIG_TEST(test_group_when_a_client_goes_on_with_it, one_node)
{
    peer_t *other;

    put_members(g->c, "g", 4, 0, 3);
    put_members(g->c, "h", 4, 0, 3);
    world_restart(g->w);
    (void)node_open_on(g->w, g->a, "a");
    g->c = client_open(g->w);
    other = client_open(g->w);
    put_members(g->c, "g", 4, 3, 4);
    assert_int_equal(count_of(other, "g", 0, 4), 4);
    assert_int_equal(put_member(g->c, "h", 4, 1), KVP_ALREADY); /* it is its owner from now on */
    assert_int_equal(put_member(other, "h", 4, 1), KVP_IN_PROGRESS);
    world_advance(g->w, g->w->conf.node_grace_ns + SEC);
    assert_int_equal(count_of(other, "g", 0, 4), 4);
    assert_int_equal(put_member(g->c, "h", 4, 1), KVP_ALREADY);
    assert_int_equal(put_member(g->c, "h", 4, 3), KVP_OK);
    assert_int_equal(count_of(other, "h", 0, 4), 4);
}

TEST(test_group_when_its_second_owner_goes)
{
    world_t *w = open_with_three_of_four();
    peer_t *c = client_open(w);

    assert_int_equal(put_member(c, "g", 4, 0), KVP_ALREADY);
    peer_forget(c);
    c = client_open(w);
    assert_int_equal(put_member(c, "g", 4, 2), KVP_ALREADY); /* nodes may come: the rest is kept for them */
    world_advance(w, w->conf.node_grace_ns + SEC);
    assert_int_equal(world_stats(w).used_bytes, 3 * LEN);
    peer_forget(c);
    world_advance(w, SEC);
    assert_int_equal(world_stats(w).used_bytes, 0);
    world_close(w);
}

RIG_TEST(test_group_when_a_member_is_lost_with_its_node, second_away)
{
    put_members(g->c, "g", 4, 0, 3);
    put_plain(g->c, "plain", 1);
    peer_forget(g->na);
    (void)node_open_on(g->w, g->b, "b");
    put_members(g->c, "g", 4, 3, 4);
    rig_restart(g);
    (void)node_open_on(g->w, g->a, "a");
    mem_remake(g->w, g->b);
    (void)node_open_on(g->w, g->b, "b");
    assert_int_equal(count_of(g->c, "g", 0, 4), 0);
    assert_int_equal(world_stats(g->w).used_bytes, 4 * LEN);
    world_advance(g->w, g->w->conf.node_grace_ns + SEC);
    assert_int_equal(world_stats(g->w).groups, 0);
    assert_int_equal(world_stats(g->w).used_bytes, LEN);
    assert_int_equal(count_of(g->c, "plain", 0, 1), 1);
}

RIG_TEST(test_copies_of_members_are_found_one_after_the_other, two_nodes)
{
    Kvp__Pb__PutBegin two = KVP__PB__PUT_BEGIN__INIT;

    two.replicas = 2;
    two.pin = KVP_PIN_HARD;
    for (uint32_t i = 0; i < 3; i++) {
        put_t member = {.key = key_name("g", i), .len = LEN, .group = group_of(g->c, "g", 3, i)};

        assert_int_equal(put_like(g->c, &member, &two), KVP_OK);
    }
    world_restart(g->w);
    (void)node_open_on(g->w, g->b, "b");
    g->c = client_open(g->w);
    assert_int_equal(count_of(g->c, "g", 0, 3), 3);
    assert_int_equal(world_stats(g->w).hard_pinned_bytes, 3 * LEN);
    (void)node_open_on(g->w, g->a, "a");
    assert_int_equal(world_stats(g->w).hard_pinned_bytes, 6 * LEN);
    assert_int_equal(world_stats(g->w).objects, 3);
    mem_remake(g->w, g->b);
    peer_forget(kvp_list_first(&g->w->peers, peer_t, link)); /* the node of b, whose memory is gone */
    (void)node_open_on(g->w, g->b, "b");
    assert_int_equal(count_of(g->c, "g", 0, 3), 3);
    assert_int_equal(world_stats(g->w).hard_pinned_bytes, 3 * LEN);
}

/* ---- units of eviction */
RIG_TEST(test_group_without_a_size_goes_as_one_again, one_node)
{
    uint32_t objects = MIB / LEN, n = 0;

    put_members(g->c, "g", 0, 0, 8);
    world_restart(g->w);
    (void)node_open_on(g->w, g->a, "a");
    g->c = client_open(g->w);
    assert_int_equal(count_of(g->c, "g", 0, 8), 8);
    world_advance(g->w, g->w->conf.node_grace_ns + SEC); /* it needs nobody */
    while (count_of(g->c, "g", 0, 8) == 8 && n < 2 * objects)
        put_plain(g->c, key_name("fill", n++), 1);
    assert_int_equal(count_of(g->c, "g", 0, 8), 0);
}

/* ---- pins */
RIG_TEST(test_pins_when_nodes_report, one_node)
{
    assert_int_equal(put_pinned(g->c, "hard", (kvp_wire_group_t){0}, KVP_PIN_HARD), KVP_OK);
    assert_int_equal(put_pinned(g->c, "soft", (kvp_wire_group_t){0}, KVP_PIN_SOFT), KVP_OK);
    assert_int_equal(put_pinned(g->c, "member0", group_of(g->c, "g", 2, 0), KVP_PIN_HARD), KVP_OK);
    assert_int_equal(put_pinned(g->c, "member1", group_of(g->c, "g", 2, 1), KVP_PIN_SOFT), KVP_OK);
    put_plain(g->c, "fill", 4);
    world_restart(g->w);
    (void)node_open_on(g->w, g->a, "a");
    g->c = client_open(g->w);
    assert_int_equal(world_stats(g->w).hard_pinned_bytes, 2 * LEN);
    assert_int_equal(world_stats(g->w).soft_pinned_bytes, 2 * LEN);
    world_advance(g->w, 2100 * MS); /* until then nothing is evicted */
    put_plain(g->c, "press", 2 * MIB / LEN);
    assert_true(exists(g->c, "hard") && exists(g->c, "soft") && exists(g->c, "member0") && exists(g->c, "member1"));
    assert_int_equal(count_of(g->c, "fill", 0, 4), 0);
    for (uint32_t i = 0; i < MIB / LEN - 4; i++)
        assert_int_equal(put_pinned(g->c, key_name("full", i), (kvp_wire_group_t){0}, KVP_PIN_HARD), KVP_OK);
    assert_true(exists(g->c, "soft"));
    assert_int_equal(put_pinned(g->c, "last", (kvp_wire_group_t){0}, KVP_PIN_HARD), KVP_OK);
    assert_false(exists(g->c, "soft"));
    assert_true(exists(g->c, "member1")); /* a hard pin in its group keeps it */
    assert_int_equal(put_pinned(g->c, "none", (kvp_wire_group_t){0}, KVP_PIN_HARD), KVP_NO_SPACE);
}

/* While nodes may come the size of the pool is not known, nor so the budget. */
RIG_TEST(test_soft_pins_when_half_of_the_pool_is_there, two_nodes)
{
    uint32_t budget = MIB / 2 / LEN;

    for (uint32_t i = 0; i < budget; i++)
        assert_int_equal(put_pinned(g->c, key_name("s", i), (kvp_wire_group_t){0}, KVP_PIN_SOFT), KVP_OK);
    world_restart(g->w);
    (void)node_open_on(g->w, g->a, "a");
    world_advance(g->w, SEC);
    (void)node_open_on(g->w, g->b, "b");
    world_advance(g->w, SEC);
    assert_int_equal(world_stats(g->w).soft_pinned_bytes, budget * LEN);
    world_advance(g->w, g->w->conf.node_grace_ns);
    assert_int_equal(world_stats(g->w).pins_lost, 0);
    g->c = client_open(g->w);
    assert_int_equal(put_pinned(g->c, "over", (kvp_wire_group_t){0}, KVP_PIN_SOFT), KVP_OK);
    world_advance(g->w, SEC);
    assert_int_equal(world_stats(g->w).pins_lost, 1);
}

/* ---- descriptors are clients' work */
/* Two objects alone on their nodes, both in groups of two; `how` changes what is told of the second, newer one. */
static void
told_of_two(void (*how)(kvp_desc_t *desc, const kvp_desc_t *first), bool is_first_first, uint32_t *adopted_out,
            bool *first_out, bool *second_out)
{
    world_t *w = world_open(&(kvp_master_conf_t){.location_lease_ns = MS, .location_grace_ns = MS});
    mem_t *mems[2] = {mem_make(w, "a", MIB, MIB), mem_make(w, "b", MIB, MIB)};
    Kvp__Pb__MountReply mounted;
    extent_t *told[2];
    peer_t *c, *node;
    uint32_t n;

    node = node_open_on(w, mems[0], "a");
    c = client_open(w);
    assert_int_equal(put_member(c, "g", 1, 0), KVP_OK);
    peer_forget(node);
    node = node_open_on(w, mems[1], "b");
    assert_int_equal(put_member(c, "h", 1, 0), KVP_OK);
    for (uint32_t i = 0; i < 2; i++) {
        told[i] = mem_sealed(mems[i], &n);
        assert_int_equal(n, 1);
    }
    how(&told[1]->desc, &told[0]->desc);
    kvp_desc_seal(&told[1]->desc);
    world_restart(w);
    c = client_open(w);
    for (uint32_t turn = 0; turn < 2; turn++) {
        uint32_t i = is_first_first ? turn : 1 - turn;

        node = peer_open(w);
        node->mem = mems[i];
        assert_int_equal(peer_hello(node, KVP_ROLE_NODE, mems[i]->name, mems[i]->name), KVP_OK);
        mounted = node_ask_mount(node);
        assert_int_equal(mounted.report, 2);
        assert_true(report_take(node, report_send(node, told[i], 1, false), told[i], 1));
        assert_true(report_end(node));
        free(told[i]);
    }
    *adopted_out = (uint32_t)world_stats(w).adopted;
    *first_out = exists(c, "g0");
    *second_out = exists(c, "h0");
    world_advance(w, w->conf.node_grace_ns + SEC);
    assert_int_equal(world_stats(w).used_bytes, (*first_out + *second_out) * LEN);
    world_close(w);
}

static void
same_place(kvp_desc_t *desc, const kvp_desc_t *first)
{
    desc->group = first->group;
}

static void
other_size(kvp_desc_t *desc, const kvp_desc_t *first)
{
    desc->group = first->group;
    desc->group_n = 2;
}

static void
too_many_members(kvp_desc_t *desc, const kvp_desc_t *first)
{
    (void)first;
    desc->group_n = KVP_GROUP_MEMBERS_MAX + 1;
}

static void
size_of_no_group(kvp_desc_t *desc, const kvp_desc_t *first)
{
    (void)first;
    desc->group = (kvp_digest_t){0};
}

static void
unknown_pin(kvp_desc_t *desc, const kvp_desc_t *first)
{
    (void)first;
    desc->flags = KVP_DESC_PIN;
}

static void
nothing(kvp_desc_t *desc, const kvp_desc_t *first)
{
    (void)desc;
    (void)first;
}

TEST(test_report_of_groups_that_do_not_fit)
{
    static const struct {
        void (*how)(kvp_desc_t *, const kvp_desc_t *);
        uint32_t adopted[2]; /* the first told first, the second told first */
        bool first, second; /* seen in the end, in whatever order */
    } cases[] = {
        {nothing, {2, 2}, true, true},           {same_place, {2, 1}, false, true}, /* the newer is right */
        {other_size, {2, 1}, false, false}, /* it is, and not whole */
        {too_many_members, {1, 1}, true, false}, {size_of_no_group, {1, 1}, true, false},
        {unknown_pin, {1, 1}, true, false},
    };

    for (uint32_t i = 0; i < KVP_ARRAY_LEN(cases); i++)
        for (uint32_t order = 0; order < 2; order++) {
            bool first, second;
            uint32_t adopted;

            told_of_two(cases[i].how, order == 0, &adopted, &first, &second);
            assert_int_equal(adopted, cases[i].adopted[order]);
            assert_int_equal(first, cases[i].first);
            assert_int_equal(second, cases[i].second);
        }
}

/* ---- any history */
#define NODES 3u
#define GROUPS 6u
#define SIZE 4u

typedef enum { NOBODY, CLIENT, ORPHAN } owner_t;

/* What is known of one member: no call of this history has an end that is not known. */
typedef struct {
    uint64_t version; /* 0 = it is not there */
    uint32_t node; /* that has it */
    kvp_pin_t pin;
    owner_t owner; /* while its group is not whole */
} member_t;

typedef struct {
    member_t members[SIZE];
    bool is_whole; /* it was, and something of it is left */
} group_t;

typedef struct {
    world_t *w;
    mem_t *mems[NODES];
    peer_t *c;
    group_t groups[GROUPS];
    bool is_grace_over;
} history_t;

static const char *
name_of(uint32_t g)
{
    return key_name("group", g);
}

/* Its key is the group's name, a slash and the number. */
static const char *
key_of(uint32_t g, uint32_t i)
{
    static char key[64];

    snprintf(key, sizeof key, "%s/%u", name_of(g), i);
    return key;
}

/* What follows when a member has come or gone. */
static void
settle(group_t *g)
{
    uint32_t there = 0, owned = 0;

    for (uint32_t i = 0; i < SIZE; i++) {
        there += g->members[i].version > 0;
        owned += g->members[i].version > 0 && g->members[i].owner != NOBODY;
    }
    if (there == SIZE) g->is_whole = true;
    if (there == 0) g->is_whole = false;
    if (!g->is_whole && owned == 0) memset(g, 0, sizeof *g);
    for (uint32_t i = 0; i < SIZE && g->is_whole; i++)
        g->members[i].owner = NOBODY;
}

static void
check_history(history_t *h)
{
    uint64_t pinned[KVP_PIN_HARD + 1] = {0}, used = 0;

    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t i = 0; i < SIZE; i++) {
            const member_t *mb = &h->groups[g].members[i];
            uint64_t version = found(h->c, key_of(g, i), NULL), expected = h->groups[g].is_whole ? mb->version : 0;

            if (version != expected)
                fail_msg("%s: found version %lx, expected %lx", key_of(g, i), (unsigned long)version,
                         (unsigned long)expected);
            if (mb->version == 0) continue;
            pinned[mb->pin] += LEN;
            used += LEN;
        }
    assert_int_equal(world_stats(h->w).soft_pinned_bytes, pinned[KVP_PIN_SOFT]);
    assert_int_equal(world_stats(h->w).hard_pinned_bytes, pinned[KVP_PIN_HARD]);
    assert_int_equal(world_stats(h->w).used_bytes, used);
}

/* One put up to a point, after which the master may die: granted, sealed, committed. */
typedef struct {
    put_t put;
    Kvp__Pb__PutBegin head;
    places_t places;
    uint32_t group, member;
} under_way_t;

static kvp_err_t
begin(history_t *h, under_way_t *u)
{
    uint32_t pin = (uint32_t)world_below(h->w, 6);

    u->group = (uint32_t)world_below(h->w, GROUPS);
    u->member = (uint32_t)world_below(h->w, SIZE);
    kvp__pb__put_begin__init(&u->head);
    u->head.pin = pin <= KVP_PIN_HARD ? pin : KVP_PIN_NONE;
    u->head.is_upsert = world_below(h->w, 3) == 0;
    u->head.wait_ms = 100;
    u->put = (put_t){
        .key = key_of(u->group, u->member),
        .len = LEN,
        .group = group_of(h->c, name_of(u->group), SIZE, u->member),
    };
    places_read(peer_wait(h->c, put_begin_with(h->c, &u->put, 1, &u->head), SEC), &u->places);
    return u->places.objs[0].err;
}

/* It is what the group has there from now on. */
static void
is_there(history_t *h, const under_way_t *u, owner_t owner)
{
    group_t *g = &h->groups[u->group];
    mem_t *const *mem = h->mems;

    while ((*mem)->segment_id != u->places.locs[0].segment_id)
        mem++;
    g->members[u->member] = (member_t){
        .version = u->places.objs[0].version,
        .node = (uint32_t)(mem - h->mems),
        .pin = (kvp_pin_t)u->head.pin,
        .owner = owner,
    };
}

static void
come(history_t *h, uint32_t i)
{
    (void)node_open_on(h->w, h->mems[i], h->mems[i]->name);
}

/* A put that is begun when one node has reported, and committed when all have. */
static void
put_meanwhile(history_t *h, uint32_t first)
{
    under_way_t u;
    kvp_err_t err = begin(h, &u);
    member_t *mb = &h->groups[u.group].members[u.member];
    bool is_known = mb->version > 0 && mb->node == first;

    if (is_known && !u.head.is_upsert) {
        assert_int_equal(err, KVP_ALREADY);
        mb->owner = CLIENT;
    } else {
        assert_int_equal(err, KVP_OK);
        assert_int_equal(write_object_as(h->c, &u.places.locs[0], &u.places.objs[0], &u.put, u.head.pin), KVP_OK);
    }
    for (uint32_t i = 1; i < NODES; i++)
        come(h, (first + i) % NODES);
    if (err == KVP_OK) {
        bool is_void = mb->version > 0 && !is_known && !u.head.is_upsert;

        assert_int_equal(commit(h->c, u.put.attempt, LEN * 3), is_void ? KVP_ABORTED : KVP_OK);
        if (!is_void) is_there(h, &u, CLIENT);
    }
    places_free(&u.places);
}

/* is_simple: the memory holds at most one version of each key. */
static void
die(history_t *h, bool is_simple)
{
    uint32_t first = (uint32_t)world_below(h->w, NODES);

    world_restart(h->w);
    h->is_grace_over = false;
    for (uint32_t g = 0; g < GROUPS; g++) {
        h->groups[g].is_whole = false;
        for (uint32_t i = 0; i < SIZE; i++)
            h->groups[g].members[i].owner = ORPHAN;
    }
    if (is_simple && world_below(h->w, 4) == 0) { /* a node with it */
        uint32_t lost = (uint32_t)world_below(h->w, NODES);

        mem_remake(h->w, h->mems[lost]);
        for (uint32_t g = 0; g < GROUPS; g++)
            for (uint32_t i = 0; i < SIZE; i++)
                if (h->groups[g].members[i].node == lost) h->groups[g].members[i].version = 0;
    }
    h->c = client_open(h->w);
    come(h, first);
    if (is_simple) put_meanwhile(h, first);
    for (uint32_t i = 0; i < NODES; i++)
        if (h->mems[i]->segment_id == 0) come(h, i);
    for (uint32_t g = 0; g < GROUPS; g++)
        settle(&h->groups[g]);
    check_history(h);
}

static void
step_put(history_t *h)
{
    uint32_t end = (uint32_t)world_below(h->w, 16);
    under_way_t u;
    kvp_err_t err = begin(h, &u);
    member_t *mb = &h->groups[u.group].members[u.member];
    bool is_upsert;

    if (mb->version > 0 && mb->owner == NOBODY && !h->groups[u.group].is_whole) {
        assert_int_equal(err, KVP_IN_PROGRESS);
        places_free(&u.places);
        return;
    }
    if (mb->owner == ORPHAN) mb->owner = CLIENT; /* with the question, whatever becomes of it */
    if (mb->version > 0 && !u.head.is_upsert) {
        assert_int_equal(err, KVP_ALREADY);
    } else if (end == 0) { /* it dies between the grant and the seal */
        die(h, true);
    } else if (end < 3) {
        assert_int_equal(abort_put(h->c, u.put.attempt, true), KVP_OK);
    } else {
        assert_int_equal(err, KVP_OK);
        assert_int_equal(write_object_as(h->c, &u.places.locs[0], &u.places.objs[0], &u.put, u.head.pin), KVP_OK);
        is_upsert = mb->version > 0;
        is_there(h, &u, CLIENT); /* sealed is as good as committed to a master that is asked to believe it */
        if (end == 3)
            die(h, !is_upsert);
        else
            assert_int_equal(commit(h->c, u.put.attempt, LEN * 3), KVP_OK);
        settle(&h->groups[u.group]);
    }
    places_free(&u.places);
}

static void
step_remove(history_t *h)
{
    uint32_t g = (uint32_t)world_below(h->w, GROUPS), i = (uint32_t)world_below(h->w, SIZE);
    member_t *mb = &h->groups[g].members[i];

    assert_int_equal(remove_key(h->c, key_of(g, i), true), mb->version > 0 ? KVP_OK : KVP_NOT_FOUND);
    memset(mb, 0, sizeof *mb);
    settle(&h->groups[g]);
}

static void
step_grace(history_t *h)
{
    world_advance(h->w, h->w->conf.node_grace_ns + 2 * SEC); /* a master with little to do ticks rarely */
    for (uint32_t g = 0; g < GROUPS; g++) {
        for (uint32_t i = 0; i < SIZE; i++)
            if (h->groups[g].members[i].owner == ORPHAN) h->groups[g].members[i].owner = NOBODY;
        settle(&h->groups[g]);
    }
    h->is_grace_over = true;
}

static void
step(history_t *h)
{
    switch (world_below(h->w, 24)) {
    case 0:
    case 1:
    case 2:
        step_remove(h);
        break;
    case 3:
        die(h, true);
        break;
    case 4:
        if (!h->is_grace_over) step_grace(h);
        break;
    default:
        step_put(h);
    }
    world_pump(h->w);
    check_history(h);
}

static void
one_history(uint64_t seed)
{
    static const char *const names[NODES] = {"a", "b", "c"};
    const kvp_master_conf_t conf = {
        .seed = seed,
        .location_lease_ns = MS,
        .location_grace_ns = MS,
    };
    history_t h = {.w = world_open(&conf), .is_grace_over = true};

    h.w->check_every = 8;
    for (uint32_t i = 0; i < NODES; i++) {
        h.mems[i] = mem_make(h.w, names[i], 2 * MIB, MIB);
        come(&h, i);
    }
    h.c = client_open(h.w);
    for (uint32_t n = 0; n < 150; n++)
        step(&h);
    die(&h, true);
    world_close(h.w);
}

TEST(test_any_history_of_groups_and_deaths)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        one_history(seed);
}

TEST_MAIN()
