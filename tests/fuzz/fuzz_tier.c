/* SPDX-License-Identifier: Apache-2.0
 * What lies on a device of the tier. The first byte chooses: a superblock, a page's header, a record (an odd byte: its
 * check is put right first), or a device on which a few records are, and the rest of the input stores bytes here and
 * there before a start. What is taken must lie within its bounds, and a record that is read is one that was written. */
#include "node/tier/core.h"
#include "tests/fuzz/fuzz_check.h"

#include <string.h>

#define PAGE_BYTES 65536u
#define FILE_BYTES (KVP_TIER_HEADERS_OFF + KVP_TIER_PAGES_MIN * (PAGE_BYTES + 8192u))
#define RECORDS 40u
#define EPOCH 99u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- decoders */
static void
try_superblock(const uint8_t *data, size_t size, bool is_sealed)
{
    uint8_t block[KVP_TIER_BLOCK] = {0};
    kvp_tier_super_t got, super;

    memcpy(block, data, kvp_min_u64(size, sizeof block));
    if (is_sealed) {
        memcpy(&super, block, sizeof super);
        kvp_tier_super_seal(&super);
        memcpy(block, &super, sizeof super);
    }
    if (kvp_tier_super_read(block, &got) != KVP_OK) return;
    check(memchr(got.name, '\0', sizeof got.name) != NULL && got.devices > 0);
    check(got.pages >= KVP_TIER_PAGES_MIN && got.page_bytes % KVP_TIER_BLOCK == 0);
    check((uint64_t)got.pages * got.page_bytes < got.size_bytes);
}

static void
try_header(const uint8_t *data, size_t size, bool is_sealed)
{
    uint8_t block[KVP_TIER_BLOCK] = {0};
    kvp_tier_page_t got, page;
    kvp_tier_geo_t geo;

    kvp_tier_geo(FILE_BYTES, &geo);
    memcpy(block, data, kvp_min_u64(size, sizeof block));
    if (is_sealed) {
        memcpy(&page, block, sizeof page);
        page.epoch = EPOCH;
        kvp_tier_page_seal(&page);
        memcpy(block, &page, sizeof page);
    }
    if (!kvp_tier_page_read(block, EPOCH, &geo, &got)) return;
    check(got.first <= geo.page_bytes && got.run >= 1 && got.run <= KVP_TIER_RUNS_MAX);
    check((uint64_t)got.table_at + got.table_bytes <= geo.page_bytes);
}

static void
try_record(const uint8_t *data, size_t size, bool is_sealed)
{
    uint8_t bytes[8192] = {0};
    kvp_tier_rec_t got, rec;
    uint64_t len = kvp_min_u64(size, sizeof bytes);

    memcpy(bytes, data, len);
    if (is_sealed && len >= sizeof rec) {
        memcpy(&rec, bytes, sizeof rec);
        rec.epoch = EPOCH;
        kvp_tier_rec_seal(bytes, &rec);
    }
    if (kvp_tier_rec_read(bytes, len, EPOCH, &got) != KVP_OK) return;
    check(got.key_len <= KVP_KEY_MAX && kvp_tier_rec_payload(got.key_len, got.len) <= len);
    if (kvp_tier_rec_end(got.key_len, got.len) <= len) (void)!kvp_tier_rec_copy(bytes, &got, NULL);
}

/* ---- a device */
static uint8_t device[FILE_BYTES];
static kvp_list_t ios;

static void
submit(void *disk, kvp_tier_io_t *io)
{
    (void)disk;
    check(io->len > 0 && io->off + io->len <= FILE_BYTES);
    kvp_list_add_tail(&ios, &io->link);
}

static void
wait_for_one(void *disk)
{
    kvp_tier_io_t *io = kvp_list_first(&ios, kvp_tier_io_t, link);

    (void)disk;
    if (kvp_list_is_empty(&ios)) return;
    kvp_list_del(&io->link);
    if (io->is_write)
        memcpy(device + io->off, io->buf, io->len);
    else
        memcpy(io->buf, device + io->off, io->len);
    io->err = KVP_OK;
    io->done(io);
}

static const kvp_tier_disk_ops_t ops = {.submit = submit, .wait = wait_for_one};

static kvp_tier_core_t *
create(kvp_tier_stats_t *stats)
{
    kvp_tier_core_conf_t conf = {.epoch = EPOCH, .ops = &ops, .stats = stats};
    kvp_tier_core_t *core;

    kvp_tier_geo(FILE_BYTES, &conf.geo);
    core = kvp_tier_core_create(&conf);
    check(core != NULL);
    return core;
}

