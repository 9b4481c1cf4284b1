/* SPDX-License-Identifier: Apache-2.0
 * The key store against a plain array of copies, with keys of every form, and what keys cost. */
#include "common/hash.h"
#include "master/core/catalog/keys.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t
next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1dull;
}

static size_t
below(uint64_t *state, size_t n)
{
    return (size_t)((next_random(state) >> 16) % n);
}

/* What an engine's connector makes: 118 bytes with a rank of one digit. */
static size_t
pool_key(uint8_t *key, uint32_t rank, uint64_t i)
{
    kvp_digest_t a = kvp_key_digest(1, 0, &i, sizeof i), b = kvp_key_digest(2, 0, &i, sizeof i);

    return (size_t)snprintf((char *)key, KVP_KEY_MAX,
                            "llama-8b@tp_rank:%u@pcp0@dcp0@pp_rank:0@group:00000001@%016lx%016lx%016lx%016lx", rank % 8,
                            (unsigned long)a.lo, (unsigned long)a.hi, (unsigned long)b.lo, (unsigned long)b.hi);
}

/* A key of some form: shared fronts and fronts of its own, digits of both cases, odd and even, bytes of anything, and
 * every length. */
static size_t
any_key(uint64_t *seed, uint8_t *key)
{
    static const char *const alphabets[] = {"0123456789abcdef", "0123456789ABCDEF", "xyz", "@/:"};
    size_t form = below(seed, 8), len = below(seed, 4) == 0 ? 1 + below(seed, KVP_KEY_MAX) : 1 + below(seed, 90);
    size_t at = 0;

    if (form == 0) return pool_key(key, (uint32_t)below(seed, 8), next_random(seed));
    if (form <= 4 && len > 40) at = (size_t)sprintf((char *)key, "namespace-%zu/%zu@", form, below(seed, 30));
    for (; at < len; at++) {
        const char *alphabet = alphabets[form % 4];

        key[at] = form == 7 ? (uint8_t)next_random(seed) : (uint8_t)alphabet[below(seed, strlen(alphabet))];
    }
    return len;
}

typedef struct {
    uint32_t ref;
    uint16_t len; /* 0 = not in the store */
    kvp_wire_lineage_t lineage;
    uint8_t bytes[KVP_KEY_MAX];
} copy_t;

/* Of every second key, of any bits. */
static kvp_wire_lineage_t
any_lineage(uint64_t *seed)
{
    if (below(seed, 2) == 0) return (kvp_wire_lineage_t){.is_told = 0};
    return (kvp_wire_lineage_t){next_random(seed), next_random(seed), (uint32_t)next_random(seed), 1};
}

static void
check_copy(const kvp_keystore_t *ks, const copy_t *c)
{
    kvp_wire_lineage_t lineage = kvp_keystore_lineage(ks, c->ref);
    uint8_t kept[KVP_KEY_MAX + 1];

    assert_memory_equal(&lineage, &c->lineage, sizeof lineage);
    kept[c->len] = 0x5a;
    assert_int_equal(kvp_keystore_len(ks, c->ref), c->len);
    assert_int_equal(kvp_keystore_copy(ks, c->ref, kept), c->len);
    assert_memory_equal(kept, c->bytes, c->len);
    assert_int_equal(kept[c->len], 0x5a);
    assert_true(kvp_keystore_equals(ks, c->ref, c->bytes, c->len));
    kept[c->len / 2] ^= 1;
    assert_false(kvp_keystore_equals(ks, c->ref, kept, c->len));
    assert_false(kvp_keystore_equals(ks, c->ref, c->bytes, c->len - 1u));
}

TEST(test_keys_of_every_form)
{
    enum { COPIES = 3000, STEPS = 60000 };
    kvp_keystore_t *ks = kvp_keystore_create(3);
    uint64_t before = kvp_keystore_memory_bytes(ks), seed = 11;
    copy_t *copies = calloc(COPIES, sizeof *copies);

    for (uint32_t step = 0; step < STEPS; step++) {
        copy_t *c = &copies[below(&seed, COPIES)];

        if (c->len == 0) {
            c->len = (uint16_t)any_key(&seed, c->bytes);
            c->lineage = any_lineage(&seed);
            c->ref = kvp_keystore_add(ks, c->bytes, c->len, &c->lineage);
        } else {
            check_copy(ks, c);
            kvp_keystore_del(ks, c->ref);
            c->len = 0;
        }
    }
    for (uint32_t i = 0; i < COPIES; i++) {
        if (copies[i].len == 0) continue;
        check_copy(ks, &copies[i]);
        kvp_keystore_del(ks, copies[i].ref);
    }
    /* A block is kept, and the records of prefixes. */
    assert_true(kvp_keystore_memory_bytes(ks) < before + (200u << 10));
    free(copies);
    kvp_keystore_destroy(ks);
}

