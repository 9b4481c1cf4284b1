/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - All items of the batch go through the phases together: all items with a place are filled, then sealed, then
 *   committed, and only then the master is asked again for the remaining items. So the answer to a PUT_BEGIN may stay
 *   in the receive buffer as long as its locations are needed, and the master can evict the batch's first objects to
 *   make space for its last ones.
 * - A seal waits for the payload of every copy, and a commit for the seal of every copy. A failed copy is left out,
 *   and the commit lists the complete copies. Copies with different bytes (the caller wrote into the buffer
 *   meanwhile) are not committed.
 * - A single copy need not wait for other copies. If its checksum is known before the descriptor is sent, the state
 *   word of the descriptor (WRITING), payload, descriptor and state word (SEALED) are sent one after the other, and
 *   the put has one round trip less. For a large object, computing the checksum in advance would cost more than a
 *   round trip, so the checksum is computed during the transfer.
 * - An attempt that the master may know and that is not committed is always aborted, even if its PUT_BEGIN was not
 *   answered in time: the master gets both messages in this order on one connection. The end of a session aborts its
 *   attempts as well.
 * - Another client that puts the same block at the same moment is usually almost done, and its value is as good. So
 *   this client waits for the other client for a short time (JOIN_NS), after all other items of the batch are placed
 *   and committed.
 * - On a transport whose writes can arrive after the put has failed, an attempt uses only connections older than the
 *   attempt: the node ends these before it reuses the space. So the first put to a node opens the connection and then
 *   begins a new attempt, even if another copy is complete. */
#include "client/core/putop.h"

#include "common/mutate.h"

#include "client/core/places.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#define MS 1000000ull
#define RESTARTS_MAX 4u /* limit of restarts of one item: new attempts after a failed attempt */
#define RESTART_BACKOFF_NS (20 * MS)
#define JOIN_NS (250 * MS) /* longest wait for another client's put of the same key; several times as long as a put */
#define JOIN_STEP_MIN_NS (1 * MS)
#define JOIN_STEP_MAX_NS (16 * MS)
#define RETRY_MS_MAX 1000u

/* After the abort of its attempt, an item in PHASE_ABORT ends with its error, and an item in PHASE_RETRY asks the
 * master again. */
enum { PHASE_ASK, PHASE_FILL, PHASE_SEAL, PHASE_COMMIT, PHASE_ABORT, PHASE_RETRY, PHASE_DONE };

static void
finish_item(kvp_putop_t *op, kvp_putop_item_t *it, kvp_err_t err)
{
    it->phase = PHASE_DONE;
    it->err = err;
    op->left_n--;
}

/* Ends an item's attempt without a commit. The abort is sent next. After the abort the master is asked again if
 * is_again, else the item ends with err. */
static void
give_up(kvp_putop_item_t *it, kvp_err_t err, bool is_again)
{
    it->phase = is_again ? PHASE_RETRY : PHASE_ABORT;
    it->err = err;
}

static bool
is_aborting(const kvp_putop_item_t *it)
{
    return it->phase == PHASE_ABORT || it->phase == PHASE_RETRY;
}

static void
ask_again(kvp_putop_t *op, kvp_putop_item_t *it, kvp_err_t why, uint64_t not_before_ns)
{
    it->phase = PHASE_ASK;
    it->err = why;
    op->again_ns = kvp_max_u64(op->again_ns, not_before_ns);
    op->retry_n++;
}

/* Handles an item whose attempt was aborted or ended with its session: asks again, or ends the item. */
static void
after_attempt(kvp_putop_t *op, kvp_putop_item_t *it)
{
    if (it->phase == PHASE_RETRY)
        ask_again(op, it, it->err, 0);
    else
        finish_item(op, it, it->err);
}

void
kvp_putop_begin(kvp_putop_t *op)
{
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_putop_item_t *it = &op->items[i];

        it->phase = PHASE_ASK;
        it->err = KVP_DEADLINE; /* the item's result if the master never answers */
        it->restarts = 0;
        it->was_cut = false;
    }
    op->has_session = false;
    op->left_n = op->n;
    op->moves_n = 0;
    op->again_ns = 0;
    op->retry_n = 0;
}

