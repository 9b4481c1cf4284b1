/* SPDX-License-Identifier: Apache-2.0
 * elect: three masters' elections and in-sync sets, as they are shipped, over a model of etcd, with requests that are
 * late or lost, masters that die, stop and go on, partitions, and an etcd that does not answer for a while. A log is
 * a list of numbers here; a standby has the leader's as far as it has come.
 *
 *   elect --seeds A:B       runs these seeds, with all rules
 *   elect --rules N         switches each election rule off in turn: some of the first N seeds must find out
 *
 * What must hold:
 *   TERM    each lead is in a higher term than all before it
 *   ONE     no two masters act at one time: clocks run alike here
 *   GONE    who leads, and was not alone with what it knows (is_unsafe), has all that was acknowledged
 *   LEVEL   who leads, and takes its log for level with the leader's before, has all of that
 *   KEY     who leads in calm does so in a term that is not below the key's
 *   UNSAFE  nobody leads so while a member of the set was there for long
 *   ALIVE   in calm, one leads within ten seconds, and all are in sync */
#include "common/mutate.h"
#include "master/ha/election.h"
#include "master/ha/insync.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define US 1000ull
#define MS 1000000ull
#define SEC 1000000000ull
#define MASTERS 3u
#define TTL_S 2u
#define LOG_MAX 20000u
#define STORM_NS (40 * SEC) /* faults happen until then, */
#define CALM_NS (12 * SEC) /* and none in that */
#define THERE_NS (3500 * MS) /* for so long a member could have been elected */
#define STEP_NS (5 * MS)
#define KEYS_MAX 32u
#define MAIL_MAX 64u

kvp_rule_t kvp_rule_off;

/* ---- the model of etcd */
typedef struct {
    int64_t id; /* 0 = free */
    uint64_t until_ns;
    uint32_t ttl_s;
} lease_t;

typedef struct {
    kvp_etcd_kv_t keys[KEYS_MAX]; /* key "" = free */
    lease_t leases[16];
    int64_t revision, lease_seq;
    char set_before[128]; /* the in-sync set in front of the term that was written last */
    uint64_t down_until_ns, swept_ns;
} etcd_t;

/* A request or an answer on its way. */
typedef struct {
    uint64_t at_ns; /* 0 = free */
    uint32_t who, life;
    bool is_answer;
    bool is_unsent; /* where its master stops before it arrives, it leaves only after that */
    uint64_t sent_ns;
    kvp_etcd_op_t op;
    kvp_etcd_answer_t answer;
} mail_t;

typedef struct {
    kvp_election_t e;
    kvp_insync_t insync;
    uint32_t life;
    uint64_t down_until_ns, stopped_until_ns, cut_until_ns; /* dead; stopped; away from etcd and the others */
    uint64_t stuck_until_ns; /* it gets no more of the log */
    uint32_t log[LOG_MAX], len;
    uint32_t log_term;
    bool leads; /* as it knows itself */
    uint32_t led_term;
    uint64_t acked; /* of its log, as a leader */
    uint64_t handing_until_ns; /* as a leader in a planned switch: it acts no more; 0 = not */
    bool has_told; /* a standby that there will be no more */
    uint32_t fed_term, level_term; /* as a standby: of whom it follows; in which it was told that */
    uint64_t up_ns; /* since when it is there and could be elected */
} master_t;

typedef struct {
    uint64_t seed, rng, now;
    etcd_t etcd;
    mail_t mail[MAIL_MAX];
    master_t m[MASTERS];
    uint32_t entry_seq;
    uint32_t acked[LOG_MAX], acked_n; /* numbers that were acknowledged, by whomever */
    uint32_t terms_max;
    uint32_t led[LOG_MAX], led_n; /* the log of the last leader */
    char failure[256];
} world_t;

static uint64_t
draw(world_t *w, uint64_t n)
{
    w->rng += 0x9e3779b97f4a7c15ull;
    uint64_t z = w->rng;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (z ^ z >> 31) % n;
}

