/* SPDX-License-Identifier: Apache-2.0
 * Starts and stops child processes. Children are watched through pidfds: after the death of a child, another
 * process may get its pid, but a pidfd never refers to another process. */
#include "tools/base/procs.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_NS (30 * KVP_NS_PER_S)
#define STOP_MS 10000
#define READY_LINE_MAX 1024u
#define ARGS_MAX 32u
#define CHUNK_BYTES (256ull << 20)
#define PAGE_BYTES 4096u

static void
init_proc(kvp_proc_t *proc)
{
    *proc = (kvp_proc_t){.pidfd = -1, .out_fd = -1};
}

/* ---- the search for a program ---- */

static bool
is_program(const char *path)
{
    return access(path, X_OK) == 0;
}

/* find_beside looks for the program in the tool's own directory, and in the directory of daemons in a build tree. */
static bool
find_beside(const char *program, char *path, size_t cap)
{
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0) return false;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    static const char *const places[] = {".", "../master", "../client", "../conductor"};
    for (size_t i = 0; i < KVP_ARRAY_LEN(places); i++) {
        snprintf(path, cap, "%s/%s/%s", self, places[i], program);
        if (is_program(path)) return true;
    }
    return false;
}

static bool
find_in_path(const char *program, char *path, size_t cap)
{
    const char *dirs = getenv("PATH");
    while (dirs != NULL && *dirs != '\0') {
        const size_t n = strcspn(dirs, ":");
        snprintf(path, cap, "%.*s/%s", (int)n, dirs, program);
        if (n > 0 && is_program(path)) return true;
        dirs += n + (dirs[n] == ':');
    }
    return false;
}

bool
kvp_proc_find(const char *program, char *path, size_t cap)
{
    const char *dir = getenv("KVPOOL_BIN_DIR");
    if (dir != NULL && *dir != '\0') {
        /* If the user names a directory, no other directory is searched: a program of another build could be started
         * by mistake. */
        snprintf(path, cap, "%s/%s", dir, program);
        return is_program(path);
    }
    return find_beside(program, path, cap) || find_in_path(program, path, cap);
}

/* ---- the start and stop of one child ---- */

/* child_exec runs in the child between fork and exec, and makes only async-signal-safe calls. */
static void
child_exec(const char *path, const char **argv, int out_fd, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
    dup2(out_fd, STDOUT_FILENO);
    /* If the parent died before prctl, the child gets no signal, so it checks its parent here. */
    if (getppid() != parent) _exit(127);
    execv(path, (char *const *)argv);
    _exit(127);
}

/* read_line reads up to a newline, byte by byte, because another reader gets the bytes after the newline. */
static kvp_err_t
read_line(int fd, char *line, size_t cap, uint64_t deadline_ns)
{
    for (size_t n = 0; n + 1 < cap;) {
        const uint64_t now = kvp_now_ns();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (now >= deadline_ns) return KVP_DEADLINE;
        const int got = poll(&ready, 1, (int)((deadline_ns - now) / KVP_NS_PER_MS) + 1);
        if (got < 0 && errno != EINTR) return KVP_SYS;
        if (got <= 0) continue;
        const ssize_t bytes = read(fd, line + n, 1);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes <= 0) return KVP_SYS;
        line[n] = line[n] == '\n' ? '\0' : line[n];
        if (line[n++] == '\0') return KVP_OK;
    }
    return KVP_SYS;
}

/* read_field copies the value of NAME=VALUE from a ready line; "" if the line has no such field. */
static void
read_field(const char *line, const char *name, char *value, size_t cap)
{
    const size_t n = strlen(name);
    *value = '\0';
    for (const char *at = strchr(line, ' '); at != NULL; at = strchr(at, ' ')) {
        at++;
        if (strncmp(at, name, n) != 0 || at[n] != '=') continue;
        snprintf(value, cap, "%.*s", (int)strcspn(at + n + 1, " "), at + n + 1);
        return;
    }
}

static kvp_err_t
await_ready(kvp_proc_t *proc)
{
    char line[READY_LINE_MAX];
    kvp_err_t err = read_line(proc->out_fd, line, sizeof(line), kvp_now_ns() + READY_NS);
    if (err == KVP_OK && strncmp(line, "ready", 5) != 0) err = KVP_PROTO;
    if (err != KVP_OK) {
        fprintf(stderr, "kvpool: %s %s\n", proc->name,
                err == KVP_DEADLINE ? "was not ready in time" : "ended before it was ready");
        return err;
    }
    read_field(line, "listen", proc->listen, sizeof(proc->listen));
    read_field(line, "http", proc->http, sizeof(proc->http));
    return KVP_OK;
}

