/* SPDX-License-Identifier: Apache-2.0
 * A full pool: who is evicted, and that no put is refused while something may be. */
#include "tests/unit/master/rig.h"

#include "master/core/base/slab.h"

#define KEY_LEN 24

/* 16 blocks of 4 KiB; nothing is kept free ahead in a pool so small. */
static const rig_conf_t sixteen = {.size = 64 * KIB};

/* ---- exactly the least recently used. The model is a list of keys by last use, and which key lies where. */
#define LRU_KEYS 2000u

typedef struct {
    uint32_t order[LRU_KEYS * 4]; /* uses, one entry each; an older entry of the same key is dead */
    uint32_t head, tail;
    uint32_t last_use[LRU_KEYS]; /* entry that counts; 0 = not in the pool */
    uint32_t at_slot[4096]; /* key + 1 */
    uint32_t victims;
} lru_t;

static void
lru_use(lru_t *l, uint32_t key)
{
    assert_true(l->tail < KVP_ARRAY_LEN(l->order));
    l->order[l->tail] = key;
    l->last_use[key] = l->tail++;
}

static void
lru_victim(void *arg, mem_t *mem, const kvp_wire_slot_t *slot)
{
    lru_t *l = arg;
    uint32_t key = l->at_slot[slot->slot];

    (void)mem;
    assert_true(key-- != 0);
    while (l->last_use[l->order[l->head]] != l->head)
        l->head++;
    assert_int_equal(key, l->order[l->head]);
    l->last_use[key] = 0;
    l->at_slot[slot->slot] = 0;
    l->victims++;
}

static void
lru_put(world_t *w, peer_t *c, lru_t *l, uint32_t i)
{
    kvp_wire_loc_t loc;
    uint64_t attempt;
    char key[KEY_LEN];

    snprintf(key, KEY_LEN, "key/%u", i);
    assert_int_equal(put_place(c, key, 8 * KIB, &attempt, &loc), KVP_OK);
    assert_int_equal(write_place(w, &loc), KVP_OK);
    assert_int_equal(commit(c, attempt, 1), KVP_OK);
    l->at_slot[loc.slot] = i + 1;
    lru_use(l, i);
}

static void
run_lru(node_policy_t policy, uint64_t free_ns)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *c, *n = node_open(w, mem_make(w, "n1", MIB, MIB));
    lru_t *l = calloc(1, sizeof *l);
    uint64_t ticket;
    char key[KEY_LEN];

    n->policy = policy;
    n->free_ns = free_ns;
    w->check_every = 16;
    w->on_retire = lru_victim;
    w->hook_arg = l;
    l->head = l->tail = 1; /* entry 0 means none */
    c = client_open(w);
    for (uint32_t i = 0; i < LRU_KEYS; i++) {
        lru_put(w, c, l, i);
        for (uint32_t k = 0; k < world_below(w, 3); k++) {
            uint32_t other = i - (uint32_t)world_below(w, kvp_min_u64(i + 1, 140));

            snprintf(key, KEY_LEN, "key/%u", other);
            if (get(c, key, &ticket, NULL) != KVP_OK) {
                assert_int_equal(l->last_use[other], 0);
                continue;
            }
            assert_int_not_equal(l->last_use[other], 0);
            release(c, ticket);
            lru_use(l, other);
        }
    }
    assert_int_equal(world_stats(w).put_retry_after, 0);
    assert_int_equal(world_stats(w).evictions, l->victims);
    assert_true(l->victims >= LRU_KEYS - 128);
    assert_true(world_stats(w).objects >= 127); /* one block is kept free ahead, no more */
    w->on_retire = NULL;
    free(l);
    world_close(w);
}

/* ---- streams: clients that put without end, each one message at a time */
#define STREAM_BATCH 64u

typedef struct {
    peer_t *c;
    put_t puts[STREAM_BATCH];
    char keys[STREAM_BATCH][KEY_LEN];
    uint32_t n, next, stride, done, refused;
    uint64_t id; /* of the message under way, 0 = none */
    bool is_committing;
    uint64_t min_len, max_len;
} stream_t;