TEST(test_longest_and_shortest_keys)
{
    kvp_keystore_t *ks = kvp_keystore_create(3);
    uint8_t key[KVP_KEY_MAX], byte = 0;
    copy_t c = {.len = KVP_KEY_MAX, .lineage = {UINT64_MAX, 1, UINT32_MAX, 1}};

    memset(key, 'f', sizeof key);
    for (uint32_t i = 0; i < 8; i++) { /* with a front of 1023 bytes that is shared, too */
        if (i == 2) key[KVP_KEY_MAX - 2] = '@';
        if (i == 7) key[KVP_KEY_MAX - 1] = '@'; /* nothing behind it */
        memcpy(c.bytes, key, sizeof key);
        c.ref = kvp_keystore_add(ks, key, sizeof key, &c.lineage);
        check_copy(ks, &c);
    }
    c.ref = kvp_keystore_add(ks, &byte, 1, NULL);
    assert_int_equal(kvp_keystore_len(ks, c.ref), 1);
    assert_true(kvp_keystore_equals(ks, c.ref, &byte, 1));
    assert_false(kvp_keystore_equals(ks, c.ref, "\1", 1));
    kvp_keystore_destroy(ks);
}

/* What N of them cost, which all have that lineage. */
static uint64_t
memory_of_pool_keys(const kvp_wire_lineage_t *lineage)
{
    enum { N = 100000 };
    kvp_keystore_t *ks = kvp_keystore_create(3);
    uint64_t before = kvp_keystore_memory_bytes(ks), full;
    uint32_t *refs = malloc(N * sizeof *refs);
    uint8_t key[KVP_KEY_MAX];

    for (uint32_t i = 0; i < N; i++) {
        size_t len = pool_key(key, i, i);

        assert_int_equal(len, 118);
        refs[i] = kvp_keystore_add(ks, key, len, lineage);
    }
    full = kvp_keystore_memory_bytes(ks) - before;
    for (uint32_t i = 0; i < N; i++)
        kvp_keystore_del(ks, refs[i]);
    assert_true(kvp_keystore_memory_bytes(ks) <= before + (100u << 10));
    free(refs);
    kvp_keystore_destroy(ks);
    return full / (N / 1000); /* of 1,000 of them */
}

/* Fails if a key of 118 bytes with 64 digits costs more than 36.04 bytes, or its lineage more than 20.1 besides. */
TEST(test_memory_of_pool_keys)
{
    const kvp_wire_lineage_t lineage = {1, 2, 3, 1};
    uint64_t plain = memory_of_pool_keys(NULL), more = memory_of_pool_keys(&lineage);

    print_message("1,000 keys: %lu bytes, with lineages %lu\n", (unsigned long)plain, (unsigned long)more);
    assert_true(plain <= 36040 && more <= plain + 20100);
}

/* Somebody gives every key a front of its own, or one to every few: it costs hardly more than the keys. */
TEST(test_memory_when_prefixes_are_not_shared)
{
    enum { N = 20000 };

    for (uint32_t each = 1; each <= 5; each++) {
        kvp_keystore_t *ks = kvp_keystore_create(3);
        uint64_t before = kvp_keystore_memory_bytes(ks), bytes = 0;
        char key[KVP_KEY_MAX];

        for (uint32_t i = 0; i < N; i++) {
            int len = snprintf(key, sizeof key, "some-longer-name-of-a-front-%08u/z%u", i / each, i % each);

            bytes += (uint64_t)len;
            (void)kvp_keystore_add(ks, key, (size_t)len, NULL);
        }
        assert_true(kvp_keystore_memory_bytes(ks) - before < bytes + 12 * N);
        kvp_keystore_destroy(ks);
    }
}

/* More prefixes than there are numbers for: the rest is kept whole, and numbers are used again. */
TEST(test_add_when_prefixes_run_out)
{
    enum { FRONTS = 66000, TIMES = 5 };
    kvp_keystore_t *ks = kvp_keystore_create(3);
    uint32_t *refs = malloc(FRONTS * TIMES * sizeof *refs);
    char key[64];

    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < FRONTS * TIMES; i++)
            refs[i] = kvp_keystore_add(ks, key, (size_t)snprintf(key, sizeof key, "prefix-%u/z", i / TIMES), NULL);
        for (uint32_t i = 0; i < FRONTS * TIMES; i++) {
            size_t len = (size_t)snprintf(key, sizeof key, "prefix-%u/z", i / TIMES);

            assert_true(kvp_keystore_equals(ks, refs[i], key, len));
            kvp_keystore_del(ks, refs[i]);
        }
    }
    free(refs);
    kvp_keystore_destroy(ks);
}

TEST_MAIN()
