/* SPDX-License-Identifier: Apache-2.0
 * An event in the index's form, independent of its source: the common content of vLLM's, SGLang's
 * and the standard's events. Texts and arrays are borrowed from the decoder, until the callback
 * returns. */
#ifndef KVP_CONDUCTOR_BASE_EVENT_H
#define KVP_CONDUCTOR_BASE_EVENT_H

#include "common/base.h"

#include <string.h>

typedef struct {
    const char *at; /* NULL = absent or null */
    size_t len;
} kvp_text_t;

static inline bool
kvp_text_is(kvp_text_t text, const char *is)
{
    return text.at != NULL && strlen(is) == text.len && memcmp(is, text.at, text.len) == 0;
}

/* Prefix of a salt where it has to differ from routers' and engines' keys. */
#define KVP_SALT_TAG "dynamo-cache-salt:"

typedef enum { KVP_EVENT_STORED, KVP_EVENT_REMOVED, KVP_EVENT_CLEARED, KVP_EVENT_DIGEST } kvp_event_kind_t;

typedef struct {
    kvp_event_kind_t kind;
    const uint64_t *hashes; /* the engine's own; of the standard's events rolling hashes */
    uint32_t n;
    bool has_parent;
    uint64_t parent;
    const uint32_t *tokens;
    uint32_t tokens_n;
    uint32_t block_size; /* 0 = absent */
    uint32_t group;
    kvp_text_t medium, lora, spec_kind;
    bool tells_salt; /* false: the event states no salt; true: an empty salt means none */
    kvp_text_t salt; /* of an engine's event */
    uint32_t outside_from; /* the first block that is not of tokens alone; n = none */

    bool is_standard; /* an event of the standard's envelope: */
    uint64_t event_id;
    uint32_t base; /* depth of the first block; KVP_DEPTH_UNKNOWN (conductor/index/index.h) = absent */
    kvp_text_t model, additional_salt, tenant, backend;
    bool has_rank;
    uint32_t dp_rank;
    kvp_text_t object_key; /* of a pool's events */
    kvp_text_t key_prefix; /* KVP_EVENT_DIGEST: of which keys; hashes are n / 2 counts, and as many sums */
} kvp_event_t;

/* Why an event, or a part of it, was not taken. X(name, text of /services). */
#define KVP_SKIPS(X)                                                                                                   \
    X(malformed, "not an event")                                                                                       \
    X(unknown_type, "of an unknown type")                                                                              \
    X(cache_kind, "of a kind of cache that is no prefix of tokens")                                                    \
    X(block_size, "of another block size than registered")                                                             \
    X(tokens, "tokens are not block size times hashes")                                                                \
    X(bigram, "token ids that are pairs")                                                                              \
    X(parent, "behind a block that was never told")                                                                    \
    X(salt, "of two salts, or of another salt than the block before")                                                  \
    X(medium, "of a medium whose name is longer than 64 bytes")                                                        \
    X(no_tokens, "hashes without tokens that no event told before")                                                    \
    X(too_many, "beyond a bound on media, groups, namespaces or blocks")                                               \
    X(foreign, "of another model, rank or backend than registered")                                                    \
    X(key, "of a pool's object whose key is no connector's, and that has no place in a sequence")

typedef enum {
#define KVP_SKIP_ENUM(name, text) KVP_SKIP_##name,
    KVP_SKIPS(KVP_SKIP_ENUM)
#undef KVP_SKIP_ENUM
        KVP_SKIPS_N
} kvp_skip_t;

#endif
