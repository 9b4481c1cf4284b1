/* SPDX-License-Identifier: Apache-2.0
 * Limits of the process: what it has is counted, and the soft limit of open files goes up to the hard one. */
#include "common/rlimits.h"
#include "tests/cases.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MORE 20

TEST(test_what_the_process_has_is_counted)
{
    kvp_limit_t files = kvp_limit_files(), maps = kvp_limit_maps();
    void *at[MORE];
    int fds[MORE];

    for (int i = 0; i < MORE; i++) {
        fds[i] = memfd_create("kvpool-test", MFD_CLOEXEC);
        assert_true(fds[i] >= 0);
        assert_int_equal(ftruncate(fds[i], 4096), 0);
        at[i] = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fds[i], 0);
        assert_true(at[i] != MAP_FAILED);
    }
    assert_int_equal(kvp_limit_files().has, files.has + MORE);
    assert_true(kvp_limit_maps().has >= maps.has + MORE);
    assert_true(maps.max == kvp_limit_maps_max() && maps.max > maps.has);
    for (int i = 0; i < MORE; i++) {
        munmap(at[i], 4096);
        close(fds[i]);
    }
    assert_int_equal(kvp_limit_files().has, files.has);
}

TEST(test_files_are_raised_to_the_hard_limit)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 256;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(kvp_limit_files().max, 256);
    kvp_limit_raise_files();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(limit.rlim_cur, limit.rlim_max);
}

TEST_MAIN()