void
kvp_putop_on_session(kvp_putop_t *op, const kvp_op_session_t *session)
{
    op->session = *session;
    op->has_session = true;
    for (uint32_t i = 0; i < op->n; i++)
        op->items[i].digest = kvp_op_digest(session, op->items[i].key, op->items[i].key_len);
}

void
kvp_putop_fail(kvp_putop_t *op, kvp_err_t err)
{
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_putop_item_t *it = &op->items[i];

        if (it->phase == PHASE_ASK)
            finish_item(op, it, err == KVP_DEADLINE ? it->err : err);
        else if (it->phase != PHASE_DONE)
            give_up(it, is_aborting(it) ? it->err : err, false);
    }
}

static uint32_t
count_items(const kvp_putop_t *op, uint8_t phase)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < op->n; i++)
        n += op->items[i].phase == phase;
    return n;
}

/* ---- PUT_BEGIN: asking for places */
/* Returns how long the master may hold back its answer while there is no space: 7/8 of the remaining time, the rest
 * is for writing. The master serves requests in the order of arrival, so a client that asks again after a short wait
 * goes to the end of the queue. */
static uint32_t
wait_ms(const kvp_putop_t *op, uint64_t now_ns)
{
    uint64_t left_ms = (op->deadline_ns - now_ns) / MS;

    return (uint32_t)kvp_max_u64(1, kvp_min_u64(left_ms * 7 / 8, UINT32_MAX));
}

static bool
has_groups(const kvp_putop_t *op)
{
    for (uint32_t i = 0; i < op->n; i++)
        if (op->items[i].phase == PHASE_ASK && op->items[i].group != NULL) return true;
    return false;
}

static bool
has_lineages(const kvp_putop_t *op)
{
    for (uint32_t i = 0; i < op->n; i++)
        if (op->items[i].phase == PHASE_ASK && op->items[i].lineage.is_told != 0) return true;
    return false;
}

static kvp_wire_group_t
group_of(const kvp_putop_t *op, const kvp_putop_item_t *it)
{
    if (it->group == NULL) return (kvp_wire_group_t){.members = 0};
    return (kvp_wire_group_t){
        .group = kvp_op_digest(&op->session, it->group, it->group_len),
        .members = it->group_members,
        .member = it->group_member,
    };
}

static void
encode_groups(kvp_putop_t *op)
{
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_wire_group_t group = group_of(op, &op->items[i]);

        if (op->items[i].phase == PHASE_ASK) kvp_buf_append(op->out, &group, sizeof group);
    }
}

static void
encode_begin(kvp_putop_t *op, uint64_t now_ns)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    uint64_t attempt = op->attempts(op->attempts_arg, op->asked_n);
    uint32_t avoid[KVP_AVOID_MAX];
    kvp_wire_put_t *rec;
    uint32_t key_at = 0;
    size_t at;

    head.n = op->asked_n;
    head.wait_ms = wait_ms(op, now_ns);
    head.replicas = op->replicas;
    head.only = op->only;
    head.prefer = (uint32_t *)op->prefer;
    head.n_prefer = op->prefer_n;
    head.is_upsert = op->committed == KVP_COMMITTED_REPLACED;
    head.pin = op->pin;
    head.has_epoch = op->epoch != NULL;
    head.epoch = op->epoch == NULL ? 0 : *op->epoch;
    head.has_groups = has_groups(op);
    head.has_lineages = has_lineages(op);
    head.avoid = avoid;
    head.n_avoid = op->avoid == NULL ? 0 : op->avoid(op->avoid_arg, avoid);
    kvp_pb_frame_begin(op->out, KVP_OP_PUT_BEGIN, 0, 0, &head.base, &at);
    rec = (kvp_wire_put_t *)kvp_buf_extend(op->out, op->asked_n * sizeof *rec);
    for (uint32_t i = 0; i < op->n && rec != NULL; i++) {
        kvp_putop_item_t *it = &op->items[i];

        if (it->phase != PHASE_ASK) continue;
        it->attempt = attempt++;
        it->begun_ns = now_ns;
        it->is_drained = true;
        *rec++ = (kvp_wire_put_t){it->digest, it->len, it->attempt, key_at, it->key_len};
        key_at += it->key_len;
    }
    if (head.has_groups) encode_groups(op);
    for (uint32_t i = 0; head.has_lineages && i < op->n; i++)
        if (op->items[i].phase == PHASE_ASK)
            kvp_buf_append(op->out, &op->items[i].lineage, sizeof op->items[i].lineage);
    for (uint32_t i = 0; i < op->n; i++)
        if (op->items[i].phase == PHASE_ASK) kvp_buf_append(op->out, op->items[i].key, op->items[i].key_len);
    kvp_frame_end(op->out, at);
}

