/* SPDX-License-Identifier: Apache-2.0
 * The conductor's index by itself, in this process: its rates of events and look-ups and its memory, beside the rate
 * of random memory reads of this machine. `index_bench [BLOCKS]`, by default 10000000. Prints figures and checks no
 * limit. Blocks have 16 tokens, prompts 100 blocks, an event one block. */
#include "common/clock.h"
#include "common/log.h"
#include "conductor/events/apply.h"
#include "conductor/index/chain.h"
#include "conductor/index/match.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS 16u
#define PROMPT 100u
#define INSTANCES 64u
#define LONG 2000u
#define QUESTIONS 200000u
#define SAMPLES 20000u
#define BATCH 32u /* events in a payload */

typedef struct {
    kvp_epoch_t epoch;
    kvp_index_t *ix;
    kvp_spaces_t *spaces;
    kvp_roster_t *roster;
    kvp_view_t *views[INSTANCES];
    kvp_applier_t appliers[INSTANCES];
    uint64_t *hashes; /* of all prompts, PROMPT each */
    uint32_t prompts;
    _Atomic bool is_over;
    _Atomic uint64_t churned;
} rig_t;

static uint64_t
mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void
tokens_of(uint64_t prompt, uint32_t block, uint32_t *tokens)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = (uint32_t)mix(prompt * 1000003 + block * 31 + i) & 0xffff;
}

static uint64_t
engine_hash(uint64_t prompt, uint32_t block)
{
    return mix((prompt + 1) * 0x9e3779b97f4a7c15ull + block);
}

static void
store(rig_t *g, uint32_t who, uint64_t prompt, uint32_t block)
{
    uint64_t hash = engine_hash(prompt, block);
    uint32_t tokens[TOKENS];
    kvp_event_t ev = {.kind = KVP_EVENT_STORED,
                      .hashes = &hash,
                      .n = 1,
                      .tokens = tokens,
                      .tokens_n = TOKENS,
                      .outside_from = 1,
                      .tells_salt = true};

    tokens_of(prompt, block, tokens);
    ev.has_parent = block > 0;
    ev.parent = block > 0 ? engine_hash(prompt, block - 1) : 0;
    kvp_events_apply_one(&g->appliers[who], &ev);
}

static void
drop_one(rig_t *g, uint32_t who, uint64_t prompt, uint32_t block)
{
    uint64_t hash = engine_hash(prompt, block);
    kvp_event_t ev = {.kind = KVP_EVENT_REMOVED, .hashes = &hash, .n = 1};

    kvp_events_apply_one(&g->appliers[who], &ev);
}

