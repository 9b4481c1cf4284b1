/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The answer to a GET stays in the receive buffer while its objects are read, and its locations are used in place.
 *   So the next question is sent only after every read of the answer has ended.
 * - The hold of one answer covers all its objects and is released after all of them were read. The hold only makes
 *   reads succeed. Wrong bytes are rejected by the descriptor alone, so a session that is lost in between changes
 *   nothing.
 * - The master is asked for an item at most twice; repeats after a lost session, RETRY_AFTER or NO_SPACE do not count.
 * - RETRY_AFTER means that the object is being loaded from SSD into memory. The question is repeated after all other
 *   objects of the answer were read, and the master then answers when the object is in memory. NO_SPACE means that
 *   the load waits for space in memory. The deadline bounds these repeats.
 * - Cached locations are tried first, and once. A read from a cached location counts only if the lease is valid when
 *   the last byte has arrived, and, if a revocation was applied meanwhile, if the location is still cached. The
 *   master answers another client's removal once this client has applied the revocation, and from then on no call may
 *   return the old bytes.
 * - With a transport that can skip the descriptor, a correct checksum alone verifies a small object. The checksum
 *   proves whose bytes were read, but not that the key still has this value: bytes of an object that was evicted and
 *   put again stay in memory until their space is reused. A location from this call's own answer was the key's during
 *   the call. A cached location is read this way only within one lease time after the master, or the descriptor,
 *   confirmed it; so no read returns a replaced version for longer than one lease time. */
#include "client/core/getop.h"

#include "common/mutate.h"

#include "client/core/places.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

#define NS_PER_MS 1000000ull
#define WAIT_MAX_MS 500u /* longest delay of the master's answer to a GET, and longest pause before a repeated GET */

enum { PHASE_ASK, PHASE_READ, PHASE_MOVING, PHASE_DONE };

static void
finish_item(kvp_getop_t *op, kvp_getop_item_t *it, kvp_err_t err)
{
    it->phase = PHASE_DONE;
    it->err = err;
    op->left_n--;
}

void
kvp_getop_fail(kvp_getop_t *op, kvp_err_t err)
{
    for (uint32_t i = 0; i < op->n && op->left_n > 0; i++) {
        kvp_getop_item_t *it = &op->items[i];

        if (it->phase == PHASE_DONE) continue;
        finish_item(op, it, err == KVP_DEADLINE && it->phase == PHASE_ASK && it->lacks_room ? KVP_NO_SPACE : err);
    }
    op->reads_n = 0;
}

void
kvp_getop_begin(kvp_getop_t *op)
{
    for (uint32_t i = 0; i < op->n; i++) {
        op->items[i].phase = PHASE_ASK;
        op->items[i].is_last_ask = false;
        op->items[i].is_known = false;
        op->items[i].lacks_room = false;
        op->items[i].nloc = 0;
        op->items[i].len = 0;
        op->items[i].unreadable = 0;
    }
    op->has_session = false;
    op->has_looked = op->places == NULL;
    op->has_digests = false;
    op->left_n = op->n;
    op->reads_n = 0;
    op->moves_n = 0;
    op->ticket = 0;
    op->unreadable_n = 0;
    op->retry_ms = 0;
    op->stale_n = op->corrupt_n = op->retry_n = 0;
    op->known_n = op->known_lost_n = op->kept_n = 0;
}

static bool
has_digests_of(const kvp_getop_t *op, const kvp_op_session_t *session)
{
    return op->has_digests && op->session.digest_seed == session->digest_seed && op->session.tenant == session->tenant;
}

static void
enter_session(kvp_getop_t *op, const kvp_op_session_t *session)
{
    bool has = has_digests_of(op, session);

    op->session = *session;
    for (uint32_t i = 0; i < op->n && !has; i++) {
        kvp_getop_item_t *it = &op->items[i];

        it->digest = kvp_op_digest(session, it->key, it->key_len);
        it->key_hash2 = kvp_op_hash2(session, it->key, it->key_len);
    }
    op->has_digests = true;
}

void
kvp_getop_on_session(kvp_getop_t *op, const kvp_op_session_t *session)
{
    enter_session(op, session);
    op->has_session = true;
}

