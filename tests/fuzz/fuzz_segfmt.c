/* SPDX-License-Identifier: Apache-2.0
 * Superblocks and descriptors of strangers. The first byte chooses what the rest is; an odd one has its check put
 * right first, since no fuzzer finds a hash by itself. What is taken must lie within its chunk. */
#include "proto/segfmt.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
try_superblock(const uint8_t *data, size_t size, bool is_sealed)
{
    kvp_superblock_t sb, got;

    if (!is_sealed || size < sizeof(sb)) {
        kvp_ignore(kvp_sb_verify(data, size, &got), "any answer will do");
        return;
    }
    memcpy(&sb, data, sizeof(sb));
    kvp_sb_seal(&sb);
    if (kvp_sb_verify(&sb, sizeof(sb), &got) != KVP_OK) return;
    check(memcmp(&sb, &got, sizeof(sb)) == 0);
    check(got.keys_off >= KVP_SB_BYTES + (uint64_t)got.slots_max * KVP_DESC_BYTES);
    check(got.long_keys_off >= got.keys_off + (uint64_t)got.slots_max * KVP_KEY_CELL_BYTES);
    check(got.meta_bytes > got.long_keys_off && got.meta_bytes % 4096 == 0);
}

static void
try_descriptor(const uint8_t *data, size_t size, bool is_sealed)
{
    uint64_t chunk_bytes;
    kvp_chunk_geo_t geo;
    kvp_desc_t desc, got;

    if (size < sizeof(chunk_bytes)) return;
    memcpy(&chunk_bytes, data, sizeof(chunk_bytes));
    data += sizeof(chunk_bytes);
    size -= sizeof(chunk_bytes);
    kvp_chunk_geo(chunk_bytes % (1ull << 40), &geo);
    if (!is_sealed || size < sizeof(desc)) {
        kvp_ignore(kvp_desc_verify(data, size, &geo, chunk_bytes, &got), "any answer will do");
        return;
    }
    memcpy(&desc, data, sizeof(desc));
    kvp_desc_seal(&desc);
    if (kvp_desc_verify(&desc, sizeof(desc), &geo, chunk_bytes, &got) != KVP_OK) return;
    check(memcmp(&desc, &got, sizeof(desc)) == 0);
    check(got.len > 0 && got.len <= chunk_bytes && got.offset <= chunk_bytes - got.len);
    check(got.key_len > 0 && got.key_len <= KVP_KEY_MAX);
    check((uint64_t)got.key_off * 64 >= geo.keys_off && (uint64_t)got.key_off * 64 + got.key_len <= geo.meta_bytes);
}

/* A line is accepted exactly where it says what the reader was told, word included. */
static void
try_accept(const uint8_t *data, size_t size)
{
    kvp_desc_t line = {0};
    kvp_expect_t expect;

    if (size < KVP_DESC_LINE_BYTES + sizeof(expect)) return;
    memcpy(&line, data, KVP_DESC_LINE_BYTES);
    memcpy(&expect, data + KVP_DESC_LINE_BYTES, sizeof(expect));
    bool is_same = kvp_word_state(line.word) == KVP_DESC_SEALED &&
                   kvp_word_generation(line.word) == expect.generation && line.version == expect.version &&
                   kvp_digest_eq(line.digest, expect.digest) && line.offset == expect.offset &&
                   line.len == expect.len && line.key_hash2 == expect.key_hash2;
    check((kvp_desc_accept(&line, &expect) == KVP_OK) == is_same);

    expect = (kvp_expect_t){.generation = kvp_word_generation(line.word),
                            .version = line.version,
                            .digest = line.digest,
                            .key_hash2 = line.key_hash2,
                            .offset = line.offset,
                            .len = line.len};
    kvp_err_t err = kvp_desc_accept(&line, &expect);
    check(err == (kvp_word_state(line.word) == KVP_DESC_SEALED ? KVP_OK : KVP_STALE));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    bool is_sealed = (data[0] & 1) != 0;

    switch (data[0] >> 1 & 3) {
    case 0:
        try_superblock(data + 1, size - 1, is_sealed);
        break;
    case 1:
        try_descriptor(data + 1, size - 1, is_sealed);
        break;
    default:
        try_accept(data + 1, size - 1);
    }
    return 0;
}
