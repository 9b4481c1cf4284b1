/* SPDX-License-Identifier: Apache-2.0
 * The master's core under two clients, two nodes on two hosts and a stranger, all of which do what the input says: honest
 * questions with chosen arguments, frames of any bytes, answers to RETIRE in any order and number, lost connections,
 * passing time. Objects have copies, pins and groups, are replaced, and go with their namespace. Inputs that begin with
 * DISK give the core a journal, which is durable as far as they say.
 *
 * What must hold whatever they do: every output is a whole frame; nothing is granted that overlaps an extent which was
 * granted before and that the node has not said to be free; no generation comes twice in a slot; the core's own check
 * passes; its memory stays in proportion to the input.
 */
#include "common/segfmt.h"
#include "master/core/master.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"
#include "tests/world/check/core_check.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PEERS 5
#define NODE 2
#define STRANGER 3
#define FAR_NODE 4 /* on a host of its own */
#define GROUPS 5
#define SEED 42
#define KEYS 24
#define KEYS_A_MESSAGE 8
#define STEPS_MAX 400
#define EXTENTS_MAX 8192
#define RETIRES_MAX 256
#define DISK 30u /* a step: more of the journal is durable */
#define MEMORY_MAX (512u << 20)
#define MS 1000000ull

typedef struct {
    const uint8_t *at;
    size_t left;
} input_t;

/* An extent that was granted once. It stays here, since its slot's next generation must be greater. */
typedef struct {
    kvp_wire_loc_t loc;
    uint64_t len;
    bool is_free;
} extent_t;

typedef struct peer peer_t;

typedef struct {
    peer_t *node;
    uint64_t request_id;
    uint32_t segment_id;
    uint32_t n;
    kvp_wire_slot_t *slots;
} retire_t;

typedef struct {
    peer_t *node;
    uint32_t segment_id;
    kvp_wire_slot_t slot;
} dead_t;

struct peer {
    uint64_t conn; /* 0 = closed */
    uint64_t incarnation;
    uint32_t segment_id; /* a node's last */
    uint64_t revoke_seq; /* that it says it has applied */
    uint64_t attempts[16]; /* some that it began */
    uint32_t attempt_at;
    uint64_t tickets[16];
    uint32_t ticket_at;
    uint64_t asked_len[256][KEYS_A_MESSAGE]; /* lengths of its puts, by the low byte of the request */
};

typedef struct {
    kvp_master_t *core;
    uint64_t now_ns;
    uint64_t conns;
    uint64_t requests;
    uint64_t attempts;
    uint8_t uuid;
    peer_t peers[PEERS];
    extent_t *extents;
    size_t extents_n;
    retire_t retires[RETIRES_MAX]; /* not answered, oldest first */
    size_t retires_n;
    dead_t dead[RETIRES_MAX]; /* answered DEAD only */
    size_t dead_n;
    kvp_buf_t frame;
    bool has_journal;
    uint64_t journal_end, durable;
} world_t;

