/* SPDX-License-Identifier: Apache-2.0
 * The on-disk format of a device of the SSD tier. Little-endian, naturally aligned, no padding; PROTOCOL "Tier". The
 * bytes are not trusted.
 *
 * superblock, its copy | block of the self-test | page headers (two blocks for each page) | pages
 *
 * The pages are a ring: page number s is at place s modulo the number of pages, and numbers rise for ever. Records
 * follow each other. A record may continue into the next page, except across the end of the ring. The header of a page
 * is on the device before any byte of the page. The header has the place of the first record that begins in the page,
 * and the place of the previous page's table. A table has the places of all records of a page, so that a start reads
 * tables and not records. The last page has no table yet: each of its records gives the place of the next record. */
#ifndef KVP_NODE_TIER_FORMAT_H
#define KVP_NODE_TIER_FORMAT_H

#include "node/tier/io.h"
#include "node/tier/op.h"

#define KVP_TIER_MAGIC 0x3130305352454954ull /* the bytes "TIERS001" */
#define KVP_TIER_PAGE_MAGIC 0x3130304547415054ull /* the bytes "TPAGE001" */
#define KVP_TIER_FORMAT 2u
#define KVP_TIER_UNIT 64u /* the unit of a record's place and length: records are aligned to 64 bytes */
#define KVP_TIER_PAGES_MIN 48u
#define KVP_TIER_PAGE_BYTES_MAX (64ull << 20)
#define KVP_TIER_TEST_OFF 8192u
#define KVP_TIER_HEADERS_OFF 16384u
#define KVP_TIER_REC_BYTES 128u
#define KVP_TIER_VERSION_BITS 62
#define KVP_TIER_PLACE_MASK 0xFFFFFull /* the bits of a page's place in kvp_tier_entry_t.page */

typedef struct {
    uint64_t size_bytes; /* the size of the device's file */
    uint64_t page_bytes;
    uint64_t pages_off;
    uint32_t pages;
} kvp_tier_geo_t;

typedef struct {
    uint64_t magic;
    uint32_t format;
    uint32_t devices; /* the number of devices of the tier in this generation */
    uint32_t pages;
    uint32_t reserved; /* a reserved field, always 0 */
    /* the random identity of the device: it maps slots to devices, whatever their order and number */
    uint64_t identity;
    uint64_t generation; /* rises when the set of devices changes: a device of a lower generation missed removals */
    uint64_t page_bytes;
    uint64_t size_bytes;
    /* a random number, chosen whenever all earlier records are given up: records of another epoch do not count */
    uint64_t epoch;
    uint8_t pool_id[16];
    uint8_t uuid[16]; /* the uuid of the tier */
    char name[KVP_NAME_MAX + 8]; /* the name of the node, NUL-terminated */
    uint64_t check;
} kvp_tier_super_t;

#define KVP_TIER_RUNS_MAX 32u

typedef struct {
    uint64_t magic;
    uint64_t epoch;
    uint64_t number; /* the number of the page, which rises for ever */
    uint64_t opened_ms; /* the time when the page was opened, in milliseconds since 1970 */
    /* the number of a page: when this header was written, all bytes before durable_at in that page were on the
     * device */
    uint64_t durable_page;
    uint32_t durable_at; /* the offset in the page durable_page; all earlier bytes were durable */
    uint32_t run; /* the number of runs in the page: each start of the node that writes to the page begins a run */
    uint32_t first; /* the offset from which on to search the first record that begins in this page */
    uint32_t table_at; /* the offset in this page of the table of the previous page */
    uint32_t table_bytes; /* the size of the table's record; 0 = there is no table */
    uint32_t has_torn; /* 1: some records were written only partly, so each start verifies the payloads */
    /* the offset at which each run began: later records with a lower run are leftovers */
    uint32_t runs_at[KVP_TIER_RUNS_MAX];
    uint64_t check;
} kvp_tier_page_t;

typedef enum {
    KVP_TIER_RECORD = 1,
    KVP_TIER_TOMBSTONE = 2, /* a tombstone hides all earlier records of the digest up to its version */
    /* a page's table: digest.lo is the page's number, the payload a kvp_tier_entry_t (with page 0) for each record */
    KVP_TIER_TABLE = 3,
} kvp_tier_kind_t;

/* The header of a record. It is followed by the key, the checksums (8 bytes for each 4 KiB of the payload, at a
 * multiple of 8), and the payload (at a multiple of 64). */
