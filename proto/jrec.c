/* SPDX-License-Identifier: Apache-2.0
 * Records of a master's journal: sealing, and reading what may be anything.
 */
#include "proto/jrec.h"

#include <string.h>

/* 0 = no kind that is known here. */
static size_t
bytes_of(uint32_t kind)
{
    switch (kind) {
    case KVP_JREC_BASE:
    case KVP_JREC_TERM:
        return sizeof(kvp_jrec_term_t);
    case KVP_JREC_WHOLE:
        return sizeof(kvp_jrec_t);
    case KVP_JREC_COMMIT:
    case KVP_JREC_GONE:
        return sizeof(kvp_jrec_key_t);
    case KVP_JREC_BUMP:
        return sizeof(kvp_jrec_bump_t);
    default:
        return 0;
    }
}

/* A journal may begin with a BASE, whatever was before it. */
static uint64_t
chained(uint32_t kind, uint64_t before)
{
    return kind == KVP_JREC_BASE ? 0 : before;
}

uint64_t
kvp_jrec_seal(kvp_jrec_any_t *rec, kvp_jrec_kind_t kind, uint64_t before)
{
    rec->head = (kvp_jrec_t){.check = chained(kind, before), .bytes = (uint32_t)bytes_of(kind), .kind = kind};
    rec->head.check = kvp_sum(rec, rec->head.bytes);
    return rec->head.check;
}

kvp_err_t
kvp_jrec_read(const void *bytes, size_t len, uint64_t before, kvp_jrec_any_t *rec_out, size_t *used_out)
{
    _Alignas(8) uint8_t copy[KVP_JREC_MAX];
    kvp_jrec_t head, *sealed = (kvp_jrec_t *)copy;

    *used_out = 0;
    if (len < sizeof head) return KVP_OK;
    memcpy(&head, bytes, sizeof head);
    if (head.bytes < sizeof head || head.bytes > KVP_JREC_MAX || head.bytes % 8 != 0) return KVP_CORRUPT;
    if (len < head.bytes) return KVP_OK;
    memcpy(copy, bytes, head.bytes);
    sealed->check = chained(head.kind, before);
    if (kvp_sum(copy, head.bytes) != head.check) return KVP_CORRUPT;
    if (bytes_of(head.kind) == 0) return KVP_VERSION;
    if (bytes_of(head.kind) != head.bytes) return KVP_CORRUPT;
    memcpy(rec_out, copy, head.bytes);
    rec_out->head.check = head.check;
    *used_out = head.bytes;
    return KVP_OK;
}
