/* SPDX-License-Identifier: Apache-2.0
 * The master's core under two clients, two nodes on two hosts and a stranger, all of which do what the input says:
 * honest questions with chosen arguments, frames of any bytes, answers to RETIRE in any order and number, lost
 * connections, passing time. Objects have copies, pins and groups, are replaced, and go with their namespace. Inputs
 * that begin with DISK give the core a journal, which is durable as far as they say.
 *
 * What must hold whatever they do is what tests/world holds the core against: every output is a whole frame, and
 * answers what was asked; nothing is granted that overlaps an extent which was granted before and that the node has
 * not said to be free; no generation comes twice in a slot; no reader is sent to what is retired; the core's own
 * check passes, and every gauge is zero when all are gone. And its memory stays in proportion to the input. What a
 * node does that sends frames of any bytes is not held against it. */
#include "tests/world/world.h"

#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define PEERS 5
#define NODE 2
#define STRANGER 3
#define FAR_NODE 4 /* on a host of its own */
#define GROUPS 5
#define SEED 42
#define KEYS 24
#define KEYS_A_MESSAGE 8
#define STEPS_MAX 400
#define ORDERS_MAX 256u
#define DISK 30u /* a step: more of the journal is durable */
#define MEMORY_MAX (512u << 20)

typedef struct {
    const uint8_t *at;
    size_t left;
} input_t;

typedef struct {
    peer_t *p;
    uint64_t attempts[16]; /* some that it began */
    uint32_t attempt_at;
} actor_t;

typedef struct {
    world_t *w;
    actor_t actors[PEERS];
    const mem_t *newest; /* memory; who mounts without saying that it is fresh has this one */
} fuzz_t;

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

/* ---- peers */
static void
open_peer(fuzz_t *f, actor_t *a)
{
    bool is_node = a >= &f->actors[NODE], is_far = a == &f->actors[FAR_NODE];

    if (a->p != NULL) peer_forget(a->p);
    *a = (actor_t){.p = peer_open(f->w)};
    a->p->wants_lease = true;
    if (a == &f->actors[STRANGER]) {
        a->p->is_wild = f->w->has_wild = true;
        return;
    }
    a->p->policy = NODE_TOLD;
    (void)peer_hello_begin(a->p, is_node ? KVP_ROLE_NODE : KVP_ROLE_CLIENT, "peer", is_far ? "far" : "near");
}

static mem_t *
find_mem(fuzz_t *f, const mem_t *like)
{
    kvp_list_foreach (pos, &f->w->mems) {
        mem_t *mem = kvp_list_entry(pos, mem_t, link);

        if (strcmp(mem->name, like->name) == 0 && memcmp(mem->uuid, like->uuid, sizeof mem->uuid) == 0 &&
            mem->size_bytes == like->size_bytes && mem->chunk_bytes == like->chunk_bytes)
            return mem;
    }
    return NULL;
}

static void
mount(fuzz_t *f, actor_t *node, input_t *in)
{
    static const uint64_t sizes[] = {256 * KIB, 64 * KIB, MIB, 192 * KIB};
    uint8_t how = (uint8_t)take(in, 1);
    const char *name = node == &f->actors[FAR_NODE] ? "far" : (how & 2) != 0 ? "other" : "segment";
    mem_t like = {.size_bytes = sizes[how >> 2 & 3], .chunk_bytes = (how & 16) != 0 ? 128 * KIB : 64 * KIB};
    bool is_fresh = (how & 1) != 0 || f->newest == NULL;

    snprintf(like.name, sizeof like.name, "%s", name);
    if (!is_fresh) memcpy(like.uuid, f->newest->uuid, sizeof like.uuid);
    node->p->mem = is_fresh ? NULL : find_mem(f, &like);
    if (node->p->mem == NULL) {
        node->p->mem = mem_make(f->w, name, like.size_bytes, like.chunk_bytes);
        node->p->mem->hollow_part = 3;
        if (!is_fresh) memcpy(node->p->mem->uuid, like.uuid, sizeof like.uuid);
    }
    node->p->mem->is_wild = node->p->is_wild;
    node->p->mem->is_fresh = is_fresh;
    node->p->mem->epoch = 1;
    f->newest = node->p->mem;
    (void)node_mount_begin(node->p);
}

