/* SPDX-License-Identifier: Apache-2.0
 * A compact store of keys, which are named by numbers. Keys of a pool share long prefixes and end in hexadecimal
 * digits (MODEL@...@group:G@HEX): a frequent prefix is stored once, and two digits take a byte. A key of 118 bytes
 * with 64 digits costs 36 bytes. A lineage is stored after its key and costs 20 bytes. Memory grows and shrinks with
 * the contents. */
#ifndef KVP_MASTER_CORE_CATALOG_KEYS_H
#define KVP_MASTER_CORE_CATALOG_KEYS_H

#include "proto/wire.h"

typedef struct kvp_keystore kvp_keystore_t;

/* kvp_keystore_create: seed is a secret, so that no peer can choose prefixes that collide in the hash tables. */
kvp_keystore_t *kvp_keystore_create(uint64_t seed);
void kvp_keystore_destroy(kvp_keystore_t *ks);

/* kvp_keystore_add stores a copy of the key (1 to KVP_KEY_MAX bytes of any value), and of its
 * lineage (NULL or unset: none), and returns its number, which is valid until kvp_keystore_del. */
uint32_t kvp_keystore_add(kvp_keystore_t *ks, const void *key, size_t len, const kvp_wire_lineage_t *lineage);
void kvp_keystore_del(kvp_keystore_t *ks, uint32_t ref);
uint16_t kvp_keystore_len(const kvp_keystore_t *ks, uint32_t ref);
bool kvp_keystore_equals(const kvp_keystore_t *ks, uint32_t ref, const void *key, size_t len);
/* kvp_keystore_copy writes the key to buf, of KVP_KEY_MAX bytes or more, and returns its length. */
uint16_t kvp_keystore_copy(const kvp_keystore_t *ks, uint32_t ref, uint8_t *buf);
/* returns the lineage that was stored with the key; a cleared struct = none */
kvp_wire_lineage_t kvp_keystore_lineage(const kvp_keystore_t *ks, uint32_t ref);
uint64_t kvp_keystore_memory_bytes(const kvp_keystore_t *ks);

#endif
