/* SPDX-License-Identifier: Apache-2.0
 * Runs daemons as children of the tool, and a whole pool of a master and nodes on this host. A child leads its own
 * process group, so that Ctrl-C reaches only the tool, and a child gets a stop signal when the tool dies. Main
 * thread only. */
#ifndef KVP_TOOLS_BASE_PROCS_H
#define KVP_TOOLS_BASE_PROCS_H

#include "common/parse.h"

#include <sys/types.h>

#define KVP_PROCS_NODES_MAX 16u

/* One child process. pid 0 and descriptors of -1 mean that there is no child. */
typedef struct {
    char name[32];
    pid_t pid; /* process id of the child; 0 = no child */
    int pidfd; /* pidfd, which is readable once the child is dead */
    int out_fd; /* the child's standard output after its ready line */
    char listen[KVP_HOSTPORT_TEXT_MAX]; /* listening address in the child's ready line; "" = none */
    char http[KVP_HOSTPORT_TEXT_MAX];
} kvp_proc_t;

/* kvp_proc_find writes the path of the program. It looks in KVPOOL_BIN_DIR; if this is unset, beside the tool,
 * where the build puts daemons, and in PATH. It returns false if there is no such program. */
bool kvp_proc_find(const char *program, char *path, size_t cap);

/* kvp_proc_start finds and starts the program with argv (argv[0] becomes its name) and waits for its ready line, at
 * most 30 s. On failure it prints the reason on standard error, leaves no process, and returns SYS. */
kvp_err_t kvp_proc_start(kvp_proc_t *proc, const char *name, const char *program, const char **argv) KVP_MUST_USE;

/* kvp_proc_stop sends the child SIGTERM, kills it after 10 s, and waits for its end. It returns 0 if the child exited
 * with 0, else 1 after printing how it ended. It does nothing if there is no child. */
int kvp_proc_stop(kvp_proc_t *proc);

typedef struct {
    const char *listen; /* listening address of the master, HOST:PORT */
    const char *http; /* HTTP address of the master, HOST:PORT; NULL = a free loopback port */
    const char *data_dir; /* data directory of the master; NULL = "none" */
    const char *log_level; /* log level of the master and the nodes; NULL = "warn" */
    const char *transports; /* transports of the nodes; NULL = all */
    const char *node_listen; /* listening address of the nodes, HOST:PORT with port 0; NULL = loopback */
    bool has_events; /* a flag: the master publishes events */
    bool is_insecure; /* a flag: the daemons have the option --insecure */
    uint32_t nodes; /* number of nodes to start, 1 to KVP_PROCS_NODES_MAX */
    uint64_t memory_bytes[KVP_PROCS_NODES_MAX];
    uint64_t chunk_bytes; /* chunk size of the nodes; 0 = the nodes choose */
    uint64_t extent_bytes; /* space of one object, of which the chunk size shall be a multiple; 0 = use chunk_bytes */
} kvp_local_conf_t;

typedef struct {
    kvp_proc_t master;
    kvp_proc_t conductor; /* a conductor that the caller may start after the pool; kvp_local_stop stops it, too */
    kvp_proc_t nodes[KVP_PROCS_NODES_MAX];
    uint32_t nodes_n;
} kvp_local_pool_t;

/* kvp_local_start starts a master, then the nodes, each on a free port. After a failure no child is left running. */
kvp_err_t kvp_local_start(kvp_local_pool_t *local, const kvp_local_conf_t *conf) KVP_MUST_USE;

/* kvp_local_events writes the endpoint of the master's events, or of its replays (what = "replay"). The endpoints
 * are abstract sockets, without a file, with names unique to this process. */
#define KVP_LOCAL_EVENTS_MAX 64u
const char *kvp_local_events(const char *what, char dst[KVP_LOCAL_EVENTS_MAX]);

/* kvp_local_stop stops the nodes, then the master. It returns the number of children that ended with a failure.
 * Legal on a zeroed struct. */
int kvp_local_stop(kvp_local_pool_t *local);

/* kvp_local_dead returns a child that has ended by itself, or NULL. */
const kvp_proc_t *kvp_local_dead(const kvp_local_pool_t *local);

/* kvp_stop_catch blocks SIGINT, SIGTERM and SIGHUP in this thread and in threads that it starts, and returns a
 * descriptor that is readable after such a signal; -1 with errno. With the descriptor a verb can stop its children
 * in order before it exits. Children start with an empty signal mask. */
int kvp_stop_catch(void);

/* kvp_stop_has_come returns whether SIGINT, SIGTERM or SIGHUP has arrived; it does not wait. After
 * it has returned true, another signal kills the tool as usual. */
bool kvp_stop_has_come(int fd);

#endif