static void
unmount(fuzz_t *f, input_t *in)
{
    Kvp__Pb__Unmount msg = KVP__PB__UNMOUNT__INIT;
    peer_t *node = f->actors[NODE].p;

    msg.segment_id = node->mem == NULL ? 0 : node->mem->segment_id;
    msg.wait_ms = (uint32_t)take(in, 1);
    (void)peer_send(node, KVP_OP_UNMOUNT, 0, &msg.base, NULL, 0);
}

/* ---- keys */
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

/* None, one, or what is neither. */
static kvp_wire_lineage_t
make_lineage(uint8_t how)
{
    return (kvp_wire_lineage_t){.sequence = how >> 2, .depth = how >> 4, .is_told = how & 3};
}

/* A plain put, or, where `has_more`, one that says how each object is kept. */
static void
begin_put(actor_t *a, input_t *in, bool has_more)
{
    static char keys[KEYS_A_MESSAGE][KVP_KEY_MAX];
    Kvp__Pb__PutBegin msg = KVP__PB__PUT_BEGIN__INIT;
    put_t puts[KEYS_A_MESSAGE] = {0};
    uint8_t how = has_more ? (uint8_t)take(in, 1) : 0;
    uint32_t n = key_count(in);

    msg.wait_ms = (uint32_t)take(in, 1);
    msg.pin = how & 3;
    msg.is_upsert = (how & 4) != 0;
    msg.has_groups = (how & 8) != 0;
    msg.has_lineages = (how & 64) != 0;
    msg.replicas = how >> 4 & 3;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t which = take(in, 1);

        puts[i].key = keys[i];
        puts[i].key_len = (uint32_t)make_key(which, keys[i]);
        puts[i].len = take(in, 2) * (which % 3 + 1) + 1;
        if (msg.has_groups) puts[i].group = make_group((uint8_t)take(in, 1));
        if (msg.has_lineages) puts[i].lineage = make_lineage((uint8_t)take(in, 1));
        a->attempts[a->attempt_at++ % KVP_ARRAY_LEN(a->attempts)] = a->p->attempt_seq + i + 1;
    }
    (void)put_begin_with(a->p, puts, n, &msg);
}

static uint64_t
some_attempt(const actor_t *a, input_t *in)
{
    return a->attempts[take(in, 1) % KVP_ARRAY_LEN(a->attempts)];
}

/* Each with the copies of the bits of `sealed`. */
static void
commit_puts(actor_t *a, input_t *in, uint32_t sealed)
{
    Kvp__Pb__PutCommit msg = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t commits[KEYS_A_MESSAGE];

    msg.n = key_count(in);
    msg.wait = (sealed & 4) != 0;
    for (uint32_t i = 0; i < msg.n; i++)
        commits[i] = (kvp_wire_commit_t){.attempt = some_attempt(a, in), .sum = 7, .replicas = sealed & 3};
    (void)peer_send(a->p, KVP_OP_PUT_COMMIT, 0, &msg.base, commits, msg.n * sizeof *commits);
}

static void
abort_puts(actor_t *a, input_t *in)
{
    Kvp__Pb__PutAbort msg = KVP__PB__PUT_ABORT__INIT;
    uint64_t attempts[KEYS_A_MESSAGE];

    msg.n = key_count(in);
    msg.is_drained = (take(in, 1) & 1) != 0;
    for (uint32_t i = 0; i < msg.n; i++)
        attempts[i] = some_attempt(a, in);
    (void)peer_send(a->p, KVP_OP_PUT_ABORT, 0, &msg.base, attempts, msg.n * sizeof *attempts);
}

