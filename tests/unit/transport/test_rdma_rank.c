/* SPDX-License-Identifier: Apache-2.0
 * Which adapter is near to what, by a tree that looks like sysfs; and which of ours go with which of a peer's. */
#include "transport/rdma/verbs/rank.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVS 4u

static char root[] = "/tmp/kvp-sysfs-XXXXXX";

/* Two switches under one root of PCI, each with an adapter, one also with a GPU; one adapter under the root of the
 * other processor; one that is no device of PCI. */
static const struct {
    const char *name;
    const char *way; /* below /sys */
    const char *numa_node;
} machine[] = {
    {"nic0", "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0", "0"},
    {"nic1", "devices/pci0000:3a/0000:3a:02.0/0000:4b:00.0/0000:4c:00.0", "0"},
    {"nic2", "devices/pci0000:ba/0000:ba:00.0/0000:bb:00.0", "1"},
    {"soft", "devices/virtual/net/soft", NULL},
    {"gpu", "devices/pci0000:3a/0000:3a:02.0/0000:4b:00.0/0000:4d:00.0", "0"},
};

static void
shell(const char *format, const char *a, const char *b)
{
    char command[512];

    snprintf(command, sizeof command, format, root, a, b);
    assert_int_equal(system(command), 0);
}

static int
make_tree(void **state)
{
    (void)state;
    if (mkdtemp(root) == NULL) return -1;
    shell("mkdir -p %s/class", "", "");
    for (size_t i = 0; i < KVP_ARRAY_LEN(machine); i++) {
        shell("mkdir -p %s/%s", machine[i].way, "");
        if (machine[i].numa_node != NULL)
            shell("cd %s/%s && echo %s > numa_node", machine[i].way, machine[i].numa_node);
        shell("cd %s/class && ln -s ../%s %s", machine[i].way, machine[i].name);
    }
    return 0;
}

static int
drop_tree(void **state)
{
    (void)state;
    shell("rm -r %s", "", "");
    return 0;
}

static void
look(const char *name, kvp_rdma_info_t *info)
{
    char dir[256];

    snprintf(dir, sizeof dir, "%s/class/%s", root, name);
    kvp_rdma_place_at(dir, &info->numa_node, info->pci);
}

static kvp_rdma_place_t
place(const char *name)
{
    static kvp_rdma_info_t infos[8];
    static size_t n;
    kvp_rdma_info_t *info = &infos[n++ % KVP_ARRAY_LEN(infos)];

    look(name, info);
    return (kvp_rdma_place_t){info->numa_node, info->pci};
}

static uint32_t
distance(const char *a, const char *b)
{
    kvp_rdma_place_t x = place(a), y = place(b);

    assert_int_equal(kvp_rdma_distance(&x, &y), kvp_rdma_distance(&y, &x));
    return kvp_rdma_distance(&x, &y);
}

TEST(test_place_is_the_way_through_bridges)
{
    kvp_rdma_place_t at = place("nic2");

    assert_string_equal(at.pci, "pci0000:ba/0000:ba:00.0/0000:bb:00.0");
    assert_int_equal(at.numa_node, 1);
}

TEST(test_place_when_it_is_not_told)
{
    kvp_rdma_place_t soft = place("soft"), none = place("no such device");

    assert_string_equal(soft.pci, "");
    assert_int_equal(soft.numa_node, -1);
    assert_string_equal(none.pci, "");
    assert_int_equal(none.numa_node, -1);
}

TEST(test_distance_by_bridges_before_nodes)
{
    assert_int_equal(distance("nic1", "nic1"), 0);
    assert_true(distance("gpu", "nic1") < distance("gpu", "nic0")); /* one switch, against one root */
    assert_true(distance("gpu", "nic0") < distance("gpu", "soft"));
    assert_true(distance("gpu", "soft") < distance("gpu", "nic2")); /* may be on this node, against is not */
}

TEST(test_distance_of_memory_is_its_node)
{
    kvp_rdma_place_t memory = {.numa_node = 1, .pci = ""}, nic0 = place("nic0"), nic2 = place("nic2");

    assert_true(kvp_rdma_distance(&memory, &nic2) < kvp_rdma_distance(&memory, &nic0));
}