static uint64_t
stream_len(world_t *w, const stream_t *s)
{
    uint64_t len = s->min_len;

    if (s->max_len == s->min_len) return len;
    while (len < s->max_len && world_below(w, 3) != 0)
        len *= 2; /* small ones are more */
    return kvp_min_u64(len + world_below(w, len), s->max_len);
}

static void
stream_begin(world_t *w, stream_t *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        snprintf(s->keys[i], KEY_LEN, "key/%u", s->next);
        s->next += s->stride;
        s->puts[i] = (put_t){.key = s->keys[i], .len = stream_len(w, s)};
    }
    s->is_committing = false;
    s->id = put_begin(s->c, s->puts, s->n, 5000);
}

static void
stream_commit(world_t *w, stream_t *s, reply_t *r)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t recs[STREAM_BATCH];
    places_t places;
    uint32_t at = 0;

    places_read(r, &places);
    for (uint32_t i = 0; i < places.n; i++) {
        if (places.objs[i].err != KVP_OK) {
            s->refused += places.objs[i].err != KVP_EAGAIN || at == 0; /* it comes back for what it may not begin yet */
            continue;
        }
        assert_int_equal(write_place(w, &places.locs[at++]), KVP_OK);
        recs[head.n++] = (kvp_wire_commit_t){.attempt = s->puts[i].attempt, .sum = 1, .replicas = 1};
    }
    places_free(&places);
    s->is_committing = true;
    s->id = peer_send(s->c, KVP_OP_PUT_COMMIT, 0, &head.base, recs, head.n * sizeof *recs);
}

static void
stream_step(world_t *w, stream_t *s)
{
    reply_t *r;

    if (s->id == 0) {
        stream_begin(w, s);
        return;
    }
    r = peer_reply(s->c, s->id);
    if (r == NULL) return;
    if (!s->is_committing) {
        stream_commit(w, s, r);
        return;
    }
    for (uint32_t i = 0; i < r->frame.tail_len / 4; i++)
        assert_int_equal(((const int32_t *)r->frame.tail)[i], KVP_OK);
    s->done += (uint32_t)(r->frame.tail_len / 4);
    reply_free(r);
    s->id = 0;
}

typedef struct {
    uint64_t size, chunk, min_len, max_len, delay_ns, free_ns;
    uint32_t streams, batch, puts;
} flood_t;

static void
run_flood(const flood_t *f)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *n = node_open(w, mem_make(w, "n1", f->size, f->chunk));
    stream_t *streams = calloc(f->streams, sizeof *streams);
    uint32_t done = 0, refused = 0;

    n->policy = f->free_ns > 0 ? NODE_FREE_LATER : NODE_FREE_NOW;
    n->free_ns = f->free_ns;
    n->delay_ns = f->delay_ns;
    w->check_every = 61;
    for (uint32_t i = 0; i < f->streams; i++) {
        streams[i] = (stream_t){.c = client_open(w),
                                .n = f->batch,
                                .next = i,
                                .stride = f->streams,
                                .min_len = f->min_len,
                                .max_len = f->max_len};
        streams[i].c->delay_ns = f->delay_ns;
    }
    for (uint32_t turn = 0; done < f->puts; turn++) {
        assert_true(turn < 1000000);
        for (uint32_t i = 0; i < f->streams; i++)
            stream_step(w, &streams[i]);
        world_advance(w, 100000);
        done = refused = 0;
        for (uint32_t i = 0; i < f->streams; i++) {
            done += streams[i].done;
            refused += streams[i].refused;
        }
    }
    assert_int_equal(refused, 0);
    assert_int_equal(world_stats(w).put_no_space, 0);
    free(streams);
    world_close(w);
}

TEST(test_victims_are_the_least_recently_used)
{
    run_lru(NODE_FREE_NOW, 0);
    run_lru(NODE_FREE_LATER, 20 * MS);
}

TEST(test_writers_without_end_are_never_refused)
{
    static const flood_t floods[] = {
        /* size, chunk, min_len, max_len, delay_ns, free_ns, streams, batch, puts */
        {8 * MIB, 4 * MIB, 8 * KIB, 8 * KIB, 0, 0, 8, 32, 20000},
        {8 * MIB, MIB, 8 * KIB, 8 * KIB, 2 * MS, 5 * MS, 8, 32, 10000},
        {64 * MIB, 64 * MIB, 4 * KIB, 4 * MIB, 0, 0, 1, 1, 4000},
        {64 * MIB, 4 * MIB, 4 * KIB, 4 * MIB, 0, 0, 2, 1, 3000},
        {64 * MIB, 32 * MIB, 4 * KIB, 2 * MIB, MS, 3 * MS, 4, 4, 3000},
    };

    for (uint32_t i = 0; i < KVP_ARRAY_LEN(floods); i++)
        run_flood(&floods[i]);
}

