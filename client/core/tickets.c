/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/tickets.h"

#include "client/core/op.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <stdlib.h>

#define SETS_FIRST 16u
#define RETRY_NS 100000000ull /* pause before a repeated restore, if the master gave no time or no answer */
#define GONE UINT64_MAX /* value of item_t.ticket for an object that is not restored any more */
#define NS_PER_MS 1000000ull

typedef struct {
    kvp_digest_t digest;
    uint64_t ticket; /* ticket in the session of the set's incarnation; 0 = not protected in this session */
} item_t;

struct kvp_tickets_set {
    uint64_t id;
    kvp_present_kind_t kind;
    uint64_t incarnation;
    uint64_t version, until_ns;
    uint32_t n;
    uint32_t asked_n; /* number of the set's items in a page without an answer */
    bool is_released; /* the set was released while a page with its items had no answer; the answer frees it */
    item_t items[];
};

/* ---- the table of sets */
static uint32_t
place_of(uint64_t id)
{
    return (uint32_t)id;
}

static kvp_tickets_set_t *
find_set(const kvp_tickets_t *h, uint64_t id)
{
    kvp_tickets_set_t *set = place_of(id) < h->cap ? h->sets[place_of(id)] : NULL;

    return set != NULL && set->id == id && !set->is_released ? set : NULL;
}

static void
drop_set(kvp_tickets_t *h, kvp_tickets_set_t *set)
{
    if (place_of(set->id) == h->set_at) h->item_at = 0; /* item_at belongs to this set: a new set begins at 0 */
    h->sets[place_of(set->id)] = NULL;
    h->free[h->free_n++] = place_of(set->id);
    free(set);
}

static bool
is_over(const kvp_tickets_set_t *set, uint64_t now_ns)
{
    return set->kind != KVP_PRESENT_HOLD && set->until_ns < now_ns + NS_PER_MS;
}

static void
sweep_sets(kvp_tickets_t *h, uint64_t now_ns)
{
    for (uint32_t i = 0; i < h->cap; i++)
        if (h->sets[i] != NULL && h->sets[i]->asked_n == 0 && is_over(h->sets[i], now_ns)) drop_set(h, h->sets[i]);
}

static bool
grow_table(kvp_tickets_t *h)
{
    uint32_t cap = h->cap == 0 ? SETS_FIRST : h->cap * 2;
    kvp_tickets_set_t **sets;
    uint32_t *places;

    if (cap > KVP_TICKETS_SETS_MAX) return h->free_n > 0;
    sets = realloc(h->sets, cap * sizeof(*sets));
    if (sets != NULL) h->sets = sets;
    places = realloc(h->free, cap * sizeof *places);
    if (places != NULL) h->free = places;
    if (sets == NULL || places == NULL) return h->free_n > 0;
    if (h->set_at == h->cap) h->set_at = cap; /* the round of restores stays over */
    for (uint32_t i = cap; i-- > h->cap;) {
        h->sets[i] = NULL;
        h->free[h->free_n++] = i;
    }
    h->cap = cap;
    return true;
}

/* Makes room for one more set. A sweep for expired sets examines all sets, so if it frees less than a quarter of the
 * table, the table grows. */
static bool
make_room(kvp_tickets_t *h, uint64_t now_ns)
{
    if (h->free_n > 0) return true;
    sweep_sets(h, now_ns);
    return h->cap > 0 && h->free_n >= h->cap / 4 ? true : grow_table(h);
}

void
kvp_tickets_fini(kvp_tickets_t *h)
{
    for (uint32_t i = 0; i < h->cap; i++)
        free(h->sets[i]);
    free(h->sets);
    free(h->free);
    *h = (kvp_tickets_t){0};
}

uint64_t
kvp_tickets_add(kvp_tickets_t *h, const kvp_tickets_new_t *what, uint64_t now_ns)
{
    kvp_tickets_set_t *set;

    if (!make_room(h, now_ns)) return 0;
    set = malloc(sizeof *set + what->n * sizeof set->items[0]);
    if (set == NULL) return 0;
    *set = (kvp_tickets_set_t){
        .id = (uint64_t)++h->seq << 32 | h->free[h->free_n - 1],
        .kind = what->kind,
        .incarnation = what->incarnation,
        .version = what->version,
        .until_ns = what->until_ns,
        .n = what->n,
    };
    for (uint32_t i = 0; i < what->n; i++)
        set->items[i] = (item_t){what->digests[i], what->ticket};
    h->sets[h->free[--h->free_n]] = set;
    if (h->seq == UINT32_MAX) h->seq = 0;
    /* If the set's session is lost already, the round of restores in the next session may have passed the set's index:
     * begin another round. */
    if (h->incarnation > what->incarnation && !h->is_due_again) {
        h->is_due_again = true;
        h->due_ns = now_ns;
    }
    return set->id;
}

