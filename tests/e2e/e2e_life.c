/* SPDX-License-Identifier: Apache-2.0
 * e2e_life: a handle's end, seen from the threads and children that use it. The pool is that of $KVPOOL_MASTER.
 *   e2e_life close [DEADLINE_MS]   close while other threads are in calls
 *   e2e_life fork                  a child of a process that has a pool open
 *   e2e_life worker                the same by rdma, with memory that is registered: the child lives on beside its
 * parent One line of JSON on standard output. */
#include "tests/e2e/e2e_util.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 8
#define OBJECT (256u << 10)
#define CALLS_FIRST 20 /* calls of each thread before the handle is closed */

static kvpool_t *pool;
static kvpool_opts_t call_opts = {.struct_size = sizeof call_opts};

/* ---- close */
typedef struct {
    pthread_t thread;
    unsigned index;
    _Atomic unsigned calls;
    uint64_t wrong;
    int last; /* the error that ended it */
    uint64_t ended_ns;
} caller_t;

/* Four calls in turn: a put, its get, a batch_put, a probe. */
static int
one_call(caller_t *c, uint8_t *buf)
{
    const kvpool_iov_t iov = {buf, OBJECT};
    kvpool_item_t item = {.iov = &iov, .iov_n = 1};
    const unsigned turn = c->calls % 4;
    uint64_t hash, version;
    size_t len, at;
    char key[64];
    int err, result = 0, is_there;

    len = (size_t)snprintf(key, sizeof key, "close/%u/%u%s", c->index, c->calls / 4, turn < 2 ? "" : "/batch");
    item.key = (kvpool_key_t){key, len};
    hash = e2e_hash(key, item.key.len);
    switch (turn) {
    case 0:
        e2e_fill(buf, OBJECT, hash, 0);
        return kvpool_put(pool, key, item.key.len, buf, OBJECT, &call_opts);
    case 1:
        err = kvpool_get(pool, key, item.key.len, buf, OBJECT, &len, &call_opts);
        if (err == KVPOOL_OK) c->wrong += !e2e_check(buf, len, hash, &version, &at);
        return err;
    case 2:
        e2e_fill(buf, OBJECT, hash, 0);
        err = kvpool_batch_put(pool, &item, 1, &call_opts, &result);
        return err != KVPOOL_OK ? err : result;
    default:
        return kvpool_exists(pool, key, item.key.len, &is_there, &call_opts);
    }
}

static void *
call_until_closed(void *arg)
{
    caller_t *c = arg;
    uint8_t *buf = e2e_alloc(OBJECT);
    int err = kvpool_register(pool, buf, OBJECT);

    while (err != KVPOOL_CLOSED) {
        err = one_call(c, buf);
        c->calls++;
    }
    c->last = err;
    c->ended_ns = e2e_now_ns();
    return NULL;
}

static int
run_close(void)
{
    static caller_t callers[THREADS];
    uint64_t begun, closed, last = 0, wrong = 0;
    bool has_begun = false;
    int err;

    for (unsigned i = 0; i < THREADS; i++) {
        callers[i].index = i;
        if (pthread_create(&callers[i].thread, NULL, call_until_closed, &callers[i]) != 0) e2e_die("no thread");
    }
    /* The test stops a node first where it wants the calls to hang: then nobody gets this far, and a line says go. */
    printf("{\"ready\":true}\n");
    fflush(stdout);
    if (getchar() == EOF) e2e_die("no word to begin");
    while (!has_begun && call_opts.deadline_ms == 0) {
        has_begun = true;
        for (unsigned i = 0; i < THREADS; i++)
            has_begun &= callers[i].calls >= CALLS_FIRST;
        usleep(1000);
    }
    begun = e2e_now_ns();
    err = kvpool_close(pool);
    closed = e2e_now_ns();
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(callers[i].thread, NULL);
        wrong += callers[i].wrong;
        if (callers[i].ended_ns > last) last = callers[i].ended_ns;
    }
    printf("{\"close\":\"%s\",\"close_ms\":%.1f,\"last_ms\":%.1f,\"again\":\"%s\",\"wrong\":%llu}\n",
           kvpool_errname(err), (double)(closed - begun) / 1e6, (double)(last > begun ? last - begun : 0) / 1e6,
           kvpool_errname(kvpool_close(pool)), (unsigned long long)wrong);
    kvpool_free(pool);
    return 0;
}