/* ---- by hand */
RIG_TEST(test_put_when_everything_is_held, sixteen)
{
    uint64_t tickets[16], id, began;
    put_t one = {.key = "new", .len = 4 * KIB};
    places_t places;

    for (uint32_t i = 0; i < 16; i++) { /* held as they come, so that none is evicted ahead */
        fill(g->c, i, i + 1, 4 * KIB);
        hold(g->c, i, i + 1, tickets);
    }
    began = g->w->now;
    id = put_begin(g->c, &one, 1, 300);
    assert_false(world_has_work(g->w)); /* nobody searches on while nothing changes */
    places_read(peer_wait(g->c, id, SEC), &places);
    assert_int_equal(places.objs[0].err, KVP_RETRY_AFTER);
    assert_true(places.retry_ms > 0);
    assert_true(g->w->now - began >= 300 * MS && g->w->now - began < 350 * MS);
    places_free(&places);
    assert_int_equal(world_stats(g->w).evictions, 0);

    id = put_begin(g->c, &one, 1, 10000);
    world_advance(g->w, 500 * MS);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(world_stats(g->w).pending_puts, 1);
    release(g->c, tickets[5]);
    granted(g->c, id, KVP_OK);
    assert_false(exists(g->c, "key/5"));
    assert_true(exists(g->c, "key/4"));
}

RIG_TEST(test_put_when_the_holder_dies, sixteen)
{
    uint64_t tickets[16], id;
    put_t one = {.key = "new", .len = 4 * KIB};
    peer_t *d = client_open(g->w);

    for (uint32_t i = 0; i < 16; i++) {
        fill(g->c, i, i + 1, 4 * KIB);
        hold(d, i, i + 1, tickets);
    }
    id = put_begin(g->c, &one, 1, 10000);
    assert_true(peer_is_asking(g->c, id));
    peer_forget(d);
    granted(g->c, id, KVP_OK);
}

/* The two oldest are what the policy gives for it, and are not neighbours. Beside the oldest both are young; so the
 * window is the second one and its neighbour, and the oldest goes as well, for whoever comes next. */
RIG_TEST(test_put_when_a_window_of_two_is_cheapest, sixteen)
{
    const uint32_t order[] = {5, 9, 10, 13, 0, 2, 1, 3, 7, 11, 12, 14, 15, 4, 6, 8};
    uint64_t ticket;

    fill(g->c, 0, 16, 4 * KIB); /* one behind the other */
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(get(g->c, key_name("key/", order[i]), &ticket, NULL), KVP_OK);
        release(g->c, ticket);
    }
    assert_int_equal(put(g->c, "large", 8 * KIB), KVP_OK);
    assert_int_equal(world_stats(g->w).evictions, 3);
    assert_int_equal(world_stats(g->w).evict_window, 1);
    assert_false(exists(g->c, "key/9"));
    assert_false(exists(g->c, "key/10"));
    assert_false(exists(g->c, "key/5"));
    assert_int_equal(put(g->c, "small", 4 * KIB), KVP_OK);
    assert_int_equal(world_stats(g->w).evictions, 3);
}

/* A large put for which no window can be found does not stop the small ones behind it, and has its turn when it can. */
RIG_TEST(test_put_when_a_larger_one_waits, sixteen)
{
    uint64_t tickets[16], id;
    put_t large = {.key = "large", .len = 8 * KIB};

    for (uint32_t i = 0; i < 16; i++) {
        fill(g->c, i, i + 1, 4 * KIB);
        if (i % 2 == 0) hold(g->c, i, i + 1, tickets);
    }
    id = put_begin(g->c, &large, 1, 10000);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(put(g->c, "small", 4 * KIB), KVP_OK);
    assert_true(peer_is_asking(g->c, id));
    assert_true(exists(g->c, "key/3")); /* key/1 went for the small one */
    release(g->c, tickets[4]);
    granted(g->c, id, KVP_OK);
    assert_false(exists(g->c, "key/3") && exists(g->c, "key/5"));
}