static void fail(world_t *w, const char *fmt, ...) KVP_PRINTF(2, 3);

static void
fail(world_t *w, const char *fmt, ...)
{
    va_list ap;

    if (w->failure[0] != '\0') return;
    va_start(ap, fmt);
    vsnprintf(w->failure, sizeof w->failure, fmt, ap);
    va_end(ap);
}

static kvp_etcd_kv_t *
key_at(etcd_t *t, const char *key)
{
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (strcmp(t->keys[i].key, key) == 0) return &t->keys[i];
    return NULL;
}

static lease_t *
lease_at(etcd_t *t, int64_t id)
{
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(t->leases); i++)
        if (id != 0 && t->leases[i].id == id) return &t->leases[i];
    return NULL;
}

static void
end_lease(etcd_t *t, lease_t *l)
{
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (t->keys[i].key[0] != '\0' && t->keys[i].lease == l->id) {
            memset(&t->keys[i], 0, sizeof t->keys[i]);
            t->revision++;
        }
    l->id = 0;
}

static bool
holds(etcd_t *t, const kvp_etcd_compare_t *c)
{
    const kvp_etcd_kv_t *kv = key_at(t, c->key);

    return (kv == NULL ? 0 : c->is_mod ? kv->mod_revision : kv->create_revision) == c->revision;
}

static void
txn(etcd_t *t, const kvp_etcd_op_t *op, kvp_etcd_answer_t *a)
{
    for (uint32_t i = 0; i < op->writes_n; i++)
        if (op->writes[i].lease != 0 && lease_at(t, op->writes[i].lease) == NULL) a->err = KVP_NOT_FOUND;
    for (uint32_t i = 0; i < op->compares_n; i++)
        if (!holds(t, &op->compares[i])) return;
    if (a->err != KVP_OK) return;
    for (uint32_t i = 0; i < op->writes_n; i++)
        if (strstr(op->writes[i].key, "/term") != NULL) {
            const kvp_etcd_kv_t *set = key_at(t, "/kvpool/t/insync");

            snprintf(t->set_before, sizeof t->set_before, "%.100s", set == NULL ? "" : set->value);
        }
    t->revision++;
    a->has_succeeded = true;
    a->revision = t->revision;
    for (uint32_t i = 0; i < op->writes_n; i++) {
        kvp_etcd_kv_t *kv = key_at(t, op->writes[i].key);

        if (op->writes[i].is_removal) {
            if (kv != NULL) memset(kv, 0, sizeof *kv);
            continue;
        }
        if (kv == NULL) {
            kv = key_at(t, "");
            memcpy(kv->key, op->writes[i].key, sizeof kv->key);
            kv->create_revision = t->revision;
        }
        memcpy(kv->value, op->writes[i].value, sizeof kv->value);
        kv->mod_revision = t->revision;
        kv->lease = op->writes[i].lease;
    }
}

static void
serve(world_t *w, const kvp_etcd_op_t *op, kvp_etcd_answer_t *a)
{
    etcd_t *t = &w->etcd;
    lease_t *l = lease_at(t, op->lease);

    switch (op->kind) {
    case KVP_ETCD_GRANT:
        for (uint32_t i = 0; i < KVP_ARRAY_LEN(t->leases); i++)
            if (t->leases[i].id == 0) {
                t->leases[i] = (lease_t){++t->lease_seq, w->now + op->ttl_s * SEC, op->ttl_s};
                a->lease = t->lease_seq;
                break;
            }
        break;
    case KVP_ETCD_KEEP_ALIVE:
        a->lease = op->lease;
        if (l == NULL)
            a->err = KVP_NOT_FOUND;
        else
            l->until_ns = w->now + l->ttl_s * SEC;
        break;
    case KVP_ETCD_REVOKE:
        if (l != NULL) end_lease(t, l);
        break;
    case KVP_ETCD_READ:
        a->kvs = calloc(KEYS_MAX, sizeof *a->kvs);
        for (uint32_t i = 0; i < KEYS_MAX; i++)
            if (t->keys[i].key[0] != '\0') a->kvs[a->kvs_n++] = t->keys[i];
        break;
    case KVP_ETCD_TXN:
        txn(t, op, a);
        break;
    }
    if (op->kind != KVP_ETCD_TXN) a->revision = t->revision;
}