/* Asks again later whether the other client that writes the key has finished. The pauses grow, because the master may
 * hold back an answer for other keys of the same message. After JOIN_NS the item ends with IN_PROGRESS. An item whose
 * session was lost does not end then: the other attempt may be this client's own attempt from the lost session, and
 * that attempt ends by itself. */
static void
join_other(kvp_putop_t *op, kvp_putop_item_t *it, uint64_t now_ns)
{
    uint64_t waited_ns;

    if (op->join_until_ns == 0) op->join_until_ns = it->begun_ns + JOIN_NS;
    waited_ns = it->begun_ns + JOIN_NS - op->join_until_ns;
    if (waited_ns < JOIN_NS || it->was_cut)
        ask_again(op, it, KVP_IN_PROGRESS,
                  now_ns + kvp_min_u64(kvp_max_u64(waited_ns / 2, JOIN_STEP_MIN_NS), JOIN_STEP_MAX_NS));
    else
        finish_item(op, it, KVP_IN_PROGRESS);
}

/* Returns the result of an item whose key has a committed value. A master without upsert support keeps the old value:
 * NOTSUP. After a lost session the committed value may be this call's own, so the item is OK and not ALREADY. */
static kvp_err_t
committed_err(const kvp_putop_t *op, const kvp_putop_item_t *it)
{
    if (op->committed == KVP_COMMITTED_REPLACED) return KVP_NOTSUP;
    return op->committed == KVP_COMMITTED_ALREADY && !it->was_cut ? KVP_ALREADY : KVP_OK;
}

static void
take_refusal(kvp_putop_t *op, kvp_putop_item_t *it, kvp_err_t err, bool has_grants, uint64_t retry_ns, uint64_t now_ns)
{
    if (err == KVP_ALREADY)
        finish_item(op, it, committed_err(op, it));
    else if (err == KVP_EAGAIN && has_grants) /* the item stays in PHASE_ASK until the granted items are committed */
        it->err = KVP_RETRY_AFTER;
    else if (err == KVP_RETRY_AFTER || err == KVP_EAGAIN)
        ask_again(op, it, KVP_RETRY_AFTER, retry_ns);
    else if (err == KVP_NO_SPACE && has_grants)
        ask_again(op, it, err, 0);
    else if (err == KVP_IN_PROGRESS)
        join_other(op, it, now_ns);
    else
        finish_item(op, it, err);
}

static void
take_place(kvp_putop_item_t *it, const kvp_wire_obj_t *obj, const kvp_wire_loc_t *locs, uint32_t ns_epoch)
{
    if (obj->nloc == 0) {
        give_up(it, KVP_PROTO, false);
        return;
    }
    it->phase = PHASE_FILL;
    it->err = KVP_OK;
    it->version = obj->version;
    it->ns_epoch = ns_epoch;
    it->locs = locs;
    it->nloc = obj->nloc;
    it->parts_begun = it->parts_done = 0;
    it->sound = (uint8_t)((1u << obj->nloc) - 1);
    it->sum = 0;
    it->part_err = KVP_OK;
    it->is_early = false;
}

static kvp_err_t
take_places(kvp_putop_t *op, const kvp_frame_t *frame, uint64_t now_ns)
{
    kvp_places_t p;
    kvp_err_t err = kvp_places_read(frame, op->asked_n, &p);
    const kvp_wire_loc_t *loc;
    const kvp_wire_obj_t *obj;
    uint64_t retry_ns;
    bool has_grants = false;

    if (err != KVP_OK) return err;
    retry_ns = now_ns + kvp_max_u64(1, kvp_min_u64(p.retry_ms, RETRY_MS_MAX)) * MS;
    for (uint32_t i = 0; i < p.n; i++)
        has_grants |= p.objs[i].err == KVP_OK;
    obj = p.objs;
    loc = p.locs;
    for (uint32_t i = 0, seen = 0; i < op->n && seen < p.n; i++) {
        kvp_putop_item_t *it = &op->items[i];

        if (it->phase != PHASE_ASK) continue;
        if (obj->err == KVP_OK)
            take_place(it, obj, loc, p.ns_epoch);
        else
            take_refusal(op, it, obj->err, has_grants, retry_ns, now_ns);
        loc += obj->nloc;
        obj++;
        seen++;
    }
    return KVP_OK;
}

