/* SPDX-License-Identifier: Apache-2.0
 * The election of the leading master: see election.h.
 *
 * Design notes.
 * - One request to etcd at a time, in addition to the renewals of the lease. A transaction without an answer may have
 *   taken effect: the election reads the keys again, which name their writer.
 * - A leader key is ours if it has our id and our lease: an earlier process with the same directory had another lease.
 * - A set whose write may have happened counts until another set is surely written: the write could still take effect
 *   after the last read. Each write of the set compares the revision of the previous write, so that of two concurrent
 *   writes only one can succeed.
 * - A read is as recent as its request. A read can end the lead; only a transaction (ASK_TERM) can begin it. */
#include "master/ha/election.h"

#include "common/mutate.h"
#include "proto/segfmt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S 1000000000ull
#define MS 1000000ull
#define READ_NS (1 * S) /* interval of reading etcd's keys, in addition to the watch */
#define AGAIN_NS (100 * MS) /* pause after a failed request */
/* how long the other masters wait for a member of the in-sync set that still reads its log */
#define READING_MAX_NS (600 * S)
#define BEATS 8u /* number of renewals within the life of a lease */
#define UNSAFE "!" /* mark at the end of the in-sync set's text in etcd: the set is unsafe */
#define JITTER_MS 50u
#define KEPT_PERCENT 80u /* a leader acts for this percentage of its lease, because clocks may differ */

enum { ASK_GRANT, ASK_REGISTER, ASK_READ, ASK_CAMPAIGN, ASK_TERM, ASK_INSYNC, ASK_RESIGN };

/* ---- the texts of keys and values */
static void
key_of(const kvp_election_t *e, const char *name, char key[KVP_ETCD_KEY_MAX + 1])
{
    snprintf(key, KVP_ETCD_KEY_MAX + 1, "/kvpool/%s/%s", e->cluster, name);
}

static void
format_master(const kvp_election_master_t *m, uint32_t term, char *out, size_t cap)
{
    snprintf(out, cap, "id=%s address=%s http=%s term=%u", m->id, m->address, m->http, term);
}

/* Copies the word after `name` (for example " http="). Returns false if there is none, or it is too long. */
static bool
read_field(const char *text, const char *name, char *out, size_t cap)
{
    const char *at = strstr(text, name);
    size_t len;

    if (at == NULL) return false;
    at += strlen(name);
    len = strcspn(at, " ");
    if (len >= cap) return false;
    memcpy(out, at, len);
    out[len] = '\0';
    return true;
}

static bool
parse_master(const char *text, kvp_election_master_t *out, uint32_t *term_out)
{
    char term[16] = "0", reading[2] = "";

    memset(out, 0, sizeof *out);
    out->is_reading = read_field(text, " reading=", reading, sizeof reading);
    (void)read_field(text, " http=", out->http, sizeof out->http);
    (void)read_field(text, " term=", term, sizeof term);
    *term_out = (uint32_t)strtoul(term, NULL, 10);
    return strncmp(text, "id=", 3) == 0 && read_field(text, "id=", out->id, sizeof out->id) &&
           read_field(text, " address=", out->address, sizeof out->address) && out->id[0] != '\0';
}

static void
format_set(const kvp_election_set_t *set, char *out, size_t cap)
{
    size_t at = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < set->n && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%s", i > 0 ? " " : "", set->ids[i]);
    if (set->is_unsafe && at < cap) snprintf(out + at, cap - at, " " UNSAFE);
}

static void
parse_set(const char *text, kvp_election_set_t *out)
{
    memset(out, 0, sizeof *out);
    while (*text != '\0' && out->n < KVP_ELECTION_MEMBERS_MAX) {
        size_t len = strcspn(text, " ");

        if (strcmp(text, UNSAFE) == 0) {
            out->is_unsafe = true;
        } else if (len > 0 && len <= KVP_ELECTION_ID_MAX) {
            memcpy(out->ids[out->n], text, len);
            out->ids[out->n++][len] = '\0';
        }
        text += len;
        text += strspn(text, " ");
    }
}

