/* SPDX-License-Identifier: Apache-2.0
 * kvpool-keeper: holds the memory of one node, known by the node's name, while the node is killed or replaced. It has
 * one thread and only holds file descriptors: the keeper never reads the memory.
 *
 * Design notes.
 * - The packets that a node sent are all read before its connection counts as closed, so the keeper knows all that the
 *   node sent, however the node ended.
 * - Memory is given to another process only after the end of the node's process (by its pidfd): by then the node's
 *   connections, queue pairs and mappings are closed, and only those of other processes remain. */
#include "node/keeper/packet.h"
#include "node/keeper/table.h"

#include "net/pidfd.h"
#include "common/waits.h"
#include "common/daemon/conf.h"
#include "common/hostid.h"
#include "common/log.h"
#include "common/rlimits.h"
#include "common/stdfd.h"
#include "common/thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HELLO_MS 1000
#define SEND_MS 5000 /* the time limit of sending to a node that does not read */
#define END_MS 30000 /* the time limit for a keeper to free much memory at its end */
#define LOOK_MS 5000
#define BACKLOG 16

typedef struct {
    const char *name;
    const char *runtime_dir;
    uint64_t idle_ns;
    bool is_detached;
    bool is_end;
} settings_t;

static const kvp_opt_t opts[] = {
    {KVP_OPT(STRING, "name", settings_t, name), .is_required = true, .help = "The node's name."},
    {KVP_OPT_TEXT("runtime-dir", settings_t, runtime_dir, "DIR"),
     .help = "Where its socket lies: the node's --runtime-dir."},
    {KVP_OPT(DURATION_NS, "idle", settings_t, idle_ns), .fallback = "60s",
     .help = "How long the keeper runs without a node and without memory; 0s = for ever."},
    {KVP_OPT(BOOL, "detach", settings_t, is_detached), .fallback = "no",
     .help = "Continue in the background once it listens."},
    {KVP_OPT(BOOL, "end", settings_t, is_end), .fallback = "no",
     .help = "Make the keeper with the name free its memory and end, unless its node runs."},
};

static const kvp_conf_spec_t spec = {
    .program = "kvpool-keeper",
    .summary = "Holds a node's memory while the node is restarted.",
    .opts = opts,
    .opt_count = KVP_ARRAY_LEN(opts),
};

typedef struct {
    const settings_t *settings;
    struct sockaddr_un at;
    ino_t socket_inode;
    int lock_fd, listen_fd;
    int conn_fd; /* the connection of the node; -1 = closed, or no node so far */
    int node_pidfd; /* the pidfd of the node's process; -1 = none */
    int node_pid;
    uint64_t hold_ns; /* how long to hold the memory, as requested by the last node */
    uint64_t since_ns; /* the time since which there is no node */
    kvp_keeper_table_t table;
    int table_pid; /* the process id of the node process that uses, or last used, the memory in the table */
    bool is_done;
} keeper_t;

static volatile sig_atomic_t is_told_to_stop;

static void
on_signal(int sig)
{
    (void)sig;
    is_told_to_stop = 1;
}

/* ---- freeing memory */
static void *
clear_main(void *arg)
{
    kvp_keeper_table_t *t = arg;

    kvp_keeper_table_clear(t, true);
    free(t);
    return NULL;
}

/* free_memory frees the memory that no process uses, in a thread, because freeing much memory takes long and a node
 * may be waiting for the keeper. */
static void
free_memory(keeper_t *k)
{
    kvp_keeper_table_t *t = malloc(sizeof *t);

    if (t != NULL) *t = k->table;
    if (t == NULL || !kvp_detach(clear_main, t)) {
        free(t);
        kvp_keeper_table_clear(&k->table, true);
    }
    k->table = (kvp_keeper_table_t){.total = 0};
}

/* ---- the node */
static void
close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static kvp_err_t
send_files(const keeper_t *k)
{
    const kvp_keeper_table_t *t = &k->table;

    for (uint32_t at = 0; at < t->files_n;) {
        uint32_t n = (uint32_t)kvp_min_u64(t->files_n - at, KVP_KEEPER_FDS_MAX);
        kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_FILES, n, NULL);
        kvp_err_t err;

        msg.first = at;
        msg.total = t->total;
        err = kvp_keeper_send(k->conn_fd, &msg, t->files + at, SEND_MS);
        if (err != KVP_OK) return err;
        at += n;
    }
    return KVP_OK;
}

