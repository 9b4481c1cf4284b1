/* SPDX-License-Identifier: Apache-2.0
 * What machine and control groups allow, read from trees of files that the test makes. */
#include "common/ram.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ull << 30)

static char root[32];

static int
make_tree(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/kvp-ram-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int
drop_tree(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void
put_file(const char *path, const char *text)
{
    char command[1024];

    snprintf(command, sizeof command, "mkdir -p \"$(dirname %s/%s)\" && printf '%s\\n' > %s/%s", root, path, text, root,
             path);
    assert_int_equal(system(command), 0);
}

static kvp_ram_t
look(void)
{
    kvp_ram_t ram;

    put_file("proc/meminfo", "MemTotal: 16777216 kB\\nMemFree: 1 kB\\nMemAvailable: 8388608 kB");
    kvp_ram_look(root, &ram);
    return ram;
}

TEST_WITH(test_machine_alone, make_tree, drop_tree)
{
    kvp_ram_t ram = look();

    assert_true(ram.total_bytes == 16 * GIB && ram.available_bytes == 8 * GIB);
    assert_string_equal(ram.where, "this machine");
    kvp_ram_look("/nonexistent", &ram);
    assert_true(ram.total_bytes == UINT64_MAX && ram.available_bytes == UINT64_MAX);
}

/* The parent's limit is the lower one, and pages of files that its processes have read count as available. */
TEST_WITH(test_version_2_with_a_parent, make_tree, drop_tree)
{
    kvp_ram_t ram;

    put_file("proc/self/mountinfo", "25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate");
    put_file("proc/self/cgroup", "0::/kube/pod");
    put_file("sys/fs/cgroup/kube/pod/memory.max", "max");
    put_file("sys/fs/cgroup/kube/pod/memory.current", "4096");
    put_file("sys/fs/cgroup/kube/memory.max", "4294967296");
    put_file("sys/fs/cgroup/kube/memory.current", "3221225472");
    put_file("sys/fs/cgroup/kube/memory.stat", "anon 1\\ninactive_file 536870912\\nactive_file 536870912");
    ram = look();
    assert_true(ram.total_bytes == 4 * GIB && ram.available_bytes == 2 * GIB);
    assert_non_null(strstr(ram.where, "sys/fs/cgroup/kube"));
    put_file("sys/fs/cgroup/kube/pod/memory.high", "1073741824");
    ram = look();
    assert_true(ram.total_bytes == GIB && ram.available_bytes == GIB - 4096);
}

/* As a container sees it that has no name space of groups: its own group is what is mounted. */
TEST_WITH(test_version_1_in_a_container, make_tree, drop_tree)
{
    kvp_ram_t ram;

    put_file("proc/self/mountinfo", "30 1 0:31 /docker/ab /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\\n"
                                    "31 1 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory");
    put_file("proc/self/cgroup", "3:cpu:/docker/ab\\n4:memory:/docker/ab\\n0::/");
    put_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648");
    put_file("sys/fs/cgroup/memory/memory.usage_in_bytes", "2147483648");
    put_file("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\\ntotal_inactive_file 1073741824");
    ram = look();
    assert_true(ram.total_bytes == 2 * GIB && ram.available_bytes == GIB);
    put_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    ram = look();
    assert_true(ram.total_bytes == 16 * GIB && ram.available_bytes == 8 * GIB);
}

TEST_MAIN()
