/* SPDX-License-Identifier: Apache-2.0
 * Retries the waiting puts when space became free or evictable. In the order of arrival, each put gets a place, or
 * claims a window (neighbouring extents) whose objects are evicted for it. */
#include "master/core/evict/eviction.h"

#include "common/list.h"
#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/rebalance.h"
#include "master/core/evict/window.h"
#include "master/core/put/queue.h"
#include "master/core/space/place.h"

#define RETRY_LOOK_MAX 4096u /* limit of the keys that one pass over the waiting keys examines */

/* The shortest lengths for which this retry found no room, separately for short keys and for long keys, which need
 * extra space. Each tenant has its own chunks, so a failure is valid for its tenant only. */
typedef struct {
    const kvp_tenant_t *tenant;
    uint64_t any, long_key;
    /* flag: longer puts are refused with NO_SPACE as well, because no extent of this length will become free */
    bool is_final;
} failed_t;

/* Looks for a free extent for the key, then for a window. After an error of kvp_evict_for the key keeps waiting. */
static kvp_err_t
try_key(kvp_evict_t *ev, kvp_put_key_t *k)
{
    kvp_err_t err = kvp_place_alloc(ev->space, k->attempt, &k->req->wish);

    if (err == KVP_OK) {
        kvp_put_key_done(ev->puts, k);
        return KVP_OK;
    }
    err = kvp_evict_for(ev, k);
    if (err == KVP_OK) kvp_list_del(&k->link);
    return err;
}

/* Answers a PutBegin if some of its keys have a place, and the others neither a place nor a window. The writer can then
 * commit, and the committed objects can be evicted. Without the answer, PutBegin messages could wait for each other
 * forever. Returns false if the message is not answered. */
static bool
cut_req(kvp_evict_t *ev, kvp_put_req_t *p)
{
    if (p->grants == 0 || p->claims > 0) return false;
    kvp_put_req_refuse(ev->puts, p);
    return true;
}

static bool
has_failed(const failed_t *failed, const kvp_tenant_t *tenant, uint64_t len, bool is_long_key)
{
    if (tenant != failed->tenant) return false;
    return len >= failed->any || (is_long_key && len >= failed->long_key);
}

/* Records that an object of this length found no room. Not called for a copy that may not lie in some segments, as its
 * failure is not valid for other keys. */
static void
note_failure(failed_t *failed, const kvp_tenant_t *tenant, uint64_t len, bool is_long_key, bool is_final)
{
    if (tenant != failed->tenant) *failed = (failed_t){.tenant = tenant, .any = UINT64_MAX, .long_key = UINT64_MAX};
    if (is_long_key)
        failed->long_key = len; /* puts with short keys may find room: perhaps only the area for long keys is full */
    else
        failed->any = len;
    failed->is_final = is_final;
}

static void
refuse_one(kvp_evict_t *ev, kvp_put_key_t *k)
{
    kvp_put_req_t *p = k->req;

    kvp_put_key_refuse(ev->puts, k, KVP_NO_SPACE);
    if (p->left == 0) kvp_put_req_answer(ev->puts, p);
}

/* Allows places in segments that the message's client cannot reach, after all other segments were searched without
 * success: such a place is better than none. */
static void
drop_wish(kvp_evict_t *ev, kvp_put_req_t *p)
{
    p->wish.avoid_n = 0;
    kvp_ctx_space_news(ev->ctx);
}

/* Tries the waiting keys in the order of arrival. If a key gets no room, it stays, and no later key of this length or
 * longer is tried; shorter keys may still find a place. Returns false if cut_req has answered a message, which changes
 * the list. */
static bool
retry_pass(kvp_evict_t *ev, failed_t *failed)
{
    uint32_t looked = 0;

    kvp_list_foreach_safe (pos, tmp, &ev->puts->waiting) {
        kvp_put_key_t *k = kvp_list_entry(pos, kvp_put_key_t, link);
        uint64_t len = k->attempt->bytes;
        bool is_long_key = kvp_obj_key_len(ev->cat->index, kvp_obj(ev->cat->index, k->oid)) > KVP_KEY_CELL_BYTES;
        bool is_final;
        kvp_err_t err;

        if (k->req->session->life == KVP_SESSION_OVER) continue; /* its puts are about to be aborted */
        if (looked++ == RETRY_LOOK_MAX) return true;
        if (ev->ctx->slice_left == 0) {
            ev->ctx->has_space_news = true;
            return true;
        }
        /* An upsert may use the space of the object that it replaces; other puts may not. */
        if (k->attempt->over == KVP_OID_NONE && has_failed(failed, k->attempt->tenant, len, is_long_key)) {
            if (failed->is_final) refuse_one(ev, k);
            continue;
        }
        err = try_key(ev, k);
        if (err == KVP_OK) continue;
        if (err == KVP_EAGAIN) ev->ctx->has_space_news = true; /* the search for this key continues in the next step */
        is_final = err == KVP_NO_SPACE && kvp_put_key_refusal(ev->puts, k) == KVP_NO_SPACE;
        if (is_final && k->req->wish.avoid_n > 0) {
            drop_wish(ev, k->req);
            continue;
        }
        if (k->attempt->copies == 1 && k->req->wish.avoid_n == 0 && k->req->wish.only == 0)
            note_failure(failed, k->attempt->tenant, len, is_long_key, is_final);
        if (err != KVP_NO_SPACE) continue;
        if (cut_req(ev, k->req)) return false;
        if (is_final) refuse_one(ev, k);
    }
    return true;
}

void
kvp_evict_retry_waiting(kvp_evict_t *ev)
{
    failed_t failed = {.tenant = NULL};

    while (!retry_pass(ev, &failed))
        continue;
}

bool
kvp_evict_leave_segment(kvp_evict_t *ev, kvp_segment_t *g)
{
    bool is_left = kvp_put_leave_segment(ev->puts, g);

    kvp_rebalance_leave_segment(ev, g);
    return is_left;
}
