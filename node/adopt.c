/* SPDX-License-Identifier: Apache-2.0
 * The start of a node that has a keeper (a process that holds the node's memory across restarts): finds or starts the
 * keeper, and adopts the memory of this node's previous process. docs/adr/0030-keeper.md. */
#include "node/priv.h"

#include "net/pidfd.h"

#include <string.h>
#include <unistd.h>

#define MEET_NS (2 * KVP_NS_PER_S) /* how long to wait for the keeper's answer */
#define BUSY_NS (5 * KVP_NS_PER_S) /* how long to wait for the end of the previous process of this node */
#define TAKE_MS 5000 /* how long to wait for the keeper's next FILES or WRITER message */

static const char *
find_misfit(const kvp_node_t *node, const kvp_node_mem_conf_t *conf, uint32_t files_n)
{
    if (conf->size_bytes != node->conf.size_bytes || conf->chunk_bytes != node->conf.chunk_bytes)
        return "--memory or --chunk-bytes is another";
    if (files_n != 1 + 2 * kvp_node_mem_chunks(conf)) return "files are missing";
    if (!kvp_node_book_is_whole(&node->keep.book)) return "it was not handed over to the end";
    return NULL;
}

/* map_files maps the book (fds[0]) and the memory files that the keeper held, and takes ownership of all n file
 * descriptors. Returns NULL, or the reason why it failed. */
static const char *
map_files(kvp_node_t *node, const int *fds, uint32_t n, kvp_node_mem_t **mem_out)
{
    kvp_node_keep_t *k = &node->keep;
    kvp_node_mem_conf_t conf;
    uint8_t uuid[16];
    kvp_err_t err = kvp_node_book_open(&k->book, fds[0], &conf, uuid);
    const char *why = err == KVP_VERSION ? "its book has another version" : err != KVP_OK ? "its book is broken" : NULL;

    if (why == NULL) why = find_misfit(node, &conf, n);
    if (why == NULL) {
        err = kvp_node_mem_adopt(&conf, uuid, fds + 1, mem_out, &why);
        return err == KVP_OK ? NULL : why;
    }
    for (uint32_t i = 1; i < n; i++)
        close(fds[i]);
    return why;
}

/* restore_writer records a process of the keeper's table that may store into the memory, and takes its pidfd. Returns
 * false if memory runs out. A process that has exited is not recorded: it stores nothing more. */
static bool
restore_writer(kvp_node_t *node, const kvp_keeper_writer_t *w)
{
    int pid = kvp_pidfd_pid(w->pidfd);
    kvp_node_process_t *proc;

    if (pid <= 0 || kvp_pidfd_is_over(w->pidfd)) {
        kvp_node_keep_writer_over(node, &(kvp_node_process_t){.number = w->process}, 0);
        close(w->pidfd);
        return true;
    }
    if (kvp_node_proc_get(node, pid, w->pidfd, &proc) != KVP_OK) return false;
    if (kvp_list_is_empty(&proc->core.records)) proc->number = w->process;
    return kvp_node_core_restore_writer(node->core, &proc->core, w->incarnation) == KVP_OK;
}

/* restore_state restores the core's state from the book, and the writers from the keeper's table. Returns NULL, or the
 * reason why it failed; the caller then drops the memory. */
static const char *
restore_state(kvp_node_t *node, const kvp_keeper_table_t *held)
{
    kvp_node_keep_t *k = &node->keep;
    uint64_t sealed, broken;
    const uint8_t *state;
    size_t len;

    if (!kvp_node_book_load(&k->book, &state, &len) || kvp_node_core_restore(node->core, state, len) != KVP_OK)
        return "its book is broken";
    for (uint32_t i = 0; i < held->writers_n; i++) {
        kvp_keeper_writer_t *w = &held->writers[i];
        bool is_entered = restore_writer(node, w);

        k->processes = kvp_max_u64(k->processes, w->process);
        w->pidfd = -1;
        if (!is_entered) return "there is no memory for its writers";
    }
    kvp_node_core_restored(node->core);
    kvp_node_core_audit(node->core, &sealed, &broken);
    kvp_log_info(
        "node",
        "adopted the memory of the process before this one bytes=%llu objects=%llu broken=%llu writers=%u term=%u",
        (unsigned long long)node->conf.size_bytes, (unsigned long long)(sealed - broken), (unsigned long long)broken,
        held->writers_n, kvp_node_core_term(node->core));
    k->adopted_objects = sealed - broken;
    return NULL;
}

/* adopt_files maps the files in `held`, serves the memory and restores the state. *why_out is NULL, or the reason to
 * free the memory. An error means that neither this memory nor new memory can be served. */
