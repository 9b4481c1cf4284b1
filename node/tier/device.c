/* SPDX-License-Identifier: Apache-2.0 */
#include "node/tier/device.h"

#include "common/clock.h"
#include "common/forkguard.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define LOCK_NS (2 * KVP_NS_PER_S) /* how long to wait for another process's lock on the file before it is logged */

static void
submit_io(void *disk, kvp_tier_io_t *io)
{
    kvp_tier_device_file_t *dev = disk;

    io->fd = dev->fd;
    kvp_tier_engine_submit(&dev->engine, io);
}

static void
note_move(kvp_tier_device_file_t *dev)
{
    atomic_store(&dev->job.moved_ns, kvp_now_ns());
}

static void
wait_for_one(void *disk)
{
    kvp_tier_device_file_t *dev = disk;

    kvp_tier_engine_wait(&dev->engine, -1);
    note_move(dev);
}

const kvp_tier_disk_ops_t kvp_tier_device_ops = {.submit = submit_io, .wait = wait_for_one};

static kvp_err_t
log_failure(const kvp_tier_device_file_t *dev, kvp_err_t err, const char *what)
{
    kvp_log_error("tier", "cannot %s: %m dir=%s", what, dev->dir);
    return err;
}

static kvp_err_t
log_refusal(const kvp_tier_device_file_t *dev, const char *why)
{
    kvp_log_error("tier", "%s dir=%s", why, dev->dir);
    return KVP_INVALID;
}

static kvp_err_t
open_file(kvp_tier_device_file_t *dev)
{
    int flags = O_RDWR | O_CREAT | O_CLOEXEC, dir_fd = open(dev->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (dir_fd < 0) return log_failure(dev, KVP_INVALID, "open the directory");
    dev->fd = openat(dir_fd, KVP_TIER_FILE, flags | O_DIRECT, 0600);
    if (dev->fd < 0 && errno == EINVAL) {
        dev->fd = openat(dir_fd, KVP_TIER_FILE, flags, 0600);
        if (dev->fd >= 0) kvp_log_warn("tier", "no O_DIRECT here: the system's cache is used as well dir=%s", dev->dir);
    }
    if (dev->fd < 0) kvp_ignore(log_failure(dev, KVP_SYS, "make the file"), "below");
    if (!dev->is_apart) kvp_forkguard_add(dev->fd); /* a forked child closes the file, and so keeps no lock on it */
    close(dir_fd);
    return dev->fd < 0 ? KVP_SYS : KVP_OK;
}

/* Returns false if the disk lacks the space. This is checked first, because allocating would take all free space from
 * other users. */
static bool
has_space(const kvp_tier_device_file_t *dev, const struct stat *st)
{
    uint64_t has = (uint64_t)st->st_blocks * 512, left;
    struct statvfs vfs;

    if (has >= dev->geo.size_bytes || fstatvfs(dev->fd, &vfs) != 0) return true;
    left = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    if (dev->geo.size_bytes - has <= left) return true;
    kvp_log_error("tier", "the disk is too small: %lu MiB are needed and %lu MiB are free dir=%s",
                  (unsigned long)((dev->geo.size_bytes - has) >> 20), (unsigned long)(left >> 20), dev->dir);
    return false;
}

static kvp_err_t
make_room(kvp_tier_device_file_t *dev)
{
    off_t size = (off_t)dev->geo.size_bytes;
    struct stat st;

    if (fstat(dev->fd, &st) != 0) return log_failure(dev, KVP_SYS, "look at the file");
    if (st.st_size > size && ftruncate(dev->fd, size) != 0) return log_failure(dev, KVP_SYS, "shorten the file");
    if (!has_space(dev, &st)) return KVP_SYS;
    if (fallocate(dev->fd, 0, 0, size) == 0) return KVP_OK;
    if (errno != EOPNOTSUPP) {
        kvp_err_t err = log_failure(dev, KVP_SYS, "allocate the file");

        return ftruncate(dev->fd, st.st_size < size ? st.st_size : size) == 0
                   ? err
                   : log_failure(dev, err, "give back what was allocated");
    }
    kvp_log_warn("tier", "space cannot be allocated ahead here dir=%s", dev->dir);
    return ftruncate(dev->fd, size) == 0 ? KVP_OK : log_failure(dev, KVP_SYS, "lengthen the file");
}

static bool
move_all(kvp_tier_device_file_t *dev, uint8_t *buf, size_t len, off_t off, bool is_write)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = is_write ? pwrite(dev->fd, buf + at, len - at, off + (off_t)at)
                             : pread(dev->fd, buf + at, len - at, off + (off_t)at);

        note_move(dev);

        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

/* Writes two blocks of random bytes, reads them back and compares. */
static kvp_err_t
self_test(kvp_tier_device_file_t *dev, uint8_t *blocks)
{
    uint8_t *again = kvp_tier_alloc_blocks(2);
    uint64_t seed = kvp_random_u64();
    kvp_err_t err = KVP_OK;

    if (again == NULL) return KVP_NOMEM;
    for (size_t at = 0; at < 2 * KVP_TIER_BLOCK; at += sizeof seed) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(blocks + at, &seed, sizeof seed);
    }
    if (!move_all(dev, blocks, 2 * KVP_TIER_BLOCK, KVP_TIER_TEST_OFF, true))
        err = log_failure(dev, KVP_SYS, "write to the file");
    else if (!move_all(dev, again, 2 * KVP_TIER_BLOCK, KVP_TIER_TEST_OFF, false))
        err = log_failure(dev, KVP_SYS, "read from the file");
    else if (memcmp(blocks, again, 2 * KVP_TIER_BLOCK) != 0) {
        kvp_log_error("tier", "the file returns other bytes than were written dir=%s", dev->dir);
        err = KVP_SYS;
    }
    free(again);
    return err;
}