static void
format_pool(const kvp_election_pool_t *pool, char *out, size_t cap)
{
    char id[33];

    for (size_t i = 0; i < sizeof pool->pool_id; i++)
        snprintf(id + 2 * i, 3, "%02x", pool->pool_id[i]);
    snprintf(out, cap, "pool_id=%s digest_seed=%016llx", id, (unsigned long long)pool->digest_seed);
}

static void
parse_pool(const char *text, kvp_election_pool_t *out)
{
    unsigned long long seed;
    char id[33];

    memset(out, 0, sizeof *out);
    if (sscanf(text, "pool_id=%32[0-9a-f] digest_seed=%llx", id, &seed) != 2 || strlen(id) != 32) return;
    for (size_t i = 0; i < sizeof out->pool_id; i++) {
        char byte[3] = {id[2 * i], id[2 * i + 1], '\0'};

        out->pool_id[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    out->digest_seed = seed;
    out->is_known = true;
}

/* ---- small functions */
bool
kvp_election_set_has(const kvp_election_set_t *set, const char *id)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (strcmp(set->ids[i], id) == 0) return true;
    return false;
}

static bool
is_same_set(const kvp_election_set_t *a, const kvp_election_set_t *b)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (!kvp_election_set_has(b, a->ids[i])) return false;
    return a->n == b->n;
}

static void
add_all(kvp_election_set_t *to, const kvp_election_set_t *from)
{
    for (uint32_t i = 0; i < from->n && to->n < KVP_ELECTION_MEMBERS_MAX; i++)
        if (!kvp_election_set_has(to, from->ids[i])) memcpy(to->ids[to->n++], from->ids[i], sizeof from->ids[i]);
}

static uint64_t
ttl_ns(const kvp_election_t *e)
{
    return e->ttl_s * S;
}

static uint64_t
jitter_ns(kvp_election_t *e)
{
    e->rng ^= e->rng >> 12;
    e->rng ^= e->rng << 25;
    e->rng ^= e->rng >> 27;
    return e->rng * 0x2545f4914f6cdd1dull % (JITTER_MS * MS);
}

static void
begin_following(kvp_election_t *e)
{
    e->role = KVP_ELECTION_FOLLOWS;
    e->own_revision = 0;
    e->is_insync_due = e->is_unsafe = false;
    e->read_due_ns = 0;
}

/* The lease was lost: etcd has deleted the keys that depend on it. */
static void
lose_lease(kvp_election_t *e)
{
    e->lease = 0;
    e->beat_state = KVP_ELECTION_IDLE;
    e->listing = KVP_ELECTION_UNLISTED;
    if (e->role != KVP_ELECTION_FOLLOWS) begin_following(e);
}

static uint64_t
kept_until(const kvp_election_t *e)
{
    return e->alive_ns + (KVP_RULE(LEASE_KEPT_PART) ? ttl_ns(e) / 100 * KEPT_PERCENT : 2 * ttl_ns(e));
}

uint64_t
kvp_election_act_until(const kvp_election_t *e)
{
    return e->role == KVP_ELECTION_LEADS ? kept_until(e) : 0;
}

bool
kvp_election_knows_leader(const kvp_election_t *e, uint64_t now_ns)
{
    return e->leader_revision != 0 && e->lease != 0 && now_ns < e->alive_ns + ttl_ns(e);
}

bool
kvp_election_is_level(const kvp_election_t *e, uint32_t log_term, uint32_t level_term)
{
    if (log_term == 0 || log_term != level_term) return false;
    return !KVP_RULE(LEVEL_OF_LAST) || (log_term == e->term_before && !e->is_unsafe);
}

