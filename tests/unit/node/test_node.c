/* SPDX-License-Identifier: Apache-2.0
 * A whole node against a master that the test plays, and against clients: mounting and its reset, orders, attaching,
 * quarantine by the death of a process. What the node decides is tested in test_node_core.c. */
#include "node/node.h"

#include "net/hello.h"
#include "net/names.h"
#include "transport/all/registry.h"
#include "transport/transport.h"
#include "tests/unit/loopback.h"
#include "tests/unit/node/slowreg.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/parse.h"
#include "proto/segfmt.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"
#include "tests/cases.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TERM 3u
#define SEGMENT 9u
#define CHUNK (1u << 20)
#define MEMORY (2u * CHUNK + 64u * 1024u) /* the last chunk is a short one */
#define LONG_NS (20 * KVP_NS_PER_S)

/* ---- the master that the test plays */
typedef struct {
    int listen_fd;
    char addr[32];
    uint8_t pool_id[16];
    kvp_framed_t conn;
    uint64_t next_id;
    uint8_t uuid[16]; /* of the last Mount */
    bool is_fresh;
    uint32_t told_term, mounted_term;
    const char *transports; /* that are to be told; NULL = shm,tcp */
    uint64_t heartbeats;
} master_t;

static uint64_t
by(void)
{
    return kvp_now_ns() + LONG_NS;
}

static void
wait_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    assert_int_equal(poll(&p, 1, (int)(LONG_NS / KVP_NS_PER_MS)), 1);
}

static void
master_listen(master_t *m)
{
    memset(m, 0, sizeof *m);
    kvp_framed_init(&m->conn);
    memset(m->pool_id, 0x42, sizeof m->pool_id);
    m->listen_fd = listen_local(m->addr);
}

static void
master_close(master_t *m)
{
    kvp_framed_fini(&m->conn);
    if (m->listen_fd >= 0) close(m->listen_fd);
    m->listen_fd = -1;
}

static void
master_send(master_t *m, uint8_t opcode, uint8_t flags, uint64_t id, const void *msg, const void *tail, size_t n)
{
    size_t at;

    kvp_pb_frame_begin(&m->conn.out, opcode, flags, id, msg, &at);
    kvp_buf_append(&m->conn.out, tail, n);
    kvp_frame_end(&m->conn.out, at);
    assert_int_equal(kvp_framed_flush(&m->conn), KVP_OK);
}

static void
answer_heartbeat(master_t *m, const kvp_frame_t *f)
{
    Kvp__Pb__HeartbeatReply reply = KVP__PB__HEARTBEAT_REPLY__INIT;

    m->heartbeats++;
    reply.term = TERM;
    master_send(m, KVP_OP_HEARTBEAT, KVP_FRAME_REPLY, f->hdr.request_id, &reply, NULL, 0);
}

/* master_next waits for the next frame, heartbeats aside. False = the node closed the connection. */
static bool
master_next(master_t *m, kvp_frame_t *f)
{
    for (;;) {
        bool has;
        kvp_err_t err;

        assert_int_equal(kvp_framed_next(&m->conn, f, &has), KVP_OK);
        if (has && f->hdr.opcode == KVP_OP_HEARTBEAT) {
            answer_heartbeat(m, f);
            continue;
        }
        if (has) return true;
        wait_readable(m->conn.fd);
        err = kvp_framed_recv(&m->conn);
        if (err == KVP_DISCONNECTED) return false;
        assert_int_equal(err, KVP_OK);
    }
}

static void
master_expect(master_t *m, uint8_t opcode, kvp_frame_t *f)
{
    assert_true(master_next(m, f));
    assert_int_equal(f->hdr.opcode, opcode);
}

static void
master_accept(master_t *m)
{
    kvp_framed_fini(&m->conn);
    wait_readable(m->listen_fd);
    assert_int_equal(kvp_framed_adopt(&m->conn, accept(m->listen_fd, NULL, NULL), false), KVP_OK);
}

/* master_on_hello answers the Hello that comes on the connection that there is. */
static void
master_on_hello(master_t *m, uint32_t term, kvp_err_t err)
{
    Kvp__Pb__HelloReply reply = KVP__PB__HELLO_REPLY__INIT;
    Kvp__Pb__Hello *hello;
    kvp_frame_t f;
    kvp_pb_t pb;

    master_expect(m, KVP_OP_HELLO, &f);
    hello = kvp_pb_unpack(&pb, &kvp__pb__hello__descriptor, &f);
    assert_non_null(hello);
    assert_int_equal(hello->role, KVP_ROLE_NODE);
    kvp_pb_free(&pb, hello);
    reply.err = err;
    reply.detail = (char *)(err == KVP_OK ? "" : "the test says so");
    reply.version = KVP_PROTO_VERSION;
    reply.term = term;
    reply.incarnation = 1000 + ++m->next_id;
    reply.pool_id = (ProtobufCBinaryData){sizeof m->pool_id, m->pool_id};
    reply.digest_seed = 77;
    reply.host_id = (char *)"another host";
    reply.heartbeat_ms = 20;
    reply.session_ttl_ms = 5000;
    master_send(m, KVP_OP_HELLO, KVP_FRAME_REPLY, f.hdr.request_id, &reply, NULL, 0);
}

/* master_greet ends the connection that there is, accepts the next one and answers its Hello. */
static void
master_greet(master_t *m, uint32_t term, kvp_err_t err)
{
    master_accept(m);
    master_on_hello(m, term, err);
}

static uint64_t
master_expect_mount(master_t *m)
{
    Kvp__Pb__Mount *msg;
    kvp_frame_t f;
    kvp_pb_t pb;

    master_expect(m, KVP_OP_MOUNT, &f);
    msg = kvp_pb_unpack(&pb, &kvp__pb__mount__descriptor, &f);
    assert_non_null(msg);
    assert_int_equal(msg->size_bytes, MEMORY);
    assert_int_equal(msg->chunk_bytes, CHUNK);
    assert_string_equal(msg->transports, m->transports == NULL ? "shm,tcp" : m->transports);
    assert_int_equal(msg->uuid.len, sizeof m->uuid);
    memcpy(m->uuid, msg->uuid.data, sizeof m->uuid);
    m->is_fresh = msg->is_fresh;
    m->told_term = msg->term;
    m->mounted_term = msg->mounted_term;
    kvp_pb_free(&pb, msg);
    return f.hdr.request_id;
}

#define REPORT_NOTHING 0u
#define REPORT_WHOLE 2u

static void
master_answer_mount_in(master_t *m, uint64_t id, uint32_t term, uint32_t report)
{
    Kvp__Pb__MountReply reply = KVP__PB__MOUNT_REPLY__INIT;

    reply.segment_id = SEGMENT;
    reply.term = term;
    reply.report = report;
    master_send(m, KVP_OP_MOUNT, KVP_FRAME_REPLY, id, &reply, NULL, 0);
}

static void
master_answer_mount(master_t *m, uint64_t id, kvp_err_t err, bool is_reset)
{
    Kvp__Pb__MountReply reply = KVP__PB__MOUNT_REPLY__INIT;

    reply.err = err;
    reply.detail = (char *)"";
    reply.segment_id = SEGMENT;
    reply.term = TERM;
    reply.is_reset = is_reset;
    master_send(m, KVP_OP_MOUNT, KVP_FRAME_REPLY, id, &reply, NULL, 0);
}

/* master_retire sends RETIRE and returns the answer's error; flags are filled where it is OK. */
static kvp_err_t
master_retire(master_t *m, uint32_t term, const kvp_wire_slot_t *slots, uint32_t n, uint8_t *flags)
{
    Kvp__Pb__Retire msg = KVP__PB__RETIRE__INIT;
    Kvp__Pb__Reply *reply;
    kvp_err_t err;
    kvp_frame_t f;
    kvp_pb_t pb;

    msg.n = n;
    msg.term = term;
    msg.segment_id = SEGMENT;
    master_send(m, KVP_OP_RETIRE, 0, ++m->next_id, &msg, slots, n * sizeof *slots);
    master_expect(m, KVP_OP_RETIRE, &f);
    assert_int_equal(f.hdr.request_id, m->next_id);
    reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &f);
    assert_non_null(reply);
    err = reply->err;
    if (err == KVP_OK) {
        assert_int_equal(f.tail_len, n);
        memcpy(flags, f.tail, n);
    }
    kvp_pb_free(&pb, reply);
    return err;
}

