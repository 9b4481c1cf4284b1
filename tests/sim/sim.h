/* SPDX-License-Identifier: Apache-2.0
 * The simulator: the real cores of master, nodes and clients in one thread, over a network, a clock, memory and a disk
 * that are models. Everything that happens follows from one seed and a plan (sim_plan.h); the rules that must hold are
 * in sim_oracle.h. Nothing made during a run is freed before its end (sim_alloc), so an event may name anything. */
#ifndef KVP_TESTS_SIM_H
#define KVP_TESTS_SIM_H

#include "common/base.h"
#include "common/hash.h"
#include "master/core/api/master.h"
#include "tests/sim/sim_plan.h"

#include <stdio.h>

#define US 1000ull
#define MS 1000000ull
#define SEC 1000000000ull

#define HOSTS 3u
#define NODES_MAX 3u
#define CLIENTS_MAX 4u
#define CLIENT_NUMBER 20u /* of the first client as a party; the others follow */

typedef struct sim sim_t;
typedef struct conn conn_t;
typedef struct master master_t;
typedef struct node node_t;
typedef struct client client_t;
typedef struct oracle oracle_t;
typedef struct mem mem_t;
typedef struct disk disk_t;
typedef struct standby standby_t;

/* ---- parties: what may die, stop and resume */
typedef void (*event_fn)(sim_t *s, void *arg, uint64_t n);

typedef struct event {
    uint64_t at_ns, seq;
    struct party *who; /* NULL: the world's own */
    uint32_t life; /* of who; a later one does not get it */
    event_fn fn;
    void *arg;
    uint64_t n;
    struct event *next; /* kept for a party that is stopped */
} event_t;

typedef struct party {
    char name[16];
    uint32_t host;
    uint32_t number; /* unique: seeds its chance */
    uint32_t life; /* counts its deaths */
    bool is_dead;
    bool is_stopped;
    uint64_t woken_ns; /* when it last went on */
    uint64_t ahead_ns; /* its clock, of the world's */
    event_t *kept, **kept_end;
    void (*on_accept)(sim_t *s, struct party *who, conn_t *conn);
    void *owner;
} party_t;

/* ---- the world */
typedef struct {
    uint64_t calls; /* keys in calls of clients */
    uint64_t frames; /* delivered, control and data */
    uint64_t stores, loads; /* of memory units and words */
    uint64_t faults;
} sim_counts_t;

struct sim {
    const plan_t *plan;
    uint64_t now, event_seq;
    event_t **heap;
    size_t heap_n, heap_cap;
    event_t *spare;
    rng_t rng; /* of what belongs to nobody */
    uint64_t hash; /* of everything that happened */
    bool is_traced;
    bool is_calm; /* no faults any more */
    bool has_stepped; /* some clock has */
    bool has_stalled; /* the master has stopped for a while */
    char failure[512]; /* "" = none; begins with the invariant's name */
    sim_counts_t counts;

    conn_t **conns;
    size_t conns_n, conns_cap;
    uint64_t cut_until[HOSTS][HOSTS]; /* packets from one to the other wait until then */

    master_t *master;
    master_t *elder; /* one of an older term that lives on for a while; NULL = none */
    node_t *nodes[NODES_MAX];
    client_t *clients[CLIENTS_MAX];
    mem_t *mems;
    disk_t *disk; /* the master's */
    standby_t *standby; /* NULL = there is none */
    oracle_t *oracle;
    struct arena_block *arena;
};

/* sim_run runs one plan. The counts are added to *counts; false = a rule was broken, *failure_out says which (512
 * bytes). hash_out: of all that happened. */
bool sim_run(const plan_t *plan, bool is_traced, sim_counts_t *counts, uint64_t *hash_out, char *failure_out);

void *sim_alloc(sim_t *s, size_t bytes); /* zeroed; lives until the end of the run */
void sim_at(sim_t *s, party_t *who, uint64_t at_ns, event_fn fn, void *arg, uint64_t n);
void sim_mix(sim_t *s, uint64_t value); /* into the hash */
void sim_fail(sim_t *s, const char *rule, const char *fmt, ...) KVP_PRINTF(3, 4);
void sim_trace(sim_t *s, const char *fmt, ...) KVP_PRINTF(2, 3);
#define TRACE(s, ...)                                                                                                  \
    do {                                                                                                               \
        if ((s)->is_traced) sim_trace((s), __VA_ARGS__);                                                               \
    } while (0)

void party_init(party_t *who, const char *name, uint32_t number, uint32_t host, void *owner);
void party_stop(sim_t *s, party_t *who);
void party_resume(sim_t *s, party_t *who);
void party_die(sim_t *s, party_t *who); /* its connections end; what was under way for it never happens */
void party_rise(party_t *who);
static inline bool
party_runs(const party_t *who)
{
    return !who->is_dead && !who->is_stopped;
}

