/* SPDX-License-Identifier: Apache-2.0
 * Measures the payload share of a full pool: churn (bench/churn.h defines a step) with blocks of one size, of three
 * sizes, and of any length. One JSON line a mix. `alloc_bench [STEPS [MIX ...]]`, by default 1000000 steps of each
 * mix. A number of bytes in place of a mix's name means blocks of that size. */
#include "bench/churn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const churn_mix_t *const mixes[] = {&churn_one, &churn_three, &churn_any};

static void
run(const churn_mix_t *mix, uint64_t steps)
{
    const churn_conf_t conf = {.size_bytes = 4ull << 30, .chunk_bytes = 256ull << 20, .steps = steps, .seed = 7};
    churn_result_t r;

    churn_run(&conf, mix, &r);
    printf("{\"mix\": \"%s\", \"steps\": %llu, \"payload_least\": %.4f, \"payload_mean\": %.4f, \"metadata\": %.4f, "
           "\"free\": %.4f, \"puts\": %llu, \"evictions_per_put\": %.3f, \"rank_mean\": %.3f, \"young\": %.3f, "
           "\"put_ns\": %.0f}\n",
           mix->name, (unsigned long long)steps, r.least, r.mean, r.metadata, r.free, (unsigned long long)r.puts,
           (double)r.evictions / (double)r.puts, r.rank_mean, r.young, r.put_ns);
}

static void
run_named(const char *name, uint64_t steps)
{
    churn_mix_t blocks = {.name = name, .sizes = {strtoull(name, NULL, 10)}};

    for (size_t i = 0; i < KVP_ARRAY_LEN(mixes); i++) {
        if (strcmp(mixes[i]->name, name) != 0) continue;
        run(mixes[i], steps);
        return;
    }
    if (blocks.sizes[0] == 0) kvp_panic("no mix %s", name);
    run(&blocks, steps);
}

int
main(int argc, char **argv)
{
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 2; i < argc; i++)
        run_named(argv[i], steps);
    for (size_t i = 0; argc <= 2 && i < KVP_ARRAY_LEN(mixes); i++)
        run(mixes[i], steps);
    return 0;
}
