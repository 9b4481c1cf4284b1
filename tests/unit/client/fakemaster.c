/* SPDX-License-Identifier: Apache-2.0
 * The master of tests: one thread, one poll loop.
 */
#include "tests/unit/client/fakemaster.h"

#include "common/clock.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void
answer(kvp_framed_t *c, const kvp_frame_t *f, const void *msg, const void *tail, size_t tail_len)
{
    size_t at;

    kvp_pb_frame_begin(&c->out, f->hdr.opcode, KVP_FRAME_REPLY, f->hdr.request_id, msg, &at);
    kvp_buf_append(&c->out, tail, tail_len);
    kvp_frame_end(&c->out, at);
}

static void
on_hello(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    static uint8_t pool_id[16] = "a pool for tests";
    Kvp__Pb__HelloReply msg = KVP__PB__HELLO_REPLY__INIT;
    Kvp__Pb__Hello *hello;
    kvp_pb_t pb;

    hello = kvp_pb_unpack(&pb, &kvp__pb__hello__descriptor, f);
    if (hello == NULL) abort();
    m->last_before = hello->incarnation;
    kvp_pb_free(&pb, hello);
    msg.err = m->hello_err;
    msg.detail = (char *)(m->hello_err == 0 ? "" : "the test says so");
    msg.version = KVP_PROTO_VERSION;
    msg.term = 1;
    msg.incarnation = ++m->hellos;
    msg.pool_id = (ProtobufCBinaryData){sizeof pool_id, pool_id};
    msg.digest_seed = 99;
    msg.host_id = (char *)"another host";
    msg.heartbeat_ms = m->heartbeat_ms;
    msg.session_ttl_ms = m->ttl_ms;
    answer(c, f, &msg.base, NULL, 0);
}

static void
on_heartbeat(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__HeartbeatReply msg = KVP__PB__HEARTBEAT_REPLY__INIT;

    m->heartbeats++;
    msg.err = m->is_fencing ? KVP_FENCED : KVP_OK;
    msg.term = 1;
    msg.lease_ms = m->lease_ms;
    answer(c, f, &msg.base, NULL, 0);
}

static void
on_exists(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    const kvp_digest_t *digests = (const kvp_digest_t *)f->tail;
    uint32_t n = (uint32_t)(f->tail_len / sizeof *digests);
    uint8_t *found = calloc(n + 1, 1);
    struct timespec nap = {.tv_nsec = m->delay_ms * 1000000L};

    if (found == NULL) abort();
    if (m->delay_ms > 0) nanosleep(&nap, NULL);
    for (uint32_t i = 0; i < n; i++)
        found[i] = digests[i].lo & 1;
    msg.n = n;
    m->exists++;
    answer(c, f, &msg.base, found, n);
    free(found);
}

static void
on_remove(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    const kvp_digest_t *digests = (const kvp_digest_t *)f->tail;
    uint32_t n = (uint32_t)(f->tail_len / sizeof *digests);
    int32_t *errs = calloc(n + 1, sizeof *errs), all = atomic_exchange(&m->remove_err, 0);

    if (errs == NULL) abort();
    for (uint32_t i = 0; i < n; i++) {
        errs[i] = digests[i].lo & 1 ? KVP_OK : KVP_NOT_FOUND;
        if (all != 0) errs[i] = all;
    }
    msg.n = n;
    m->removes++;
    answer(c, f, &msg.base, errs, n * sizeof *errs);
    free(errs);
}

/* Every key is missed, under a hold that has to be given back. */
static void
on_get(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__Places msg = KVP__PB__PLACES__INIT;
    kvp_wire_obj_t obj = {.err = KVP_NOT_FOUND};
    struct timespec nap = {.tv_nsec = m->delay_ms * 1000000L};

    if (m->delay_ms > 0) nanosleep(&nap, NULL);
    msg.n = 1;
    msg.ticket = ++m->gets;
    answer(c, f, &msg.base, &obj, sizeof obj);
}

/* All is found, and reserved under a ticket. */
static void
on_lookup(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__LookupReply msg = KVP__PB__LOOKUP_REPLY__INIT;
    size_t n = f->tail_len / sizeof(kvp_digest_t);
    uint8_t *found = malloc(n + 1);

    if (found == NULL) abort();
    memset(found, 1, n);
    msg.n = msg.found = msg.granted = (uint32_t)n;
    msg.ticket = ++m->lookups;
    msg.ttl_ms = 10000;
    answer(c, f, &msg.base, found, n);
    free(found);
}

/* As the test has chosen. */
static void
on_present(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__PresentReply msg = KVP__PB__PRESENT_REPLY__INIT;
    kvp_wire_presented_t answers[KVP_PLACES_MAX] = {0};
    kvp_err_t err = m->present_err;

    msg.n = (uint32_t)(f->tail_len / sizeof(kvp_wire_present_t));
    msg.retry_ms = 1;
    for (uint32_t i = 0; i < msg.n && i < KVP_PLACES_MAX; i++) {
        answers[i].err = err;
        if (err == KVP_OK) answers[i].ticket = 1000;
    }
    answer(c, f, &msg.base, answers, msg.n * sizeof answers[0]);
    m->presents++;
    m->honoured += err == KVP_OK;
}