/* ---- requests to etcd */
static kvp_etcd_op_t *
begin_op(kvp_election_t *e, kvp_etcd_kind_t kind, uint32_t purpose)
{
    memset(&e->op, 0, sizeof e->op);
    e->op.kind = kind;
    e->op.id = ++e->next_id;
    e->op_state = KVP_ELECTION_DUE;
    e->op_purpose = purpose;
    return &e->op;
}

static void
add_compare(const kvp_election_t *e, kvp_etcd_op_t *op, const char *name, bool is_mod, int64_t revision)
{
    kvp_etcd_compare_t *c = &op->compares[op->compares_n++];

    key_of(e, name, c->key);
    c->is_mod = is_mod;
    c->revision = revision;
}

static kvp_etcd_kv_t *
add_write(const kvp_election_t *e, kvp_etcd_op_t *op, const char *name, int64_t lease)
{
    kvp_etcd_kv_t *w = &op->writes[op->writes_n++];

    key_of(e, name, w->key);
    w->lease = lease;
    return w;
}

static kvp_election_listing_t
wanted_listing(const kvp_election_t *e)
{
    return e->is_ready ? KVP_ELECTION_LISTED_READY : KVP_ELECTION_LISTED_READING;
}

static void
ask_register(kvp_election_t *e)
{
    kvp_etcd_op_t *op = begin_op(e, KVP_ETCD_TXN, ASK_REGISTER);
    char name[KVP_ELECTION_ID_MAX + 16];
    kvp_etcd_kv_t *w;
    size_t len;

    snprintf(name, sizeof name, "masters/%s", e->self.id);
    w = add_write(e, op, name, e->lease);
    format_master(&e->self, e->log_term, w->value, sizeof w->value);
    len = strlen(w->value);
    e->asked_listing = wanted_listing(e);
    if (!e->is_ready) snprintf(w->value + len, sizeof w->value - len, " reading=1");
}

static void
ask_read(kvp_election_t *e)
{
    e->read_due_ns = e->now_ns + READ_NS;
    (void)begin_op(e, KVP_ETCD_READ, ASK_READ);
}

static void
ask_campaign(kvp_election_t *e)
{
    kvp_etcd_op_t *op = begin_op(e, KVP_ETCD_TXN, ASK_CAMPAIGN);
    kvp_etcd_kv_t *w;

    if (KVP_RULE(CAMPAIGN_IF_ABSENT)) {
        add_compare(e, op, "leader", false, 0);
        add_compare(e, op, "term", true, e->term_revision); /* fails if a term was written meanwhile */
    }
    w = add_write(e, op, "leader", e->lease);
    format_master(&e->self, 0, w->value, sizeof w->value);
}

/* Returns the highest used term in etcd: of the term key, and of the logs of the registered masters. */
static uint32_t
highest_term_of_etcd(const kvp_election_t *e)
{
    return (uint32_t)kvp_max_u64(e->term, e->masters_term);
}

static uint32_t
highest_term(const kvp_election_t *e)
{
    const uint32_t of_etcd = KVP_RULE(TERM_ABOVE_ALL) ? highest_term_of_etcd(e) : 0;

    return (uint32_t)kvp_max_u64(kvp_max_u64(of_etcd, e->log_term), e->least_term);
}

