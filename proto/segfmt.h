/* SPDX-License-Identifier: Apache-2.0
 * The format of a chunk's metadata in memory. Little-endian, naturally aligned, without padding; byte tables in
 * PROTOCOL "Segments". Processes on this and on other hosts read these bytes, so the format has a version.
 *
 * A segment is a list of chunks. A chunk has two sealed memfds: payload, and metadata in this layout:
 *     superblock (4096) | descriptors (slots_max x 128) | key cells (slots_max x 128) | long keys
 * The metadata file gets its size once and is sparse: untouched slots take no memory. A key of at most 128 bytes is
 * in its slot's key cell. A longer key is in the long-key area at a place that the master allocates. */
#ifndef KVP_PROTO_SEGFMT_H
#define KVP_PROTO_SEGFMT_H

#include "common/base.h"
#include "common/hash.h"

#define KVP_SB_MAGIC 0x3130304c4f50564bull /* the bytes "KVPOL001" */
#define KVP_SB_VERSION 3u
#define KVP_SB_BYTES 4096u
#define KVP_DESC_BYTES 128u
#define KVP_DESC_LINE_BYTES 64u
#define KVP_KEY_CELL_BYTES 128u
/* number of memory files of a chunk: payload, metadata; a process may map each twice, to read and to write */
#define KVP_CHUNK_FILES 2u

/* kvp_extent_bytes returns the space of an extent of len bytes: len rounded up to kvp_extent_align_bytes, the extent's
 * alignment. It is 64, or 4096 if len rounded up to a multiple of 64 is 64 KiB or more. */
uint64_t kvp_extent_align_bytes(uint64_t len);
uint64_t kvp_extent_bytes(uint64_t len);

/* Superblock, at offset 0 of every chunk's metadata. */
typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t chunk; /* index of this chunk in its segment */
    uint8_t pool_id[16];
    uint8_t segment_uuid[16]; /* random id of the segment's memory, new each time a node creates the memory */
    uint64_t digest_seed;
    uint64_t epoch; /* epoch of the node incarnation that created the memory */
    uint64_t term; /* highest master term that the node has accepted */
    uint64_t chunk_bytes; /* payload bytes of this chunk */
    uint32_t slots_max;
    uint32_t reserved; /* always 0 */
    uint64_t keys_off; /* keys_off, long_keys_off: byte offsets of key cells and long keys in the metadata file */
    uint64_t long_keys_off;
    uint64_t meta_bytes;
    uint64_t check; /* XXH3-64 of the bytes before this field */
} kvp_superblock_t;

/* The tenant whose objects were put into the chunk last, at offset KVP_SB_OWNER_OFF of the metadata. Nothing reads it
 * there: the node's next process checks the superblock, and takes the owner from the keeper's book. */
#define KVP_SB_OWNER_OFF 2048u
typedef struct {
    /* the name, at most KVP_TENANT_NAME_MAX bytes, then zeroes; empty = the default tenant, or no tenant */
    char tenant[136];
    uint64_t check; /* XXH3-64 of the 136 bytes of the name */
} kvp_chunk_owner_t;

/* State of a slot's descriptor: the low two bits of its word. */
typedef enum {
    KVP_DESC_FREE = 0,
    KVP_DESC_WRITING = 1,
    KVP_DESC_SEALED = 2,
    KVP_DESC_DEAD = 3,
} kvp_desc_state_t;

#define KVP_DESC_PIN 3u /* mask in kvp_desc_t.flags of the object's kvp_pin_t (0 to 2): how eviction treats it */

/* A slot's descriptor describes its object. A reader checks only the first cache line; the second line is for recovery.
 * The fields except word are written while the word is WRITING, and do not change while it is SEALED. */
typedef struct {
    uint64_t word; /* generation << 2 | state; aligned, stored and loaded atomically */
    uint64_t version;
    kvp_digest_t digest;
    uint64_t key_hash2;
    uint64_t offset; /* offset of the payload in the chunk, in bytes */
    uint64_t len; /* bytes of the payload */
    uint64_t sum; /* XXH3-64 of the payload; 0 = none */

    uint32_t ns_epoch;
    uint32_t tenant;
    kvp_digest_t group;
    uint32_t group_n;
    uint32_t group_member;
    uint32_t key_off; /* offset of the key, in units of 64 bytes from the start of the metadata */
    uint16_t key_len;
    uint16_t flags; /* KVP_DESC_PIN; the other bits are 0 */
    uint64_t attempt;
    uint32_t term; /* term of the grant */
    uint32_t reserved; /* always 0 */
    uint64_t check; /* XXH3-64 of bytes 8 to 119 */
} kvp_desc_t;

