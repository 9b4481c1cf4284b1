/* SPDX-License-Identifier: Apache-2.0
 * A world around one master core: clients and nodes that speak frames, a network with delays, and time that only the
 * test moves. A node has memory: its descriptors' words, and which bytes somebody may still write. Everything that
 * the master says is held against it: a place that it grants must be nobody's, a place that it shows a reader must be
 * readable, a generation must be new, an answer must have been asked for. What breaks a rule fails the test. */
#ifndef KVP_TESTS_WORLD_WORLD_H
#define KVP_TESTS_WORLD_WORLD_H

#include "common/digestmap.h"
#include "common/list.h"
#include "proto/segfmt.h"
#include "master/core/api/master.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define SEC (1000ull * MS)
#define KIB 1024ull
#define MIB (1024ull * KIB)

typedef struct world world_t;
typedef struct peer peer_t;

/* ---- memory of a node; outlives its connections */
typedef struct {
    uint64_t *words; /* one a slot */
    uint64_t *granted; /* the newest generation granted, one a slot */
    uint64_t *retired; /* the newest that a Retire has named, one a slot */
    uint64_t *offset; /* of that grant */
    uint64_t *len; /* of that grant, extent bytes; 0 = nobody may write there any more */
    uint64_t *taken; /* a bit a unit of 64 bytes: somebody may write there */
    kvp_desc_t *descs; /* one a slot: what write_object left there; NULL before the first */
    char **keys;
    kvp_chunk_geo_t geo;
    uint64_t bytes;
    char owner[16]; /* name of the tenant whose objects are put there, as the master told it */
    bool is_made; /* the arrays are there, since somebody came here */
} chunk_t;

/* What is on a node's tier. */
typedef struct {
    kvp_wire_tiered_t rec;
    kvp_desc_t desc;
    kvp_wire_lineage_t lineage;
    char key[64];
} tiered_t;

typedef struct {
    kvp_list_t link; /* world->mems */
    char name[32];
    uint8_t uuid[16];
    uint64_t epoch, size_bytes, chunk_bytes;
    uint32_t chunk_n, segment_id; /* 0 = not mounted, or dropped */
    uint32_t term, mounted_term; /* highest that was heard of; that of the last mount. 0 = none */
    bool tells_words; /* the master has asked for no more than these */
    chunk_t *chunks;
    bool is_fresh;
    bool is_check_ignored; /* no CHECK is answered, */
    uint64_t hollow_part; /* or an object whose length that divides was never written; 0 = all were */
    bool is_wild; /* its node says what it likes: grants and places are not held against it */
    tiered_t *tiered; /* what its node's tier has: it stays where the memory is made anew */
    uint32_t tiered_n;
    bool is_tier_full, is_stage_failing; /* nothing is written to it; nothing is read */
    bool is_tier_slow; /* orders to write are obeyed, and not answered */
    bool can_copy; /* its node says so, and copies */
    uint8_t copy_answer; /* KVP_COPY_*: what it answers, and does nothing if that is not OK */
    uint32_t stalled_devices; /* of the tier, as the next mount says */
} mem_t;

/* ---- peers */
typedef struct {
    kvp_list_t link;
    uint64_t at_ns;
    size_t len;
    _Alignas(16) uint8_t bytes[];
} packet_t;

typedef struct {
    kvp_list_t link; /* peer->replies */
    kvp_frame_t frame; /* in packet */
    packet_t *packet;
} reply_t;

typedef struct {
    uint64_t id;
    uint8_t opcode;
    mem_t *mem; /* of the node when it asked */
} ask_t;

/* When a node says that a retired extent is dead, and when that it is free. */
typedef enum {
    NODE_FREE_NOW, /* with the answer */
    NODE_FREE_LATER, /* FREED, after free_ns */
    NODE_DEAD_ONLY, /* not before node_free_all */
    NODE_MUTE, /* orders to retire are not answered */
    NODE_STOPPED, /* nor any other, and none is obeyed */
    NODE_TOLD, /* orders to retire are kept until node_answer, and extents that are dead until node_is_free */
} node_policy_t;

typedef struct {
    kvp_list_t link; /* peer->retiring */
    kvp_wire_slot_t slot;
    uint32_t segment_id;
    uint64_t free_at_ns; /* UINT64_MAX = when it is told to */
} retiring_t;

