/* SPDX-License-Identifier: Apache-2.0
 * The processes of this host that are attached, or may still store. */
#include "node/priv.h"

#include "net/pidfd.h"

#include <stdlib.h>
#include <unistd.h>

static void
on_exit_event(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    kvp_node_process_t *proc = kvp_container_of(ev, kvp_node_process_t, ev);

    (void)events;
    kvp_node_unwatch(node, ev);
    kvp_node_keep_writer_over(node, proc, 0);
    kvp_node_core_process_dead(node->core, &proc->core);
}

kvp_err_t
kvp_node_proc_get(kvp_node_t *node, int pid, int pidfd, kvp_node_process_t **proc_out)
{
    kvp_node_process_t *proc;
    kvp_err_t err;

    kvp_list_foreach (link, &node->serve.procs) {
        proc = kvp_list_entry(link, kvp_node_process_t, link);
        /* A process that has exited does not match: another process may have got its number. */
        if (proc->pid != pid || proc->core.is_dead || kvp_pidfd_is_over(proc->ev.fd)) continue;
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
    proc->number = ++node->keep.processes;
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
