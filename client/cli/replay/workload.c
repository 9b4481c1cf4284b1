/* SPDX-License-Identifier: Apache-2.0
 * The generator keeps a hundred or so conversations open, takes the one whose next turn is due first, plays the turn and
 * puts the conversation back with its think time, or begins a new one in its place. A chain's last block is partly
 * filled as a rule; it gets a new id each turn, since the next turn's tokens will complete it to something else.
 */
#include "client/cli/replay/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROMPTS 24u /* shared system prompts; popularity falls as 1 / rank */
#define PROMPT_BLOCKS_MAX 9u
#define OPEN_CHATS 150u
#define CHAT_BLOCKS_MAX 64u /* the context window: a conversation ends when it is full */
#define MORE_TURNS 0.65 /* chance that a user goes on after an answer */
#define THINK_MEAN_MS 60000.0
#define ARRIVAL_MEAN_MS 20000.0 /* from the end of a conversation to the start of the next one in its place */

typedef struct {
    uint64_t due_ms;
    uint64_t tokens; /* prompt, questions and answers so far */
    uint64_t full; /* complete blocks, whose ids stay */
    uint64_t ids[CHAT_BLOCKS_MAX];
} chat_t;

typedef struct {
    uint64_t random; /* state of splitmix64 */
    uint64_t next_id;
    uint64_t prompt_ids[PROMPTS][PROMPT_BLOCKS_MAX];
    uint32_t prompt_blocks[PROMPTS];
    double prompt_share[PROMPTS]; /* cumulative */
    chat_t chats[OPEN_CHATS];
} generator_t;

static uint64_t
draw(generator_t *g)
{
    uint64_t x = g->random += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* uniform is in (0, 1]: its logarithm exists. */
static double
uniform(generator_t *g)
{
    return ((double)(draw(g) >> 11) + 1) * 0x1p-53;
}

static double
exponential(generator_t *g, double mean)
{
    return -mean * log(uniform(g));
}

/* Token counts of chats are skewed: half are below the median, a few are many times as long. */
static uint64_t
lognormal(generator_t *g, double median, double sigma, uint64_t max)
{
    double normal = sqrt(-2 * log(uniform(g))) * cos(2 * M_PI * uniform(g));
    double value = median * exp(sigma * normal);
    return value < 1 ? 1 : value > (double)max ? max : (uint64_t)value;
}

static void
make_prompts(generator_t *g)
{
    double total = 0;
    for (uint32_t i = 0; i < PROMPTS; i++) {
        total += 1.0 / (i + 1);
        g->prompt_share[i] = total;
        g->prompt_blocks[i] = 1 + (uint32_t)(draw(g) % PROMPT_BLOCKS_MAX);
        for (uint32_t b = 0; b < g->prompt_blocks[i]; b++)
            g->prompt_ids[i][b] = g->next_id++;
    }
    for (uint32_t i = 0; i < PROMPTS; i++)
        g->prompt_share[i] /= total;
}

static void
begin_chat(generator_t *g, chat_t *chat, uint64_t after_ms)
{
    const double pick = uniform(g);
    uint32_t prompt = 0;
    while (prompt + 1 < PROMPTS && g->prompt_share[prompt] < pick)
        prompt++;
    chat->full = g->prompt_blocks[prompt];
    chat->tokens = chat->full * KVP_BLOCK_TOKENS;
    memcpy(chat->ids, g->prompt_ids[prompt], chat->full * sizeof(uint64_t));
    chat->due_ms = after_ms + (uint64_t)exponential(g, ARRIVAL_MEAN_MS);
}

static chat_t *
next_due(generator_t *g)
{
    chat_t *due = &g->chats[0];
    for (uint32_t i = 1; i < OPEN_CHATS; i++)
        if (g->chats[i].due_ms < due->due_ms) due = &g->chats[i];
    return due;
}

/* play_turn makes the request: the user's text joins the conversation, then the answer does. */
static kvp_err_t
play_turn(generator_t *g, chat_t *chat, kvp_workload_t *workload)
{
    const uint64_t context = CHAT_BLOCKS_MAX * (uint64_t)KVP_BLOCK_TOKENS;
    kvp_request_t request = {.timestamp_ms = chat->due_ms};
    request.output_tokens = lognormal(g, 250, 0.9, 4096);
    chat->tokens = kvp_min_u64(chat->tokens + lognormal(g, 1500, 1.2, 60000), context);
    request.input_tokens = chat->tokens;
    request.ids_n = (chat->tokens + KVP_BLOCK_TOKENS - 1) / KVP_BLOCK_TOKENS;
    for (uint64_t b = chat->full; b < request.ids_n; b++)
        chat->ids[b] = g->next_id++;
    chat->full = chat->tokens / KVP_BLOCK_TOKENS;
    kvp_err_t err = kvp_workload_add(workload, &request, chat->ids);
    if (err != KVP_OK) return err;

    chat->tokens += request.output_tokens;
    if (uniform(g) > MORE_TURNS || chat->tokens >= context)
        begin_chat(g, chat, chat->due_ms);
    else
        chat->due_ms += 20 * request.output_tokens + (uint64_t)exponential(g, THINK_MEAN_MS);
    return KVP_OK;
}

kvp_err_t
kvp_workload_generate(kvp_workload_t *workload, uint64_t seed, size_t n)
{
    generator_t *g = calloc(1, sizeof(*g));
    if (g == NULL) return KVP_NOMEM;
    g->random = seed;
    make_prompts(g);
    for (uint32_t i = 0; i < OPEN_CHATS; i++)
        begin_chat(g, &g->chats[i], 0);
    kvp_err_t err = KVP_OK;
    for (size_t i = 0; i < n && err == KVP_OK; i++)
        err = play_turn(g, next_due(g), workload);
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