/* ---- fork */

/* What the child inherited that it should not: sockets and shared memory among its descriptors, mappings of it. */
static unsigned
count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    char target[256];
    unsigned n = 0;

    if (dir == NULL) e2e_die("no /proc");
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        ssize_t len = readlinkat(dirfd(dir), e->d_name, target, sizeof target - 1);

        if (len <= 0) continue;
        target[len] = '\0';
        n += strncmp(target, "socket:", 7) == 0 || strncmp(target, "/memfd:", 7) == 0 ||
             strncmp(target, "anon_inode:[pidfd]", 18) == 0;
    }
    closedir(dir);
    return n;
}

static unsigned
count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned n = 0;

    if (maps == NULL) e2e_die("no /proc");
    while (fgets(line, sizeof line, maps) != NULL)
        n += strstr(line, "/memfd:") != NULL;
    fclose(maps);
    return n;
}

static void
run_child(FILE *to)
{
    uint8_t buf[64];
    size_t len;
    int is_there, put, get, exists, opened;
    kvpool_t *own = NULL;
    unsigned fds = count_descriptors(), maps = count_mappings();

    put = kvpool_put(pool, "child", 5, "v", 1, NULL);
    get = kvpool_get(pool, "fork", 4, buf, sizeof buf, &len, NULL);
    exists = kvpool_exists(pool, "fork", 4, &is_there, NULL);
    fprintf(to, "\"child_put\":\"%s\",\"child_get\":\"%s\",\"child_exists\":\"%s\",\"child_close\":\"%s\",",
            kvpool_errname(put), kvpool_errname(get), kvpool_errname(exists), kvpool_errname(kvpool_close(pool)));
    kvpool_free(pool);
    opened = kvpool_open(NULL, &own);
    get = opened == KVPOOL_OK ? kvpool_get(own, "fork", 4, buf, sizeof buf, &len, NULL) : opened;
    kvpool_free(own);
    fprintf(to, "\"child_own_get\":\"%s\",\"child_fds\":%u,\"child_maps\":%u", kvpool_errname(get), fds, maps);
    fflush(to);
}

static int
run_fork(void)
{
    uint8_t value[64], back[64];
    char from_child[1024];
    size_t len = 0, n;
    int pipe_fds[2], status = 0, put, get;
    FILE *in;
    pid_t pid;

    e2e_fill(value, sizeof value, 1, 0);
    put = kvpool_put(pool, "fork", 4, value, sizeof value, NULL);
    if (put != KVPOOL_OK || pipe(pipe_fds) != 0) e2e_die("cannot begin: %s", kvpool_errname(put));
    pid = fork();
    if (pid == 0) {
        close(pipe_fds[0]);
        run_child(fdopen(pipe_fds[1], "w"));
        _exit(0);
    }
    close(pipe_fds[1]);
    in = fdopen(pipe_fds[0], "r");
    n = fread(from_child, 1, sizeof from_child - 1, in);
    from_child[n] = '\0';
    fclose(in);
    waitpid(pid, &status, 0);
    get = kvpool_get(pool, "fork", 4, back, sizeof back, &len, NULL);
    put = kvpool_put(pool, "after", 5, value, sizeof value, NULL);
    printf("{%s,\"child_status\":%d,\"parent_get\":\"%s\",\"parent_bytes\":%s,\"parent_put\":\"%s\"}\n", from_child,
           status, kvpool_errname(get), len == sizeof value && memcmp(value, back, len) == 0 ? "true" : "false",
           kvpool_errname(put));
    kvpool_free(pool);
    return 0;
}

/* ---- worker */
static double
ms_since(uint64_t begun_ns)
{
    return (double)(e2e_now_ns() - begun_ns) / 1e6;
}