static void
make_devs(kvp_rdma_dev_t devs[DEVS], kvp_rdma_dev_t *list[DEVS])
{
    memset(devs, 0, DEVS * sizeof devs[0]);
    for (size_t i = 0; i < DEVS; i++) {
        look(machine[i].name, &devs[i].info);
        list[i] = &devs[i];
    }
}

TEST(test_rank_keeps_the_order_of_equals)
{
    kvp_rdma_place_t gpu = place("gpu"), nobody = {.numa_node = -1, .pci = ""};
    kvp_rdma_dev_t devs[DEVS], *list[DEVS];
    uint32_t order[DEVS];
    static const uint32_t of_gpu[DEVS] = {1, 0, 3, 2}, as_they_are[DEVS] = {0, 1, 2, 3};

    make_devs(devs, list);
    kvp_rdma_rank(list, DEVS, &gpu, order);
    assert_memory_equal(order, of_gpu, sizeof order);
    kvp_rdma_rank(list, DEVS, &nobody, order);
    assert_memory_equal(order, as_they_are, sizeof order);
}

TEST(test_nearest_stay_in_their_order)
{
    kvp_rdma_place_t gpu = place("gpu");
    kvp_rdma_dev_t devs[DEVS], *list[DEVS];

    make_devs(devs, list);
    assert_int_equal(kvp_rdma_keep_nearest(list, DEVS, &gpu, DEVS), DEVS);
    assert_int_equal(kvp_rdma_keep_nearest(list, DEVS, &gpu, 2), 2);
    assert_ptr_equal(list[0], &devs[0]);
    assert_ptr_equal(list[1], &devs[1]);
}

/* ---- pairs */
static struct sockaddr_storage
addr_of(const char *text)
{
    struct sockaddr_storage addr = {0};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
        memcpy(&addr, &v4, sizeof v4);
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
        memcpy(&addr, &v6, sizeof v6);
    }
    return addr;
}

/* The pairs of two hosts, as "ours-theirs ". */
static void
want_pairs(const char *const *ours, size_t n, const char *const *theirs, size_t m, const char *want)
{
    kvp_rdma_dev_t devs[DEVS], *list[DEVS];
    struct sockaddr_storage addrs[DEVS];
    kvp_rdma_pair_t pairs[DEVS] = {{0, 0}};
    char text[64] = "";
    size_t count;

    memset(devs, 0, sizeof devs);
    for (size_t i = 0; i < n; i++) {
        devs[i].info.addr = addr_of(ours[i]);
        list[i] = &devs[i];
    }
    for (size_t i = 0; i < m; i++)
        addrs[i] = addr_of(theirs[i]);
    count = kvp_rdma_pairs(list, n, addrs, m, pairs);
    for (size_t i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%u-%u ", pairs[i].ours, pairs[i].theirs);
    assert_string_equal(text, want);
}

TEST(test_pairs_are_of_one_network)
{
    static const char *const ours[] = {"10.0.1.7", "10.0.2.7", "10.0.3.7"};
    static const char *const theirs[] = {"10.0.1.9", "10.0.3.9", "10.0.2.9"};
    static const char *const v6[] = {"fd00:1::7", "fd00:2::7"}, *const v6_theirs[] = {"fd00:1::9", "fd00:2::9"};

    want_pairs(ours, 3, theirs, 3, "0-0 1-2 2-1 ");
    want_pairs(v6, 2, v6_theirs, 2, "0-0 1-1 ");
}

TEST(test_pairs_take_in_all_of_both)
{
    static const char *const ours[] = {"10.0.0.1", "10.0.0.2", "10.0.0.3"};
    static const char *const theirs[] = {"10.0.0.65", "10.0.0.66"};

    want_pairs(ours, 1, theirs, 1, "0-0 ");
    want_pairs(ours, 2, theirs, 2, "0-0 1-1 ");
    want_pairs(ours, 3, theirs, 1, "0-0 1-0 2-0 ");
    want_pairs(ours, 1, theirs, 2, "0-0 0-1 ");
}

TEST(test_pairs_of_different_families)
{
    static const char *const ours[] = {"10.0.0.1", "fd00::1"}, *const theirs[] = {"10.0.0.65", "fd00::2"};

    want_pairs(ours, 2, theirs, 2, "0-0 1-1 ");
}

TEST_MAIN_WITH(make_tree, drop_tree)
