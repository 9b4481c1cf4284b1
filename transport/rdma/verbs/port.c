/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The connection manager is given network addresses, and finds the GID (an adapter's address) for each by
 * itself. On Ethernet (RoCE v2) the GID contains the address. An InfiniBand port has the address of its network
 * interface, whose device is the port's adapter. */
#include "transport/rdma/verbs/ibv.h"

#include "transport/rdma/verbs/rank.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIDS_MAX 256
#define SOFT_ROCE_VENDOR 0xffffffu

/* Reads the first line of a sysfs file, without the newline; empty if there is no file. */
static void
read_line(const char *path, char *line, size_t cap)
{
    FILE *f = fopen(path, "re");

    line[0] = '\0';
    if (f == NULL) return;
    if (fgets(line, (int)cap, f) == NULL) line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    fclose(f);
}

/* ---- addresses */
enum { ADDR_NONE, ADDR_LINK_LOCAL, ADDR_V6, ADDR_V4 }; /* kinds of addresses of a port, the worst first */

static int
rank_of(const struct sockaddr_storage *addr)
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;

    if (addr->ss_family == AF_INET) return ADDR_V4;
    if (addr->ss_family != AF_INET6) return ADDR_NONE;
    return IN6_IS_ADDR_LINKLOCAL(v6) ? ADDR_LINK_LOCAL : ADDR_V6;
}

static void
keep_better(struct sockaddr_storage *best, const struct sockaddr_storage *addr)
{
    if (rank_of(addr) > rank_of(best)) *best = *addr;
}

static void
addr_of_gid(const union ibv_gid *gid, struct sockaddr_storage *addr_out)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct sockaddr_in v4 = {.sin_family = AF_INET};

    memset(addr_out, 0, sizeof *addr_out);
    memcpy(&v6.sin6_addr, gid->raw, sizeof gid->raw);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        memcpy(&v4.sin_addr, gid->raw + 12, 4);
        memcpy(addr_out, &v4, sizeof v4);
    } else if (!IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) {
        memcpy(addr_out, &v6, sizeof v6);
    }
}

static bool
is_roce_v2(struct ibv_context *ctx, uint8_t port, int index)
{
    char path[512], line[32];

    snprintf(path, sizeof path, "%s/ports/%u/gid_attrs/types/%d", ctx->device->ibdev_path, port, index);
    read_line(path, line, sizeof line);
    return strcmp(line, "RoCE v2") == 0;
}

/* Finds the network interface of the address in the port's table of GIDs. */
static void
find_netdev(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, int gids,
            const struct sockaddr_storage *addr, char netdev_out[KVP_RDMA_NETDEV_MAX])
{
    for (int i = 0; i < gids && i < GIDS_MAX && netdev_out[0] == '\0'; i++) {
        struct sockaddr_storage has;
        union ibv_gid gid;
        char path[512];

        if ((libs->ibv_query_gid)(ctx, port, i, &gid) != 0) continue;
        addr_of_gid(&gid, &has);
        if (memcmp(&has, addr, sizeof has) != 0) continue;
        snprintf(path, sizeof path, "%s/ports/%u/gid_attrs/ndevs/%d", ctx->device->ibdev_path, port, i);
        read_line(path, netdev_out, KVP_RDMA_NETDEV_MAX);
    }
}

static void
find_addr_of_ethernet(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, int gids,
                      struct sockaddr_storage *addr_out)
{
    for (int i = 0; i < gids && i < GIDS_MAX; i++) {
        struct sockaddr_storage addr;
        union ibv_gid gid;

        if ((libs->ibv_query_gid)(ctx, port, i, &gid) != 0 || !is_roce_v2(ctx, port, i)) continue;
        addr_of_gid(&gid, &addr);
        keep_better(addr_out, &addr);
    }
}

/* Returns why a GID cannot be used; NULL = it can. A link-local address cannot: it needs the name of an interface,
 * which a GID does not have. */
static const char *
lack_of(const struct sockaddr_storage *addr, bool is_of_v2)
{
    if (addr->ss_family == 0) return "is empty";
    if (!is_of_v2) return "is not of RoCE v2";
    if (addr->ss_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr))
        return "is link-local";
    return NULL;
}

/* Finds the address of the selected GID. Returns false, with the reason in why, if this GID cannot be used. */
static bool
find_addr_of_index(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, int gids, int index,
                   struct sockaddr_storage *addr_out, char *why, size_t cap)
{
    union ibv_gid gid;
    const char *lacks;

    if (index >= gids) {
        snprintf(why, cap, "%s:%u has no GID index %d, only 0 to %d", ctx->device->name, port, index, gids - 1);
        return false;
    }
    if ((libs->ibv_query_gid)(ctx, port, index, &gid) == 0) addr_of_gid(&gid, addr_out);
    lacks = lack_of(addr_out, is_roce_v2(ctx, port, index));
    if (lacks == NULL) return true;
    snprintf(why, cap,
             "GID index %d of %s:%u %s: choose one of RoCE v2 with an address that other hosts reach; `kvpool doctor` "
             "lists them",
             index, ctx->device->name, port, lacks);
    return false;
}

