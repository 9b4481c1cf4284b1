/* SPDX-License-Identifier: Apache-2.0
 * The poll loop of the tests' servers. */
#include "tests/unit/net/fakeserver.h"

#include "proto/pb.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

size_t
fake_server_answer(kvp_framed_t *c, const kvp_frame_t *f, const void *msg, const void *tail, size_t tail_len)
{
    size_t at;

    kvp_pb_frame_begin(&c->out, f->hdr.opcode, KVP_FRAME_REPLY, f->hdr.request_id, msg, &at);
    if (tail_len > 0) kvp_buf_append(&c->out, tail, tail_len);
    kvp_frame_end(&c->out, at);
    return at;
}

static void
serve(fake_server_t *s, kvp_framed_t *c)
{
    kvp_err_t err = kvp_framed_recv(c);
    kvp_frame_t frame;
    bool has = true;

    while (err == KVP_OK && has) {
        err = kvp_framed_next(c, &frame, &has);
        if (err == KVP_OK && has) err = s->on_frame(s->arg, c, &frame);
    }
    if (err == KVP_OK) err = kvp_framed_flush(c);
    if (err != KVP_OK && err != KVP_EAGAIN) kvp_framed_fini(c);
}

static void
accept_one(fake_server_t *s)
{
    int fd = accept(s->listener, NULL, NULL);

    for (int i = 0; i < FAKE_CONNS && fd >= 0; i++) {
        if (s->conns[i].fd >= 0) continue;
        if (kvp_framed_adopt(&s->conns[i], fd, s->is_unix) != KVP_OK) abort();
        return;
    }
    if (fd >= 0) close(fd);
}

static void *
run(void *arg)
{
    fake_server_t *s = arg;

    while (!s->is_ending) {
        struct pollfd p[FAKE_CONNS + 1] = {{.fd = s->listener, .events = POLLIN}};
        bool is_cutting = s->is_cutting; /* once a round: a cut that is asked for within one is the next one's */

        for (int i = 0; i < FAKE_CONNS; i++) {
            if (is_cutting) kvp_framed_fini(&s->conns[i]);
            p[i + 1] = (struct pollfd){.fd = s->conns[i].fd, .events = POLLIN};
        }
        if (is_cutting) s->is_cutting = false;
        if (s->on_round != NULL) s->on_round(s->arg);
        poll(p, s->is_deaf ? 0 : FAKE_CONNS + 1, 3);
        for (int i = 0; i < FAKE_CONNS; i++)
            if (p[i + 1].revents != 0 && !s->is_deaf) serve(s, &s->conns[i]);
        if (p[0].revents != 0) accept_one(s);
    }
    return NULL;
}

void
fake_server_start(fake_server_t *s, int listener)
{
    s->listener = listener;
    for (int i = 0; i < FAKE_CONNS; i++)
        kvp_framed_init(&s->conns[i]);
    if (pthread_create(&s->thread, NULL, run, s) != 0) abort();
}

void
fake_server_end(fake_server_t *s)
{
    s->is_ending = true;
    pthread_join(s->thread, NULL);
    for (int i = 0; i < FAKE_CONNS; i++)
        kvp_framed_fini(&s->conns[i]);
    close(s->listener);
}
