/* SPDX-License-Identifier: Apache-2.0
 * Collects the facts of this machine. Adapters are listed from /sys/class/infiniband, so they are found without
 * the verbs libraries, and even if a port is down or unused. */
#include "tools/doctor/facts.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PATH_BYTES 1024u
#define EMPTY_GID "0000:0000:0000:0000:0000:0000:0000:0000"
#define V4_PREFIX "0000:0000:0000:0000:0000:ffff:"

typedef struct {
    char text[PATH_BYTES];
} path_t;

static KVP_PRINTF(1, 2) path_t path_of(const char *fmt, ...)
{
    path_t path;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(path.text, sizeof path.text, fmt, ap);
    va_end(ap);
    return path;
}

/* Reads the first line of a file, without its newline; "" if there is none. */
static void
read_line(char *line, size_t cap, const char *path)
{
    FILE *f = fopen(path, "re");

    line[0] = '\0';
    if (f == NULL) return;
    if (fgets(line, (int)cap, f) == NULL) line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    fclose(f);
}

static bool
may_use(const char *path)
{
    return access(path, R_OK | W_OK) == 0;
}

/* ---- RDMA adapters */

/* Strips the number from a state in sysfs: "4: ACTIVE" -> "ACTIVE". */
static void
strip_number(char *text)
{
    const char *name = strstr(text, ": ");

    if (name != NULL) memmove(text, name + 2, strlen(name + 2) + 1);
}

/* Writes a GID in readable form: as the IPv4 address in it, or else in the kernel's form. */
static void
write_address(const char *gid, char *address, size_t cap)
{
    unsigned high, low;

    if (strncmp(gid, V4_PREFIX, strlen(V4_PREFIX)) == 0 && sscanf(gid + strlen(V4_PREFIX), "%4x:%4x", &high, &low) == 2)
        snprintf(address, cap, "%u.%u.%u.%u", high >> 8 & 0xff, high & 0xff, low >> 8 & 0xff, low & 0xff);
    else
        snprintf(address, cap, "%.*s", (int)cap - 1, gid);
}

static int
by_index(const void *a, const void *b)
{
    return ((const kvp_doctor_gid_t *)a)->index - ((const kvp_doctor_gid_t *)b)->index;
}

static void
look_at_gids(const char *at, kvp_doctor_port_t *port)
{
    char gid[64];
    struct dirent *entry;
    DIR *dir;

    dir = opendir(path_of("%s/gids", at).text);
    while (dir != NULL && (entry = readdir(dir)) != NULL && port->gids_n < KVP_DOCTOR_GIDS_MAX) {
        kvp_doctor_gid_t *it = &port->gids[port->gids_n];

        if (entry->d_name[0] == '.') continue;
        read_line(gid, sizeof gid, path_of("%s/gids/%s", at, entry->d_name).text);
        if (gid[0] == '\0' || strcmp(gid, EMPTY_GID) == 0) continue;
        it->index = atoi(entry->d_name);
        write_address(gid, it->address, sizeof it->address);
        read_line(it->type, sizeof it->type, path_of("%s/gid_attrs/types/%d", at, it->index).text);
        port->gids_n++;
    }
    if (dir != NULL) closedir(dir);
    qsort(port->gids, port->gids_n, sizeof port->gids[0], by_index);
}

/* Finds the network interface of an Ethernet port in the table of its GIDs, which all belong to this interface. */
static void
look_at_netdev(const char *root, const char *at, kvp_doctor_port_t *port)
{
    char line[32];

    read_line(port->netdev, sizeof port->netdev,
              path_of("%s/gid_attrs/ndevs/%d", at, port->gids_n > 0 ? port->gids[0].index : 0).text);
    if (port->netdev[0] == '\0') return;
    read_line(line, sizeof line, path_of("%s/sys/class/net/%s/mtu", root, port->netdev).text);
    port->netdev_mtu_bytes = (uint32_t)strtoul(line, NULL, 10);
}

static void
look_at_port(const char *root, const char *device, const char *number, kvp_doctor_port_t *port)
{
    char at[PATH_BYTES];

    snprintf(at, sizeof at, "%.200s/sys/class/infiniband/%.63s/ports/%.8s", root, device, number);
    *port = (kvp_doctor_port_t){.port = (unsigned)strtoul(number, NULL, 10), .numa_node = -1};
    snprintf(port->device, sizeof port->device, "%.63s", device);
    read_line(port->state, sizeof port->state, path_of("%s/state", at).text);
    strip_number(port->state);
    read_line(port->link_layer, sizeof port->link_layer, path_of("%s/link_layer", at).text);
    read_line(port->rate, sizeof port->rate, path_of("%s/rate", at).text);
    look_at_gids(at, port);
    look_at_netdev(root, at, port);
}

/* Finds out whether programs can open the adapter, and whether this user may, from its file in /dev/infiniband. */
static void
look_at_verbs(const char *root, kvp_doctor_port_t *port)
{
    char name[64];
    struct dirent *entry;
    DIR *dir;

    dir = opendir(path_of("%s/sys/class/infiniband_verbs", root).text);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        read_line(name, sizeof name, path_of("%s/sys/class/infiniband_verbs/%s/ibdev", root, entry->d_name).text);
        if (strcmp(name, port->device) != 0) continue;
        port->has_verbs = true;
        port->may_open = may_use(path_of("%s/dev/infiniband/%s", root, entry->d_name).text);
    }
    if (dir != NULL) closedir(dir);
}