kvp_err_t
kvp_proc_start(kvp_proc_t *proc, const char *name, const char *program, const char **argv)
{
    char path[1024];
    int out[2] = {-1, -1};
    init_proc(proc);
    snprintf(proc->name, sizeof(proc->name), "%s", name);
    if (!kvp_proc_find(program, path, sizeof(path))) {
        fprintf(stderr, "kvpool: no program %s in KVPOOL_BIN_DIR, beside this one or in PATH\n", program);
        return KVP_SYS;
    }
    if (pipe2(out, O_CLOEXEC) != 0) goto fail;
    argv[0] = program;
    const pid_t parent = getpid();
    proc->pid = fork();
    if (proc->pid == 0) child_exec(path, argv, out[1], parent);
    close(out[1]);
    proc->out_fd = out[0];
    if (proc->pid < 0) goto fail;
    proc->pidfd = (int)syscall(SYS_pidfd_open, proc->pid, 0u);
    if (proc->pidfd < 0) goto fail;
    if (await_ready(proc) == KVP_OK) return KVP_OK;
    (void)kvp_proc_stop(proc);
    return KVP_SYS;
fail:
    fprintf(stderr, "kvpool: starting %s: %s\n", name, strerror(errno));
    (void)kvp_proc_stop(proc);
    return KVP_SYS;
}

/* Returns whether the child was started and has ended by itself. */
static bool
is_dead(const kvp_proc_t *proc)
{
    struct pollfd dead = {.fd = proc->pidfd, .events = POLLIN};
    return proc->pid > 0 && poll(&dead, 1, 0) > 0;
}

static bool
await_death(const kvp_proc_t *proc, int timeout_ms)
{
    struct pollfd dead = {.fd = proc->pidfd, .events = POLLIN};
    const uint64_t end = kvp_now_ns() + (uint64_t)timeout_ms * KVP_NS_PER_MS;
    int got;
    do
        got = poll(&dead, 1, timeout_ms);
    while (got < 0 && errno == EINTR && kvp_now_ns() < end);
    return got > 0;
}

/* signal_child sends a signal. Without a pidfd it uses the pid, which is safe: the child has not been waited for,
 * so its pid is not reused. */
static void
signal_child(const kvp_proc_t *proc, int sig)
{
    if (proc->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, proc->pidfd, sig, NULL, 0u);
    else
        kill(proc->pid, sig);
}

static int
say_status(const kvp_proc_t *proc, int status, bool is_killed)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    if (is_killed)
        fprintf(stderr, "kvpool: %s (pid %d) did not stop and was killed\n", proc->name, (int)proc->pid);
    else if (WIFSIGNALED(status))
        fprintf(stderr, "kvpool: %s (pid %d) died of signal %d\n", proc->name, (int)proc->pid, WTERMSIG(status));
    else
        fprintf(stderr, "kvpool: %s (pid %d) ended with code %d\n", proc->name, (int)proc->pid, WEXITSTATUS(status));
    return 1;
}

int
kvp_proc_stop(kvp_proc_t *proc)
{
    int failed = 0, status = 0;
    if (proc->pid > 0) {
        signal_child(proc, SIGTERM);
        const bool is_killed = proc->pidfd < 0 || !await_death(proc, STOP_MS);
        if (is_killed) signal_child(proc, SIGKILL);
        while (waitpid(proc->pid, &status, 0) < 0 && errno == EINTR)
            continue;
        failed = say_status(proc, status, is_killed);
        close(proc->out_fd);
        if (proc->pidfd >= 0) close(proc->pidfd);
    }
    init_proc(proc);
    return failed;
}

/* ---- a whole pool of children ---- */

const char *
kvp_local_events(const char *what, char dst[KVP_LOCAL_EVENTS_MAX])
{
    snprintf(dst, KVP_LOCAL_EVENTS_MAX, "ipc://@kvpool-up-%d-%s", (int)getpid(), what);
    return dst;
}

