/* SPDX-License-Identifier: Apache-2.0
 * Design note. A word is a sum and a shift of the seed and its index: cheap enough (vectors, no multiplication) to
 * check at the speed of a copy, and two words are equal by chance only. */
#include "tests/e2e/e2e_util.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define STEP 0x9e3779b97f4a7c15ull

uint64_t
e2e_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The second number of a thread's schedstat: how long it was ready to run and another had the processor. */
static uint64_t
waited_ns(void)
{
    static _Thread_local int fd = -2;
    char text[64];
    ssize_t n;
    unsigned long long ran, waited;

    if (fd == -2) fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = '\0';
    return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? waited : 0;
}

uint64_t
e2e_runnable_ns(void)
{
    uint64_t waited = waited_ns(), now, again;

    /* The processor may be taken between the two readings: then they do not belong together. */
    for (now = e2e_now_ns(); (again = waited_ns()) != waited; now = e2e_now_ns())
        waited = again;
    return now - waited;
}

/* The finalizer of splitmix64. */
static uint64_t
mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t
e2e_random(uint64_t *state)
{
    *state += STEP;
    return mix(*state);
}

uint64_t
e2e_hash(const void *key, size_t len)
{
    uint64_t h = 0xcbf29ce484222325ull;

    for (size_t i = 0; i < len; i++)
        h = (h ^ ((const uint8_t *)key)[i]) * 0x100000001b3ull;
    return mix(h);
}

static uint64_t
seed_of(uint64_t key_hash, uint64_t version, size_t len)
{
    return mix(key_hash + mix(version + mix(len)));
}

static inline uint64_t
word_at(uint64_t seed, size_t i)
{
    uint64_t x = seed + i * STEP;

    return x ^ (x >> 31);
}

void
e2e_fill(void *buf, size_t len, uint64_t key_hash, uint64_t version)
{
    const uint64_t seed = seed_of(key_hash, version, len);
    const size_t words = len / 8;
    uint64_t first = version ^ mix(key_hash), tail = word_at(seed, words);
    uint8_t *out = buf;

    for (size_t i = 0; i < words; i++) {
        uint64_t w = word_at(seed, i);
        memcpy(out + i * 8, &w, 8);
    }
    memcpy(out + words * 8, &tail, len % 8);
    memcpy(out, &first, len < 8 ? len : 8);
}

bool
e2e_check(const void *buf, size_t len, uint64_t key_hash, uint64_t *version_out, size_t *at_out)
{
    const uint8_t *in = buf;
    const size_t words = len / 8;
    uint64_t version, seed, w, bad = 0;

    *at_out = 0;
    *version_out = 0;
    if (len < E2E_MIN_BYTES) return false;
    memcpy(&version, in, 8);
    version ^= mix(key_hash);
    seed = seed_of(key_hash, version, len);
    *version_out = version;
    for (size_t i = 1; i < words; i++) {
        memcpy(&w, in + i * 8, 8);
        bad |= w ^ word_at(seed, i);
    }
    w = word_at(seed, words);
    if (bad == 0 && memcmp(in + words * 8, &w, len % 8) == 0) return true;
    for (size_t i = 1; i < words; i++) {
        memcpy(&w, in + i * 8, 8);
        *at_out = i * 8;
        if (w != word_at(seed, i)) return false;
    }
    *at_out = words * 8;
    return false;
}

size_t
e2e_size(uint64_t key_hash, uint64_t version, size_t min, size_t max)
{
    uint64_t r = mix(key_hash ^ mix(version));
    unsigned doublings = 0;
    size_t top;

    if (max <= min) return min;
    while (min << (doublings + 1) <= max)
        doublings++;
    top = min << (r % (doublings + 1));
    r = mix(r);
    /* Anything from half of it up, so that extents seldom have the same length. */
    return top == min ? min : top - r % (top / 2);
}

void *
e2e_alloc(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED) e2e_die("no memory for %zu bytes", len);
    return at;
}

void
e2e_die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(2);
}

void
e2e_json_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(to, "\\u%04x", (unsigned char)*text);
        else
            fputc(*text, to);
    }
    fputc('"', to);
}

void
e2e_count(e2e_counts_t *counts, int err)
{
    counts->by_err[err <= 0 && err > -E2E_ERRORS ? -err : E2E_ERRORS - 1]++;
}

void
e2e_json_counts(FILE *to, const e2e_counts_t *counts)
{
    const char *comma = "";

    fputc('{', to);
    for (int i = 0; i < E2E_ERRORS; i++) {
        if (counts->by_err[i] == 0) continue;
        fprintf(to, "%s\"%s\":%llu", comma, kvpool_errname(-i), (unsigned long long)counts->by_err[i]);
        comma = ",";
    }
    fputc('}', to);
}
