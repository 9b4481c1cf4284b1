/* SPDX-License-Identifier: Apache-2.0
 * A segment's memory: how long its chunks are, what it takes, and how it goes under a reader that still maps it. */
#include "node/memory/segment.h"

#include "common/rlimits.h"
#include "tests/cases.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK_BYTES (32u << 20) /* so much that taking it away takes long enough to look */
#define CHUNKS 2u
#define SEALED_WORD 0x1234u
#define MIB (1ull << 20)
#define GIB (1ull << 30)

typedef struct {
    const uint8_t *payload[CHUNKS];
    const uint64_t *word[CHUNKS];
    const void *meta[CHUNKS];
    size_t meta_bytes;
    atomic_uint looks;
    atomic_bool is_over;
    unsigned zeros; /* reads that a reader would have accepted, of bytes that nobody wrote */
} reader_t;

static uint64_t
load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Copies as the shm transport does: word, payload, word again. */
static void *
read_on(void *arg)
{
    reader_t *r = arg;

    while (!atomic_load(&r->is_over)) {
        for (uint32_t i = 0; i < CHUNKS; i++) {
            bool was_sealed = load(r->word[i]) == SEALED_WORD;
            uint8_t byte = __atomic_load_n(r->payload[i], __ATOMIC_ACQUIRE);

            r->zeros += was_sealed && byte == 0 && load(r->word[i]) == SEALED_WORD;
        }
        atomic_fetch_add(&r->looks, 1);
    }
    return NULL;
}

/* Fails if, while a segment goes, there is a moment at which payload is already taken away and its descriptor still
 * says SEALED. */
TEST(memory_becomes_unreadable_before_it_goes)
{
    kvp_node_mem_conf_t conf = {.size_bytes = (uint64_t)CHUNKS * CHUNK_BYTES, .chunk_bytes = CHUNK_BYTES};
    kvp_node_mem_t *mem;
    reader_t r = {0};
    pthread_t thread;

    assert_int_equal(kvp_node_mem_create(&conf, &mem), KVP_OK);
    assert_int_equal(mem->chunk_n, CHUNKS);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        kvp_node_chunk_t *c = &mem->chunks[i];

        memset(c->payload.addr, 1, CHUNK_BYTES);
        memcpy((uint8_t *)c->meta.addr + kvp_desc_off(0), &(uint64_t){SEALED_WORD}, sizeof(uint64_t));
        r.payload[i] = mmap(NULL, CHUNK_BYTES, PROT_READ, MAP_SHARED, c->payload.fd, 0);
        r.meta[i] = mmap(NULL, c->meta.len, PROT_READ, MAP_SHARED, c->meta.fd, 0);
        assert_ptr_not_equal(r.payload[i], MAP_FAILED);
        assert_ptr_not_equal(r.meta[i], MAP_FAILED);
        r.word[i] = (const uint64_t *)((const uint8_t *)r.meta[i] + kvp_desc_off(0));
        r.meta_bytes = c->meta.len;
    }
    assert_int_equal(pthread_create(&thread, NULL, read_on, &r), 0);
    while (atomic_load(&r.looks) == 0)
        usleep(100);
    kvp_node_mem_destroy(mem);
    atomic_store(&r.is_over, true);
    pthread_join(thread, NULL);
    assert_int_equal(r.zeros, 0);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        assert_int_equal(*r.word[i], 0);
        assert_int_equal(*r.payload[i], 0);
        munmap((void *)(uintptr_t)r.payload[i], CHUNK_BYTES);
        munmap((void *)(uintptr_t)r.meta[i], r.meta_bytes);
    }
}

/* Two of a chunk while it is served; none once it goes, for new memory takes as many before the old is taken away. */
TEST(memory_has_two_descriptors_a_chunk)
{
    kvp_node_mem_conf_t conf = {.size_bytes = 100 * KVP_NODE_CHUNK_MIN, .chunk_bytes = KVP_NODE_CHUNK_MIN};
    kvp_node_populate_t populate = {.has_thread = false};
    kvp_node_mem_t *mem;
    uint64_t had;

    assert_int_equal(kvp_node_populate_start(&populate, true), KVP_OK);
    had = kvp_limit_files().has;
    assert_int_equal(kvp_node_mem_create(&conf, &mem), KVP_OK);
    assert_int_equal(kvp_limit_files().has, had + 200);
    kvp_node_populate_begin(&populate, mem);
    kvp_node_populate_end(&populate);
    assert_int_equal(kvp_limit_files().has, had);
    kvp_node_populate_stop(&populate);
}

TEST(chunks_grow_with_the_memory)
{
    static const struct {
        uint64_t size, chunk;
    } cases[] = {
        {64 << 10, 16 * MIB},       {128 * MIB, 16 * MIB},    {256 * MIB, 16 * MIB},  {511 * MIB, 16 * MIB},
        {512 * MIB, 32 * MIB},      {4 * GIB - 1, 128 * MIB}, {4 * GIB, 256 * MIB},   {256 * GIB, 256 * MIB},
        {256 * GIB + 1, 512 * MIB}, {2048 * GIB, 2 * GIB},    {UINT64_MAX, 64 * GIB},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++)
        assert_int_equal(kvp_node_chunk_default(cases[i].size), cases[i].chunk);
}

TEST_MAIN()