/* ---- cached locations */
static void
be_read(kvp_getop_t *op, kvp_getop_item_t *it, const kvp_wire_loc_t *locs, uint32_t nloc)
{
    it->locs = locs;
    it->nloc = nloc;
    it->tried = 0;
    it->needs_desc = false;
    it->phase = PHASE_READ;
    op->reads_n++;
}

void
kvp_getop_on_known(kvp_getop_t *op, const kvp_op_session_t *session)
{
    const kvp_known_t *known;

    op->has_looked = true;
    if (session == NULL || session->known == NULL) return;
    enter_session(op, session);
    known = session->known;
    op->known_seq = known->seq(known);
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_getop_item_t *it = &op->items[i];
        kvp_cached_place_t *place = &op->places[i];

        if (it->phase != PHASE_ASK || !known->find(known, it->digest, place)) continue;
        it->len = place->len;
        it->version = place->version;
        it->sum = place->sum;
        it->told_ns = place->told_ns;
        it->is_known = true;
        /* if the buffer is too small, ask the master: the current version may be shorter than the cached one */
        if (place->len <= it->cap) be_read(op, it, place->locs, place->nloc);
    }
}

/* Returns true if a cached location was confirmed less than a lease time before boot_ns, so that a correct checksum
 * is enough to verify it. */
static bool
was_told_lately(const kvp_getop_t *op, const kvp_getop_item_t *it, uint64_t boot_ns)
{
    const kvp_known_t *known = op->session.known;

    return boot_ns < it->told_ns + known->lease_ns(known) || !KVP_RULE(CHECKSUM_LEASE);
}

static bool
is_still_known(const kvp_getop_t *op, const kvp_getop_item_t *it, uint64_t boot_ns)
{
    const kvp_known_t *known = op->session.known;

    if (!KVP_RULE(LEASE_LOOK_AGAIN)) return true;
    if (boot_ns >= known->until(known)) return false;
    return known->seq(known) == op->known_seq || known->has(known, it->digest, it->version);
}

static void
keep_place(kvp_getop_t *op, const kvp_getop_item_t *it, uint64_t revoke_seq)
{
    const kvp_known_t *known = op->session.known;
    kvp_cached_place_t place = {
        .version = it->version, .len = it->len, .sum = it->sum, .told_ns = op->session.boot_ns, .nloc = it->nloc};

    if (place.nloc > KVP_PLACE_LOCS) place.nloc = KVP_PLACE_LOCS;
    memcpy(place.locs, it->locs, place.nloc * sizeof place.locs[0]);
    op->kept_n += known->keep(known, it->digest, &place, revoke_seq);
}

/* ---- the question to the master */
static void
encode_get(kvp_getop_t *op, uint64_t now_ns)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t *tail;
    size_t at;

    op->asked_n = op->left_n; /* all items without a result are in PHASE_ASK at this point */
    head.n = op->asked_n;
    head.wants_lease = op->session.known != NULL;
    head.has_epoch = op->epoch != NULL;
    head.keep_here = op->keeps_here != 0;
    head.epoch = op->epoch == NULL ? 0 : *op->epoch;
    head.wait_ms = (uint32_t)kvp_min_u64((op->deadline_ns - now_ns) / NS_PER_MS / 2, WAIT_MAX_MS);
    kvp_buf_reset(op->out);
    kvp_pb_frame_begin(op->out, KVP_OP_GET, 0, 0, &head.base, &at);
    tail = (kvp_digest_t *)kvp_buf_extend(op->out, op->asked_n * sizeof *tail);
    if (tail == NULL) return;
    for (uint32_t i = 0; i < op->n; i++)
        if (op->items[i].phase == PHASE_ASK) *tail++ = op->items[i].digest;
    kvp_frame_end(op->out, at);
}

/* Builds a RELEASE of the hold. The message also reports locations that the master named twice although the object
 * was missing; the master checks the locations. */