static void
master_fence(master_t *m, uint64_t incarnation)
{
    Kvp__Pb__Fence msg = KVP__PB__FENCE__INIT;
    kvp_frame_t f;

    msg.term = TERM;
    msg.incarnation = incarnation;
    master_send(m, KVP_OP_FENCE, 0, ++m->next_id, &msg, NULL, 0);
    master_expect(m, KVP_OP_FENCE, &f);
}

static void
master_own(master_t *m, uint32_t chunk, const char *tenant)
{
    Kvp__Pb__Owner msg = KVP__PB__OWNER__INIT;

    msg.uuid = (ProtobufCBinaryData){sizeof m->uuid, m->uuid};
    msg.chunk = chunk;
    msg.tenant = (char *)tenant;
    master_send(m, KVP_OP_OWNER, KVP_FRAME_ONEWAY, 0, &msg, NULL, 0);
}

/* ---- a node and its master */
typedef struct {
    master_t master;
    kvp_node_t *node;
    kvp_node_info_t info;
} fixture_t;

static kvp_node_conf_t
conf_for(const master_t *m)
{
    return (kvp_node_conf_t){.masters = m->addr,
                             .name = "test-node",
                             .host_id = "this host",
                             .listen = "127.0.0.1:0",
                             .memory_bytes = MEMORY + 17,
                             .chunk_bytes = CHUNK};
}

static fixture_t *
begin(const char *transports)
{
    static fixture_t f;
    kvp_node_conf_t conf;

    memset(&f, 0, sizeof f);
    master_listen(&f.master);
    f.master.transports = transports;
    conf = conf_for(&f.master);
    conf.transports = transports;
    assert_int_equal(kvp_node_open(&conf, &f.node), KVP_OK);
    return &f;
}

static int
mount_first(fixture_t *f)
{
    master_greet(&f->master, TERM, KVP_OK);
    master_answer_mount(&f->master, master_expect_mount(&f->master), KVP_OK, false);
    assert_true(f->master.is_fresh);
    assert_int_equal(kvp_node_wait(f->node, by()), KVP_OK);
    kvp_node_info(f->node, &f->info);
    return 0;
}

static int
setup_unmounted(void **state)
{
    *state = begin(NULL);
    return 0;
}

static int
setup(void **state)
{
    *state = begin(NULL);
    return mount_first(*state);
}

static int
teardown(void **state)
{
    fixture_t *f = *state;

    master_close(&f->master);
    if (f->node != NULL) kvp_node_stop(f->node, 0);
    f->node = NULL;
    return 0;
}

/* ---- clients */
typedef struct {
    kvp_framed_t conn;
    uint64_t next_id;
} client_t;

typedef struct {
    kvp_err_t err;
    uint64_t payload_bytes;
    uint64_t meta_bytes;
    int fds[KVP_FRAMED_FDS];
    int fds_n;
} chunk_t;

static int
pidfd_of(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* expect_closed waits until the node has closed the connection, and ends it here. */
static void
expect_closed(client_t *c)
{
    kvp_err_t err = KVP_OK;

    while (err == KVP_OK || err == KVP_EAGAIN) {
        wait_readable(c->conn.fd);
        err = kvp_framed_recv(&c->conn);
    }
    assert_int_equal(err, KVP_DISCONNECTED);
    kvp_framed_fini(&c->conn);
}

static kvp_err_t
client_attach(client_t *c, const kvp_node_info_t *info, const uint8_t *pool_id, uint64_t incarnation, int pidfd)
{
    kvp_hello_ask_t ask = {
        .name = "test", .host_id = "this host", .incarnation = incarnation, .pool_id = pool_id, .pidfd = pidfd};
    kvp_hello_reply_t reply;
    kvp_hostport_t at;
    kvp_err_t err;

    c->next_id = 100;
    kvp_framed_init(&c->conn);
    if (pidfd >= 0) {
        if (kvp_framed_connect_unix(&c->conn, info->unix_path, by()) != KVP_OK) return KVP_UNREACHABLE;
    } else {
        if (kvp_parse_hostport(info->addr, &at) != KVP_OK) return KVP_UNREACHABLE;
        if (kvp_names_connect(NULL, at.host, at.port, by(), &c->conn) != KVP_OK) return KVP_UNREACHABLE;
    }
    err = kvp_hello(&c->conn, &ask, by(), &reply);
    if (err != KVP_OK) expect_closed(c);
    return err;
}

/* client_attach_here attaches this process over the Unix socket. */
static kvp_err_t
client_attach_here(client_t *c, const fixture_t *f, uint64_t incarnation)
{
    int pidfd = pidfd_of(getpid());
    kvp_err_t err = client_attach(c, &f->info, f->master.pool_id, incarnation, pidfd);

    close(pidfd);
    return err;
}

static kvp_err_t
client_open(client_t *c, const uint8_t *uuid, uint32_t chunk, uint32_t role, const char *transport, chunk_t *out)
{
    Kvp__Pb__OpenChunk ask = KVP__PB__OPEN_CHUNK__INIT;
    Kvp__Pb__OpenChunkReply *reply;
    kvp_frame_t f;
    kvp_pb_t pb;
    size_t at;

    memset(out, 0, sizeof *out);
    ask.uuid = (ProtobufCBinaryData){16, (uint8_t *)uuid};
    ask.chunk = chunk;
    ask.role = role;
    ask.transport = (char *)transport;
    kvp_pb_frame_begin(&c->conn.out, KVP_OP_OPEN_CHUNK, 0, ++c->next_id, &ask, &at);
    kvp_frame_end(&c->conn.out, at);
    out->err = kvp_exchange(&c->conn, c->next_id, by(), &f);
    if (out->err != KVP_OK) return out->err;
    reply = kvp_pb_unpack(&pb, &kvp__pb__open_chunk_reply__descriptor, &f);
    if (reply == NULL) return KVP_PROTO;
    out->err = reply->err;
    out->payload_bytes = reply->payload_bytes;
    out->meta_bytes = reply->meta_bytes;
    out->fds_n = kvp_framed_take_fds(&c->conn, out->fds, KVP_FRAMED_FDS);
    kvp_pb_free(&pb, reply);
    return out->err;
}

static void
chunk_close(chunk_t *c)
{
    for (int i = 0; i < c->fds_n; i++)
        close(c->fds[i]);
    c->fds_n = 0;
}

static kvp_err_t
client_drained(client_t *c, uint64_t incarnation)
{
    Kvp__Pb__Drained ask = KVP__PB__DRAINED__INIT;
    Kvp__Pb__Reply *reply;
    kvp_frame_t f;
    kvp_err_t err;
    kvp_pb_t pb;
    size_t at;

    ask.incarnation = incarnation;
    kvp_pb_frame_begin(&c->conn.out, KVP_OP_DRAINED, 0, ++c->next_id, &ask, &at);
    kvp_frame_end(&c->conn.out, at);
    assert_int_equal(kvp_exchange(&c->conn, c->next_id, by(), &f), KVP_OK);
    reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &f);
    assert_non_null(reply);
    err = reply->err;
    kvp_pb_free(&pb, reply);
    return err;
}

static void *
map_meta(const chunk_t *chunk, int prot)
{
    void *meta = mmap(NULL, chunk->meta_bytes, prot, MAP_SHARED, chunk->fds[1], 0);

    assert_ptr_not_equal(meta, MAP_FAILED);
    return meta;
}

static uint64_t
word_at(const void *meta, uint32_t slot)
{
    return __atomic_load_n((const uint64_t *)((const uint8_t *)meta + kvp_desc_off(slot)), __ATOMIC_ACQUIRE);
}