/* A pool of its own by these transports, and what it gets there. */
static void
open_own(FILE *to, const char *name, const char *transports)
{
    char detail[256] = "";
    kvpool_conf_t conf = {
        .struct_size = sizeof conf, .transports = transports, .detail = detail, .detail_cap = sizeof detail};
    kvpool_t *own = NULL;
    uint8_t buf[64];
    size_t len;
    int err = kvpool_open(&conf, &own);

    if (err == KVPOOL_OK) err = kvpool_get(own, "small", 5, buf, sizeof buf, &len, NULL);
    kvpool_free(own);
    fprintf(to, ",\"%s\":\"%s\",\"%s_detail\":\"%s\"", name, kvpool_errname(err), name, detail);
}

/* Ends as programs do that were not told to be careful, with all that libraries do at an exit. */
static void
run_worker(FILE *to, int until_fd, uint8_t *arena)
{
    uint64_t begun_ns = e2e_now_ns();
    size_t len;
    char byte;

    fprintf(to, "\"child_get\":\"%s\"", kvpool_errname(kvpool_get(pool, "a", 1, arena, OBJECT, &len, NULL)));
    open_own(to, "child_rdma", "rdma");
    unsetenv("KVPOOL_TRANSPORTS");
    open_own(to, "child_any", NULL);
    fprintf(to, ",\"child_ms\":%.0f", ms_since(begun_ns));
    fclose(to);
    memset(arena, 0, OBJECT); /* its own copy */
    if (read(until_fd, &byte, 1) < 0) _exit(2);
    kvpool_free(pool);
    exit(0);
}

/* Puts what it has just written to memory that is registered, and gets it back there. */
static bool
goes_round(uint8_t *arena, const char *key)
{
    uint64_t hash = e2e_hash(key, strlen(key)), version;
    size_t len = 0, at;

    e2e_fill(arena, OBJECT, hash, 0);
    if (kvpool_put(pool, key, strlen(key), arena, OBJECT, NULL) != KVPOOL_OK) return false;
    memset(arena, 0, OBJECT);
    if (kvpool_get(pool, key, strlen(key), arena, OBJECT, &len, NULL) != KVPOOL_OK) return false;
    return len == OBJECT && e2e_check(arena, len, hash, &version, &at);
}

static int
run_with_worker(void)
{
    uint8_t *arena = e2e_alloc(OBJECT);
    int err = kvpool_register(pool, arena, OBJECT), up[2], down[2], status = 0;
    bool before, beside, after;
    static char from_child[2048], stat[1 << 20];
    size_t n, len;
    FILE *in;
    pid_t pid;

    if (err == KVPOOL_OK) err = kvpool_put(pool, "small", 5, "v", 1, NULL);
    before = goes_round(arena, "a");
    if (err != KVPOOL_OK || pipe(up) != 0 || pipe(down) != 0) e2e_die("cannot begin: %s", kvpool_errname(err));
    pid = fork();
    if (pid == 0) {
        close(up[0]);
        close(down[1]);
        run_worker(fdopen(up[1], "w"), down[0], arena);
    }
    close(up[1]);
    in = fdopen(up[0], "r");
    beside = goes_round(arena, "b");
    n = fread(from_child, 1, sizeof from_child - 1, in);
    from_child[n] = '\0';
    fclose(in);
    beside = goes_round(arena, "c") && beside;
    close(down[1]);
    waitpid(pid, &status, 0);
    after = goes_round(arena, "d");
    err = kvpool_stat(pool, stat, sizeof stat, &len, NULL);
    printf("{%s,\"child_status\":%d,\"before\":%s,\"beside\":%s,\"after\":%s,\"stat\":%s}\n", from_child, status,
           before ? "true" : "false", beside ? "true" : "false", after ? "true" : "false",
           err == KVPOOL_OK ? stat : "null");
    kvpool_free(pool);
    return 0;
}

int
main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int err = kvpool_open(NULL, &pool);

    if (err != KVPOOL_OK) e2e_die("cannot open the pool: %s", kvpool_errname(err));
    if (argc > 2) call_opts.deadline_ms = (uint32_t)strtoul(argv[2], NULL, 10);
    if (strcmp(what, "close") == 0) return run_close();
    if (strcmp(what, "fork") == 0) return run_fork();
    if (strcmp(what, "worker") == 0) return run_with_worker();
    e2e_die("usage: e2e_life close|fork|worker");
}