/* Asked for all, or for some. */
static void
on_segments(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__SegmentsReply msg = KVP__PB__SEGMENTS_REPLY__INIT;
    Kvp__Pb__SegmentInfo info = KVP__PB__SEGMENT_INFO__INIT;
    Kvp__Pb__SegmentInfo *infos = &info;
    const fake_segment_t *seg = m->segment;
    Kvp__Pb__Segments *ask;
    kvp_pb_t pb;

    ask = kvp_pb_unpack(&pb, &kvp__pb__segments__descriptor, f);
    if (ask == NULL) abort();
    m->segments++;
    if (seg != NULL && (ask->n_ids == 0 || ask->ids[0] == FAKE_MASTER_SEGMENT)) {
        info.segment_id = FAKE_MASTER_SEGMENT;
        info.node = (char *)"a node for tests";
        info.host_id = (char *)FAKE_MASTER_HOST;
        info.uuid = (ProtobufCBinaryData){16, (uint8_t *)seg->uuid};
        info.addr = (char *)"127.0.0.1:1";
        info.unix_path = (char *)seg->unix_path;
        info.size_bytes = info.chunk_bytes = seg->bytes;
        info.chunk_n = 1;
        info.state = KVP_SEG_UP;
        info.transports = (char *)(seg->transports == NULL ? "shm" : seg->transports);
        msg.segments = &infos;
        msg.n_segments = 1;
    }
    kvp_pb_free(&pb, ask);
    answer(c, f, &msg.base, NULL, 0);
}

static void
on_frame(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    uint64_t ticket;

    if (m->is_mute) return;
    switch (f->hdr.opcode) {
    case KVP_OP_HELLO:
        on_hello(m, c, f);
        return;
    case KVP_OP_HEARTBEAT:
        on_heartbeat(m, c, f);
        return;
    case KVP_OP_EXISTS:
        on_exists(m, c, f);
        return;
    case KVP_OP_REMOVE:
        on_remove(m, c, f);
        return;
    case KVP_OP_GET:
        on_get(m, c, f);
        return;
    case KVP_OP_LOOKUP:
        on_lookup(m, c, f);
        return;
    case KVP_OP_PRESENT:
        on_present(m, c, f);
        return;
    case KVP_OP_SEGMENTS:
        on_segments(m, c, f);
        return;
    case KVP_OP_PUT_BEGIN: /* it makes no room */
        return;
    case KVP_OP_BYE:
        m->byes++;
        break;
    case KVP_OP_RELEASE:
        memcpy(&ticket, f->tail, sizeof ticket);
        m->last_released = ticket;
        m->releases++;
        break;
    default:
        msg.err = KVP_NOTSUP;
        msg.detail = (char *)"this one does not know how";
        break;
    }
    if ((f->hdr.flags & KVP_FRAME_ONEWAY) == 0) answer(c, f, &msg.base, NULL, 0);
}

static void
serve(fake_master_t *m, kvp_framed_t *c)
{
    kvp_err_t err = kvp_framed_recv(c);
    kvp_frame_t frame;
    bool has = true;

    while (err == KVP_OK && has) {
        err = kvp_framed_next(c, &frame, &has);
        if (err == KVP_OK && has && m->is_dropping && frame.hdr.opcode != KVP_OP_HELLO) err = KVP_DISCONNECTED;
        if (err == KVP_OK && has) on_frame(m, c, &frame);
    }
    if (err == KVP_OK) err = kvp_framed_flush(c);
    if (err != KVP_OK && err != KVP_EAGAIN) kvp_framed_fini(c);
}

static void
accept_one(fake_master_t *m)
{
    int fd = accept(m->listener, NULL, NULL);

    for (int i = 0; i < FAKE_CONNS && fd >= 0; i++) {
        if (m->conns[i].fd >= 0) continue;
        if (kvp_framed_adopt(&m->conns[i], fd, false) != KVP_OK) abort();
        return;
    }
    if (fd >= 0) close(fd);
}

static void *
run(void *arg)
{
    fake_master_t *m = arg;

    while (!m->is_ending) {
        struct pollfd p[FAKE_CONNS + 1] = {{.fd = m->listener, .events = POLLIN}};
        bool is_cutting = m->is_cutting; /* once a round: a cut that is asked for within one is the next one's */

        for (int i = 0; i < FAKE_CONNS; i++) {
            if (is_cutting) kvp_framed_fini(&m->conns[i]);
            p[i + 1] = (struct pollfd){.fd = m->conns[i].fd, .events = POLLIN};
        }
        if (is_cutting) m->is_cutting = false;
        poll(p, m->is_deaf ? 0 : FAKE_CONNS + 1, 5);
        for (int i = 0; i < FAKE_CONNS; i++)
            if (p[i + 1].revents != 0) serve(m, &m->conns[i]);
        if (p[0].revents != 0) accept_one(m);
    }
    return NULL;
}

void
fake_master_start(fake_master_t *m)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;

    memset(m, 0, sizeof *m);
    m->heartbeat_ms = 20;
    m->ttl_ms = 400;
    for (int i = 0; i < FAKE_CONNS; i++)
        kvp_framed_init(&m->conns[i]);
    m->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (m->listener < 0 || bind(m->listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(m->listener, 64) != 0 ||
        getsockname(m->listener, (struct sockaddr *)&at, &len) != 0)
        abort();
    m->port = ntohs(at.sin_port);
    if (pthread_create(&m->thread, NULL, run, m) != 0) abort();
}

void
fake_master_end(fake_master_t *m)
{
    m->is_ending = true;
    pthread_join(m->thread, NULL);
    for (int i = 0; i < FAKE_CONNS; i++)
        kvp_framed_fini(&m->conns[i]);
    close(m->listener);
}