/* ---- tests */
TEST_WITH(test_chunks_are_sealed_and_readers_get_no_write, setup, teardown)
{
    fixture_t *f = *state;
    const uint64_t bytes[] = {CHUNK, CHUNK, 64u * 1024u};
    client_t c;
    chunk_t chunk;

    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(bytes); i++) {
        kvp_superblock_t sb;
        void *meta;

        assert_int_equal(client_open(&c, f->master.uuid, i, KVP_ACCESS_READ, "shm", &chunk), KVP_OK);
        assert_int_equal(chunk.fds_n, 2);
        assert_int_equal(chunk.payload_bytes, bytes[i]);
        assert_ptr_equal(mmap(NULL, chunk.meta_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, chunk.fds[1], 0), MAP_FAILED);
        meta = map_meta(&chunk, PROT_READ);
        assert_int_equal(kvp_sb_verify(meta, chunk.meta_bytes, &sb), KVP_OK);
        assert_int_equal(sb.chunk, i);
        assert_int_equal(sb.term, TERM);
        assert_int_equal(sb.digest_seed, 77);
        assert_memory_equal(sb.segment_uuid, f->master.uuid, 16);
        assert_memory_equal(sb.pool_id, f->master.pool_id, 16);
        munmap(meta, chunk.meta_bytes);
        assert_int_not_equal(ftruncate(chunk.fds[0], 0), 0);
        chunk_close(&chunk);
    }
    assert_int_equal(client_open(&c, f->master.uuid, 3, KVP_ACCESS_READ, "shm", &chunk), KVP_INVALID);
    assert_int_equal(client_open(&c, f->master.uuid, 0, 3, "shm", &chunk), KVP_INVALID);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "rdma", &chunk), KVP_NOTSUP);
    assert_int_equal(client_open(&c, f->master.pool_id, 0, KVP_ACCESS_READ, "shm", &chunk), KVP_NO_SEGMENT);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_WRITE, "tcp", &chunk), KVP_OK);
    assert_int_equal(chunk.fds_n, 0);
    kvp_framed_fini(&c.conn);

    assert_int_equal(client_attach(&c, &f->info, f->master.pool_id, 51, -1), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "shm", &chunk), KVP_NOTSUP);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "tcp", &chunk), KVP_OK);
    kvp_framed_fini(&c.conn);
}

TEST_WITH(test_retire_is_seen_by_readers_when_it_is_answered, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_slot_t slots[64];
    uint8_t flags[64];
    client_t c;
    chunk_t chunk;
    void *meta;

    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 1, KVP_ACCESS_READ, "shm", &chunk), KVP_OK);
    meta = map_meta(&chunk, PROT_READ);
    for (uint32_t round = 1; round <= 3; round++) {
        for (uint32_t i = 0; i < 64; i++)
            slots[i] = (kvp_wire_slot_t){.chunk = 1, .slot = i, .generation = kvp_gen_make(TERM, round)};
        assert_int_equal(master_retire(&f->master, TERM, slots, 64, flags), KVP_OK);
        for (uint32_t i = 0; i < 64; i++) {
            assert_int_equal(flags[i], KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
            assert_int_equal(word_at(meta, i), kvp_word_make(kvp_gen_make(TERM, round), KVP_DESC_DEAD));
        }
    }
    assert_int_equal(master_retire(&f->master, TERM - 1, slots, 64, flags), KVP_STALE_TERM);
    slots[0].chunk = 99;
    assert_int_equal(master_retire(&f->master, TERM, slots, 64, flags), KVP_INVALID);
    munmap(meta, chunk.meta_bytes);
    chunk_close(&chunk);
    kvp_framed_fini(&c.conn);
}

TEST_WITH(test_fence_ends_attachments_and_refuses_more, setup, teardown)
{
    fixture_t *f = *state;
    client_t local, remote, other;

    assert_int_equal(client_attach_here(&local, f, 50), KVP_OK);
    assert_int_equal(client_attach(&remote, &f->info, f->master.pool_id, 50, -1), KVP_OK);
    assert_int_equal(client_attach_here(&other, f, 51), KVP_OK);
    master_fence(&f->master, 50);
    expect_closed(&local);
    expect_closed(&remote);
    assert_int_equal(client_attach_here(&local, f, 50), KVP_FENCED);
    assert_int_equal(client_attach(&remote, &f->info, f->master.pool_id, 50, -1), KVP_FENCED);
    assert_int_equal(client_drained(&other, 50), KVP_OK);
    kvp_framed_fini(&other.conn);
}

