/* SPDX-License-Identifier: Apache-2.0
 * Test contents that can be verified byte for byte. Every 8-byte word of a block depends on the block's id and on
 * the word's position. So a check detects bytes of another block, of another position or of no block. Filling and
 * checking are limited by the memory's speed only. Pure functions. */
#ifndef KVP_TOOLS_BASE_PATTERN_H
#define KVP_TOOLS_BASE_PATTERN_H

#include "common/base.h"

/* kvp_pattern_fill writes the test contents of the block `id`. Contents differ between salts, and so between runs. */
void kvp_pattern_fill(void *dst, size_t len, uint64_t salt, uint64_t id);

/* kvp_pattern_wrong returns the number of bytes that differ from the output of kvp_pattern_fill. */
uint64_t kvp_pattern_wrong(const void *src, size_t len, uint64_t salt, uint64_t id);

/* kvp_pattern_poison changes a word of every 64-byte line, so that a later check fails for each line that was not
 * overwritten. */
void kvp_pattern_poison(void *dst, size_t len);

#endif