/* Get, Exists, Lookup and Remove: all have a count in field 1 and digests behind it. */
static void
ask_keys(actor_t *a, input_t *in, uint8_t opcode)
{
    Kvp__Pb__Lookup lookup = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__Remove remove = KVP__PB__REMOVE__INIT;
    Kvp__Pb__Exists exists = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Get get = KVP__PB__GET__INIT;
    const void *head = &get;
    kvp_digest_t digests[KEYS_A_MESSAGE];
    uint8_t how = (uint8_t)take(in, 1);

    get.n = exists.n = lookup.n = remove.n = key_count(in);
    get.no_hold = exists.is_plain = lookup.is_prefix = remove.force = (how & 1) != 0;
    get.wants_lease = remove.heeds_probes = (how & 2) != 0;
    get.wants_lineages = remove.wait = (how & 4) != 0;
    get.wants_tiers = (how & 8) != 0;
    remove.segment = (how & 8) != 0 ? how >> 4 : 0;
    lookup.ttl_ms = how;
    lookup.is_groups = opcode == KVP_OP_LOOKUP && how >= 192;
    if (opcode == KVP_OP_LOOKUP) head = &lookup;
    if (opcode == KVP_OP_REMOVE) head = &remove;
    if (opcode == KVP_OP_EXISTS) head = &exists;
    for (uint32_t i = 0; i < get.n; i++) {
        uint64_t which = take(in, 1);

        digests[i] = lookup.is_groups ? group_digest(which) : key_digest(which);
    }
    (void)peer_send(a->p, opcode, 0, head, digests, get.n * sizeof *digests);
}

static void
tell_used(actor_t *a, input_t *in)
{
    Kvp__Pb__Used msg = KVP__PB__USED__INIT;
    kvp_wire_used_t used[KEYS_A_MESSAGE];

    msg.n = key_count(in);
    for (uint32_t i = 0; i < msg.n; i++)
        used[i] = (kvp_wire_used_t){.digest = key_digest(take(in, 1)), .reads = i};
    (void)peer_send(a->p, KVP_OP_USED, KVP_FRAME_ONEWAY, &msg.base, used, msg.n * sizeof *used);
}

/* And calls them unreadable, at the places that those versions would have: some are there. */
static void
slander(actor_t *a, input_t *in)
{
    Kvp__Pb__Release msg = KVP__PB__RELEASE__INIT;
    kvp_wire_unreadable_t recs[KEYS_A_MESSAGE];

    msg.unreadable = key_count(in);
    for (uint32_t i = 0; i < msg.unreadable; i++)
        recs[i] =
            (kvp_wire_unreadable_t){key_digest(take(in, 1)), kvp_gen_make(a->p->world->conf.term, take(in, 1) % 64)};
    (void)peer_send(a->p, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, &msg.base, recs, msg.unreadable * sizeof *recs);
}

static void
bump(actor_t *a, input_t *in)
{
    Kvp__Pb__Bump msg = KVP__PB__BUMP__INIT;

    msg.wait_ms = (uint32_t)take(in, 1);
    msg.is_all = true;
    (void)peer_send(a->p, KVP_OP_BUMP, 0, &msg.base, NULL, 0);
}

static void
release_some(actor_t *a, input_t *in)
{
    Kvp__Pb__Release msg = KVP__PB__RELEASE__INIT;
    uint64_t tickets[KEYS_A_MESSAGE];

    msg.n = key_count(in);
    for (uint32_t i = 0; i < msg.n; i++)
        tickets[i] = a->p->tickets[take(in, 1) % KVP_ARRAY_LEN(a->p->tickets)];
    (void)peer_send(a->p, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, &msg.base, tickets, msg.n * sizeof *tickets);
}

/* What sessions before held, or say they did: `how` bends kinds, versions and times. */
static void
present(actor_t *a, input_t *in)
{
    Kvp__Pb__Present msg = KVP__PB__PRESENT__INIT;
    kvp_wire_present_t recs[KEYS_A_MESSAGE];
    uint8_t how = (uint8_t)take(in, 1);

    msg.n = key_count(in);
    for (uint32_t i = 0; i < msg.n; i++) {
        uint64_t which = take(in, 1);

        recs[i] = (kvp_wire_present_t){.set = i / (1 + (how & 3)), .kind = 1 + (how >> 2) % 4, .ttl_ms = how >> 4 << 8};
        recs[i].digest = recs[i].kind == KVP_PRESENT_GROUP ? group_digest(which) : key_digest(which);
        if (which >= 128) recs[i].version = (uint64_t)1 << KVP_GEN_SEQ_BITS | which % 16;
    }
    (void)peer_send(a->p, KVP_OP_PRESENT, 0, &msg.base, recs, msg.n * sizeof *recs);
}