static void
finish(kvp_tier_core_t *core)
{
    kvp_tier_core_flush(core);
    while (!kvp_tier_core_is_idle(core))
        wait_for_one(NULL);
}

static uint64_t
len_of(uint64_t i)
{
    return 100 + i * 300;
}

static void
write_all(kvp_tier_stats_t *stats)
{
    static uint8_t bytes[16384];
    kvp_tier_core_t *core = create(stats);
    uint64_t serial;

    for (uint64_t i = 0; i < RECORDS; i++) {
        kvp_tier_meta_t meta = {
            .digest = {.lo = i, .hi = 1}, .version = 1 + i, .len = len_of(i), .key_len = 3, .key = "key"};

        memset(bytes, (int)i, sizeof bytes);
        check(kvp_tier_core_write(core, &meta, bytes, NULL, NULL, &serial) == KVP_OK);
        if (i % 5 == 0)
            check(kvp_tier_core_drop(core, (kvp_digest_t){.lo = i / 2, .hi = 1}, 1 + i / 2, &serial) == KVP_OK);
        if (i % 7 == 0) finish(core);
    }
    finish(core);
    kvp_tier_core_destroy(core);
}

typedef struct {
    kvp_tier_read_t read;
    kvp_tier_meta_t meta;
    uint8_t bytes[16384];
    bool is_over;
} reading_t;

static void
on_read(kvp_tier_read_t *read)
{
    kvp_container_of(read, reading_t, read)->is_over = true;
}

static void
read_one(kvp_tier_core_t *core, kvp_wire_tiered_t rec)
{
    static reading_t r;

    r = (reading_t){.read = {.done = on_read,
                             .meta = &r.meta,
                             .dst = r.bytes,
                             .cap = sizeof r.bytes,
                             .digest = rec.digest,
                             .version = rec.version}};
    kvp_tier_core_read(core, &r.read);
    while (!r.is_over)
        wait_for_one(NULL);
    if (r.read.err != KVP_OK) return;
    check(rec.digest.lo < RECORDS && rec.version == rec.digest.lo + 1 && r.meta.len == len_of(rec.digest.lo));
    for (uint64_t at = 0; at < r.meta.len; at++)
        check(r.bytes[at] == (uint8_t)rec.digest.lo);
}

static void
try_device(const uint8_t *data, size_t size)
{
    kvp_wire_tiered_t recs[4 * RECORDS];
    kvp_tier_stats_t stats = {0};
    const kvp_tier_entry_t *entry;
    kvp_tier_core_t *core;
    uint64_t cursor = 0;
    uint32_t n = 0;

    kvp_list_init(&ios);
    memset(device, 0, sizeof device);
    write_all(&stats);
    for (; size >= 5; data += 5, size -= 5) { /* the upper bits say where most is: headers, the first pages, anywhere */
        uint64_t at = (uint64_t)data[0] << 16 | (uint64_t)data[1] << 8 | data[2];
        uint64_t base = data[3] % 3 == 0   ? KVP_TIER_HEADERS_OFF
                        : data[3] % 3 == 1 ? KVP_TIER_HEADERS_OFF + KVP_TIER_PAGES_MIN * 8192u
                                           : 0;

        device[(base + at % (data[3] % 3 == 0 ? 65536u : FILE_BYTES)) % FILE_BYTES] = data[4];
    }
    core = create(&stats);
    check(kvp_tier_core_recover(core) == KVP_OK);
    while (n < 4 * RECORDS && (entry = kvp_tier_index_next(kvp_tier_core_index(core), &cursor)) != NULL)
        recs[n++] = (kvp_wire_tiered_t){.digest = entry->digest, .version = entry->version};
    while (n-- > 0)
        read_one(core, recs[n]);
    finish(core);
    kvp_tier_core_destroy(core);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 8192) return 0;
    bool is_sealed = (data[0] & 1) != 0;

    switch (data[0] >> 1 & 3) {
    case 0:
        try_superblock(data + 1, size - 1, is_sealed);
        break;
    case 1:
        try_header(data + 1, size - 1, is_sealed);
        break;
    case 2:
        try_record(data + 1, size - 1, is_sealed);
        break;
    default:
        try_device(data + 1, size - 1);
    }
    return 0;
}
