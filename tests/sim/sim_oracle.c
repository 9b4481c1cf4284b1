/* SPDX-License-Identifier: Apache-2.0
 * The oracle at the clients' door: what each call was told, held against all that was put, removed and acknowledged. */
#include "tests/sim/sim_oracle_priv.h"
#include "tests/sim/sim_tier.h"

#include <stdlib.h>
#include <string.h>

void
oracle_init(sim_t *s)
{
    s->oracle = sim_alloc(s, sizeof *s->oracle);
}

void
oracle_fini(sim_t *s)
{
    free(s->oracle->puts);
}

/* ---- what clients are told */
put_t *
oracle_put_begins(sim_t *s, uint32_t key, uint64_t len)
{
    oracle_t *o = s->oracle;
    put_t *put = sim_alloc(s, sizeof *put);

    if (o->puts_n + 1 >= o->puts_cap) {
        o->puts_cap = o->puts_cap == 0 ? 256 : o->puts_cap * 2;
        o->puts = realloc(o->puts, o->puts_cap * sizeof(*o->puts));
        if (o->puts == NULL) abort();
    }
    *put = (put_t){
        .id = ++o->puts_n,
        .key = key,
        .len = len,
        .begun_ns = s->now,
        .acked_ns = UINT64_MAX,
        .gone_ns = UINT64_MAX,
        .revoked_ns = UINT64_MAX,
        .older = o->keys[key],
    };
    o->puts[put->id] = put;
    o->keys[key] = put;
    return put;
}

/* A later master than the one that answered may have been told of it already, by a node that had not heard that it is
 * gone. */
static bool
is_told_to_later_master(const put_t *put, const ended_t *call)
{
    return put->told_term > call->term && put->proof_term < put->told_term;
}

/* Every version of the key that was acknowledged before then is gone: of known locations, when their lease is over, or
 * already, if the call waited for it. */
static void
older_are_gone(sim_t *s, uint32_t key, const ended_t *call, const char *rule)
{
    for (put_t *p = s->oracle->keys[key]; p != NULL; p = p->older) {
        if (p->acked_ns > call->begun_ns) continue;
        if (p->gone_ns == UINT64_MAX && !p->is_excused) p->rule = rule;
        p->gone_term = (uint32_t)kvp_max_u64(p->gone_term, call->term);
        if (is_told_to_later_master(p, call)) {
            p->is_excused = true;
            continue;
        }
        p->gone_ns = kvp_min_u64(p->gone_ns, s->now);
        if (call->has_waited) p->revoked_ns = kvp_min_u64(p->revoked_ns, s->now);
    }
}

static bool
was_commit_sent(const sim_t *s, uint32_t key)
{
    for (const put_t *put = s->oracle->keys[key]; put != NULL; put = put->older)
        if (put->is_commit_sent) return true;
    return false;
}

void
oracle_put_ends(sim_t *s, put_t *put, bool has_waited, kvp_err_t err)
{
    /* OK is also what the call says of a key that another put had committed. */
    if (err != KVP_OK) return;
    if (put->is_committed) {
        older_are_gone(s, put->key, &(ended_t){put->begun_ns, put->term, has_waited}, "I1");
        put->acked_ns = s->now;
    } else if (!was_commit_sent(s, put->key)) {
        sim_fail(s, "I3", "a put of key %u is answered OK, and none was ever committed", put->key);
    }
}

void
oracle_remove_ends(sim_t *s, uint32_t key, const ended_t *call, kvp_err_t err)
{
    if (err == KVP_OK || err == KVP_NOT_FOUND) older_are_gone(s, key, call, "I6");
}

/* ---- keys: each tenant's are numbered on behind those of the one before */
static uint32_t
keys_each(const sim_t *s)
{
    return s->plan->keys + CLIENTS_MAX;
}

uint32_t
oracle_key(const sim_t *s, uint32_t tenant, uint32_t k)
{
    return tenant * keys_each(s) + k;
}

