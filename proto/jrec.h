/* SPDX-License-Identifier: Apache-2.0
 * The records of a master's log. Little-endian, naturally aligned, without padding, one directly after the other; see
 * PROTOCOL "Journal". Each record's checksum also covers the previous record's checksum. So if a log is cut and
 * continued, old bytes after the cut are not taken for its continuation. */
#ifndef KVP_PROTO_JREC_H
#define KVP_PROTO_JREC_H

#include "common/hash.h"
#include "proto/wire.h"

#define KVP_JOURNAL_MAGIC 0x32304c524a50564bull /* the bytes "KVPJRL02" */
#define KVP_JREC_MAX 2048u /* most bytes of a record, also of record kinds that later versions add */

typedef enum {
    KVP_JREC_BASE = 1, /* record kind, a kvp_jrec_term_t: the records from here to WHOLE describe the complete state */
    KVP_JREC_WHOLE = 2, /* record kind, a kvp_jrec_t: ends the records that describe the complete state */
    KVP_JREC_TERM = 3, /* record kind, a kvp_jrec_term_t: the master of a new term continues the log */
    /* kvp_jrec_commit_t: a version of an object is committed at these places, and replaces all other versions of its
     * key */
    KVP_JREC_COMMIT = 4,
    /* kvp_jrec_gone_t: no version of the key up to the record's version exists any more. If the memory with the version
     * was lost (KVP_GONE_LOST), the version may return with the memory. */
    KVP_JREC_GONE = 5,
    KVP_JREC_TENANT = 6, /* kvp_jrec_tenant_t: the tenant's name and its bumps */
    KVP_JREC_SEGMENT = 7, /* record kind, a kvp_jrec_segment_t: gives a segment the number for later records */
    KVP_JREC_SEGMENT_OVER = 8, /* record kind, a kvp_jrec_over_t: the segment has no objects any more */
    KVP_JREC_OLDEST = 9, /* record kind, a kvp_jrec_oldest_t: all puts below the record's generation have ended */
    /* record kind, a kvp_jrec_drain_t: a drain of a segment has begun, has changed, or has ended */
    KVP_JREC_DRAIN = 10,
} kvp_jrec_kind_t;

/* Why a version was removed from the log's state. */
typedef enum {
    KVP_GONE_REMOVED = 1,
    KVP_GONE_SUPERSEDED = 2,
    KVP_GONE_EVICTED = 3,
    KVP_GONE_LOST = 4, /* the memory with the version was lost */
} kvp_gone_t;

typedef struct {
    /* checksum of the record, computed while this field has the previous record's checksum; 0 in a BASE */
    uint64_t check;
    uint32_t bytes; /* length of the whole record in bytes; a multiple of 8 */
    uint32_t kind;
} kvp_jrec_t;

typedef struct {
    kvp_jrec_t head;
    uint64_t magic;
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term;
    uint32_t is_anew; /* flag of a BASE: earlier records are invalid at once; without the flag, once WHOLE follows */
} kvp_jrec_term_t;

#define KVP_JREC_TIER UINT32_MAX /* value of `chunk` for a copy on an SSD */
#define KVP_JREC_PLACES_MAX (KVP_REPLICAS_MAX + 1u)

/* The place of one copy of an object. A copy on an SSD is the last place of its record: its generation is the object's
 * version, its chunk is KVP_JREC_TIER, and its other fields are 0. */
typedef struct {
    uint64_t generation;
    uint64_t offset; /* offset of the payload in the chunk */
    uint32_t segment; /* number of the segment, from a SEGMENT record */
    uint32_t chunk;
    uint32_t slot;
    uint32_t key_off; /* offset of the key in the chunk's metadata, in units of 64 bytes */
} kvp_jrec_place_t;

#define KVP_JREC_PIN 0x03u /* bits of kvp_jrec_commit_t.flags with the object's kvp_pin_t */
#define KVP_JREC_LINEAGE 0x04u /* flag: a kvp_wire_lineage_t follows */
#define KVP_JREC_READ 0x08u /* flag of a GONE: the object was read since its put */
/* bits of kvp_jrec_commit_t.flags with the copy that is to be dropped, because the object was moved from it: its number
 * among the record's places, from 1; 0 = none */
#define KVP_JREC_LEAVING 0xf0u
#define KVP_JREC_LEAVING_SHIFT 4u

/* COMMIT. After the struct: places_n kvp_jrec_place_t; a kvp_wire_lineage_t if KVP_JREC_LINEAGE is set; the key's
 * bytes; and zeroes up to a multiple of 8. */
typedef struct {
    kvp_jrec_t head;
    kvp_digest_t digest;
    uint64_t version;
    uint64_t sum; /* checksum of the payload; 0 = none */
    uint64_t len; /* bytes of the payload */
    kvp_wire_group_t group; /* the object's group; digest 0 = no group */
    uint32_t tenant;
    uint16_t key_len;
    uint8_t flags; /* KVP_JREC_* flags; the other bits are 0 */
    uint8_t places_n;
} kvp_jrec_commit_t;

