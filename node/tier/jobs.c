/* SPDX-License-Identifier: Apache-2.0
 * Jobs on a device that may hang (opening and recovery), in one thread for each device. */
#include "node/tier/shell.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define HANG_NS (5 * KVP_NS_PER_S) /* a job without progress for this long means that the device hangs */
#define LOOK_NS KVP_NS_PER_MS

static void *
job_main(void *arg)
{
    kvp_tier_device_file_t *dev = arg;

    dev->job.err = dev->job.fn(dev->job.tier, dev);
    atomic_store(&dev->job.is_over, true);
    return NULL;
}

static bool
begin_job(kvp_tier_t *tier, kvp_tier_device_file_t *dev, kvp_err_t (*fn)(kvp_tier_t *, kvp_tier_device_file_t *))
{
    atomic_store(&dev->job.is_over, false);
    atomic_store(&dev->job.moved_ns, kvp_now_ns());
    dev->job.tier = tier;
    dev->job.fn = fn;
    dev->job.core = NULL;
    return kvp_thread_start(&dev->job.thread, "kvp-tier-dev", job_main, dev) == KVP_OK;
}

/* Excludes a hanging device until the next start. Its job may still run, and writes only to dev->job. */
static void
leave_out(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    kvp_log_error("tier",
                  "the device does not answer: the node runs without it, and empties it at a later start dir=%s",
                  dev->dir);
    dev->state = KVP_TIER_DEVICE_LEFT_OUT;
    tier->left_out_n++;
}

static void
end_job(kvp_tier_t *tier, kvp_tier_device_file_t *dev)
{
    const struct timespec pause = {.tv_nsec = LOOK_NS};

    while (!atomic_load(&dev->job.is_over)) {
        if (kvp_now_ns() >= atomic_load(&dev->job.moved_ns) + HANG_NS) {
            pthread_detach(dev->job.thread);
            leave_out(tier, dev);
            return;
        }
        nanosleep(&pause, NULL);
    }
    pthread_join(dev->job.thread, NULL);
    if (dev->job.core != NULL) dev->core = dev->job.core;
    if (dev->job.err == KVP_BUSY) leave_out(tier, dev);
}

void
kvp_tier_run_jobs(kvp_tier_t *tier, kvp_err_t (*fn)(kvp_tier_t *tier, kvp_tier_device_file_t *dev))
{
    bool is_begun[KVP_TIER_DEVICES_MAX];

    for (uint32_t i = 0; i < tier->devices_n; i++) {
        is_begun[i] = tier->devices[i]->state != KVP_TIER_DEVICE_LEFT_OUT && begin_job(tier, tier->devices[i], fn);
        if (!is_begun[i]) tier->devices[i]->job.err = KVP_NOMEM;
    }
    for (uint32_t i = 0; i < tier->devices_n; i++)
        if (is_begun[i]) end_job(tier, tier->devices[i]);
}

static bool
is_kept(int fd, const int *kept, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (kept[i] == fd) return true;
    return fd <= STDERR_FILENO;
}

void
kvp_tier_unshare(const int *kept, size_t n)
{
    DIR *dir = unshare(CLONE_FILES) == 0 ? opendir("/proc/thread-self/fd") : NULL;
    struct dirent *entry;

    if (dir == NULL) {
        kvp_log_warn("tier", "no table of descriptors of its own: %m");
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        int fd = atoi(entry->d_name);

        if (entry->d_name[0] != '.' && fd != dirfd(dir) && !is_kept(fd, kept, n)) close(fd);
    }
    closedir(dir);
}
