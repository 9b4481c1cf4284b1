/* SPDX-License-Identifier: Apache-2.0
 * See key.h. The number of the run is at the end of the hash, so that an index that stores common prefixes only
 * once gains nothing from it. */
#include "tools/bench/key.h"

#include <string.h>

#define MODEL "Qwen/Qwen3-235B-A22B-Instruct/"
#define RANKS 8u
#define DIGITS 16u /* number of hex digits of a 64-bit word */

static uint64_t
mix_u64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static char *
write_hex(char *to, uint64_t word)
{
    static const char digits[] = "0123456789abcdef";
    for (unsigned i = 0; i < DIGITS; i++)
        *to++ = digits[word >> (60 - 4 * i) & 15];
    return to;
}

void
kvp_bench_key_write(char *dst, size_t len, uint64_t run, uint64_t number)
{
    char tail[] = "@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@";
    const size_t model = len - (sizeof(tail) - 1) - 4 * DIGITS;
    tail[strlen("@tp_rank:")] = (char)('0' + number % RANKS);
    for (size_t i = 0; i < model; i++)
        dst[i] = MODEL[i % (sizeof(MODEL) - 1)];
    memcpy(dst + model, tail, sizeof(tail) - 1);
    char *at = dst + model + sizeof(tail) - 1;
    uint64_t word = mix_u64(run ^ mix_u64(number));
    for (unsigned i = 0; i < 3; i++, word = mix_u64(word))
        at = write_hex(at, word);
    write_hex(at, run);
}

const char *
kvp_bench_run_text(uint64_t run, char dst[KVP_BENCH_RUN_TEXT])
{
    *write_hex(dst, run) = '\0';
    return dst;
}

bool
kvp_bench_is_absent(uint64_t object, double share)
{
    return (double)(mix_u64(object) >> 11) * 0x1p-53 < share;
}

void
kvp_bench_shuffle(uint32_t *order, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        const size_t j = mix_u64(seed + i) % (i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}
