/* SPDX-License-Identifier: Apache-2.0
 * Daemons as children of the tool, and a whole pool of them: a master and nodes on this host. A
 * child leads a process group of its own, so that Ctrl-C reaches the tool first, and gets a stop
 * signal when the tool dies. Main thread only. */
#ifndef KVP_TOOLS_BASE_PROCS_H
#define KVP_TOOLS_BASE_PROCS_H

#include "common/parse.h"

#include <sys/types.h>

#define KVP_PROCS_NODES_MAX 16u

/* One child. pid 0 and descriptors -1 are "none". */
typedef struct {
    char name[32];
    pid_t pid; /* 0 = none */
    int pidfd; /* readable once the child is dead */
    int out_fd; /* its standard output after the ready line */
    char listen[KVP_HOSTPORT_TEXT_MAX]; /* from the ready line; empty where it has none */
    char http[KVP_HOSTPORT_TEXT_MAX];
} kvp_proc_t;

/* kvp_proc_find writes where the program is: in KVPOOL_BIN_DIR, else beside the tool, where the
 * build puts it, or in PATH. */
bool kvp_proc_find(const char *program, char *path, size_t cap);

/* kvp_proc_start finds the program, starts it with argv (argv[0] becomes its name) and waits for
 * its ready line. On failure it prints the reason on standard error, leaves no process, and returns
 * SYS, or DEADLINE. */
kvp_err_t kvp_proc_start(kvp_proc_t *proc, const char *name, const char *program, const char **argv) KVP_MUST_USE;

/* kvp_proc_stop asks the child to stop, kills it after 10 s, and returns its exit status: 0, or a
 * printed failure. No effect for "none". */
int kvp_proc_stop(kvp_proc_t *proc);

typedef struct {
    const char *listen; /* of the master, HOST:PORT */
    const char *http; /* of the master, HOST:PORT; NULL = a free loopback port */
    const char *data_dir; /* of the master; NULL = "none" */
    const char *log_level; /* NULL = "warn" */
    const char *transports; /* of the nodes; NULL = all */
    const char *node_listen; /* HOST:PORT, port 0; NULL = loopback */
    bool has_events; /* the master publishes */
    uint32_t nodes; /* 1 to KVP_PROCS_NODES_MAX */
    uint64_t memory_bytes[KVP_PROCS_NODES_MAX];
    uint64_t chunk_bytes; /* 0 = the nodes choose */
    uint64_t extent_bytes; /* size of the objects: chunks are cut so that these fill them; 0 = chunk_bytes */
} kvp_local_conf_t;

typedef struct {
    kvp_proc_t master;
    kvp_proc_t conductor; /* the caller may start one after the pool; it is stopped with the rest */
    kvp_proc_t nodes[KVP_PROCS_NODES_MAX];
    uint32_t nodes_n;
} kvp_local_pool_t;

/* kvp_local_start starts a master, then the nodes, each on a free port. On failure nothing is left running. */
kvp_err_t kvp_local_start(kvp_local_pool_t *local, const kvp_local_conf_t *conf) KVP_MUST_USE;

/* kvp_local_events writes where the master's events, or its "replay"s, are: names that no file
 * stands for, of this process alone. */
#define KVP_LOCAL_EVENTS_MAX 64u
const char *kvp_local_events(const char *what, char dst[KVP_LOCAL_EVENTS_MAX]);

/* kvp_local_stop stops the nodes, then the master. Returns how many did not end well. Legal on a zeroed value. */
int kvp_local_stop(kvp_local_pool_t *local);

/* kvp_local_dead returns a child that has ended by itself, or NULL. */
const kvp_proc_t *kvp_local_dead(const kvp_local_pool_t *local);

/* A verb with children reads the stop signals from a descriptor, so that it can stop the children
 * in order first. kvp_stop_catch blocks SIGINT, SIGTERM and SIGHUP in this thread and the threads
 * that it starts, and returns a descriptor that is readable after such a signal; -1 with errno.
 * Children get an empty mask again. */
int kvp_stop_catch(void);

/* kvp_stop_has_come returns, without waiting, whether such a signal has come. From then on another
 * one kills as usual. */
bool kvp_stop_has_come(int fd);

#endif
