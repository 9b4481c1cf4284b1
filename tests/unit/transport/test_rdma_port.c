/* SPDX-License-Identifier: Apache-2.0
 * The address of a port among those that it has, on an adapter that is made of a table and a tree like sysfs. */
#include "transport/rdma/verbs/ibv.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIDS 4u

static char root[] = "/tmp/kvp-port-XXXXXX";
static union ibv_gid gids[GIDS];
static struct ibv_port_attr port_attr;

static int
query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
    (void)ctx;
    *attr =
        (struct ibv_device_attr){.max_sge = 30, .max_qp_wr = 1000, .max_qp_init_rd_atom = 16, .max_mr_size = 1u << 30};
    return 0;
}

static int
query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    (void)ctx, (void)port;
    memcpy((void *)attr, &port_attr, sizeof port_attr);
    return 0;
}

static int
query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
    (void)ctx, (void)port;
    *gid = gids[index];
    return 0;
}

static const kvp_rdma_libs_t libs = {
    .ibv_query_device = query_device,
    .ibv_query_port = query_port,
    .ibv_query_gid = query_gid,
};

static struct ibv_device device = {.name = "table0"};
static struct ibv_context context = {.device = &device};

static void
set_gid(uint32_t i, const char *addr, const char *type)
{
    char command[256];

    assert_int_equal(inet_pton(AF_INET6, addr, gids[i].raw), 1);
    snprintf(command, sizeof command, "echo '%s' > %s/ports/1/gid_attrs/types/%u", type, root, i);
    assert_int_equal(system(command), 0);
}

static int
make_tree(void **state)
{
    char command[256];

    (void)state;
    if (mkdtemp(root) == NULL) return -1;
    snprintf(device.ibdev_path, sizeof device.ibdev_path, "%s", root);
    snprintf(command, sizeof command, "mkdir -p %s/ports/1/gid_attrs/types", root);
    return system(command);
}

static int
drop_tree(void **state)
{
    char command[256];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static int
clear(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < GIDS; i++)
        set_gid(i, "::", "RoCE v2");
    port_attr = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE,
                                       .active_mtu = IBV_MTU_1024,
                                       .gid_tbl_len = GIDS,
                                       .link_layer = IBV_LINK_LAYER_ETHERNET};
    return 0;
}

static char why[256]; /* of the port that was not used last */

/* What peers are told; "" where the port is not used. */
static const char *
address_at(int gid_index)
{
    static char text[INET6_ADDRSTRLEN];
    kvp_rdma_info_t info;
    const void *at;

    if (!kvp_rdma_port_info(&libs, &context, 1, gid_index, &info, why, sizeof why)) return "";
    at = &((const struct sockaddr_in6 *)(const void *)&info.addr)->sin6_addr;
    if (info.addr.ss_family == AF_INET) at = &((const struct sockaddr_in *)(const void *)&info.addr)->sin_addr;
    assert_non_null(inet_ntop(info.addr.ss_family, at, text, sizeof text));
    return text;
}

static const char *
address(void)
{
    return address_at(KVP_RDMA_GID_BEST);
}

TEST_WITH(test_address_is_ipv4_before_ipv6_before_link_local, clear, NULL)
{
    set_gid(0, "fe80::1", "RoCE v2");
    assert_string_equal(address(), "fe80::1");
    set_gid(2, "fd00::1", "RoCE v2");
    assert_string_equal(address(), "fd00::1");
    set_gid(1, "::ffff:10.1.2.3", "RoCE v2");
    assert_string_equal(address(), "10.1.2.3");
    set_gid(3, "fd00::2", "RoCE v2"); /* what comes later is no better for it */
    assert_string_equal(address(), "10.1.2.3");
}

TEST_WITH(test_address_is_of_roce_v2, clear, NULL)
{
    set_gid(0, "::ffff:10.1.2.3", "IB/RoCE v1");
    assert_string_equal(address(), "");
    set_gid(1, "fd00::1", "RoCE v2");
    assert_string_equal(address(), "fd00::1");
}

/* Each says which port, and what helps. */
TEST_WITH(test_port_that_is_not_used_says_why, clear, NULL)
{
    assert_string_equal(address(), "");
    assert_non_null(strstr(why, "table0:1 has no address"));
    assert_non_null(strstr(why, "ip address add"));
    port_attr.state = IBV_PORT_DOWN;
    assert_string_equal(address(), "");
    assert_non_null(strstr(why, "table0:1 is not active"));
    assert_non_null(strstr(why, "ip link set"));
}

TEST_WITH(test_gid_that_is_asked_for_is_taken_or_refused, clear, NULL)
{
    set_gid(0, "fe80::1", "RoCE v2");
    set_gid(1, "::ffff:10.1.2.3", "RoCE v2");
    set_gid(2, "::ffff:10.1.2.3", "IB/RoCE v1");
    assert_string_equal(address_at(0), "");
    assert_non_null(strstr(why, "GID index 0 of table0:1 is link-local"));
    assert_string_equal(address_at(1), "10.1.2.3");
    assert_string_equal(address_at(2), "");
    assert_non_null(strstr(why, "GID index 2 of table0:1 is not of RoCE v2"));
    assert_string_equal(address_at(3), "");
    assert_non_null(strstr(why, "GID index 3 of table0:1 is empty"));
    assert_string_equal(address_at(4), "");
    assert_non_null(strstr(why, "table0:1 has no GID index 4, only 0 to 3"));
    port_attr.link_layer = IBV_LINK_LAYER_INFINIBAND;
    assert_string_equal(address_at(1), "");
    assert_non_null(strstr(why, "is InfiniBand"));
}

TEST_WITH(test_limits_are_the_devices, clear, NULL)
{
    kvp_rdma_info_t info;

    set_gid(0, "::ffff:10.1.2.3", "RoCE v2");
    assert_true(kvp_rdma_port_info(&libs, &context, 1, KVP_RDMA_GID_BEST, &info, why, sizeof why));
    assert_string_equal(info.name, "table0");
    assert_int_equal(info.mtu_bytes, 1024);
    assert_int_equal(info.max_sge, 30);
    assert_int_equal(info.max_reads, 16);
    assert_int_equal(info.numa_node, -1);
    assert_string_equal(info.pci, "");
}

TEST_MAIN_WITH(make_tree, drop_tree)
