/* SPDX-License-Identifier: Apache-2.0
 * The node's side of its keeper: hands the memory to the keeper, and adopts the memory that the keeper holds.
 * docs/adr/0030-keeper.md.
 *
 * Design notes.
 * - The book says "whole" only while the keeper has all files and the pidfd of each process that may store: the pidfd
 *   of a writer is in the keeper's queue before the writer gets a mapping. If sending fails, the book says "not
 *   whole" first, and no process adopts the memory.
 * - A stopped keeper reads no packets: the node treats it as dead when its queue is full, or when it does not answer
 *   Hello. */
#include "node/priv.h"

#include "net/pidfd.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEET_NS (2 * KVP_NS_PER_S) /* how long to wait for the keeper's answer */
#define BUSY_NS (5 * KVP_NS_PER_S) /* how long to wait for the end of the previous process of this node */
#define TAKE_MS 5000 /* how long to wait for the next part of the keeper's state */
#define WELCOME_NS (2 * KVP_NS_PER_S)
#define AGAIN_NS (50 * KVP_NS_PER_MS)
#define AGAIN_MAX_NS (5 * KVP_NS_PER_S)

static void on_keeper(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events);

/* ---- messages to the keeper */
/* drop_keeper drops the keeper's connection and marks the book as not whole, so that no process adopts its state. The
 * node then calls a keeper again. */
static void
drop_keeper(kvp_node_t *node, const char *why)
{
    kvp_node_keep_t *k = &node->keep;
    uint32_t missed;

    if (k->book.mem.addr != NULL) kvp_node_book_set_whole(&k->book, false);
    if (k->state != KVP_KEEP_AWAY && kvp_log_limit_ok(&k->noise, &missed))
        kvp_log_warn("node", "the memory has no keeper for now: %s", why);
    kvp_node_unwatch(node, &k->ev);
    kvp_keeper_link_close(&k->link);
    k->state = KVP_KEEP_AWAY;
    k->again_ns = kvp_max_u64(AGAIN_NS, kvp_min_u64(2 * k->again_ns, AGAIN_MAX_NS));
    k->due_ns = kvp_now_ns() + k->again_ns;
}

static void
send_to_keeper(kvp_node_t *node, const kvp_keeper_msg_t *msg, const int *fds)
{
    kvp_node_keep_t *k = &node->keep;
    kvp_err_t err;

    if (k->state != KVP_KEEP_UP) return;
    err = kvp_keeper_send(k->link.fd, msg, fds, KVP_KEEPER_SEND_MS);
    if (err != KVP_OK) drop_keeper(node, err == KVP_DEADLINE ? "it takes no messages" : "its connection is over");
}

static void
tell_writer(void *arg, kvp_node_proc_t *core, uint64_t incarnation)
{
    const kvp_node_process_t *proc = kvp_container_of(core, kvp_node_process_t, core);
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_WRITER, 1, NULL);

    msg.process = proc->number;
    msg.incarnation = incarnation;
    send_to_keeper(arg, &msg, &proc->ev.fd);
}

static int
file_at(const kvp_node_t *node, uint32_t at)
{
    const kvp_node_mem_t *mem = node->mem;

    if (at == 0) return node->keep.book.mem.fd;
    return at <= mem->chunk_n ? mem->chunks[at - 1].meta.fd : mem->chunks[at - 1 - mem->chunk_n].payload.fd;
}

static void
tell_files(kvp_node_t *node)
{
    uint32_t total = 1 + 2 * node->mem->chunk_n, at = 0;

    while (at < total) {
        uint32_t n = (uint32_t)kvp_min_u64(total - at, KVP_KEEPER_FDS_MAX);
        kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_FILES, n, NULL);
        int fds[KVP_KEEPER_FDS_MAX];

        msg.first = at;
        msg.total = total;
        for (uint32_t i = 0; i < n; i++)
            fds[i] = file_at(node, at++);
        send_to_keeper(node, &msg, fds);
    }
}

void
kvp_node_keep_hand_over(kvp_node_t *node)
{
    kvp_node_keep_t *k = &node->keep;

    if (k->state != KVP_KEEP_UP || node->mem == NULL) return;
    if (k->book.mem.addr == NULL && kvp_node_book_make(&k->book, node->mem) != KVP_OK) return;
    k->is_unsaved = true;
    kvp_node_keep_save(node);
    tell_files(node);
    kvp_node_core_each_writer(node->core, tell_writer, node);
    if (k->state != KVP_KEEP_UP || k->is_unsaved) return;
    kvp_node_book_set_whole(&k->book, true);
    kvp_log_info("node", "the memory is in the hands of a keeper pid %u", k->pid);
}