static kvp_err_t
take_super(kvp_tier_device_file_t *dev, const uint8_t *blocks)
{
    kvp_tier_super_t found;
    kvp_err_t first = kvp_tier_super_read(blocks, &found), second = KVP_OK;

    if (first != KVP_OK) second = kvp_tier_super_read(blocks + KVP_TIER_BLOCK, &found);
    if (first != KVP_OK && second != KVP_OK) {
        if (first == KVP_VERSION || second == KVP_VERSION)
            return log_refusal(dev, "the file has the format of another version of kvpool");
        if (first == KVP_PROTO || second == KVP_PROTO)
            return log_refusal(dev, KVP_TIER_FILE " is there, and is no file of kvpool");
        if (first == KVP_CORRUPT)
            kvp_log_warn("tier", "the superblock is damaged: all records on the device are given up dir=%s", dev->dir);
        return KVP_OK;
    }
    if (strcmp(found.name, dev->super.name) != 0) {
        kvp_log_error("tier", "the file belongs to the node %s dir=%s", found.name, dev->dir);
        return KVP_INVALID;
    }
    if (found.size_bytes != dev->super.size_bytes) {
        kvp_log_warn("tier", "the size has changed: all records on the device are given up dir=%s", dev->dir);
        return KVP_OK;
    }
    dev->super_state = KVP_TIER_SUPER_FOUND;
    dev->super = found;
    return KVP_OK;
}

static kvp_err_t
look_at_file(kvp_tier_device_file_t *dev)
{
    uint8_t *blocks = kvp_tier_alloc_blocks(2);
    struct stat st = {0};
    kvp_err_t err = blocks == NULL ? KVP_NOMEM : KVP_OK;

    if (err == KVP_OK && fstat(dev->fd, &st) != 0) err = log_failure(dev, KVP_SYS, "look at the file");
    if (err == KVP_OK && st.st_size >= 2 * KVP_TIER_BLOCK) {
        err = move_all(dev, blocks, 2 * KVP_TIER_BLOCK, 0, false) ? KVP_OK
                                                                  : log_failure(dev, KVP_SYS, "read from the file");
        if (err == KVP_OK) err = take_super(dev, blocks);
    } else if (err == KVP_OK && st.st_size > 0) {
        err = log_refusal(dev, KVP_TIER_FILE " is there, and is no file of kvpool");
    }
    if (err == KVP_OK) err = make_room(dev);
    if (err == KVP_OK) err = self_test(dev, blocks);
    free(blocks);
    return err;
}

/* Returns whether the process that holds the lock was killed, but cannot end because the device holds one of its
 * requests. /proc/locks names the process that took the lock. */
