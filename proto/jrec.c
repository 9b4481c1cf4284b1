/* SPDX-License-Identifier: Apache-2.0
 * Records of a master's log: completing a record, and decoding untrusted bytes. */
#include "proto/jrec.h"

#include "proto/cause.h"
#include <string.h>

/* Returns the length of a record by its kind and body; 0 = unknown kind. */
static size_t
bytes_of(const kvp_jrec_any_t *rec, uint32_t kind)
{
    switch (kind) {
    case KVP_JREC_BASE:
    case KVP_JREC_TERM:
        return sizeof rec->term;
    case KVP_JREC_WHOLE:
        return sizeof rec->head;
    case KVP_JREC_COMMIT:
        return sizeof rec->commit + rec->commit.places_n * sizeof(kvp_jrec_place_t) +
               ((rec->commit.flags & KVP_JREC_LINEAGE) != 0 ? sizeof(kvp_wire_lineage_t) : 0) +
               (size_t)kvp_align_up(rec->commit.key_len, 8);
    case KVP_JREC_GONE:
        return sizeof rec->gone + ((rec->gone.flags & KVP_JREC_LINEAGE) != 0 ? sizeof(kvp_wire_lineage_t) : 0) +
               (size_t)kvp_align_up(rec->gone.key_len, 8);
    case KVP_JREC_TENANT:
        return sizeof rec->tenant;
    case KVP_JREC_SEGMENT:
        return sizeof rec->segment;
    case KVP_JREC_SEGMENT_OVER:
        return sizeof rec->over;
    case KVP_JREC_OLDEST:
        return sizeof rec->oldest;
    case KVP_JREC_DRAIN:
        return sizeof rec->drain;
    default:
        return 0;
    }
}

/* Returns the value that a record's field `check` has while its checksum is computed: the previous record's checksum; 0
 * for BASE, because a log may begin with a BASE whatever was before. */
static uint64_t
chain_check(uint32_t kind, uint64_t before)
{
    return kind == KVP_JREC_BASE ? 0 : before;
}

uint64_t
kvp_jrec_seal(kvp_jrec_any_t *rec, kvp_jrec_kind_t kind, uint64_t before)
{
    size_t bytes = bytes_of(rec, kind);

    rec->head = (kvp_jrec_t){.check = chain_check(kind, before), .bytes = (uint32_t)bytes, .kind = kind};
    rec->head.check = kvp_sum(rec, bytes);
    return rec->head.check;
}

static bool
is_text(const char *text, size_t room)
{
    size_t len = strnlen(text, room);

    return len > 0 && len <= KVP_NAME_MAX;
}

/* Checks the lengths and flags in a record against its size. The master's core checks the other values. */
static bool
is_well_formed(const kvp_jrec_any_t *rec)
{
    if (bytes_of(rec, rec->head.kind) != rec->head.bytes) return false;
    if (rec->head.kind == KVP_JREC_COMMIT)
        return rec->commit.key_len > 0 && rec->commit.key_len <= KVP_KEY_MAX && rec->commit.places_n > 0 &&
               rec->commit.places_n <= KVP_JREC_PLACES_MAX;
    if (rec->head.kind == KVP_JREC_GONE)
        return rec->gone.key_len <= KVP_KEY_MAX && (rec->gone.flags & ~(KVP_JREC_LINEAGE | KVP_JREC_READ)) == 0 &&
               rec->gone.cause < KVP_CAUSES_N && ((rec->gone.flags & KVP_JREC_LINEAGE) == 0 || rec->gone.key_len > 0);
    if (rec->head.kind == KVP_JREC_TENANT)
        return strnlen(rec->tenant.name, sizeof rec->tenant.name) <= KVP_TENANT_NAME_MAX;
    if (rec->head.kind == KVP_JREC_SEGMENT)
        return is_text(rec->segment.name, sizeof rec->segment.name) &&
               is_text(rec->segment.host_id, sizeof rec->segment.host_id);
    if (rec->head.kind == KVP_JREC_DRAIN)
        return rec->drain.flags == 0 || (rec->drain.flags & ~(KVP_JREC_DRAIN_NO_EVICT | KVP_JREC_DRAIN_UNTIL_MOUNT |
                                                              KVP_JREC_DRAIN_SSD)) == KVP_JREC_DRAINING;
    return true;
}

kvp_err_t
kvp_jrec_read(const void *bytes, size_t len, uint64_t before, kvp_jrec_any_t *rec_out, size_t *used_out)
{
    kvp_jrec_t head;

    *used_out = 0;
    if (len < sizeof head) return KVP_OK;
    memcpy(&head, bytes, sizeof head);
    if (head.bytes < sizeof head || head.bytes > KVP_JREC_MAX || head.bytes % 8 != 0) return KVP_CORRUPT;
    if (len < head.bytes) return KVP_OK;
    memcpy(rec_out, bytes, head.bytes);
    rec_out->head.check = chain_check(head.kind, before);
    if (kvp_sum(rec_out, head.bytes) != head.check) return KVP_CORRUPT;
    rec_out->head.check = head.check;
    if (head.kind == 0 || head.kind > KVP_JREC_DRAIN) return KVP_VERSION;
    /* is_well_formed reads the body's lengths, so the record must be long enough for its fixed part */
    if ((head.kind == KVP_JREC_COMMIT && head.bytes < sizeof rec_out->commit) ||
        (head.kind == KVP_JREC_GONE && head.bytes < sizeof rec_out->gone) || !is_well_formed(rec_out))
        return KVP_CORRUPT;
    *used_out = head.bytes;
    return KVP_OK;
}
