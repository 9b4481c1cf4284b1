/* SPDX-License-Identifier: Apache-2.0
 * Finds the hashes of a text's token blocks. The tokens come from an engine's /tokenize (vLLM has this path). Hashes
 * are cached, because a conversation is queried again and again. One thread makes all calls: a query waits without
 * a thread, so a hung server delays only the texts that were sent to it. A server's answer is parsed as it arrives
 * and never stored. */
#ifndef KVP_CONDUCTOR_ROUTER_TOKENS_H
#define KVP_CONDUCTOR_ROUTER_TOKENS_H

#include "common/buf.h"
#include "common/list.h"
#include "conductor/base/jsonscan.h"

#define KVP_TOKENIZER_URL_MAX 511u
#define KVP_TOKENIZED_BLOCKS_MAX (2u << 20) /* most blocks of a text that are hashed; later blocks are ignored */

typedef struct kvp_tokens kvp_tokens_t;

/* kvp_tokens_create starts the thread; NULL = no memory, no libcurl, no thread. kvp_tokens_stop fails all queries,
 * including later ones. kvp_tokens_destroy is called after that, when no caller is left. */
kvp_tokens_t *kvp_tokens_create(void);
void kvp_tokens_stop(kvp_tokens_t *t);
void kvp_tokens_destroy(kvp_tokens_t *t); /* frees all memory; NULL is legal */

typedef struct kvp_tokens_ask {
    const char *body; /* JSON with `prompt` or `messages`; the caller owns it, and must keep it until `done` */
    uint32_t block_size;
    uint64_t seed; /* seed of the blocks' hashes */
    char urls[2][KVP_TOKENIZER_URL_MAX + 1]; /* servers to ask, set by kvp_tokens_offer; "" = none */
    uint32_t under_way[2]; /* number of queries in progress at each server */
    uint32_t equal; /* number of offered servers with as few queries as urls[0], including it */
    /* callback on the thread, about 2 s after kvp_tokens_ask or earlier; the query is then the caller's again */
    void (*done)(struct kvp_tokens_ask *ask);
    bool is_ok;
    uint32_t tokens_n; /* if is_ok: number of the text's tokens */
    kvp_buf_t hashes; /* if is_ok: hashes (uint64_t) of the text's whole blocks; the caller frees them */
    char why[160]; /* reason of the failure, if not is_ok */

    kvp_list_t link; /* the fields from here on are private to tokens.c */
    struct kvp_tokens *tokens;
    struct kvp_tokens_call *calls[2];
    uint32_t asked; /* number of servers that were asked so far */
    uint64_t since_ns;
} kvp_tokens_ask_t;

/* kvp_tokens_find appends the cached hashes of the text. It returns false if the text is not in the cache. */
bool kvp_tokens_find(kvp_tokens_t *t, const char *body, uint32_t block_size, uint64_t seed, kvp_buf_t *hashes,
                     uint32_t *tokens_n_out);
/* kvp_tokens_offer is called for each available server, for a query that is zero at first. The query keeps the two
 * servers with the fewest queries in progress, and none that failed within the last 5 s. A server that failed
 * before gets one query at a time until it answers. */
void kvp_tokens_offer(kvp_tokens_t *t, kvp_tokens_ask_t *ask, const char *url);
/* kvp_tokens_ask asks the first server. It also asks the second one if the first fails, or has sent nothing to any
 * query for 300 ms; the first answer counts. It returns false, with the reason in `why`, if too many queries are
 * in progress, or after the stop. */
bool kvp_tokens_ask(kvp_tokens_t *t, kvp_tokens_ask_t *ask);

/* A streaming parser of an answer of /tokenize: {"tokens": [NUMBER, ...], ...}. */
typedef struct {
    kvp_jsonscan_t scan;
    uint32_t block_size;
    uint64_t seed;
    bool has_begun, is_failed;
    bool is_inside; /* a flag: the parser is inside the list of tokens */
    kvp_buf_t block; /* tokens (uint32_t) of the last block, which is not complete yet */
    uint32_t tokens_n;
    kvp_buf_t hashes; /* hashes (uint64_t) of the complete blocks of tokens */
} kvp_tokenized_t;

void kvp_tokenized_init(kvp_tokenized_t *r, uint32_t block_size, uint64_t seed);
/* parses the next bytes; false: malformed */
bool kvp_tokenized_feed(kvp_tokenized_t *r, const char *bytes, size_t len);
bool kvp_tokenized_is_whole(const kvp_tokenized_t *r);
void kvp_tokenized_fini(kvp_tokenized_t *r);

#endif
