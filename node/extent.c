/* SPDX-License-Identifier: Apache-2.0
 * Storing an object in an extent of the node's own memory, for the orders STAGE and COPY. The control thread does all
 * of it, so a RETIRE is obeyed before or after each function, and no byte is stored to a retired extent. */
#include "node/priv.h"

#include "transport/local.h"

#include <string.h>

static bool
is_key_in_place(const kvp_node_chunk_t *c, const kvp_wire_stage_t *at, uint16_t key_len)
{
    uint64_t key_at = (uint64_t)at->key_off * 64;

    if (key_len <= KVP_KEY_CELL_BYTES) return at->key_off == kvp_key_cell_units(&c->geo, at->slot);
    return key_at >= c->geo.long_keys_off && key_at + key_len <= c->geo.meta_bytes;
}

static uint8_t *
word_of(const kvp_node_t *node, const kvp_wire_stage_t *at)
{
    return (uint8_t *)node->mem->chunks[at->chunk].meta.addr + kvp_desc_off(at->slot);
}

bool
kvp_node_extent_begin(kvp_node_t *node, const kvp_wire_stage_t *at, uint16_t key_len)
{
    const kvp_node_chunk_t *c = at->chunk < node->mem->chunk_n ? &node->mem->chunks[at->chunk] : NULL;

    if (c == NULL || at->slot >= c->geo.slots_max || at->offset > c->payload.len ||
        at->len > c->payload.len - at->offset || !is_key_in_place(c, at, key_len))
        return false;
    return kvp_word_publish(word_of(node, at), kvp_word_make(at->generation, KVP_DESC_WRITING)) == KVP_OK;
}

bool
kvp_node_extent_store(kvp_node_t *node, const kvp_wire_stage_t *at, uint64_t from, const void *bytes, uint64_t len)
{
    if (kvp_word_load(word_of(node, at)) != kvp_word_make(at->generation, KVP_DESC_WRITING)) return false;
    memcpy((uint8_t *)node->mem->chunks[at->chunk].payload.addr + at->offset + from, bytes, len);
    return true;
}

bool
kvp_node_extent_seal(kvp_node_t *node, const kvp_wire_stage_t *at, const kvp_desc_t *desc, const void *key)
{
    uint8_t *line = word_of(node, at);

    if (kvp_word_load(line) != kvp_word_make(at->generation, KVP_DESC_WRITING)) return false;
    memcpy((uint8_t *)node->mem->chunks[at->chunk].meta.addr + (uint64_t)at->key_off * 64, key, desc->key_len);
    memcpy(line + sizeof desc->word, (const uint8_t *)desc + sizeof desc->word, sizeof *desc - sizeof desc->word);
    return kvp_word_publish(line, kvp_word_make(at->generation, KVP_DESC_SEALED)) == KVP_OK;
}