static void
remove_matching(actor_t *a, input_t *in)
{
    char pattern[33] = {0};
    uint8_t how = (uint8_t)take(in, 1);

    for (uint32_t i = 0; i < how % sizeof(pattern); i++)
        pattern[i] = (char)take(in, 1);
    (void)remove_many(a->p, pattern, (how & 128) != 0);
}

static void
list(actor_t *a, input_t *in)
{
    Kvp__Pb__List msg = KVP__PB__LIST__INIT;

    msg.cursor = take(in, 1);
    msg.limit = (uint32_t)take(in, 1);
    msg.prefix = (ProtobufCBinaryData){take(in, 1) % 5, (uint8_t *)"key 1"};
    (void)peer_send(a->p, KVP_OP_LIST, 0, &msg.base, NULL, 0);
}

/* ---- what nodes answer */
/* answer_order answers one order, each extent as the input says. */
static void
answer_order(peer_t *node, input_t *in)
{
    reply_t *orders[ORDERS_MAX];
    static uint8_t flags[KVP_BATCH_MAX];
    reply_t *order;
    uint32_t n = 0;

    kvp_list_foreach (pos, &node->replies) {
        reply_t *r = kvp_list_entry(pos, reply_t, link);

        if ((r->frame.hdr.flags & KVP_FRAME_REPLY) == 0 && n < ORDERS_MAX) orders[n++] = r;
    }
    if (n == 0 || node->conn == 0) return; /* who is lost answers nothing */
    order = orders[take(in, 1) % n];
    for (uint32_t i = 0; i < order->frame.tail_len / sizeof(kvp_wire_slot_t); i++)
        flags[i] = (uint8_t)take(in, 1) & (KVP_RETIRE_DEAD | KVP_RETIRE_FREE);
    node_answer(node, order, flags);
}

/* tell_freed says of extents that were dead that they are free now, those of one segment; sometimes twice. */
static void
tell_freed(peer_t *node, input_t *in)
{
    const retiring_t *dead[ORDERS_MAX];
    kvp_wire_slot_t slots[KEYS_A_MESSAGE];
    uint32_t n = key_count(in), dead_n = 0, slots_n = 0, segment_id;

    kvp_list_foreach (pos, &node->retiring)
        if (dead_n < ORDERS_MAX) dead[dead_n++] = kvp_list_entry(pos, retiring_t, link);
    if (dead_n == 0) return;
    segment_id = dead[0]->segment_id;
    for (uint32_t i = 0; i < n; i++) {
        const retiring_t *r = dead[take(in, 1) % dead_n];

        if (i == 0) segment_id = r->segment_id;
        if (r->segment_id == segment_id) slots[slots_n++] = r->slot;
    }
    node_is_free(node, segment_id, slots, slots_n);
    world_pump(node->world);
}

/* ---- what is no message, or no honest one */
/* From now on nothing that it says or is told is modelled, nor what lies in its memory. */
static void
run_wild(fuzz_t *f, peer_t *p)
{
    p->is_wild = f->w->has_wild = true;
    kvp_list_foreach (pos, &f->w->mems) {
        mem_t *mem = kvp_list_entry(pos, mem_t, link);

        mem->is_wild = mem->is_wild || strcmp(mem->name, "far") != 0;
    }
}

static void
raw_frame(fuzz_t *f, actor_t *a, input_t *in)
{
    uint8_t bytes[256];
    uint8_t opcode = (uint8_t)take(in, 1), flags = (uint8_t)take(in, 1) & KVP_FRAME_FLAGS_KNOWN;
    size_t head_len = (size_t)take(in, 1), tail_len = (size_t)take(in, 1), at, used;
    kvp_frame_t frame;
    kvp_buf_t buf;

    kvp_buf_init(&buf, 0);
    for (size_t i = 0; i < head_len; i++)
        bytes[i] = (uint8_t)take(in, 1);
    kvp_frame_begin(&buf, opcode, flags, ++a->p->request_seq, bytes, head_len, &at);
    for (size_t i = 0; i < tail_len; i++)
        bytes[i] = (uint8_t)take(in, 1);
    kvp_buf_append(&buf, bytes, tail_len);
    kvp_frame_end(&buf, at);
    if (a == &f->actors[NODE]) run_wild(f, a->p);
    if (kvp_frame_parse(buf.data, buf.len, &frame, &used) == KVP_OK && used > 0) peer_send_raw(a->p, &frame);
    kvp_buf_fini(&buf);
}

