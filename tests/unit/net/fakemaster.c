/* SPDX-License-Identifier: Apache-2.0
 * What the master of tests answers. */
#include "tests/unit/net/fakemaster.h"

#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* Before an answer, as long as the test says. */
static void
delay(const fake_master_t *m)
{
    struct timespec back_off = {.tv_nsec = m->delay_ms * 1000000L};

    if (m->delay_ms > 0) nanosleep(&back_off, NULL);
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
    m->watched[c - m->server.conns] = 0; /* of an earlier connection, at most */
    msg.err = m->is_standby && !hello->is_state_only ? KVP_NOT_LEADER : m->hello_err;
    kvp_pb_free(&pb, hello);
    msg.detail = (char *)(msg.err == 0 ? "" : "the test says so");
    msg.version = KVP_PROTO_VERSION;
    msg.term = m->term;
    msg.incarnation = (uint64_t)m->term << 32 | ++m->hellos;
    msg.pool_id = (ProtobufCBinaryData){sizeof pool_id, pool_id};
    msg.digest_seed = 99;
    msg.host_id = (char *)"another host";
    msg.heartbeat_ms = m->heartbeat_ms;
    msg.session_ttl_ms = m->ttl_ms;
    fake_server_answer(c, f, &msg.base, NULL, 0);
}

static void
answer_watch(fake_master_t *m, kvp_framed_t *c, uint64_t id)
{
    Kvp__Pb__WatchReply msg = KVP__PB__WATCH_REPLY__INIT;
    const kvp_frame_t f = {.hdr = {.opcode = KVP_OP_WATCH, .request_id = id}};

    msg.term = m->term;
    fake_server_answer(c, &f, &msg.base, NULL, 0);
}

static void
on_watch(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    if (!m->is_losing_watches) m->watched[c - m->server.conns] = f->hdr.request_id;
    m->watches++;
}

/* Whoever waits to hear that this one leads hears it. */
static void
on_round(void *arg)
{
    fake_master_t *m = arg;

    for (size_t i = 0; i < FAKE_CONNS; i++) {
        kvp_framed_t *c = &m->server.conns[i];

        if (c->fd < 0) m->watched[i] = 0;
        if (m->watched[i] == 0 || m->is_standby || m->is_mute || m->server.is_deaf) continue;
        answer_watch(m, c, m->watched[i]);
        m->watched[i] = 0;
        kvp_ignore(kvp_framed_flush(c), "its end is seen when it is read");
    }
}

static bool
does_standby_serve(uint8_t opcode)
{
    return opcode == KVP_OP_HELLO || opcode == KVP_OP_WATCH || opcode == KVP_OP_BYE || opcode == KVP_OP_LIST ||
           opcode == KVP_OP_SEGMENTS || opcode == KVP_OP_STATUS;
}

static void
on_heartbeat(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__HeartbeatReply msg = KVP__PB__HEARTBEAT_REPLY__INIT;

    m->heartbeats++;
    msg.err = m->is_fencing ? KVP_FENCED : KVP_OK;
    msg.term = m->term;
    msg.lease_ms = m->lease_ms;
    fake_server_answer(c, f, &msg.base, NULL, 0);
}

static void
on_exists(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    const kvp_digest_t *digests = (const kvp_digest_t *)f->tail;
    uint32_t n = (uint32_t)(f->tail_len / sizeof *digests);
    uint8_t *found = calloc(n + 1, 1);

    if (found == NULL) abort();
    delay(m);
    for (uint32_t i = 0; i < n; i++)
        found[i] = digests[i].lo & 1;
    msg.n = n;
    m->exists++;
    fake_server_answer(c, f, &msg.base, found, n);
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
    fake_server_answer(c, f, &msg.base, errs, n * sizeof *errs);
    free(errs);
}

/* Every key is missed, under a hold that has to be given back. */
static void
on_get(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__Places msg = KVP__PB__PLACES__INIT;
    kvp_wire_obj_t obj = {.err = KVP_NOT_FOUND};

    delay(m);
    msg.n = 1;
    msg.ticket = ++m->gets;
    fake_server_answer(c, f, &msg.base, &obj, sizeof obj);
}