static void
ask_term(kvp_election_t *e)
{
    kvp_etcd_op_t *op = begin_op(e, KVP_ETCD_TXN, ASK_TERM);
    const kvp_election_pool_t *pool = e->pool.is_known ? &e->pool : &e->own_pool;
    kvp_election_set_t self = {.n = 1};
    kvp_etcd_kv_t *w;

    e->own_term = 1 + highest_term(e);
    e->term_before = e->term;
    /* A master that is elected again before it has led may be a member only of its own set, so the set stays unsafe. */
    e->is_unsafe |= e->insync.is_unsafe;
    e->is_unsafe |= e->insync.n > 0 && (e->is_doubted || !kvp_election_set_has(&e->insync, e->self.id));
    memcpy(self.ids[0], e->self.id, sizeof self.ids[0]);
    self.is_unsafe = e->is_unsafe;
    add_compare(e, op, "leader", false, e->own_revision);
    add_compare(e, op, "term", true, e->term_revision);
    add_compare(e, op, "insync", true, e->insync_revision);
    w = add_write(e, op, "term", 0);
    snprintf(w->value, sizeof w->value, "%u", e->own_term);
    if (!KVP_RULE(SET_BEFORE_LEAD)) self = e->insync;
    w = add_write(e, op, "insync", 0);
    format_set(&self, w->value, sizeof w->value);
    w = add_write(e, op, "leader", e->lease);
    format_master(&e->self, e->own_term, w->value, sizeof w->value);
    w = add_write(e, op, "pool", 0);
    format_pool(pool, w->value, sizeof w->value);
    e->wanted_insync = self;
}

static void
ask_insync(kvp_election_t *e)
{
    kvp_etcd_op_t *op = begin_op(e, KVP_ETCD_TXN, ASK_INSYNC);
    kvp_etcd_kv_t *w;

    if (KVP_RULE(SET_IF_LEADER)) {
        add_compare(e, op, "leader", false, e->own_revision);
        add_compare(e, op, "insync", true, e->insync_revision);
    }
    add_all(&e->asked_insync, &e->wanted_insync);
    w = add_write(e, op, "insync", 0);
    format_set(&e->wanted_insync, w->value, sizeof w->value);
    e->is_insync_due = false;
}

static void
ask_resign(kvp_election_t *e)
{
    kvp_etcd_op_t *op = begin_op(e, KVP_ETCD_TXN, ASK_RESIGN);

    add_compare(e, op, "leader", false, e->own_revision);
    add_write(e, op, "leader", 0)->is_removal = true;
}

/* ---- choosing the next request */
static bool
is_member_reading(const kvp_election_t *e)
{
    for (uint32_t i = 0; i < e->masters_n; i++)
        if (e->masters[i].is_reading && kvp_election_set_has(&e->insync, e->masters[i].id)) return true;
    return false;
}

/* Returns true if this master may try to become the leader. A member of the in-sync set has all acknowledged records,
 * so members go first; a registered member that still reads its log gets more time. A master without a pool does not
 * create one while a master with the pool may still start. */
static bool
may_campaign(const kvp_election_t *e)
{
    bool is_member = e->insync.n == 0 || (kvp_election_set_has(&e->insync, e->self.id) && !e->is_doubted);
    bool has_pool = e->pool.is_known || e->own_pool.is_known;
    uint64_t wait_ns = (is_member || !KVP_RULE(MEMBERS_FIRST)) && has_pool ? 0 : ttl_ns(e);

    if (!is_member && is_member_reading(e)) wait_ns = READING_MAX_NS;
    return e->is_ready && !kvp_election_is_spent(e) && e->absent_ns > 0 && e->now_ns >= e->absent_ns + wait_ns &&
           e->now_ns >= e->stand_off_ns;
}

static void
take_next_step(kvp_election_t *e)
{
    if (e->op_state != KVP_ELECTION_IDLE || e->now_ns < e->again_ns) return;
    if (e->lease == 0) {
        begin_op(e, KVP_ETCD_GRANT, ASK_GRANT)->ttl_s = e->ttl_s;
        return;
    }
    if (e->role == KVP_ELECTION_RESIGNS)
        ask_resign(e);
    else if (e->role == KVP_ELECTION_LEADS && e->is_insync_due && e->read_due_ns != 0)
        ask_insync(e);
    else if (e->now_ns >= e->read_due_ns)
        ask_read(e);
    else if (e->role == KVP_ELECTION_WON)
        ask_term(e);
    else if (e->twin_ns == 0 && e->listing != wanted_listing(e))
        ask_register(e);
    else if (e->role == KVP_ELECTION_FOLLOWS && e->listing != KVP_ELECTION_UNLISTED && may_campaign(e))
        ask_campaign(e);
}