static void
encode_release(kvp_getop_t *op)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;
    uint32_t left = (uint32_t)kvp_min_u64(op->unreadable_n, KVP_UNREADABLE_MAX);
    size_t at;

    head.n = op->ticket != 0;
    head.unreadable = left;
    kvp_buf_reset(op->out);
    kvp_pb_frame_begin(op->out, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, 0, &head.base, &at);
    if (op->ticket != 0) kvp_buf_append(op->out, &op->ticket, sizeof op->ticket);
    for (uint32_t i = 0; left > 0; i++) {
        kvp_getop_item_t *it = &op->items[i];
        kvp_wire_unreadable_t rec = {it->digest, it->unreadable};

        if (rec.generation == 0) continue;
        it->unreadable = 0;
        kvp_buf_append(op->out, &rec, sizeof rec);
        left--;
    }
    kvp_frame_end(op->out, at);
    op->ticket = 0;
    op->unreadable_n = 0;
}

/* ---- the answer of the master */
static void
take_place(kvp_getop_t *op, kvp_getop_item_t *it, const kvp_wire_obj_t *obj, const kvp_wire_loc_t *locs)
{
    it->len = obj->err == KVP_OK ? obj->len : 0;
    it->lacks_room = obj->err == KVP_NO_SPACE;
    /* ask the master again until the deadline: the load from SSD may end, or memory may become free */
    if (obj->err == KVP_RETRY_AFTER || obj->err == KVP_NO_SPACE) return;
    if (obj->err != KVP_OK) {
        finish_item(op, it, obj->err);
    } else if (obj->len > it->cap) {
        finish_item(op, it, KVP_BUFFER_SMALL);
    } else if (obj->len == 0) {
        finish_item(op, it, KVP_PROTO);
    } else if (obj->nloc == 0) {
        finish_item(op, it, KVP_NODE_LOST);
    } else {
        it->version = obj->version;
        it->sum = obj->sum;
        it->is_known = false;
        be_read(op, it, locs, obj->nloc);
    }
}

kvp_err_t
kvp_getop_on_reply(kvp_getop_t *op, const kvp_frame_t *frame)
{
    kvp_places_t places;
    const kvp_wire_obj_t *obj;
    const kvp_wire_loc_t *loc;
    bool is_kept;
    kvp_err_t err = kvp_places_read(frame, op->asked_n, &places);

    if (err != KVP_OK) {
        kvp_getop_on_call_failed(op, err);
        return err == KVP_PROTO || kvp_op_is_session_loss(err) ? err : KVP_OK;
    }
    obj = places.objs;
    loc = places.locs;
    is_kept = places.is_leased && op->session.known != NULL;
    for (uint32_t i = 0; i < op->n; i++) {
        if (op->items[i].phase != PHASE_ASK) continue;
        take_place(op, &op->items[i], obj, loc);
        if (is_kept && op->items[i].phase == PHASE_READ) keep_place(op, &op->items[i], places.revoke_seq);
        loc += obj->nloc;
        obj++;
    }
    op->ticket = places.ticket;
    op->retry_ms = (uint32_t)kvp_min_u64(places.retry_ms, WAIT_MAX_MS);
    return KVP_OK;
}

void
kvp_getop_on_call_failed(kvp_getop_t *op, kvp_err_t err)
{
    if (!kvp_op_is_session_loss(err)) {
        kvp_getop_fail(op, err);
        return;
    }
    op->has_session = false;
    op->retry_n++;
}

/* ---- reading the objects */

/* Returns the nearest untried location. The caller knows that one exists. */
static const kvp_wire_loc_t *
next_loc(const kvp_getop_t *op, kvp_getop_item_t *it)
{
    uint32_t best = KVP_REPLICAS_MAX, best_rank = 0;

    for (uint32_t i = 0; i < it->nloc; i++) {
        uint32_t rank = 0;

        if ((it->tried & (1u << i)) != 0) continue;
        if (it->nloc > 1 && op->rank != NULL) rank = op->rank(op->rank_arg, it->locs[i].segment_id);
        if (best < it->nloc && rank >= best_rank) continue;
        best = i;
        best_rank = rank;
    }
    it->tried = (uint8_t)(it->tried | 1u << best);
    return &it->locs[best];
}

static uint32_t
untried_n(const kvp_getop_item_t *it)
{
    return it->nloc - (uint32_t)__builtin_popcount(it->tried);
}