static void
find_addr_of_interface(const char *name, struct sockaddr_storage *addr_out)
{
    struct ifaddrs *all;

    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
        struct sockaddr_storage addr = {0};

        if (a->ifa_addr == NULL || strcmp(a->ifa_name, name) != 0) continue;
        if (a->ifa_addr->sa_family == AF_INET) memcpy(&addr, a->ifa_addr, sizeof(struct sockaddr_in));
        if (a->ifa_addr->sa_family == AF_INET6) memcpy(&addr, a->ifa_addr, sizeof(struct sockaddr_in6));
        keep_better(addr_out, &addr);
    }
    freeifaddrs(all);
}

static void
find_addr_of_infiniband(struct ibv_context *ctx, uint8_t port, struct sockaddr_storage *addr_out)
{
    char path[512], line[32];
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof path, "%s/device/net", ctx->device->ibdev_path);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/sys/class/net/%s/dev_port", entry->d_name);
        read_line(path, line, sizeof line);
        if (line[0] != '\0' && atoi(line) + 1 == port) find_addr_of_interface(entry->d_name, addr_out);
    }
    if (dir != NULL) closedir(dir);
}

static bool
find_addr(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, const struct ibv_port_attr *at, uint8_t port,
          int gid_index, struct sockaddr_storage *addr_out, char *why, size_t cap)
{
    bool is_ethernet = at->link_layer == IBV_LINK_LAYER_ETHERNET;

    if (!is_ethernet && gid_index != KVP_RDMA_GID_BEST) {
        snprintf(why, cap, "%s:%u is InfiniBand: its address is that of its network interface, not a GID's",
                 ctx->device->name, port);
        return false;
    }
    if (gid_index != KVP_RDMA_GID_BEST)
        return find_addr_of_index(libs, ctx, port, at->gid_tbl_len, gid_index, addr_out, why, cap);
    if (is_ethernet)
        find_addr_of_ethernet(libs, ctx, port, at->gid_tbl_len, addr_out);
    else
        find_addr_of_infiniband(ctx, port, addr_out);
    if (addr_out->ss_family != 0) return true;
    snprintf(why, cap, "%s:%u has no address: give its network interface one (ip address add ADDR/LEN dev IFNAME)",
             ctx->device->name, port);
    return false;
}

/* ---- limits */
static uint32_t
mtu_bytes_of(enum ibv_mtu mtu)
{
    return mtu < IBV_MTU_256 || mtu > IBV_MTU_4096 ? 0 : 128u << mtu;
}

bool
kvp_rdma_port_info(const kvp_rdma_libs_t *libs, struct ibv_context *ctx, uint8_t port, int gid_index,
                   kvp_rdma_info_t *info_out, char *why, size_t cap)
{
    struct ibv_device_attr dev;
    struct ibv_port_attr at = {0};
    char path[512];

    snprintf(why, cap, "%s:%u does not answer", ctx->device->name, port);
    if ((libs->ibv_query_device)(ctx, &dev) != 0) return false;
    if ((libs->ibv_query_port)(ctx, port, (struct _compat_ibv_port_attr *)&at) != 0) return false;
    if (at.state != IBV_PORT_ACTIVE) {
        snprintf(why, cap,
                 "%s:%u is not active: set its network interface up (ip link set IFNAME up), or see to its cable",
                 ctx->device->name, port);
        return false;
    }
    *info_out = (kvp_rdma_info_t){
        .port = port,
        .mtu_bytes = mtu_bytes_of(at.active_mtu),
        .is_soft = dev.vendor_id == SOFT_ROCE_VENDOR,
        .is_infiniband = at.link_layer == IBV_LINK_LAYER_INFINIBAND,
        .max_sge = (uint32_t)kvp_max_u64((uint64_t)dev.max_sge, 1),
        .max_wr = (uint32_t)dev.max_qp_wr,
        .max_reads = (uint32_t)dev.max_qp_init_rd_atom,
        .max_reg_bytes = dev.max_mr_size,
        .max_msg_bytes = at.max_msg_sz,
    };
    snprintf(info_out->name, sizeof info_out->name, "%s", ctx->device->name);
    snprintf(path, sizeof path, "%s/device", ctx->device->ibdev_path);
    kvp_rdma_place_at(path, &info_out->numa_node, info_out->pci);
    if (!find_addr(libs, ctx, &at, port, gid_index, &info_out->addr, why, cap)) return false;
    find_netdev(libs, ctx, port, at.gid_tbl_len, &info_out->addr, info_out->netdev);
    return true;
}