bool
oracle_key_matches(const sim_t *s, uint32_t key, const char *pattern)
{
    char name[16];

    if (pattern[0] == '\0') return true;
    if (key % keys_each(s) >= s->plan->keys) return false; /* of a proof of life */
    snprintf(name, sizeof name, "k%u", key % keys_each(s));
    return strncmp(name, pattern + 1, strlen(pattern + 1)) == 0;
}

static void
all_are_gone(sim_t *s, uint32_t tenant, const char *pattern, const ended_t *call)
{
    uint32_t first = oracle_key(s, tenant, 0);

    for (uint32_t key = first; key < first + keys_each(s); key++)
        if (pattern == NULL || oracle_key_matches(s, key, pattern)) older_are_gone(s, key, call, "I6");
}

void
oracle_pattern_removed(sim_t *s, uint32_t tenant, const char *pattern, const ended_t *call)
{
    all_are_gone(s, tenant, pattern, call);
}

void
oracle_bumped(sim_t *s, uint32_t tenant, const ended_t *call)
{
    all_are_gone(s, tenant, NULL, call);
}

/* ---- what gets give */
/* False where the bytes are not those of one put of that key. */
static bool
is_of_one_put(sim_t *s, const got_t *got)
{
    uint64_t id = got->units[0] >> 16;
    const put_t *put;

    if (id == 0 || id > s->oracle->puts_n) {
        sim_fail(s, "I1", "key %u: a get gave bytes that nobody wrote", got->key);
        return false;
    }
    put = s->oracle->puts[id];
    for (uint32_t i = 0; i < (got->len + UNIT - 1) / UNIT; i++)
        if (got->units[i] != unit_make(id, i)) {
            sim_fail(s, "I1", "key %u: a get gave put %lu and, in unit %u, put %lu unit %lu", got->key,
                     (unsigned long)id, i, (unsigned long)(got->units[i] >> 16),
                     (unsigned long)(got->units[i] & 0xffff));
            return false;
        }
    if (put->key != got->key)
        sim_fail(s, "I1", "a get of key %u gave put %lu of key %u", got->key, (unsigned long)id, put->key);
    else if (put->len != got->len)
        sim_fail(s, "I1", "key %u: a get gave %lu bytes of put %lu, which has %lu", got->key, (unsigned long)got->len,
                 (unsigned long)id, (unsigned long)put->len);
    else if (!put->is_commit_sent)
        sim_fail(s, "I1", "key %u: a get gave put %lu, never committed", got->key, (unsigned long)id);
    else
        return true;
    return false;
}

void
oracle_got(sim_t *s, const got_t *got)
{
    const put_t *put;

    if (!is_of_one_put(s, got)) return;
    if (got->is_of_elder) return;
    put = s->oracle->puts[got->units[0] >> 16];
    if (got->has_epoch && put->epoch != 0 && put->epoch != got->epoch + 1)
        sim_fail(s, "EPOCH", "key %u: a get for epoch %u gave put %lu of epoch %u", got->key, got->epoch,
                 (unsigned long)put->id, put->epoch - 1);
    /* A clock that stepped measures no lease: it costs the newest version, not the bytes. */
    if (got->is_known && s->has_stepped) return;
    if (got->at_ns > put->revoked_ns)
        sim_fail(s, put->rule, "key %u: a get gave put %lu, revoked since %.3f us", got->key, (unsigned long)put->id,
                 (double)put->revoked_ns / 1e3);
    else if (put->gone_ns != UINT64_MAX && got->at_ns > put->gone_ns + got->lease_ns)
        sim_fail(s, put->rule, "key %u: a get gave put %lu, gone since %.3f us", got->key, (unsigned long)put->id,
                 (double)put->gone_ns / 1e3);
}

/* ---- buffers */
#define POISON 0xdeadbeefdeadbeefull

void
oracle_returned(sim_t *s, uint64_t *units, uint32_t n)
{
    returned_t *r = sim_alloc(s, sizeof *r);

    for (uint32_t i = 0; i < n; i++)
        units[i] = POISON;
    *r = (returned_t){units, n, s->oracle->returned};
    s->oracle->returned = r;
}