void
kvp_node_keep_save(kvp_node_t *node)
{
    kvp_node_keep_t *k = &node->keep;
    kvp_buf_t state;

    k->is_unsaved |= kvp_node_core_take_changed(node->core);
    if (!k->is_unsaved || k->book.mem.addr == NULL) return;
    kvp_buf_init(&state, 0);
    kvp_node_core_save(node->core, &state);
    k->is_unsaved = state.err != KVP_OK || !kvp_node_book_save(&k->book, state.data, state.len);
    kvp_buf_fini(&state);
    if (k->is_unsaved) drop_keeper(node, "there is no room for what it has to know");
}

void
kvp_node_keep_writer(kvp_node_t *node, kvp_node_process_t *proc, uint64_t incarnation)
{
    tell_writer(node, &proc->core, incarnation);
}

void
kvp_node_keep_writer_over(kvp_node_t *node, const kvp_node_process_t *proc, uint64_t incarnation)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_OVER, 0, NULL);

    msg.process = proc->number;
    msg.incarnation = incarnation;
    send_to_keeper(node, &msg, NULL);
}

static void
drop_state(kvp_node_t *node, bool is_alone)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_DROP, 0, NULL);
    kvp_node_keep_t *k = &node->keep;

    msg.is_new = is_alone;
    if (k->book.mem.addr != NULL) kvp_node_book_set_whole(&k->book, false);
    kvp_node_book_close(&k->book);
    send_to_keeper(node, &msg, NULL);
}

void
kvp_node_keep_drop(kvp_node_t *node)
{
    drop_state(node, false);
}

/* leave_keeper closes the connection without a message: the keeper keeps the memory. */
static void
leave_keeper(kvp_node_t *node)
{
    kvp_node_keep_t *k = &node->keep;

    kvp_node_book_close(&k->book);
    kvp_node_unwatch(node, &k->ev);
    kvp_keeper_link_close(&k->link);
    k->state = KVP_KEEP_AWAY;
    k->mode = KVP_KEEP_NONE;
}

/* ---- adopting */
static const char *
find_misfit(const kvp_node_t *node, const kvp_node_mem_conf_t *conf, uint32_t files_n)
{
    if (conf->size_bytes != node->size_bytes || conf->chunk_bytes != node->chunk_bytes)
        return "--memory or --chunk-bytes is another";
    if (files_n != 1 + 2 * kvp_node_mem_chunks(conf)) return "files are missing";
    if (!kvp_node_book_is_whole(&node->keep.book)) return "it was not handed over to the end";
    return NULL;
}

/* map_files maps the files that the keeper held, and takes all descriptors. Returns NULL, or the reason why it
 * failed. */
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

/* Restores a writer from the keeper's table; takes its pidfd. Returns false without memory. A process that has exited
 * is not restored: its end proves that it stores nothing more. */
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

/* Restores the core's state and the writers. Returns NULL, or the reason why it failed; the caller then drops the
 * memory. */
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
        "adopted the memory of the process before this one bytes %llu objects %llu broken %llu writers %u term "
        "%u",
        (unsigned long long)node->size_bytes, (unsigned long long)(sealed - broken), (unsigned long long)broken,
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
    /* the check comes before the keeper's memory is freed */
    if (err == KVP_OK && why != NULL) err = kvp_node_check_fit(node, k->held_bytes);
    if (err != KVP_OK) {
        leave_keeper(node);
        return err;
    }
    if (why == NULL) return KVP_OK;
    kvp_log_warn("node", "new memory is allocated, and the keeper's memory is given up: %s", why);
    drop_state(node, true);
    if (!has_all) drop_keeper(node, "it broke off");
    return KVP_OK;
}

/* ---- lifecycle */
static void
set_up(kvp_node_t *node, const kvp_keeper_msg_t *welcome)
{
    kvp_node_keep_t *k = &node->keep;

    k->state = KVP_KEEP_UP;
    k->pid = welcome->pid;
    k->again_ns = 0;
    k->ev = (kvp_node_ev_t){.fd = k->link.fd, .fn = on_keeper};
    if (kvp_node_watch(node, &k->ev, EPOLLIN) != KVP_OK) drop_keeper(node, "it cannot be watched");
}