/* Free space inside a window is nobody else's, but the rest of the chunk's is. */
RIG_TEST(test_put_when_free_space_is_promised, sixteen)
{
    uint64_t tickets[16], id, small_id;
    put_t large = {.key = "large", .len = 8 * KIB}, small = {.key = "small", .len = 4 * KIB};
    places_t places;

    for (uint32_t i = 0; i < 16; i++) {
        fill(g->c, i, i + 1, 4 * KIB);
        if (i != 7) hold(g->c, i, i + 1, tickets);
    }
    release(g->c, tickets[6]);
    assert_int_equal(remove_key(g->c, "key/7", true), KVP_OK); /* free at once */
    g->na->policy = NODE_DEAD_ONLY;
    id = put_begin(g->c, &large, 1, 10000); /* takes key/6 and the hole behind it */
    small_id = put_begin(g->c, &small, 1, 10000);
    world_advance(g->w, 100 * MS);
    assert_false(exists(g->c, "key/6"));
    assert_true(peer_is_asking(g->c, id));
    assert_true(peer_is_asking(g->c, small_id));
    node_free_all(g->na);
    places_read(peer_reply(g->c, id), &places);
    assert_int_equal(places.objs[0].err, KVP_OK);
    assert_int_equal(places.locs[0].offset, 6 * 4 * KIB);
    places_free(&places);
    assert_true(peer_is_asking(g->c, small_id));
    assert_int_equal(remove_key(g->c, "key/0", true), KVP_OK); /* dead, not free yet */
    assert_true(peer_is_asking(g->c, small_id));
    node_free_all(g->na);
    granted(g->c, small_id, KVP_OK);
}

RIG_TEST(test_put_when_free_space_beside_a_window_is_enough, sixteen)
{
    uint64_t tickets[16], id;
    put_t large = {.key = "large", .len = 8 * KIB};

    for (uint32_t i = 0; i < 16; i++) {
        fill(g->c, i, i + 1, 4 * KIB);
        if (i != 7) hold(g->c, i, i + 1, tickets);
    }
    release(g->c, tickets[6]);
    assert_int_equal(remove_key(g->c, "key/7", true), KVP_OK);
    assert_int_equal(remove_key(g->c, "key/12", true), KVP_OK);
    g->na->policy = NODE_DEAD_ONLY;
    id = put_begin(g->c, &large, 1, 10000);
    assert_int_equal(put(g->c, "small", 4 * KIB), KVP_OK); /* in the place of key/12, at once: it evicts nothing */
    assert_int_equal(world_stats(g->w).evictions, 1);
    assert_true(peer_is_asking(g->c, id));
}

/* More than the pool can hold, in one message: what there is comes at once, since the rest can only come of it. */
RIG_TEST(test_put_when_a_batch_is_larger_than_the_pool, sixteen)
{
    put_t puts[20];
    char keys[20][KEY_LEN];
    peer_t *d = client_open(g->w);
    uint32_t given = 0, later = 0;
    places_t places;

    for (uint32_t i = 0; i < 20; i++) {
        snprintf(keys[i], KEY_LEN, "key/%u", i);
        puts[i] = (put_t){.key = keys[i], .len = 4 * KIB};
    }
    places_read(peer_reply(g->c, put_begin(g->c, puts, 20, 10000)), &places);
    for (uint32_t i = 0; i < 20; i++) {
        given += places.objs[i].err == KVP_OK;
        later += places.objs[i].err == KVP_RETRY_AFTER;
    }
    assert_int_equal(given, 16);
    assert_int_equal(later, 4);
    assert_int_equal(places.retry_ms, 1); /* as soon as what it got is committed */
    places_free(&places);
    /* Another that gets nothing waits, and gets its place once something is committed. */
    places = (places_t){0};
    {
        put_t one = {.key = "other", .len = 4 * KIB};
        uint64_t id = put_begin(d, &one, 1, 10000);

        assert_true(peer_is_asking(d, id));
        assert_int_equal(commit(g->c, puts[3].attempt, 0), KVP_OK);
        granted(d, id, KVP_OK);
    }
    assert_false(exists(g->c, "key/3"));
}