/* A child that attaches, opens a chunk to write, tells so with one byte, and waits to be killed. */
static pid_t
start_writer(const fixture_t *f, uint64_t incarnation, int *said_fd)
{
    int pipe_fds[2];
    client_t c;
    chunk_t chunk;
    pid_t pid;

    assert_int_equal(pipe(pipe_fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        close(pipe_fds[1]);
        *said_fd = pipe_fds[0];
        return pid;
    }
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(4); /* where the test fails */
    if (client_attach_here(&c, f, incarnation) != KVP_OK) _exit(1);
    if (client_open(&c, f->master.uuid, 0, KVP_ACCESS_WRITE, "shm", &chunk) != KVP_OK) _exit(2);
    if (write(pipe_fds[1], "r", 1) != 1) _exit(3);
    for (;;)
        pause();
}

TEST_WITH(test_quarantine_ends_with_the_writers_process, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_slot_t slots[2] = {
        {.chunk = 0, .slot = 1, .generation = kvp_gen_make(TERM, 5), .owner = 60},
        {.chunk = 0, .slot = 2, .generation = kvp_gen_make(TERM, 6), .owner = 61},
    };
    kvp_node_info_t info;
    kvp_frame_t frame;
    uint8_t flags[2];
    int said_fd, status;
    char byte;
    pid_t pid = start_writer(f, 60, &said_fd);

    assert_int_equal(read(said_fd, &byte, 1), 1);
    close(said_fd);
    assert_int_equal(master_retire(&f->master, TERM, slots, 2, flags), KVP_OK);
    assert_int_equal(flags[0], KVP_RETIRE_DEAD);
    assert_int_equal(flags[1], KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    master_fence(&f->master, 60);
    do
        kvp_node_info(f->node, &info); /* figures follow a moment after the answer */
    while (info.quarantined != 1);

    assert_int_equal(kill(pid, SIGKILL), 0);
    master_expect(&f->master, KVP_OP_FREED, &frame);
    assert_int_equal(frame.tail_len, sizeof slots[0]);
    assert_memory_equal(frame.tail, &slots[0], sizeof slots[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

TEST_WITH(test_drained_by_the_same_process_ends_quarantine, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_slot_t slot = {.chunk = 0, .slot = 1, .generation = kvp_gen_make(TERM, 5), .owner = 60};
    kvp_frame_t frame;
    client_t c, remote;
    chunk_t chunk;
    uint8_t flags;

    assert_int_equal(client_attach_here(&c, f, 60), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_WRITE, "shm", &chunk), KVP_OK);
    chunk_close(&chunk);
    kvp_framed_fini(&c.conn);
    assert_int_equal(master_retire(&f->master, TERM, &slot, 1, &flags), KVP_OK);
    assert_int_equal(flags, KVP_RETIRE_DEAD);

    assert_int_equal(client_attach(&remote, &f->info, f->master.pool_id, 61, -1), KVP_OK);
    assert_int_equal(client_drained(&remote, 60), KVP_INVALID);
    kvp_framed_fini(&remote.conn);
    assert_int_equal(client_attach_here(&c, f, 61), KVP_OK);
    assert_int_equal(client_drained(&c, 60), KVP_OK);
    kvp_framed_fini(&c.conn);
    master_expect(&f->master, KVP_OP_FREED, &frame);
    assert_memory_equal(frame.tail, &slot, sizeof slot);
}

TEST_WITH(test_pidfd_must_be_of_the_peer, setup, teardown)
{
    fixture_t *f = *state;
    int said_fd, status, fds[2];
    char byte;
    client_t c;
    pid_t pid = start_writer(f, 60, &said_fd);

    assert_int_equal(read(said_fd, &byte, 1), 1);
    close(said_fd);
    fds[0] = pidfd_of(pid);
    assert_int_equal(client_attach(&c, &f->info, f->master.pool_id, 61, fds[0]), KVP_INVALID);
    assert_int_equal(client_attach(&c, &f->info, f->master.pool_id, 61, f->master.listen_fd), KVP_INVALID);
    close(fds[0]);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

TEST_WITH(test_hello_is_checked, setup, teardown)
{
    fixture_t *f = *state;
    uint8_t other_pool[16] = {1};
    client_t c;

    assert_int_equal(client_attach(&c, &f->info, other_pool, 60, -1), KVP_INVALID);
    assert_int_equal(client_attach(&c, &f->info, f->master.pool_id, 0, -1), KVP_INVALID);
}

static void
send_frame(client_t *c, uint8_t opcode, uint8_t flags, const void *msg)
{
    size_t at;

    kvp_pb_frame_begin(&c->conn.out, opcode, flags, 1, msg, &at);
    kvp_frame_end(&c->conn.out, at);
    (void)kvp_framed_flush(&c->conn);
}

static void
connect_raw(client_t *c, const fixture_t *f, bool is_unix)
{
    kvp_hostport_t at;

    kvp_framed_init(&c->conn);
    assert_int_equal(kvp_parse_hostport(f->info.addr, &at), KVP_OK);
    if (is_unix)
        assert_int_equal(kvp_framed_connect_unix(&c->conn, f->info.unix_path, by()), KVP_OK);
    else
        assert_int_equal(kvp_names_connect(NULL, at.host, at.port, by(), &c->conn), KVP_OK);
}

TEST_WITH(test_strangers_are_closed_and_nothing_else_happens, setup, teardown)
{
    fixture_t *f = *state;
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;
    kvp_node_info_t info;
    client_t c, good;
    uint8_t noise[4096];
    uint64_t seed = 1;

    assert_int_equal(client_attach_here(&good, f, 50), KVP_OK);
    for (int i = 0; i < 40; i++) {
        for (size_t k = 0; k < sizeof noise; k++)
            noise[k] = (uint8_t)((seed = seed * 6364136223846793005u + 1) >> 56);
        connect_raw(&c, f, i % 2 == 0);
        kvp_buf_append(&c.conn.out, noise, sizeof noise);
        (void)kvp_framed_flush(&c.conn);
        shutdown(c.conn.fd, SHUT_WR);
        expect_closed(&c);
    }
    /* Not Hello first; an answer to nothing; a second Hello; a version of tomorrow. */
    connect_raw(&c, f, true);
    send_frame(&c, KVP_OP_OPEN_CHUNK, 0, NULL);
    expect_closed(&c);
    connect_raw(&c, f, false);
    send_frame(&c, KVP_OP_HELLO, KVP_FRAME_REPLY, NULL);
    expect_closed(&c);
    assert_int_equal(client_attach_here(&c, f, 51), KVP_OK);
    send_frame(&c, KVP_OP_HELLO, 0, NULL);
    expect_closed(&c);
    connect_raw(&c, f, false);
    hello.version = hello.version_min = KVP_PROTO_VERSION + 1;
    send_frame(&c, KVP_OP_HELLO, 0, &hello);
    expect_closed(&c);

    kvp_node_info(f->node, &info);
    assert_true(info.protocol_errors > 3);
    assert_int_equal(client_drained(&good, 49), KVP_OK);
    kvp_framed_fini(&good.conn);
}

TEST_WITH(test_data_connection_goes_to_the_transport, setup, teardown)
{
    fixture_t *f = *state;
    Kvp__Pb__DataHello hello = KVP__PB__DATA_HELLO__INIT;
    Kvp__Pb__Reply *reply;
    kvp_frame_t frame;
    kvp_pb_t pb;
    client_t c;
    size_t at;

    connect_raw(&c, f, false);
    hello.version = hello.version_min = KVP_PROTO_VERSION;
    hello.pool_id = (ProtobufCBinaryData){16, f->master.pool_id};
    hello.incarnation = 50;
    kvp_pb_frame_begin(&c.conn.out, KVP_OP_DATA_HELLO, 0, 5, &hello, &at);
    kvp_frame_end(&c.conn.out, at);
    assert_int_equal(kvp_exchange(&c.conn, 5, by(), &frame), KVP_OK);
    assert_int_equal(frame.hdr.opcode, KVP_OP_DATA_HELLO);
    reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &frame);
    assert_non_null(reply);
    assert_int_equal(reply->err, KVP_OK);
    kvp_pb_free(&pb, reply);
    master_fence(&f->master, 50);
    expect_closed(&c);
}

/* ---- the master goes and comes */
TEST_WITH(test_segment_is_resumed_by_the_same_master, setup, teardown)
{
    fixture_t *f = *state;
    uint8_t uuid[16];
    client_t c;

    memcpy(uuid, f->master.uuid, sizeof uuid);
    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    master_greet(&f->master, TERM, KVP_OK);
    master_answer_mount(&f->master, master_expect_mount(&f->master), KVP_OK, false);
    assert_memory_equal(f->master.uuid, uuid, sizeof uuid);
    assert_false(f->master.is_fresh);
    assert_int_equal(client_drained(&c, 1), KVP_OK); /* attached all the while */
    kvp_framed_fini(&c.conn);
}

TEST_WITH(test_older_master_is_not_obeyed, setup, teardown)
{
    fixture_t *f = *state;
    kvp_frame_t frame;

    master_greet(&f->master, TERM - 1, KVP_OK);
    master_answer_mount_in(&f->master, master_expect_mount(&f->master), TERM - 1, REPORT_NOTHING);
    assert_int_equal(f->master.told_term, TERM); /* so that it can take a higher one */
    assert_false(master_next(&f->master, &frame));
    master_greet(&f->master, TERM + 1, KVP_OK);
    (void)master_expect_mount(&f->master);
    assert_false(f->master.is_fresh);
}

/* What the client stores: an object in slot 3, half of one in slot 4. */
static void
store_by_hand(uint8_t *meta, kvp_desc_t *desc_out)
{
    kvp_chunk_geo_t geo;
    kvp_desc_t desc = {.word = kvp_word_make(kvp_gen_make(TERM, 1), KVP_DESC_SEALED),
                       .version = kvp_gen_make(TERM, 1),
                       .len = 100,
                       .key_len = 5,
                       .term = TERM};
    uint64_t writing = kvp_word_make(kvp_gen_make(TERM, 2), KVP_DESC_WRITING);

    kvp_chunk_geo(CHUNK, &geo);
    desc.key_off = kvp_key_cell_units(&geo, 3);
    kvp_desc_seal(&desc);
    memcpy(meta + (uint64_t)desc.key_off * 64, "a key", 5);
    memcpy(meta + kvp_desc_off(3), &desc, sizeof desc);
    memcpy(meta + kvp_desc_off(4), &writing, sizeof writing);
    *desc_out = desc;
}

static void
expect_report_of(master_t *m, const kvp_desc_t *desc, bool is_wanted)
{
    const kvp_wire_extent_t *rec;
    Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT;
    uint8_t flag = (uint8_t)(is_wanted ? 0 : KVP_RETIRE_DEAD);
    Kvp__Pb__Report *msg;
    kvp_frame_t f;
    kvp_pb_t pb;

    master_expect(m, KVP_OP_REPORT, &f);
    msg = kvp_pb_unpack(&pb, &kvp__pb__report__descriptor, &f);
    assert_non_null(msg);
    assert_false(msg->is_last);
    assert_true(msg->is_whole);
    assert_int_equal(msg->n, 1);
    assert_string_equal(msg->tenant, "team-a");
    assert_int_equal(f.tail_len, sizeof *rec + sizeof *desc + 8);
    rec = (const kvp_wire_extent_t *)f.tail;
    assert_int_equal(rec->slot, 3);
    assert_int_equal(rec->word, desc->word);
    assert_memory_equal(rec + 1, desc, sizeof *desc);
    assert_memory_equal((const uint8_t *)(rec + 1) + sizeof *desc, "a key\0\0", 8);
    reply.n = 1;
    master_send(m, KVP_OP_REPORT, KVP_FRAME_REPLY, f.hdr.request_id, &reply, &flag, 1);
    kvp_pb_free(&pb, msg);
    /* Nothing is in the other chunks. */
    master_expect(m, KVP_OP_REPORT, &f);
    msg = kvp_pb_unpack(&pb, &kvp__pb__report__descriptor, &f);
    assert_non_null(msg);
    assert_true(msg->is_last);
    assert_int_equal(msg->n, 0);
    reply.n = 0;
    master_send(m, KVP_OP_REPORT, KVP_FRAME_REPLY, f.hdr.request_id, &reply, NULL, 0);
    kvp_pb_free(&pb, msg);
}

/* The name of a chunk's tenant lies behind its superblock; an order for no chunk ends the connection. */
TEST_WITH(test_owner_of_a_chunk, setup, teardown)
{
    fixture_t *f = *state;
    kvp_chunk_owner_t owner;
    kvp_frame_t frame;
    client_t c;
    chunk_t chunk;
    uint8_t *meta;

    master_own(&f->master, 1, "team-a");
    master_fence(&f->master, 7); /* its answer says that the order before was obeyed */
    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 1, KVP_ACCESS_READ, "shm", &chunk), KVP_OK);
    meta = map_meta(&chunk, PROT_READ);
    memcpy(&owner, meta + KVP_SB_OWNER_OFF, sizeof owner);
    assert_string_equal(owner.tenant, "team-a");
    assert_int_equal(owner.check, kvp_sum(owner.tenant, sizeof owner.tenant));
    munmap(meta, chunk.meta_bytes);
    chunk_close(&chunk);
    kvp_framed_fini(&c.conn);
    master_own(&f->master, 1000, "team-a");
    assert_false(master_next(&f->master, &frame));
}

TEST_WITH(test_new_master_is_told_what_is_in_the_memory, setup, teardown)
{
    fixture_t *f = *state;
    kvp_superblock_t sb;
    kvp_desc_t desc;
    client_t c;
    chunk_t chunk;
    uint8_t *meta;
    uint64_t id, word;

    master_own(&f->master, 0, "team-a");
    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_WRITE, "shm", &chunk), KVP_OK);
    meta = map_meta(&chunk, PROT_READ | PROT_WRITE);
    store_by_hand(meta, &desc);

    master_greet(&f->master, TERM + 1, KVP_OK);
    id = master_expect_mount(&f->master);
    assert_int_equal(f->master.mounted_term, TERM);
    expect_closed(&c);
    memcpy(&word, meta + kvp_desc_off(4), sizeof word);
    assert_int_equal(word, kvp_word_make(kvp_gen_make(TERM + 1, 0), KVP_DESC_DEAD));
    assert_int_equal(kvp_sb_verify(meta, KVP_SB_BYTES, &sb), KVP_OK);
    assert_int_equal(sb.term, TERM + 1);

    master_answer_mount_in(&f->master, id, TERM + 1, REPORT_WHOLE);
    expect_report_of(&f->master, &desc, true);
    /* The link breaks and the next master wants to know as well; it does not want what it hears. */
    master_greet(&f->master, TERM + 2, KVP_OK);
    master_answer_mount_in(&f->master, master_expect_mount(&f->master), TERM + 2, REPORT_WHOLE);
    expect_report_of(&f->master, &desc, false);
    assert_int_equal(kvp_node_wait(f->node, kvp_now_ns() + LONG_NS), KVP_OK);
    do
        memcpy(&word, meta + kvp_desc_off(3), sizeof word);
    while (word != kvp_word_make(kvp_word_generation(desc.word), KVP_DESC_DEAD));
    munmap(meta, chunk.meta_bytes);
    chunk_close(&chunk);
}

