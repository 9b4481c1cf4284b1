/* SPDX-License-Identifier: Apache-2.0
 * The records of a master's log. Little-endian, naturally aligned, no padding, back to back; see
 * PROTOCOL "Journal". Each record's checksum covers the previous checksum as well: after a log was
 * cut and continued, leftover old bytes do not pass as its continuation. */
#ifndef KVP_PROTO_JREC_H
#define KVP_PROTO_JREC_H

#include "common/hash.h"
#include "proto/wire.h"

#define KVP_JOURNAL_MAGIC 0x32304c524a50564bull /* "KVPJRL02" */
#define KVP_JREC_MAX 2048u /* bytes of a record, of kinds to come too */

typedef enum {
    KVP_JREC_BASE = 1, /* kvp_jrec_term_t: the records up to WHOLE describe the whole state */
    KVP_JREC_WHOLE = 2, /* kvp_jrec_t */
    KVP_JREC_TERM = 3, /* kvp_jrec_term_t: another master goes on */
    /* kvp_jrec_commit_t: the version is committed with these places, and replaces every other
     * version of its key */
    KVP_JREC_COMMIT = 4,
    KVP_JREC_GONE = 5, /* kvp_jrec_gone_t: no version up to this version exists */
    KVP_JREC_TENANT = 6, /* kvp_jrec_tenant_t: its name, and its bumps */
    KVP_JREC_SEGMENT = 7, /* kvp_jrec_segment_t: places name it by its number from here on */
    KVP_JREC_SEGMENT_OVER = 8, /* kvp_jrec_over_t: the segment holds no object any more */
    KVP_JREC_OLDEST = 9, /* kvp_jrec_oldest_t: the log knows the end of every put below this generation */
} kvp_jrec_kind_t;

/* Why a version was removed. */
typedef enum {
    KVP_GONE_REMOVED = 1,
    KVP_GONE_SUPERSEDED = 2,
    KVP_GONE_EVICTED = 3,
    KVP_GONE_LOST = 4, /* with its memory */
} kvp_gone_t;

typedef struct {
    /* checksum of the record, computed with the checksum of the record before in this field; for
     * BASE with 0 */
    uint64_t check;
    uint32_t bytes; /* of the whole record; a multiple of 8 */
    uint32_t kind;
} kvp_jrec_t;

typedef struct {
    kvp_jrec_t head;
    uint64_t magic;
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term;
    uint32_t is_anew; /* BASE: all earlier records are invalid, even without a WHOLE */
} kvp_jrec_term_t;

#define KVP_JREC_TIER UINT32_MAX /* in `chunk` */
#define KVP_JREC_PLACES_MAX (KVP_REPLICAS_MAX + 1u)

/* The place of a copy. A copy on an SSD comes last; its generation is the version, its chunk
 * KVP_JREC_TIER, the rest 0. */
typedef struct {
    uint64_t generation;
    uint64_t offset; /* of its payload in the chunk */
    uint32_t segment; /* number of a SEGMENT */
    uint32_t chunk;
    uint32_t slot;
    uint32_t key_off; /* as in descriptors */
} kvp_jrec_place_t;

#define KVP_JREC_PIN 0x03u /* in flags of a COMMIT: kvp_pin_t */
#define KVP_JREC_LINEAGE 0x04u /* the object has a lineage */

/* After the struct: places_n kvp_jrec_place_t, with KVP_JREC_LINEAGE a kvp_wire_lineage_t, the
 * key's bytes, and zeroes up to a multiple of 8. */
typedef struct {
    kvp_jrec_t head;
    kvp_digest_t digest;
    uint64_t version;
    uint64_t sum; /* 0 = none */
    uint64_t len; /* payload bytes */
    kvp_wire_group_t group; /* digest 0 = none */
    uint32_t tenant;
    uint16_t key_len;
    uint8_t flags; /* KVP_JREC_*; other bits are 0 */
    uint8_t places_n;
} kvp_jrec_commit_t;

/* After the struct, if key_len is not 0: with KVP_JREC_LINEAGE a kvp_wire_lineage_t, the key's
 * bytes, and zeroes up to a multiple of 8. */
typedef struct {
    kvp_jrec_t head;
    kvp_digest_t digest;
    uint64_t version;
    uint32_t why; /* kvp_gone_t */
    uint16_t key_len; /* 0 = the record has no key */
    uint16_t flags; /* KVP_JREC_LINEAGE */
} kvp_jrec_gone_t;