static void
renew_lease(kvp_election_t *e)
{
    if (e->lease == 0 || e->beat_state != KVP_ELECTION_IDLE || e->now_ns < e->beat_due_ns) return;
    memset(&e->beat, 0, sizeof e->beat);
    e->beat.kind = KVP_ETCD_KEEP_ALIVE;
    e->beat.id = ++e->next_id;
    e->beat.lease = e->lease;
    e->beat_state = KVP_ELECTION_DUE;
}

void
kvp_election_init(kvp_election_t *e, const char *cluster, const kvp_election_master_t *self, uint32_t ttl_s,
                  uint64_t seed, uint64_t now_ns)
{
    memset(e, 0, sizeof *e);
    snprintf(e->cluster, sizeof e->cluster, "%s", cluster);
    e->self = *self;
    e->ttl_s = ttl_s;
    e->rng = seed | 1;
    e->now_ns = now_ns;
}

void
kvp_election_ready(kvp_election_t *e, bool is_ready, bool is_doubted, uint32_t log_term,
                   const kvp_election_pool_t *pool)
{
    e->is_ready = is_ready;
    e->is_doubted = is_doubted;
    e->log_term = log_term;
    e->own_pool = *pool;
}

void
kvp_election_tick(kvp_election_t *e, uint64_t now_ns)
{
    e->now_ns = now_ns;
    /* No renewal has succeeded for a long time: the lease has expired in etcd, or soon will. */
    if (e->lease != 0 && now_ns > e->alive_ns + 10 * ttl_ns(e)) lose_lease(e);
    renew_lease(e);
    take_next_step(e);
}

void
kvp_election_changed(kvp_election_t *e)
{
    e->read_due_ns = 0;
}

bool
kvp_election_take(kvp_election_t *e, kvp_etcd_op_t *op_out)
{
    if (e->beat_state == KVP_ELECTION_DUE) {
        e->beat_state = KVP_ELECTION_SENT;
        *op_out = e->beat;
        return true;
    }
    if (e->op_state != KVP_ELECTION_DUE) return false;
    e->op_state = KVP_ELECTION_SENT;
    *op_out = e->op;
    return true;
}

void
kvp_election_resign(kvp_election_t *e)
{
    /* masters outside the in-sync set wait for a whole TTL, so a member of the set is elected first */
    e->stand_off_ns = e->now_ns + ttl_ns(e) / 2;
    if (e->role == KVP_ELECTION_LEADS) e->role = KVP_ELECTION_RESIGNS;
}

bool
kvp_election_is_spent(const kvp_election_t *e)
{
    return highest_term(e) >= KVP_TERM_MAX - 1;
}

void
kvp_election_above(kvp_election_t *e, uint32_t term)
{
    e->least_term = (uint32_t)kvp_min_u64(kvp_max_u64(e->least_term, term), KVP_TERM_MAX);
}

void
kvp_election_want_insync(kvp_election_t *e, const kvp_election_set_t *set)
{
    if (e->role != KVP_ELECTION_LEADS || is_same_set(set, &e->wanted_insync)) return;
    e->wanted_insync = *set;
    e->is_insync_due = true;
}

void
kvp_election_insync(const kvp_election_t *e, kvp_election_set_t *set_out)
{
    *set_out = e->insync;
    if (KVP_RULE(SET_MAY_STAND)) add_all(set_out, &e->asked_insync);
}

/* ---- etcd's answers */
static bool
is_ours(const kvp_election_t *e)
{
    return e->leader_revision != 0 && e->lease != 0 && e->leader_lease == e->lease &&
           strcmp(e->leader.id, e->self.id) == 0;
}