static bool
has_spare(const kvp_getop_item_t *it)
{
    return it->phase == PHASE_READ && untried_n(it) > 1;
}

static bool
has_any_spare(const kvp_getop_t *op)
{
    for (uint32_t i = 0; i < op->n; i++)
        if (has_spare(&op->items[i])) return true;
    return false;
}

static bool
has_small_sum(const kvp_getop_item_t *it)
{
    return it->sum != 0 && it->len <= KVP_SUM_ALONE_MAX;
}

static bool
may_skip_desc(const kvp_getop_t *op, const kvp_getop_item_t *it)
{
    if (!has_small_sum(it) || it->is_last_ask) return false;
    return !it->is_known || (!it->needs_desc && was_told_lately(op, it, op->session.boot_ns));
}

static uint32_t
read_flags(const kvp_getop_t *op, const kvp_getop_item_t *it)
{
    if (it->sum == 0) return KVP_READ_NO_SUM;
    return (op->wants_sums ? KVP_READ_SUM : 0) | (may_skip_desc(op, it) ? KVP_READ_SUM_ALONE : 0);
}

/* Builds the next moves. Objects with a spare copy are moved first, apart from the others: their reads get only a
 * share of the remaining time. The last copy of an object gets all the remaining time. */
static void
fill_moves(kvp_getop_t *op)
{
    bool is_first_try = has_any_spare(op);

    op->moves_n = 0;
    op->others = 0;
    for (uint32_t i = 0; i < op->n && op->moves_n < op->moves_cap && op->reads_n > 0; i++) {
        kvp_getop_item_t *it = &op->items[i];
        kvp_move_t *mv;

        if (it->phase != PHASE_READ || has_spare(it) != is_first_try) continue;
        op->others = (uint32_t)kvp_max_u64(op->others, untried_n(it) - 1);
        mv = &op->moves[op->moves_n++];
        mv->kind = KVP_MOVE_READ;
        mv->item = i;
        mv->loc = *next_loc(op, it);
        mv->len = it->len;
        mv->flags = read_flags(op, it);
        it->phase = PHASE_MOVING;
        op->reads_n--;
    }
}

/* Verifies a read by its checksum alone. A wrong checksum is STALE: most likely the space has another object by now.
 * This can happen with a cached location, and also right after the master's answer, since an upsert waits for no hold.
 * Only the descriptor distinguishes corrupt bytes from reused space; it is read after the master is asked again. */
static kvp_err_t
judge_by_sum(const kvp_getop_item_t *it, const kvp_move_t *mv)
{
    return (mv->has_sum && mv->sum == it->sum) || !KVP_RULE(READ_BY_CHECKSUM) ? KVP_OK : KVP_STALE;
}

static kvp_err_t
judge_by_desc(const kvp_getop_item_t *it, const kvp_move_t *mv)
{
    kvp_expect_t expect = {
        .generation = mv->loc.generation,
        .version = it->version,
        .digest = it->digest,
        .key_hash2 = it->key_hash2,
        .offset = mv->loc.offset,
        .len = it->len,
    };
    kvp_err_t err = kvp_desc_accept(&mv->desc, &expect);

    if (err == KVP_OK && mv->has_sum && it->sum != 0 && mv->sum != it->sum && KVP_RULE(READ_CHECKSUM))
        err = KVP_CORRUPT;
    return err;
}

/* Verifies the bytes that a finished move left in the destination. */
static kvp_err_t
judge_move(const kvp_getop_item_t *it, const kvp_move_t *mv)
{
    if (mv->err != KVP_OK) return mv->err;
    return mv->has_desc ? judge_by_desc(it, mv) : judge_by_sum(it, mv);
}

/* Returns true if the error concerns only this copy, and another copy may succeed. Any other result ends the item:
 * the bytes arrived, or time or memory ran out. */
static bool
is_copys_fault(kvp_err_t err)
{
    return err != KVP_OK && err != KVP_DEADLINE && err != KVP_CLOSED && err != KVP_NOMEM;
}

/* Returns true for errors after which the master may know a better location. */
static bool
is_worth_asking(kvp_err_t err)
{
    return err == KVP_STALE || err == KVP_CORRUPT || err == KVP_NODE_LOST;
}

