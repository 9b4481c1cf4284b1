/* SPDX-License-Identifier: Apache-2.0
 * A KV-cache event as the conductor's index applies it: the common content of the events of vLLM, of SGLang and of the
 * standard KV events API. Texts and arrays are borrowed from the decoder, until its callback returns. */
#ifndef KVP_CONDUCTOR_BASE_EVENT_H
#define KVP_CONDUCTOR_BASE_EVENT_H

#include "common/base.h"

#include <string.h>

typedef struct {
    const char *at; /* characters of the text, without a terminator; NULL = the field is absent or null */
    size_t len;
} kvp_text_t;

static inline bool
kvp_text_is(kvp_text_t text, const char *is)
{
    return text.at != NULL && strlen(is) == text.len && memcmp(is, text.at, text.len) == 0;
}

/* Prefix that marks a cache salt in an engine's event, to tell the salt from other extra keys. */
#define KVP_SALT_TAG "dynamo-cache-salt:"

typedef enum { KVP_EVENT_STORED, KVP_EVENT_REMOVED, KVP_EVENT_CLEARED, KVP_EVENT_DIGEST } kvp_event_kind_t;

typedef struct {
    kvp_event_kind_t kind;
    const uint64_t *hashes; /* hashes of the n blocks: the engine's own, or a standard event's rolling hashes */
    uint32_t n;
    bool has_parent;
    uint64_t parent;
    const uint32_t *tokens;
    uint32_t tokens_n;
    uint32_t block_size; /* number of tokens in a block; 0 = the event does not say */
    uint32_t group;
    kvp_text_t medium, lora, spec_kind;
    /* a flag: the event states its salt, and an empty salt means that there is none; false: the event says nothing
     * about a salt */
    bool tells_salt;
    kvp_text_t salt; /* cache salt in an engine's event, which separates the caches of users */
    uint32_t outside_from; /* index of the first block that depends on more than tokens (an image); n = none does */

    bool is_standard; /* a flag: the event is one of the standard API; only such events set the fields below */
    uint64_t event_id;
    uint32_t base; /* depth of the first block in its prompt; KVP_DEPTH_UNKNOWN (conductor/index/index.h) = absent */
    kvp_text_t model, additional_salt, tenant, backend;
    bool has_rank;
    uint32_t dp_rank;
    kvp_text_t object_key; /* key of the pool's object, in a pool's event */
    /* KVP_EVENT_DIGEST: prefix of the keys; `hashes`: for n / 2 ranges of them first counts, then XORs of hashes */
    kvp_text_t key_prefix;
} kvp_event_t;

/* The reasons why an event, or a part of it, is skipped. X(name, text in the answer of GET /services). */
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
