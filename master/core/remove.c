/* SPDX-License-Identifier: Apache-2.0
 * Removing: by key, by pattern, all. An answer waits until every extent concerned is dead, so that no reader gets the
 * object any more, or for KVP_OWED_MS where a node does not answer: then the rest is owed. Walks over all objects go in
 * slices.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "master/core/internal.h"

#include <pcre2.h>
#include <stdlib.h>

#define MATCH_STEPS 20000u /* that one key may take; a pattern that needs more is too costly */
#define STEPS_PER_RECORD 32u /* so many count for a record of a slice */
#define DEPTH_LIMIT 10000u
#define HEAP_LIMIT_KIB 4096u
#define JOBS_MAX 16u /* walks at a time in one session */

/* ---- waiting for dead */
static kvp_waiter_t *
waiter_open(kvp_session_t *s, const kvp_frame_t *f)
{
    kvp_waiter_t *w = kvp_core_alloc(1, sizeof *w);

    w->session = s;
    w->ask = f->hdr;
    w->left = 1; /* the request itself, until it has dropped everything */
    kvp_list_add_tail(&s->waiters, &w->link);
    kvp_list_init(&w->due);
    return w;
}

static void
answer(kvp_master_t *m, kvp_waiter_t *w)
{
    kvp_session_t *s = w->session;
    kvp_buf_t *out;
    size_t at;

    if (w->ask.opcode == KVP_OP_REMOVE) {
        Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT;

        reply.n = w->n;
        out = kvp_reply_begin(m, s, &w->ask, &reply.base, &at);
        kvp_buf_append(out, w->results, w->n * sizeof *w->results);
    } else {
        Kvp__Pb__RemoveManyReply reply = KVP__PB__REMOVE_MANY_REPLY__INIT;

        reply.err = w->err;
        reply.detail = (char *)(w->err == KVP_OK ? "" : "the pattern is too costly");
        reply.removed = w->removed;
        reply.held = w->held;
        out = kvp_reply_begin(m, s, &w->ask, &reply.base, &at);
    }
    kvp_frame_end(out, at);
}

static void
waiter_free(kvp_waiter_t *w)
{
    kvp_list_del(&w->link);
    kvp_list_del(&w->due);
    free(w->results);
    free(w);
}

void
kvp_waiter_dead(kvp_master_t *m, kvp_waiter_t *w)
{
    if (--w->left > 0) return;
    if (w->session != NULL) answer(m, w);
    waiter_free(w);
}

/* The request has dropped everything; from now on it waits for nodes only. */
static void
waiter_arm(kvp_master_t *m, kvp_waiter_t *w)
{
    w->due_ns = m->now_ns + KVP_MS(KVP_OWED_MS);
    kvp_list_add_tail(&m->waiters, &w->due);
    kvp_waiter_dead(m, w);
}

/* Answered or given up, the record stays until the last extent has let go of it. */
static void
waiter_detach(kvp_waiter_t *w)
{
    kvp_list_del(&w->link);
    kvp_list_del(&w->due);
    free(w->results);
    w->results = NULL;
    w->session = NULL;
}

static void job_free(kvp_job_t *job);

void
kvp_waiter_end_all(kvp_master_t *m, kvp_session_t *s)
{
    while (!kvp_list_is_empty(&s->jobs)) {
        kvp_job_t *job = kvp_list_first(&s->jobs, kvp_job_t, of_session);
        kvp_waiter_t *w = job->waiter;

        job_free(job);
        waiter_detach(w);
        kvp_waiter_dead(m, w);
    }
    while (!kvp_list_is_empty(&s->waiters))
        waiter_detach(kvp_list_first(&s->waiters, kvp_waiter_t, link));
}

/* ---- one object */
static kvp_err_t
remove_one(kvp_master_t *m, uint32_t oid, bool is_forced, kvp_waiter_t *w)
{
    kvp_obj_t *o;

    if (oid == KVP_OID_NONE) return KVP_NOT_FOUND;
    o = kvp_obj(m->index, oid);
    if (o->state != KVP_OBJ_COMMITTED) return KVP_NOT_FOUND;
    if (o->tickets > 0 && !is_forced) return KVP_HELD;
    (void)kvp_obj_drop(m, oid, 0, w);
    kvp_master_space_news(m); /* a window may go over what could not be evicted before */
    m->st.removes++;
    return KVP_OK;
}

void
kvp_on_remove(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = NULL;
    Kvp__Pb__Remove *msg;
    kvp_waiter_t *w;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__remove__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n > 0 && msg->n <= KVP_BATCH_MAX) digests = kvp_rd_array(&rd, msg->n, sizeof *digests);
    if (digests == NULL) {
        kvp_session_close(m, s, "malformed Remove");
        kvp_pb_free(&pb, msg);
        return;
    }
    w = waiter_open(s, f);
    w->n = msg->n;
    w->results = kvp_core_alloc(msg->n, sizeof *w->results);
    for (uint32_t i = 0; i < msg->n; i++)
        w->results[i] = remove_one(m, kvp_objindex_find(m->index, digests[i]), msg->force, w);
    waiter_arm(m, w);
    kvp_pb_free(&pb, msg);
}