struct peer {
    kvp_list_t link; /* world->peers */
    world_t *world;
    uint64_t conn; /* 0 = closed */
    bool was_closed; /* by the master */
    uint32_t role;
    uint64_t incarnation;
    uint64_t request_seq, attempt_seq;
    uint64_t delay_ns; /* most that a packet takes, each way; 0 = delivered at once */
    uint64_t beat_ns; /* when its next heartbeat is due */
    bool is_silent; /* sends none */
    uint32_t tenant; /* to be set before it says hello: its name is that number's digits, 0 the default one */
    uint32_t tenant_id; /* of its digests */
    bool wants_lease; /* its heartbeats ask for one */
    bool is_deaf; /* does not apply what it is told */
    uint64_t applied_seq;
    uint32_t lease_ms, grace_ms, revoked_n; /* of the last answer, as the rest */
    bool has_dropped_all;
    bool is_wild; /* what it says is not modelled, nor what it is told */
    uint64_t tickets[16]; /* that it was given, the oldest overwritten */
    uint32_t tickets_n;
    kvp_digest_t *revoked;
    kvp_list_t to_master, from_master; /* packets, in order */
    kvp_list_t replies; /* and the orders that NODE_TOLD has not answered */
    ask_t *asks; /* not answered */
    uint32_t asks_n, asks_cap;

    /* a node's */
    mem_t *mem;
    bool is_mounting_tier;
    node_policy_t policy;
    uint64_t free_ns;
    bool needs_proof; /* an extent with an owner is free only after world_prove(owner) */
    kvp_list_t retiring; /* answered dead */
    uint32_t retires_n, fences_n, checks_n, demotes_n, stages_n, copies_n;
    Kvp__Pb__Fence last_fence;
};

struct world {
    kvp_master_t *m;
    kvp_master_conf_t conf;
    uint64_t now, seed;
    uint64_t conn_seq, uuid_seq;
    kvp_list_t peers, mems;
    uint64_t *proved; /* incarnations of which nothing can land any more */
    uint32_t proved_n, proved_cap;
    uint32_t check_every; /* inputs between two kvp_master_check; 0 = never */
    /* The journal of a conf with one: what the master wrote, from position journal_from on, and how far that is
     * durable. */
    kvp_buf_t journal;
    uint64_t journal_from, durable;
    uint64_t forget_below; /* what the master said last, for world_take_forgotten; UINT64_MAX = nothing */
    bool keeps_files; /* they are not removed before the test says KVP_DONE_FORGOTTEN */
    kvp_master_ident_t ident; /* the same, for world_take_ident; term 0 = nothing */
    uint64_t tick_ns; /* of the master's last kvp_master_ready_t */
    uint32_t wishes;
    bool is_boot_new; /* the log may lack its end: world_restart_boot */
    bool is_disk_stuck; /* nothing becomes durable before world_sync */
    bool has_tiers; /* some node has one */
    bool has_wild; /* some segments may be unknown here */
    bool is_idle_off; /* work is not done between inputs, only by ticks that are due */
    uint64_t inputs;
    uint64_t work,
        work_most; /* records that the master has touched so far, and in one input at most; a test may reset it */
    /* Called for every extent that a Retire names, and for every answer to a client, when the master says it. */
    void (*on_retire)(void *arg, mem_t *mem, const kvp_wire_slot_t *slot);
    void (*on_answer)(void *arg, peer_t *p, const kvp_frame_t *frame);
    /* Called before every input of the core and after it. */
    void (*on_input)(void *arg, bool is_over);
    void *hook_arg;
};

uint64_t world_random(world_t *w);
uint64_t world_below(world_t *w, uint64_t n);
/* A prefix with a number behind it, as a key; stays until the fourth call after it. */
const char *key_name(const char *prefix, uint32_t i);

/* world_open makes a master with conf (zero fields = a test's defaults), world_close ends everything: connections
 * close, grace passes, and every gauge must be zero then. */
world_t *world_open(const kvp_master_conf_t *conf);
void world_close(world_t *w);

/* world_pump delivers what is due now and runs the core until nothing moves. world_advance lets time pass, with ticks;
 * world_jump does not tick: to the master its own loop stood still. */