/* What it begins nobody can read until it is committed: in a full pool a message begins little, and none in one that
 * has room. */
RIG_TEST_ON(test_put_when_a_batch_is_a_large_part_of_a_full_pool, .size = 8 * MIB)
{
    enum { N = 64, SHARE = 8 }; /* 512 KiB */
    put_t puts[N];
    char keys[N][KEY_LEN];

    for (uint32_t round = 0; round < 3; round++) { /* two fill it */
        places_t places;

        for (uint32_t i = 0; i < N; i++) {
            snprintf(keys[i], KEY_LEN, "%u/%u", round, i);
            puts[i] = (put_t){.key = keys[i], .len = 64 * KIB};
        }
        places_read(peer_reply(g->c, put_begin(g->c, puts, N, 10000)), &places);
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(places.objs[i].err, round < 2 || i < SHARE ? KVP_OK : KVP_EAGAIN);
        places_free(&places);
        for (uint32_t i = 0; i < N && round < 2; i++)
            assert_int_equal(commit(g->c, puts[i].attempt, 0), KVP_OK);
    }
    assert_int_equal(world_stats(g->w).objects, 2 * N - SHARE);
    assert_int_equal(world_stats(g->w).put_retry_after + world_stats(g->w).put_no_space, 0);
}

/* The oldest lie alone among held ones; the only neighbours that can go are among the youngest of many. */
RIG_TEST_ON(test_put_when_the_only_window_is_far_away, .size = 16 * MIB)
{
    enum { N = 4096 };
    uint64_t *tickets = calloc(N, sizeof *tickets);

    g->w->check_every = 0;
    for (uint32_t i = 0; i < N; i++) {
        fill(g->c, i, i + 1, 4 * KIB);
        if (i % 2 == 0) hold(g->c, i, i + 1, tickets);
    }
    for (uint32_t i = 3000; i < 3032; i += 2)
        release(g->c, tickets[i]);
    assert_int_equal(put(g->c, "large", 128 * KIB), KVP_OK); /* more than is kept free ahead */
    assert_false(exists(g->c, "key/3002"));
    assert_false(exists(g->c, "key/3029"));
    assert_int_equal(world_stats(g->w).evict_foreground, 32);
    assert_int_equal(world_stats(g->w).evict_window, 31);
    assert_true(exists(g->c, "key/2001"));
    world_check(g->w);
    free(tickets);
}

/* Descriptors run out before bytes do where objects are tiny. */
RIG_TEST(test_put_when_slots_are_used_up, sixteen)
{
    fill(g->c, 0, 400, 64);
    assert_true(world_stats(g->w).objects >= 250);
    for (uint32_t i = 400; i < 600; i++)
        fill(g->c, i, i + 1, i % 3 == 0 ? 256 : i % 3 == 1 ? 128 : 64);
    assert_int_equal(world_stats(g->w).put_retry_after, 0);
}

/* Blocks of an absent node are the oldest: they neither make room nor stop anybody. */
RIG_TEST_ON(test_put_when_the_oldest_are_on_a_lost_node, .size = 8 * MIB)
{
    g->w->check_every = 7;
    fill(g->c, 0, 2000, 4 * KIB);
    node_open(g->w, mem_make(g->w, "n2", MIB, MIB));
    fill(g->c, 2000, 2256, 4 * KIB);
    peer_forget(g->na);
    fill(g->c, 3000, 3600, 4 * KIB);
    assert_int_equal(world_stats(g->w).put_retry_after, 0);
    assert_true(exists(g->c, "key/3599"));
}

/* A node that is stopped costs those who wait for it a moment, and nobody else anything. */
RIG_TEST_ON(test_puts_when_one_node_does_not_answer, .size = MIB)
{
    uint64_t began;
    uint32_t there = 0;

    g->w->check_every = 7;
    node_open(g->w, mem_make(g->w, "n2", MIB, MIB));
    fill(g->c, 0, 512, 4 * KIB);
    g->na->policy = NODE_MUTE;
    began = g->w->now;
    fill(g->c, 1000, 3000, 4 * KIB);
    assert_true(g->w->now - began < 500 * MS);
    assert_true(world_stats(g->w).passed_over > 0);
    for (uint32_t i = 0; i < 512; i++) /* its blocks are the oldest, and of no use to anybody who needs space */
        there += exists(g->c, key_name("key/", i));
    assert_in_range(there, 200, 255);

    peer_forget(g->na);
    g->na = node_open(g->w, g->a);
    fill(g->c, 3000, 3512, 4 * KIB);
    for (uint32_t i = 0; i < 512; i++) /* and the first to go when it answers again */
        assert_false(exists(g->c, key_name("key/", i)));
    world_check(g->w);
}