/* ---- walks */
static pcre2_code *
compile(const char *pattern)
{
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    pcre2_code *code;
    PCRE2_SIZE at;
    int err;

    if (ctx == NULL) kvp_panic("out of memory: a pattern");
    pcre2_set_max_pattern_length(ctx, KVP_PATTERN_MAX);
    pcre2_set_parens_nest_limit(ctx, 50);
    /* \C is of no use on bytes. */
    code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                         PCRE2_NEVER_BACKSLASH_C | PCRE2_NEVER_UTF | PCRE2_AUTO_CALLOUT, &err, &at, ctx);
    pcre2_compile_context_free(ctx);
    return code;
}

/* PCRE2's own limit counts anew at each start in the key, so it bounds nothing that is long: we count. Called before
 * every item of the pattern. */
static int
on_step(pcre2_callout_block *block, void *arg)
{
    uint32_t *left = arg;

    (void)block;
    if (*left == 0) return PCRE2_ERROR_CALLOUT;
    --*left;
    return 0;
}

/* Whether the pattern matches the key: 1 or 0, or -1 where that takes too many steps to say. *left counts them down, in
 * records of a slice. */
static int
match(kvp_master_t *m, const pcre2_code *code, const kvp_obj_t *o, uint32_t *left)
{
    uint8_t key[KVP_KEY_MAX];
    uint16_t key_len;
    int rc;

    if (code == NULL) return 1;
    key_len = kvp_obj_key_copy(m->index, o, key);
    m->match_left = MATCH_STEPS;
    rc = pcre2_match(code, key, key_len, 0, 0, m->match_data, m->match_ctx);
    *left -= (uint32_t)kvp_min_u64(*left, (MATCH_STEPS - m->match_left) / STEPS_PER_RECORD);
    if (rc >= 0) return 1;
    return rc == PCRE2_ERROR_NOMATCH ? 0 : -1;
}

static void
job_free(kvp_job_t *job)
{
    kvp_list_del(&job->link);
    kvp_list_del(&job->of_session);
    pcre2_code_free(job->pattern);
    free(job);
}

/* False where the pattern turned out to be too costly. */
static bool
job_slice(kvp_master_t *m, kvp_job_t *job)
{
    kvp_waiter_t *w = job->waiter;
    uint32_t left = KVP_SLICE, oid;

    while ((oid = kvp_objindex_walk(m->index, &job->cursor, job->end, &left)) != KVP_OID_NONE) {
        kvp_obj_t *o = kvp_obj(m->index, oid);
        int is_match = o->state == KVP_OBJ_COMMITTED ? match(m, job->pattern, o, &left) : 0;

        if (is_match < 0) return false;
        if (is_match == 0) continue;
        if (remove_one(m, oid, job->is_forced, w) == KVP_OK)
            w->removed++;
        else
            w->held++;
    }
    return true;
}

static void
job_step(kvp_master_t *m, kvp_job_t *job)
{
    kvp_waiter_t *w = job->waiter;

    if (!job_slice(m, job))
        w->err = KVP_BAD_PATTERN;
    else if (job->cursor < kvp_min_u64(job->end, kvp_obj_limit(m->index)))
        return;
    job_free(job);
    waiter_arm(m, w);
}

void
kvp_remove_tick(kvp_master_t *m)
{
    if (!kvp_list_is_empty(&m->jobs)) {
        kvp_job_t *job = kvp_list_first(&m->jobs, kvp_job_t, link);

        kvp_list_del(&job->link);
        kvp_list_add_tail(&m->jobs, &job->link); /* walks take turns */
        job_step(m, job);
    }
    while (!kvp_list_is_empty(&m->waiters)) {
        kvp_waiter_t *w = kvp_list_first(&m->waiters, kvp_waiter_t, due);

        if (m->now_ns < w->due_ns) return;
        answer(m, w);
        waiter_detach(w);
    }
}

static bool
has_too_many_jobs(const kvp_session_t *s)
{
    uint32_t n = 0;

    kvp_list_foreach (pos, &s->jobs)
        n++;
    return n >= JOBS_MAX;
}

void
kvp_on_remove_many(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__RemoveMany *msg;
    pcre2_code *code = NULL;
    kvp_job_t *job;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__remove_many__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(m, s, "malformed RemoveMany");
        return;
    }
    if (has_too_many_jobs(s)) {
        kvp_reply_plain(m, s, &f->hdr, KVP_LIMIT, "too many removals under way");
    } else if (msg->pattern[0] != '\0' && (code = compile(msg->pattern)) == NULL) {
        kvp_reply_plain(m, s, &f->hdr, KVP_BAD_PATTERN, "bad pattern");
    } else {
        job = kvp_core_alloc(1, sizeof *job);
        job->session = s;
        job->pattern = code;
        job->is_forced = msg->force;
        job->end = kvp_obj_limit(m->index);
        job->waiter = waiter_open(s, f);
        kvp_list_add_tail(&m->jobs, &job->link);
        kvp_list_add_tail(&s->jobs, &job->of_session);
    }
    kvp_pb_free(&pb, msg);
}

void
kvp_remove_init(kvp_master_t *m)
{
    m->match_ctx = pcre2_match_context_create(NULL);
    m->match_data = pcre2_match_data_create(1, NULL);
    if (m->match_ctx == NULL || m->match_data == NULL) kvp_panic("out of memory: pattern matching");
    pcre2_set_callout(m->match_ctx, on_step, &m->match_left);
    pcre2_set_depth_limit(m->match_ctx, DEPTH_LIMIT);
    pcre2_set_heap_limit(m->match_ctx, HEAP_LIMIT_KIB);
}

void
kvp_remove_fini(kvp_master_t *m)
{
    pcre2_match_data_free(m->match_data);
    pcre2_match_context_free(m->match_ctx);
}