/* ---- moving the bytes */
static void
make_desc(const kvp_putop_t *op, const kvp_putop_item_t *it, const kvp_wire_loc_t *loc, kvp_desc_t *desc)
{
    kvp_wire_group_t group = group_of(op, it);

    *desc = (kvp_desc_t){
        .ns_epoch = it->ns_epoch,
        .word = kvp_word_make(loc->generation, KVP_DESC_SEALED),
        .version = it->version,
        .digest = it->digest,
        .key_hash2 = kvp_op_hash2(&op->session, it->key, it->key_len),
        .offset = loc->offset,
        .len = it->len,
        .sum = it->sum,
        .tenant = op->session.tenant,
        .group = group.group,
        .group_n = group.members,
        .group_member = group.member,
        .key_off = loc->key_off,
        .key_len = (uint16_t)it->key_len,
        .flags = op->pin & KVP_DESC_PIN,
        .attempt = it->attempt,
        .term = op->session.term,
    };
    kvp_desc_seal(desc);
}

static bool
is_at_once(const kvp_putop_item_t *it)
{
    return it->is_host && it->nloc == 1 && it->len <= KVP_PUT_AT_ONCE_MAX;
}

static void
make_move(const kvp_putop_t *op, uint32_t i, uint32_t copy, kvp_move_t *mv)
{
    const kvp_putop_item_t *it = &op->items[i];
    const kvp_wire_loc_t *loc = &it->locs[copy];

    mv->item = i;
    mv->copy = copy;
    mv->granted_ns = it->begun_ns;
    mv->loc = *loc;
    mv->len = it->len;
    mv->kind = it->phase == PHASE_SEAL ? KVP_MOVE_SEAL : is_at_once(it) ? KVP_MOVE_PUT : KVP_MOVE_FILL;
    if (mv->kind == KVP_MOVE_FILL) return;
    mv->key = it->key;
    mv->key_len = it->key_len;
    make_desc(op, it, loc, &mv->desc);
}

static bool
is_sound(const kvp_putop_item_t *it, uint32_t copy)
{
    return (it->sound & (1u << copy)) != 0;
}

static uint32_t
sound_n(const kvp_putop_item_t *it)
{
    return (uint32_t)__builtin_popcount(it->sound);
}

/* Fills op->moves with moves of one phase that have not begun yet. moves_n is 0 if there is none. */
static void
fill_moves(kvp_putop_t *op, uint8_t phase)
{
    op->moves_n = 0;
    op->has_copies = false;
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_putop_item_t *it = &op->items[i];

        if (it->phase != phase) continue;
        op->has_copies |= sound_n(it) > 1;
        for (; it->parts_begun < it->nloc; it->parts_begun++) {
            if (op->moves_n == op->moves_cap) return;
            if (is_sound(it, it->parts_begun)) make_move(op, i, it->parts_begun, &op->moves[op->moves_n++]);
        }
    }
}

/* Records the checksum of a written copy. CORRUPT if two copies have different checksums. A copy may have no
 * checksum: device memory that was sent directly. */
static void
take_sum(kvp_putop_item_t *it, const kvp_move_t *mv)
{
    if (!mv->has_sum) return;
    if (it->sum != 0 && mv->sum != it->sum) it->err = KVP_CORRUPT;
    it->sum = mv->sum;
}

static void
take_part(kvp_putop_item_t *it, const kvp_move_t *mv)
{
    it->is_drained = it->is_drained && mv->is_drained;
    it->parts_done++;
    if (mv->err == KVP_OK) {
        if (mv->kind != KVP_MOVE_SEAL) take_sum(it, mv);
        return;
    }
    it->sound = (uint8_t)(it->sound & ~(1u << mv->copy));
    it->is_early |= mv->err == KVP_EAGAIN;
    if (it->part_err == KVP_OK) it->part_err = mv->err == KVP_EAGAIN ? KVP_NODE_LOST : mv->err;
    if (it->sound == 0 && it->err == KVP_OK) it->err = it->part_err;
}