/* With nobody else to turn to, a node that does not answer is used as far as it goes. */
RIG_TEST(test_put_when_the_only_node_does_not_answer, sixteen)
{
    fill(g->c, 0, 8, 4 * KIB);
    g->na->policy = NODE_MUTE;
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK);
    world_advance(g->w, SEC);
    assert_int_equal(put(g->c, "new", 4 * KIB), KVP_OK);
}

/* A client that dies while it waits leaves nothing behind, and what it had claimed serves others. */
RIG_TEST(test_put_when_who_waits_dies, sixteen)
{
    put_t one = {.key = "new", .len = 4 * KIB};
    peer_t *d = client_open(g->w);
    uint64_t id;

    g->na->policy = NODE_DEAD_ONLY;
    fill(g->c, 0, 16, 4 * KIB);
    id = put_begin(d, &one, 1, 10000);
    assert_true(peer_is_asking(d, id));
    peer_forget(d);
    assert_int_equal(world_stats(g->w).pending_puts, 0);
    assert_int_equal(world_stats(g->w).attempts, 0);
    assert_int_equal(world_stats(g->w).quarantine_bytes, 0); /* it never had a place to write to */
    node_free_all(g->na);
    assert_int_equal(put(g->c, "new", 4 * KIB), KVP_OK);
}

/* Quarantined space is not evicted into, and not waited for. */
RIG_TEST(test_put_when_all_is_quarantined, sixteen)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, dead;
    peer_t *d;

    g->na->needs_proof = true;
    d = client_open(g->w);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(put_place(d, key_name("key/", i), 4 * KIB, &attempt, &loc), KVP_OK);
    dead = d->incarnation;
    peer_forget(d);
    assert_int_equal(put_wait(g->c, "new", 4 * KIB, 200), KVP_RETRY_AFTER);
    world_prove(g->w, dead);
    assert_int_equal(put_wait(g->c, "new", 4 * KIB, 200), KVP_OK);
}

TEST(test_placement_when_one_node_is_emptier)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    mem_t *big = mem_make(w, "big", 64 * MIB, 8 * MIB), *small = mem_make(w, "small", 16 * MIB, 8 * MIB);
    uint32_t in_big = 0, n = 4000;
    peer_t *c;

    w->check_every = 0;
    (void)node_open(w, big);
    (void)node_open(w, small);
    c = client_open(w);
    for (uint32_t i = 0; i < n; i++) {
        kvp_wire_loc_t loc;
        uint64_t attempt;

        assert_int_equal(put_place(c, key_name("key/", i), 8 * KIB, &attempt, &loc), KVP_OK);
        assert_int_equal(commit(c, attempt, 0), KVP_OK);
        in_big += loc.segment_id == big->segment_id;
    }
    /* Both fill at about the same rate: four fifths go to the one that is four times as large. */
    assert_in_range(in_big, n * 7 / 10, n * 9 / 10);
    world_close(w);
}

/* Chunk 0 has a hole of two blocks, chunk 1 one of a single block: who wants one takes that. */
RIG_TEST_ON(test_placement_when_the_tightest_hole_is_in_a_later_chunk, .size = 128 * KIB, .chunk = 64 * KIB)
{
    fill(g->c, 0, 32, 4 * KIB);
    assert_int_equal(remove_key(g->c, "key/2", false), KVP_OK);
    assert_int_equal(remove_key(g->c, "key/3", false), KVP_OK);
    assert_int_equal(remove_key(g->c, "key/20", false), KVP_OK);
    assert_int_equal(put(g->c, "one", 4 * KIB), KVP_OK);
    assert_int_equal(put(g->c, "two", 8 * KIB), KVP_OK);
    assert_int_equal(world_stats(g->w).evictions, 0);
}

TEST_MAIN()