static void
check(bool is_true, const char *what)
{
    if (is_true) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static uint64_t
take(input_t *in, size_t bytes)
{
    uint64_t value = 0;
    size_t n = in->left < bytes ? in->left : bytes;

    memcpy(&value, in->at, n);
    in->at += n;
    in->left -= n;
    return value;
}

/* ---- the model of extents */
static extent_t *
find_extent(world_t *w, uint32_t segment_id, uint32_t chunk, uint32_t slot)
{
    for (size_t i = 0; i < w->extents_n; i++) {
        extent_t *e = &w->extents[i];
        if (e->loc.segment_id == segment_id && e->loc.chunk == chunk && e->loc.slot == slot) return e;
    }
    return NULL;
}

static void
set_free(world_t *w, uint32_t segment_id, const kvp_wire_slot_t *slot)
{
    extent_t *e = find_extent(w, segment_id, slot->chunk, slot->slot);
    if (e != NULL && e->loc.generation == slot->generation) e->is_free = true;
}

static void
on_grant(world_t *w, const kvp_wire_loc_t *loc, uint64_t len)
{
    extent_t *mine = find_extent(w, loc->segment_id, loc->chunk, loc->slot);

    check(mine == NULL || (mine->is_free && mine->loc.generation < loc->generation), "a slot was granted twice");
    for (size_t i = 0; i < w->extents_n; i++) {
        const extent_t *e = &w->extents[i];
        if (e->is_free || e->loc.segment_id != loc->segment_id || e->loc.chunk != loc->chunk) continue;
        check(loc->offset + len <= e->loc.offset || e->loc.offset + e->len <= loc->offset, "extents overlap");
    }
    check(loc->offset % 64 == 0, "an extent is not aligned");
    if (mine == NULL) {
        if (w->extents_n == EXTENTS_MAX) return;
        mine = &w->extents[w->extents_n++];
    }
    *mine = (extent_t){.loc = *loc, .len = len};
}

/* ---- what the core says */
static void
on_places(world_t *w, peer_t *peer, const kvp_frame_t *frame)
{
    kvp_pb_t pb;
    kvp_rd_t rd;
    Kvp__Pb__Places *msg = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, frame);

    check(msg != NULL, "an answer does not parse");
    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    const kvp_wire_obj_t *objs = kvp_rd_array(&rd, msg->n, sizeof(*objs));
    const kvp_wire_loc_t *locs = kvp_rd_array(&rd, msg->nloc, sizeof(*locs));
    check(msg->err != KVP_OK || (!rd.is_bad && rd.left == 0), "an answer's tail is not what its head says");
    uint32_t at = 0;
    for (uint32_t i = 0; msg->err == KVP_OK && i < msg->n; i++) {
        check(objs[i].nloc <= msg->nloc - at, "an answer has too few locations");
        check((objs[i].err == KVP_OK) == (objs[i].nloc > 0), "a place without a location");
        for (uint32_t k = 0; frame->hdr.opcode == KVP_OP_PUT_BEGIN && i < KEYS_A_MESSAGE && k < objs[i].nloc; k++)
            on_grant(w, &locs[at + k], peer->asked_len[frame->hdr.request_id & 255][i]);
        at += objs[i].nloc;
    }
    if (msg->ticket != 0) peer->tickets[peer->ticket_at++ % KVP_ARRAY_LEN(peer->tickets)] = msg->ticket;
    kvp_pb_free(&pb, msg);
}

static void
on_retire(world_t *w, peer_t *node, const kvp_frame_t *frame)
{
    kvp_pb_t pb;
    Kvp__Pb__Retire *msg = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, frame);

    check(msg != NULL && msg->n * sizeof(kvp_wire_slot_t) == frame->tail_len, "a Retire does not parse");
    if (w->retires_n < RETIRES_MAX) {
        retire_t *r = &w->retires[w->retires_n++];
        *r = (retire_t){node, frame->hdr.request_id, msg->segment_id, msg->n, NULL};
        r->slots = malloc(frame->tail_len);
        check(r->slots != NULL, "no memory for the test");
        memcpy(r->slots, frame->tail, frame->tail_len);
    }
    kvp_pb_free(&pb, msg);
}

static void
on_mount_reply(peer_t *node, const kvp_frame_t *frame)
{
    kvp_pb_t pb;
    Kvp__Pb__MountReply *msg = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, frame);

    check(msg != NULL, "an answer does not parse");
    if (msg->err == KVP_OK && !msg->is_reset) node->segment_id = msg->segment_id;
    kvp_pb_free(&pb, msg);
}

static void
on_hello_reply(peer_t *peer, const kvp_frame_t *frame)
{
    kvp_pb_t pb;
    Kvp__Pb__HelloReply *msg = kvp_pb_unpack(&pb, &kvp__pb__hello_reply__descriptor, frame);

    check(msg != NULL, "an answer does not parse");
    if (msg->err == KVP_OK) peer->incarnation = msg->incarnation;
    kvp_pb_free(&pb, msg);
}

static void
on_heartbeat_reply(peer_t *peer, const kvp_frame_t *frame)
{
    kvp_pb_t pb;
    Kvp__Pb__HeartbeatReply *msg = kvp_pb_unpack(&pb, &kvp__pb__heartbeat_reply__descriptor, frame);

    check(msg != NULL && frame->tail_len == msg->n * sizeof(kvp_digest_t), "an answer does not parse");
    check(!msg->drop_all || msg->n == 0, "everything and more is revoked");
    peer->revoke_seq = msg->revoke_seq;
    kvp_pb_free(&pb, msg);
}

static void
on_lookup_reply(peer_t *peer, const kvp_frame_t *frame)
{
    kvp_pb_t pb;
    Kvp__Pb__LookupReply *msg = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, frame);

    check(msg != NULL && msg->granted <= msg->found, "an answer does not parse");
    check(msg->err != KVP_OK || frame->tail_len == msg->n, "an answer's tail is not what its head says");
    if (msg->ticket != 0) peer->tickets[peer->ticket_at++ % KVP_ARRAY_LEN(peer->tickets)] = msg->ticket;
    kvp_pb_free(&pb, msg);
}

