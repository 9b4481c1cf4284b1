/* SPDX-License-Identifier: Apache-2.0
 * Exported memory by key, for transports where a peer names memory with a number: tcp, and mem of
 * the tests. A key is a random u64 that cannot be guessed; each memory has one for readers and
 * another for writers. Any thread. */
#ifndef KVP_TRANSPORT_EXPORTS_H
#define KVP_TRANSPORT_EXPORTS_H

#include "transport/transport.h"
#include "common/base.h"

#include <pthread.h>

typedef struct {
    uint64_t key; /* 0 = free slot */
    uint8_t *addr;
    uint64_t len;
    kvp_access_t access;
    const kvp_mr_t *mr; /* the owning region; for comparison, never dereferenced */
} kvp_export_t;

typedef struct {
    pthread_rwlock_t lock; /* read-mostly: a reader holds it for a look-up only */
    kvp_export_t *slots; /* open addressing, a power of two; guarded by lock */
    size_t slots_n;
    size_t used;
} kvp_exports_t;

kvp_err_t kvp_exports_init(kvp_exports_t *ex) KVP_MUST_USE;
void kvp_exports_fini(kvp_exports_t *ex);

/* kvp_exports_add makes a new key for mr's memory. kvp_exports_del forgets it; unknown keys are ignored. */
kvp_err_t kvp_exports_add(kvp_exports_t *ex, const kvp_mr_t *mr, kvp_access_t access, uint64_t *key_out) KVP_MUST_USE;
void kvp_exports_del(kvp_exports_t *ex, uint64_t key);

/* kvp_exports_resolve turns a peer's (key, off, len) into an address: NO_SEGMENT for an unknown
 * key, INVALID for bytes outside of the range or for write access with a reader's key. The caller
 * must drop the address before the region is deregistered. mr_out may be NULL. */
kvp_err_t kvp_exports_resolve(kvp_exports_t *ex, uint64_t key, uint64_t off, uint64_t len, kvp_access_t access,
                              uint8_t **at_out, const kvp_mr_t **mr_out) KVP_MUST_USE;

/* Tokens of transports that use keys: the key's 8 bytes. kvp_exports_token_key gives INVALID for another length. */
void kvp_exports_token(uint64_t key, kvp_token_t *token_out);
kvp_err_t kvp_exports_token_key(const kvp_token_t *token, uint64_t *key_out) KVP_MUST_USE;

#endif
