/* SPDX-License-Identifier: Apache-2.0
 * Checks and layout of the memory format (segfmt.h). The bytes come from other processes and are not trusted. */
#include "common/mutate.h"
#include "proto/segfmt.h"

#include <string.h>

#define EXTENT_UNIT 64u
#define EXTENT_PAGE 4096u
#define EXTENT_LARGE 65536u

uint64_t
kvp_extent_align_bytes(uint64_t len)
{
    return len > EXTENT_LARGE - EXTENT_UNIT ? EXTENT_PAGE : EXTENT_UNIT;
}

uint64_t
kvp_extent_bytes(uint64_t len)
{
    return kvp_align_up(len, kvp_extent_align_bytes(len));
}

void
kvp_chunk_geo(uint64_t chunk_bytes, kvp_chunk_geo_t *geo_out)
{
    uint64_t slots = kvp_align_up(kvp_max_u64(chunk_bytes / 256, 64), 32);

    geo_out->slots_max = (uint32_t)kvp_min_u64(slots, 1u << 24);
    geo_out->keys_off = KVP_SB_BYTES + (uint64_t)geo_out->slots_max * KVP_DESC_BYTES;
    geo_out->long_keys_off = geo_out->keys_off + (uint64_t)geo_out->slots_max * KVP_KEY_CELL_BYTES;
    geo_out->long_keys_bytes = kvp_max_u64((uint64_t)geo_out->slots_max * 64, KVP_KEY_MAX * 16);
    geo_out->meta_bytes = kvp_align_up(geo_out->long_keys_off + geo_out->long_keys_bytes, 4096);
}

void
kvp_sb_seal(kvp_superblock_t *sb)
{
    sb->check = kvp_sum(sb, offsetof(kvp_superblock_t, check));
}

kvp_err_t
kvp_sb_verify(const void *bytes, size_t len, kvp_superblock_t *sb_out)
{
    kvp_superblock_t sb;
    kvp_chunk_geo_t geo;

    if (len < sizeof sb) return KVP_PROTO;
    memcpy(&sb, bytes, sizeof sb);
    if (sb.magic != KVP_SB_MAGIC) return KVP_PROTO;
    if (sb.version != KVP_SB_VERSION) return KVP_VERSION;
    if (sb.check != kvp_sum(&sb, offsetof(kvp_superblock_t, check))) return KVP_PROTO;
    kvp_chunk_geo(sb.chunk_bytes, &geo);
    if (sb.slots_max != geo.slots_max || sb.keys_off != geo.keys_off || sb.long_keys_off != geo.long_keys_off ||
        sb.meta_bytes != geo.meta_bytes)
        return KVP_PROTO;
    *sb_out = sb;
    return KVP_OK;
}

void
kvp_desc_seal(kvp_desc_t *desc)
{
    desc->check = kvp_sum((const uint8_t *)desc + 8, offsetof(kvp_desc_t, check) - 8);
}

kvp_err_t
kvp_desc_verify(const void *bytes, size_t len, const kvp_chunk_geo_t *geo, uint64_t chunk_bytes, kvp_desc_t *desc_out)
{
    kvp_desc_t d;
    uint64_t key_at;

    if (len < sizeof d) return KVP_PROTO;
    memcpy(&d, bytes, sizeof d);
    if (d.check != kvp_sum((const uint8_t *)&d + 8, offsetof(kvp_desc_t, check) - 8)) return KVP_PROTO;
    if (d.len == 0 || d.len > chunk_bytes || d.offset > chunk_bytes - d.len || d.offset % 64 != 0) return KVP_PROTO;
    if (d.key_len == 0 || d.key_len > KVP_KEY_MAX || d.flags >= KVP_DESC_PIN || d.reserved != 0) return KVP_PROTO;
    key_at = (uint64_t)d.key_off * 64;
    if (key_at < geo->keys_off || key_at > geo->meta_bytes - d.key_len) return KVP_PROTO;
    if (d.group_n != 0 && d.group_member >= d.group_n) return KVP_PROTO;
    *desc_out = d;
    return KVP_OK;
}

kvp_err_t
kvp_desc_accept(const kvp_desc_t *line, const kvp_expect_t *expect)
{
    if (kvp_word_state(line->word) != KVP_DESC_SEALED && KVP_RULE(READ_STATE)) return KVP_STALE;
    if (kvp_word_generation(line->word) != expect->generation && KVP_RULE(READ_GENERATION)) return KVP_STALE;
    if (line->version != expect->version && KVP_RULE(READ_GENERATION)) return KVP_STALE;
    if (line->offset != expect->offset || line->len != expect->len) return KVP_STALE;
    if (!kvp_digest_eq(line->digest, expect->digest)) return KVP_STALE;
    if (line->key_hash2 != expect->key_hash2 && KVP_RULE(READ_HASH2)) return KVP_COLLISION;
    return KVP_OK;
}
