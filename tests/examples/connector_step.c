/* SPDX-License-Identifier: Apache-2.0
 * connector_step.c - does what an engine's connector does for one request, twice. The first request finds nothing,
 * computes all of its blocks and puts them. The second request finds them, reserves them and loads them.
 *
 * Two ranks hold one half of each block. The two halves are one group: the pool shows a block only when both halves
 * are there, and evicts both together. So all ranks see the same prefix.
 *
 *   cc connector_step.c -o connector_step $(pkg-config --cflags --libs kvpool)
 *   ./connector_step 127.0.0.1:50051 */
#include <kvpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 8
#define RANKS 2
#define HALF_BYTES ((size_t)64 << 10)
#define ITEMS (BLOCKS * RANKS)

static char block_names[BLOCKS][32], half_names[ITEMS][40];
static kvpool_key_t blocks[BLOCKS];
static kvpool_group_t groups[ITEMS];
static kvpool_iov_t pieces[ITEMS];
static kvpool_item_t halves[ITEMS];

static void
check_call(const char *call, int err)
{
    if (err == KVPOOL_OK) return;
    fprintf(stderr, "%s: %s\n", call, kvpool_strerror(err));
    exit(1);
}

/* name_blocks names the blocks of a prompt and their halves. An engine takes the names from the hashes of the tokens.
 */
static void
name_blocks(uint8_t *memory)
{
    for (uint32_t b = 0; b < BLOCKS; b++) {
        snprintf(block_names[b], sizeof block_names[b], "example/step/block-%u", b);
        blocks[b] = (kvpool_key_t){.data = block_names[b], .len = strlen(block_names[b])};
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            uint32_t i = b * RANKS + rank;

            snprintf(half_names[i], sizeof half_names[i], "%s/rank-%u", block_names[b], rank);
            groups[i] = (kvpool_group_t){.id = blocks[b], .members = RANKS, .member = rank};
            pieces[i] = (kvpool_iov_t){.addr = memory + i * HALF_BYTES, .len = HALF_BYTES};
            halves[i] = (kvpool_item_t){
                .key = {.data = half_names[i], .len = strlen(half_names[i])},
                .iov = &pieces[i],
                .iov_n = 1,
                .group = &groups[i],
            };
        }
    }
}

/* serve_request returns the number of blocks that it loaded. */
static uint32_t
serve_request(kvpool_t *pool, uint8_t *memory)
{
    int results[ITEMS];
    uint32_t loaded = 0;
    kvpool_lookup_t found;
    /* The reservation keeps the blocks of the prefix in the pool until they are loaded, for 5 s at most. */
    kvpool_opts_t of_groups = {.struct_size = sizeof of_groups, .flags = KVPOOL_GROUPS, .deadline_ms = 100};

    check_call("kvpool_longest_prefix", kvpool_longest_prefix(pool, blocks, BLOCKS, 5000, &of_groups, NULL, &found));
    if (found.granted > 0) {
        kvpool_opts_t in_time = {.struct_size = sizeof in_time, .deadline_ms = 500};
        uint32_t n = found.granted * RANKS;

        check_call("kvpool_batch_get", kvpool_batch_get(pool, halves, n, &in_time, results));
        /* A block that is not there in time only shortens the prefix. The engine computes it. */
        for (uint32_t i = 0; i < n && results[i] == KVPOOL_OK; i++)
            loaded = (i + 1) / RANKS;
    }
    check_call("kvpool_lookup_release", kvpool_lookup_release(pool, &found));

    if (loaded < BLOCKS) {
        uint32_t first = loaded * RANKS;

        memset(memory + first * HALF_BYTES, 1, (ITEMS - first) * HALF_BYTES); /* stands for the computation */
        check_call("kvpool_batch_put", kvpool_batch_put(pool, halves + first, ITEMS - first, NULL, results));
        /* A put that fails costs a later request the computation, and nothing else. */
        for (uint32_t i = first; i < ITEMS; i++)
            if (results[i - first] != KVPOOL_OK) fprintf(stderr, "put: %s\n", kvpool_strerror(results[i - first]));
    }
    printf("loaded %u blocks, computed %u\n", loaded, BLOCKS - loaded);
    return loaded;
}

int
main(int argc, char **argv)
{
    kvpool_conf_t conf = {.struct_size = sizeof conf, .master = argc > 1 ? argv[1] : NULL};
    uint8_t *memory = calloc(ITEMS, HALF_BYTES);
    kvpool_opts_t force = {.struct_size = sizeof force, .flags = KVPOOL_FORCE};
    kvpool_key_t keys[ITEMS];
    int results[ITEMS];
    kvpool_t *pool;

    if (memory == NULL) return 1;
    check_call("kvpool_open", kvpool_open(&conf, &pool));
    check_call("kvpool_register", kvpool_register(pool, memory, ITEMS * HALF_BYTES));
    name_blocks(memory);
    serve_request(pool, memory);
    memset(memory, 0, ITEMS * HALF_BYTES);
    uint32_t loaded = serve_request(pool, memory);

    for (int i = 0; i < ITEMS; i++)
        keys[i] = halves[i].key;
    check_call("kvpool_batch_remove", kvpool_batch_remove(pool, keys, ITEMS, &force, results));
    kvpool_free(pool);
    free(memory);
    return loaded == BLOCKS ? 0 : 1;
}