static void
take_key(kvp_election_t *e, const char *name, const kvp_etcd_kv_t *kv)
{
    uint32_t term;

    if (strcmp(name, "leader") == 0) {
        if (!parse_master(kv->value, &e->leader, &e->leader_term)) memset(&e->leader, 0, sizeof e->leader);
        e->leader_revision = kv->create_revision;
        e->leader_lease = kv->lease;
    } else if (strcmp(name, "term") == 0) {
        e->term = (uint32_t)kvp_min_u64(strtoul(kv->value, NULL, 10), KVP_TERM_MAX);
        e->term_revision = kv->mod_revision;
    } else if (strcmp(name, "insync") == 0) {
        parse_set(kv->value, &e->insync);
        e->insync_revision = kv->mod_revision;
    } else if (strcmp(name, "pool") == 0) {
        parse_pool(kv->value, &e->pool);
    } else if (strncmp(name, "masters/", 8) == 0 && e->masters_n < KVP_ELECTION_MEMBERS_MAX) {
        if (!parse_master(kv->value, &e->masters[e->masters_n], &term)) return;
        e->masters_n++;
        e->masters_term = (uint32_t)kvp_max_u64(e->masters_term, kvp_min_u64(term, KVP_TERM_MAX));
    }
}

/* Notes whether another process is registered with our id. Before our own registration such an entry belongs to an
 * older process with this directory, whose lease is nearly over, or to a process with a copy of the directory. */
static void
look_for_twin(kvp_election_t *e)
{
    bool has_twin = false;

    for (uint32_t i = 0; i < e->masters_n && e->listing == KVP_ELECTION_UNLISTED; i++)
        has_twin |= strcmp(e->masters[i].id, e->self.id) == 0 && strcmp(e->masters[i].address, e->self.address) != 0;
    e->twin_ns = !has_twin ? 0 : e->twin_ns != 0 ? e->twin_ns : e->now_ns;
}

static void
take_keys(kvp_election_t *e, const kvp_etcd_answer_t *answer)
{
    const int64_t term_before = e->term_revision;
    char prefix[KVP_ETCD_KEY_MAX + 1];

    key_of(e, "", prefix);
    e->leader_term = e->term = e->masters_term = 0;
    e->leader_revision = e->term_revision = e->insync_revision = 0;
    e->insync.n = e->masters_n = 0;
    memset(&e->leader, 0, sizeof e->leader);
    memset(&e->pool, 0, sizeof e->pool);
    for (uint32_t i = 0; i < answer->kvs_n; i++)
        if (strncmp(answer->kvs[i].key, prefix, strlen(prefix)) == 0)
            take_key(e, answer->kvs[i].key + strlen(prefix), &answer->kvs[i]);
    look_for_twin(e);
    if (e->leader_revision != 0)
        e->absent_ns = 0;
    else if (e->absent_ns == 0 || e->term_revision != term_before) /* another leader was elected and lost meanwhile */
        e->absent_ns = e->now_ns + jitter_ns(e);
    /* another master has taken the lead that this master gave up: this master may be a candidate again */
    if (e->leader_revision != 0 && !is_ours(e)) e->stand_off_ns = 0;
    if (e->role != KVP_ELECTION_FOLLOWS && (!is_ours(e) || e->leader_revision != e->own_revision)) begin_following(e);
    if (e->role == KVP_ELECTION_FOLLOWS && is_ours(e)) { /* the answer to our campaign was lost */
        e->role = KVP_ELECTION_WON;
        e->own_revision = e->leader_revision;
    }
    /* etcd's data was lost or edited: this master resigns, so that the next leader has a higher term. */
    if (e->role == KVP_ELECTION_LEADS && e->own_term < highest_term_of_etcd(e) && KVP_RULE(TERM_OF_ETCD))
        e->role = KVP_ELECTION_RESIGNS;
}

static void
on_won(kvp_election_t *e, const kvp_etcd_answer_t *answer)
{
    e->read_due_ns = 0;
    if (!answer->has_succeeded) return;
    e->role = KVP_ELECTION_WON;
    e->own_revision = answer->revision;
}