TEST_WITH(test_reset_makes_new_memory_and_empties_the_old, setup, teardown)
{
    fixture_t *f = *state;
    uint8_t uuid[16], byte = 0;
    client_t c;
    chunk_t chunk;
    struct stat st;
    uint8_t *payload;
    uint64_t id;

    memcpy(uuid, f->master.uuid, sizeof uuid);
    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    assert_int_equal(client_open(&c, uuid, 0, KVP_ACCESS_WRITE, "shm", &chunk), KVP_OK);
    payload = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, chunk.fds[0], 0);
    assert_ptr_not_equal(payload, MAP_FAILED);
    payload[0] = 1;

    master_greet(&f->master, TERM, KVP_OK);
    id = master_expect_mount(&f->master);
    assert_memory_equal(f->master.uuid, uuid, sizeof uuid);
    master_answer_mount(&f->master, id, KVP_OK, true);
    id = master_expect_mount(&f->master);
    assert_memory_not_equal(f->master.uuid, uuid, sizeof uuid);
    assert_true(f->master.is_fresh);
    master_answer_mount(&f->master, id, KVP_OK, false);

    expect_closed(&c);
    do
        assert_int_equal(fstat(chunk.fds[0], &st), 0);
    while (st.st_blocks > 0);
    byte = payload[0];
    assert_int_equal(byte, 0);
    munmap(payload, CHUNK);
    chunk_close(&chunk);

    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    assert_int_equal(client_open(&c, uuid, 0, KVP_ACCESS_READ, "shm", &chunk), KVP_NO_SEGMENT);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "shm", &chunk), KVP_OK);
    chunk_close(&chunk);
    kvp_framed_fini(&c.conn);
}

TEST_WITH(test_fences_outlive_a_reset, setup, teardown)
{
    fixture_t *f = *state;
    client_t c;

    master_fence(&f->master, 50);
    master_greet(&f->master, TERM, KVP_OK);
    master_answer_mount(&f->master, master_expect_mount(&f->master), KVP_OK, true);
    master_answer_mount(&f->master, master_expect_mount(&f->master), KVP_OK, false);
    assert_int_equal(client_attach_here(&c, f, 50), KVP_FENCED);
}

TEST_WITH(test_another_pool_is_another_beginning, setup, teardown)
{
    fixture_t *f = *state;
    uint8_t uuid[16];

    memcpy(uuid, f->master.uuid, sizeof uuid);
    kvp_framed_fini(&f->master.conn);
    memset(f->master.pool_id, 0x43, sizeof f->master.pool_id);
    master_greet(&f->master, 1, KVP_OK);
    (void)master_expect_mount(&f->master);
    assert_true(f->master.is_fresh);
    assert_memory_not_equal(f->master.uuid, uuid, sizeof uuid);
}

static void *
stop_main(void *arg)
{
    kvp_node_stop(arg, by());
    return NULL;
}

TEST_WITH(test_stop_unmounts_first, setup, teardown)
{
    fixture_t *f = *state;
    Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT;
    kvp_frame_t frame;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, stop_main, f->node), 0);
    f->node = NULL;
    master_expect(&f->master, KVP_OP_UNMOUNT, &frame);
    master_send(&f->master, KVP_OP_UNMOUNT, KVP_FRAME_REPLY, frame.hdr.request_id, &reply, NULL, 0);
    master_expect(&f->master, KVP_OP_BYE, &frame);
    assert_false(master_next(&f->master, &frame));
    pthread_join(thread, NULL);
    assert_int_equal(access(f->info.unix_path, F_OK), -1);
}

/* ---- starting */
static void *
play_refusing_master(void *arg)
{
    master_t *m = arg;

    master_greet(m, TERM, KVP_VERSION);
    return NULL;
}

TEST(test_start_says_why_it_failed)
{
    kvp_node_t *node = NULL;
    kvp_node_conf_t conf, bad[5];
    pthread_t thread;
    master_t m;

    master_listen(&m);
    conf = conf_for(&m);
    assert_int_equal(pthread_create(&thread, NULL, play_refusing_master, &m), 0);
    assert_int_equal(kvp_node_start(&conf, by(), &node), KVP_VERSION);
    pthread_join(thread, NULL);
    master_close(&m);
    assert_int_equal(kvp_node_start(&conf, kvp_now_ns() + KVP_NS_PER_S, &node), KVP_UNREACHABLE);

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        bad[i] = conf;
    bad[0].memory_bytes = 4096;
    bad[1].masters = "";
    bad[2].transports = "shm,pigeon";
    bad[3].name = "";
    bad[4].listen = "192.0.2.1:1"; /* not an address of this host */
    bad[4].is_insecure = true;
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        assert_int_equal(kvp_node_start(&bad[i], by(), &node), i == 4 ? KVP_SYS : KVP_INVALID);
    assert_null(node);
}

/* ---- a kernel with pages of another size */
static long page_bytes; /* 0 = the size of this machine's pages */

long __real_sysconf(int name);
long __wrap_sysconf(int name);

long
__wrap_sysconf(int name)
{
    return name == _SC_PAGESIZE && page_bytes != 0 ? page_bytes : __real_sysconf(name);
}