typedef struct {
    uint64_t epoch;
    uint32_t at; /* the record's offset in its page, in units of 64 bytes */
    uint16_t kind;
    uint16_t flags;
    kvp_digest_t digest;
    uint64_t version;
    uint64_t page; /* the number of the record's page */
    uint64_t len; /* the size of the record's payload in bytes */
    uint64_t sum; /* the checksum of the record's payload */
    uint64_t key_hash2;
    kvp_wire_lineage_t lineage;
    uint32_t tenant;
    uint32_t ns_epoch;
    uint32_t run;
    uint16_t key_len;
    uint16_t reserved; /* a reserved field, always 0 */
    uint64_t body_sum; /* the checksum of the stored key and of the stored block checksums */
    uint64_t check;
} kvp_tier_rec_t;

/* The place of a record, in the index and in tables. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version : 62;
    uint64_t kind : 2;
    uint64_t page : 20; /* the place of the page in the ring; only in the index */
    uint64_t at : 20; /* the record's offset in its page, in units of 64 bytes */
    uint64_t units : 21; /* the record's length on the device up to the next record, in units; 0 = empty entry */
    uint64_t reserved : 3;
} kvp_tier_entry_t;

_Static_assert(sizeof(kvp_tier_super_t) == 240, "device format");
_Static_assert(sizeof(kvp_tier_page_t) == 200, "device format");
_Static_assert(sizeof(kvp_tier_rec_t) == KVP_TIER_REC_BYTES, "device format");
_Static_assert(sizeof(kvp_tier_entry_t) == 32, "device format");

/* kvp_tier_geo divides a file of size_bytes (at least KVP_TIER_SIZE_MIN) into headers and pages. kvp_tier_header_off
 * returns the offset of a page's header in that run; the headers of two successive runs are in different blocks.
 * kvp_tier_page_off returns the offset of a page's bytes. */
void kvp_tier_geo(uint64_t size_bytes, kvp_tier_geo_t *geo_out);
uint64_t kvp_tier_header_off(const kvp_tier_geo_t *geo, uint64_t number, uint32_t run);
uint64_t kvp_tier_page_off(const kvp_tier_geo_t *geo, uint64_t number);

/* kvp_tier_super_seal sets the checksum of a superblock. kvp_tier_super_read verifies a superblock: OK; NOT_FOUND
 * (zeros), PROTO (not a kvpool file), VERSION (another format), CORRUPT. bytes has at least the size of the struct.
 * The page functions do the same for page headers; false: invalid, or of another epoch. */
void kvp_tier_super_seal(kvp_tier_super_t *super);
kvp_err_t kvp_tier_super_read(const void *bytes, kvp_tier_super_t *super_out) KVP_MUST_USE;
void kvp_tier_page_seal(kvp_tier_page_t *page);
bool kvp_tier_page_read(const void *bytes, uint64_t epoch, const kvp_tier_geo_t *geo, kvp_tier_page_t *page_out)
    KVP_MUST_USE;

/* The offsets of a record's payload and of its end from the beginning of the record. The end is a multiple of
 * KVP_TIER_UNIT. */
uint64_t kvp_tier_rec_payload(uint16_t key_len, uint64_t len);
uint64_t kvp_tier_rec_end(uint16_t key_len, uint64_t len);

/* kvp_tier_rec_build writes a whole record at dst except its check; it computes and sets body_sum, and sum if sum is
 * 0. kvp_tier_rec_seal sets the check, and writes the header to dst. */
void kvp_tier_rec_build(uint8_t *dst, kvp_tier_rec_t *rec, const void *key, const void *src);
void kvp_tier_rec_seal(uint8_t *dst, kvp_tier_rec_t *rec);

/* kvp_tier_rec_read verifies the header, key and checksums of a record. PROTO: not a record of the epoch. BUFFER_SMALL:
 * key and checksums are not all within len bytes. kvp_tier_rec_copy verifies the payload against the checksums, and
 * copies it to dst if dst is not NULL; false = a wrong checksum, and dst is undefined. */
kvp_err_t kvp_tier_rec_read(const uint8_t *bytes, uint64_t len, uint64_t epoch, kvp_tier_rec_t *rec_out) KVP_MUST_USE;
bool kvp_tier_rec_copy(const uint8_t *bytes, const kvp_tier_rec_t *rec, uint8_t *dst) KVP_MUST_USE;

/* kvp_tier_entry returns the entry of a record; page is the place of the page in the ring. */
kvp_tier_entry_t kvp_tier_entry(const kvp_tier_rec_t *rec, uint64_t page);
bool kvp_tier_entry_is_sane(const kvp_tier_entry_t *entry, const kvp_tier_geo_t *geo);

#endif
