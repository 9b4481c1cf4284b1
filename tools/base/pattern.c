/* SPDX-License-Identifier: Apache-2.0
 * A test pattern. Word i is start(id) + i * STEP, finalised by one multiplication. No word depends on another one,
 * so filling and checking run at several bytes a cycle. */
#include "tools/base/pattern.h"

#include <string.h>

#define STEP 0x9e3779b97f4a7c15ull
#define POISON 0xdeadbeef0badcafeull
#define LINE_BYTES 64u

static inline uint64_t
word_at(uint64_t counter)
{
    uint64_t x = (counter ^ counter >> 32) * 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

static uint64_t
start_of(uint64_t salt, uint64_t id)
{
    uint64_t x = id + salt * STEP;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

void
kvp_pattern_fill(void *dst, size_t len, uint64_t salt, uint64_t id)
{
    uint8_t *to = dst;
    uint64_t counter = start_of(salt, id);
    size_t at = 0;
    for (; at + 8 <= len; at += 8, counter += STEP) {
        uint64_t word = word_at(counter);
        memcpy(to + at, &word, 8);
    }
    uint64_t last = word_at(counter);
    memcpy(to + at, &last, len - at);
}

static uint64_t
count_wrong(const uint8_t *got, const uint8_t *want, size_t len)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < len; i++)
        wrong += got[i] != want[i];
    return wrong;
}

uint64_t
kvp_pattern_wrong(const void *src, size_t len, uint64_t salt, uint64_t id)
{
    const uint8_t *got = src;
    uint64_t counter = start_of(salt, id), wrong = 0, differs = 0;
    size_t at = 0;
    /* Compares whole lines of 64 bytes first. In the common case none differs, and no byte is compared on its own. */
    for (; at + LINE_BYTES <= len; at += LINE_BYTES) {
        uint64_t line[LINE_BYTES / 8], have[LINE_BYTES / 8];
        memcpy(have, got + at, LINE_BYTES);
        differs = 0;
        for (size_t w = 0; w < LINE_BYTES / 8; w++, counter += STEP) {
            line[w] = word_at(counter);
            differs |= line[w] ^ have[w];
        }
        if (differs != 0) wrong += count_wrong((const uint8_t *)have, (const uint8_t *)line, LINE_BYTES);
    }
    for (; at < len; at += 8, counter += STEP) {
        uint64_t word = word_at(counter);
        wrong += count_wrong(got + at, (const uint8_t *)&word, kvp_min_u64(8, len - at));
    }
    return wrong;
}

void
kvp_pattern_poison(void *dst, size_t len)
{
    const uint64_t poison = POISON;
    uint8_t *to = dst;
    for (size_t at = 0; at < len; at += LINE_BYTES)
        memcpy(to + at, &poison, kvp_min_u64(8, len - at));
}
