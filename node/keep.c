/* SPDX-License-Identifier: Apache-2.0
 * The node's side of its keeper, the process that holds the node's memory across restarts. docs/adr/0030-keeper.md.
 *
 * Design notes.
 * - The book says "whole" only while the keeper has all files and the pidfd of each process that may store: the pidfd
 *   of a writer is in the keeper's queue before the writer gets a mapping. If sending fails, the book says "not whole"
 *   first, and no process adopts the memory.
 * - A stopped keeper reads no packets: the node treats it as dead when its queue is full, or when it does not answer
 *   Hello. */
#include "node/priv.h"

#include "net/pidfd.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WELCOME_NS (2 * KVP_NS_PER_S)
#define AGAIN_NS (50 * KVP_NS_PER_MS)
#define AGAIN_MAX_NS (5 * KVP_NS_PER_S)

static void on_keeper(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events);

/* ---- messages to the keeper */
/* kvp_node_keep_lose drops the keeper's connection and marks the book as not whole, so that no process adopts its
 * state. The node then calls a keeper again. */
void
kvp_node_keep_lose(kvp_node_t *node, const char *why)
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
    if (err != KVP_OK)
        kvp_node_keep_lose(node, err == KVP_DEADLINE ? "it takes no messages" : "its connection is over");
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
    kvp_log_info("node", "the memory is in the hands of a keeper pid=%u", k->pid);
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
    if (k->is_unsaved) kvp_node_keep_lose(node, "there is no room for what it has to know");
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

void
kvp_node_keep_give_up(kvp_node_t *node, bool is_alone)
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
    kvp_node_keep_give_up(node, false);
}

void
kvp_node_keep_leave(kvp_node_t *node)
{
    kvp_node_keep_t *k = &node->keep;

    kvp_node_book_close(&k->book);
    kvp_node_unwatch(node, &k->ev);
    kvp_keeper_link_close(&k->link);
    k->state = KVP_KEEP_AWAY;
    k->mode = KVP_KEEP_NONE;
}

/* ---- lifecycle */
void
kvp_node_keep_set_up(kvp_node_t *node, const kvp_keeper_msg_t *welcome)
{
    kvp_node_keep_t *k = &node->keep;

    k->state = KVP_KEEP_UP;
    k->pid = welcome->pid;
    k->again_ns = 0;
    k->ev = (kvp_node_ev_t){.fd = k->link.fd, .fn = on_keeper};
    if (kvp_node_watch(node, &k->ev, EPOLLIN) != KVP_OK) kvp_node_keep_lose(node, "it cannot be watched");
}

const char *
kvp_node_keep_why(kvp_err_t err)
{
    if (err == KVP_VERSION) return "the running keeper is of another version: end it, and this node starts its own";
    return err == KVP_DEADLINE ? "it does not answer" : kvp_err_text(err);
}

static void
on_welcome(kvp_node_t *node, const kvp_keeper_msg_t *msg)
{
    if (msg->kind != KVP_KEEPER_WELCOME || msg->err != KVP_OK || msg->total > 0) {
        kvp_node_keep_lose(node,
                           msg->kind == KVP_KEEPER_WELCOME ? kvp_node_keep_why(msg->err) : kvp_err_text(KVP_PROTO));
        return;
    }
    kvp_node_unwatch(node, &node->keep.ev);
    kvp_node_keep_set_up(node, msg);
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
    /* a second WELCOME carries the reason why the keeper does not hold the memory */
    if (err == KVP_OK && msg.kind == KVP_KEEPER_WELCOME) err = msg.err;
    kvp_node_keep_lose(node,
                       err == KVP_OK || err == KVP_DISCONNECTED ? "its connection is over" : kvp_node_keep_why(err));
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
        kvp_node_keep_lose(node, "it does not answer");
        return;
    }
    err = kvp_keeper_link_call(&k->link, true);
    k->due_ns = now_ns + (err == KVP_EAGAIN ? AGAIN_NS : AGAIN_MAX_NS);
    if (err != KVP_OK) return;
    k->state = KVP_KEEP_ASKED;
    k->due_ns = now_ns + WELCOME_NS;
    k->ev = (kvp_node_ev_t){.fd = k->link.fd, .fn = on_keeper};
    if (kvp_node_watch(node, &k->ev, EPOLLIN) != KVP_OK) kvp_node_keep_lose(node, "it cannot be watched");
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
        kvp_log_info("node", "the memory stays with its keeper pid=%u", k->pid);
        node->mem->is_kept = true;
    } else {
        if (k->book.mem.addr != NULL) kvp_node_book_set_whole(&k->book, false);
        send_to_keeper(node, &msg, NULL);
    }
    kvp_node_keep_leave(node);
}