/* GONE. After the struct, if key_len is not 0: a kvp_wire_lineage_t if KVP_JREC_LINEAGE is set; the key's bytes; and
 * zeroes up to a multiple of 8. */
typedef struct {
    kvp_jrec_t head;
    kvp_digest_t digest;
    uint64_t version;
    uint32_t why; /* a kvp_gone_t */
    uint16_t key_len; /* length of the key in bytes; 0 = the record has no key */
    uint8_t flags; /* KVP_JREC_LINEAGE, KVP_JREC_READ; the other bits are 0 */
    uint8_t cause; /* cause of the departure, a kvp_cause_t, which is more exact than `why`; 0 = not recorded */
} kvp_jrec_gone_t;

typedef struct {
    kvp_jrec_t head;
    uint32_t tenant;
    uint32_t epoch;
    /* versions up to this one no longer belong to the tenant, which was bumped (BUMP); 0 = never bumped */
    uint64_t min_version;
    char name[136]; /* at most KVP_TENANT_NAME_MAX bytes, then zeroes; empty = the default tenant, or not known */
} kvp_jrec_tenant_t;

typedef struct {
    kvp_jrec_t head;
    uint64_t epoch;
    uint64_t size_bytes;
    uint64_t chunk_bytes; /* bytes of a chunk; 0 = the segment is on an SSD */
    uint8_t uuid[16];
    uint32_t number;
    uint32_t mounted_term; /* term in which the segment was mounted last */
    char name[136]; /* name and host_id have at most KVP_NAME_MAX bytes, then zeroes */
    char host_id[136];
} kvp_jrec_segment_t;

typedef struct {
    kvp_jrec_t head;
    uint32_t number;
    uint32_t reserved; /* always 0 */
} kvp_jrec_over_t;

/* OLDEST: all puts with a lower generation have ended, and the log has the end of each that committed. So a put with a
 * lower generation without an end in the log did not commit. */
typedef struct {
    kvp_jrec_t head;
    uint64_t generation;
} kvp_jrec_oldest_t;

#define KVP_JREC_DRAINING 0x1u /* flags of a DRAIN: the segment is being drained */
/* flag of a DRAIN: no object is evicted to make room for the segment's objects */
#define KVP_JREC_DRAIN_NO_EVICT 0x2u
#define KVP_JREC_DRAIN_UNTIL_MOUNT 0x4u /* flag of a DRAIN: the drain ends with the node's next mount */
#define KVP_JREC_DRAIN_SSD 0x8u /* flag of a DRAIN: objects that only the node's SSD has are moved, too */

typedef struct {
    kvp_jrec_t head;
    uint32_t number; /* number of the segment */
    uint32_t flags; /* KVP_JREC_DRAIN*; 0 = the drain has ended */
    uint64_t bytes_per_s; /* limit of the bytes that are moved in a second; 0 = the default */
} kvp_jrec_drain_t;

typedef union {
    kvp_jrec_t head;
    kvp_jrec_term_t term; /* of BASE and TERM */
    kvp_jrec_commit_t commit;
    kvp_jrec_gone_t gone;
    kvp_jrec_tenant_t tenant;
    kvp_jrec_segment_t segment;
    kvp_jrec_over_t over;
    kvp_jrec_oldest_t oldest;
    kvp_jrec_drain_t drain;
    uint8_t bytes[KVP_JREC_MAX];
} kvp_jrec_any_t;

_Static_assert(sizeof(kvp_jrec_term_t) == 56 && sizeof(kvp_jrec_commit_t) == 88 && sizeof(kvp_jrec_place_t) == 32 &&
                   sizeof(kvp_jrec_gone_t) == 48 && sizeof(kvp_jrec_tenant_t) == 168 && sizeof(kvp_jrec_over_t) == 24 &&
                   sizeof(kvp_jrec_oldest_t) == 24 && sizeof(kvp_jrec_drain_t) == 32 &&
                   sizeof(kvp_jrec_segment_t) == 336,
               "records of a log are a format");

/* kvp_jrec_seal sets the head of a record whose body is filled in. kind is the record's kind, and before the previous
 * record's checksum. Returns the record's own checksum. */
uint64_t kvp_jrec_seal(kvp_jrec_any_t *rec, kvp_jrec_kind_t kind, uint64_t before);

/* kvp_jrec_read decodes the record at bytes, which may be untrusted and unaligned; it writes only head.bytes bytes of
 * rec_out. OK with *used_out 0: the record is longer than len. CORRUPT: no record, or not the next record of this
 * log. VERSION: the checksum is correct, but this version of the software does not know the kind. */
kvp_err_t kvp_jrec_read(const void *bytes, size_t len, uint64_t before, kvp_jrec_any_t *rec_out, size_t *used_out)
    KVP_MUST_USE;

/* Functions that return the parts of a COMMIT after its struct: the places, the lineage (NULL = none), and the key. */
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

/* Functions that return the lineage (NULL = none) and the key of a GONE record that has a key. */
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
