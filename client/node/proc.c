/* SPDX-License-Identifier: Apache-2.0
 * Processes by pidfd. The kernel makes a pidfd readable when its process has exited, after the memory is unmapped: from
 * then on nothing of it can land.
 */
#include "client/node/priv.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* pid_of_pidfd reads which process a pidfd names; -1 = it is no pidfd, or its process is gone. */
static int
pid_of_pidfd(int pidfd)
{
    char path[64], line[128];
    int pid = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    f = fopen(path, "re");
    if (f == NULL) return -1;
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "Pid: %d", &pid) == 1) break;
    }
    fclose(f);
    return pid;
}

kvp_err_t
kvp_node_proc_check(int socket_fd, int pidfd, int *pid_out)
{
    struct ucred cred;
    socklen_t len = sizeof cred;

    if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) return KVP_SYS;
    /* 0: the peer lives in a process namespace that is not seen from here. */
    if (cred.pid <= 0 || pid_of_pidfd(pidfd) != cred.pid) return KVP_INVALID;
    *pid_out = cred.pid;
    return KVP_OK;
}

static bool
has_exited(const kvp_node_process_t *proc)
{
    struct pollfd p = {.fd = proc->ev.fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}

static void
on_exit_event(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    kvp_node_process_t *proc = kvp_container_of(ev, kvp_node_process_t, ev);

    (void)events;
    kvp_node_unwatch(node, ev);
    kvp_node_core_process_dead(node->core, &proc->core);
}

kvp_err_t
kvp_node_proc_get(kvp_node_t *node, int pid, int pidfd, kvp_node_process_t **proc_out)
{
    kvp_node_process_t *proc;
    kvp_err_t err;

    kvp_list_foreach (link, &node->serve.procs) {
        proc = kvp_list_entry(link, kvp_node_process_t, link);
        /* The number of a process that has exited may be another one's by now. */
        if (proc->pid != pid || proc->core.is_dead || has_exited(proc)) continue;
        close(pidfd);
        *proc_out = proc;
        return KVP_OK;
    }
    proc = calloc(1, sizeof *proc);
    if (proc == NULL) {
        close(pidfd);
        return KVP_NOMEM;
    }
    kvp_list_init(&proc->link);
    kvp_list_add_tail(&node->serve.procs, &proc->link);
    kvp_node_proc_init(&proc->core);
    proc->pid = pid;
    proc->ev = (kvp_node_ev_t){.fd = pidfd, .fn = on_exit_event};
    err = kvp_node_watch(node, &proc->ev, EPOLLIN);
    if (err != KVP_OK) {
        kvp_node_proc_drop(node, proc);
        return err;
    }
    *proc_out = proc;
    return KVP_OK;
}

void
kvp_node_proc_drop(kvp_node_t *node, kvp_node_process_t *proc)
{
    kvp_node_unwatch(node, &proc->ev);
    proc->ev.fn = NULL;
    close(proc->ev.fd);
    kvp_list_del(&proc->link);
    kvp_list_del(&proc->core.idle);
    kvp_node_free_later(node, &proc->deferred, proc);
}