/* ---- release */
static void
collect_tickets(const kvp_tickets_set_t *set, kvp_buf_t *tickets)
{
    uint64_t last = 0;

    for (uint32_t i = 0; i < set->n; i++) {
        uint64_t ticket = set->items[i].ticket;

        if (ticket != 0 && ticket != GONE && ticket != last) kvp_buf_append(tickets, &ticket, sizeof ticket);
        if (ticket != 0 && ticket != GONE) last = ticket;
    }
}

bool
kvp_tickets_release(kvp_tickets_t *h, uint64_t id, uint64_t incarnation, kvp_buf_t *tickets)
{
    kvp_tickets_set_t *set = find_set(h, id);
    bool is_all_held;

    if (set == NULL) return false;
    is_all_held = set->incarnation == incarnation;
    if (is_all_held) collect_tickets(set, tickets);
    for (uint32_t i = 0; i < set->n; i++) {
        is_all_held &= set->items[i].ticket != 0 && set->items[i].ticket != GONE;
        set->items[i].ticket = GONE; /* the object is never restored again */
    }
    set->is_released = true;
    if (set->asked_n == 0) drop_set(h, set);
    return is_all_held;
}

/* ---- restore in a new session */
static void
begin_round(kvp_tickets_t *h)
{
    h->set_at = h->item_at = 0;
    h->is_due_again = false;
}

static void
again_at(kvp_tickets_t *h, uint64_t due_ns)
{
    h->due_ns = h->is_due_again ? kvp_min_u64(h->due_ns, due_ns) : due_ns;
    h->is_due_again = true;
}

/* Moves a set to the session of the restore: tickets of earlier sessions are void. */
static void
enter_session(const kvp_tickets_t *h, kvp_tickets_set_t *set)
{
    if (set->incarnation == h->incarnation) return;
    set->incarnation = h->incarnation;
    for (uint32_t i = 0; i < set->n; i++)
        if (set->items[i].ticket != GONE) set->items[i].ticket = 0;
}

static void
append_item(const kvp_tickets_t *h, kvp_tickets_page_t *page, kvp_tickets_set_t *set, uint32_t item, uint64_t now_ns)
{
    kvp_wire_present_t *rec = &page->recs[page->n];

    *rec = (kvp_wire_present_t){
        .digest = set->items[item].digest,
        .version = set->version,
        .set = h->set_at,
        .kind = set->kind,
    };
    if (set->kind != KVP_PRESENT_HOLD)
        rec->ttl_ms = (uint32_t)kvp_min_u64((set->until_ns - now_ns) / NS_PER_MS, UINT32_MAX);
    page->of[page->n].set = set;
    page->of[page->n++].item = item;
    set->asked_n++;
}

/* Appends a set's unprotected items to the page. Returns false if the page is full before all items are in it. */
static bool
append_set(kvp_tickets_t *h, kvp_tickets_page_t *page, kvp_tickets_set_t *set, uint64_t now_ns)
{
    enter_session(h, set);
    for (; h->item_at < set->n; h->item_at++) {
        if (set->items[h->item_at].ticket != 0) continue;
        if (page->n == KVP_PLACES_MAX) return false;
        append_item(h, page, set, h->item_at, now_ns);
    }
    return true;
}

kvp_err_t
kvp_tickets_next(kvp_tickets_t *h, uint64_t incarnation, uint64_t now_ns, kvp_tickets_page_t *page,
                 uint64_t *due_ns_out)
{
    page->n = 0;
    if (incarnation != h->incarnation) {
        h->incarnation = incarnation;
        begin_round(h);
    }
    if (h->set_at == h->cap && h->is_due_again && now_ns >= h->due_ns) begin_round(h);
    for (; h->set_at < h->cap; h->set_at++, h->item_at = 0) {
        kvp_tickets_set_t *set = h->sets[h->set_at];

        /* skip a set of a later session: the session of the restore was lost before the round came to the set */
        if (set == NULL || set->incarnation > incarnation) continue;
        if (is_over(set, now_ns))
            drop_set(h, set);
        else if (!append_set(h, page, set, now_ns))
            break;
    }
    *due_ns_out = h->is_due_again ? h->due_ns : UINT64_MAX;
    return page->n > 0 ? KVP_OK : KVP_EAGAIN;
}