/* Leases that are over are looked for twice a second. When it is back after a time in which it served nobody, all begin
 * anew. */
static void
etcd_step(world_t *w)
{
    etcd_t *t = &w->etcd;

    if (w->now < t->down_until_ns || w->now - t->swept_ns < 500 * MS) return;
    t->swept_ns = w->now;
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(t->leases); i++)
        if (t->leases[i].id != 0 && t->leases[i].until_ns < w->now) {
            end_lease(t, &t->leases[i]);
            for (uint32_t k = 0; k < MASTERS; k++) /* the watch tells */
                if (w->now >= w->m[k].cut_until_ns && w->now >= w->m[k].down_until_ns) kvp_election_changed(&w->m[k].e);
        }
}

/* ---- the network */
static mail_t *
post(world_t *w, uint32_t who, bool is_answer)
{
    for (uint32_t i = 0; i < MAIL_MAX; i++)
        if (w->mail[i].at_ns == 0) {
            memset(&w->mail[i], 0, sizeof w->mail[i]);
            w->mail[i].who = who;
            w->mail[i].life = w->m[who].life;
            w->mail[i].is_answer = is_answer;
            w->mail[i].at_ns = w->now + (draw(w, 20) == 0 ? draw(w, 450 * MS) : draw(w, 5 * MS)) + 100 * US;
            return &w->mail[i];
        }
    abort();
}

static bool
is_away(const world_t *w, uint32_t who)
{
    return w->now < w->m[who].cut_until_ns || w->now < w->etcd.down_until_ns;
}

static void
answer_failure(world_t *w, const mail_t *ask, kvp_err_t err, uint64_t at_ns)
{
    mail_t *back = post(w, ask->who, true);

    back->at_ns = at_ns;
    back->life = ask->life;
    back->answer = (kvp_etcd_answer_t){.kind = ask->op.kind, .id = ask->op.id, .err = err, .sent_ns = ask->sent_ns};
}

static void
deliver_ask(world_t *w, mail_t *ask)
{
    const uint64_t late_ns = ask->sent_ns + 500 * MS > w->now ? ask->sent_ns + 500 * MS : w->now;
    const bool is_lost = draw(w, 50) == 0;
    kvp_etcd_answer_t a = {.kind = ask->op.kind, .id = ask->op.id, .sent_ns = ask->sent_ns};
    mail_t *back;

    if (is_away(w, ask->who)) {
        answer_failure(w, ask, KVP_UNREACHABLE, late_ns);
        return;
    }
    serve(w, &ask->op, &a);
    if (is_lost) { /* it was done, and nobody hears of it */
        free(a.kvs);
        answer_failure(w, ask, KVP_DEADLINE, late_ns);
        return;
    }
    back = post(w, ask->who, true);
    back->life = ask->life;
    back->answer = a;
}

static void
deliver(world_t *w)
{
    for (uint32_t i = 0; i < MAIL_MAX; i++) {
        mail_t *mail = &w->mail[i];
        master_t *m = &w->m[mail->who];

        if (mail->at_ns == 0 || mail->at_ns > w->now) continue;
        if (mail->is_answer && w->now < m->stopped_until_ns) continue; /* it lies in the socket */
        if (!mail->is_answer && w->now < m->stopped_until_ns && mail->is_unsent)
            continue; /* or has not got there yet */
        mail_t taken = *mail;

        mail->at_ns = 0;
        if (!taken.is_answer)
            deliver_ask(w, &taken);
        else if (taken.life == m->life && w->now >= m->down_until_ns)
            kvp_election_answer(&m->e, &taken.answer, w->now);
        if (taken.is_answer) free(taken.answer.kvs);
    }
}

