/* SPDX-License-Identifier: Apache-2.0 */
#include "node/tier/format.h"

#include <string.h>

#define HEADERS_A_PAGE 2u

/* ---- geometry */
void
kvp_tier_geo(uint64_t size_bytes, kvp_tier_geo_t *geo_out)
{
    uint64_t room = size_bytes - KVP_TIER_HEADERS_OFF;
    uint64_t header_bytes = (uint64_t)HEADERS_A_PAGE * KVP_TIER_BLOCK;
    uint64_t pages = kvp_max_u64((room + KVP_TIER_PAGE_BYTES_MAX - 1) / KVP_TIER_PAGE_BYTES_MAX, KVP_TIER_PAGES_MIN);

    pages = kvp_min_u64(pages, 1u << 20);
    geo_out->pages = (uint32_t)pages;
    geo_out->page_bytes =
        kvp_min_u64(room / pages - header_bytes, KVP_TIER_PAGE_BYTES_MAX) / KVP_TIER_BLOCK * KVP_TIER_BLOCK;
    geo_out->pages_off = KVP_TIER_HEADERS_OFF + pages * header_bytes;
    geo_out->size_bytes = geo_out->pages_off + pages * geo_out->page_bytes;
}

uint64_t
kvp_tier_header_off(const kvp_tier_geo_t *geo, uint64_t number, uint32_t run)
{
    return KVP_TIER_HEADERS_OFF + (number % geo->pages * HEADERS_A_PAGE + run % HEADERS_A_PAGE) * KVP_TIER_BLOCK;
}

uint64_t
kvp_tier_page_off(const kvp_tier_geo_t *geo, uint64_t number)
{
    return geo->pages_off + number % geo->pages * geo->page_bytes;
}

/* ---- superblocks and page headers */
void
kvp_tier_super_seal(kvp_tier_super_t *super)
{
    super->magic = KVP_TIER_MAGIC;
    super->format = KVP_TIER_FORMAT;
    super->check = kvp_sum(super, offsetof(kvp_tier_super_t, check));
}

static bool
is_zero(const void *bytes, size_t len)
{
    const uint8_t *b = bytes;

    return b[0] == 0 && memcmp(b, b + 1, len - 1) == 0;
}

kvp_err_t
kvp_tier_super_read(const void *bytes, kvp_tier_super_t *super_out)
{
    kvp_tier_super_t super;
    kvp_tier_geo_t geo;

    memcpy(&super, bytes, sizeof super);
    if (is_zero(&super, sizeof super)) return KVP_NOT_FOUND;
    if (super.magic != KVP_TIER_MAGIC) return KVP_PROTO;
    if (super.format != KVP_TIER_FORMAT) return KVP_VERSION;
    if (super.check != kvp_sum(&super, offsetof(kvp_tier_super_t, check))) return KVP_CORRUPT;
    if (super.size_bytes < KVP_TIER_SIZE_MIN || super.name[sizeof super.name - 1] != '\0') return KVP_CORRUPT;
    kvp_tier_geo(super.size_bytes, &geo);
    if (super.pages != geo.pages || super.page_bytes != geo.page_bytes) return KVP_CORRUPT;
    if (super.devices == 0 || super.devices > KVP_TIER_DEVICES_MAX || super.reserved != 0) return KVP_CORRUPT;
    *super_out = super;
    return KVP_OK;
}

void
kvp_tier_page_seal(kvp_tier_page_t *page)
{
    page->magic = KVP_TIER_PAGE_MAGIC;
    page->check = kvp_sum(page, offsetof(kvp_tier_page_t, check));
}

bool
kvp_tier_page_read(const void *bytes, uint64_t epoch, const kvp_tier_geo_t *geo, kvp_tier_page_t *page_out)
{
    kvp_tier_page_t page;

    memcpy(&page, bytes, sizeof page);
    if (page.magic != KVP_TIER_PAGE_MAGIC || page.epoch != epoch) return false;
    if (page.check != kvp_sum(&page, offsetof(kvp_tier_page_t, check))) return false;
    if (page.number == 0 || page.number > UINT64_MAX / 2 || page.run == 0 || page.run > KVP_TIER_RUNS_MAX) return false;
    if (page.first > geo->page_bytes || page.first % KVP_TIER_UNIT != 0 || page.table_at % KVP_TIER_UNIT != 0)
        return false;
    if (page.table_at > geo->page_bytes || page.table_bytes > geo->page_bytes - page.table_at) return false;
    *page_out = page;
    return true;
}

/* ---- records */
static uint64_t
blocks_of(uint64_t len)
{
    return (len + KVP_TIER_BLOCK - 1) / KVP_TIER_BLOCK;
}

static uint64_t
sums_offset(uint16_t key_len)
{
    return kvp_align_up(KVP_TIER_REC_BYTES + (uint64_t)key_len, 8);
}

uint64_t
kvp_tier_rec_payload(uint16_t key_len, uint64_t len)
{
    return kvp_align_up(sums_offset(key_len) + blocks_of(len) * 8, KVP_TIER_UNIT);
}

