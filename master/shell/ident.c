/* SPDX-License-Identifier: Apache-2.0
 * The file `ident`: the pool's identity in a few lines of readable text, with a checksum. The file is replaced as a
 * whole (written under another name, synced, renamed, directory synced), so a crash leaves the old or the new file. */
#include "master/shell/ident.h"

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "proto/segfmt.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "ident"
#define TEMP_NAME "ident.new"
#define LOCK_NAME "lock"
#define CLUSTER_NAME "cluster"
#define CLUSTER_TEMP_NAME "cluster.new"
#define TEXT_MAX 512

/* format_text writes the whole text of the identity file and returns its length. */
static size_t
format_text(const kvp_ident_t *ident, char text[TEXT_MAX])
{
    char pool_id[2 * sizeof(ident->pool_id) + 1];

    for (size_t i = 0; i < sizeof(ident->pool_id); i++)
        snprintf(pool_id + 2 * i, 3, "%02x", ident->pool_id[i]);
    int n = snprintf(text, TEXT_MAX, "kvpool-master 1\npool_id %s\ndigest_seed %016" PRIx64 "\nterm %" PRIu32 "\n",
                     pool_id, ident->digest_seed, ident->term);
    return (size_t)(n + snprintf(text + n, TEXT_MAX - (size_t)n, "sum %016" PRIx64 "\n", kvp_sum(text, (size_t)n)));
}

/* parse_text accepts exactly format_text's output: it formats the parsed values again and compares. */
static bool
parse_text(const char *text, size_t len, kvp_ident_t *ident)
{
    kvp_ident_t got = *ident;
    char pool_id[2 * sizeof(got.pool_id) + 1], again[TEXT_MAX];

    int n = sscanf(text, "kvpool-master 1\npool_id %32[0-9a-f]\ndigest_seed %16" SCNx64 "\nterm %" SCNu32, pool_id,
                   &got.digest_seed, &got.term);
    if (n != 3 || strlen(pool_id) != 2 * sizeof(got.pool_id)) return false;
    for (size_t i = 0; i < sizeof(got.pool_id); i++) {
        if (sscanf(pool_id + 2 * i, "%2hhx", &got.pool_id[i]) != 1) return false;
    }
    if (format_text(&got, again) != len || memcmp(again, text, len) != 0) return false;
    *ident = got;
    return true;
}

static bool
write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

static kvp_err_t
replace_file(const kvp_ident_t *ident, const char *name, const char *temp, const char *text, size_t len)
{
    int fd = openat(ident->dir_fd, temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0) goto fail;
    if (!write_all(fd, text, len) || fsync(fd) != 0) goto fail;
    close(fd);
    fd = -1;
    if (renameat(ident->dir_fd, temp, ident->dir_fd, name) != 0 || fsync(ident->dir_fd) != 0) goto fail;
    return KVP_OK;
fail:
    kvp_log_error("master", "cannot write the pool's identity: %m file=%s/%s", ident->dir, name);
    if (fd >= 0) close(fd);
    return KVP_SYS;
}

static kvp_err_t
store_file(const kvp_ident_t *ident)
{
    char text[TEXT_MAX];
    size_t len = format_text(ident, text);

    return replace_file(ident, FILE_NAME, TEMP_NAME, text, len);
}

/* load_file reads the identity from the file; NOT_FOUND if there is no file. */
static kvp_err_t
load_file(kvp_ident_t *ident)
{
    char text[TEXT_MAX + 1];
    int fd = openat(ident->dir_fd, FILE_NAME, O_RDONLY | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT) return KVP_NOT_FOUND;
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT_MAX);
    if (n < 0) kvp_log_error("master", "cannot read the pool's identity: %m file=%s/%s", ident->dir, FILE_NAME);
    if (fd >= 0) close(fd);
    if (n < 0) return KVP_SYS;
    text[n] = '\0';
    if (!parse_text(text, (size_t)n, ident)) {
        kvp_log_error("master",
                      "the pool's identity is damaged: restore it from a copy, or remove it to start a new pool "
                      "file=%s/%s",
                      ident->dir, FILE_NAME);
        return KVP_CORRUPT;
    }
    return KVP_OK;
}