TEST(test_a_node_refuses_larger_pages)
{
    const kvp_node_conf_t conf = {.masters = "127.0.0.1:1", .memory_bytes = MEMORY, .transports = "shm,tcp"};
    kvp_node_t *node = NULL;
    char why[256] = "";

    kvp_log_divert(why, sizeof why);
    page_bytes = 65536;
    assert_int_equal(kvp_node_open(&conf, &node), KVP_SYS);
    page_bytes = 0;
    kvp_log_divert(NULL, 0);
    assert_null(node);
    assert_non_null(strstr(why, "have 65536 bytes, and a node needs pages of 4096"));
}

static void
master_leads(master_t *m, const kvp_frame_t *watch, uint32_t term)
{
    Kvp__Pb__WatchReply reply = KVP__PB__WATCH_REPLY__INIT;

    reply.term = term;
    master_send(m, KVP_OP_WATCH, KVP_FRAME_REPLY, watch->hdr.request_id, &reply, NULL, 0);
}

/* Its connection to the other one stands, and is left. */
TEST(test_the_master_that_leads_has_the_node)
{
    char list[2 * KVP_HOSTPORT_TEXT_MAX];
    master_t m[2];
    kvp_frame_t watch[2], f;
    kvp_node_conf_t conf;
    kvp_node_t *node;

    for (int i = 0; i < 2; i++)
        master_listen(&m[i]);
    snprintf(list, sizeof list, "%s,%s", m[0].addr, m[1].addr);
    conf = conf_for(&m[0]);
    conf.masters = list;
    assert_int_equal(kvp_node_open(&conf, &node), KVP_OK);
    for (int i = 0; i < 2; i++) {
        master_accept(&m[i]);
        master_expect(&m[i], KVP_OP_WATCH, &watch[i]);
    }
    master_leads(&m[1], &watch[1], TERM);
    master_on_hello(&m[1], TERM, KVP_OK);
    master_answer_mount(&m[1], master_expect_mount(&m[1]), KVP_OK, false);
    assert_int_equal(kvp_node_wait(node, by()), KVP_OK);
    master_leads(&m[0], &watch[0], TERM + 1);
    assert_false(master_next(&m[1], &f));
    master_on_hello(&m[0], TERM + 1, KVP_OK);
    (void)master_expect_mount(&m[0]);
    for (int i = 0; i < 2; i++)
        master_close(&m[i]);
    kvp_node_stop(node, 0);
}

TEST_WITH(test_name_that_is_taken_is_asked_for_again, setup_unmounted, teardown)
{
    fixture_t *f = *state;
    master_t *m = &f->master;

    master_greet(m, TERM, KVP_OK);
    master_answer_mount(m, master_expect_mount(m), KVP_SEGMENT_EXISTS, false);
    master_greet(m, TERM, KVP_OK);
    assert_int_equal(kvp_node_wait(f->node, 0), KVP_SEGMENT_EXISTS);
    master_answer_mount(m, master_expect_mount(m), KVP_OK, false);
    assert_true(m->is_fresh);
    assert_int_equal(kvp_node_wait(f->node, by()), KVP_OK);
}

/* The master may have granted places in it before the connection ended. */
TEST_WITH(test_memory_is_not_fresh_when_a_mount_was_not_answered, setup_unmounted, teardown)
{
    master_t *m = &((fixture_t *)*state)->master;

    master_greet(m, TERM, KVP_OK);
    (void)master_expect_mount(m);
    assert_true(m->is_fresh);
    master_greet(m, TERM, KVP_OK);
    master_answer_mount(m, master_expect_mount(m), KVP_OK, false);
    assert_false(m->is_fresh);
}

/* ---- memory that takes long to register */
kvp_err_t __real_kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out,
                                      char *why, size_t why_cap);
kvp_err_t __wrap_kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out,
                                      char *why, size_t why_cap);

/* Of "shm,slow", which the test names, the second one takes long. */
kvp_err_t
__wrap_kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why,
                            size_t why_cap)
{
    if (strcmp(text, "shm,slow") != 0) return __real_kvp_transports_parse(text, list, cap, n_out, why, why_cap);
    list[0] = kvp_transport_find("shm");
    list[1] = slow_reg_reset();
    *n_out = 2;
    return KVP_OK;
}

static int
setup_slow(void **state)
{
    *state = begin("shm,slow");
    slow_reg_let(1); /* the check */
    return mount_first(*state);
}

static int
teardown_slow(void **state)
{
    slow_reg_open();
    return teardown(state);
}

static void
await_registered(const fixture_t *f, uint64_t registered, uint64_t refused)
{
    kvp_node_info_t info;

    do
        kvp_node_info(f->node, &info);
    while (info.registered_bytes != registered || info.unregistered_bytes != refused);
    assert_int_equal(info.to_register_bytes, MEMORY);
}

/* Answers so many heartbeats. */
static void
master_hear(master_t *m, uint64_t n)
{
    uint64_t until = m->heartbeats + n;
    kvp_frame_t frame;

    while (m->heartbeats < until) {
        bool has;

        assert_int_equal(kvp_framed_next(&m->conn, &frame, &has), KVP_OK);
        if (has && frame.hdr.opcode == KVP_OP_HEARTBEAT) answer_heartbeat(m, &frame);
        if (has) continue;
        wait_readable(m->conn.fd);
        assert_int_equal(kvp_framed_recv(&m->conn), KVP_OK);
    }
}

/* Mounted, alive for its master and served by the rest, all while nothing is registered yet; then what is ready is
 * served. */
TEST_WITH(test_registration_that_takes_long_delays_nothing_else, setup_slow, teardown_slow)
{
    fixture_t *f = *state;
    chunk_t chunk;
    client_t c;

    assert_int_equal(client_attach_here(&c, f, 60), KVP_OK);
    slow_reg_await(2); /* behind the check, the first chunk: it does not pass */
    master_hear(&f->master, 3);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "slow", &chunk), KVP_EAGAIN);
    assert_int_equal(client_open(&c, f->master.uuid, 2, KVP_ACCESS_WRITE, "slow", &chunk), KVP_EAGAIN);
    assert_int_equal(client_open(&c, f->master.uuid, 1, KVP_ACCESS_WRITE, "shm", &chunk), KVP_OK);
    chunk_close(&chunk);
    slow_reg_open();
    await_registered(f, MEMORY, 0);
    for (uint32_t i = 0; i < 3; i++) {
        kvp_err_t err;

        while ((err = client_open(&c, f->master.uuid, i, KVP_ACCESS_WRITE, "slow", &chunk)) == KVP_EAGAIN)
            usleep(100);
        assert_int_equal(err, KVP_OK);
    }
    kvp_framed_fini(&c.conn);
}

/* A writer's keys take long: nobody waits for them but who asked, also where he is fenced meanwhile. */
TEST_WITH(test_keys_of_a_writer_delay_nothing_else, setup_slow, teardown_slow)
{
    fixture_t *f = *state;
    client_t c, other;
    uint32_t begun;
    chunk_t chunk;

    slow_reg_open();
    await_registered(f, MEMORY, 0);
    begun = slow_reg_begun();
    slow_reg_shut();
    assert_int_equal(client_attach_here(&c, f, 60), KVP_OK);
    assert_int_equal(client_attach_here(&other, f, 61), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_WRITE, "slow", &chunk), KVP_EAGAIN);
    slow_reg_await(begun + 1);
    master_hear(&f->master, 3);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_WRITE, "slow", &chunk), KVP_EAGAIN);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "slow", &chunk), KVP_OK);
    assert_int_equal(client_open(&other, f->master.uuid, 1, KVP_ACCESS_WRITE, "shm", &chunk), KVP_OK);
    chunk_close(&chunk);
    master_fence(&f->master, 60); /* it is obeyed while they are made */
    slow_reg_open();
    for (kvp_err_t err = KVP_EAGAIN; err != KVP_OK;) {
        err = client_open(&other, f->master.uuid, 0, KVP_ACCESS_WRITE, "slow", &chunk);
        assert_true(err == KVP_OK || err == KVP_EAGAIN);
    }
    kvp_framed_fini(&c.conn);
    kvp_framed_fini(&other.conn);
}