/* ---- masters */
static bool
runs(const world_t *w, uint32_t i)
{
    return w->now >= w->m[i].down_until_ns && w->now >= w->m[i].stopped_until_ns;
}

static bool
acts(const world_t *w, uint32_t i)
{
    return w->m[i].leads && w->m[i].handing_until_ns == 0 && w->now < kvp_election_act_until(&w->m[i].e);
}

static const char *
id_of(uint32_t i)
{
    static const char *const ids[MASTERS] = {"a", "b", "c"};
    return ids[i];
}

static void
begin(world_t *w, uint32_t i)
{
    kvp_election_master_t self = {.address = "h:1"};
    master_t *m = &w->m[i];

    strcpy(self.id, id_of(i));
    m->life++;
    m->leads = false;
    m->fed_term = m->level_term = 0;
    memset(&m->insync, 0, sizeof m->insync);
    kvp_election_init(&m->e, "t", &self, TTL_S, w->seed + i + 1, w->now);
    m->up_ns = w->now;
}

static bool
has(const master_t *m, uint32_t entry)
{
    for (uint32_t i = m->len; i-- > 0;)
        if (m->log[i] == entry) return true;
    return false;
}

/* Of members of the set that was written before this lead, somebody was there to take it. */
static bool
had_member(const world_t *w, uint32_t self)
{
    for (uint32_t i = 0; i < MASTERS; i++) {
        const master_t *m = &w->m[i];
        uint64_t since = kvp_max_u64(kvp_max_u64(m->cut_until_ns, m->up_ns), m->stopped_until_ns);

        since = kvp_max_u64(kvp_max_u64(since, w->etcd.down_until_ns), m->stuck_until_ns);
        if (i != self && strstr(w->etcd.set_before, id_of(i)) != NULL && runs(w, i) && w->now >= since + THERE_NS)
            return true;
    }
    return false;
}

static void
lead(world_t *w, uint32_t i)
{
    master_t *m = &w->m[i];

    if (kvp_election_is_level(&m->e, m->log_term, m->level_term) &&
        (m->len < w->led_n || memcmp(m->log, w->led, w->led_n * sizeof *w->led) != 0))
        fail(w, "LEVEL at %.3f s: %s leads in term %u without all of term %u", (double)w->now / 1e9, id_of(i),
             m->e.own_term, w->terms_max);
    m->leads = true;
    m->level_term = 0;
    m->handing_until_ns = 0;
    m->has_told = false;
    m->led_term = m->e.own_term;
    if (m->e.own_term <= w->terms_max)
        fail(w, "TERM at %.3f s: %s leads in term %u, and %u was before", (double)w->now / 1e9, id_of(i), m->e.own_term,
             w->terms_max);
    w->terms_max = m->e.own_term;
    m->log_term = m->e.own_term;
    for (uint32_t k = 0; k < w->acked_n && !m->e.is_unsafe; k++)
        if (!has(m, w->acked[k])) {
            fail(w, "GONE at %.3f s: %s leads in term %u without entry %u", (double)w->now / 1e9, id_of(i),
                 m->e.own_term, w->acked[k]);
            break;
        }
    if (m->e.is_unsafe && had_member(w, i))
        fail(w, "UNSAFE at %.3f s: %s leads in term %u", (double)w->now / 1e9, id_of(i), m->e.own_term);
    if (m->e.is_unsafe) { /* what only others knew is lost, as it says */
        uint32_t n = 0;

        for (uint32_t k = 0; k < w->acked_n; k++)
            if (has(m, w->acked[k])) w->acked[n++] = w->acked[k];
        w->acked_n = n;
    }
    m->acked = 0;
    for (uint32_t k = 0; k < w->acked_n; k++)
        for (uint32_t at = 0; at < m->len; at++)
            if (m->log[at] == w->acked[k] && at + 1 > m->acked) m->acked = at + 1;
    m->log[m->len++] = ++w->entry_seq; /* TERM */
    memcpy(w->led, m->log, m->len * sizeof *w->led);
    w->led_n = m->len;
}