static kvp_err_t
send_writers(const keeper_t *k)
{
    for (uint32_t i = 0; i < k->table.writers_n; i++) {
        const kvp_keeper_writer_t *w = &k->table.writers[i];
        kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_WRITER, 1, NULL);
        kvp_err_t err;

        msg.process = w->process;
        msg.incarnation = w->incarnation;
        err = kvp_keeper_send(k->conn_fd, &msg, &w->pidfd, SEND_MS);
        if (err != KVP_OK) return err;
    }
    return KVP_OK;
}

static kvp_err_t
send_welcome(int fd, kvp_err_t err, int pid, const kvp_keeper_table_t *told)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_WELCOME, 0, NULL);

    msg.err = err;
    msg.pid = (uint32_t)pid;
    msg.total = told == NULL ? 0 : told->files_n;
    msg.writers = told == NULL ? 0 : told->writers_n;
    return kvp_keeper_send(fd, &msg, NULL, SEND_MS);
}

static void
node_lost(keeper_t *k)
{
    close_fd(&k->conn_fd);
    if (!kvp_keeper_table_is_whole(&k->table)) kvp_keeper_table_clear(&k->table, false);
}

/* Serves a node that sent HELLO: either sends the node all state, or receives all state from the node. */
static void
serve_node(keeper_t *k, const kvp_keeper_msg_t *hello, int fd, int pidfd, int pid)
{
    kvp_err_t err;

    close_fd(&k->conn_fd); /* closes the previous connection of the same node */
    close_fd(&k->node_pidfd);
    k->conn_fd = fd;
    k->node_pidfd = pidfd;
    k->node_pid = pid;
    k->hold_ns = hello->hold_ms * KVP_NS_PER_MS;
    /* Memory that the same process still uses is not freed, because the process may hand it over again. */
    if (hello->is_new && pid == k->table_pid) kvp_keeper_table_clear(&k->table, false);
    if (hello->is_new) free_memory(k);
    k->table_pid = pid;
    err = send_welcome(fd, KVP_OK, (int)getpid(), &k->table);
    if (err == KVP_OK) err = send_files(k);
    if (err == KVP_OK) err = send_writers(k);
    if (err != KVP_OK) close_fd(&k->conn_fd);
}

/* Returns whether the process was killed and only threads of its SSD tier are left, in a device that hangs. Such
 * threads store nothing into the memory. */
static bool
is_held_by_device(int pid)
{
    char path[64], name[32], state = ' ';
    struct dirent *entry;
    bool is_held = true;
    DIR *tasks;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    tasks = opendir(path);
    if (tasks == NULL) return false;
    while (is_held && (entry = readdir(tasks)) != NULL) {
        int tid = atoi(entry->d_name);

        if (tid <= 0) continue;
        snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
        f = fopen(path, "re");
        if (f == NULL) continue; /* the thread has ended since the directory was read */
        if (fscanf(f, "%*d (%31[^)]) %c", name, &state) != 2) state = ' ';
        fclose(f);
        is_held = tid == pid ? state == 'Z'
                             : strncmp(name, "kvp-tier", 8) == 0 || strncmp(name, "iou-wrk-", 8) == 0 || state == 'X';
    }
    closedir(tasks);
    return is_held;
}

static bool
has_node(const keeper_t *k)
{
    return k->node_pidfd >= 0 && !kvp_pidfd_is_over(k->node_pidfd) && !is_held_by_device(k->node_pid);
}

static void
on_hello(keeper_t *k, const kvp_keeper_msg_t *hello, int fd, int pidfd)
{
    int pid = -1;
    kvp_err_t err = kvp_pidfd_check(fd, pidfd, &pid);
    bool is_same;

    if (err == KVP_OK && strcmp(hello->name, k->settings->name) != 0) err = KVP_INVALID;
    /* Another process gets BUSY until the previous node process has ended and its packets are read. The node process
     * itself may connect again. */
    is_same = pid == k->node_pid && (hello->is_new || k->conn_fd < 0);
    if (err == KVP_OK && !is_same && (has_node(k) || k->conn_fd >= 0)) err = KVP_BUSY;
    if (err == KVP_OK) {
        serve_node(k, hello, fd, pidfd, pid);
        return;
    }
    kvp_ignore(send_welcome(fd, err, k->node_pid, NULL), "it is sent away");
    close(pidfd);
    close(fd);
}

