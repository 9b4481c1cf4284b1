/* SPDX-License-Identifier: Apache-2.0
 * The queue of puts that wait for space: a kvp_put_req_t is an unanswered PutBegin message, a kvp_put_key_t
 * (a "key" of the queue) is one copy of an object that has no extent yet. */
#ifndef KVP_MASTER_CORE_PUT_QUEUE_H
#define KVP_MASTER_CORE_PUT_QUEUE_H

#include "common/list.h"
#include "master/core/put/puts.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/put/attempt.h"
#include "master/core/space/claim.h"
#include "master/core/space/place.h"
#include "proto/kvpool.pb-c.h"
#include "proto/wire.h"

typedef struct kvp_put_req kvp_put_req_t;
typedef struct kvp_put_key kvp_put_key_t;

#define KVP_PUT_WAIT_MS 1000u /* time for which a PutBegin with wait_ms 0 waits for space */
#define KVP_PUT_WAIT_MAX_MS 10000u

/* The kinds of objects that may be evicted for a put. After a full search without success the next kind is allowed. */
typedef enum {
    KVP_TAKES_PLAIN,
    KVP_TAKES_PROBED, /* also objects that only a probe protects */
    KVP_TAKES_PINNED, /* also softly pinned objects */
} kvp_takes_t;

/* The state of an evacuation: a large window or a whole chunk is freed in many steps, see evict/evacuate.c. */
typedef enum {
    KVP_EVACUATION_NONE,
    KVP_EVACUATION_WALKS, /* a walk from the window's start to its end evicts the objects */
    KVP_EVACUATION_WAITS, /* the walk has ended; a later walk tries objects that could not be evicted */
} kvp_evacuation_t;

struct kvp_put_key {
    kvp_list_t link; /* link in puts->waiting; not linked while the key has claimed a window */
    kvp_list_t of_req;
    kvp_claim_t claim;
    kvp_put_req_t *req;
    kvp_attempt_t *attempt;
    uint32_t oid;
    kvp_scan_t scan; /* position at which the search for a window in all chunks continues */
    uint64_t scan_news; /* value of ctx->space_news when the search at `scan` began */
    bool is_scanned; /* flag: the key's search for space through all chunks has ended */
    kvp_takes_t takes;
    uint32_t met; /* a bit for each kvp_takes_t: the search met objects of this kind */
    bool is_taking; /* flag: a search for another tenant's chunk to evacuate is running; its position is `scan` */
    uint32_t scan_left; /* if is_taking: number of chunks left to search */

    /* Fields of evict/evacuate.c. */
    kvp_list_t evacuating; /* link in evict->evacuations */
    kvp_evacuation_t evacuation;
    bool is_foreign; /* flag: a whole chunk of another tenant is evacuated */
    uint32_t evacuate_slot; /* the chunk's slot at which the walk continues; KVP_SLAB_NONE = its first by address */
    uint64_t evacuate_next_ns, evacuate_end_ns; /* time of the next walk; time limit of the evacuation */
};

struct kvp_put_req {
    kvp_list_t link; /* link in session->reqs */
    kvp_list_t due; /* link in puts->reqs, by the tick of due_ns */
    kvp_list_t attempts; /* the attempts that this message began */
    kvp_list_t keys; /* the keys that wait for space */
    kvp_session_t *session;
    kvp_frame_hdr_t ask;
    uint64_t due_ns;
    uint32_t n;
    uint32_t left; /* number of copies that wait for space */
    uint32_t claims; /* number of waiting copies with a claimed window */
    uint32_t grants; /* number of copies with a place */
    uint32_t copies; /* number of copies wanted of each object */
    uint64_t bytes; /* bytes of all attempts that this message began */
    uint32_t epoch; /* epoch of the namespace when the message arrived */
    bool has_epoch; /* flag: the client named this epoch, so after a bump the answer is STALE */
    bool is_upsert;
    /* flag: the pool is full, and the message has begun its share of puts; the client must ask again for other keys */
    bool is_cut;
    bool is_refused; /* flag: a waiting key was refused with NO_SPACE */
    uint64_t refused_news; /* value of ctx->space_news at the first refusal of a key with NO_SPACE */
    kvp_pin_t pin;
    kvp_wire_obj_t *objs; /* owned array of n answers, one for each key */
    kvp_wish_t wish;
};

kvp_put_req_t *kvp_put_req_open(kvp_puts_t *pq, kvp_session_t *s, const kvp_frame_hdr_t *ask,
                                const Kvp__Pb__PutBegin *msg);
void kvp_put_req_place(kvp_puts_t *pq, const kvp_attempt_t *a); /* adds a place to the future answer */
void kvp_put_req_answer(kvp_puts_t *pq, kvp_put_req_t *p); /* sends the answer, frees p */
void kvp_put_req_end(kvp_put_req_t *p); /* frees p without an answer */
void kvp_put_key_open(kvp_puts_t *pq, kvp_attempt_t *a); /* queues one copy */
void kvp_put_key_close(kvp_puts_t *pq, kvp_put_key_t *k); /* ends the wait of a copy; the caller ends its attempt */
void kvp_put_key_window_free(kvp_puts_t *pq, kvp_put_key_t *k); /* places a copy whose window is free */
void kvp_put_windows_free(kvp_puts_t *pq); /* places the copies of space->claims_ready */
void kvp_put_key_done(kvp_puts_t *pq, kvp_put_key_t *k); /* ends the wait of a copy that got its place */
/* kvp_put_refuse_waiting refuses the keys that wait for space with LOG_FAILED, as many as the step's budget allows. */
void kvp_put_refuse_waiting(kvp_puts_t *pq);
/* kvp_put_key_refusal returns NO_SPACE if everything evictable was searched and no space will come, else RETRY_AFTER.
 * kvp_put_key_refuse gives up one copy; if the object has no other copy, placed or waiting, its put ends with err.
 * kvp_put_req_refuse refuses every waiting key of the message, and answers the message. */
kvp_err_t kvp_put_key_refusal(const kvp_puts_t *pq, const kvp_put_key_t *k);
void kvp_put_key_refuse(kvp_puts_t *pq, kvp_put_key_t *k, kvp_err_t err);
void kvp_put_req_refuse(kvp_puts_t *pq, kvp_put_req_t *p);
void kvp_put_key_restart(kvp_puts_t *pq, kvp_put_key_t *k); /* releases the key's window; the key waits, first of all */
/* returns true if a node may mount a segment soon, for the first time or again */
bool kvp_put_may_nodes_come(const kvp_puts_t *pq);
/* kvp_put_leave_segment gives up the windows in the segment; false if the step's budget ended before the last one. */
bool kvp_put_leave_segment(kvp_puts_t *pq, kvp_segment_t *g);
void kvp_put_tick(kvp_puts_t *pq);

#endif