static void
took_term(kvp_election_t *e, const kvp_etcd_answer_t *answer)
{
    e->read_due_ns = 0;
    if (!answer->has_succeeded || e->role != KVP_ELECTION_WON) return;
    if (e->now_ns >= kept_until(e)) return; /* the lease may have expired: the next read shows the present leader */
    if (!e->pool.is_known) e->pool = e->own_pool;
    e->pool.is_known = true;
    e->role = KVP_ELECTION_LEADS;
    e->is_insync_due = e->is_unsafe;
    e->wanted_insync.is_unsafe = false;
    e->insync = e->wanted_insync;
    e->insync_revision = answer->revision;
    e->asked_insync.n = 0;
    e->leader = e->self;
    e->leader_term = e->own_term;
    e->elections++;
}

static void
wrote_insync(kvp_election_t *e, const kvp_etcd_answer_t *answer)
{
    if (!answer->has_succeeded) {
        e->read_due_ns = 0;
        e->is_insync_due = true;
        return;
    }
    parse_set(e->op.writes[0].value, &e->insync);
    e->insync_revision = answer->revision;
    e->asked_insync.n = 0;
}

static void
on_answered(kvp_election_t *e, const kvp_etcd_answer_t *answer)
{
    switch (e->op_purpose) {
    case ASK_GRANT:
        e->lease = answer->lease;
        e->alive_ns = answer->sent_ns;
        e->beat_due_ns = e->now_ns + ttl_ns(e) / BEATS;
        break;
    case ASK_REGISTER:
        e->listing = answer->has_succeeded ? e->asked_listing : KVP_ELECTION_UNLISTED;
        break;
    case ASK_READ:
        take_keys(e, answer);
        break;
    case ASK_CAMPAIGN:
        on_won(e, answer);
        break;
    case ASK_TERM:
        took_term(e, answer);
        break;
    case ASK_INSYNC:
        wrote_insync(e, answer);
        break;
    case ASK_RESIGN:
        begin_following(e);
        break;
    default:
        break;
    }
}

static void
on_failed(kvp_election_t *e, kvp_err_t err)
{
    e->again_ns = e->now_ns + AGAIN_NS;
    e->read_due_ns = 0;
    if (e->op_purpose == ASK_INSYNC)
        e->is_insync_due = true; /* the in-sync set was perhaps not written: write it again */
    /* NOT_FOUND: the lease on which the write depends has expired */
    if (err == KVP_NOT_FOUND && e->op_purpose != ASK_READ) lose_lease(e);
}

static void
answered_beat(kvp_election_t *e, const kvp_etcd_answer_t *answer)
{
    e->beat_state = KVP_ELECTION_IDLE;
    e->beat_due_ns = e->now_ns + (answer->err == KVP_OK ? ttl_ns(e) / BEATS : AGAIN_NS);
    if (answer->err == KVP_NOT_FOUND)
        lose_lease(e);
    else if (answer->err == KVP_OK && answer->lease == e->lease)
        e->alive_ns = kvp_max_u64(e->alive_ns, KVP_RULE(LEASE_FROM_SENT) ? answer->sent_ns : e->now_ns);
}

void
kvp_election_answer(kvp_election_t *e, const kvp_etcd_answer_t *answer, uint64_t now_ns)
{
    e->now_ns = now_ns;
    if (e->beat_state == KVP_ELECTION_SENT && answer->id == e->beat.id) {
        answered_beat(e, answer);
    } else if (e->op_state == KVP_ELECTION_SENT && answer->id == e->op.id) {
        e->op_state = KVP_ELECTION_IDLE;
        if (answer->err == KVP_OK)
            on_answered(e, answer);
        else
            on_failed(e, answer->err);
    }
    renew_lease(e);
    take_next_step(e);
}