static void
check_returned(sim_t *s)
{
    for (const returned_t *r = s->oracle->returned; r != NULL; r = r->next)
        for (uint32_t i = 0; i < r->n; i++)
            if (r->units[i] != POISON) {
                sim_fail(s, "I4", "the buffer of a get was written after it had returned");
                return;
            }
}

/* ---- nodes */
void
oracle_node_kills(sim_t *s, const mem_t *mem, uint32_t chunk, uint32_t slot, uint64_t before)
{
    const grant_t *g = grant_find(mem, chunk, slot, kvp_word_generation(before));

    if (g == NULL || kvp_word_state(before) != KVP_DESC_SEALED) return;
    if (!grant_is_served_for_ever(g)) return;
    sim_fail(s, "I3", "node%u makes slot %u generation %lx DEAD, which is committed and not retired", mem->node, slot,
             (unsigned long)g->generation);
}

void
oracle_node_kept(sim_t *s, uint32_t node, uint32_t term)
{
    s->oracle->terms[node] = term;
}

void
oracle_node_lost(sim_t *s, uint32_t node)
{
    s->oracle->terms[node] = 0;
}

void
oracle_node_obeys(sim_t *s, uint32_t node, uint32_t term)
{
    if (term < s->oracle->terms[node])
        sim_fail(s, "I5", "node%u obeys an order of term %u in term %u", node, term, s->oracle->terms[node]);
}

void
oracle_node_term(sim_t *s, uint32_t node, uint32_t term)
{
    if (term < s->oracle->terms[node])
        sim_fail(s, "I5", "node%u obeys term %u after term %u", node, term, s->oracle->terms[node]);
    s->oracle->terms[node] = term;
}

/* ---- at the end */
static void
check_found(sim_t *s)
{
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (known_t *k = s->oracle->known[b]; k != NULL; k = k->next)
            if (k->was_missed && grant_is_served_for_ever(k->grant))
                sim_fail(s, "I3", "slot %u generation %lx of put %lu is committed, not retired, and was not found",
                         k->grant->slot, (unsigned long)k->grant->generation, (unsigned long)k->grant->put);
}

void
oracle_rest(sim_t *s)
{
    kvp_master_stats_t st;

    master_stats(s, &st);
    if (st.reserved_bytes != 0)
        sim_fail(s, "I8", "%lu bytes are reserved, though every reservation is over", (unsigned long)st.reserved_bytes);
}

void
oracle_end(sim_t *s)
{
    kvp_master_stats_t st;
    const char *broken = master_check(s);

    if (broken != NULL) sim_fail(s, "CHECK", "master: %s", broken);
    master_stats(s, &st);
    if (st.quarantine_bytes != 0)
        sim_fail(s, "I9", "%lu bytes in quarantine without clients", (unsigned long)st.quarantine_bytes);
    if (st.retiring_bytes != 0)
        sim_fail(s, "I9", "%lu bytes retiring without clients", (unsigned long)st.retiring_bytes);
    if (st.attempts != 0 || st.clients != 0 || st.pending_puts != 0 || st.held_bytes != 0 || st.reserved_bytes != 0)
        sim_fail(s, "I9", "left without clients: attempts %lu clients %lu pending %lu held %lu reserved %lu",
                 (unsigned long)st.attempts, (unsigned long)st.clients, (unsigned long)st.pending_puts,
                 (unsigned long)st.held_bytes, (unsigned long)st.reserved_bytes);
    if (st.nodes != s->plan->nodes)
        sim_fail(s, "LIVENESS", "%lu of %u nodes are mounted", (unsigned long)st.nodes, s->plan->nodes);
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        if (node_unfree(s, i) != 0)
            sim_fail(s, "I9", "node %u: %lu extents are not free without clients", i, (unsigned long)node_unfree(s, i));
    check_found(s);
    groups_end(s);
    tier_end(s);
    check_returned(s);
}
