/* SPDX-License-Identifier: Apache-2.0
 * Puts that wait are tried again when something may fit that did not: in the order of arrival each is given a place, or a
 * window for which others are evicted.
 */
#include "master/core/state.h"

#define RETRY_LOOK_MAX 4096u /* keys that one retry looks at */

/* The shortest lengths for which a retry found no room: for keys that lie in their cell, and for long ones. Each tenant
 * has chunks of its own, so what one did not find may be there for another. */
typedef struct {
    const kvp_tenant_t *tenant;
    uint64_t any, long_key;
    bool is_final; /* and none will come */
} failed_t;

/* Looks for a place, then for a window. Errors are kvp_evict_for's; then the key stays on the waiting list. */
static kvp_err_t
pkey_try(kvp_master_t *m, kvp_pkey_t *k)
{
    kvp_err_t err = kvp_place_alloc(&m->space, k->attempt, &k->pend->wish);

    if (err == KVP_OK) {
        kvp_pkey_done(&m->puts, k);
        return KVP_OK;
    }
    err = kvp_evict_for(m, k);
    if (err == KVP_OK) kvp_list_del(&k->link);
    return err;
}

/* A message that was granted something and cannot get the rest for now is answered: what its writer commits can be
 * evicted, and while it is held back everybody may be waiting for everybody. */
static bool
pend_cut(kvp_master_t *m, kvp_pend_t *p)
{
    if (p->grants == 0 || p->claims > 0) return false;
    kvp_pend_refuse(&m->puts, p);
    return true;
}

static bool
has_failed(const failed_t *failed, const kvp_tenant_t *tenant, uint64_t len, bool is_long_key)
{
    if (tenant != failed->tenant) return false;
    return len >= failed->any || (is_long_key && len >= failed->long_key);
}

/* Not of a copy that some segments are closed to: what it did not find may be there for others. */
static void
note_failure(failed_t *failed, const kvp_tenant_t *tenant, uint64_t len, bool is_long_key, bool is_final)
{
    if (tenant != failed->tenant) *failed = (failed_t){.tenant = tenant, .any = UINT64_MAX, .long_key = UINT64_MAX};
    if (is_long_key)
        failed->long_key = len; /* it may be the key that found no room */
    else
        failed->any = len;
    failed->is_final = is_final;
}

static void
refuse_one(kvp_master_t *m, kvp_pkey_t *k)
{
    kvp_pend_t *p = k->pend;

    kvp_pkey_refuse(&m->puts, k, KVP_NO_SPACE);
    if (p->left == 0) kvp_pend_answer(&m->puts, p);
}

/* All but what the client does not reach was looked at in vain: better there than nowhere. */
static void
drop_wish(kvp_master_t *m, kvp_pend_t *p)
{
    p->wish.avoid_n = 0;
    kvp_ctx_space_news(&m->ctx);
}

/* In the order of arrival. A key that cannot be served stays, and then nothing of its length or longer is tried behind
 * it: shorter ones may still find a place. Returns false where it stopped at a message that was cut: the list changed. */
static bool
retry_pass(kvp_master_t *m, failed_t *failed)
{
    uint32_t looked = 0;

    kvp_list_foreach_safe (pos, tmp, &m->puts.waiting) {
        kvp_pkey_t *k = kvp_list_entry(pos, kvp_pkey_t, link);
        uint64_t len = k->attempt->bytes;
        bool is_long_key = kvp_obj_key_len(m->cat.index, kvp_obj(m->cat.index, k->oid)) > KVP_KEY_CELL_BYTES;
        bool is_final;
        kvp_err_t err;

        if (k->pend->session->is_over) continue; /* its turn to be aborted comes */
        if (looked++ == RETRY_LOOK_MAX) return true;
        if (m->ctx.slice_left == 0) {
            m->ctx.has_space_news = true;
            return true;
        }
        /* An upsert may have the space of what it replaces, which the others do not. */
        if (k->attempt->over == KVP_OID_NONE && has_failed(failed, k->attempt->tenant, len, is_long_key)) {
            if (failed->is_final) refuse_one(m, k);
            continue;
        }
        err = pkey_try(m, k);
        if (err == KVP_OK) continue;
        if (err == KVP_EAGAIN) m->ctx.has_space_news = true; /* its search goes on with the next step */
        is_final = err == KVP_NO_SPACE && kvp_pkey_refusal(&m->puts, k) == KVP_NO_SPACE;
        if (is_final && k->pend->wish.avoid_n > 0) {
            drop_wish(m, k->pend);
            continue;
        }
        if (k->attempt->copies == 1 && k->pend->wish.avoid_n == 0 && k->pend->wish.only == 0)
            note_failure(failed, k->attempt->tenant, len, is_long_key, is_final);
        if (err != KVP_NO_SPACE) continue;
        if (pend_cut(m, k->pend)) return false;
        if (is_final) refuse_one(m, k);
    }
    return true;
}

void
kvp_evict_retry_waiting(kvp_master_t *m)
{
    failed_t failed = {.tenant = NULL};

    while (!retry_pass(m, &failed))
        continue;
}

bool
kvp_evict_leave_segment(kvp_master_t *m, kvp_segment_t *g)
{
    bool is_left = kvp_put_leave_segment(&m->puts, g);

    kvp_share_leave_segment(m, g);
    return is_left;
}