/* ---- connections: bytes in order, or an end */
typedef struct {
    void (*on_bytes)(sim_t *s, void *arg, conn_t *conn, const uint8_t *bytes, size_t len);
    void (*on_end)(sim_t *s, void *arg, conn_t *conn); /* the other side closed, or the connection broke */
} conn_ops_t;

typedef struct {
    party_t *who;
    uint32_t life;
    const conn_ops_t *ops;
    void *arg;
    uint64_t last_at_ns; /* when the last packet to this end arrives */
    bool is_closed; /* by this end, or this end was told */
} conn_end_t;

struct conn {
    uint64_t id; /* never 0, never reused */
    conn_end_t end[2]; /* 0 opened it */
    bool is_cut;
    uint64_t sent; /* packets, seeds delays */
    uint64_t heard_ns; /* when the one who accepted it got a frame last */
};

/* conn_open connects; the first bytes may be sent at once. A party that is dead ends the connection. */
conn_t *conn_open(sim_t *s, party_t *from, party_t *to, const conn_ops_t *ops, void *arg);
void conn_take(conn_t *conn, const conn_ops_t *ops, void *arg); /* by the one who accepts */
/* conn_send: bytes are copied, and lie 16-aligned where they arrive. side is the sender's. */
void conn_send(sim_t *s, conn_t *conn, int side, const void *bytes, size_t len);
void conn_close(sim_t *s, conn_t *conn, int side); /* legal on NULL and on a closed one */
/* conn_cut breaks it: what is under way is lost. is_half: one of the two sides is not told. */
void conn_cut(sim_t *s, conn_t *conn, bool is_half);

#define HOURS_NS (3 * 3600 * SEC) /* most that somebody stops */

/* The leases that the master of the simulation gives. */
#define HOT_BYTES_PER_S 10000u /* a read in each of two windows makes an object hot */
#define LEASE_NS (2 * SEC) /* of reservations and probes, at most */
#define LOCATION_LEASE_NS (300 * MS)
#define LOCATION_GRACE_NS (1500 * MS)

/* ---- the master's shell */
#define POOL_ID "kvpool-simulated"
#define DIGEST_SEED 7ull
void master_start(sim_t *s);
void master_stop(sim_t *s); /* frees the core */
void master_written(sim_t *s, uint64_t end); /* its log is, up to there, */
void master_synced(sim_t *s, uint64_t end); /* and this */
void master_snapshot(sim_t *s); /* it is to say all that is there once more */
void master_crash(sim_t *s, uint64_t down_ns); /* dies, and is back with the next term, or its standby leads */
kvp_master_t *master_resting_core(sim_t *s); /* of a standby */
party_t *master_party(sim_t *s);
/* master_succeed starts the next master while this one lives on, for so long: the elder. Some stay with it, or find it.
 */
void master_succeed(sim_t *s, rng_t *rng, uint64_t ns);
void master_end_elder(sim_t *s);
bool master_is_elder(const sim_t *s); /* it is the elder that hears and speaks */
party_t *master_to_dial(sim_t *s, rng_t *rng);
uint64_t master_now(const sim_t *s); /* what its clock says */
uint64_t master_age(const sim_t *s); /* since it began, by its clock */
uint32_t master_term(const sim_t *s);
void master_stats(const sim_t *s, kvp_master_stats_t *stats_out);
struct tiered;
bool master_has_warm(const sim_t *s, kvp_digest_t digest); /* what is loaded belongs among those that were used */
bool master_keeps_cold(const sim_t *s, kvp_digest_t digest,
                       uint64_t version); /* what was loaded just now is no more than that */
bool master_has_place(const sim_t *s, kvp_digest_t digest, uint64_t generation); /* of the object, as it is now */
bool master_knows_tiered(const sim_t *s, uint32_t segment_id, const struct tiered *record);
const char *master_check(const sim_t *s); /* NULL, or what is broken in it */

/* ---- a node's shell */
void node_start(sim_t *s, uint32_t index);
void node_stop(sim_t *s, uint32_t index);
void node_crash(sim_t *s, uint32_t index, uint64_t down_ns);
party_t *node_party(sim_t *s, uint32_t index);
mem_t *node_mem(sim_t *s, uint32_t index);
uint64_t node_unfree(sim_t *s, uint32_t index); /* extents that it has not told free */

/* ---- clients */
void client_start(sim_t *s, uint32_t index);
void client_stop(sim_t *s, uint32_t index);
void client_kill(sim_t *s, uint32_t index, uint64_t down_ns); /* UINT64_MAX: for good */
void client_leave(sim_t *s, uint32_t index); /* ends as a program should; by BYE */
void client_prove_life(sim_t *s, uint32_t index); /* one more put and get, which must work */
bool client_is_idle(const sim_t *s, uint32_t index);
bool client_has_proved(const sim_t *s, uint32_t index);
party_t *client_party(sim_t *s, uint32_t index);
uint32_t client_tenant(const sim_t *s, uint32_t index);

/* ---- faults of the plan */
void fault_schedule(sim_t *s);
void fault_heal(sim_t *s); /* everybody runs, everything is connected */

#endif
