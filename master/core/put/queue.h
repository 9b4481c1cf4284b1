/* SPDX-License-Identifier: Apache-2.0
 * Puts that wait for space: one kvp_put_req_t a message, one kvp_put_key_t a key without an extent. */
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

#define KVP_PUT_WAIT_MS 1000u /* PutBegin with wait_ms 0 */
#define KVP_PUT_WAIT_MAX_MS 10000u

/* The objects that may have to make room: the next kind is added after a search of everything in
 * vain. */
typedef enum {
    KVP_TAKES_PLAIN,
    KVP_TAKES_PROBED, /* also objects that only a probe protects */
    KVP_TAKES_PINNED, /* also softly pinned objects */
} kvp_takes_t;

/* A window that is large is not claimed but evacuated: evacuate.c. */
typedef enum {
    KVP_EVACUATION_NONE,
    KVP_EVACUATION_WALKS, /* through the window */
    KVP_EVACUATION_WAITS, /* the walk is at its end; the objects that had to stay are tried again */
} kvp_evacuation_t;

struct kvp_put_key {
    kvp_list_t link; /* in puts->waiting, unless it has claimed a window */
    kvp_list_t of_req;
    kvp_claim_t claim;
    kvp_put_req_t *req;
    kvp_attempt_t *attempt;
    uint32_t oid;
    kvp_scan_t scan; /* where the search through all chunks of the catalog goes on */
    uint64_t scan_news; /* ctx->space_news at the beginning of the search */
    bool is_scanned; /* the search reached its end in vain */
    kvp_takes_t takes;
    uint32_t met; /* a bit for each kind that was left out */
    bool is_taking; /* searches the chunks of other tenants: scan_left more, from scan on */
    uint32_t scan_left;

    /* evacuate.c */
    kvp_list_t evacuating; /* evict->evacuations */
    kvp_evacuation_t evacuation;
    bool is_foreign; /* a whole chunk of another tenant */
    uint32_t evacuate_slot; /* where the walk goes on; KVP_SLAB_NONE = at the start */
    uint64_t evacuate_next_ns, evacuate_end_ns; /* the next walk, and when it is given up */
};

struct kvp_put_req {
    kvp_list_t link; /* session->reqs */
    kvp_list_t due; /* puts->reqs, by the tick */
    kvp_list_t attempts; /* begun by it */
    kvp_list_t keys; /* those that wait */
    kvp_session_t *session;
    kvp_frame_hdr_t ask;
    uint64_t due_ns;
    uint32_t n;
    uint32_t left; /* keys not decided */
    uint32_t claims; /* of these, with a window */
    uint32_t grants; /* copies */
    uint32_t copies; /* wanted of each object */
    uint64_t bytes; /* of all attempts that it began */
    uint32_t epoch; /* of the namespace, at its arrival */
    bool is_upsert;
    bool is_cut; /* it has begun its share of a full pool: the client has to ask again for the rest */
    bool is_refused; /* a waiting key was refused for good, */
    uint64_t refused_news; /* at this count of space_news */
    kvp_pin_t pin;
    kvp_wire_obj_t *objs; /* owned, n */
    kvp_wish_t wish;
};

kvp_put_req_t *kvp_put_req_open(kvp_puts_t *pq, kvp_session_t *s, const kvp_frame_hdr_t *ask,
                                const Kvp__Pb__PutBegin *msg);
void kvp_put_req_place(kvp_puts_t *pq, const kvp_attempt_t *a); /* one of its copies has its place */
void kvp_put_req_answer(kvp_puts_t *pq, kvp_put_req_t *p); /* frees it */
void kvp_put_req_end(kvp_put_req_t *p); /* without an answer */
void kvp_put_key_open(kvp_puts_t *pq, kvp_attempt_t *a); /* one copy of it waits */
void kvp_put_key_close(kvp_puts_t *pq, kvp_put_key_t *k); /* ends its wait; the caller ends its attempt */
void kvp_put_key_window_free(kvp_puts_t *pq, kvp_put_key_t *k); /* every record of its window is free */
void kvp_put_windows_free(kvp_puts_t *pq); /* drains the events of kvp_retire_set_free */
void kvp_put_key_done(kvp_puts_t *pq, kvp_put_key_t *k); /* it has its place */
/* kvp_put_refuse_waiting refuses with LOG_FAILED all keys that wait for space, as far as the step's slice allows. */
void kvp_put_refuse_waiting(kvp_puts_t *pq);
/* kvp_put_key_refusal: NO_SPACE where all that may be evicted was looked at and none will come,
 * else RETRY_AFTER. kvp_put_key_refuse: a copy less; an object that has no other is refused.
 * kvp_put_req_refuse refuses every key of the message that waits, which answers it. */
kvp_err_t kvp_put_key_refusal(const kvp_puts_t *pq, const kvp_put_key_t *k);
void kvp_put_key_refuse(kvp_puts_t *pq, kvp_put_key_t *k, kvp_err_t err);
void kvp_put_req_refuse(kvp_puts_t *pq, kvp_put_req_t *p);
void kvp_put_key_restart(kvp_puts_t *pq, kvp_put_key_t *k); /* its window is lost */
bool kvp_put_may_nodes_come(const kvp_puts_t *pq); /* a segment may be mounted soon, or again */
/* kvp_put_leave_segment gives up the windows in it, as far as the step reaches; false while there are more. */
bool kvp_put_leave_segment(kvp_puts_t *pq, kvp_segment_t *g);
void kvp_put_tick(kvp_puts_t *pq);

#endif
