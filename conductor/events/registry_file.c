/* SPDX-License-Identifier: Apache-2.0
 * The registry's data directory: the file of registrations, which the disk's thread writes again after each change, and
 * the lists of publishers that are read at the start. On the loop's thread, except where registry.h names others. */
#include "conductor/events/registry_priv.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_NAME "registrations.json"
#define RETRY_NS (5 * KVP_NS_PER_S)
#define WAIT_MS 2000u /* time for which /register and /unregister wait for the disk */
#define CROWD_WAIT_MS 500u /* once a disk job takes this long, at most 2 threads wait for it; others answer /route */
#define FINISH_MS 2000u /* time for which the start and the end of the process wait for the disk */

/* ---- writing the file of registrations */
/* Writes the file of registrations, on the disk's thread. */
static int
write_file(kvp_disk_job_t *job)
{
    const kvp_registry_t *r = kvp_container_of(job, kvp_registry_t, file.job);
    char path[4200], temp[4200];
    bool is_ok;
    int fd, error;

    snprintf(path, sizeof path, "%s/" FILE_NAME, r->data_dir);
    snprintf(temp, sizeof temp, "%s/" FILE_NAME ".new", r->data_dir);
    fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    errno = fd < 0 ? errno : ENOSPC; /* error to report for a short write, which sets no errno */
    is_ok = fd >= 0 && write(fd, r->file.text.data, r->file.text.len) == (ssize_t)r->file.text.len && fsync(fd) == 0 &&
            rename(temp, path) == 0;
    error = is_ok ? 0 : errno;
    if (fd >= 0) close(fd);
    return error;
}

static void
submit_file(kvp_registry_t *r)
{
    kvp_jsonw_t w;

    kvp_buf_reset(&r->file.text);
    kvp_jsonw_init(&w, &r->file.text);
    kvp_jsonw_open(&w, NULL, '[');
    kvp_list_foreach (pos, &r->publishers) {
        kvp_jsonw_open(&w, NULL, '{');
        kvp_registration_write(&kvp_list_entry(pos, kvp_publisher_t, link)->reg, &w);
        kvp_jsonw_close(&w, '}');
    }
    kvp_jsonw_close(&w, ']');
    if (r->file.text.err != KVP_OK) kvp_panic("out of memory: registrations");
    r->file.writing = r->file.changes;
    kvp_disk_submit(r->disk, &r->file.job);
}

static void
on_written(kvp_disk_job_t *job, int error)
{
    kvp_registry_t *r = kvp_container_of(job, kvp_registry_t, file.job);

    pthread_mutex_lock(&r->file.lock);
    r->file.tried = r->file.writing;
    if (error == 0) r->file.kept = r->file.writing;
    pthread_cond_broadcast(&r->file.changed);
    pthread_mutex_unlock(&r->file.lock);
    r->file.writing = 0;
    r->file.retry_ns = error == 0 ? 0 : kvp_boot_ns() + RETRY_NS;
    if (r->file.tried < r->file.changes) submit_file(r);
}

void
kvp_registry_save(kvp_registry_t *r)
{
    if (r->disk == NULL || r->is_starting) return;
    pthread_mutex_lock(&r->file.lock);
    r->file.changes++;
    pthread_mutex_unlock(&r->file.lock);
    if (r->file.writing == 0) submit_file(r);
}

void
kvp_registry_tick_file(kvp_registry_t *r, uint64_t now_ns)
{
    if (r->disk == NULL) return;
    kvp_disk_reap(r->disk); /* runs the callbacks of finished jobs, and logs if the disk does not answer */
    if (r->file.writing == 0 && r->file.kept < r->file.changes && now_ns >= r->file.retry_ns) submit_file(r);
}

/* ---- functions for other threads than the loop's */
bool
kvp_registry_is_kept(kvp_registry_t *r)
{
    struct timespec until;
    bool is_kept;
    int rc = 0;

    if (r->disk == NULL) return true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    const uint32_t busy_ms = kvp_disk_busy_ms(r->disk);
    pthread_mutex_lock(&r->file.lock);
    const uint64_t changes = r->file.changes;
    if (busy_ms >= (r->file.waiting_n < 2 ? WAIT_MS : CROWD_WAIT_MS)) rc = ETIMEDOUT;
    r->file.waiting_n++;
    while (rc == 0 && r->file.tried < changes)
        rc = pthread_cond_timedwait(&r->file.changed, &r->file.lock, &until);
    r->file.waiting_n--;
    is_kept = r->file.kept >= changes;
    pthread_mutex_unlock(&r->file.lock);
    return is_kept;
}