static const char *
explain_err(kvp_err_t err)
{
    if (err == KVP_VERSION) return "the running keeper is of another version: end it, and this node starts its own";
    return err == KVP_DEADLINE ? "it does not answer" : kvp_err_text(err);
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
    if (conf->name == NULL && has_any_port(conf->listen)) {
        kvp_log_info("node",
                     "no keeper holds the memory: without a --name or a port no later node has this one's name");
        return KVP_OK;
    }
    k->mode = conf->keep;
    err = kvp_keeper_link_init(&k->link, node->name, conf->keep_ns / KVP_NS_PER_MS);
    if (err != KVP_OK) {
        k->mode = KVP_KEEP_NONE;
        return KVP_OK; /* the failure is logged, and a node without a keeper can serve */
    }
    err = kvp_keeper_link_meet(&k->link, MEET_NS, BUSY_NS, &welcome);
    if (err == KVP_BUSY) {
        kvp_log_error("node", "a node of the name \"%s\" runs on this host (pid %u): give each its own --name",
                      node->name, welcome.pid);
        return KVP_SYS;
    }
    if (err != KVP_OK) {
        kvp_log_warn("node", "new memory is allocated, without a keeper for now: %s", explain_err(err));
        drop_keeper(node, "");
        return KVP_OK;
    }
    set_up(node, &welcome);
    return adopt_from(node, &welcome);
}

static void
on_welcome(kvp_node_t *node, const kvp_keeper_msg_t *msg)
{
    if (msg->kind != KVP_KEEPER_WELCOME || msg->err != KVP_OK || msg->total > 0) {
        drop_keeper(node, msg->kind == KVP_KEEPER_WELCOME ? explain_err(msg->err) : kvp_err_text(KVP_PROTO));
        return;
    }
    kvp_node_unwatch(node, &node->keep.ev);
    set_up(node, msg);
    kvp_node_keep_hand_over(node);
}

static void
on_keeper(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    kvp_node_keep_t *k = &node->keep;
    int fds[KVP_KEEPER_FDS_MAX];
    kvp_keeper_msg_t msg;
    kvp_err_t err = kvp_keeper_recv(k->link.fd, &msg, fds, 0);

    (void)ev, (void)events;
    if (err == KVP_DEADLINE) return;
    for (uint32_t i = 0; err == KVP_OK && i < msg.fds_n; i++)
        close(fds[i]);
    if (err == KVP_OK && k->state == KVP_KEEP_ASKED) {
        on_welcome(node, &msg);
        return;
    }
    /* a WELCOME carries the reason why the keeper does not hold the memory */
    if (err == KVP_OK && msg.kind == KVP_KEEPER_WELCOME) err = msg.err;
    drop_keeper(node, err == KVP_OK || err == KVP_DISCONNECTED ? "its connection is over" : explain_err(err));
}

uint64_t
kvp_node_keep_due(const kvp_node_t *node)
{
    return node->keep.mode == KVP_KEEP_NONE || node->keep.state == KVP_KEEP_UP ? UINT64_MAX : node->keep.due_ns;
}

void
kvp_node_keep_tick(kvp_node_t *node, uint64_t now_ns)
{
    kvp_node_keep_t *k = &node->keep;
    kvp_err_t err;

    (void)kvp_keeper_link_reap(&k->link);
    if (kvp_node_keep_due(node) > now_ns) return;
    if (k->state == KVP_KEEP_ASKED) {
        drop_keeper(node, "it does not answer");
        return;
    }
    err = kvp_keeper_link_call(&k->link, true);
    k->due_ns = now_ns + (err == KVP_EAGAIN ? AGAIN_NS : AGAIN_MAX_NS);
    if (err != KVP_OK) return;
    k->state = KVP_KEEP_ASKED;
    k->due_ns = now_ns + WELCOME_NS;
    k->ev = (kvp_node_ev_t){.fd = k->link.fd, .fn = on_keeper};
    if (kvp_node_watch(node, &k->ev, EPOLLIN) != KVP_OK) drop_keeper(node, "it cannot be watched");
}

bool
kvp_node_keep_is_staying(const kvp_node_t *node)
{
    return node->keep.mode == KVP_KEEP_OVER_STOPS && node->keep.state == KVP_KEEP_UP && node->mem != NULL &&
           kvp_node_book_is_whole(&node->keep.book);
}

void
kvp_node_keep_close(kvp_node_t *node)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_END, 0, NULL);
    kvp_node_keep_t *k = &node->keep;

    if (k->mode == KVP_KEEP_NONE) return;
    if (kvp_node_keep_is_staying(node)) {
        kvp_log_info("node", "the memory stays with its keeper pid %u", k->pid);
        node->mem->is_kept = true;
    } else {
        if (k->book.mem.addr != NULL) kvp_node_book_set_whole(&k->book, false);
        send_to_keeper(node, &msg, NULL);
    }
    leave_keeper(node);
}
