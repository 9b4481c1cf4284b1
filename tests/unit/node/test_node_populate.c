/* SPDX-License-Identifier: Apache-2.0
 * The populating thread: all of the memory, at nobody's cost but the time that it takes. */
#include "node/memory/segment.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define CHUNK_BYTES (64u << 20)
#define CHUNKS 2u
#define PAGE 4096u

typedef struct {
    kvp_node_populate_t populate;
    kvp_node_mem_t *mem;
} bench_t;

static bench_t *
start(void)
{
    kvp_node_mem_conf_t conf = {.size_bytes = (uint64_t)CHUNKS * CHUNK_BYTES, .chunk_bytes = CHUNK_BYTES};
    bench_t *b = calloc(1, sizeof *b);

    assert_non_null(b);
    assert_int_equal(kvp_node_mem_create(&conf, &b->mem), KVP_OK);
    assert_int_equal(kvp_node_populate_start(&b->populate, false), KVP_OK);
    return b;
}

static void
stop(bench_t *b)
{
    kvp_node_populate_end(&b->populate);
    kvp_node_populate_stop(&b->populate);
    free(b);
}

static void
await_all(bench_t *b)
{
    uint64_t end_ns = kvp_now_ns() + 60 * KVP_NS_PER_S; /* before Linux 5.14 nothing is populated ahead */

    while (atomic_load(&b->populate.populated_bytes) < b->mem->conf.size_bytes) {
        assert_true(kvp_now_ns() < end_ns);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

/* The priority of this process's thread of that name, as setpriority(2) counts. */
static int
nice_of(const char *name)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *entry;
    int nice = INT32_MIN;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char path[64], line[64] = "";
        FILE *f;

        snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", entry->d_name);
        f = fopen(path, "r");
        if (f == NULL) continue;
        if (fgets(line, sizeof line, f) != NULL) line[strcspn(line, "\n")] = '\0';
        fclose(f);
        if (strcmp(line, name) == 0) nice = getpriority(PRIO_PROCESS, (id_t)strtoul(entry->d_name, NULL, 10));
    }
    closedir(dir);
    assert_int_not_equal(nice, INT32_MIN); /* there is one */
    return nice;
}

TEST(test_every_page_is_populated)
{
    bench_t *b = start();
    unsigned char *is_there = malloc(CHUNK_BYTES / PAGE);

    assert_non_null(is_there);
    kvp_node_populate_begin(&b->populate, b->mem);
    await_all(b);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        assert_int_equal(mincore(b->mem->chunks[i].payload.addr, CHUNK_BYTES, is_there), 0);
        for (size_t page = 0; page < CHUNK_BYTES / PAGE; page++)
            assert_int_equal(is_there[page] & 1, 1);
    }
    free(is_there);
    stop(b);
}

/* Fails if the thread may be kept waiting by those who wait for what it holds: it ran at the lowest priority, and on
 * busy processors calls of the same process that map memory took seconds. */
TEST(test_its_priority_is_everybodys)
{
    bench_t *b = start();

    kvp_node_populate_begin(&b->populate, b->mem);
    await_all(b);
    assert_int_equal(nice_of("kvp-populate"), getpriority(PRIO_PROCESS, 0));
    stop(b);
}

/* Fails if it takes a processor for itself. It works half of the time at most; the last step alone has no rest behind
 * it. */
TEST(test_it_rests_as_long_as_it_works)
{
    bench_t *b = start();
    uint64_t began_ns = kvp_now_ns(), wall_ns, worked_ns;
    struct timespec cpu;
    clockid_t clock;

    assert_int_equal(pthread_getcpuclockid(b->populate.thread, &clock), 0);
    kvp_node_populate_begin(&b->populate, b->mem);
    await_all(b);
    assert_int_equal(clock_gettime(clock, &cpu), 0);
    wall_ns = kvp_now_ns() - began_ns;
    worked_ns = (uint64_t)cpu.tv_sec * KVP_NS_PER_S + (uint64_t)cpu.tv_nsec;
    assert_true(worked_ns <= wall_ns * 3 / 4);
    stop(b);
}

TEST_MAIN()