static void
look_at_numa(const char *root, kvp_doctor_port_t *port)
{
    char line[32];

    read_line(line, sizeof line, path_of("%s/sys/class/infiniband/%s/device/numa_node", root, port->device).text);
    if (line[0] != '\0') port->numa_node = atoi(line);
}

static void
look_at_device(const char *root, const char *device, kvp_doctor_facts_t *facts)
{
    struct dirent *entry;
    DIR *dir;

    dir = opendir(path_of("%s/sys/class/infiniband/%s/ports", root, device).text);
    while (dir != NULL && (entry = readdir(dir)) != NULL && facts->ports_n < KVP_DOCTOR_PORTS_MAX) {
        kvp_doctor_port_t *port = &facts->ports[facts->ports_n];

        if (entry->d_name[0] == '.') continue;
        look_at_port(root, device, entry->d_name, port);
        look_at_verbs(root, port);
        look_at_numa(root, port);
        facts->ports_n++;
    }
    if (dir != NULL) closedir(dir);
}

static int
by_name(const void *a, const void *b)
{
    const kvp_doctor_port_t *x = a, *y = b;
    const int order = strcmp(x->device, y->device);

    return order != 0 ? order : (int)x->port - (int)y->port;
}

static void
look_at_devices(const char *root, kvp_doctor_facts_t *facts)
{
    struct dirent *entry;
    DIR *dir;

    dir = opendir(path_of("%s/sys/class/infiniband", root).text);
    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.') look_at_device(root, entry->d_name, facts);
    if (dir != NULL) closedir(dir);
    qsort(facts->ports, facts->ports_n, sizeof facts->ports[0], by_name);
    facts->has_rdma_cm = may_use(path_of("%s/dev/infiniband/rdma_cm", root).text);
}

/* ---- limits of the process and the kernel */
static uint64_t
limit_of(__rlimit_resource_t what, uint64_t *max_out)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};

    (void)getrlimit(what, &limit);
    if (max_out != NULL) *max_out = limit.rlim_max == RLIM_INFINITY ? KVP_DOCTOR_NO_LIMIT : limit.rlim_max;
    return limit.rlim_cur == RLIM_INFINITY ? KVP_DOCTOR_NO_LIMIT : limit.rlim_cur;
}

static uint64_t
mappings_max(const char *root)
{
    char line[32];

    read_line(line, sizeof line, path_of("%s/proc/sys/vm/max_map_count", root).text);
    return line[0] == '\0' ? KVP_DOCTOR_NO_LIMIT : strtoull(line, NULL, 10);
}

/* Reads the selected word of the kernel's setting: "always within_size [advise] never" -> "advise". */
static void
look_at_huge_pages(const char *root, kvp_doctor_facts_t *facts)
{
    char line[128];
    const char *open;

    read_line(line, sizeof line, path_of("%s/sys/kernel/mm/transparent_hugepage/shmem_enabled", root).text);
    open = strchr(line, '[');
    if (open == NULL) return;
    snprintf(facts->shmem_huge, sizeof facts->shmem_huge, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
}

/* ---- the wheel */

/* Checks the package `mooncake` beside the package `kvpool`, if this program was installed from a wheel
 * (kvpool/bin/kvpool). The wheels of kvpool and Mooncake both install that package; only Mooncake's has files that end
 * with ".so". */
static void
look_at_wheel(const char *root, kvp_doctor_facts_t *facts)
{
    static const char end[] = "/kvpool/bin/kvpool";
    const size_t end_n = sizeof end - 1;
    char exe[256], folder[sizeof exe + 16];
    const ssize_t n = readlink(path_of("%s/proc/self/exe", root).text, exe, sizeof exe - 1);
    struct dirent *entry;
    DIR *dir;

    if (n < (ssize_t)end_n || memcmp(exe + n - end_n, end, end_n) != 0) return;
    snprintf(folder, sizeof folder, "%.*s/mooncake", (int)(n - (ssize_t)end_n), exe);
    dir = opendir(folder);
    if (dir == NULL) return;
    facts->is_wheel_torn = access(path_of("%s/__init__.py", folder).text, F_OK) != 0;
    while ((entry = readdir(dir)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');

        if (dot == NULL || strcmp(dot, ".so") != 0) continue;
        snprintf(facts->foreign_file, sizeof facts->foreign_file, "%s/%s", folder, entry->d_name);
    }
    closedir(dir);
}

void
kvp_doctor_look_here(const char *root, kvp_doctor_facts_t *facts)
{
    facts->memlock_bytes = limit_of(RLIMIT_MEMLOCK, NULL);
    facts->open_files = limit_of(RLIMIT_NOFILE, &facts->open_files_max);
    facts->mappings_max = mappings_max(root);
    kvp_ram_look(root, &facts->ram);
    look_at_huge_pages(root, facts);
    look_at_devices(root, facts);
    look_at_wheel(root, facts);
}
