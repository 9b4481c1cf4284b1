/* SPDX-License-Identifier: Apache-2.0
 * The index against a plain array, through growth, shrinking and every stage between the two. */
#include "master/core/catalog/index.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 60000u

static uint64_t
next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1dull;
}

static kvp_digest_t
digest_of(uint32_t i)
{
    return kvp_key_digest(5, 0, &i, sizeof i);
}

static uint32_t
add(kvp_objindex_t *ix, uint32_t i)
{
    uint32_t oid = kvp_objindex_make(ix, digest_of(i), &i, sizeof i, NULL);

    kvp_objindex_link(ix, oid, digest_of(i));
    return oid;
}

static void
drop(kvp_objindex_t *ix, uint32_t oid)
{
    kvp_objindex_unlink(ix, oid);
    kvp_objindex_free(ix, oid);
}

TEST(test_find_after_add_and_drop)
{
    kvp_objindex_t *ix = kvp_objindex_create(1);
    uint32_t oid = add(ix, 1);

    assert_int_equal(kvp_objindex_find(ix, digest_of(1)), oid);
    assert_int_equal(kvp_objindex_find(ix, digest_of(2)), KVP_OID_NONE);
    assert_int_equal(kvp_obj(ix, oid)->state, KVP_OBJ_WRITING);
    assert_int_equal(kvp_obj(ix, oid)->chunk, KVP_OBJ_CHUNK_NONE);
    kvp_objindex_unlink(ix, oid);
    assert_int_equal(kvp_objindex_find(ix, digest_of(1)), KVP_OID_NONE);
    assert_int_equal(kvp_obj_key_len(ix, kvp_obj(ix, oid)), 4); /* the record stays until it is freed */
    kvp_objindex_free(ix, oid);
    assert_int_equal(add(ix, 3), oid); /* and its number is used again */
    kvp_objindex_destroy(ix);
}

/* Random adds and drops with a drift up, then down, so that both kinds of resize are crossed many times; every few
 * steps a few keys are asked for, one by one and all at once. */
TEST(test_find_when_resized_under_way)
{
    kvp_objindex_t *ix = kvp_objindex_create(1);
    uint32_t *oids = malloc(KEYS * sizeof *oids), got[64];
    uint64_t seed = 99;
    kvp_digest_t asked[64];

    memset(oids, 0xff, KEYS * sizeof *oids);
    for (uint32_t step = 0; step < 600000; step++) {
        uint32_t i = (uint32_t)(next_random(&seed) % KEYS);
        bool is_growing = step / 100000 % 2 == 0;
        bool is_add = next_random(&seed) % 8 != 0 ? is_growing : !is_growing;

        if (is_add && oids[i] == KVP_OID_NONE) {
            oids[i] = add(ix, i);
        } else if (!is_add && oids[i] != KVP_OID_NONE) {
            drop(ix, oids[i]);
            oids[i] = KVP_OID_NONE;
        }
        assert_int_equal(kvp_objindex_find(ix, digest_of(i)), oids[i]);
        if (step % 97 != 0) continue;
        for (uint32_t k = 0; k < 64; k++)
            asked[k] = digest_of((i + k * 131) % KEYS);
        kvp_objindex_find_many(ix, asked, 64, got);
        for (uint32_t k = 0; k < 64; k++)
            assert_int_equal(got[k], oids[(i + k * 131) % KEYS]);
    }
    for (uint32_t i = 0; i < KEYS; i++)
        assert_int_equal(kvp_objindex_find(ix, digest_of(i)), oids[i]);
    free(oids);
    kvp_objindex_destroy(ix);
}

/* Digests of which all fall on the last few slots of the table, so that chains wrap around its end, also while the
 * table is moved. With this seed the table spreads nothing: the upper half of the digest's second word names the
 * bucket, the upper bits of the first are the tag. */
/* Its home is the last bucket or the one before. */
static kvp_digest_t
crowded_digest(const kvp_objindex_t *ix, uint32_t i)
{
    kvp_digest_t d = {.lo = 0, .hi = i};

    while (kvp_objindex_id(ix, d) >> 56 != 255)
        d.lo++;
    return d;
}

TEST(test_find_when_chains_wrap)
{
    enum { N = 3000 };
    kvp_objindex_t *ix = kvp_objindex_create(1);
    kvp_digest_t digests[N];
    uint32_t oids[N];

    for (uint32_t i = 0; i < N; i++) {
        digests[i] = crowded_digest(ix, i);
        oids[i] = kvp_objindex_make(ix, digests[i], "k", 1, NULL);
        kvp_objindex_link(ix, oids[i], digests[i]);
        for (uint32_t k = i > 40 ? i - 40 : 0; k <= i; k++)
            assert_int_equal(kvp_objindex_find(ix, digests[k]), oids[k]);
    }
    for (uint32_t i = 0; i < N; i++) {
        uint32_t at = i * 7 % N; /* any order */
        kvp_digest_t d = digests[at];

        assert_int_equal(kvp_objindex_find(ix, d), oids[at]);
        drop(ix, oids[at]);
        assert_int_equal(kvp_objindex_find(ix, d), KVP_OID_NONE);
    }
    kvp_objindex_destroy(ix);
}