static uint64_t
rss_bytes(void)
{
    unsigned long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (f != NULL) {
        if (fscanf(f, "%lu %lu", &size, &resident) != 2) resident = 0;
        fclose(f);
    }
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double
seconds(uint64_t since_ns)
{
    return (double)(kvp_now_ns() - since_ns) / 1e9;
}

/* ---- the measured operations */
/* Independent reads of words in as much memory as the index has: what its look-ups could be at
 * most, at two reads a block. */
static void
random_reads(uint64_t bytes)
{
    const uint64_t n = bytes / 8, reads = 50000000;
    uint64_t *words = malloc(n * 8), sum = 0, begun;

    if (words == NULL) return;
    memset(words, 1, n * 8);
    begun = kvp_now_ns();
    for (uint64_t i = 0; i < reads; i++)
        sum += words[(unsigned __int128)mix(i * 0x9e3779b97f4a7c15ull) * n >> 64];
    printf("random reads of %llu MiB: %.1f M/s (%llx)\n", (unsigned long long)(bytes >> 20),
           (double)reads / seconds(begun) / 1e6, (unsigned long long)sum & 15);
    free(words);
}

static void
ingest(rig_t *g)
{
    const uint64_t before = rss_bytes(), begun = kvp_now_ns();
    const double n = (double)g->prompts * PROMPT;

    for (uint32_t p = 0; p < g->prompts; p++) {
        for (uint32_t b = 0; b < PROMPT; b++)
            store(g, 0, p, b);
        if (p % 64 == 0) kvp_epoch_collect(&g->epoch);
    }
    printf("stored: %.2f M events/s; %.1f bytes a block and publisher (RSS)\n", n / seconds(begun) / 1e6,
           (double)(rss_bytes() - before) / n);
}

/* Removes and stores blocks again, in another order than the storing order. */
static void
churn(rig_t *g, uint64_t turns)
{
    for (uint64_t i = 0; i < turns && !atomic_load(&g->is_over); i++) {
        const uint32_t p = (uint32_t)(mix(i + 77) % g->prompts);

        for (uint32_t b = PROMPT; b-- > 0;)
            drop_one(g, 0, p, b);
        for (uint32_t b = 0; b < PROMPT; b++)
            store(g, 0, p, b);
        kvp_epoch_collect(&g->epoch);
        atomic_fetch_add(&g->churned, 2 * PROMPT);
    }
}

static uint64_t
question(rig_t *g, kvp_match_scratch_t *scratch, const uint64_t *hashes, uint32_t n)
{
    const kvp_question_t q = {.tenant = "t", .model = "m", .block_size = TOKENS, .space = 0, .hashes = hashes, .n = n};
    kvp_epoch_reader_t *reader = kvp_epoch_enter(&g->epoch);
    const kvp_answer_t *answers;
    uint64_t run = 0;
    uint32_t members;

    if (kvp_match(g->ix, g->roster, &q, scratch, &answers, &members))
        for (uint32_t i = 0; i < members; i++)
            run += answers[i].run;
    kvp_epoch_leave(reader);
    return run;
}

static void
look_up(rig_t *g, kvp_match_scratch_t *scratch)
{
    uint64_t found = 0, begun = kvp_now_ns();

    for (uint32_t i = 0; i < QUESTIONS; i++)
        found += question(g, scratch, g->hashes + mix(i) % g->prompts * PROMPT, PROMPT);
    printf("looked up: %.1f M blocks/s, of prompts of %u blocks at random, %.0f %% found\n",
           (double)QUESTIONS * PROMPT / seconds(begun) / 1e6, PROMPT,
           100.0 * (double)found / ((double)QUESTIONS * PROMPT));
}

static void
look_up_long(rig_t *g, kvp_match_scratch_t *scratch)
{
    static uint64_t hashes[LONG];
    uint32_t tokens[TOKENS];
    uint64_t begun, run = 0;

    for (uint32_t b = 0; b < LONG; b++) {
        tokens_of(1ull << 40, b, tokens);
        hashes[b] = kvp_chain_next(b == 0 ? NULL : &hashes[b - 1], tokens, TOKENS, 0);
        for (uint32_t i = 0; i < INSTANCES; i++)
            if (b < LONG - 10 * i) store(g, i, 1ull << 40, b);
    }
    begun = kvp_now_ns();
    for (uint32_t i = 0; i < 1000; i++)
        run += question(g, scratch, hashes, LONG);
    printf("looked up: %.1f us for %u blocks that %u instances hold (%llu blocks of runs)\n",
           seconds(begun) * 1e6 / 1000, LONG, INSTANCES, (unsigned long long)(run / 1000));
}

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static double
p99_us(rig_t *g, kvp_match_scratch_t *scratch)
{
    static uint64_t took[SAMPLES];

    for (uint32_t i = 0; i < SAMPLES; i++) {
        const uint64_t begun = kvp_now_ns();

        (void)question(g, scratch, g->hashes + mix(i + 5) % g->prompts * PROMPT, PROMPT);
        took[i] = kvp_now_ns() - begun;
    }
    qsort(took, SAMPLES, sizeof *took, by_value);
    return (double)took[SAMPLES * 99 / 100] / 1e3;
}

static void *
writer(void *arg)
{
    churn(arg, UINT64_MAX);
    return NULL;
}

static void
beside_a_writer(rig_t *g, kvp_match_scratch_t *scratch)
{
    const double idle = p99_us(g, scratch);
    uint64_t begun, churned;
    pthread_t thread;
    double busy;

    if (pthread_create(&thread, NULL, writer, g) != 0) return;
    begun = kvp_now_ns();
    churned = atomic_load(&g->churned);
    busy = p99_us(g, scratch);
    churned = atomic_load(&g->churned) - churned;
    printf("99th percentile of a question of %u blocks: %.1f us idle, %.1f us beside %.2f M events/s: %.2f times\n",
           PROMPT, idle, busy, (double)churned / seconds(begun) / 1e6, busy / idle);
    atomic_store(&g->is_over, true);
    pthread_join(thread, NULL);
    atomic_store(&g->is_over, false);
}

/* ---- from bytes */
static void
put_int(kvp_buf_t *out, uint64_t value)
{
    uint8_t bytes[9] = {0xcf};

    for (uint32_t i = 0; i < 8; i++)
        bytes[8 - i] = (uint8_t)(value >> 8 * i);
    if (value < 128)
        kvp_buf_append(out, &bytes[8], 1);
    else if (value < 65536)
        kvp_buf_append(out, (uint8_t[]){0xcd, bytes[7], bytes[8]}, 3);
    else
        kvp_buf_append(out, bytes, 9);
}

static void
put_text(kvp_buf_t *out, const char *text)
{
    const uint8_t head = (uint8_t)(0xa0 | strlen(text));

    kvp_buf_append(out, &head, 1);
    kvp_buf_append(out, text, strlen(text));
}

static void
put_event(kvp_buf_t *out, uint64_t prompt, uint32_t block)
{
    uint32_t tokens[TOKENS];

    tokens_of(prompt, block, tokens);
    kvp_buf_append(out, "\x87", 1);
    put_text(out, "type");
    put_text(out, "BlockStored");
    put_text(out, "block_hashes");
    kvp_buf_append(out, "\x91", 1);
    put_int(out, engine_hash(prompt, block));
    put_text(out, "parent_block_hash");
    if (block == 0)
        kvp_buf_append(out, "\xc0", 1);
    else
        put_int(out, engine_hash(prompt, block - 1));
    put_text(out, "token_ids");
    kvp_buf_append(out, "\xdc\x00\x10", 3);
    for (uint32_t i = 0; i < TOKENS; i++)
        put_int(out, tokens[i]);
    put_text(out, "block_size");
    put_int(out, TOKENS);
    put_text(out, "medium");
    put_text(out, "GPU");
    put_text(out, "extra_keys");
    kvp_buf_append(out, "\x91\xc0", 2);
}

static void
from_bytes(rig_t *g)
{
    const uint32_t payloads = 20000;
    uint64_t begun, bytes = 0;
    double spent = 0;
    kvp_buf_t out;

    kvp_buf_init(&out, 0);
    for (uint32_t i = 0; i < payloads; i++) {
        kvp_buf_reset(&out);
        kvp_buf_append(&out, "\x93\x00\xdc\x00\x20", 5);
        for (uint32_t b = 0; b < BATCH; b++)
            put_event(&out, (2ull << 40) + i, b);
        kvp_buf_append(&out, "\x00", 1);
        begun = kvp_now_ns();
        if (!kvp_events_apply(&g->appliers[1], out.data, out.len)) kvp_panic("a payload that is none");
        spent += seconds(begun);
        bytes += out.len;
        kvp_epoch_collect(&g->epoch);
    }
    printf("from bytes: %.2f M events/s (%.0f bytes each)\n", (double)payloads * BATCH / spent / 1e6,
           (double)bytes / ((double)payloads * BATCH));
    kvp_buf_fini(&out);
}

static void
open_rig(rig_t *g, uint64_t blocks)
{
    const kvp_namespace_t terms = {.model = "m", .tenant = "t", .salt = "", .lora = "", .block_size = TOKENS};
    static char names[INSTANCES][8];
    uint32_t tokens[TOKENS];

    g->prompts = (uint32_t)(blocks / PROMPT);
    g->hashes = malloc(g->prompts * (size_t)PROMPT * sizeof *g->hashes);
    if (g->hashes == NULL) kvp_panic("out of memory");
    for (uint64_t i = 0; i < (uint64_t)g->prompts * PROMPT; i++) {
        tokens_of(i / PROMPT, (uint32_t)(i % PROMPT), tokens);
        g->hashes[i] = kvp_chain_next(i % PROMPT == 0 ? NULL : &g->hashes[i - 1], tokens, TOKENS, 0);
    }
    kvp_epoch_init(&g->epoch);
    g->spaces = kvp_spaces_create(&g->epoch);
    g->ix = kvp_index_create(&g->epoch, g->spaces, 1, UINT32_MAX - 2);
    g->roster = calloc(1, sizeof *g->roster + INSTANCES * sizeof(kvp_roster_row_t));
    for (uint32_t i = 0; i < INSTANCES; i++) {
        snprintf(names[i], sizeof names[i], "i%02u", i);
        g->views[i] = kvp_view_create(g->ix, 1, UINT32_MAX);
        kvp_applier_init(&g->appliers[i], g->ix, g->spaces, g->views[i], &terms, 0, 0);
        g->roster->members[g->roster->n++] =
            (kvp_roster_row_t){names[i], "t", "m", TOKENS, 0, g->views[i], "", "", "", 0, {NULL}};
    }
}

int
main(int argc, char **argv)
{
    static rig_t g;
    const uint64_t blocks = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
    kvp_match_scratch_t *scratch = kvp_scratch_create();
    uint64_t begun;

    if (blocks < PROMPT || scratch == NULL) return 2;
    open_rig(&g, blocks);
    ingest(&g);
    random_reads(blocks * 40);
    look_up(&g, scratch);
    look_up_long(&g, scratch);
    begun = kvp_now_ns();
    churn(&g, 20000);
    printf("removed and stored: %.2f M events/s\n", 20000.0 * 2 * PROMPT / seconds(begun) / 1e6);
    from_bytes(&g);
    beside_a_writer(&g, scratch);
    return 0;
}
