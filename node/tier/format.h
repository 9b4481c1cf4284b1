/* SPDX-License-Identifier: Apache-2.0
 * The contents of a device of the tier. Little-endian, naturally aligned, no padding; PROTOCOL
 * "Tier". The bytes are not trusted.
 *
 *     superblock, its copy | block of the self-test | page headers (two blocks a page) | pages
 *
 * The pages are a ring: page number s lies in place s modulo their count, and numbers rise for
 * ever. Records follow each other, a record may run on into the next page, and only the end of the
 * ring is never crossed. The header of a page is on the device before any byte of the page. It has
 * the place of the first record that begins in the page, and the place of the previous page's
 * table: the places of all records of the previous page, so that a start reads tables and not
 * records. The last page has no table yet: its records are found one from another. */
#ifndef KVP_NODE_TIER_FORMAT_H
#define KVP_NODE_TIER_FORMAT_H

#include "node/tier/io.h"
#include "node/tier/op.h"

#define KVP_TIER_MAGIC 0x3130305352454954ull /* "TIERS001" */
#define KVP_TIER_PAGE_MAGIC 0x3130304547415054ull /* "TPAGE001" */
#define KVP_TIER_FORMAT 2u
#define KVP_TIER_UNIT 64u /* alignment of records */
#define KVP_TIER_PAGES_MIN 48u
#define KVP_TIER_PAGE_BYTES_MAX (64ull << 20)
#define KVP_TIER_TEST_OFF 8192u
#define KVP_TIER_HEADERS_OFF 16384u
#define KVP_TIER_REC_BYTES 128u
#define KVP_TIER_VERSION_BITS 62
#define KVP_TIER_PLACE_MASK 0xFFFFFull /* of kvp_tier_entry_t.page */

typedef struct {
    uint64_t size_bytes; /* of the file */
    uint64_t page_bytes;
    uint64_t pages_off;
    uint32_t pages;
} kvp_tier_geo_t;

typedef struct {
    uint64_t magic;
    uint32_t format;
    uint32_t devices; /* devices of the tier, in this generation */
    uint32_t pages;
    uint32_t reserved; /* 0 */
    uint64_t identity; /* of the device, random: by it slots are mapped to devices, whatever their order and number */
    uint64_t generation; /* rises where the set of devices changes: a device of a lower one missed removals */
    uint64_t page_bytes;
    uint64_t size_bytes;
    uint64_t epoch; /* chosen when all earlier records were given up: records of another epoch do not count */
    uint8_t pool_id[16];
    uint8_t uuid[16]; /* of the tier */
    char name[KVP_NAME_MAX + 8]; /* of the node, zero-terminated */
    uint64_t check;
} kvp_tier_super_t;

#define KVP_TIER_RUNS_MAX 32u

typedef struct {
    uint64_t magic;
    uint64_t epoch;
    uint64_t number; /* of the page */
    uint64_t opened_ms; /* since 1970 */
    uint64_t durable_page; /* all bytes before this page, */
    uint32_t durable_at; /* and before this place in it, were on the device when the header was written */
    uint32_t run; /* how many starts have written in the page */
    uint32_t first; /* possible place of the first record that begins in the page, from the page's beginning */
    uint32_t table_at; /* table of the previous page, in this page; */
    uint32_t table_bytes; /* as a record; 0 = there is none */
    uint32_t has_torn; /* 1: some records of the page are torn, so each start verifies the payloads */
    uint32_t runs_at[KVP_TIER_RUNS_MAX]; /* where each run began: later records with a lower run are leftovers */
    uint64_t check;
} kvp_tier_page_t;

typedef enum {
    KVP_TIER_RECORD = 1,
    KVP_TIER_TOMBSTONE = 2, /* hides all earlier records of the digest up to its version */
    KVP_TIER_TABLE = 3, /* digest.lo: the page of the table. Its payload is kvp_tier_entry_t, with page 0 */
} kvp_tier_kind_t;

/* In front of key, sums (8 bytes for each 4 KiB of the payload) and payload; the sums begin at a
 * multiple of 8, the payload at one of 64. */