/* Digests that share a half, or differ in few bits: their records' halves are spread as if by chance over the upper
 * bits, which say the home. */
TEST(test_homes_are_spread_when_digests_are_chosen)
{
    enum { N = 1 << 16, HOMES = 1 << 10 };
    static uint32_t n[HOMES];

    for (uint32_t kind = 0; kind < 3; kind++) {
        kvp_objindex_t *ix = kvp_objindex_create(kind);

        memset(n, 0, sizeof n);
        for (uint64_t i = 0; i < N; i++) {
            kvp_digest_t d = kind == 0   ? (kvp_digest_t){.lo = i, .hi = 5}
                             : kind == 1 ? (kvp_digest_t){.lo = 5, .hi = i}
                                         : (kvp_digest_t){.lo = i << 16, .hi = i << 48};

            n[kvp_objindex_id(ix, d) >> 54]++;
        }
        for (uint32_t i = 0; i < HOMES; i++)
            assert_in_range(n[i], 10, 130); /* 64, 8 standard deviations */
        kvp_objindex_destroy(ix);
    }
}

TEST(test_memory_when_objects_go)
{
    kvp_objindex_t *ix = kvp_objindex_create(1);
    uint64_t before = kvp_objindex_memory_bytes(ix), full;
    uint32_t *oids = malloc(200000 * sizeof *oids);

    for (uint32_t i = 0; i < 200000; i++)
        oids[i] = add(ix, i);
    full = kvp_objindex_memory_bytes(ix);
    assert_true(full > 200000 * sizeof(kvp_obj_t));
    for (uint32_t i = 0; i < 200000; i++)
        drop(ix, oids[i]);
    while (kvp_objindex_step(ix))
        continue;
    /* One block of records is kept, and a table within a step of the smallest. */
    assert_true(kvp_objindex_memory_bytes(ix) < before + full / 20);
    assert_true(kvp_obj_limit(ix) <= 200000);
    free(oids);
    kvp_objindex_destroy(ix);
}

/* A resize never does more than a few slots in one call: the memory that one add may make is a piece of the table and a
 * block of records, however large the index is. */
TEST(test_add_when_the_table_grows_is_bounded)
{
    kvp_objindex_t *ix = kvp_objindex_create(1);
    uint64_t before = kvp_objindex_memory_bytes(ix), most = 0;

    for (uint32_t i = 0; i < 400000; i++) {
        (void)add(ix, i);
        if (kvp_objindex_memory_bytes(ix) > before) /* it may also fall */
            most = kvp_objindex_memory_bytes(ix) - before > most ? kvp_objindex_memory_bytes(ix) - before : most;
        before = kvp_objindex_memory_bytes(ix);
    }
    assert_true(most < 1u << 20);
    kvp_objindex_destroy(ix);
}

TEST(test_walk_when_blocks_are_missing)
{
    enum { N = 40000 };
    kvp_objindex_t *ix = kvp_objindex_create(1);
    uint32_t *oids = malloc(N * sizeof *oids), cursor = 0, left, oid, n = 0;

    for (uint32_t i = 0; i < N; i++)
        oids[i] = add(ix, i);
    for (uint32_t i = 0; i < N; i++)
        if (oids[i] % 20000 > 300) drop(ix, oids[i]);
    for (;;) {
        uint32_t from = cursor;

        left = 100;
        while ((oid = kvp_objindex_walk(ix, &cursor, UINT32_MAX, &left)) != KVP_OID_NONE) {
            assert_true(oid % 20000 <= 300 && oid >= from && oid < cursor);
            n++;
        }
        if (left > 0) break; /* the end, not the limit */
        assert_true(cursor > from);
    }
    assert_true(cursor >= kvp_obj_limit(ix));
    assert_int_equal(n, 602);
    /* An end before the limit is kept. */
    cursor = 0;
    left = UINT32_MAX;
    for (n = 0; kvp_objindex_walk(ix, &cursor, 10, &left) != KVP_OID_NONE;)
        n++;
    assert_int_equal(n, 10);
    free(oids);
    kvp_objindex_destroy(ix);
}

static uint32_t
older(kvp_objindex_t *ix, uint32_t oid)
{
    return kvp_obj(ix, oid)->prev;
}

