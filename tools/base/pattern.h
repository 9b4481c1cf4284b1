/* SPDX-License-Identifier: Apache-2.0
 * Contents that can be verified byte for byte. Every 8-byte word of a block depends on the block's
 * id and on its place in the block, so bytes of another block, of another place or of no block are
 * detected. Faster than memory. Pure. */
#ifndef KVP_TOOLS_BASE_PATTERN_H
#define KVP_TOOLS_BASE_PATTERN_H

#include "common/base.h"

/* kvp_pattern_fill writes the contents of block id. salt sets one run's contents apart from another's. */
void kvp_pattern_fill(void *dst, size_t len, uint64_t salt, uint64_t id);

/* kvp_pattern_wrong returns how many bytes differ from what fill writes. */
uint64_t kvp_pattern_wrong(const void *src, size_t len, uint64_t salt, uint64_t id);

/* kvp_pattern_poison spoils a word of every 64-byte line, so that a later check fails where nothing was written. */
void kvp_pattern_poison(void *dst, size_t len);

#endif