/* What a device cannot take is the clients' to move in another way, and is told so. */
TEST_WITH(test_a_chunk_that_cannot_be_registered_is_refused, setup_slow, teardown_slow)
{
    fixture_t *f = *state;
    chunk_t chunk;
    client_t c;

    slow_reg_await(2);
    slow_reg_fail(slow_reg_at(0), KVP_NOMEM); /* the first chunk: that is how the check begins */
    slow_reg_open();
    await_registered(f, MEMORY - CHUNK, CHUNK);
    assert_int_equal(client_attach_here(&c, f, 60), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "slow", &chunk), KVP_NOTSUP);
    assert_int_equal(client_open(&c, f->master.uuid, 1, KVP_ACCESS_READ, "slow", &chunk), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_WRITE, "shm", &chunk), KVP_OK);
    chunk_close(&chunk);
    kvp_framed_fini(&c.conn);
}

/* Questions that take long each, however many come at once: heartbeats go in between. */
TEST_WITH(test_slow_answers_leave_time_for_heartbeats, setup_slow, teardown_slow)
{
    enum { ASKS = 100, EACH_MS = 15 };
    fixture_t *f = *state;
    Kvp__Pb__OpenChunk ask = KVP__PB__OPEN_CHUNK__INIT;
    client_t c, other;
    kvp_frame_t frame;
    size_t at;

    slow_reg_open();
    await_registered(f, MEMORY, 0);
    assert_int_equal(client_attach_here(&c, f, 60), KVP_OK);
    assert_int_equal(slow_reg_exports(EACH_MS), 0);
    ask.uuid = (ProtobufCBinaryData){16, f->master.uuid};
    ask.role = KVP_ACCESS_WRITE;
    ask.transport = (char *)"slow";
    for (uint32_t i = 0; i < ASKS; i++) {
        kvp_pb_frame_begin(&c.conn.out, KVP_OP_OPEN_CHUNK, 0, 1000 + i, &ask, &at);
        kvp_frame_end(&c.conn.out, at);
    }
    assert_int_equal(kvp_framed_flush(&c.conn), KVP_OK);
    while (slow_reg_exports(EACH_MS) == 0)
        usleep(100);
    master_hear(&f->master, 5);
    assert_int_equal(client_attach_here(&other, f, 61), KVP_OK); /* nor do others wait until they are through */
    kvp_framed_fini(&other.conn);
    assert_true(slow_reg_exports(0) < 2 * ASKS); /* payload and metadata of each */
    for (uint32_t i = 0; i < ASKS; i++)
        assert_int_equal(kvp_exchange(&c.conn, 1000 + i, by(), &frame), KVP_OK);
    kvp_framed_fini(&c.conn);
}

/* ---- COPY */
/* What the test's reader of other nodes says of each object: err by the slot of the source. It reads while it may. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_held, is_stopped; /* reads wait; the session was stopped */
    uint32_t opens, closes, reads;
} source = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

enum { GOOD = 0, OTHER_OBJECT = 1, NODE_IS_LOST = 2, NO_MEMORY = 3, NO_SUCH_PLACE = 4 };

static uint8_t
byte_of(uint64_t version, uint64_t at)
{
    return (uint8_t)(version * 31 + at * 7 + (at >> 12));
}

static kvp_err_t
open_source(const kvp_fetch_conf_t *conf, uint64_t deadline_ns, kvp_fetcher_t **fetcher_out)
{
    (void)deadline_ns;
    if (conf->transports_n == 0 || strcmp(conf->name, "test-node") != 0) return KVP_INVALID;
    __atomic_fetch_add(&source.opens, 1, __ATOMIC_SEQ_CST);
    *fetcher_out = (kvp_fetcher_t *)&source;
    return KVP_OK;
}

static void
read_source(kvp_fetcher_t *fetcher, kvp_fetch_t *const *fetches, uint32_t n, uint64_t deadline_ns)
{
    static const kvp_err_t errs[] = {
        [NODE_IS_LOST] = KVP_NODE_LOST, [NO_MEMORY] = KVP_NOMEM, [NO_SUCH_PLACE] = KVP_STALE};

    assert_ptr_equal(fetcher, &source);
    assert_true(deadline_ns > kvp_now_ns() + 9 * KVP_NS_PER_S);
    assert_in_range(n, 1, 4);
    pthread_mutex_lock(&source.lock);
    source.reads += n;
    pthread_cond_broadcast(&source.changed);
    while (source.is_held && !source.is_stopped)
        pthread_cond_wait(&source.changed, &source.lock);
    pthread_mutex_unlock(&source.lock);
    for (uint32_t i = 0; i < n; i++) {
        const kvp_wire_copy_t *rec = &fetches[i]->rec;

        fetches[i]->err = rec->slot < KVP_ARRAY_LEN(errs) ? errs[rec->slot] : KVP_OK;
        fetches[i]->desc = (kvp_desc_t){.word = kvp_word_make(rec->generation, KVP_DESC_SEALED),
                                        .version = rec->version + (rec->slot == OTHER_OBJECT),
                                        .digest = rec->digest,
                                        .offset = rec->offset,
                                        .len = rec->len,
                                        .tenant = 5,
                                        .key_off = rec->key_off,
                                        .key_len = rec->key_len};
        kvp_desc_seal(&fetches[i]->desc);
        memcpy(fetches[i]->key, "a key", 5);
        for (uint64_t k = 0; k < rec->len; k++)
            fetches[i]->payload[k] = byte_of(rec->version, k);
        fetches[i]->sum = kvp_sum(fetches[i]->payload, rec->len);
    }
}

static void
stop_source(kvp_fetcher_t *fetcher)
{
    (void)fetcher;
    pthread_mutex_lock(&source.lock);
    source.is_stopped = true;
    pthread_cond_broadcast(&source.changed);
    pthread_mutex_unlock(&source.lock);
}

static void
close_source(kvp_fetcher_t *fetcher)
{
    (void)fetcher;
    source.closes++;
}

static const kvp_fetch_ops_t source_ops = {
    .open = open_source, .read = read_source, .stop = stop_source, .close = close_source};

static void
hold_source(bool is_held)
{
    pthread_mutex_lock(&source.lock);
    source.is_held = is_held;
    pthread_cond_broadcast(&source.changed);
    pthread_mutex_unlock(&source.lock);
}

static void
await_reads(uint32_t n)
{
    pthread_mutex_lock(&source.lock);
    while (source.reads < n)
        pthread_cond_wait(&source.changed, &source.lock);
    pthread_mutex_unlock(&source.lock);
}

static int
setup_copies(void **state)
{
    static fixture_t f;
    kvp_node_conf_t conf;

    memset(&f, 0, sizeof f);
    source.is_held = source.is_stopped = false;
    source.opens = source.closes = source.reads = 0;
    master_listen(&f.master);
    conf = conf_for(&f.master);
    conf.fetch = &source_ops;
    assert_int_equal(kvp_node_open(&conf, &f.node), KVP_OK);
    *state = &f;
    return mount_first(&f);
}

/* A copy to slot `slot` of chunk 0, at a megabyte's share of it, of an object at slot `how` of another node. */
static kvp_wire_copy_t
copy_to(uint32_t slot, uint32_t how, uint64_t len)
{
    kvp_chunk_geo_t geo;

    kvp_chunk_geo(CHUNK, &geo);
    return (kvp_wire_copy_t){.digest = {slot, 9},
                             .version = kvp_gen_make(TERM, 100 + slot),
                             .len = len,
                             .key_sum = kvp_sum("a key", 5),
                             .generation = kvp_gen_make(TERM, 100 + slot),
                             .offset = 4096,
                             .segment_id = SEGMENT + 1,
                             .slot = how,
                             .key_off = 77,
                             .to_generation = kvp_gen_make(TERM, 200 + slot),
                             .to_offset = slot * (128u << 10),
                             .to_slot = slot,
                             .to_key_off = kvp_key_cell_units(&geo, slot),
                             .key_len = 5};
}

static uint64_t
master_copy_begin(master_t *m, uint32_t term, uint32_t segment_id, const kvp_wire_copy_t *recs, uint32_t n)
{
    Kvp__Pb__Retire msg = KVP__PB__RETIRE__INIT;

    msg.n = n;
    msg.term = term;
    msg.segment_id = segment_id;
    master_send(m, KVP_OP_COPY, 0, ++m->next_id, &msg, recs, n * sizeof *recs);
    return m->next_id;
}