void world_pump(world_t *w);
void world_advance(world_t *w, uint64_t ns);
void world_jump(world_t *w, uint64_t ns);
void world_tick(world_t *w); /* one tick, though none may be due */
/* world_restart: the master dies, with it all connections, and another one of the next term begins, which has of
 * the journal what was durable. Peers are forgotten, and to be opened anew. */
void world_restart(world_t *w);
void
world_restart_boot(world_t *w); /* and the machine with it: nodes are believed, but not of what the log says is gone */
void world_restart_as_new(world_t *w); /* it finds nothing, and is called what conf says */
void world_forget_peers(world_t *w);
void world_sync(world_t *w); /* all of the journal is durable */
void world_sync_part(world_t *w, uint64_t part); /* of what was written, so many of 255 parts */
/* What the master said last, once: the position before which its journal is not needed any more; its identity. The
 * files are removed at once, unless keeps_files. */
bool world_take_forgotten(world_t *w, uint64_t *below_out);
bool world_take_ident(world_t *w, kvp_master_ident_t *ident_out);
bool world_has_work(world_t *w); /* takes what the master has to say */
/* world_done is kvp_master_done, with n as the position, or as the bytes that are left. */
void world_done(world_t *w, kvp_master_done_kind_t kind, uint64_t n);
void world_check(world_t *w);
kvp_master_stats_t world_stats(const world_t *w);
/* world_prove tells every node that nothing of that client can land any more. */
void world_prove(world_t *w, uint64_t incarnation);

/* Connections. peer_open says nothing yet; hello does. peer_lose is the end of a connection without a word. */
peer_t *peer_open(world_t *w);
uint64_t peer_send(peer_t *p, uint8_t op, uint8_t flags, const void *head, const void *tail, size_t tail_len);
void peer_send_raw(peer_t *p, const kvp_frame_t *frame);
void peer_beat(peer_t *p); /* a heartbeat now; they are also sent as time passes */
reply_t *peer_reply(peer_t *p, uint64_t id); /* NULL = not there yet; freed by reply_free */
reply_t *peer_wait(peer_t *p, uint64_t id, uint64_t max_ns); /* lets time pass; NULL = none came */
bool peer_is_asking(const peer_t *p, uint64_t id); /* not answered yet */
void reply_free(reply_t *r);
void peer_lose(peer_t *p);
void peer_forget(peer_t *p); /* and frees it */
kvp_err_t peer_hello(peer_t *p, uint32_t role, const char *name, const char *host);
uint64_t peer_hello_begin(peer_t *p, uint32_t role, const char *name, const char *host);

/* ---- nodes */
mem_t *mem_make(world_t *w, const char *name, uint64_t size, uint64_t chunk);
void mem_remake(world_t *w, mem_t *mem); /* new memory under the same name */
peer_t *node_open(world_t *w, mem_t *mem); /* connects, says hello and mounts, which must work */
peer_t *node_open_on(world_t *w, mem_t *mem, const char *host);
/* node_mount also reports where it is asked to (report.h). node_ask_mount does not, and returns the answer without what
 * it points to. */
kvp_err_t node_mount(peer_t *n, bool *is_reset_out);
Kvp__Pb__MountReply node_ask_mount(peer_t *n);
uint64_t node_mount_begin(peer_t *n);
uint32_t node_mount_tier(peer_t *n); /* and reports it, where it is asked to: its number */
void tier_drop(mem_t *mem, kvp_digest_t digest, uint64_t version); /* the record is gone */
tiered_t *tiered_find(mem_t *mem, kvp_digest_t digest); /* NULL = the tier has no such record */
void node_free_all(peer_t *n); /* NODE_DEAD_ONLY: all that may be free is */
/* NODE_TOLD: node_answer says to an order, which it frees, what each of its extents is (KVP_RETIRE_*); node_is_free
 * says that of extents which were said to be dead. */
void node_answer(peer_t *n, reply_t *order, const uint8_t *flags);
void node_is_free(peer_t *n, uint32_t segment_id, const kvp_wire_slot_t *slots, uint32_t count);

/* ---- clients */
typedef struct {
    kvp_err_t err;
    uint32_t n, nloc, retry_ms;
    uint64_t ticket;
    const kvp_wire_obj_t *objs;
    const kvp_wire_loc_t *locs;
    reply_t *reply;
} places_t;

