/* SPDX-License-Identifier: Apache-2.0
 * The records of a master's journal. Little-endian, naturally aligned, no padding, one behind the other; PROTOCOL
 * "Journal". Each record's check covers the one before as well, so that behind a place where a journal was cut and
 * written on, what is left of the old bytes is not taken for its continuation.
 */
#ifndef KVP_PROTO_JREC_H
#define KVP_PROTO_JREC_H

#include "common/hash.h"

#define KVP_JOURNAL_MAGIC 0x31304c524a50564bull /* "KVPJRL01" */
#define KVP_JREC_MAX 256u /* bytes of a record, of kinds to come too */

typedef enum {
    KVP_JREC_BASE = 1, /* kvp_jrec_term_t: what follows, up to WHOLE, says all that is true there */
    KVP_JREC_WHOLE = 2, /* kvp_jrec_t */
    KVP_JREC_TERM = 3, /* kvp_jrec_term_t: another master goes on */
    KVP_JREC_COMMIT = 4, /* kvp_jrec_key_t: that version is committed, and no older one is any more */
    KVP_JREC_GONE = 5, /* kvp_jrec_key_t: no version up to that one is */
    KVP_JREC_BUMP = 6, /* kvp_jrec_bump_t: nothing of that tenant is that has a version up to that one */
} kvp_jrec_kind_t;

typedef struct {
    uint64_t check; /* sum of the record, with the check of the one before in this place; of BASE: 0 there */
    uint32_t bytes; /* of the whole record; a multiple of 8 */
    uint32_t kind;
} kvp_jrec_t;

typedef struct {
    kvp_jrec_t head;
    uint64_t magic;
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term;
    uint32_t is_anew; /* BASE: nothing that was said before it counts any more, even without a WHOLE */
} kvp_jrec_term_t;

typedef struct {
    kvp_jrec_t head;
    kvp_digest_t digest;
    uint64_t version;
} kvp_jrec_key_t;

typedef struct {
    kvp_jrec_t head;
    uint32_t tenant;
    uint32_t epoch;
    uint64_t min_version;
} kvp_jrec_bump_t;

typedef union {
    kvp_jrec_t head;
    kvp_jrec_term_t term; /* BASE, TERM */
    kvp_jrec_key_t key; /* COMMIT, GONE */
    kvp_jrec_bump_t bump;
} kvp_jrec_any_t;

_Static_assert(sizeof(kvp_jrec_term_t) == 56 && sizeof(kvp_jrec_key_t) == 40 && sizeof(kvp_jrec_bump_t) == 32,
               "records of a journal are a format");

/* kvp_jrec_seal completes a record of that kind, whose body is there; before is the check of the record before it.
 * Returns its own. */
uint64_t kvp_jrec_seal(kvp_jrec_any_t *rec, kvp_jrec_kind_t kind, uint64_t before);

/* kvp_jrec_read takes the record that begins at bytes, which come from anywhere and need no alignment. OK with *used_out
 * 0: it is longer than what is there. CORRUPT: it is none, or not the one that follows. VERSION: it is sound, and of a kind
 * that this version does not know. */
kvp_err_t kvp_jrec_read(const void *bytes, size_t len, uint64_t before, kvp_jrec_any_t *rec_out, size_t *used_out)
    KVP_MUST_USE;

#endif
