/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The list of waiting notices belongs to the process, because nodes know processes and not handles. A
 * notice that is being sent is not in the list, so two handles never send the same notice. A forked child is another
 * process and has no notices to send. */
#include "client/control/drain_notices.h"

#include "common/clock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SEND_EACH_NS (100 * KVP_NS_PER_MS) /* time limit for one drain notice; leaves time for other nodes' notices */
/* how long to repeat a drain notice to a node that the master does not know; by then the node has returned with a new
 * master, or its memory is closed */
#define NODE_BACK_NS (60 * KVP_NS_PER_S)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* lock of the list, a leaf: its holder takes no other lock */
static kvp_drain_notice_t *list; /* waiting drain notices, the oldest first; lock guards list, list_n and list_cap */
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
install_handlers(void)
{
    /* pthread_atfork fails only if memory is short. Without the handlers, a forked child would send its parent's
     * drain notices, which every node refuses. */
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void
remove_locked(size_t at)
{
    list_n--;
    memmove(list + at, list + at + 1, (list_n - at) * sizeof *list);
}

static void
keep_in_mind(const kvp_drain_notice_t *notice)
{
    kvp_drain_notice_t *more;
    bool is_full;

    pthread_once(&once, install_handlers);
    pthread_mutex_lock(&lock);
    is_full = list_n == KVP_DRAIN_NOTICES_MAX;
    if (is_full) remove_locked(0);
    more = kvp_grow(list, list_n, &list_cap, 16, sizeof *more);
    if (more != NULL) {
        list = more;
        list[list_n++] = *notice;
    }
    pthread_mutex_unlock(&lock);
    if (is_full || more == NULL)
        kvp_log_error("client", "%s: a node is not told that earlier writes are over before this process ends",
                      is_full ? "too many drain notices wait" : "out of memory");
}

/* Takes the oldest notice of the pool off the list. Returns false if there is none. */
static bool
take_oldest(const uint8_t pool_id[16], kvp_drain_notice_t *notice_out)
{
    bool is_found = false;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < list_n && !is_found; i++) {
        is_found = memcmp(list[i].pool_id, pool_id, sizeof list[i].pool_id) == 0;
        if (!is_found) continue;
        *notice_out = list[i];
        remove_locked(i);
    }
    pthread_mutex_unlock(&lock);
    return is_found;
}

size_t
kvp_drain_notices_count(const uint8_t pool_id[16])
{
    size_t n = 0;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < list_n; i++)
        n += memcmp(list[i].pool_id, pool_id, sizeof list[i].pool_id) == 0;
    pthread_mutex_unlock(&lock);
    return n;
}

static void
send_or_keep(kvp_peers_t *peers, const kvp_drain_notice_t *notice, uint64_t until_ns)
{
    uint64_t now = kvp_now_ns();
    kvp_drain_notice_t kept = *notice;
    kvp_err_t err = KVP_DEADLINE;

    if (now < until_ns) err = kvp_peers_send_drained(peers, notice, kvp_min_u64(until_ns, now + SEND_EACH_NS));
    if (kept.until_ns == 0) kept.until_ns = now + NODE_BACK_NS;
    if (err == KVP_NO_SEGMENT && now >= kept.until_ns) return;
    if (err != KVP_OK) keep_in_mind(&kept);
}

void
kvp_drain_notices_send(kvp_peers_t *peers, uint64_t until_ns)
{
    kvp_drain_notice_t *notices;
    size_t n;

    if (kvp_peers_drain_notices(peers, &notices, &n) != KVP_OK) {
        /* Without its notice, a node keeps space in quarantine until this process ends. This is safe, and rare. */
        kvp_log_error("client", "out of memory: nodes are not told that earlier writes are over");
        return;
    }
    for (size_t i = 0; i < n; i++)
        send_or_keep(peers, &notices[i], until_ns);
    free(notices);
}

void
kvp_drain_notices_resend(kvp_peers_t *peers, uint64_t until_ns)
{
    const uint8_t *pool_id = kvp_peers_pool_id(peers);
    kvp_drain_notice_t notice;

    for (size_t n = kvp_drain_notices_count(pool_id); n > 0 && kvp_now_ns() < until_ns; n--)
        if (take_oldest(pool_id, &notice)) send_or_keep(peers, &notice, until_ns);
}