void
kvp_tickets_encode(const kvp_tickets_page_t *page, kvp_buf_t *out)
{
    Kvp__Pb__Present head = KVP__PB__PRESENT__INIT;

    head.n = page->n;
    kvp_pb_frame(out, KVP_OP_PRESENT, 0, 0, &head.base, page->recs, page->n * sizeof page->recs[0]);
}

/* ---- answers to a restore */
static bool
is_all_gone(const kvp_tickets_set_t *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (set->items[i].ticket != GONE) return false;
    return true;
}

/* Ends the use of a page after its answer: frees released sets, and sets whose objects are all GONE. */
static void
give_back(kvp_tickets_t *h, kvp_tickets_page_t *page)
{
    for (uint32_t i = 0; i < page->n; i++) {
        kvp_tickets_set_t *set = page->of[i].set;

        if (--set->asked_n == 0 && is_all_gone(set)) drop_set(h, set);
    }
    page->n = 0;
}

static void
take_record(kvp_tickets_t *h, const kvp_wire_presented_t *answer, kvp_tickets_set_t *set, item_t *item,
            uint64_t retry_ns, kvp_buf_t *tickets)
{
    if (answer->err == KVP_OK && set->is_released) {
        kvp_buf_append(tickets, &answer->ticket,
                       sizeof answer->ticket); /* a ticket of several items is released several times: harmless */
    } else if (answer->err == KVP_OK) {
        item->ticket = answer->ticket;
    } else if (answer->err != KVP_RETRY_AFTER) {
        item->ticket = GONE;
    } else if (!set->is_released) {
        again_at(h, retry_ns);
    }
}

static kvp_err_t
read_reply(const kvp_frame_t *frame, uint32_t n, const kvp_wire_presented_t **answers_out, uint32_t *retry_ms_out)
{
    Kvp__Pb__PresentReply *msg;
    kvp_pb_t pb;
    kvp_rd_t rd;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__present_reply__descriptor, frame);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    *retry_ms_out = msg->retry_ms;
    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    *answers_out = kvp_rd_array(&rd, n, sizeof **answers_out);
    if (err == KVP_OK && (rd.is_bad || msg->n != n)) err = KVP_PROTO;
    kvp_pb_free(&pb, msg);
    for (uint32_t i = 0; err == KVP_OK && i < n; i++)
        if (((*answers_out)[i].err == KVP_OK) != ((*answers_out)[i].ticket != 0) || (*answers_out)[i].ticket == GONE)
            err = KVP_PROTO;
    return err;
}

kvp_err_t
kvp_tickets_on_reply(kvp_tickets_t *h, kvp_tickets_page_t *page, const kvp_frame_t *frame, uint64_t now_ns,
                     kvp_buf_t *tickets)
{
    static const kvp_wire_presented_t refused = {.err = KVP_NOT_FOUND};
    const kvp_wire_presented_t *answers;
    uint32_t retry_ms;
    kvp_err_t err = read_reply(frame, page->n, &answers, &retry_ms);
    uint64_t retry_ns = now_ns + (retry_ms == 0 ? RETRY_NS : retry_ms * NS_PER_MS);

    if (err == KVP_PROTO || err == KVP_NOMEM || kvp_op_is_session_loss(err)) {
        kvp_tickets_on_call_failed(h, page, now_ns);
        return err;
    }
    /* If the master refused the whole page, give all its items up: an older master does not know the message. */
    for (uint32_t i = 0; i < page->n; i++)
        take_record(h, err == KVP_OK ? &answers[i] : &refused, page->of[i].set,
                    &page->of[i].set->items[page->of[i].item], retry_ns, tickets);
    give_back(h, page);
    return KVP_OK;
}

void
kvp_tickets_on_call_failed(kvp_tickets_t *h, kvp_tickets_page_t *page, uint64_t now_ns)
{
    if (page->n > 0) again_at(h, now_ns + RETRY_NS);
    give_back(h, page);
}