bool
kvp_registry_trouble(const kvp_registry_t *r, char *text, size_t cap)
{
    return r->disk != NULL && kvp_disk_trouble(r->disk, text, cap);
}

/* ---- reading a file of registrations */
kvp_err_t
kvp_registry_load(kvp_registry_t *r, const char *path)
{
    json_object *list = json_object_from_file(path);
    const bool was_starting = r->is_starting;
    kvp_registration_t reg;
    char why[160] = "it is no JSON array", refused[160];
    size_t n = 0;

    if (list == NULL && json_util_get_last_err() != NULL) snprintf(why, sizeof why, "%.150s", json_util_get_last_err());
    r->is_starting = true;
    if (json_object_is_type(list, json_type_array)) {
        why[0] = '\0';
        n = json_object_array_length(list);
    }
    for (size_t i = 0; i < n && why[0] == '\0'; i++)
        if (kvp_registration_read(json_object_array_get_idx(list, i), false, &reg, why))
            kvp_ignore(kvp_registry_add(r, &reg, refused), "it is logged; the others are served");
    r->is_starting = was_starting;
    json_object_put(list);
    if (why[0] == '\0') return KVP_OK;
    kvp_log_error("conductor", "cannot use the list of publishers: %s file=%s", why, path);
    return KVP_CORRUPT;
}

/* ---- opening and closing the data directory */
static void
wake_loop(void *arg)
{
    kvp_registry_t *r = arg;

    uv_async_send(&r->reap);
}

static void
on_reap(uv_async_t *reap)
{
    const kvp_registry_t *r = reap->data;

    if (r->disk != NULL) kvp_disk_reap(r->disk);
}

void
kvp_registry_init_file(kvp_registry_t *r)
{
    r->file.job = (kvp_disk_job_t){.file = KVP_DISK_REGISTRATIONS, .run = write_file, .done = on_written};
    kvp_buf_init(&r->file.text, 0);
    pthread_mutex_init(&r->file.lock, NULL);
    pthread_cond_init(&r->file.changed, NULL);
    r->reap.data = r;
    (void)uv_async_init(r->uv, &r->reap, on_reap);
}

kvp_err_t
kvp_registry_open_dir(kvp_registry_t *r)
{
    char path[4200];
    kvp_err_t err = KVP_OK;

    if (r->data_dir == NULL) return KVP_OK;
    if (mkdir(r->data_dir, 0700) != 0 && errno != EEXIST) {
        kvp_log_error("conductor", "cannot make the data directory: %m dir=%s", r->data_dir);
        return KVP_SYS;
    }
    snprintf(path, sizeof path, "%s/lock", r->data_dir);
    r->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (r->lock_fd < 0 || flock(r->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        kvp_log_error("conductor",
                      r->lock_fd >= 0 && errno == EWOULDBLOCK ? "another conductor uses the data directory dir=%s"
                                                              : "cannot use the data directory: %m dir=%s",
                      r->data_dir);
        return KVP_SYS;
    }
    snprintf(path, sizeof path, "%s/" FILE_NAME, r->data_dir);
    r->disk = kvp_disk_create(r->data_dir);
    if (r->disk == NULL || !kvp_pools_open(r->pools, r->disk, r->data_dir)) return KVP_SYS;
    if (access(path, F_OK) == 0) err = kvp_registry_load(r, path);
    kvp_pools_flush(r->pools);
    kvp_ignore(kvp_disk_finish(r->disk, FINISH_MS), "places that are not read yet come later");
    kvp_disk_notify(r->disk, wake_loop, r);
    return err;
}

bool
kvp_registry_close_dir(kvp_registry_t *r)
{
    if (r->disk == NULL) return true;
    for (uint32_t i = 0; i < 2; i++) { /* round 1 waits for the write in progress, round 2 for the remaining changes */
        kvp_pools_flush(r->pools);
        if (kvp_disk_finish(r->disk, FINISH_MS)) continue;
        kvp_log_error("conductor", "the latest changes are not kept: the data directory does not answer dir=%s",
                      r->data_dir);
        return false;
    }
    return true;
}