/* All is found, and reserved under a ticket. */
static void
on_lookup(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__LookupReply msg = KVP__PB__LOOKUP_REPLY__INIT;
    size_t n = f->tail_len / sizeof(kvp_digest_t);
    uint8_t *found = malloc(n + 1);

    if (found == NULL) abort();
    memset(found, m->found_byte == 0 ? 1 : m->found_byte, n);
    msg.n = msg.found = msg.granted = (uint32_t)n;
    msg.ticket = ++m->lookups;
    msg.ttl_ms = 10000;
    fake_server_answer(c, f, &msg.base, found, n);
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
    fake_server_answer(c, f, &msg.base, answers, msg.n * sizeof answers[0]);
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
    fake_server_answer(c, f, &msg.base, NULL, 0);
}

static void
on_bye(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;

    m->byes++;
    if ((f->hdr.flags & KVP_FRAME_ONEWAY) == 0) fake_server_answer(c, f, &msg.base, NULL, 0);
}

static void
on_release(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    uint64_t ticket;

    (void)c;
    memcpy(&ticket, f->tail, sizeof ticket);
    m->last_released = ticket;
    m->releases++;
}

/* It makes no room. */
static void
on_put_begin(fake_master_t *m, kvp_framed_t *c, const kvp_frame_t *f)
{
    (void)m, (void)c, (void)f;
}

static kvp_err_t
on_frame(void *arg, kvp_framed_t *c, const kvp_frame_t *f)
{
    static void (*const handlers[256])(fake_master_t * m, kvp_framed_t * c, const kvp_frame_t *f) = {
        [KVP_OP_HELLO] = on_hello,         [KVP_OP_WATCH] = on_watch,     [KVP_OP_HEARTBEAT] = on_heartbeat,
        [KVP_OP_EXISTS] = on_exists,       [KVP_OP_REMOVE] = on_remove,   [KVP_OP_GET] = on_get,
        [KVP_OP_LOOKUP] = on_lookup,       [KVP_OP_PRESENT] = on_present, [KVP_OP_SEGMENTS] = on_segments,
        [KVP_OP_PUT_BEGIN] = on_put_begin, [KVP_OP_RELEASE] = on_release, [KVP_OP_BYE] = on_bye,
    };
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    fake_master_t *m = arg;

    if (m->is_dropping && f->hdr.opcode != KVP_OP_HELLO) return KVP_DISCONNECTED;
    msg.err = KVP_NOTSUP;
    msg.detail = (char *)"this one does not know how";
    if (m->is_mute) return KVP_OK;
    if (m->is_standby && !does_standby_serve(f->hdr.opcode)) {
        msg.err = KVP_NOT_LEADER;
        fake_server_answer(c, f, &msg.base, NULL, 0);
    } else if (handlers[f->hdr.opcode] != NULL)
        handlers[f->hdr.opcode](m, c, f);
    else if ((f->hdr.flags & KVP_FRAME_ONEWAY) == 0)
        fake_server_answer(c, f, &msg.base, NULL, 0);
    return KVP_OK;
}

void
fake_master_bind(fake_master_t *m)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;

    memset(m, 0, sizeof *m);
    m->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    m->term = 1;
    m->heartbeat_ms = 20;
    m->ttl_ms = 400;
    m->server.on_frame = on_frame;
    m->server.on_round = on_round;
    m->server.arg = m;
    if (m->listener < 0 || bind(m->listener, (struct sockaddr *)&at, sizeof at) != 0 ||
        getsockname(m->listener, (struct sockaddr *)&at, &len) != 0)
        abort();
    m->port = ntohs(at.sin_port);
}

void
fake_master_serve(fake_master_t *m)
{
    if (listen(m->listener, 64) != 0) abort();
    fake_server_start(&m->server, m->listener);
}

void
fake_master_start(fake_master_t *m)
{
    fake_master_bind(m);
    fake_master_serve(m);
}

void
fake_master_end(fake_master_t *m)
{
    fake_server_end(&m->server);
}