typedef struct {
    kvp_jrec_t head;
    uint32_t tenant;
    uint32_t epoch;
    /* objects of versions up to this version no longer belong to the tenant; 0 = its epoch was
     * never bumped */
    uint64_t min_version;
    char name[136]; /* at most KVP_TENANT_NAME_MAX bytes, then zeroes; empty = the default one's, or unknown */
} kvp_jrec_tenant_t;

typedef struct {
    kvp_jrec_t head;
    uint64_t epoch;
    uint64_t size_bytes;
    uint64_t chunk_bytes; /* 0 = an SSD tier */
    uint8_t uuid[16];
    uint32_t number;
    uint32_t mounted_term; /* term of the last mount */
    char name[136]; /* these two: at most KVP_NAME_MAX bytes, then zeroes */
    char host_id[136];
} kvp_jrec_segment_t;

typedef struct {
    kvp_jrec_t head;
    uint32_t number;
    uint32_t reserved; /* 0 */
} kvp_jrec_over_t;

/* Puts of lower generations have ended, and the log has the end of each committed put: a lower
 * generation without an end in the log did not commit. */
typedef struct {
    kvp_jrec_t head;
    uint64_t generation;
} kvp_jrec_oldest_t;

typedef union {
    kvp_jrec_t head;
    kvp_jrec_term_t term; /* BASE, TERM */
    kvp_jrec_commit_t commit;
    kvp_jrec_gone_t gone;
    kvp_jrec_tenant_t tenant;
    kvp_jrec_segment_t segment;
    kvp_jrec_over_t over;
    kvp_jrec_oldest_t oldest;
    uint8_t bytes[KVP_JREC_MAX];
} kvp_jrec_any_t;

_Static_assert(sizeof(kvp_jrec_term_t) == 56 && sizeof(kvp_jrec_commit_t) == 88 && sizeof(kvp_jrec_place_t) == 32 &&
                   sizeof(kvp_jrec_gone_t) == 48 && sizeof(kvp_jrec_tenant_t) == 168 && sizeof(kvp_jrec_over_t) == 24 &&
                   sizeof(kvp_jrec_oldest_t) == 24 && sizeof(kvp_jrec_segment_t) == 336,
               "records of a log are a format");

/* kvp_jrec_seal completes a record of that kind whose body is filled in; before is the previous
 * record's checksum. Returns the record's own checksum. */
uint64_t kvp_jrec_seal(kvp_jrec_any_t *rec, kvp_jrec_kind_t kind, uint64_t before);

/* kvp_jrec_read decodes the record at bytes, which may be untrusted and unaligned; of rec_out only
 * head.bytes bytes are written. OK with *used_out 0: the record is longer than len. CORRUPT: no
 * record, or not the next record of this log. VERSION: the checksum is right, but this version does
 * not know the kind. */
kvp_err_t kvp_jrec_read(const void *bytes, size_t len, uint64_t before, kvp_jrec_any_t *rec_out, size_t *used_out)
    KVP_MUST_USE;

/* The parts of a COMMIT after its struct: its places, its lineage (NULL = none), and its key. */
static inline kvp_jrec_place_t *
kvp_jrec_places(kvp_jrec_any_t *rec)
{
    return (kvp_jrec_place_t *)(rec->bytes + sizeof rec->commit);
}
static inline kvp_wire_lineage_t *
kvp_jrec_lineage(kvp_jrec_any_t *rec)
{
    kvp_jrec_place_t *end = kvp_jrec_places(rec) + rec->commit.places_n;

    return (rec->commit.flags & KVP_JREC_LINEAGE) != 0 ? (kvp_wire_lineage_t *)end : NULL;
}
static inline uint8_t *
kvp_jrec_key(kvp_jrec_any_t *rec)
{
    kvp_wire_lineage_t *lineage = kvp_jrec_lineage(rec);

    return lineage != NULL ? (uint8_t *)(lineage + 1) : (uint8_t *)(kvp_jrec_places(rec) + rec->commit.places_n);
}

/* The same parts of a GONE with a key. */
static inline kvp_wire_lineage_t *
kvp_jrec_gone_lineage(kvp_jrec_any_t *rec)
{
    return (rec->gone.flags & KVP_JREC_LINEAGE) != 0 ? (kvp_wire_lineage_t *)(rec->bytes + sizeof rec->gone) : NULL;
}
static inline uint8_t *
kvp_jrec_gone_key(kvp_jrec_any_t *rec)
{
    kvp_wire_lineage_t *lineage = kvp_jrec_gone_lineage(rec);

    return lineage != NULL ? (uint8_t *)(lineage + 1) : rec->bytes + sizeof rec->gone;
}

#endif