/* Returns true if a new attempt may succeed: the node could not be reached, or the master reclaimed the space, so
 * that the descriptor's word has another generation. */
static bool
is_attempt_lost(kvp_err_t err)
{
    return err == KVP_STALE || err == KVP_NODE_LOST || err == KVP_NOTSUP || err == KVP_ABORTED;
}

static void
lose_attempt(kvp_putop_t *op, kvp_putop_item_t *it, kvp_err_t err, uint64_t now_ns)
{
    bool is_again = is_attempt_lost(err) && it->restarts < RESTARTS_MAX;

    if (is_again) op->again_ns = kvp_max_u64(op->again_ns, now_ns + (RESTART_BACKOFF_NS << it->restarts++));
    give_up(it, err == KVP_STALE ? KVP_ABORTED : err, is_again);
}

/* Restarts an item whose attempt began before a connection to a copy's node was open. No pause is needed, because the
 * connection is open by now. Returns false if no restart is needed, or after RESTARTS_MAX restarts. */
static bool
begin_again(kvp_putop_item_t *it)
{
    if (!it->is_early || it->restarts == RESTARTS_MAX) return false;
    it->restarts++;
    give_up(it, KVP_NODE_LOST, true);
    return true;
}

void
kvp_putop_on_moved(kvp_putop_t *op, uint64_t now_ns)
{
    for (uint32_t i = 0; i < op->moves_n; i++) {
        kvp_putop_item_t *it = &op->items[op->moves[i].item];

        take_part(it, &op->moves[i]);
        if (it->parts_done < it->nloc || begin_again(it)) continue;
        if (it->err != KVP_OK) {
            lose_attempt(op, it, it->err, now_ns);
            continue;
        }
        it->phase = op->moves[i].kind == KVP_MOVE_FILL && KVP_RULE(COMMIT_AFTER_SEAL) ? PHASE_SEAL : PHASE_COMMIT;
        it->parts_begun = 0;
        it->parts_done = it->nloc - sound_n(it); /* copies whose fill failed are not sealed */
    }
    op->moves_n = 0;
}

/* ---- PUT_COMMIT, PUT_ABORT */
static void
encode_commit(kvp_putop_t *op)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    size_t at;

    head.n = op->asked_n;
    head.wait = op->waits;
    kvp_pb_frame_begin(op->out, KVP_OP_PUT_COMMIT, 0, 0, &head.base, &at);
    for (uint32_t i = 0; i < op->n; i++) {
        const kvp_putop_item_t *it = &op->items[i];
        kvp_wire_commit_t rec = {.attempt = it->attempt, .sum = it->sum, .replicas = it->sound};

        if (it->phase == PHASE_COMMIT) kvp_buf_append(op->out, &rec, sizeof rec);
    }
    kvp_frame_end(op->out, at);
}

static void
commit_item(kvp_putop_t *op, kvp_putop_item_t *it)
{
    const kvp_known_t *known = op->session.known;

    /* Drop the key's cached location, which is of an older version: its bytes may still be in memory, and from now on
     * this client must read its own value. */
    if (known != NULL) known->forget(known, it->digest, UINT64_MAX);
    finish_item(op, it, KVP_OK);
}

static kvp_err_t
take_commits(kvp_putop_t *op, const kvp_frame_t *frame, uint64_t now_ns)
{
    const int32_t *errs;
    const void *records;
    kvp_err_t err = kvp_reply_read(frame, op->asked_n, sizeof *errs, &records);

    if (err != KVP_OK) return err;
    errs = records;
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_putop_item_t *it = &op->items[i];

        if (it->phase != PHASE_COMMIT) continue;
        err = kvp_op_peer_err(*errs++);
        if (err == KVP_OK || err == KVP_ALREADY)
            commit_item(op, it);
        else
            lose_attempt(op, it, err, now_ns);
    }
    return KVP_OK;
}

/* Builds a PUT_ABORT for the failed attempts that have the same is_drained as the first of them. The other failed
 * attempts follow in the next message. */
