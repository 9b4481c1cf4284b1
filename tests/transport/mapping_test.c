/* SPDX-License-Identifier: Apache-2.0
 * Mappings of memory files: where they lie, and that making their pages huge changes no byte under a writer. */
#include "transport/shm/mapping.h"
#include "tests/transport/suite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u
#define BYTES (8u * KVP_HUGE_BYTES)

static uint8_t *
map(int fd, size_t len)
{
    uint8_t *at = kvp_map_shared(fd, len, PROT_READ | PROT_WRITE);

    assert_non_null(at);
    return at;
}

TEST(test_map_lies_where_huge_pages_can)
{
    static const size_t lens[] = {PAGE, KVP_HUGE_BYTES - PAGE, KVP_HUGE_BYTES, KVP_HUGE_BYTES + PAGE, BYTES};
    uint8_t *mem;
    int fd = bench_memfd(BYTES, &mem);

    for (size_t i = 0; i < KVP_ARRAY_LEN(lens); i++) {
        uint8_t *at = map(fd, lens[i]);

        if (lens[i] >= KVP_HUGE_BYTES) assert_int_equal((uintptr_t)at % KVP_HUGE_BYTES, 0);
        at[0] = (uint8_t)(i + 1);
        at[lens[i] - 1] = (uint8_t)(i + 1);
        assert_int_equal(mem[0], i + 1);
        assert_int_equal(mem[lens[i] - 1], i + 1);
        assert_int_equal(munmap(at, lens[i]), 0);
    }
    munmap(mem, BYTES);
    close(fd);
}

static size_t
mappings_n(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    size_t n = 0;

    assert_non_null(f);
    for (int c; (c = getc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

TEST(test_map_leaves_nothing_behind)
{
    uint8_t *mem;
    int fd = bench_memfd(BYTES, &mem);
    size_t before;

    munmap(map(fd, BYTES), BYTES);
    before = mappings_n();
    for (int i = 0; i < 64; i++)
        munmap(map(fd, BYTES - PAGE), BYTES - PAGE);
    assert_int_equal(mappings_n(), before);
    assert_null(kvp_map_shared(-1, BYTES, PROT_READ));
    assert_int_equal(mappings_n(), before);
    munmap(mem, BYTES);
    close(fd);
}

typedef struct {
    uint64_t *words; /* a mapping of the writer's own */
    size_t n;
    _Atomic bool is_over;
    uint64_t rounds;
} writer_t;

static void *
write_on(void *arg)
{
    writer_t *w = arg;

    do {
        w->rounds++;
        for (size_t i = 0; i < w->n; i++)
            __atomic_store_n(&w->words[i], w->rounds ^ i, __ATOMIC_RELAXED);
    } while (!atomic_load(&w->is_over));
    return NULL;
}

/* The first half is written by another mapping meanwhile, the second holds what was there before, and holes. */
TEST(test_huge_pages_change_no_byte_under_a_writer)
{
    uint8_t *mem;
    int fd = bench_memfd(BYTES, &mem);
    uint8_t *at = map(fd, BYTES);
    writer_t w = {.words = (uint64_t *)map(fd, BYTES), .n = BYTES / 2 / sizeof(uint64_t)};
    bool is_hopeless = false;
    pthread_t thread;

    for (size_t off = BYTES / 2; off < BYTES; off += 3 * (size_t)PAGE)
        bench_fill(mem + off, 100, off);
    assert_int_equal(pthread_create(&thread, NULL, write_on, &w), 0);
    (void)kvp_make_huge(at, BYTES, &is_hopeless); /* false also where memory is short or broken up just now */
    atomic_store(&w.is_over, true);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < w.n; i++)
        assert_true(((uint64_t *)mem)[i] == (w.rounds ^ i));
    for (size_t off = BYTES / 2; off < BYTES; off += 3 * (size_t)PAGE) {
        assert_true(bench_holds(mem + off, 100, off));
        assert_int_equal(mem[off + 100], 0);
    }
    munmap(w.words, BYTES);
    munmap(at, BYTES);
    munmap(mem, BYTES);
    close(fd);
    if (is_hopeless) {
        print_message("this kernel has no huge pages for files: what is above held for small ones\n");
        skip();
    }
}

/* Fails if what is to be mapped ahead is not there throughout, of a length that is no multiple of what the kernel is
 * asked for at once, or if that a mapping is only read, or gone, is not told. */
TEST(test_touch_ahead_makes_all_of_it)
{
    enum { FIRST = 3, PAGES = 5 * KVP_HUGE_BYTES / PAGE + 7, ALL = BYTES / PAGE };
    unsigned char is_there[ALL];
    uint8_t *mem;
    int fd = bench_memfd(BYTES, &mem);
    uint8_t *at = map(fd, BYTES);
    uint8_t *read_only = kvp_map_shared(fd, BYTES, PROT_READ);

    assert_true(kvp_touch_ahead(at + FIRST * PAGE, PAGES * (size_t)PAGE, true));
    assert_int_equal(mincore(at, BYTES, is_there), 0);
    for (int i = FIRST; i < FIRST + PAGES; i++)
        assert_int_equal(is_there[i] & 1, 1);
    assert_true(kvp_touch_ahead(read_only, BYTES, false));
    assert_false(kvp_touch_ahead(read_only, BYTES, true));
    munmap(read_only, BYTES);
    assert_false(kvp_touch_ahead(read_only, BYTES, false));
    munmap(at, BYTES);
    munmap(mem, BYTES);
    close(fd);
}

TEST_MAIN()