static void
read_another(kvp_getop_t *op, kvp_getop_item_t *it)
{
    it->phase = PHASE_READ;
    op->reads_n++;
}

/* Reads a cached location again with its descriptor, because the time in which the checksum alone is enough ran out
 * during the read. The location is still cached, and if the master does not answer it is the only source. */
static void
read_with_desc(kvp_getop_t *op, kvp_getop_item_t *it)
{
    it->needs_desc = true;
    it->tried = 0;
    read_another(op, it);
}

/* Handles the result of a read from a cached location. If the read failed at all copies, or the location is no longer
 * cached, the master is asked for the item. */
static void
take_known_move(kvp_getop_t *op, kvp_getop_item_t *it, const kvp_move_t *mv, kvp_err_t err, uint64_t boot_ns)
{
    const kvp_known_t *known = op->session.known;

    if (err == KVP_OK && is_still_known(op, it, boot_ns)) {
        if (!mv->has_desc && !was_told_lately(op, it, boot_ns)) {
            read_with_desc(op, it);
            return;
        }
        if (mv->has_desc && mv->is_sum_path && has_small_sum(it))
            known->seen(known, it->digest, it->version, op->session.boot_ns);
        op->known_n++;
        finish_item(op, it, KVP_OK);
        return;
    }
    if (is_copys_fault(err) && untried_n(it) > 0) {
        read_another(op, it);
        return;
    }
    if (err != KVP_OK) known->forget(known, it->digest, it->version);
    op->known_lost_n++;
    it->phase = PHASE_ASK;
}

static void
take_move(kvp_getop_t *op, kvp_getop_item_t *it, const kvp_move_t *mv, uint64_t boot_ns)
{
    kvp_err_t err = judge_move(it, mv);

    if (err == KVP_STALE) op->stale_n++;
    if (err == KVP_CORRUPT) op->corrupt_n++;
    if (err == KVP_STALE && it->is_last_ask) {
        op->unreadable_n += it->unreadable == 0;
        it->unreadable = mv->loc.generation;
    }
    if (it->is_known) {
        take_known_move(op, it, mv, err, boot_ns);
    } else if (is_copys_fault(err) && untried_n(it) > 0) {
        read_another(op, it);
    } else if (is_worth_asking(err) && !it->is_last_ask) {
        it->is_last_ask = true;
        it->phase = PHASE_ASK;
        op->retry_n++;
    } else {
        finish_item(op, it, err);
    }
}

void
kvp_getop_on_moved(kvp_getop_t *op, uint64_t boot_ns)
{
    for (uint32_t i = 0; i < op->moves_n; i++)
        take_move(op, &op->items[op->moves[i].item], &op->moves[i], boot_ns);
    op->moves_n = 0;
}

kvp_step_t
kvp_getop_next(kvp_getop_t *op, uint64_t now_ns)
{
    if (op->reads_n > 0) {
        fill_moves(op);
        return (kvp_step_t){.kind = KVP_STEP_MOVE};
    }
    if (op->ticket != 0 || op->unreadable_n > 0) {
        encode_release(op);
        return (kvp_step_t){.kind = KVP_STEP_SEND};
    }
    if (op->left_n > 0 && now_ns >= op->deadline_ns) kvp_getop_fail(op, KVP_DEADLINE);
    if (op->left_n == 0) return (kvp_step_t){.kind = KVP_STEP_DONE};
    if (!op->has_looked) return (kvp_step_t){.kind = KVP_STEP_KNOWN};
    if (!op->has_session) return (kvp_step_t){.kind = KVP_STEP_SESSION};
    if (op->retry_ms > 0) {
        uint64_t until_ns = now_ns + op->retry_ms * NS_PER_MS;

        op->retry_ms = 0;
        return (kvp_step_t){.kind = KVP_STEP_SLEEP, .until_ns = kvp_min_u64(until_ns, op->deadline_ns)};
    }
    encode_get(op, now_ns);
    if (op->out->err != KVP_OK) {
        kvp_getop_fail(op, op->out->err);
        return (kvp_step_t){.kind = KVP_STEP_DONE};
    }
    return (kvp_step_t){.kind = KVP_STEP_CALL};
}