static void
pass_time(fuzz_t *f, input_t *in)
{
    uint64_t ms = take(in, 1);

    world_jump(f->w, ms * ms * MS);
    for (unsigned i = 0; i < 64; i++) {
        world_tick(f->w);
        if (!world_has_work(f->w)) break;
    }
}

static void
step(fuzz_t *f, input_t *in)
{
    uint8_t what = (uint8_t)take(in, 1);
    actor_t *a = &f->actors[what >> 6], *client = &f->actors[what >> 6 & 1];
    actor_t *far = &f->actors[FAR_NODE];
    peer_t *node = (what >> 6 & 1) != 0 ? far->p : f->actors[NODE].p;

    switch (what & 31) {
    case 0:
        raw_frame(f, a, in);
        break;
    case 1:
        pass_time(f, in);
        break;
    case 2:
        open_peer(f, a);
        break;
    case 3:
        peer_lose(a->p);
        break;
    case 4:
    case 5:
    case 6:
        begin_put(client, in, false);
        break;
    case 7:
    case 8:
        commit_puts(client, in, 1);
        break;
    case 9:
        abort_puts(client, in);
        break;
    case 10:
        ask_keys(client, in, KVP_OP_GET);
        break;
    case 11:
        ask_keys(client, in, KVP_OP_EXISTS);
        break;
    case 12:
        ask_keys(client, in, KVP_OP_LOOKUP);
        break;
    case 13:
        ask_keys(client, in, KVP_OP_REMOVE);
        break;
    case 14:
        release_some(client, in);
        break;
    case 15:
        remove_matching(client, in);
        break;
    case 16:
        list(client, in);
        break;
    case 17:
    case 18:
        answer_order(node, in);
        break;
    case 19:
        tell_freed(node, in);
        break;
    case 20:
        mount(f, &f->actors[NODE], in);
        break;
    case 21:
        unmount(f, in);
        break;
    case 22:
        peer_beat(a->p);
        break;
    case 23:
        tell_used(client, in);
        slander(client, in);
        break;
    case 24:
        bump(client, in);
        break;
    case 25:
    case 26:
        begin_put(client, in, true);
        break;
    case 27:
        commit_puts(client, in, (uint32_t)take(in, 1));
        break;
    case 28:
        mount(f, far, in);
        break;
    case 29:
        if ((take(in, 1) & 1) != 0 || far->p->conn == 0) open_peer(f, far);
        break;
    case DISK:
        world_sync_part(f->w, take(in, 1));
        break;
    default:
        present(client, in);
        break;
    }
}

static void
check_stats(const world_t *w)
{
    kvp_master_stats_t stats = world_stats(w);

    assert_in_range(stats.memory_bytes, 0, MEMORY_MAX);
    assert_in_range(stats.used_bytes, 0, stats.size_bytes);
    assert_in_range(stats.retiring_bytes, 0, stats.used_bytes + stats.draining_bytes);
    assert_in_range(stats.quarantine_bytes, 0, stats.retiring_bytes);
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    return setenv("CMOCKA_TEST_ABORT", "1", 1); /* what breaks a rule of the world aborts: there is no test to fail */
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvp_master_conf_t conf = {.digest_seed = SEED, .seed = SEED, .term = 1, .host_id = "here", .unix_path = ""};
    fuzz_t fuzz = {0}, *f = &fuzz;
    input_t in = {data, size};

    conf.has_journal = size > 0 && (data[0] & 31) == DISK;
    f->w = world_open(&conf);
    f->w->check_every = 16;
    f->w->is_idle_off = f->w->is_disk_stuck = true;
    for (size_t i = 0; i < PEERS; i++)
        open_peer(f, &f->actors[i]);
    mount(f, &f->actors[NODE], &(input_t){(const uint8_t *)"\x01", 1});
    for (unsigned i = 0; in.left > 0 && i < STEPS_MAX; i++) {
        step(f, &in);
        check_stats(f->w);
    }
    world_check(f->w);
    world_close(f->w);
    return 0;
}
