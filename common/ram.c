/* SPDX-License-Identifier: Apache-2.0 */
#include "common/ram.h"

#include "common/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 4096u
#define LINE_BYTES 8192u

/* File names of one version of control groups, and the lines of memory.stat for pages that the kernel can reclaim. */
typedef struct {
    const char *limits[2]; /* names of the files with memory limits; the lower limit counts */
    const char *used;
    const char *reclaimable[3];
    const char *type; /* file system type of this version of control groups, in /proc/self/mountinfo */
} version_t;

static const version_t versions[] = {
    {.limits = {"memory.limit_in_bytes"},
     .used = "memory.usage_in_bytes",
     .reclaimable = {"total_inactive_file", "total_active_file"},
     .type = "cgroup"},
    {.limits = {"memory.max", "memory.high"},
     .used = "memory.current",
     .reclaimable = {"inactive_file", "active_file", "slab_reclaimable"},
     .type = "cgroup2"},
};

static FILE *
open_file(const char *dir, const char *name)
{
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);

    return n < 0 || (size_t)n >= sizeof path ? NULL : fopen(path, "re");
}

/* Returns the number in the file; UINT64_MAX if there is no file, or no number in it ("max"). */
static uint64_t
read_number(const char *dir, const char *name)
{
    FILE *f = name == NULL ? NULL : open_file(dir, name);
    unsigned long long value = UINT64_MAX;

    if (f != NULL && fscanf(f, "%llu", &value) != 1) value = UINT64_MAX;
    if (f != NULL) fclose(f);
    return value;
}

/* Reads the number after a word at the beginning of a line; ':' or a blank separates them. */
static bool
take_number(const char *line, const char *word, uint64_t *value_out)
{
    size_t n = strlen(word);

    if (strncmp(line, word, n) != 0 || (line[n] != ':' && line[n] != ' ')) return false;
    *value_out = strtoull(line + n + 1, NULL, 10);
    return true;
}

static void
look_at_machine(const char *root, kvp_ram_t *ram)
{
    FILE *f = open_file(root, "proc/meminfo");
    char line[256];
    uint64_t kib;

    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (take_number(line, "MemTotal", &kib)) ram->total_bytes = kib << 10;
        if (take_number(line, "MemAvailable", &kib)) ram->available_bytes = kib << 10;
    }
    if (f != NULL) fclose(f);
}

static uint64_t
reclaimable_bytes(const char *dir, const version_t *v)
{
    FILE *f = open_file(dir, "memory.stat");
    uint64_t sum = 0, value;
    char line[256];

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        for (size_t i = 0; i < KVP_ARRAY_LEN(v->reclaimable) && v->reclaimable[i] != NULL; i++)
            if (take_number(line, v->reclaimable[i], &value)) sum += value;
    if (f != NULL) fclose(f);
    return sum;
}

static void
look_at_group(const char *dir, const version_t *v, kvp_ram_t *ram)
{
    uint64_t limit = kvp_min_u64(read_number(dir, v->limits[0]), read_number(dir, v->limits[1]));
    uint64_t used = read_number(dir, v->used), kept = used - kvp_min_u64(used, reclaimable_bytes(dir, v)), left;

    if (limit >= ram->total_bytes && limit >= ram->available_bytes) return;
    ram->total_bytes = kvp_min_u64(ram->total_bytes, limit);
    left = used == UINT64_MAX ? limit : limit - kvp_min_u64(limit, kept);
    if (left >= ram->available_bytes) return;
    ram->available_bytes = left;
    snprintf(ram->where, sizeof ram->where, "the control group %.*s", (int)sizeof ram->where - 24, dir);
}

/* Applies the limits of the process's control group and of all groups above it, up to the mount point. path is the
 * group's path from the root of the hierarchy. mounted_at is the part of the hierarchy that is mounted. */
static void
look_at_groups(const char *mount, const char *mounted_at, const char *path, const version_t *v, kvp_ram_t *ram)
{
    size_t skip = strcmp(mounted_at, "/") == 0 ? 0 : strlen(mounted_at), top = strlen(mount);
    bool is_below = strncmp(path, "/..", 3) != 0 && strncmp(path, mounted_at, skip) == 0 &&
                    (path[skip] == '/' || path[skip] == '\0');
    char dir[PATH_BYTES];
    int n = snprintf(dir, sizeof dir, "%s%s", mount, is_below ? path + skip : "");

    if (n < 0 || (size_t)n >= sizeof dir) return;
    for (size_t len = (size_t)n; len >= top; len--) {
        if (len > top && dir[len] != '/' && dir[len] != '\0') continue;
        dir[len] = '\0';
        look_at_group(dir, v, ram);
        if (len == 0) return;
    }
}

/* Finds the mount of the hierarchy. A line is "ID PARENT DEV ROOT MOUNT OPTIONS... - TYPE SOURCE OPTIONS". */
static void
look_at_mounts(const char *root, const version_t *v, const char *path, kvp_ram_t *ram)
{
    FILE *f = open_file(root, "proc/self/mountinfo");
    char line[LINE_BYTES], at[1024], to[1024], type[64], options[1024], mount[PATH_BYTES];

    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *dash = strstr(line, " - ");

        if (dash == NULL || sscanf(line, "%*s %*s %*s %1023s %1023s", at, to) != 2) continue;
        if (sscanf(dash + 3, "%63s %*s %1023s", type, options) != 2 || strcmp(type, v->type) != 0) continue;
        if (strcmp(type, "cgroup") == 0 && !kvp_is_listed(options, "memory")) continue;
        snprintf(mount, sizeof mount, "%s%s", root, to);
        look_at_groups(mount, at, path, v, ram);
    }
    if (f != NULL) fclose(f);
}

void
kvp_ram_look(const char *root, kvp_ram_t *ram_out)
{
    char line[PATH_BYTES], controllers[256];
    FILE *f;

    *ram_out = (kvp_ram_t){.total_bytes = UINT64_MAX, .available_bytes = UINT64_MAX, .where = "this machine"};
    look_at_machine(root, ram_out);
    f = open_file(root, "proc/self/cgroup");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *path = strchr(line, '/');
        bool is_v2 = strncmp(line, "0::", 3) == 0;

        line[strcspn(line, "\n")] = '\0';
        if (path == NULL) continue;
        if (!is_v2 && (sscanf(line, "%*[0-9]:%255[^:]:", controllers) != 1 || !kvp_is_listed(controllers, "memory")))
            continue;
        look_at_mounts(root, &versions[is_v2], path, ram_out);
    }
    if (f != NULL) fclose(f);
}

const char *
kvp_format_mib(uint64_t bytes, char dst[KVP_MIB_TEXT_MAX])
{
    snprintf(dst, KVP_MIB_TEXT_MAX, "%lluMiB", (unsigned long long)(bytes >> 20));
    return dst;
}
