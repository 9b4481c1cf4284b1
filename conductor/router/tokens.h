/* SPDX-License-Identifier: Apache-2.0
 * Hashes of a text's blocks, by tokens from a replica's /tokenize (vLLM's server has this path).
 * They are cached, because a conversation is asked for again and again. A thread of its own asks: a
 * question waits without a thread, so a hung server delays only the texts that it was asked for. A
 * server's answer is read as it arrives and never stored. */
#ifndef KVP_CONDUCTOR_ROUTER_TOKENS_H
#define KVP_CONDUCTOR_ROUTER_TOKENS_H

#include "common/buf.h"
#include "common/list.h"
#include "conductor/base/jsonscan.h"

#define KVP_TOKENIZER_URL_MAX 511u
#define KVP_TOKENIZED_BLOCKS_MAX (2u << 20) /* of a text; the prefix of a longer text counts */

typedef struct kvp_tokens kvp_tokens_t;

/* NULL = no memory, no libcurl, no thread. kvp_tokens_stop fails all questions, and those that come
 * later; kvp_tokens_destroy after it, when no caller is left. */
kvp_tokens_t *kvp_tokens_create(void);
void kvp_tokens_stop(kvp_tokens_t *t);
void kvp_tokens_destroy(kvp_tokens_t *t); /* NULL is legal */

typedef struct kvp_tokens_ask {
    const char *body; /* JSON with `prompt` or `messages`; the caller's, until done */
    uint32_t block_size;
    uint64_t seed; /* of the hashes */
    char urls[2][KVP_TOKENIZER_URL_MAX + 1]; /* the servers (kvp_tokens_offer); "" = none */
    uint32_t under_way[2]; /* questions at each server */
    uint32_t equal; /* offers equal to the first */
    void (*done)(struct kvp_tokens_ask *ask); /* on the thread of tokens, within 2 s: the ask is the caller's again */
    bool is_ok;
    uint32_t tokens_n; /* if is_ok: tokens of the text, */
    kvp_buf_t hashes; /* and uint64_t: of its whole blocks; the caller frees them */
    char why[160]; /* else */

    kvp_list_t link; /* the rest is ours */
    struct kvp_tokens *tokens;
    struct kvp_tokens_call *calls[2];
    uint32_t asked; /* servers of it */
    uint64_t since_ns;
} kvp_tokens_ask_t;

/* kvp_tokens_find appends the text's cached hashes. False: none. */
bool kvp_tokens_find(kvp_tokens_t *t, const char *body, uint32_t block_size, uint64_t seed, kvp_buf_t *hashes,
                     uint32_t *tokens_n_out);
/* kvp_tokens_offer is called for each available server of a question that is zero at first. The
 * two servers with the fewest questions under way are kept, and none that failed within the last
 * 5 s. A server that failed before gets one question at a time until it answers. */
void kvp_tokens_offer(kvp_tokens_t *t, kvp_tokens_ask_t *ask, const char *url);
/* kvp_tokens_ask asks the first server, and the second one where the first fails, or has sent
 * nothing at all for 300 ms, to this question or to others; the first answer counts. False: it is
 * not asked, and why is set: too many questions are under way, or it is stopped. */
bool kvp_tokens_ask(kvp_tokens_t *t, kvp_tokens_ask_t *ask);

/* The tokens of an answer, {"tokens": [NUMBER, ...], ...}, read as it arrives. */
typedef struct {
    kvp_jsonscan_t scan;
    uint32_t block_size;
    uint64_t seed;
    bool has_begun, is_failed;
    bool is_inside; /* of the list */
    kvp_buf_t block; /* uint32_t: tokens of the block that is not whole yet */
    uint32_t tokens_n;
    kvp_buf_t hashes; /* uint64_t: of the whole blocks */
} kvp_tokenized_t;

void kvp_tokenized_init(kvp_tokenized_t *r, uint32_t block_size, uint64_t seed);
bool kvp_tokenized_feed(kvp_tokenized_t *r, const char *bytes, size_t len); /* false: it has no tokens */
bool kvp_tokenized_is_whole(const kvp_tokenized_t *r);
void kvp_tokenized_fini(kvp_tokenized_t *r);

#endif