static bool
is_holder_dead(const kvp_tier_device_file_t *dev)
{
    FILE *f = fopen("/proc/locks", "re");
    unsigned long inode;
    char line[256], path[64], state = ' ';
    struct stat st;
    int pid = 0, found = 0;

    if (fstat(dev->fd, &st) != 0) st.st_ino = 0;
    while (f != NULL && found == 0 && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%*d: FLOCK %*s %*s %d %*x:%*x:%lu", &pid, &inode) == 2 && inode == st.st_ino) found = pid;
    if (f != NULL) fclose(f);
    if (found <= 0) return false;
    snprintf(path, sizeof path, "/proc/%d/stat", found);
    f = fopen(path, "re");
    if (f == NULL) return true;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = ' ';
    fclose(f);
    return state == 'Z' || state == 'X';
}

/* Locks the file against other processes. The lock of a killed process ends after its last write, so no write of the
 * old process follows our writes. */
static kvp_err_t
lock_file(kvp_tier_device_file_t *dev)
{
    const struct timespec pause = {.tv_nsec = 10 * KVP_NS_PER_MS};
    uint64_t until_ns = kvp_now_ns() + LOCK_NS;

    while (flock(dev->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return log_failure(dev, KVP_SYS, "lock the file");
        if (kvp_now_ns() >= until_ns && is_holder_dead(dev)) return KVP_BUSY;
        if (kvp_now_ns() >= until_ns) {
            kvp_log_error("tier", "another node uses the file dir=%s", dev->dir);
            return KVP_SYS;
        }
        nanosleep(&pause, NULL);
        note_move(dev);
    }
    return KVP_OK;
}

kvp_tier_device_file_t *
kvp_tier_device_make(const kvp_tier_device_t *conf, bool is_apart)
{
    kvp_tier_device_file_t *dev = calloc(1, sizeof *dev);

    if (dev == NULL) return NULL;
    dev->probe_blocks = kvp_tier_alloc_blocks(2);
    dev->fd = dev->engine.event_fd = -1;
    dev->is_apart = is_apart;
    dev->size_bytes = conf->size_bytes;
    snprintf(dev->dir, sizeof dev->dir, "%s", conf->dir);
    snprintf(dev->path, sizeof dev->path, "%s", conf->dir);
    kvp_list_t *lists[] = {&dev->reads, &dev->todo, &dev->begun, &dev->readings};
    for (size_t i = 0; i < KVP_ARRAY_LEN(lists); i++)
        kvp_list_init(lists[i]);
    if (dev->probe_blocks != NULL) return dev;
    free(dev);
    return NULL;
}

kvp_err_t
kvp_tier_device_open(kvp_tier_device_file_t *dev, const char *name)
{
    kvp_err_t err;

    if (dev->size_bytes < KVP_TIER_SIZE_MIN) return log_refusal(dev, "the size is less than 64 MiB");
    kvp_tier_geo(dev->size_bytes, &dev->geo);
    dev->super = (kvp_tier_super_t){.devices = 1, .pages = dev->geo.pages, .page_bytes = dev->geo.page_bytes};
    dev->super.size_bytes = dev->size_bytes;
    snprintf(dev->super.name, sizeof dev->super.name, "%s", name);
    err = open_file(dev);
    if (err == KVP_OK) err = lock_file(dev);
    if (err == KVP_OK) err = look_at_file(dev);
    return err != KVP_OK ? err : kvp_tier_engine_open(&dev->engine);
}

void
kvp_tier_device_close(kvp_tier_device_file_t *dev)
{
    kvp_tier_core_destroy(dev->core);
    kvp_tier_engine_close(&dev->engine);
    if (dev->is_apart)
        (void)close(dev->fd);
    else
        kvp_forkguard_close(dev->fd);
    free(dev->probe_blocks);
    free(dev->orphans);
    free(dev);
}

static void
fill_blocks(kvp_tier_device_file_t *dev, uint8_t *blocks)
{
    kvp_tier_super_seal(&dev->super);
    memset(blocks, 0, 2 * KVP_TIER_BLOCK);
    memcpy(blocks, &dev->super, sizeof dev->super);
    memcpy(blocks + KVP_TIER_BLOCK, &dev->super, sizeof dev->super);
}

void
kvp_tier_device_blocks(kvp_tier_device_file_t *dev, uint8_t *blocks)
{
    dev->super.epoch = kvp_random_u64();
    fill_blocks(dev, blocks);
}

kvp_err_t
kvp_tier_device_write_super(kvp_tier_device_file_t *dev)
{
    uint8_t *blocks = kvp_tier_alloc_blocks(2);
    kvp_err_t err = KVP_OK;

    if (blocks == NULL) return KVP_NOMEM;
    fill_blocks(dev, blocks);
    if (!move_all(dev, blocks, 2 * KVP_TIER_BLOCK, 0, true) || fdatasync(dev->fd) != 0)
        err = log_failure(dev, KVP_SYS, "write to the file");
    if (err != KVP_OK)
        dev->super_state = KVP_TIER_SUPER_NONE;
    else if (dev->super_state == KVP_TIER_SUPER_NONE)
        dev->super_state = KVP_TIER_SUPER_FOUND;
    free(blocks);
    return err;
}

kvp_err_t
kvp_tier_device_format(kvp_tier_device_file_t *dev)
{
    dev->super.identity = kvp_random_u64();
    dev->super.epoch = kvp_random_u64();
    return kvp_tier_device_write_super(dev);
}
