/* SPDX-License-Identifier: Apache-2.0
 * A simulated client process: its shell's state, shared by sim_client.c (session, life), sim_call.c (calls of its
 * threads), sim_choose.c (what these calls are), sim_ask.c (those that are one message) and sim_path.c (attachments
 * to nodes, and transfers). */
#ifndef KVP_TESTS_SIM_CLIENT_H
#define KVP_TESTS_SIM_CLIENT_H

#include "client/core/getop.h"
#include "client/core/tickets.h"
#include "client/core/putop.h"
#include "common/buf.h"
#include "tests/sim/sim_data.h"
#include "tests/sim/sim_known.h"
#include "tests/sim/sim_oracle.h"

#define CALL_KEYS 4u
#define MOVES_MAX 8u
#define UNITS_MAX (CHUNK_UNITS / 2)
#define LIVES_MAX 16u

typedef struct thread thread_t;
typedef struct link link_t;
typedef struct xfer xfer_t;

/* A connection to a node: all threads' by shared memory, one thread's by TCP. */
typedef enum { PATH_DOWN, PATH_ATTACHING, PATH_UP } path_state_t;
typedef enum { WRITE_CLOSED, WRITE_ASKED, WRITE_OPEN } write_state_t;

typedef struct path {
    link_t *link;
    uint32_t node, thread;
    uint32_t segment_id; /* by which it was used last */
    by_t by;
    path_state_t state;
    write_state_t write;
    bool must_drain; /* memory was opened for writing, or may have been: the node waits for a word about it */
    conn_t *conn;
    uint8_t uuid[16];
    uint64_t try_at_ns; /* not before: the breaker */
    uint64_t drained_ns; /* when the word was said that was not answered since; 0 = none */
    uint64_t seq;
    xfer_t *waiting; /* for the attachment, or for an answer */
    struct path *next;
} path_t;

/* One incarnation: a connection to the master, and everything that is done under it. */
struct link {
    client_t *client;
    conn_t *conn;
    uint64_t incarnation;
    uint32_t term;
    uint64_t beat_ns, ttl_ns;
    uint64_t asked_ns; /* when the heartbeat under way was sent, by this client's clock */
    uint64_t beat_request; /* of it; 0 = none is under way */
    bool wants_lease; /* it said */
    uint64_t beat_number; /* the next one that counts: one before its time leaves a leftover */
    uint64_t present_request, present_number; /* the same of what is presented */
    uint64_t request;
    uint32_t refs;
    bool is_up, is_broken;
    path_t *paths;
    known_locs_t known;
    link_t *older; /* of the client */
};

/* One move of a batch under way. */
struct xfer {
    thread_t *thread;
    kvp_move_t *move;
    grant_t *grant; /* NULL: the place does not exist */
    path_t *path;
    uint64_t put;
    uint64_t *units; /* source's or destination's */
    uint64_t seq; /* by TCP: the question */
    uint32_t at;
    bool is_ready; /* by shared memory: mapped, so it needs the connection no more */
    bool is_looked; /* the guarding word allowed the next piece */
    bool is_filled; /* of a PUT: what is left is to seal it */
    bool is_over;
    uint64_t loaded_ns; /* the last load of a READ */
    xfer_t *next; /* in path->waiting */
};

typedef enum { WAIT_NOTHING, WAIT_PAUSE, WAIT_LINK, WAIT_REPLY, WAIT_WOKEN, WAIT_MOVES, WAIT_TIME, WAIT_DONE } wait_t;
typedef enum {
    CALL_PUT,
    CALL_GET,
    CALL_REMOVE,
    CALL_REMOVE_MANY,
    CALL_EXISTS,
    CALL_LOOKUP,
    CALL_BUMP,
    CALL_TASK
} call_kind_t;

/* Stores of a thread that its processor has not made visible yet. */
typedef struct late {
    const grant_t *grant;
    uint32_t at;
    uint64_t unit;
    bool has_landed;
    struct late *next;
} late_t;

struct thread {
    client_t *client;
    uint32_t number;
    uint32_t choice; /* index of the next one in the plan */
    wait_t wait;
    uint64_t wait_seq; /* an event of an earlier wait finds another number */

    call_kind_t call;
    rng_t rng; /* of this call */
    uint32_t n;
    uint32_t keys[CALL_KEYS]; /* as the oracle numbers them */
    char names[CALL_KEYS][KEY_BYTES];
    char groups[CALL_KEYS][KEY_BYTES]; /* of each, "" = of none */
    put_t *puts[CALL_KEYS];
    uint64_t *units[CALL_KEYS];
    uint64_t begun_ns, deadline_ns;
    bool is_upsert, is_forced, waits, heeds_probes;
    bool of_groups; /* a look-up: its keys are groups */
    bool has_epoch; /* it is for `epoch` of the tenant, perhaps an old one */
    uint32_t epoch;
    bool is_proof; /* of life, not of the plan */
    uint32_t proofs_n; /* gets of it that gave nothing */
    char pattern[8];
    kvp_err_t err; /* of the last key, for the trace and the proof of life */
    link_t *link; /* held */
    uint64_t request;
    kvp_frame_t reply; /* that it wakes up for */
    kvp_putop_t put;
    kvp_putop_item_t put_items[CALL_KEYS];
    kvp_getop_t get;
    kvp_getop_item_t get_items[CALL_KEYS];
    kvp_cached_place_t places[CALL_KEYS];
    uint32_t least_term; /* of the sessions that this call went through */
    link_t *known_link; /* whose known locations this get reads */
    uint64_t loaded_ns[CALL_KEYS]; /* of a get: the last load of what it was given */
    kvp_move_t moves[MOVES_MAX];
    kvp_buf_t out;