static void
on_present_reply(peer_t *peer, const kvp_frame_t *frame)
{
    const kvp_wire_presented_t *answers;
    Kvp__Pb__PresentReply *msg;
    kvp_pb_t pb;
    kvp_rd_t rd;

    msg = kvp_pb_unpack(&pb, &kvp__pb__present_reply__descriptor, frame);
    check(msg != NULL, "an answer does not parse");
    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    answers = kvp_rd_array(&rd, msg->n, sizeof(*answers));
    check(msg->err != KVP_OK || (answers != NULL && rd.left == 0), "an answer's tail is not what its head says");
    for (uint32_t i = 0; msg->err == KVP_OK && i < msg->n; i++) {
        check((answers[i].err == KVP_OK) == (answers[i].ticket != 0), "a ticket without an object");
        if (answers[i].ticket != 0) peer->tickets[peer->ticket_at++ % KVP_ARRAY_LEN(peer->tickets)] = answers[i].ticket;
    }
    kvp_pb_free(&pb, msg);
}

static void
on_output(world_t *w, peer_t *peer, const kvp_frame_t *frame)
{
    if ((frame->hdr.flags & KVP_FRAME_REPLY) == 0) {
        check(frame->hdr.opcode == KVP_OP_RETIRE || frame->hdr.opcode == KVP_OP_FENCE ||
                  frame->hdr.opcode == KVP_OP_TOMBS,
              "a question of the master's");
        check(peer >= &w->peers[NODE], "an order to a client");
        if (frame->hdr.opcode == KVP_OP_RETIRE && peer != &w->peers[STRANGER]) on_retire(w, peer, frame);
        return;
    }
    switch (frame->hdr.opcode) {
    case KVP_OP_PUT_BEGIN:
    case KVP_OP_GET:
        on_places(w, peer, frame);
        break;
    case KVP_OP_MOUNT:
        if (peer != &w->peers[STRANGER]) on_mount_reply(peer, frame);
        break;
    case KVP_OP_HELLO:
        on_hello_reply(peer, frame);
        break;
    case KVP_OP_HEARTBEAT:
        on_heartbeat_reply(peer, frame);
        break;
    case KVP_OP_LOOKUP:
        on_lookup_reply(peer, frame);
        break;
    case KVP_OP_PRESENT:
        on_present_reply(peer, frame);
        break;
    default:
        break;
    }
}

/* What that node was told, and owes. */
static void
forget_retires(world_t *w, const peer_t *node)
{
    size_t retires = 0, dead = 0;

    for (size_t i = 0; i < w->retires_n; i++) {
        if (w->retires[i].node == node)
            free(w->retires[i].slots);
        else
            w->retires[retires++] = w->retires[i];
    }
    for (size_t i = 0; i < w->dead_n; i++)
        if (w->dead[i].node != node) w->dead[dead++] = w->dead[i];
    w->retires_n = retires;
    w->dead_n = dead;
}

static void
close_peer(world_t *w, peer_t *peer)
{
    if (peer->conn == 0) return;
    kvp_master_on_close(w->core, peer->conn, w->now_ns);
    peer->conn = 0;
    peer->attempt_at = peer->ticket_at = 0;
    memset(peer->attempts, 0, sizeof(peer->attempts));
    peer->incarnation = peer->revoke_seq = 0;
    forget_retires(w, peer);
}

static void
write_journal(world_t *w)
{
    kvp_buf_t bytes = {0};

    if (!w->has_journal) return;
    while (kvp_master_take_journal(w->core, &bytes, &w->journal_end))
        kvp_buf_reset(&bytes);
    kvp_buf_fini(&bytes);
}

/* drain takes everything that the core has to say; closing a connection may give it more. */
static void
drain(world_t *w)
{
    kvp_buf_t bytes = {0};
    uint64_t conn;
    bool is_last;

    write_journal(w);
    while (kvp_master_take_output(w->core, &conn, &bytes, &is_last)) {
        peer_t *peer = w->peers;
        while (peer < w->peers + PEERS && peer->conn != conn)
            peer++;
        check(peer < w->peers + PEERS, "output for a connection that is closed");
        check(bytes.err == KVP_OK, "an answer is over its limit");
        /* Frame by frame from the buffer's front, where its records lie aligned. */
        while (bytes.len > 0) {
            kvp_frame_t frame;
            size_t used;
            check(kvp_frame_parse(bytes.data, bytes.len, &frame, &used) == KVP_OK && used > 0,
                  "output is not whole frames");
            on_output(w, peer, &frame);
            kvp_buf_consume(&bytes, used);
        }
        kvp_buf_reset(&bytes);
        if (is_last) close_peer(w, peer);
    }
    while (kvp_master_take_note(w->core) != NULL)
        continue;
    kvp_buf_fini(&bytes);
}

