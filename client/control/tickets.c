/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/tickets.h"

#include "client/core/op.h"
#include "common/clock.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#define NOTHING_NS (3600 * KVP_NS_PER_S) /* pause if no ticket is to be restored; a new session ends the pause */
#define FAILED_NS (100 * KVP_NS_PER_MS)

void
kvp_held_tickets_init(kvp_held_tickets_t *h)
{
    pthread_mutex_init(&h->lock, NULL);
    h->tickets = (kvp_tickets_t){0};
}

void
kvp_held_tickets_fini(kvp_held_tickets_t *h)
{
    kvp_tickets_fini(&h->tickets);
    pthread_mutex_destroy(&h->lock);
}

uint64_t
kvp_held_tickets_add(kvp_held_tickets_t *h, const kvp_tickets_new_t *what)
{
    uint64_t id;

    pthread_mutex_lock(&h->lock);
    id = kvp_tickets_add(&h->tickets, what, kvp_boot_ns());
    pthread_mutex_unlock(&h->lock);
    return id;
}

bool
kvp_held_tickets_release(kvp_held_tickets_t *h, uint64_t id, uint64_t incarnation, kvp_buf_t *tickets)
{
    bool is_held;

    pthread_mutex_lock(&h->lock);
    is_held = kvp_tickets_release(&h->tickets, id, incarnation, tickets);
    pthread_mutex_unlock(&h->lock);
    return is_held;
}

void
kvp_held_tickets_give_back(kvp_conn_t *conn, const kvp_buf_t *tickets, kvp_buf_t *frame)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;

    if (tickets->err != KVP_OK) { /* out of memory: end the session, which releases its tickets, too */
        kvp_conn_break(conn);
        return;
    }
    head.n = (uint32_t)(tickets->len / sizeof(uint64_t));
    if (head.n == 0) return;
    kvp_buf_reset(frame);
    kvp_pb_frame(frame, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, 0, &head.base, tickets->data, tickets->len);
    kvp_ignore(kvp_conn_send(conn, frame), "they end with the session in any case");
}

/* Sends one page of tickets to the master and handles the answer. */
static kvp_err_t
ask_page(kvp_held_tickets_t *h, kvp_conn_t *conn, kvp_tickets_page_t *page)
{
    uint64_t deadline_ns = kvp_now_ns() + kvp_conn_hello(conn)->session_ttl_ms * KVP_NS_PER_MS;
    kvp_buf_t out, in, tickets;
    kvp_frame_t answer;
    kvp_err_t err;

    kvp_buf_init(&out, 0);
    kvp_buf_init(&in, 0);
    kvp_buf_init(&tickets, 0);
    kvp_tickets_encode(page, &out);
    err = out.err == KVP_OK ? kvp_conn_call(conn, &out, deadline_ns, &in, &answer) : out.err;
    pthread_mutex_lock(&h->lock);
    if (err == KVP_OK)
        err = kvp_tickets_on_reply(&h->tickets, page, &answer, kvp_boot_ns(), &tickets);
    else
        kvp_tickets_on_call_failed(&h->tickets, page, kvp_boot_ns());
    pthread_mutex_unlock(&h->lock);
    if (err == KVP_OK) kvp_held_tickets_give_back(conn, &tickets, &out);
    if (kvp_op_is_session_loss(err) || err == KVP_PROTO || err == KVP_DEADLINE) kvp_conn_break(conn);
    kvp_buf_fini(&out);
    kvp_buf_fini(&in);
    kvp_buf_fini(&tickets);
    return err;
}

uint64_t
kvp_held_tickets_restore(kvp_held_tickets_t *h, kvp_conn_t *conn)
{
    kvp_tickets_page_t page;

    for (;;) {
        uint64_t due_ns, now_ns = kvp_boot_ns();
        kvp_err_t err;

        pthread_mutex_lock(&h->lock);
        err = kvp_tickets_next(&h->tickets, kvp_conn_hello(conn)->incarnation, now_ns, &page, &due_ns);
        pthread_mutex_unlock(&h->lock);
        if (err != KVP_OK) return due_ns == UINT64_MAX ? NOTHING_NS : due_ns - kvp_min_u64(now_ns, due_ns);
        if (ask_page(h, conn, &page) != KVP_OK) return FAILED_NS;
    }
}
