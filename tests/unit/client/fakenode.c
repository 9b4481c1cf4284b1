/* SPDX-License-Identifier: Apache-2.0
 * The node of tests: one thread, one poll loop.
 */
#include "tests/unit/client/fakenode.h"

#include "common/clock.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static size_t
answer(kvp_framed_t *c, const kvp_frame_t *f, const void *msg)
{
    size_t at;

    kvp_pb_frame_begin(&c->out, f->hdr.opcode, KVP_FRAME_REPLY, f->hdr.request_id, msg, &at);
    kvp_frame_end(&c->out, at);
    return at;
}

static void
on_hello(fake_node_t *n, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__HelloReply msg = KVP__PB__HELLO_REPLY__INIT;
    int pidfd = -1;

    if (kvp_framed_take_fds(c, &pidfd, 1) == 1) close(pidfd);
    n->hellos++;
    msg.err = n->hello_err;
    msg.detail = (char *)(n->hello_err == 0 ? "" : "the test says so");
    msg.version = KVP_PROTO_VERSION;
    msg.host_id = (char *)"";
    answer(c, f, &msg.base);
}

/* Readers get the same descriptors as writers: what a reader may not do is tested on the real node. */
static void
on_open(fake_node_t *n, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__OpenChunkReply msg = KVP__PB__OPEN_CHUNK_REPLY__INIT;
    int fds[2] = {n->payload_fd, n->meta_fd};
    const char *only = n->open_err_by;
    Kvp__Pb__OpenChunk *ask;
    kvp_pb_t pb;
    size_t at;

    ask = kvp_pb_unpack(&pb, &kvp__pb__open_chunk__descriptor, f);
    if (ask == NULL) abort();
    n->opens++;
    if (only == NULL || strcmp(ask->transport, only) == 0) msg.err = n->open_err;
    n->refused_opens += msg.err != KVP_OK;
    kvp_pb_free(&pb, ask);
    msg.detail = (char *)"";
    msg.payload_bytes = FAKE_NODE_BYTES;
    msg.meta_bytes = n->geo.meta_bytes;
    at = answer(c, f, &msg.base);
    if (msg.err == KVP_OK && kvp_framed_out_fds(c, at, fds, 2) != KVP_OK) abort();
}

static void
on_drained(fake_node_t *n, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    Kvp__Pb__Drained *drained;
    kvp_pb_t pb;

    drained = kvp_pb_unpack(&pb, &kvp__pb__drained__descriptor, f);
    if (drained == NULL) abort();
    n->last_drained = drained->incarnation;
    n->drained++;
    kvp_pb_free(&pb, drained);
    answer(c, f, &msg.base);
}

static void
on_frame(fake_node_t *n, kvp_framed_t *c, const kvp_frame_t *f)
{
    if (f->hdr.opcode == KVP_OP_HELLO) on_hello(n, c, f);
    if (f->hdr.opcode == KVP_OP_OPEN_CHUNK) on_open(n, c, f);
    if (f->hdr.opcode == KVP_OP_DRAINED) on_drained(n, c, f);
}

static void
serve(fake_node_t *n, kvp_framed_t *c)
{
    kvp_err_t err = kvp_framed_recv(c);
    kvp_frame_t frame;
    bool has = true;

    while (err == KVP_OK && has) {
        err = kvp_framed_next(c, &frame, &has);
        if (err == KVP_OK && has) on_frame(n, c, &frame);
    }
    if (err == KVP_OK) err = kvp_framed_flush(c);
    if (err != KVP_OK && err != KVP_EAGAIN) kvp_framed_fini(c);
}

static void
accept_one(fake_node_t *n)
{
    int fd = accept(n->listener, NULL, NULL);

    for (int i = 0; i < FAKE_NODE_CONNS && fd >= 0; i++) {
        if (n->conns[i].fd >= 0) continue;
        if (kvp_framed_adopt(&n->conns[i], fd, true) != KVP_OK) abort();
        return;
    }
    if (fd >= 0) close(fd);
}

static void *
run(void *arg)
{
    fake_node_t *n = arg;

    while (!n->is_ending) {
        struct pollfd p[FAKE_NODE_CONNS + 1] = {{.fd = n->listener, .events = POLLIN}};

        for (int i = 0; i < FAKE_NODE_CONNS; i++) {
            if (n->is_cutting) kvp_framed_fini(&n->conns[i]);
            p[i + 1] = (struct pollfd){.fd = n->conns[i].fd, .events = POLLIN};
        }
        n->is_cutting = false;
        poll(p, n->is_mute ? 0 : FAKE_NODE_CONNS + 1, 2);
        for (int i = 0; i < FAKE_NODE_CONNS; i++)
            if (p[i + 1].revents != 0 && !n->is_mute) serve(n, &n->conns[i]);
        if (p[0].revents != 0) accept_one(n);
    }
    return NULL;
}

static int
make_memory(uint64_t len, uint8_t **at_out)
{
    int fd = memfd_create("kvpool-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *at;

    if (fd < 0 || ftruncate(fd, (off_t)len) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        abort();
    at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) abort();
    *at_out = at;
    return fd;
}

static void
listen_at(fake_node_t *n)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t len;

    len = (size_t)snprintf(n->path, sizeof n->path, "@kvpool-fake-node-%d-%016llx", (int)getpid(),
                           (unsigned long long)kvp_random_u64());
    memcpy(at.sun_path, n->path, len);
    at.sun_path[0] = '\0';
    n->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (n->listener < 0 ||
        bind(n->listener, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) != 0 ||
        listen(n->listener, 16) != 0)
        abort();
}

void
fake_node_start(fake_node_t *n)
{
    memset(n, 0, sizeof *n);
    kvp_random_bytes(n->uuid, sizeof n->uuid);
    kvp_chunk_geo(FAKE_NODE_BYTES, &n->geo);
    n->payload_fd = make_memory(FAKE_NODE_BYTES, &n->payload);
    n->meta_fd = make_memory(n->geo.meta_bytes, &n->meta);
    for (int i = 0; i < FAKE_NODE_CONNS; i++)
        kvp_framed_init(&n->conns[i]);
    listen_at(n);
    if (pthread_create(&n->thread, NULL, run, n) != 0) abort();
}

void
fake_node_end(fake_node_t *n)
{
    n->is_ending = true;
    pthread_join(n->thread, NULL);
    for (int i = 0; i < FAKE_NODE_CONNS; i++)
        kvp_framed_fini(&n->conns[i]);
    munmap(n->payload, FAKE_NODE_BYTES);
    munmap(n->meta, n->geo.meta_bytes);
    close(n->payload_fd);
    close(n->meta_fd);
    close(n->listener);
}