TEST(test_list_order)
{
    kvp_objindex_t *ix = kvp_objindex_create(1);
    uint32_t a = add(ix, 1), b = add(ix, 2), c = add(ix, 3);
    kvp_objlist_t list;

    kvp_objlist_init(&list, KVP_OBJLIST_LRU);
    kvp_objlist_push_young(ix, &list, b);
    kvp_objlist_push_young(ix, &list, c);
    kvp_objlist_push_behind(ix, &list, KVP_OID_NONE, a);
    assert_int_equal(list.n, 3);
    assert_int_equal(list.oldest, a);
    assert_int_equal(kvp_obj(ix, a)->next, b);
    assert_int_equal(kvp_obj(ix, b)->next, c);
    assert_int_equal(list.youngest, c);
    assert_int_equal(kvp_obj(ix, c)->next, KVP_OID_NONE);
    assert_int_equal(older(ix, c), b);
    assert_int_equal(older(ix, b), a);
    assert_int_equal(older(ix, a), KVP_OID_NONE);
    kvp_objlist_remove(ix, &list, b);
    kvp_objlist_remove(ix, &list, b); /* legal on one that is on none */
    assert_int_equal(older(ix, c), a);
    assert_int_equal(kvp_obj(ix, b)->list, KVP_OBJLIST_NONE);
    kvp_objlist_remove(ix, &list, a);
    kvp_objlist_remove(ix, &list, c);
    assert_int_equal(list.n, 0);
    assert_int_equal(list.oldest, KVP_OID_NONE);
    assert_int_equal(list.youngest, KVP_OID_NONE);
    kvp_objindex_destroy(ix);
}

/* Uses are told apart one by one while the clock is not far ahead of time, and by time always. */
TEST(test_age_when_used_often)
{
    kvp_objindex_t *ix = kvp_objindex_create(1);
    kvp_obj_t *a = kvp_obj(ix, add(ix, 1)), *b = kvp_obj(ix, add(ix, 2));

    kvp_objindex_set_time(ix, 1000000000);
    kvp_obj_touch(ix, a);
    kvp_obj_touch(ix, b);
    assert_true(kvp_obj_age(ix, a) > kvp_obj_age(ix, b));
    for (uint32_t i = 0; i < 2000000; i++)
        kvp_obj_touch(ix, a);
    kvp_obj_touch(ix, b);
    assert_true(kvp_obj_age(ix, a) >= kvp_obj_age(ix, b));
    kvp_objindex_set_time(ix, 2000000000);
    kvp_obj_touch(ix, a);
    assert_true(kvp_obj_age(ix, b) > kvp_obj_age(ix, a));
    /* A year later, and after the 32 bits have wrapped. */
    kvp_objindex_set_time(ix, 365ull * 86400 * 1000000000);
    kvp_obj_touch(ix, b);
    assert_true(kvp_obj_age(ix, a) > kvp_obj_age(ix, b));
    kvp_objindex_set_time(ix, 5 * 365ull * 86400 * 1000000000);
    kvp_obj_touch(ix, a);
    kvp_objindex_set_time(ix, 6 * 365ull * 86400 * 1000000000);
    kvp_obj_touch(ix, b);
    assert_true(kvp_obj_age(ix, a) > kvp_obj_age(ix, b));
    kvp_objindex_destroy(ix);
}

TEST(test_extension_goes_with_the_object)
{
    kvp_objindex_t *ix = kvp_objindex_create(1);
    uint32_t oid = add(ix, 7), key = 7;
    uint64_t before;
    kvp_objext_t *ext;

    assert_null(kvp_obj_ext(ix, kvp_obj(ix, oid)));
    ext = kvp_obj_ext_make(ix, kvp_obj(ix, oid));
    assert_int_equal(ext->long_key_slot, UINT32_MAX);
    ext->long_key_slot = 9;
    assert_ptr_equal(kvp_obj_ext_make(ix, kvp_obj(ix, oid)), ext);
    assert_int_equal(kvp_obj_ext(ix, kvp_obj(ix, oid))->long_key_slot, 9);
    assert_true(kvp_obj_has_key(ix, kvp_obj(ix, oid), &key, sizeof key)); /* the key is found behind it */
    before = kvp_objindex_memory_bytes(ix);
    drop(ix, oid);
    for (uint32_t i = 0; i < 1000; i++) {
        oid = add(ix, 7);
        (void)kvp_obj_ext_make(ix, kvp_obj(ix, oid));
        drop(ix, oid);
    }
    assert_true(kvp_objindex_memory_bytes(ix) <= before);
    kvp_objindex_destroy(ix);
}

/* A new version of a key is made while the old one is found, and takes its place. */
TEST(test_link_when_a_version_follows)
{
    kvp_objindex_t *ix = kvp_objindex_create(1);
    uint32_t old = add(ix, 1), one = 1;
    uint32_t new = kvp_objindex_make(ix, digest_of(1), &one, sizeof one, NULL);
    kvp_digest_t digest = kvp_obj_digest(ix, kvp_obj(ix, new), 5, 0);

    assert_true(kvp_digest_eq(digest, digest_of(1)));
    assert_int_equal(kvp_objindex_find(ix, digest), old);
    kvp_objindex_unlink(ix, old);
    kvp_objindex_link(ix, new, digest);
    assert_int_equal(kvp_objindex_find(ix, digest), new);
    kvp_objindex_free(ix, old);
    assert_int_equal(kvp_objindex_find(ix, digest), new);
    kvp_objindex_destroy(ix);
}

TEST_MAIN()