static void
acknowledge(world_t *w, master_t *m)
{
    kvp_election_set_t members;
    uint64_t have;

    kvp_election_insync(&m->e, &members);
    have = kvp_insync_all_have(&m->insync, &members, m->e.self.id);
    for (; m->acked < m->len && m->acked < have; m->acked++)
        w->acked[w->acked_n++] = m->log[m->acked];
}

/* In a planned switch the lead is given up when a standby is level; also later, if one was told that there will be no
 * more. */
static void
hand_over(world_t *w, master_t *m)
{
    bool is_level = false;

    for (uint32_t k = 0; k < MASTERS; k++)
        is_level |= w->m[k].level_term == m->led_term && w->m[k].len == m->len;
    if (is_level || (w->now >= m->handing_until_ns && m->has_told))
        kvp_election_resign(&m->e);
    else if (w->now >= m->handing_until_ns)
        m->handing_until_ns = 0;
}

static void
lead_on(world_t *w, uint32_t i)
{
    master_t *m = &w->m[i];
    kvp_election_set_t wanted;

    if (m->e.role != KVP_ELECTION_LEADS) {
        m->leads = false;
        memset(&m->insync, 0, sizeof m->insync);
        return;
    }
    if (m->handing_until_ns != 0) hand_over(w, m);
    if (!acts(w, i)) return;
    if (draw(w, 4) == 0 && m->len < LOG_MAX - 100) {
        m->log[m->len++] = ++w->entry_seq;
        if (m->led_term == w->terms_max) w->led[w->led_n++] = w->entry_seq;
    }
    kvp_insync_tick(&m->insync, m->acked, m->len, w->now);
    kvp_insync_members(&m->insync, id_of(i), &wanted);
    kvp_election_want_insync(&m->e, &wanted);
    acknowledge(w, m);
}

/* A standby has some more of the leader's log, from where they are the same. */
static void
follow(world_t *w, uint32_t i)
{
    master_t *m = &w->m[i];

    for (uint32_t k = 0; k < MASTERS; k++) {
        master_t *l = &w->m[k];
        uint32_t same = 0;

        if (k == i || !l->leads || !runs(w, k) || strcmp(m->e.leader.id, id_of(k)) != 0 ||
            m->e.leader_term != l->led_term || w->now < m->cut_until_ns || w->now < l->cut_until_ns) {
            if (k != i && l->leads && runs(w, k)) kvp_insync_del(&l->insync, id_of(i));
            continue;
        }
        while (same < m->len && same < l->len && m->log[same] == l->log[same])
            same++;
        m->len = same;
        if (draw(w, 40) == 0 || w->now < m->stuck_until_ns) return; /* it does not get on now */
        if (m->fed_term != l->led_term) m->level_term = 0;
        m->fed_term = l->led_term;
        for (uint64_t n = draw(w, 8); n > 0 && m->len < l->len; n--, m->len++)
            m->log[m->len] = l->log[m->len];
        if (m->len == l->len) m->log_term = l->led_term;
        if (m->len == l->len && l->handing_until_ns != 0) {
            m->level_term = l->led_term;
            l->has_told = true;
        }
        if (kvp_insync_find(&l->insync, id_of(i)) == NULL) (void)kvp_insync_add(&l->insync, id_of(i), m->len, w->now);
        kvp_insync_wrote(&l->insync, id_of(i), m->len, l->len, w->now);
        return;
    }
}