/* ---- what the peers say */
static uint64_t
next_request(world_t *w)
{
    return ++w->requests;
}

static void
send_frame(world_t *w, peer_t *peer)
{
    kvp_frame_t frame;
    size_t used;

    check(w->frame.err == KVP_OK, "the test's own frame");
    if (peer->conn != 0 && kvp_frame_parse(w->frame.data, w->frame.len, &frame, &used) == KVP_OK && used > 0)
        kvp_master_on_frame(w->core, peer->conn, &frame, w->now_ns);
    drain(w);
}

static void
begin_frame(world_t *w, uint8_t opcode, uint8_t flags, uint64_t id, const void *msg)
{
    size_t at;
    kvp_buf_reset(&w->frame);
    kvp_pb_frame_begin(&w->frame, opcode, flags, id, msg, &at);
}

static void
end_and_send(world_t *w, peer_t *peer)
{
    kvp_frame_end(&w->frame, 0);
    send_frame(w, peer);
}

static void
open_peer(world_t *w, peer_t *peer)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;

    close_peer(w, peer);
    drain(w);
    peer->conn = ++w->conns;
    kvp_master_on_connect(w->core, peer->conn, w->now_ns);
    drain(w);
    if (peer == &w->peers[STRANGER]) return;
    hello.version = hello.version_min = KVP_PROTO_VERSION;
    hello.role = peer >= &w->peers[NODE] ? KVP_ROLE_NODE : KVP_ROLE_CLIENT;
    hello.name = (char *)"peer";
    hello.host_id = (char *)(peer == &w->peers[FAR_NODE] ? "far" : "near");
    begin_frame(w, KVP_OP_HELLO, 0, next_request(w), &hello);
    end_and_send(w, peer);
}

static void
mount(world_t *w, peer_t *node, input_t *in)
{
    static const uint32_t sizes[] = {256u << 10, 64u << 10, 1u << 20, 192u << 10};
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    uint8_t how = (uint8_t)take(in, 1);
    uint8_t uuid[16] = {0};

    if ((how & 1) != 0) w->uuid++;
    uuid[0] = w->uuid;
    msg.name = (char *)(node == &w->peers[FAR_NODE] ? "far" : (how & 2) != 0 ? "other" : "segment");
    msg.uuid = (ProtobufCBinaryData){sizeof(uuid), uuid};
    msg.epoch = 1;
    msg.size_bytes = sizes[how >> 2 & 3];
    msg.chunk_bytes = (how & 16) != 0 ? 128u << 10 : 64u << 10;
    msg.addr = (char *)"127.0.0.1:1";
    msg.is_fresh = (how & 1) != 0;
    begin_frame(w, KVP_OP_MOUNT, 0, next_request(w), &msg);
    end_and_send(w, node);
}

static void
unmount(world_t *w, input_t *in)
{
    Kvp__Pb__Unmount msg = KVP__PB__UNMOUNT__INIT;

    msg.segment_id = w->peers[NODE].segment_id;
    msg.wait_ms = (uint32_t)take(in, 1);
    begin_frame(w, KVP_OP_UNMOUNT, 0, next_request(w), &msg);
    end_and_send(w, &w->peers[NODE]);
}

/* Keys are few, so that peers meet on them; some are long. */
static size_t
make_key(uint64_t which, char key[KVP_KEY_MAX])
{
    int n = snprintf(key, KVP_KEY_MAX, "key %u", (unsigned)(which % KEYS));
    if (which % 5 != 0) return (size_t)n;
    memset(key + n, 'x', 300);
    return (size_t)n + 300;
}

static kvp_digest_t
key_digest(uint64_t which)
{
    char key[KVP_KEY_MAX];
    size_t len = make_key(which, key);
    return kvp_key_digest(SEED, 0, key, len);
}

static uint32_t
key_count(input_t *in)
{
    return (uint32_t)take(in, 1) % KEYS_A_MESSAGE + 1;
}