/* Returns the error of the answer to an order; flags are filled where it is OK. */
static kvp_err_t
master_copy_end(master_t *m, uint64_t id, uint8_t *flags, uint32_t n)
{
    Kvp__Pb__Reply *reply;
    kvp_err_t err;
    kvp_frame_t f;
    kvp_pb_t pb;

    master_expect(m, KVP_OP_COPY, &f);
    assert_int_equal(f.hdr.request_id, id);
    reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &f);
    assert_non_null(reply);
    err = reply->err;
    if (err == KVP_OK) {
        assert_int_equal(reply->n, n);
        assert_int_equal(f.tail_len, n);
        memcpy(flags, f.tail, n);
    }
    kvp_pb_free(&pb, reply);
    return err;
}

TEST_WITH(test_copies_are_stored_and_sealed, setup_copies, teardown)
{
    fixture_t *f = *state;
    kvp_wire_copy_t recs[8];
    uint8_t flags[8], *meta, *payload;
    kvp_desc_t desc;
    client_t c;
    chunk_t chunk;
    static const uint8_t wanted[8] = {KVP_COPY_OK,    KVP_COPY_STALE,  KVP_COPY_AWAY, KVP_COPY_FAILED,
                                      KVP_COPY_STALE, KVP_COPY_FAILED, KVP_COPY_OK,   KVP_COPY_STALE};

    for (uint32_t i = 0; i < 8; i++)
        recs[i] = copy_to(i, i <= NO_SUCH_PLACE ? i : GOOD, i == 6 ? 100001 : 65536);
    recs[5].to_chunk = 99;
    recs[7].key_len = 0; /* it was removed before the order was sent */
    assert_int_equal(master_copy_end(&f->master, master_copy_begin(&f->master, TERM, SEGMENT, recs, 8), flags, 8),
                     KVP_OK);
    assert_memory_equal(flags, wanted, 8);
    assert_int_equal(__atomic_load_n(&source.opens, __ATOMIC_SEQ_CST), 1);

    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "shm", &chunk), KVP_OK);
    meta = map_meta(&chunk, PROT_READ);
    payload = mmap(NULL, CHUNK, PROT_READ, MAP_SHARED, chunk.fds[0], 0);
    assert_ptr_not_equal(payload, MAP_FAILED);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(word_at(meta, i),
                         wanted[i] == KVP_COPY_OK ? kvp_word_make(recs[i].to_generation, KVP_DESC_SEALED) : 0);
    memcpy(&desc, meta + kvp_desc_off(6), sizeof desc);
    assert_int_equal(desc.version, recs[6].version);
    assert_int_equal(desc.offset, recs[6].to_offset);
    assert_int_equal(desc.tenant, 5);
    assert_int_equal(desc.term, TERM);
    assert_memory_equal(meta + (uint64_t)desc.key_off * 64, "a key", 5);
    for (uint64_t k = 0; k < recs[6].len; k++)
        assert_int_equal(payload[recs[6].to_offset + k], byte_of(recs[6].version, k));
    munmap(payload, CHUNK);
    munmap(meta, chunk.meta_bytes);
    chunk_close(&chunk);
    kvp_framed_fini(&c.conn);
}

TEST_WITH(test_bad_copies_are_refused, setup_copies, teardown)
{
    fixture_t *f = *state;
    kvp_wire_copy_t rec = copy_to(0, GOOD, 4096);
    uint64_t ids[17];
    uint8_t flags[17];
    kvp_frame_t frame;

#define REFUSED(term, segment)                                                                                         \
    master_copy_end(&f->master, master_copy_begin(&f->master, term, segment, &rec, 1), flags, 1)
    assert_int_equal(REFUSED(TERM - 1, SEGMENT), KVP_STALE_TERM);
    assert_int_equal(REFUSED(TERM, SEGMENT + 1), KVP_NO_SEGMENT);
    rec.len = 0;
    assert_int_equal(REFUSED(TERM, SEGMENT), KVP_INVALID);
    rec.len = UINT64_MAX;
    assert_int_equal(REFUSED(TERM, SEGMENT), KVP_INVALID);
    rec.len = 4096;
    rec.key_len = KVP_KEY_MAX + 1;
    assert_int_equal(REFUSED(TERM, SEGMENT), KVP_INVALID);
    rec.key_len = 5;
#undef REFUSED
    hold_source(true);
    for (uint32_t i = 0; i < 17; i++) {
        rec = copy_to(i, GOOD, 64);
        ids[i] = master_copy_begin(&f->master, TERM, SEGMENT, &rec, 1);
    }
    assert_int_equal(master_copy_end(&f->master, ids[16], flags, 1), KVP_LIMIT);
    hold_source(false);
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(master_copy_end(&f->master, ids[i], flags + i, 1), KVP_OK);
    }
    master_send(&f->master, KVP_OP_COPY, 0, ++f->master.next_id, &(Kvp__Pb__Retire)KVP__PB__RETIRE__INIT, NULL, 0);
    assert_false(master_next(&f->master, &frame));
}

TEST_WITH(test_nodes_without_a_reader_copy_nothing, setup, teardown)
{
    fixture_t *f = *state;
    kvp_wire_copy_t rec = copy_to(0, GOOD, 4096);
    uint8_t flag;

    assert_int_equal(master_copy_end(&f->master, master_copy_begin(&f->master, TERM, SEGMENT, &rec, 1), &flag, 1),
                     KVP_NOTSUP);
}

/* A source hangs: orders of the master are answered meanwhile, and what comes too late is stored nowhere. */
TEST_WITH(test_late_copies_are_stored_nowhere, setup_copies, teardown)
{
    fixture_t *f = *state;
    kvp_wire_copy_t recs[2] = {copy_to(0, GOOD, 65536), copy_to(1, GOOD, 65536)};
    const kvp_wire_slot_t slot = {.slot = 1, .generation = recs[1].to_generation};
    uint8_t flags[2];
    uint64_t id;
    client_t c;
    chunk_t chunk;
    uint8_t *meta;

    hold_source(true);
    id = master_copy_begin(&f->master, TERM, SEGMENT, recs, 2);
    await_reads(2);
    assert_int_equal(master_retire(&f->master, TERM, &slot, 1, flags), KVP_OK);
    assert_int_equal(flags[0] & KVP_RETIRE_DEAD, KVP_RETIRE_DEAD);
    hold_source(false);
    assert_int_equal(master_copy_end(&f->master, id, flags, 2), KVP_OK);
    assert_int_equal(flags[0], KVP_COPY_OK);
    assert_int_equal(flags[1], KVP_COPY_FAILED);

    recs[0] = copy_to(2, GOOD, 65536);
    recs[1] = copy_to(3, GOOD, 65536);
    hold_source(true);
    (void)master_copy_begin(&f->master, TERM, SEGMENT, recs, 2);
    await_reads(4);
    master_greet(&f->master, TERM, KVP_OK); /* the connection of the order is over */
    master_answer_mount(&f->master, master_expect_mount(&f->master), KVP_OK, false);
    hold_source(false);
    recs[0] = copy_to(4, GOOD, 4096);
    id = master_copy_begin(&f->master, TERM, SEGMENT, recs, 1);
    assert_int_equal(master_copy_end(&f->master, id, flags, 1), KVP_OK);
    assert_int_equal(flags[0], KVP_COPY_OK);
    assert_int_equal(client_attach_here(&c, f, 50), KVP_OK);
    assert_int_equal(client_open(&c, f->master.uuid, 0, KVP_ACCESS_READ, "shm", &chunk), KVP_OK);
    meta = map_meta(&chunk, PROT_READ);
    assert_int_equal(word_at(meta, 2), 0);
    assert_int_equal(word_at(meta, 3), 0);
    munmap(meta, chunk.meta_bytes);
    chunk_close(&chunk);
    kvp_framed_fini(&c.conn);
    assert_int_equal(__atomic_load_n(&source.opens, __ATOMIC_SEQ_CST), 1);

    hold_source(true); /* the node ends though its source hangs */
    (void)master_copy_begin(&f->master, TERM, SEGMENT, recs, 1);
    await_reads(6);
    kvp_node_stop(f->node, 0);
    f->node = NULL;
    assert_int_equal(source.closes, 1);
}

int
main(void)
{
    kvp_log_set_level(KVP_LOG_ERROR);
    return run_cases(NULL, NULL);
}