static void
master_step(world_t *w, uint32_t i)
{
    const kvp_election_pool_t pool = {.is_known = true, .digest_seed = 1};
    master_t *m = &w->m[i];
    kvp_etcd_op_t op;

    kvp_election_ready(&m->e, true, false, m->log_term, &pool);
    kvp_election_tick(&m->e, w->now);
    if (m->leads) lead_on(w, i);
    if (!m->leads && m->e.role == KVP_ELECTION_LEADS && m->e.own_term > m->log_term) lead(w, i);
    if (!m->leads) follow(w, i);
    while (kvp_election_take(&m->e, &op)) {
        mail_t *mail = post(w, i, false);

        mail->op = op;
        mail->is_unsent = draw(w, 2) == 0;
        mail->sent_ns = w->now;
    }
}

/* An operator writes a higher term. */
static void
raise_key(world_t *w)
{
    kvp_etcd_kv_t *kv = key_at(&w->etcd, "/kvpool/t/term");

    if (kv == NULL) return;
    snprintf(kv->value, sizeof kv->value, "%lu", strtoul(kv->value, NULL, 10) + 1 + draw(w, 3));
    kv->mod_revision = ++w->etcd.revision;
}

static void
check_one(world_t *w)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < MASTERS; i++)
        n += acts(w, i) && w->now >= w->m[i].down_until_ns;
    if (n > 1) fail(w, "ONE at %.3f s: %u masters act", (double)w->now / 1e9, n);
}

static void
fault(world_t *w)
{
    uint32_t i = (uint32_t)draw(w, MASTERS);
    uint64_t until = w->now + draw(w, draw(w, 2) == 0 ? 8 * SEC : 900 * MS);

    switch (draw(w, 11)) {
    case 10:
        raise_key(w);
        break;
    case 0:
    case 1:
        w->m[i].down_until_ns = until;
        w->m[i].life++;
        w->m[i].leads = false;
        break;
    case 2:
    case 3:
        w->m[i].stopped_until_ns = until;
        break;
    case 4:
        w->m[i].cut_until_ns = until;
        break;
    case 5:
        w->etcd.down_until_ns = until;
        for (uint32_t k = 0; k < KVP_ARRAY_LEN(w->etcd.leases); k++)
            if (w->etcd.leases[k].id != 0) w->etcd.leases[k].until_ns = until + w->etcd.leases[k].ttl_s * SEC;
        break;
    case 6:
    case 7:
        w->m[i].stuck_until_ns = until;
        break;
    case 8: /* it stops before what it asks has left */
        w->m[i].stopped_until_ns = w->now + 2500 * MS + draw(w, 3 * SEC);
        for (uint32_t k = 0; k < MAIL_MAX; k++)
            if (w->mail[k].at_ns != 0 && w->mail[k].who == i) w->mail[k].is_unsent = true;
        break;
    default:
        if (w->m[i].leads && draw(w, 4) == 0)
            kvp_election_resign(&w->m[i].e);
        else if (w->m[i].leads && w->m[i].handing_until_ns == 0)
            w->m[i].handing_until_ns = w->now + SEC;
        break;
    }
}

/* One leads in a term that is not below the key's, and all are in sync. Says what is wrong. */
static bool
is_well(const world_t *w, char why[128])
{
    uint32_t leaders = 0, insync = 0, term = 0;
    etcd_t etcd = w->etcd;
    const kvp_etcd_kv_t *kv = key_at(&etcd, "/kvpool/t/term");

    for (uint32_t i = 0; i < MASTERS; i++) {
        if (!acts(w, i)) continue;
        leaders++;
        insync = w->m[i].e.insync.n;
        term = w->m[i].led_term;
    }
    snprintf(why, 128, "ALIVE: %u lead at the end, %u are in sync", leaders, insync);
    if (leaders != 1 || insync != MASTERS) return false;
    snprintf(why, 128, "KEY: the leader is of term %u, and the key is above it", term);
    return kv != NULL && term >= strtoul(kv->value, NULL, 10);
}