    xfer_t *xfers; /* of the batch; those of earlier ones stay */
    uint32_t xfers_n, xfers_left;
    uint32_t shm_at; /* shared memory: one after the other */
    late_t *late;
    uint64_t asked_ns; /* by its client's clock, when the question was sent */
    uint64_t task; /* that it asks about; 0 = it begins one */
    uint64_t held; /* a look-up, or what is viewed, to be given back; 0 = nothing */
};

typedef struct drain_notice {
    uint32_t node;
    uint8_t uuid[16];
    uint64_t incarnation;
    struct drain_notice *next;
} drain_notice_t;

struct client {
    party_t party;
    uint32_t index;
    rng_t rng;
    thread_t threads[THREADS_MAX];
    link_t *link; /* current; NULL = none */
    link_t *lingering; /* the one before, while its known locations may be read */
    link_t *links; /* all that ever were */
    uint64_t attempts;
    uint32_t epoch; /* of its tenant, as it was told last */
    uint64_t backoff_ns;
    kvp_tickets_t held; /* what its threads hold, over all sessions */
    kvp_tickets_page_t page; /* of it, that is presented at the moment */
    drain_notice_t *drain_notices;
    bool is_tcp_only;
    bool trusts_sums; /* its reads by TCP can do without descriptors, as those by rdma */
    bool is_proving;
    bool has_proved;
    uint64_t proof_ns[LIVES_MAX]; /* by life: since when nodes can prove that it is dead */
};

/* sim_client.c */
void link_rele(sim_t *s, link_t *link);
void link_break(sim_t *s, link_t *link, bool was_ended); /* was_ended: by the other side */
void link_tell_used(sim_t *s, link_t *link); /* reads that the master was not asked for */
void link_want_lease(sim_t *s, link_t *link);
link_t *client_known_link(client_t *c); /* whose known locations may be read; NULL = none */
void link_release(sim_t *s, link_t *link, const kvp_buf_t *tickets); /* u64 */
void link_send(sim_t *s, link_t *link, const kvp_buf_t *frame, uint64_t request);

/* sim_call.c */
void thread_start(sim_t *s, thread_t *t, client_t *c, uint32_t number);
void thread_next(sim_t *s, thread_t *t); /* the next choice of the plan, after its pause */
void thread_prove(sim_t *s, thread_t *t);
void thread_go(sim_t *s, thread_t *t); /* on, until it has to wait */
void thread_on_link(sim_t *s, thread_t *t); /* there is a session */
void thread_on_lost(sim_t *s, thread_t *t, link_t *link);
void thread_on_reply(sim_t *s, thread_t *t, const kvp_frame_t *f);
void thread_moved(sim_t *s, thread_t *t); /* all its transfers are over */
/* thread_was_with_elder: the call went through a session with a master that is not the last, and lives on perhaps. */
bool thread_was_with_elder(const sim_t *s, const thread_t *t);
bool thread_is_done(const thread_t *t);
/* thread_now is by its client's clock, which is what the cores are told. */
static inline uint64_t
thread_now(const sim_t *s, const thread_t *t)
{
    return s->now + t->client->party.ahead_ns;
}

/* sim_choose.c */
void call_choose(sim_t *s, thread_t *t, const choice_t *choice); /* what the thread's next call is */

/* sim_ask.c */
void ask_encode(sim_t *s, thread_t *t);
void ask_take(sim_t *s, thread_t *t, const kvp_frame_t *f);

/* sim_task.c: task_take returns false where the thread is to ask again */
void task_encode(sim_t *s, thread_t *t);
bool task_take(thread_t *t, const kvp_frame_t *f);

/* sim_path.c */
void paths_run(sim_t *s, thread_t *t, kvp_move_t *moves, uint32_t n);
/* paths_avoid names segments whose nodes are left alone, once for each thread that failed there; returns how many. */
uint32_t paths_avoid(const link_t *link, uint32_t ids[KVP_AVOID_MAX]);
void paths_close(sim_t *s, link_t *link);
void path_send_drained(sim_t *s, client_t *c, drain_notice_t *notice);
void paths_die(sim_t *s, thread_t *t, uint64_t proof_ns); /* stores that were on their way still land until then */
void late_flush(sim_t *s, thread_t *t); /* every store before this is visible */

#endif