static kvp_err_t
start_master(kvp_local_pool_t *local, const kvp_local_conf_t *conf)
{
    char events[KVP_LOCAL_EVENTS_MAX], replay[KVP_LOCAL_EVENTS_MAX];
    const char *argv[ARGS_MAX] = {
        NULL,
        "--listen",
        conf->listen,
        "--http",
        conf->http != NULL ? conf->http : "127.0.0.1:0",
        "--data-dir",
        conf->data_dir != NULL ? conf->data_dir : "none",
        "--log-level",
        conf->log_level != NULL ? conf->log_level : "warn",
        conf->has_events ? "--events" : NULL,
        kvp_local_events("events", events),
        "--events-replay",
        kvp_local_events("replay", replay),
        NULL,
    };
    return kvp_proc_start(&local->master, "kvpool-master", "kvpool-master", argv);
}

/* chunk_bytes_for returns a chunk size that is a multiple of the extent size (the space of one object), so that a
 * node's whole memory is usable. Chunks are whole pages; extents are whole pages or multiples of 64 bytes. */
static uint64_t
chunk_bytes_for(uint64_t extent_bytes)
{
    const uint64_t unit = extent_bytes % PAGE_BYTES == 0 ? extent_bytes : extent_bytes * (PAGE_BYTES / 64);
    return kvp_max_u64(1, CHUNK_BYTES / unit) * unit;
}

static kvp_err_t
start_node(kvp_local_pool_t *local, const kvp_local_conf_t *conf, uint32_t i)
{
    char name[32], memory[32], chunk[32];
    const uint64_t chunk_bytes = conf->extent_bytes > 0 ? chunk_bytes_for(conf->extent_bytes) : conf->chunk_bytes;
    snprintf(name, sizeof(name), "node%u", i + 1);
    snprintf(memory, sizeof(memory), "%llu", (unsigned long long)conf->memory_bytes[i]);
    const char *argv[ARGS_MAX] = {
        NULL,
        "--master",
        local->master.listen,
        "--name",
        name,
        "--memory",
        memory,
        "--listen",
        conf->node_listen != NULL ? conf->node_listen : "127.0.0.1:0",
        "--log-level",
        conf->log_level != NULL ? conf->log_level : "warn",
        "--keeper", /* no keeper process, which would hold the node's memory after the end of the pool */
        "none",
    };
    size_t n = 0;
    while (argv[n] != NULL || n == 0)
        n++;
    if (chunk_bytes > 0) {
        snprintf(chunk, sizeof(chunk), "%llu", (unsigned long long)chunk_bytes);
        argv[n++] = "--chunk-bytes";
        argv[n++] = chunk;
    }
    if (conf->transports != NULL) {
        argv[n++] = "--transports";
        argv[n++] = conf->transports;
    }
    return kvp_proc_start(&local->nodes[i], name, "kvpool-node", argv);
}

kvp_err_t
kvp_local_start(kvp_local_pool_t *local, const kvp_local_conf_t *conf)
{
    memset(local, 0, sizeof(*local));
    if (conf->is_insecure && setenv("KVPOOL_INSECURE", "yes", 1) != 0) return KVP_NOMEM;
    kvp_err_t err = start_master(local, conf);
    for (uint32_t i = 0; i < conf->nodes && err == KVP_OK; i++) {
        err = start_node(local, conf, i);
        local->nodes_n = i + 1;
    }
    if (err != KVP_OK) (void)kvp_local_stop(local);
    return err;
}

int
kvp_local_stop(kvp_local_pool_t *local)
{
    int failed = kvp_proc_stop(&local->conductor);
    for (uint32_t i = local->nodes_n; i > 0; i--)
        failed += kvp_proc_stop(&local->nodes[i - 1]);
    failed += kvp_proc_stop(&local->master);
    local->nodes_n = 0;
    return failed;
}

const kvp_proc_t *
kvp_local_dead(const kvp_local_pool_t *local)
{
    for (uint32_t i = 0; i < local->nodes_n; i++)
        if (is_dead(&local->nodes[i])) return &local->nodes[i];
    if (is_dead(&local->conductor)) return &local->conductor;
    return is_dead(&local->master) ? &local->master : NULL;
}

/* ---- signals that stop the tool ---- */

static void
stop_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
}

int
kvp_stop_catch(void)
{
    sigset_t set;
    stop_signals(&set);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) return -1;
    return signalfd(-1, &set, SFD_CLOEXEC);
}

bool
kvp_stop_has_come(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct signalfd_siginfo taken;
    sigset_t set;
    if (poll(&p, 1, 0) <= 0 || read(fd, &taken, sizeof(taken)) < 0) return false;
    stop_signals(&set);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    return true;
}