/* False: a rule was broken, and *failure says which. */
static bool
run(uint64_t seed, char failure[256])
{
    world_t *w = calloc(1, sizeof *w);
    bool was_down[MASTERS] = {false};
    char why[128];

    w->seed = seed;
    w->rng = seed * 1000003 + 17;
    w->now = SEC;
    for (uint32_t i = 0; i < MASTERS; i++)
        begin(w, i);
    /* Renewals are lost in calm, too: a leader may be fenced for a moment. */
    while ((w->now < STORM_NS + CALM_NS || (w->now < STORM_NS + CALM_NS + 3 * SEC && !is_well(w, why))) &&
           w->failure[0] == '\0') {
        w->now += STEP_NS;
        if (w->now < STORM_NS - 8 * SEC && draw(w, 300) == 0) fault(w);
        etcd_step(w);
        deliver(w);
        for (uint32_t i = 0; i < MASTERS; i++) {
            bool is_down = w->now < w->m[i].down_until_ns;

            if (was_down[i] && !is_down) begin(w, i);
            was_down[i] = is_down;
            if (runs(w, i)) master_step(w, i);
            check_one(w);
        }
    }
    if (!is_well(w, why)) fail(w, "%s", why);
    memcpy(failure, w->failure, sizeof w->failure);
    for (uint32_t i = 0; i < MAIL_MAX; i++)
        if (w->mail[i].at_ns != 0) free(w->mail[i].answer.kvs);
    free(w);
    return failure[0] == '\0';
}

static const struct {
    const char *name;
    kvp_rule_t rule;
} rules[] = {
#define RULE(name, text) {#name, KVP_RULE_##name},
    KVP_ELECTION_RULES(RULE)
#undef RULE
};

/* The rare ones: the seed that found the rule last. Where histories have changed the search goes on, and begins at 0 in
 * the end. */
static const uint16_t last_found[] = {
    [KVP_RULE_LEASE_FROM_SENT] = 88, [KVP_RULE_SET_IF_LEADER] = 131, [KVP_RULE_SET_BEFORE_LEAD] = 291,
    [KVP_RULE_SET_MAY_STAND] = 1265, [KVP_RULE_LEVEL_OF_LAST] = 442,
};

static int
check_rules(uint64_t seeds)
{
    char failure[256];
    int rc = 0;

    for (size_t r = 0; r < KVP_ARRAY_LEN(rules); r++) {
        const uint64_t first = rules[r].rule < KVP_ARRAY_LEN(last_found) ? last_found[rules[r].rule] : 0;
        uint64_t n = 0;

        kvp_rule_off = rules[r].rule;
        while (n < seeds && run((first + n) % seeds, failure))
            n++;
        if (n == seeds) rc = 1;
        printf("%s, seed %llu: %s\n", rules[r].name, (unsigned long long)((first + n) % seeds),
               n < seeds ? failure : "NO SEED FOUND IT");
        fflush(stdout);
    }
    return rc;
}

int
main(int argc, char **argv)
{
    unsigned long long from = 0, to = 200;
    char failure[256];
    int broken = 0;

    if (argc == 3 && strcmp(argv[1], "--rules") == 0) return check_rules(strtoull(argv[2], NULL, 10));
    if (argc != 1 && (argc != 3 || strcmp(argv[1], "--seeds") != 0 || sscanf(argv[2], "%llu:%llu", &from, &to) != 2)) {
        fprintf(stderr, "usage: elect [--seeds A:B | --rules N]\n");
        return 2;
    }
    for (unsigned long long seed = from; seed < to; seed++)
        if (!run(seed, failure)) {
            printf("seed %llu: %s\n", seed, failure);
            broken++;
        }
    printf("seeds %llu violations %d\n", to - from, broken);
    return broken > 0;
}
