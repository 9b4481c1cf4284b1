/* SPDX-License-Identifier: Apache-2.0
 * Figures of this process, from /proc and getrusage. A figure that cannot be read is 0. */
#include "common/process.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* The figures of /proc/self/statm, in their order. */
static const uint32_t virtual_pages = 0, resident_pages = 1;

/* Returns a figure of statm, in bytes; arg points at its index. */
static double
read_memory(void *arg)
{
    unsigned long pages[2] = {0};
    FILE *f = fopen("/proc/self/statm", "re");

    if (f == NULL) return 0;
    if (fscanf(f, "%lu %lu", &pages[0], &pages[1]) != 2) pages[0] = pages[1] = 0;
    fclose(f);
    return (double)pages[*(const uint32_t *)arg] * (double)sysconf(_SC_PAGESIZE);
}

static double
read_cpu(void *arg)
{
    struct rusage used = {0};

    (void)arg;
    (void)getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static double
read_open_fds(void *arg)
{
    DIR *dir = opendir("/proc/self/fd");
    double n = 0;

    (void)arg;
    if (dir == NULL) return 0;
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n - 1; /* the directory's own descriptor */
}

static double
read_max_fds(void *arg)
{
    struct rlimit limit = {0};

    (void)arg;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return (double)limit.rlim_cur;
}

static double
read_start(void *arg)
{
    return *(const double *)arg;
}

static double
read_one(void *arg)
{
    (void)arg;
    return 1;
}

kvp_err_t
kvp_process_add(kvp_metrics_t *metrics)
{
    static double started; /* seconds since 1970; a process starts once */
    static const struct {
        const char *name, *help;
        kvp_gauge_fn fn;
        void *arg;
    } gauges[] = {
        {"process_virtual_memory_bytes", "virtual memory of the process", read_memory, (void *)&virtual_pages},
        {"process_resident_memory_bytes", "memory of the process in RAM", read_memory, (void *)&resident_pages},
        {"process_open_fds", "open descriptors of the process", read_open_fds, NULL},
        {"process_max_fds", "limit of open descriptors", read_max_fds, NULL},
        {"process_start_time_seconds", "start of the process, in seconds since 1970", read_start, &started},
    };
    kvp_err_t err = kvp_metrics_gauge_fn(metrics, "kvpool_build_info", "version=\"" KVP_RELEASE "\"",
                                         "1, with the version as a label", read_one, NULL);

    if (started == 0) started = (double)time(NULL);
    if (err == KVP_OK)
        err = kvp_metrics_counter_fn(metrics, "process_cpu_seconds_total", NULL, "processor time of the process",
                                     read_cpu, NULL);
    for (size_t i = 0; i < KVP_ARRAY_LEN(gauges) && err == KVP_OK; i++)
        err = kvp_metrics_gauge_fn(metrics, gauges[i].name, NULL, gauges[i].help, gauges[i].fn, gauges[i].arg);
    return err;
}