_Static_assert(sizeof(kvp_desc_t) == KVP_DESC_BYTES, "descriptor is wire format");
_Static_assert(offsetof(kvp_desc_t, ns_epoch) == KVP_DESC_LINE_BYTES, "a reader checks one cache line");
_Static_assert(offsetof(kvp_superblock_t, check) == 112, "superblock is wire format");
_Static_assert(sizeof(kvp_chunk_owner_t) == 144, "a chunk's owner is wire format");

/* A generation: term (20 bits) << 42 | sequence number of the master (42 bits). No two grants of a pool have the same
 * generation, in any term. Generations increase, so the generation is also the version of the object that is written
 * at the place (the generation of the first copy, if there are several). */
#define KVP_GEN_SEQ_BITS 42
#define KVP_GEN_SEQ_MAX ((1ull << KVP_GEN_SEQ_BITS) - 1)
#define KVP_TERM_MAX ((1u << 20) - 1)

static inline uint64_t
kvp_gen_make(uint32_t term, uint64_t seq)
{
    return (uint64_t)term << KVP_GEN_SEQ_BITS | seq;
}

static inline uint64_t
kvp_gen_seq(uint64_t generation)
{
    return generation & KVP_GEN_SEQ_MAX;
}

static inline uint64_t
kvp_word_make(uint64_t generation, kvp_desc_state_t state)
{
    return generation << 2 | (uint64_t)state;
}

static inline uint64_t
kvp_word_generation(uint64_t word)
{
    return word >> 2;
}

static inline kvp_desc_state_t
kvp_word_state(uint64_t word)
{
    return (kvp_desc_state_t)(word & 3);
}

/* kvp_word_may_become is the only rule for a writer's stores to a descriptor's word: WRITING may replace any older
 * generation, and SEALED may replace WRITING of the same generation. The transports shm and tcp enforce it with a
 * compare-and-swap, so a delayed store of an old writer has no effect. */
static inline bool
kvp_word_may_become(uint64_t now, uint64_t next)
{
    if (kvp_word_state(next) == KVP_DESC_WRITING) return kvp_word_generation(now) < kvp_word_generation(next);
    if (kvp_word_state(next) == KVP_DESC_SEALED)
        return now == kvp_word_make(kvp_word_generation(next), KVP_DESC_WRITING);
    return false;
}

/* The layout of the metadata of a chunk with chunk_bytes of payload. A chunk has one slot for each 256 bytes of
 * payload, at least 64 and at most 2^24 slots. */
typedef struct {
    uint32_t slots_max;
    uint64_t keys_off;
    uint64_t long_keys_off;
    uint64_t long_keys_bytes;
    uint64_t meta_bytes;
} kvp_chunk_geo_t;
void kvp_chunk_geo(uint64_t chunk_bytes, kvp_chunk_geo_t *geo_out);

static inline uint64_t
kvp_desc_off(uint32_t slot)
{
    return KVP_SB_BYTES + (uint64_t)slot * KVP_DESC_BYTES;
}

/* kvp_key_cell_units returns the key_off (in units of 64 bytes) of the slot's own key cell. */
static inline uint32_t
kvp_key_cell_units(const kvp_chunk_geo_t *geo, uint32_t slot)
{
    return (uint32_t)((geo->keys_off + (uint64_t)slot * KVP_KEY_CELL_BYTES) / 64);
}

void kvp_sb_seal(kvp_superblock_t *sb); /* computes sb->check */
/* kvp_sb_verify checks a superblock of untrusted bytes. PROTO: a wrong magic, checksum or layout; VERSION: another
 * version of the format. */
kvp_err_t kvp_sb_verify(const void *bytes, size_t len, kvp_superblock_t *sb_out) KVP_MUST_USE;

void kvp_desc_seal(kvp_desc_t *desc); /* computes desc->check */
/* kvp_desc_verify checks a descriptor of untrusted bytes. PROTO: a wrong checksum, or a field that breaks the rules of
 * a chunk with this layout. */
kvp_err_t kvp_desc_verify(const void *bytes, size_t len, const kvp_chunk_geo_t *geo, uint64_t chunk_bytes,
                          kvp_desc_t *desc_out) KVP_MUST_USE;

/* The master's answer about an extent, with which a reader compares the descriptor. */
typedef struct {
    uint64_t generation;
    uint64_t version;
    kvp_digest_t digest;
    uint64_t key_hash2;
    uint64_t offset;
    uint64_t len;
} kvp_expect_t;

/* kvp_desc_accept is rule 2 (docs/RULES.md): it returns whether a descriptor's first line, loaded after the last
 * payload byte, proves that the read bytes are the expected object. OK; STALE: not SEALED, or another generation,
 * version, place or digest; COLLISION: another key with the same digest. */
kvp_err_t kvp_desc_accept(const kvp_desc_t *line, const kvp_expect_t *expect) KVP_MUST_USE;

#endif
