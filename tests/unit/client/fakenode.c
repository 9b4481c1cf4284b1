/* SPDX-License-Identifier: Apache-2.0
 * What the node of tests answers. */
#include "tests/unit/client/fakenode.h"

#include "common/clock.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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
    fake_server_answer(c, f, &msg.base, NULL, 0);
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
    msg.is_lazy = n->is_lazy;
    at = fake_server_answer(c, f, &msg.base, NULL, 0);
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
    fake_server_answer(c, f, &msg.base, NULL, 0);
}

static kvp_err_t
on_frame(void *arg, kvp_framed_t *c, const kvp_frame_t *f)
{
    if (f->hdr.opcode == KVP_OP_HELLO) on_hello(arg, c, f);
    if (f->hdr.opcode == KVP_OP_OPEN_CHUNK) on_open(arg, c, f);
    if (f->hdr.opcode == KVP_OP_DRAINED) on_drained(arg, c, f);
    return KVP_OK;
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

static int
listen_at(fake_node_t *n)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char dir[64];
    int listener;

    if (kvp_runtime_dir(dir, sizeof dir) != KVP_OK) abort();
    snprintf(n->path, sizeof n->path, "%s/node-%d-%08x.sock", dir, (int)getpid(), (unsigned)kvp_random_u64());
    memcpy(at.sun_path, n->path, sizeof n->path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 16) != 0) abort();
    return listener;
}

void
fake_node_start(fake_node_t *n)
{
    memset(n, 0, sizeof *n);
    kvp_random_bytes(n->uuid, sizeof n->uuid);
    kvp_chunk_geo(FAKE_NODE_BYTES, &n->geo);
    n->payload_fd = make_memory(FAKE_NODE_BYTES, &n->payload);
    n->meta_fd = make_memory(n->geo.meta_bytes, &n->meta);
    n->server.on_frame = on_frame;
    n->server.arg = n;
    n->server.is_unix = true;
    fake_server_start(&n->server, listen_at(n));
}

void
fake_node_end(fake_node_t *n)
{
    fake_server_end(&n->server);
    unlink(n->path);
    munmap(n->payload, FAKE_NODE_BYTES);
    munmap(n->meta, n->geo.meta_bytes);
    close(n->payload_fd);
    close(n->meta_fd);
}
