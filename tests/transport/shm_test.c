/* SPDX-License-Identifier: Apache-2.0
 * shm against the conformance suite, and what is its own: which memory it refuses, what a forked child sees. */
#include "tests/transport/suite.h"

#include "transport/shm/table.h"
#include "common/rlimits.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Memory whose owner could cut it off under our loads. */
SUITE_TEST(test_unsealed_or_short_memory_is_refused, "shm")
{
    bench_t *b = *state;
    kvp_token_t token = {.fd = memfd_create("kvpool-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    kvp_mem_t mem = {.len = 8192, .fd = token.fd};
    kvp_rseg_t *rseg;
    kvp_mr_t *mr;

    assert_true(token.fd >= 0);
    assert_int_equal(ftruncate(token.fd, 8192), 0);
    assert_int_equal(kvp_rseg_create(b->client, &token, 8192, KVP_ACCESS_READ, &rseg), KVP_INVALID);
    assert_int_equal(kvp_mr_create(b->server, &mem, &mr), KVP_INVALID);
    assert_int_equal(fcntl(token.fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(kvp_rseg_create(b->client, &token, 8192, KVP_ACCESS_READ, &rseg), KVP_INVALID);
    assert_int_equal(fcntl(token.fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    assert_int_equal(kvp_rseg_create(b->client, &token, 8193, KVP_ACCESS_READ, &rseg), KVP_INVALID);
    assert_int_equal(kvp_rseg_create(b->client, &token, 0, KVP_ACCESS_READ, &rseg), KVP_INVALID);
    assert_int_equal(kvp_rseg_create(b->client, &token, 8192, KVP_ACCESS_READ, &rseg), KVP_OK);
    kvp_rseg_destroy(rseg);
    close(token.fd);

    /* Sealed and long enough, but its pages come out of a store that may be empty. */
    token.fd = memfd_create("kvpool-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (token.fd >= 0) {
        assert_int_equal(ftruncate(token.fd, 2 << 20), 0);
        assert_int_equal(fcntl(token.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        assert_int_equal(kvp_rseg_create(b->client, &token, 8192, KVP_ACCESS_READ, &rseg), KVP_INVALID);
        close(token.fd);
    }

    token.fd = -1;
    assert_int_equal(kvp_rseg_create(b->client, &token, 8192, KVP_ACCESS_READ, &rseg), KVP_INVALID);
    token.fd = open("/dev/null", O_RDWR);
    assert_int_equal(kvp_rseg_create(b->client, &token, 8192, KVP_ACCESS_READ, &rseg), KVP_INVALID);
    close(token.fd);
}

SUITE_TEST(test_reader_gets_a_read_only_descriptor, "shm")
{
    bench_t *b = *state;
    kvp_token_t reader;
    kvp_token_t writer;
    struct stat st;

    assert_int_equal(b->ops->mr_export(b->mr, KVP_ACCESS_READ, BENCH_CLIENT, &reader), KVP_OK);
    assert_int_equal(b->ops->mr_export(b->mr, KVP_ACCESS_WRITE, BENCH_CLIENT, &writer), KVP_OK);
    assert_int_equal(fcntl(reader.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    assert_int_equal(fcntl(writer.fd, F_GETFL) & O_ACCMODE, O_RDWR);
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reader.fd, 0) == MAP_FAILED);
    /* Another user that was given it cannot open it again for writing. */
    assert_int_equal(fstat(reader.fd, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    close(reader.fd);
    close(writer.fd);
}

/* A node has many, and a process few. */
SUITE_TEST(test_memory_takes_no_descriptor_but_its_own, "shm")
{
    bench_t *b = *state;
    kvp_mem_t mem = {.addr = b->mem, .len = BENCH_BYTES, .fd = b->fd};
    uint64_t had = kvp_limit_files().has;
    kvp_token_t token;
    kvp_mr_t *mr;

    assert_int_equal(kvp_mr_create(b->server, &mem, &mr), KVP_OK);
    assert_int_equal(kvp_limit_files().has, had);
    assert_int_equal(b->ops->mr_export(mr, KVP_ACCESS_READ, BENCH_CLIENT, &token), KVP_OK);
    assert_int_equal(kvp_limit_files().has, had + 1);
    close(token.fd);
    kvp_mr_destroy(mr);
    assert_int_equal(kvp_limit_files().has, had);
}

SUITE_TEST(test_mapping_is_the_memory_itself_and_not_inherited, "shm")
{
    bench_t *b = *state;
    uint8_t *view = kvp_shm_rseg_addr(b->rd);
    unsigned char resident;
    int status;
    pid_t child;

    b->mem[BENCH_DATA] = 77;
    assert_int_equal(view[BENCH_DATA], 77);
    assert_int_equal(madvise(view, BENCH_BYTES, MADV_POPULATE_READ), 0);
    assert_int_equal(mincore(view, 4096, &resident), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(mincore(view, 4096, &resident) == 0 ? 1 : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int
main(void)
{
    return suite_run("shm") + run_cases(NULL, NULL);
}