/* Handles END from a tool: the keeper ends. The connection closes only after all memory was freed. */
static void
on_end(keeper_t *k, const kvp_keeper_msg_t *msg, int fd)
{
    kvp_err_t err = strcmp(msg->name, k->settings->name) != 0 ? KVP_INVALID : has_node(k) ? KVP_BUSY : KVP_OK;

    kvp_ignore(send_welcome(fd, err, err == KVP_BUSY ? k->node_pid : (int)getpid(), NULL), "it sees the end as well");
    k->is_done = err == KVP_OK;
    if (!k->is_done) close(fd);
}

/* Handles ASK: another node lacks memory and asks for this keeper's state. */
static void
on_ask(const keeper_t *k, int fd)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_WELCOME, 0, k->settings->name);
    uint64_t gone_ns = kvp_now_ns() - k->since_ns;

    msg.pid = (uint32_t)getpid();
    if (k->conn_fd < 0 && !has_node(k)) {
        msg.held_bytes = kvp_keeper_table_bytes(&k->table);
        msg.hold_ms = (k->hold_ns - kvp_min_u64(k->hold_ns, gone_ns)) / KVP_NS_PER_MS;
    }
    kvp_ignore(kvp_keeper_send(fd, &msg, NULL, SEND_MS), "it asked, and may be gone");
    close(fd);
}