typedef struct {
    uint64_t epoch;
    uint32_t at; /* units in the page */
    uint16_t kind;
    uint16_t flags;
    kvp_digest_t digest;
    uint64_t version;
    uint64_t page; /* the page's number */
    uint64_t len; /* payload bytes */
    uint64_t sum; /* of the payload */
    uint64_t key_hash2;
    kvp_wire_lineage_t lineage;
    uint32_t tenant;
    uint32_t ns_epoch;
    uint32_t run;
    uint16_t key_len;
    uint16_t reserved; /* 0 */
    uint64_t body_sum; /* of key and sums as they lie there */
    uint64_t check;
} kvp_tier_rec_t;

/* A record's place: in the index and in tables. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version : 62;
    uint64_t kind : 2;
    uint64_t page : 20; /* its place in the ring; index only */
    uint64_t at : 20; /* units */
    uint64_t units : 21; /* length on the device, up to the next record; 0 = none */
    uint64_t reserved : 3;
} kvp_tier_entry_t;

_Static_assert(sizeof(kvp_tier_super_t) == 240, "device format");
_Static_assert(sizeof(kvp_tier_page_t) == 200, "device format");
_Static_assert(sizeof(kvp_tier_rec_t) == KVP_TIER_REC_BYTES, "device format");
_Static_assert(sizeof(kvp_tier_entry_t) == 32, "device format");

/* kvp_tier_geo divides a file of that many bytes (at least KVP_TIER_SIZE_MIN). _header_off: where
 * the header of a page lies in that run; those of two runs never lie in one block. _page_off: where
 * its bytes begin. */
void kvp_tier_geo(uint64_t size_bytes, kvp_tier_geo_t *geo_out);
uint64_t kvp_tier_header_off(const kvp_tier_geo_t *geo, uint64_t number, uint32_t run);
uint64_t kvp_tier_page_off(const kvp_tier_geo_t *geo, uint64_t number);

/* kvp_tier_super_read: OK; NOT_FOUND (zeros), PROTO (not of ours), VERSION (another format),
 * CORRUPT. len is at least the size of the struct. */
void kvp_tier_super_seal(kvp_tier_super_t *super);
kvp_err_t kvp_tier_super_read(const void *bytes, kvp_tier_super_t *super_out) KVP_MUST_USE;
void kvp_tier_page_seal(kvp_tier_page_t *page);
bool kvp_tier_page_read(const void *bytes, uint64_t epoch, const kvp_tier_geo_t *geo, kvp_tier_page_t *page_out)
    KVP_MUST_USE;

/* Where the parts of a record are, from its begin on; _end is a multiple of KVP_TIER_UNIT. */
uint64_t kvp_tier_rec_payload(uint16_t key_len, uint64_t len);
uint64_t kvp_tier_rec_end(uint16_t key_len, uint64_t len);

/* kvp_tier_rec_build writes a whole record at dst but for its check: body_sum, and sum where that
 * is 0, are computed and set. */
void kvp_tier_rec_build(uint8_t *dst, kvp_tier_rec_t *rec, const void *key, const void *src);
void kvp_tier_rec_seal(uint8_t *dst, kvp_tier_rec_t *rec);

/* kvp_tier_rec_read: OK, header, key and sums are right; PROTO (no record of that epoch),
 * BUFFER_SMALL (key and sums are not all in these len bytes). kvp_tier_rec_copy holds the payload
 * against the sums, and copies it where dst is not NULL: false = they are not right, and dst is
 * undefined. */
kvp_err_t kvp_tier_rec_read(const uint8_t *bytes, uint64_t len, uint64_t epoch, kvp_tier_rec_t *rec_out) KVP_MUST_USE;
bool kvp_tier_rec_copy(const uint8_t *bytes, const kvp_tier_rec_t *rec, uint8_t *dst) KVP_MUST_USE;

/* kvp_tier_entry: the place of a record in the page at that place of the ring. */
kvp_tier_entry_t kvp_tier_entry(const kvp_tier_rec_t *rec, uint64_t page);
bool kvp_tier_entry_is_sane(const kvp_tier_entry_t *entry, const kvp_tier_geo_t *geo);

#endif
