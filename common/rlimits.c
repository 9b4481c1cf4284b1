/* SPDX-License-Identifier: Apache-2.0
 * Limits of a process, from getrlimit and /proc. */
#include "common/rlimits.h"

#include "common/log.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

kvp_limit_t
kvp_limit_files(void)
{
    kvp_limit_t files = {.max = UINT64_MAX};
    DIR *dir = opendir("/proc/self/fd");
    struct rlimit limit;

    while (dir != NULL && readdir(dir) != NULL)
        files.has++; /* the count is too high by three: ".", "..", and the descriptor of the directory itself */
    if (dir != NULL) closedir(dir);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) files.max = limit.rlim_cur;
    return files;
}

uint64_t
kvp_limit_maps_max(void)
{
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    unsigned long long max = UINT64_MAX;

    if (f != NULL && fscanf(f, "%llu", &max) != 1) max = UINT64_MAX;
    if (f != NULL) fclose(f);
    return max;
}

kvp_limit_t
kvp_limit_maps(void)
{
    kvp_limit_t maps = {.max = kvp_limit_maps_max()};
    FILE *f = fopen("/proc/self/maps", "re");
    int c;

    while (f != NULL && (c = getc(f)) != EOF)
        maps.has += c == '\n';
    if (f != NULL) fclose(f);
    return maps;
}

void
kvp_limit_raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
    }
    kvp_log_warn("common", "cannot raise the limit of open files: %m");
}

void
kvp_limit_survive_file_size(void)
{
    signal(SIGXFSZ, SIG_IGN);
}