static void
on_connect(keeper_t *k)
{
    int fds[KVP_KEEPER_FDS_MAX], fd = accept4(k->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    kvp_keeper_msg_t msg;
    kvp_err_t err;

    if (fd < 0) return;
    err = kvp_keeper_is_peer(fd) ? kvp_keeper_recv(fd, &msg, fds, HELLO_MS) : KVP_INVALID;
    if (err == KVP_OK && msg.kind == KVP_KEEPER_HELLO) {
        on_hello(k, &msg, fd, fds[0]);
        return;
    }
    if (err == KVP_OK && msg.kind == KVP_KEEPER_END) {
        on_end(k, &msg, fd);
        return;
    }
    if (err == KVP_OK && msg.kind == KVP_KEEPER_ASK) {
        on_ask(k, fd);
        return;
    }
    for (uint32_t i = 0; err == KVP_OK && i < msg.fds_n; i++)
        close(fds[i]);
    kvp_ignore(send_welcome(fd, err == KVP_VERSION ? err : KVP_PROTO, (int)getpid(), NULL), "it is sent away");
    close(fd);
}

/* obey_node carries out a message of the node, and takes fds. */
static kvp_err_t
obey_node(keeper_t *k, const kvp_keeper_msg_t *msg, const int *fds)
{
    switch (msg->kind) {
    case KVP_KEEPER_FILES:
        return kvp_keeper_table_files(&k->table, msg, fds);
    case KVP_KEEPER_WRITER:
        return kvp_keeper_table_writer(&k->table, msg->process, msg->incarnation, fds[0]);
    case KVP_KEEPER_OVER:
        kvp_keeper_table_over(&k->table, msg->process, msg->incarnation);
        return KVP_OK;
    case KVP_KEEPER_DROP:
    case KVP_KEEPER_END:
        if (msg->is_new) free_memory(k);
        kvp_keeper_table_clear(&k->table, false); /* the files keep their pages, because the node itself frees them */
        k->is_done = msg->kind == KVP_KEEPER_END;
        return KVP_OK;
    default:
        for (uint32_t i = 0; i < msg->fds_n; i++)
            close(fds[i]);
        return KVP_PROTO;
    }
}

/* Handles a message of the node. If it cannot be carried out, no node may adopt the memory without the message's
 * content: the keeper drops its state and closes the connection, and the node hands over everything again. */
static void
on_message(keeper_t *k)
{
    int fds[KVP_KEEPER_FDS_MAX];
    kvp_keeper_msg_t msg;
    kvp_err_t err = kvp_keeper_recv(k->conn_fd, &msg, fds, 0);

    if (err == KVP_DEADLINE) return;
    if (err == KVP_DISCONNECTED) {
        node_lost(k);
        return;
    }
    if (err == KVP_OK) err = obey_node(k, &msg, fds);
    if (err == KVP_OK) return;
    kvp_log_error("keeper", "the node's memory is not held: %s", kvp_err_text(err));
    kvp_ignore(send_welcome(k->conn_fd, err, (int)getpid(), NULL), "the node sees the end as well");
    kvp_keeper_table_clear(&k->table, false);
    close_fd(&k->conn_fd);
}

/* ---- the loop */
/* Frees memory after its hold time. Ends a keeper that had neither node nor memory for idle_ns, or whose socket no node
 * can find any more. */
static void
look_around(keeper_t *k)
{
    uint64_t now = kvp_now_ns();
    struct stat st;

    if (k->conn_fd < 0 && k->node_pidfd >= 0 && kvp_pidfd_is_over(k->node_pidfd)) {
        close_fd(&k->node_pidfd);
        k->since_ns = now;
    }
    if (k->conn_fd >= 0 || k->node_pidfd >= 0) return;
    if (lstat(k->at.sun_path, &st) != 0 || st.st_ino != k->socket_inode) k->is_done = true;
    if (k->table.total > 0 && now - k->since_ns >= k->hold_ns) {
        kvp_log_warn("keeper", "no node of this name came for the memory, which is given back");
        free_memory(k);
        k->since_ns = now;
    }
    if (k->table.total == 0 && k->settings->idle_ns > 0 && now - k->since_ns >= k->settings->idle_ns) k->is_done = true;
}

static int
timeout_ms(const keeper_t *k)
{
    uint64_t stay_ns = k->table.total > 0 ? k->hold_ns : k->settings->idle_ns > 0 ? k->settings->idle_ns : UINT64_MAX;
    uint64_t gone_ns = kvp_now_ns() - k->since_ns;

    if (k->conn_fd >= 0 || k->node_pidfd >= 0) return -1;
    if (gone_ns >= stay_ns) return 0;
    return (int)kvp_min_u64((stay_ns - gone_ns) / KVP_NS_PER_MS + 1, LOOK_MS);
}

static void
run_loop(keeper_t *k, const sigset_t *open)
{
    while (!k->is_done && !is_told_to_stop) {
        int ms = timeout_ms(k);
        struct timespec wait = kvp_timespec((uint64_t)(ms < 0 ? 0 : ms) * KVP_NS_PER_MS);
        struct pollfd fds[3] = {{.fd = k->listen_fd, .events = POLLIN},
                                {.fd = k->conn_fd, .events = POLLIN},
                                {.fd = k->conn_fd >= 0 ? -1 : k->node_pidfd, .events = POLLIN}};

        if (ppoll(fds, KVP_ARRAY_LEN(fds), ms < 0 ? NULL : &wait, open) < 0) continue;
        if (fds[1].revents != 0) on_message(k); /* the node's packets are handled before another process is accepted */
        look_around(k);
        if (fds[0].revents != 0 && fds[1].revents == 0 && !k->is_done) on_connect(k);
    }
}

/* ---- start and end */
/* Locks the name, because each name has one keeper, and listens. The lock is held until the process ends. */
static kvp_err_t
listen_alone(keeper_t *k)
{
    char lock[sizeof k->at.sun_path + 8];
    struct stat st;

    if (kvp_keeper_at(k->settings->name, &k->at) != KVP_OK) return KVP_SYS;
    snprintf(lock, sizeof lock, "%s.lock", k->at.sun_path);
    k->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (k->lock_fd >= 0 && flock(k->lock_fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        kvp_log_error("keeper", "a keeper for \"%s\" runs already at %s", k->settings->name, k->at.sun_path);
        return KVP_BUSY;
    }
    unlink(k->at.sun_path);
    k->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (k->lock_fd >= 0 && k->listen_fd >= 0 &&
        bind(k->listen_fd, (const struct sockaddr *)&k->at, sizeof k->at) == 0 && chmod(k->at.sun_path, 0600) == 0 &&
        listen(k->listen_fd, BACKLOG) == 0 && lstat(k->at.sun_path, &st) == 0) {
        k->socket_inode = st.st_ino;
        return KVP_OK;
    }
    kvp_log_error("keeper", "cannot listen at %s: %m", k->at.sun_path);
    return KVP_SYS;
}

/* detach_process continues in a child that does not end with the terminal, pipe or parent. Returns false in the
 * parent. */
static bool
detach_process(void)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    pid_t child = fork();

    if (child < 0) kvp_log_error("keeper", "cannot go into the background: %m");
    if (child != 0) return false;
    setsid();
    for (int fd = 0; fd <= 2 && null_fd >= 0; fd++)
        dup2(null_fd, fd);
    if (chdir("/") != 0) kvp_log_debug("keeper", "chdir: %m");
    return true;
}

static int
keep_memory(const settings_t *settings)
{
    struct sigaction act = {.sa_handler = on_signal};
    keeper_t k = {.settings = settings,
                  .lock_fd = -1,
                  .listen_fd = -1,
                  .conn_fd = -1,
                  .node_pidfd = -1,
                  .node_pid = -1,
                  .table_pid = -1};
    sigset_t stops, open;

    /* File descriptors inherited through the node are closed: for example, an inherited file lock would outlive its
     * owner. */
    if (syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, 0u) != 0) kvp_log_debug("keeper", "files stay open: %m");
    if (listen_alone(&k) != KVP_OK) return 1;
    if (settings->is_detached && !detach_process()) return 0;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    sigprocmask(SIG_BLOCK, &stops, &open);
    sigdelset(&open, SIGTERM);
    sigdelset(&open, SIGINT);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    k.since_ns = kvp_now_ns();
    if (!settings->is_detached && printf("ready unix=%s\n", k.at.sun_path) > 0) fflush(stdout);
    run_loop(&k, &open);
    unlink(k.at.sun_path);
    /* The pages are kept if a node is alive, because the live node uses its memory and hands it to the next keeper. */
    kvp_keeper_table_clear(&k.table, k.conn_fd < 0 && !has_node(&k));
    return 0;
}