static kvp_digest_t
group_digest(uint64_t which)
{
    which = which % GROUPS + 1000; /* ids of groups are like keys */
    return kvp_key_digest(SEED, 0, &which, sizeof(which));
}

/* Sizes differ from group to group, and sometimes within one, which is refused. */
static kvp_wire_group_t
make_group(uint8_t how)
{
    kvp_wire_group_t group = {.group = group_digest(how), .members = (how >> 3 & 1) != 0 ? 2 + how % GROUPS : 0};

    if (how == 255) group.members++;
    if ((how >> 4) == 0) return (kvp_wire_group_t){.members = 0};
    if (group.members > 0) group.member = (how >> 4) % group.members;
    return group;
}

/* A plain put, or, where `has_more`, one that says how each object is kept. */
static void
put_begin(world_t *w, peer_t *peer, input_t *in, bool has_more)
{
    Kvp__Pb__PutBegin msg = KVP__PB__PUT_BEGIN__INIT;
    kvp_wire_put_t puts[KEYS_A_MESSAGE] = {0};
    kvp_wire_group_t groups[KEYS_A_MESSAGE] = {0};
    char keys[KEYS_A_MESSAGE * KVP_KEY_MAX];
    uint64_t id = next_request(w);
    uint32_t keys_len = 0;
    uint8_t how = has_more ? (uint8_t)take(in, 1) : 0;

    msg.n = key_count(in);
    msg.wait_ms = (uint32_t)take(in, 1);
    msg.pin = how & 3;
    msg.is_upsert = (how & 4) != 0;
    msg.has_groups = (how & 8) != 0;
    msg.replicas = how >> 4 & 3;
    for (uint32_t i = 0; i < msg.n; i++) {
        uint64_t which = take(in, 1);
        puts[i].key_at = keys_len;
        puts[i].key_len = (uint32_t)make_key(which, keys + keys_len);
        puts[i].digest = key_digest(which);
        puts[i].len = take(in, 2) * (which % 3 + 1) + 1;
        puts[i].attempt = ++w->attempts;
        if (msg.has_groups) groups[i] = make_group((uint8_t)take(in, 1));
        keys_len += puts[i].key_len;
        peer->attempts[peer->attempt_at++ % KVP_ARRAY_LEN(peer->attempts)] = puts[i].attempt;
        peer->asked_len[id & 255][i] = puts[i].len;
    }
    begin_frame(w, KVP_OP_PUT_BEGIN, 0, id, &msg);
    kvp_buf_append(&w->frame, puts, msg.n * sizeof(*puts));
    if (msg.has_groups) kvp_buf_append(&w->frame, groups, msg.n * sizeof(*groups));
    kvp_buf_append(&w->frame, keys, keys_len);
    end_and_send(w, peer);
}

static uint64_t
some_attempt(const peer_t *peer, input_t *in)
{
    return peer->attempts[take(in, 1) % KVP_ARRAY_LEN(peer->attempts)];
}

/* Each with the copies of the bits of `sealed`. */
static void
put_commit(world_t *w, peer_t *peer, input_t *in, uint32_t sealed)
{
    Kvp__Pb__PutCommit msg = KVP__PB__PUT_COMMIT__INIT;

    msg.n = key_count(in);
    msg.wait = (sealed & 4) != 0;
    begin_frame(w, KVP_OP_PUT_COMMIT, 0, next_request(w), &msg);
    for (uint32_t i = 0; i < msg.n; i++) {
        kvp_wire_commit_t commit = {.attempt = some_attempt(peer, in), .sum = 7, .replicas = sealed & 3};
        kvp_buf_append(&w->frame, &commit, sizeof(commit));
    }
    end_and_send(w, peer);
}

static void
put_abort(world_t *w, peer_t *peer, input_t *in)
{
    Kvp__Pb__PutAbort msg = KVP__PB__PUT_ABORT__INIT;

    msg.n = key_count(in);
    msg.is_drained = (take(in, 1) & 1) != 0;
    begin_frame(w, KVP_OP_PUT_ABORT, 0, next_request(w), &msg);
    for (uint32_t i = 0; i < msg.n; i++) {
        uint64_t attempt = some_attempt(peer, in);
        kvp_buf_append(&w->frame, &attempt, sizeof(attempt));
    }
    end_and_send(w, peer);
}