static void
make_new(kvp_ident_t *ident, uint32_t term)
{
    kvp_random_bytes(ident->pool_id, sizeof(ident->pool_id));
    ident->digest_seed = kvp_random_u64();
    ident->term = term;
    ident->is_new = true;
}

/* make_dirs makes the directory and its parents, like mkdir -p. After a failure the caller cannot open it. */
static void
make_dirs(const char *path)
{
    char part[sizeof(((kvp_ident_t *)0)->dir)];
    size_t len = strlen(path);

    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != '\0') continue;
        part[i] = '\0';
        (void)mkdir(part, 0700);
        part[i] = path[i];
    }
}

/* lock_dir makes, opens and locks the directory. With is_looking it makes only the lock file, and the directory must
 * have a pool. Errors are logged at the given level. */
static kvp_err_t
lock_dir(const char *dir, bool is_looking, kvp_log_level_t level, kvp_ident_t *ident)
{
    if (strlen(dir) >= sizeof(ident->dir)) {
        kvp_log_write(level, "master", "the data directory's path is too long");
        return KVP_LIMIT;
    }
    memcpy(ident->dir, dir, strlen(dir) + 1);
    if (!is_looking) make_dirs(ident->dir);
    ident->dir_fd = open(ident->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (is_looking && ident->dir_fd >= 0 && faccessat(ident->dir_fd, FILE_NAME, F_OK, 0) != 0) {
        kvp_log_write(level, "master", "this directory has no pool: the file %s is missing dir=%s", FILE_NAME,
                      ident->dir);
        return KVP_NOT_FOUND;
    }
    if (ident->dir_fd >= 0) ident->lock_fd = openat(ident->dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (ident->lock_fd >= 0 && flock(ident->lock_fd, LOCK_EX | LOCK_NB) == 0) return KVP_OK;
    if (ident->lock_fd >= 0 && errno == EWOULDBLOCK) {
        kvp_log_write(level, "master", "another master uses the data directory dir=%s", ident->dir);
        return KVP_BUSY;
    }
    kvp_log_write(level, "master", "cannot use the data directory: %m dir=%s", ident->dir);
    return KVP_SYS;
}

/* take_term stores this start's term before another process learns it. A new identity is not stored yet: if this start
 * fails, the next one must not begin with a pool id that differs from the nodes'. */
static kvp_err_t
take_term(kvp_ident_t *ident, uint32_t least_term, bool takes_term)
{
    kvp_err_t err = load_file(ident);

    if (err == KVP_NOT_FOUND) {
        make_new(ident, least_term);
        return KVP_OK;
    }
    if (err != KVP_OK) return err;
    ident->had_master = true;
    if (takes_term && ident->term >= KVP_TERM_MAX) {
        kvp_log_error("master", "terms are used up: this is a new pool, and nodes offer their memory afresh dir=%s",
                      ident->dir);
        make_new(ident, 1);
        return store_file(ident);
    }
    ident->term = (uint32_t)kvp_max_u64(ident->term + takes_term, least_term);
    return store_file(ident);
}

static void
keep_nothing(kvp_ident_t *ident, uint32_t term)
{
    kvp_ident_close(ident);
    make_new(ident, term);
    memcpy(ident->dir, "none", sizeof("none"));
}

static const char *
default_dir(char *out, size_t cap)
{
    const char *state = getenv("XDG_STATE_HOME");
    if (state == NULL || state[0] != '/') return "/var/lib/kvpool";
    snprintf(out, cap, "%s/kvpool", state);
    return out;
}

kvp_err_t
kvp_ident_open(const char *dir, uint32_t least_term, bool takes_term, kvp_ident_t *ident_out)
{
    kvp_ident_t ident = {.dir_fd = -1, .lock_fd = -1};
    char buf[sizeof(ident.dir)];
    kvp_err_t err = KVP_OK;

    if (dir != NULL && strcmp(dir, "none") == 0) {
        keep_nothing(&ident, least_term);
    } else if (dir != NULL) {
        err = lock_dir(dir, false, KVP_LOG_ERROR, &ident);
        if (err == KVP_OK) err = take_term(&ident, least_term, takes_term);
    } else if (lock_dir(default_dir(buf, sizeof(buf)), false, KVP_LOG_WARN, &ident) == KVP_OK) {
        err = take_term(&ident, least_term, takes_term);
    } else {
        kvp_log_warn(
            "master",
            "without --data-dir nothing is kept: after a restart the master knows the pool only if a node names it");
        keep_nothing(&ident, least_term);
    }
    if (err != KVP_OK) {
        kvp_ident_close(&ident);
        return err;
    }
    *ident_out = ident;
    return KVP_OK;
}

kvp_err_t
kvp_ident_look(const char *dir, kvp_ident_t *ident_out)
{
    kvp_ident_t ident = {.dir_fd = -1, .lock_fd = -1};
    char buf[sizeof(ident.dir)];
    kvp_err_t err = lock_dir(dir != NULL ? dir : default_dir(buf, sizeof(buf)), true, KVP_LOG_ERROR, &ident);

    if (err == KVP_OK) err = load_file(&ident);
    if (err == KVP_OK)
        *ident_out = ident;
    else
        kvp_ident_close(&ident);
    return err;
}

void
kvp_ident_close(kvp_ident_t *ident)
{
    if (ident->lock_fd >= 0) close(ident->lock_fd);
    if (ident->dir_fd >= 0) close(ident->dir_fd);
    ident->lock_fd = -1;
    ident->dir_fd = -1;
}

/* read_cluster reads the name of the directory's cluster, and the directory's id in it. NOT_FOUND: no cluster. */
static kvp_err_t
read_cluster(const kvp_ident_t *ident, char cluster[TEXT_MAX], char id[33])
{
    int fd = openat(ident->dir_fd, CLUSTER_NAME, O_RDONLY | O_CLOEXEC);
    char text[TEXT_MAX + 1];

    if (fd < 0 && errno == ENOENT) return KVP_NOT_FOUND;
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT_MAX);
    if (fd >= 0) close(fd);
    text[n < 0 ? 0 : n] = '\0';
    if (sscanf(text, "id %32[0-9a-f]\ncluster %500[^\n]", id, cluster) == 2) return KVP_OK;
    kvp_log_error("master", "cannot read which cluster the directory is of: %m file=%s/%s", ident->dir, CLUSTER_NAME);
    return KVP_CORRUPT;
}

kvp_err_t
kvp_ident_join(kvp_ident_t *ident, const char *cluster)
{
    char text[TEXT_MAX], was[TEXT_MAX];
    kvp_err_t err;

    if (ident->dir_fd < 0) {
        kvp_log_error("master", "a master of a cluster needs a data directory: see --data-dir");
        return KVP_INVALID;
    }
    err = read_cluster(ident, was, ident->id);
    if (err == KVP_OK && strcmp(was, cluster) != 0) {
        kvp_log_error("master", "the data directory belongs to cluster %s, and not to %s dir=%s", was, cluster,
                      ident->dir);
        return KVP_INVALID;
    }
    if (err != KVP_NOT_FOUND) return err;
    snprintf(ident->id, sizeof ident->id, "%016" PRIx64, kvp_random_u64());
    int n = snprintf(text, sizeof text, "id %s\ncluster %s\n", ident->id, cluster);
    return replace_file(ident, CLUSTER_NAME, CLUSTER_TEMP_NAME, text, (size_t)n);
}

kvp_err_t
kvp_ident_may_be_alone(const kvp_ident_t *ident)
{
    char was[TEXT_MAX], id[33];

    if (ident->dir_fd < 0 || read_cluster(ident, was, id) == KVP_NOT_FOUND) return KVP_OK;
    kvp_log_error("master",
                  "the data directory belongs to cluster %s, which another master may lead: give --etcd and --cluster, "
                  "or --force-single if no other master runs dir=%s",
                  was, ident->dir);
    return KVP_INVALID;
}

kvp_err_t
kvp_ident_save(kvp_ident_t *ident, uint32_t term)
{
    if (term > ident->term) ident->term = term;
    return ident->dir_fd < 0 ? KVP_OK : store_file(ident);
}