static kvp_err_t
adopt_files(kvp_node_t *node, kvp_keeper_table_t *held, const char **why_out)
{
    kvp_node_mem_t *mem;
    uint64_t epoch = node->epoch;
    kvp_err_t err;

    *why_out = map_files(node, held->files, held->files_n, &mem);
    held->files_n = 0;
    if (*why_out != NULL) return KVP_OK;
    mem->is_kept = true;
    err = kvp_node_use_memory(node, mem);
    if (err != KVP_OK) return err;
    mem->is_kept = false;
    node->epoch = mem->conf.epoch;
    kvp_node_book_load_owners(&node->keep.book, mem);
    *why_out = restore_state(node, held);
    if (*why_out == NULL) {
        node->is_fresh = false;
        kvp_node_fence_anew(node);
        return KVP_OK;
    }
    kvp_node_drop_memory(node);
    kvp_node_core_forget_pool(node->core);
    node->epoch = epoch;
    return KVP_OK;
}

/* Reads all files and writers that the keeper's WELCOME announced. */
static kvp_err_t
take_all(kvp_node_keep_t *k, const kvp_keeper_msg_t *welcome, kvp_keeper_table_t *held)
{
    kvp_err_t err = KVP_OK;

    while (err == KVP_OK && (held->files_n < welcome->total || held->writers_n < welcome->writers)) {
        int fds[KVP_KEEPER_FDS_MAX];
        kvp_keeper_msg_t msg;

        err = kvp_keeper_recv(k->link.fd, &msg, fds, TAKE_MS);
        if (err != KVP_OK) break;
        if (msg.kind == KVP_KEEPER_FILES && msg.total == welcome->total)
            err = kvp_keeper_table_files(held, &msg, fds);
        else if (msg.kind == KVP_KEEPER_WRITER)
            err = kvp_keeper_table_writer(held, msg.process, msg.incarnation, fds[0]);
        else
            err = KVP_PROTO;
    }
    return err;
}

/* Adopts the keeper's memory, if it has any. On an error the node ends, and the keeper still has the memory. */
static kvp_err_t
adopt_from(kvp_node_t *node, const kvp_keeper_msg_t *welcome)
{
    kvp_node_keep_t *k = &node->keep;
    kvp_keeper_table_t held = {.total = 0};
    kvp_err_t err = take_all(k, welcome, &held);
    const char *why = err == KVP_OK ? NULL : kvp_err_text(err);
    bool has_all = err == KVP_OK;

    k->held_bytes = kvp_keeper_table_bytes(&held);
    err = has_all && held.files_n > 0 ? adopt_files(node, &held, &why) : KVP_OK;
    kvp_keeper_table_clear(&held, false);
    /* check before the keeper's memory is freed that new memory will fit */
    if (err == KVP_OK && why != NULL) err = kvp_node_check_fit(node, k->held_bytes);
    if (err != KVP_OK) {
        kvp_node_keep_leave(node);
        return err;
    }
    if (why == NULL) return KVP_OK;
    kvp_log_warn("node", "new memory is allocated, and the keeper's memory is given up: %s", why);
    kvp_node_keep_give_up(node, true);
    if (!has_all) kvp_node_keep_lose(node, "it broke off");
    return KVP_OK;
}

static bool
has_any_port(const char *listen)
{
    size_t n = listen == NULL ? 0 : strlen(listen);

    return n < 2 || strcmp(listen + n - 2, ":0") == 0;
}

kvp_err_t
kvp_node_keep_open(kvp_node_t *node, const kvp_node_conf_t *conf)
{
    kvp_node_keep_t *k = &node->keep;
    kvp_keeper_msg_t welcome;
    kvp_err_t err;

    if (conf->keep == KVP_KEEP_NONE) return KVP_OK;
    if (conf->name == NULL && node->serve.handshakes == NULL && has_any_port(conf->listen)) {
        kvp_log_info("node",
                     "no keeper holds the memory: without a --name or a port no later node has this one's name");
        return KVP_OK;
    }
    k->mode = conf->keep;
    err = kvp_keeper_link_init(&k->link, node->conf.name, conf->keep_ns / KVP_NS_PER_MS);
    if (err != KVP_OK) {
        k->mode = KVP_KEEP_NONE;
        return KVP_OK; /* the failed set-up of the link to the keeper is logged; a node can serve without a keeper */
    }
    err = kvp_keeper_link_meet(&k->link, MEET_NS, BUSY_NS, &welcome);
    if (err == KVP_BUSY) {
        kvp_log_error("node", "a node of the name \"%s\" runs on this host (pid %u): give each its own --name",
                      node->conf.name, welcome.pid);
        return KVP_SYS;
    }
    if (err != KVP_OK) {
        kvp_log_warn("node", "new memory is allocated, without a keeper for now: %s", kvp_node_keep_why(err));
        kvp_node_keep_lose(node, "");
        return KVP_OK;
    }
    kvp_node_keep_set_up(node, &welcome);
    return adopt_from(node, &welcome);
}