/* Get, Exists, Lookup and Remove: all have a count in field 1 and digests behind it. */
static void
ask_keys(world_t *w, peer_t *peer, input_t *in, uint8_t opcode)
{
    Kvp__Pb__Lookup lookup = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__Remove remove = KVP__PB__REMOVE__INIT;
    Kvp__Pb__Exists exists = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Get get = KVP__PB__GET__INIT;
    const void *head = &get;
    uint8_t how = (uint8_t)take(in, 1);

    get.n = exists.n = lookup.n = remove.n = key_count(in);
    get.no_hold = exists.is_plain = lookup.is_prefix = remove.force = (how & 1) != 0;
    get.wants_lease = remove.heeds_probes = (how & 2) != 0;
    remove.wait = (how & 4) != 0;
    lookup.ttl_ms = how;
    lookup.is_groups = opcode == KVP_OP_LOOKUP && how >= 192;
    if (opcode == KVP_OP_LOOKUP) head = &lookup;
    if (opcode == KVP_OP_REMOVE) head = &remove;
    if (opcode == KVP_OP_EXISTS) head = &exists;
    begin_frame(w, opcode, 0, next_request(w), head);
    for (uint32_t i = 0; i < get.n; i++) {
        uint64_t which = take(in, 1);
        kvp_digest_t digest = lookup.is_groups ? group_digest(which) : key_digest(which);
        kvp_buf_append(&w->frame, &digest, sizeof(digest));
    }
    end_and_send(w, peer);
}

static void
tell_used(world_t *w, peer_t *peer, input_t *in)
{
    Kvp__Pb__Used msg = KVP__PB__USED__INIT;

    msg.n = key_count(in);
    begin_frame(w, KVP_OP_USED, KVP_FRAME_ONEWAY, next_request(w), &msg);
    for (uint32_t i = 0; i < msg.n; i++) {
        kvp_wire_used_t used = {.digest = key_digest(take(in, 1)), .reads = i};
        kvp_buf_append(&w->frame, &used, sizeof(used));
    }
    end_and_send(w, peer);
}

static void
bump(world_t *w, peer_t *peer, input_t *in)
{
    Kvp__Pb__Bump msg = KVP__PB__BUMP__INIT;

    msg.wait_ms = (uint32_t)take(in, 1);
    begin_frame(w, KVP_OP_BUMP, 0, next_request(w), &msg);
    end_and_send(w, peer);
}

static void
release(world_t *w, peer_t *peer, input_t *in)
{
    Kvp__Pb__Release msg = KVP__PB__RELEASE__INIT;

    msg.n = key_count(in);
    begin_frame(w, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, next_request(w), &msg);
    for (uint32_t i = 0; i < msg.n; i++) {
        uint64_t ticket = peer->tickets[take(in, 1) % KVP_ARRAY_LEN(peer->tickets)];
        kvp_buf_append(&w->frame, &ticket, sizeof(ticket));
    }
    end_and_send(w, peer);
}

/* What sessions before held, or say they did: `how` bends kinds, versions and times. */
static void
present(world_t *w, peer_t *peer, input_t *in)
{
    Kvp__Pb__Present msg = KVP__PB__PRESENT__INIT;
    uint8_t how = (uint8_t)take(in, 1);

    msg.n = key_count(in);
    begin_frame(w, KVP_OP_PRESENT, 0, next_request(w), &msg);
    for (uint32_t i = 0; i < msg.n; i++) {
        uint64_t which = take(in, 1);
        kvp_wire_present_t rec = {.set = i / (1 + (how & 3)), .kind = 1 + (how >> 2) % 4, .ttl_ms = how >> 4 << 8};
        rec.digest = rec.kind == KVP_PRESENT_GROUP ? group_digest(which) : key_digest(which);
        if (which >= 128) rec.version = (uint64_t)1 << KVP_GEN_SEQ_BITS | which % 16;
        kvp_buf_append(&w->frame, &rec, sizeof(rec));
    }
    end_and_send(w, peer);
}

static void
remove_many(world_t *w, peer_t *peer, input_t *in)
{
    Kvp__Pb__RemoveMany msg = KVP__PB__REMOVE_MANY__INIT;
    char pattern[33] = {0};
    uint8_t how = (uint8_t)take(in, 1);

    for (uint32_t i = 0; i < how % sizeof(pattern); i++)
        pattern[i] = (char)take(in, 1);
    msg.pattern = pattern;
    msg.force = (how & 128) != 0;
    begin_frame(w, KVP_OP_REMOVE_MANY, 0, next_request(w), &msg);
    end_and_send(w, peer);
}

