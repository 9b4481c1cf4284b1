/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The list is the process's, as is the fork guard's, because nodes know processes and not handles. A debt
 * that is being paid is not in it, so that two handles do not pay the same one. A forked child is another process: it owes
 * nothing.
 */
#include "client/control/drain_notices.h"

#include "common/clock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PAY_EACH_NS (100 * KVP_NS_PER_MS) /* so that one node leaves time for the others */
#define NODE_BACK_NS (60 * KVP_NS_PER_S) /* a node is back with a new master after this, or its memory is gone */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static kvp_debt_t *list; /* the oldest first; guarded by lock, like the two below */
static size_t list_n;
static size_t list_cap;

static void
before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void
after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void
after_fork_in_child(void)
{
    list_n = 0;
    pthread_mutex_unlock(&lock);
}

static void
install(void)
{
    /* It fails only for want of memory at the first debt; a child then says things that no node takes from it. */
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static bool
grow_locked(void)
{
    size_t cap = list_cap == 0 ? 16 : list_cap * 2;
    kvp_debt_t *more = realloc(list, cap * sizeof *more);

    if (more == NULL) return false;
    list = more;
    list_cap = cap;
    return true;
}

static void
remove_locked(size_t at)
{
    list_n--;
    memmove(list + at, list + at + 1, (list_n - at) * sizeof *list);
}

static void
keep_in_mind(const kvp_debt_t *debt)
{
    bool is_full, is_kept;

    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    is_full = list_n == KVP_DEBTS_MAX;
    if (is_full) remove_locked(0);
    is_kept = list_n < list_cap || grow_locked();
    if (is_kept) list[list_n++] = *debt;
    pthread_mutex_unlock(&lock);
    if (is_full || !is_kept)
        kvp_log_error("client", "%s: a node is not told that earlier writes are over before this process ends",
                      is_full ? "too much is owed to nodes" : "out of memory");
}

/* The pool's oldest, which is not in the list any more. */
static bool
take_oldest(const uint8_t pool_id[16], kvp_debt_t *debt_out)
{
    bool is_found = false;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < list_n && !is_found; i++) {
        is_found = memcmp(list[i].pool_id, pool_id, sizeof list[i].pool_id) == 0;
        if (!is_found) continue;
        *debt_out = list[i];
        remove_locked(i);
    }
    pthread_mutex_unlock(&lock);
    return is_found;
}

size_t
kvp_debts_count(const uint8_t pool_id[16])
{
    size_t n = 0;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < list_n; i++)
        n += memcmp(list[i].pool_id, pool_id, sizeof list[i].pool_id) == 0;
    pthread_mutex_unlock(&lock);
    return n;
}

static void
pay_or_keep(kvp_peers_t *peers, const kvp_debt_t *debt, uint64_t until_ns)
{
    uint64_t now = kvp_now_ns();
    kvp_debt_t kept = *debt;
    kvp_err_t err = KVP_DEADLINE;

    if (now < until_ns) err = kvp_peers_pay(peers, debt, kvp_min_u64(until_ns, now + PAY_EACH_NS));
    if (kept.until_ns == 0) kept.until_ns = now + NODE_BACK_NS;
    if (err == KVP_NO_SEGMENT && now >= kept.until_ns) return;
    if (err != KVP_OK) keep_in_mind(&kept);
}

void
kvp_debts_settle(kvp_peers_t *peers, uint64_t until_ns)
{
    kvp_debt_t *debts;
    size_t n;

    if (kvp_peers_debts(peers, &debts, &n) != KVP_OK) {
        /* What is not said keeps space in quarantine until this process ends: safe, and rare enough. */
        kvp_log_error("client", "out of memory: nodes are not told that earlier writes are over");
        return;
    }
    for (size_t i = 0; i < n; i++)
        pay_or_keep(peers, &debts[i], until_ns);
    free(debts);
}

void
kvp_debts_pay(kvp_peers_t *peers, uint64_t until_ns)
{
    const uint8_t *pool_id = kvp_peers_pool_id(peers);
    kvp_debt_t debt;

    for (size_t n = kvp_debts_count(pool_id); n > 0 && kvp_now_ns() < until_ns; n--)
        if (take_oldest(pool_id, &debt)) pay_or_keep(peers, &debt, until_ns);
}
