/* SPDX-License-Identifier: Apache-2.0
 * Exported memory by key, for transports whose peers name memory by a number: tcp, and the transport `mem` of the
 * tests. A key is a random u64 that cannot be guessed. Each exported memory has one key for readers and another key
 * for writers. Any thread. */
#ifndef KVP_TRANSPORT_EXPORTS_H
#define KVP_TRANSPORT_EXPORTS_H

#include "transport/transport.h"
#include "common/base.h"

#include <pthread.h>

typedef struct {
    uint64_t key; /* the key of the exported memory; 0 = the slot is free */
    uint8_t *addr;
    uint64_t len;
    kvp_access_t access;
    const kvp_mr_t *mr; /* the region that owns the memory; only compared, never dereferenced */
} kvp_export_t;

typedef struct {
    pthread_rwlock_t lock; /* guards slots, slots_n and used; readers hold it only for a look-up */
    kvp_export_t *slots; /* hash table with open addressing; its size is a power of two */
    size_t slots_n;
    size_t used;
} kvp_exports_t;

kvp_err_t kvp_exports_init(kvp_exports_t *ex) KVP_MUST_USE;
void kvp_exports_fini(kvp_exports_t *ex);

/* kvp_exports_add makes a new random key for mr's memory. kvp_exports_del removes a key, and ignores an unknown key. */
kvp_err_t kvp_exports_add(kvp_exports_t *ex, const kvp_mr_t *mr, kvp_access_t access, uint64_t *key_out) KVP_MUST_USE;
void kvp_exports_del(kvp_exports_t *ex, uint64_t key);

/* kvp_exports_resolve translates a peer's (key, off, len) into a local address. NO_SEGMENT: unknown key. INVALID:
 * bytes outside of the memory, or write access with a reader's key. The caller must not use the address after the
 * region is deregistered. mr_out may be NULL. */
kvp_err_t kvp_exports_resolve(kvp_exports_t *ex, uint64_t key, uint64_t off, uint64_t len, kvp_access_t access,
                              uint8_t **at_out, const kvp_mr_t **mr_out) KVP_MUST_USE;

/* kvp_exports_token makes a token that contains the key as 8 bytes. kvp_exports_token_key returns the key of a token,
 * or INVALID for a token of another length. */
void kvp_exports_token(uint64_t key, kvp_token_t *token_out);
kvp_err_t kvp_exports_token_key(const kvp_token_t *token, uint64_t *key_out) KVP_MUST_USE;

#endif