static void
list(world_t *w, peer_t *peer, input_t *in)
{
    Kvp__Pb__List msg = KVP__PB__LIST__INIT;

    msg.cursor = take(in, 1);
    msg.limit = (uint32_t)take(in, 1);
    msg.prefix = (ProtobufCBinaryData){take(in, 1) % 5, (uint8_t *)"key 1"};
    begin_frame(w, KVP_OP_LIST, 0, next_request(w), &msg);
    end_and_send(w, peer);
}

/* answer_retire answers one order, each extent as the input says. */
static void
answer_retire(world_t *w, input_t *in)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    retire_t r;

    if (w->retires_n == 0) return;
    size_t i = take(in, 1) % w->retires_n;
    r = w->retires[i];
    memmove(&w->retires[i], &w->retires[i + 1], (w->retires_n - i - 1) * sizeof(r));
    w->retires_n--;
    msg.n = r.n;
    begin_frame(w, KVP_OP_RETIRE, KVP_FRAME_REPLY, r.request_id, &msg);
    for (uint32_t k = 0; k < r.n; k++) {
        uint8_t flags = (uint8_t)take(in, 1) & (KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
        if ((flags & KVP_RETIRE_FREE) != 0)
            set_free(w, r.segment_id, &r.slots[k]);
        else if (flags == KVP_RETIRE_DEAD && w->dead_n < RETIRES_MAX)
            w->dead[w->dead_n++] = (dead_t){r.node, r.segment_id, r.slots[k]};
        kvp_buf_append(&w->frame, &flags, 1);
    }
    free(r.slots);
    end_and_send(w, r.node);
}

/* tell_freed says of extents that were dead that they are free now, those of one segment; sometimes twice. */
static void
tell_freed(world_t *w, input_t *in)
{
    Kvp__Pb__Freed msg = KVP__PB__FREED__INIT;
    kvp_wire_slot_t slots[KEYS_A_MESSAGE];
    const dead_t *first;
    uint32_t n = key_count(in);

    if (w->dead_n == 0) return;
    first = &w->dead[take(in, 1) % w->dead_n];
    slots[msg.n++] = first->slot;
    for (uint32_t i = 1; i < n; i++) {
        const dead_t *more = &w->dead[take(in, 1) % w->dead_n];

        if (more->node == first->node && more->segment_id == first->segment_id) slots[msg.n++] = more->slot;
    }
    msg.segment_id = first->segment_id;
    begin_frame(w, KVP_OP_FREED, KVP_FRAME_ONEWAY, next_request(w), &msg);
    for (uint32_t i = 0; i < msg.n; i++)
        set_free(w, first->segment_id, &slots[i]);
    kvp_buf_append(&w->frame, slots, msg.n * sizeof(*slots));
    end_and_send(w, first->node);
}

static void
heartbeat(world_t *w, peer_t *peer)
{
    Kvp__Pb__Heartbeat msg = KVP__PB__HEARTBEAT__INIT;

    msg.incarnation = peer->incarnation;
    msg.wants_lease = true;
    msg.revoke_seq = peer->revoke_seq;
    begin_frame(w, KVP_OP_HEARTBEAT, 0, next_request(w), &msg);
    end_and_send(w, peer);
}

static void
raw_frame(world_t *w, peer_t *peer, input_t *in)
{
    uint8_t bytes[256];
    uint8_t opcode = (uint8_t)take(in, 1), flags = (uint8_t)take(in, 1) & KVP_FRAME_FLAGS_KNOWN;
    size_t head_len = (size_t)take(in, 1), tail_len = (size_t)take(in, 1), at;

    for (size_t i = 0; i < head_len; i++)
        bytes[i] = (uint8_t)take(in, 1);
    kvp_buf_reset(&w->frame);
    kvp_frame_begin(&w->frame, opcode, flags, next_request(w), bytes, head_len, &at);
    for (size_t i = 0; i < tail_len; i++)
        bytes[i] = (uint8_t)take(in, 1);
    kvp_buf_append(&w->frame, bytes, tail_len);
    end_and_send(w, peer);
}

static void
pass_time(world_t *w, input_t *in)
{
    uint64_t steps = take(in, 1);

    w->now_ns += steps * steps * MS;
    for (unsigned i = 0; i < 64; i++) {
        kvp_master_on_tick(w->core, w->now_ns);
        drain(w);
        if (!kvp_master_has_work(w->core)) break;
    }
}