uint64_t
kvp_tier_rec_end(uint16_t key_len, uint64_t len)
{
    return kvp_align_up(kvp_tier_rec_payload(key_len, len) + len, KVP_TIER_UNIT);
}

static uint64_t
body_sum(const uint8_t *bytes, const kvp_tier_rec_t *rec)
{
    uint64_t end = sums_offset(rec->key_len) + blocks_of(rec->len) * 8;

    return kvp_sum(bytes + KVP_TIER_REC_BYTES, end - KVP_TIER_REC_BYTES);
}

void
kvp_tier_rec_build(uint8_t *dst, kvp_tier_rec_t *rec, const void *key, const void *src)
{
    uint8_t *sums = dst + sums_offset(rec->key_len);
    uint8_t *payload = dst + kvp_tier_rec_payload(rec->key_len, rec->len);

    memset(dst + KVP_TIER_REC_BYTES, 0, (size_t)(payload - dst) - KVP_TIER_REC_BYTES);
    if (rec->key_len > 0) memcpy(dst + KVP_TIER_REC_BYTES, key, rec->key_len);
    for (uint64_t at = 0; at < rec->len; at += KVP_TIER_BLOCK) {
        uint64_t n = kvp_min_u64(rec->len - at, KVP_TIER_BLOCK), sum;

        memcpy(payload + at, (const uint8_t *)src + at, n);
        sum = kvp_sum(payload + at, n);
        memcpy(sums + at / KVP_TIER_BLOCK * 8, &sum, sizeof sum);
    }
    memset(payload + rec->len, 0, kvp_tier_rec_end(rec->key_len, rec->len) - (uint64_t)(payload - dst) - rec->len);
    if (rec->sum == 0) rec->sum = kvp_sum(payload, rec->len);
    rec->body_sum = body_sum(dst, rec);
}

void
kvp_tier_rec_seal(uint8_t *dst, kvp_tier_rec_t *rec)
{
    rec->check = kvp_sum(rec, offsetof(kvp_tier_rec_t, check));
    memcpy(dst, rec, sizeof *rec);
}

kvp_err_t
kvp_tier_rec_read(const uint8_t *bytes, uint64_t len, uint64_t epoch, kvp_tier_rec_t *rec_out)
{
    kvp_tier_rec_t rec;

    if (len < sizeof rec) return KVP_BUFFER_SMALL;
    memcpy(&rec, bytes, sizeof rec);
    if (rec.epoch != epoch || rec.check != kvp_sum(&rec, offsetof(kvp_tier_rec_t, check))) return KVP_PROTO;
    if (rec.kind < KVP_TIER_RECORD || rec.kind > KVP_TIER_TABLE || rec.version >> KVP_TIER_VERSION_BITS != 0)
        return KVP_PROTO;
    if (rec.len > KVP_TIER_PAGE_BYTES_MAX || rec.key_len > KVP_KEY_MAX) return KVP_PROTO;
    if (kvp_tier_rec_payload(rec.key_len, rec.len) > len) return KVP_BUFFER_SMALL;
    if (rec.body_sum != body_sum(bytes, &rec)) return KVP_PROTO;
    *rec_out = rec;
    return KVP_OK;
}

bool
kvp_tier_rec_copy(const uint8_t *bytes, const kvp_tier_rec_t *rec, uint8_t *dst)
{
    const uint8_t *sums = bytes + sums_offset(rec->key_len);
    const uint8_t *payload = bytes + kvp_tier_rec_payload(rec->key_len, rec->len);

    for (uint64_t at = 0; at < rec->len; at += KVP_TIER_BLOCK) {
        uint64_t n = kvp_min_u64(rec->len - at, KVP_TIER_BLOCK), sum = kvp_sum(payload + at, n);

        if (memcmp(&sum, sums + at / KVP_TIER_BLOCK * 8, sizeof sum) != 0) return false;
        if (dst != NULL) memcpy(dst + at, payload + at, n);
    }
    return true;
}

#define LOW(value, bits) ((value) & ((1ull << (bits)) - 1))

kvp_tier_entry_t
kvp_tier_entry(const kvp_tier_rec_t *rec, uint64_t page)
{
    kvp_tier_entry_t entry = {.digest = rec->digest};

    entry.version = LOW(rec->version, KVP_TIER_VERSION_BITS);
    entry.kind = LOW(rec->kind, 2);
    entry.page = LOW(page, 20);
    entry.at = LOW(rec->at, 20);
    entry.units = LOW(kvp_tier_rec_end(rec->key_len, rec->len) / KVP_TIER_UNIT, 21);
    return entry;
}

bool
kvp_tier_entry_is_sane(const kvp_tier_entry_t *entry, const kvp_tier_geo_t *geo)
{
    if (entry->kind != KVP_TIER_RECORD && entry->kind != KVP_TIER_TOMBSTONE) return false;
    return entry->page == 0 && entry->reserved == 0 && (uint64_t)entry->at * KVP_TIER_UNIT < geo->page_bytes &&
           entry->units * KVP_TIER_UNIT >= KVP_TIER_REC_BYTES && entry->units * KVP_TIER_UNIT <= geo->page_bytes;
}