typedef struct {
    const char *key;
    uint64_t len;
    uint32_t key_len; /* 0 = strlen */
    uint64_t attempt; /* chosen by put_begin */
    kvp_wire_group_t group; /* zero = none */
    kvp_wire_lineage_t lineage; /* zero = none */
} put_t;

peer_t *client_open(world_t *w);
peer_t *client_open_of(world_t *w, uint32_t tenant);
uint64_t put_begin(peer_t *c, put_t *puts, uint32_t n, uint32_t wait_ms);
uint64_t put_begin_with(peer_t *c, put_t *puts, uint32_t n, const Kvp__Pb__PutBegin *like);
void places_read(reply_t *r, places_t *out);
void places_free(places_t *p);
kvp_err_t commit(peer_t *c, uint64_t attempt, uint64_t sum);
kvp_err_t commit_copies(peer_t *c, uint64_t attempt, uint64_t sum, uint32_t sealed); /* a bit each */
kvp_err_t abort_put(peer_t *c, uint64_t attempt, bool is_drained);
/* write_place does what a writer does to the descriptor: WRITING, then SEALED. STALE where the word forbids it. */
kvp_err_t write_place(world_t *w, const kvp_wire_loc_t *loc);
/* write_object also leaves the descriptor and the key. */
kvp_err_t write_object(peer_t *c, const kvp_wire_loc_t *loc, const kvp_wire_obj_t *obj, const char *key);
/* write_object_as: with its group and a pin. */
kvp_err_t write_object_as(peer_t *c, const kvp_wire_loc_t *loc, const kvp_wire_obj_t *obj, const put_t *what,
                          uint32_t pin);

/* Whole operations, answered at once or within the time given. */
kvp_err_t put_place(peer_t *c, const char *key, uint64_t len, uint64_t *attempt_out, kvp_wire_loc_t *loc_out);
kvp_err_t put(peer_t *c, const char *key, uint64_t len);
kvp_err_t put_wait(peer_t *c, const char *key, uint64_t len, uint32_t wait_ms);
/* put_fast puts n keys of 64 bytes by few messages: the prefix and a number of so many digits. */
void put_fast(peer_t *c, const char *prefix, int digits, uint32_t n);
void put_fast_of(peer_t *c, const char *prefix, int digits, uint32_t n, uint64_t len);
kvp_err_t get(peer_t *c, const char *key, uint64_t *ticket_out, kvp_wire_loc_t *loc_out);
/* put_like begins, writes all copies that are granted, and commits: the error of that which failed. */
kvp_err_t put_like(peer_t *c, const put_t *what, const Kvp__Pb__PutBegin *like);
bool exists(peer_t *c, const char *key); /* leaves nothing behind */
/* found returns the version that a get finds, 0 = none, or no answer yet; copies_out, which may be NULL, is how many.
 * Holds nothing. */
uint64_t found(peer_t *c, const char *key, uint32_t *copies_out);
bool probe(peer_t *c, const char *key); /* leaves a probe */
void release(peer_t *c, uint64_t ticket);
kvp_err_t remove_key(peer_t *c, const char *key, bool is_forced);
/* remove_begun: the request. The digest is that of tenant 0's key, whoever asks. */
uint64_t remove_begun(peer_t *c, const char *key, bool is_forced);
uint64_t remove_many(peer_t *c, const char *pattern, bool is_forced); /* the request */
kvp_err_t remove_many_result(reply_t *r, uint64_t *removed_out, uint64_t *held_out); /* frees r */
kvp_err_t plain_result(reply_t *r); /* err of any answer's head; frees r */
uint64_t lookup(peer_t *c, const char *const *keys, uint32_t n, bool is_prefix, uint32_t ttl_ms,
                Kvp__Pb__LookupReply *reply_out, uint8_t *found_out);
uint64_t lookup_groups(peer_t *c, const char *const *names, uint32_t n, bool is_prefix, uint32_t ttl_ms,
                       Kvp__Pb__LookupReply *reply_out, uint8_t *found_out);
kvp_digest_t digest_of(const world_t *w, const char *key);
kvp_wire_group_t group_of(const peer_t *c, const char *name, uint32_t members, uint32_t member);

#endif
