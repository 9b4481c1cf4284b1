/* SPDX-License-Identifier: Apache-2.0
 * COPY: whether the bytes that were read from another node are the object's, and the descriptor of its copy. */
#include "node/core/node.h"

#include "proto/segfmt.h"

bool
kvp_node_copy_is_good(const kvp_wire_copy_t *rec, const kvp_desc_t *desc, const void *key, uint64_t sum)
{
    kvp_desc_t sealed = *desc;
    const bool is_word = kvp_word_make(rec->generation, KVP_DESC_SEALED) == desc->word && desc->version == rec->version;

    if (!is_word) return false;
    if (!kvp_digest_eq(desc->digest, rec->digest) || desc->offset != rec->offset || desc->len != rec->len) return false;
    if (desc->key_off != rec->key_off || desc->key_len != rec->key_len) return false;
    kvp_desc_seal(&sealed);
    if (sealed.check != desc->check) return false;
    return kvp_sum(key, rec->key_len) == rec->key_sum && (rec->sum == 0 || sum == rec->sum);
}

kvp_desc_t
kvp_node_copy_desc(const kvp_node_core_t *core, const kvp_wire_copy_t *rec, const kvp_desc_t *from)
{
    kvp_desc_t desc = *from;

    desc.version = rec->version;
    desc.offset = rec->to_offset;
    desc.key_off = rec->to_key_off;
    desc.attempt = 1; /* attempt 1 belongs to no client */
    desc.term = kvp_node_core_term(core);
    kvp_desc_seal(&desc);
    return desc;
}