/* end_other ends the keeper of a name. Returns an exit code: 0 also if no keeper runs. */
static int
end_other(const settings_t *settings)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_END, 0, settings->name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), fds[KVP_KEEPER_FDS_MAX];
    struct sockaddr_un at;
    kvp_err_t err;

    if (fd < 0 || kvp_keeper_at(settings->name, &at) != KVP_OK) return 1;
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) != 0 && (errno == ENOENT || errno == ECONNREFUSED))
        return 0;
    err = kvp_keeper_is_peer(fd) ? kvp_keeper_send(fd, &msg, NULL, HELLO_MS) : KVP_INVALID;
    if (err == KVP_OK) err = kvp_keeper_recv(fd, &msg, fds, SEND_MS);
    if (err == KVP_OK) err = msg.err;
    if (err == KVP_OK && kvp_keeper_recv(fd, &msg, fds, END_MS) == KVP_DISCONNECTED) return 0;
    kvp_log_error("keeper", "the keeper for \"%s\" does not end: %s", settings->name,
                  err == KVP_BUSY ? "its node runs"
                  : err == KVP_OK ? "it takes too long"
                                  : kvp_err_text(err));
    return 1;
}

int
main(int argc, char **argv)
{
    settings_t settings = {.name = NULL};
    kvp_conf_t conf;
    int rc;

    kvp_stdfd_hold();
    kvp_limit_survive_file_size();
    kvp_conf_init(&conf, &spec);
    rc = kvp_conf_parse(&conf, argc, argv, &settings);
    if (rc == KVP_CONF_RUN && (settings.name[0] == '\0' || strlen(settings.name) > KVP_NAME_MAX)) {
        kvp_log_error("keeper", "a name has from 1 to 128 bytes");
        rc = KVP_CONF_USAGE;
    }
    if (rc == KVP_CONF_RUN && kvp_runtime_set(settings.runtime_dir, NULL) != KVP_OK) rc = KVP_CONF_USAGE;
    if (rc == KVP_CONF_RUN) {
        kvp_limit_raise_files();
        rc = settings.is_end ? end_other(&settings) : keep_memory(&settings);
    }
    kvp_conf_fini(&conf);
    return rc;
}
