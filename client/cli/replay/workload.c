/* SPDX-License-Identifier: Apache-2.0
 * The generator keeps some conversations open. Each request is the next turn of one that it draws; a conversation that ends
 * is replaced by a new one. The last block of a chain is partly filled as a rule. It gets a new id each turn, since the
 * tokens of the next turn complete it to something else.
 */
#include "client/cli/replay/workload.h"

#include <stdlib.h>
#include <string.h>

#define PROMPTS 24u /* shared system prompts; the popularity falls with the number */
#define PROMPT_BLOCKS_MAX 9u
#define OPEN_CHATS 150u
#define CHAT_BLOCKS_MAX 64u /* the context window: a conversation ends when it is full */
#define MORE_TURNS_PERCENT 65u /* chance that a user goes on after an answer */
#define QUESTION_TOKENS_MAX 12000u
#define ANSWER_TOKENS_MAX 1500u
#define TURN_MS 130u /* from one request to the next */

typedef struct {
    uint64_t tokens; /* prompt, questions and answers so far */
    uint64_t full; /* complete blocks, whose ids stay */
    uint64_t ids[CHAT_BLOCKS_MAX];
} chat_t;

typedef struct {
    uint64_t random; /* state of splitmix64 */
    uint64_t next_id; /* the ids below it belong to prompts and to earlier blocks */
    chat_t chats[OPEN_CHATS];
} generator_t;

static uint64_t
draw(generator_t *g, uint64_t below)
{
    uint64_t x = g->random += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (x ^ x >> 31) % below;
}

/* Small numbers come more often than large ones, as in the lengths of questions. */
static uint64_t
draw_skewed(generator_t *g, uint64_t below)
{
    return draw(g, draw(g, below) + 1);
}

static void
begin_chat(generator_t *g, chat_t *chat)
{
    const uint64_t prompt = draw_skewed(g, PROMPTS);
    chat->full = 1 + prompt * 7 % PROMPT_BLOCKS_MAX;
    chat->tokens = chat->full * KVP_BLOCK_TOKENS;
    for (uint64_t b = 0; b < chat->full; b++)
        chat->ids[b] = prompt * PROMPT_BLOCKS_MAX + b;
}

/* play_turn makes the request: the user's text joins the conversation, then the answer does. */
static kvp_err_t
play_turn(generator_t *g, uint64_t now_ms, kvp_workload_t *workload)
{
    const uint64_t context = CHAT_BLOCKS_MAX * (uint64_t)KVP_BLOCK_TOKENS;
    chat_t *chat = &g->chats[draw(g, OPEN_CHATS)];
    kvp_request_t request = {.timestamp_ms = now_ms, .output_tokens = 1 + draw_skewed(g, ANSWER_TOKENS_MAX)};
    chat->tokens = kvp_min_u64(chat->tokens + 1 + draw_skewed(g, QUESTION_TOKENS_MAX), context);
    request.input_tokens = chat->tokens;
    request.ids_n = (chat->tokens + KVP_BLOCK_TOKENS - 1) / KVP_BLOCK_TOKENS;
    for (uint64_t b = chat->full; b < request.ids_n; b++)
        chat->ids[b] = g->next_id++;
    chat->full = chat->tokens / KVP_BLOCK_TOKENS;
    kvp_err_t err = kvp_workload_add(workload, &request, chat->ids);
    chat->tokens += request.output_tokens;
    if (draw(g, 100) >= MORE_TURNS_PERCENT || chat->tokens >= context) begin_chat(g, chat);
    return err;
}

kvp_err_t
kvp_workload_generate(kvp_workload_t *workload, uint64_t seed, size_t n)
{
    generator_t *g = calloc(1, sizeof(*g));
    if (g == NULL) return KVP_NOMEM;
    g->random = seed;
    g->next_id = PROMPTS * PROMPT_BLOCKS_MAX;
    for (uint32_t i = 0; i < OPEN_CHATS; i++)
        begin_chat(g, &g->chats[i]);
    kvp_err_t err = KVP_OK;
    for (size_t i = 0; i < n && err == KVP_OK; i++)
        err = play_turn(g, i * TURN_MS, workload);
    free(g);
    return err;
}

void
kvp_workload_fini(kvp_workload_t *workload)
{
    free(workload->requests);
    free(workload->ids);
    memset(workload, 0, sizeof(*workload));
}

/* grow makes room for n more members of size bytes; *array and *cap change only on success. */
static kvp_err_t
grow(void **array, size_t *cap, size_t used, size_t n, size_t size)
{
    if (used + n <= *cap) return KVP_OK;
    size_t want = kvp_max_u64(used + n, *cap * 2);
    void *grown = reallocarray(*array, want, size);
    if (grown == NULL) return KVP_NOMEM;
    *array = grown;
    *cap = want;
    return KVP_OK;
}

kvp_err_t
kvp_workload_add(kvp_workload_t *workload, const kvp_request_t *request, const uint64_t *ids)
{
    const size_t n = request->ids_n;
    if (n > KVP_REQUEST_BLOCKS_MAX || workload->ids_n + n > KVP_WORKLOAD_IDS_MAX) return KVP_LIMIT;
    void *requests = workload->requests, *chain = workload->ids;
    kvp_err_t err = grow(&requests, &workload->requests_cap, workload->requests_n, 1, sizeof(kvp_request_t));
    workload->requests = requests;
    if (err == KVP_OK) err = grow(&chain, &workload->ids_cap, workload->ids_n, n, sizeof(uint64_t));
    workload->ids = chain;
    if (err != KVP_OK) return err;

    kvp_request_t *to = &workload->requests[workload->requests_n++];
    *to = *request;
    to->ids_at = workload->ids_n;
    if (n > 0) memcpy(workload->ids + workload->ids_n, ids, n * sizeof(*ids));
    workload->ids_n += n;
    return KVP_OK;
}

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

kvp_err_t
kvp_workload_distinct(const kvp_workload_t *workload, size_t *distinct_out)
{
    const size_t n = workload->ids_n;
    size_t distinct = 0;
    uint64_t *sorted = malloc((n > 0 ? n : 1) * sizeof(*sorted));
    if (sorted == NULL) return KVP_NOMEM;
    if (n > 0) memcpy(sorted, workload->ids, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_value);
    for (size_t i = 0; i < n; i++)
        distinct += i == 0 || sorted[i] != sorted[i - 1];
    free(sorted);
    *distinct_out = distinct;
    return KVP_OK;
}

size_t
kvp_workload_longest(const kvp_workload_t *workload)
{
    size_t longest = 0;
    for (size_t i = 0; i < workload->requests_n; i++)
        longest = kvp_max_u64(longest, workload->requests[i].ids_n);
    return longest;
}