/* Of what was written, so many of 255 parts; an end within a record is no more than the one before it. */
static void
make_durable(world_t *w, uint64_t part)
{
    if (!w->has_journal) return;
    write_journal(w);
    w->durable += (w->journal_end - w->durable) * part / 255;
    kvp_master_on_durable(w->core, w->durable, w->now_ns);
    drain(w);
}

static void
step(world_t *w, input_t *in)
{
    uint8_t what = (uint8_t)take(in, 1);
    peer_t *peer = &w->peers[what >> 6];
    peer_t *client = &w->peers[what >> 6 & 1];

    switch (what & 31) {
    case 0:
        raw_frame(w, peer, in);
        break;
    case 1:
        pass_time(w, in);
        break;
    case 2:
        open_peer(w, peer);
        break;
    case 3:
        close_peer(w, peer);
        drain(w);
        break;
    case 4:
    case 5:
    case 6:
        put_begin(w, client, in, false);
        break;
    case 7:
    case 8:
        put_commit(w, client, in, 1);
        break;
    case 9:
        put_abort(w, client, in);
        break;
    case 10:
        ask_keys(w, client, in, KVP_OP_GET);
        break;
    case 11:
        ask_keys(w, client, in, KVP_OP_EXISTS);
        break;
    case 12:
        ask_keys(w, client, in, KVP_OP_LOOKUP);
        break;
    case 13:
        ask_keys(w, client, in, KVP_OP_REMOVE);
        break;
    case 14:
        release(w, client, in);
        break;
    case 15:
        remove_many(w, client, in);
        break;
    case 16:
        list(w, client, in);
        break;
    case 17:
    case 18:
        answer_retire(w, in);
        break;
    case 19:
        tell_freed(w, in);
        break;
    case 20:
        mount(w, &w->peers[NODE], in);
        break;
    case 21:
        unmount(w, in);
        break;
    case 22:
        heartbeat(w, peer);
        break;
    case 23:
        tell_used(w, client, in);
        break;
    case 24:
        bump(w, client, in);
        break;
    case 25:
    case 26:
        put_begin(w, client, in, true);
        break;
    case 27:
        put_commit(w, client, in, (uint32_t)take(in, 1));
        break;
    case 28:
        mount(w, &w->peers[FAR_NODE], in);
        break;
    case 29:
        if ((take(in, 1) & 1) != 0) close_peer(w, &w->peers[FAR_NODE]);
        if (w->peers[FAR_NODE].conn == 0) open_peer(w, &w->peers[FAR_NODE]);
        drain(w);
        break;
    case DISK:
        make_durable(w, take(in, 1));
        break;
    default:
        present(w, client, in);
        break;
    }
}

static void
check_core(const world_t *w)
{
    kvp_master_stats_t stats;
    const char *why = kvp_master_check(w->core);

    check(why == NULL, why);
    kvp_master_stats(w->core, &stats);
    check(stats.memory_bytes <= MEMORY_MAX, "the core takes too much memory");
    check(stats.used_bytes <= stats.size_bytes, "more is used than there is");
    check(stats.retiring_bytes <= stats.used_bytes, "more is retiring than is used");
    check(stats.quarantine_bytes <= stats.retiring_bytes, "more is in quarantine than is retiring");
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvp_master_conf_t conf = {.digest_seed = SEED, .seed = SEED, .term = 1, .host_id = "here", .unix_path = ""};
    static extent_t extents[EXTENTS_MAX];
    static world_t world;
    world_t *w = &world;
    input_t in = {data, size};

    memset(w, 0, sizeof(*w));
    w->extents = extents;
    w->now_ns = 1000 * MS;
    conf.has_journal = w->has_journal = size > 0 && (data[0] & 31) == DISK;
    check(kvp_master_create(&conf, w->now_ns, &w->core) == KVP_OK, "create");
    if (w->has_journal) check(kvp_master_open_journal(w->core, &w->durable) == KVP_OK, "open its journal");
    make_durable(w, 255);
    for (size_t i = 0; i < PEERS; i++)
        open_peer(w, &w->peers[i]);
    mount(w, &w->peers[NODE], &(input_t){(const uint8_t *)"\x01", 1});

    for (unsigned i = 0; in.left > 0 && i < STEPS_MAX; i++) {
        step(w, &in);
        if (i % 16 == 15) check_core(w);
    }
    check_core(w);
    for (size_t i = 0; i < PEERS; i++)
        close_peer(w, &w->peers[i]);
    drain(w);
    check_core(w);
    kvp_master_destroy(w->core);
    kvp_buf_fini(&w->frame);
    return 0;
}