static void
encode_abort(kvp_putop_t *op)
{
    Kvp__Pb__PutAbort head = KVP__PB__PUT_ABORT__INIT;
    const kvp_putop_item_t *first = op->items;
    size_t at;

    while (!is_aborting(first))
        first++;
    head.is_drained = first->is_drained;
    for (uint32_t i = 0; i < op->n; i++)
        head.n += is_aborting(&op->items[i]) && op->items[i].is_drained == head.is_drained;
    kvp_buf_reset(op->out);
    kvp_pb_frame_begin(op->out, KVP_OP_PUT_ABORT, KVP_FRAME_ONEWAY, 0, &head.base, &at);
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_putop_item_t *it = &op->items[i];

        if (!is_aborting(it) || it->is_drained != head.is_drained) continue;
        kvp_buf_append(op->out, &it->attempt, sizeof it->attempt);
        after_attempt(op, it);
    }
    kvp_frame_end(op->out, at);
}

/* ---- answers of the master */
kvp_err_t
kvp_putop_on_reply(kvp_putop_t *op, const kvp_frame_t *frame, uint64_t now_ns)
{
    kvp_err_t err = op->calling == KVP_OP_PUT_BEGIN ? take_places(op, frame, now_ns) : take_commits(op, frame, now_ns);

    if (err != KVP_OK) kvp_putop_on_call_failed(op, err);
    return err == KVP_PROTO || kvp_op_is_session_loss(err) ? err : KVP_OK;
}

/* Handles the loss of the session: every grant of the session is void. */
static void
lose_session(kvp_putop_t *op)
{
    op->has_session = false;
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_putop_item_t *it = &op->items[i];

        if (it->phase == PHASE_DONE) continue;
        it->was_cut = true;
        if (is_aborting(it))
            after_attempt(op, it);
        else if (it->phase != PHASE_ASK)
            ask_again(op, it, KVP_DEADLINE, 0);
    }
    op->retry_n++;
}

void
kvp_putop_on_call_failed(kvp_putop_t *op, kvp_err_t err)
{
    uint8_t asked = op->calling == KVP_OP_PUT_BEGIN ? PHASE_ASK : PHASE_COMMIT;

    if (kvp_op_is_session_loss(err)) {
        lose_session(op);
        return;
    }
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_putop_item_t *it = &op->items[i];

        if (it->phase != asked) continue;
        /* the error of the master's last answer (it->err) explains more than the DEADLINE of this question */
        give_up(it, err == KVP_DEADLINE && asked == PHASE_ASK ? it->err : err, false);
    }
}

static kvp_step_t
begin_call(kvp_putop_t *op, uint8_t opcode, uint32_t n, uint64_t now_ns)
{
    op->calling = opcode;
    op->asked_n = n;
    kvp_buf_reset(op->out);
    if (opcode == KVP_OP_PUT_BEGIN)
        encode_begin(op, now_ns);
    else
        encode_commit(op);
    if (op->out->err == KVP_OK) return (kvp_step_t){.kind = KVP_STEP_CALL};
    if (opcode == KVP_OP_PUT_BEGIN) /* the PUT_BEGIN was not sent, so there is no attempt to abort */
        kvp_putop_fail(op, op->out->err);
    else
        kvp_putop_on_call_failed(op, op->out->err);
    return kvp_putop_next(op, now_ns);
}

kvp_step_t
kvp_putop_next(kvp_putop_t *op, uint64_t now_ns)
{
    uint32_t n;

    if (op->left_n > 0 && now_ns >= op->deadline_ns) kvp_putop_fail(op, KVP_DEADLINE);
    for (uint8_t phase = PHASE_FILL; phase <= PHASE_SEAL; phase++) {
        fill_moves(op, phase);
        if (op->moves_n > 0) return (kvp_step_t){.kind = KVP_STEP_MOVE};
    }
    n = count_items(op, PHASE_COMMIT);
    if (n > 0) return begin_call(op, KVP_OP_PUT_COMMIT, n, now_ns);
    if (count_items(op, PHASE_ABORT) + count_items(op, PHASE_RETRY) > 0) {
        encode_abort(op);
        return (kvp_step_t){.kind = KVP_STEP_SEND};
    }
    if (op->left_n == 0) return (kvp_step_t){.kind = KVP_STEP_DONE};
    if (!op->has_session) return (kvp_step_t){.kind = KVP_STEP_SESSION};
    if (now_ns < op->again_ns)
        return (kvp_step_t){.kind = KVP_STEP_SLEEP, .until_ns = kvp_min_u64(op->again_ns, op->deadline_ns)};
    op->again_ns = 0;
    return begin_call(op, KVP_OP_PUT_BEGIN, op->left_n, now_ns);
}
