/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The cache has ENTRIES entries. An entry has a host name, which one thread is resolving or has resolved. All callers
 *   that need the name wait for this thread. If the names of all entries are being resolved, callers with another name
 *   wait for the first free entry. So there are never more threads than entries.
 * - A thread that is stuck in the resolver cannot be ended. Each thread has a reference to kvp_names, and the last
 *   reference frees everything. */
#include "net/names.h"

#include "common/waits.h"
#include "common/parse.h"
#include "common/thread.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define ENTRIES 8u
#define ADDRS_MAX 8u
#define FOUND_NS (5 * KVP_NS_PER_S) /* how long an answer of the resolver is used */
#define NOT_FOUND_NS (1 * KVP_NS_PER_S)

typedef struct {
    size_t n; /* number of addresses; 0 = the name does not exist */
    int gai; /* error of getaddrinfo, if n is 0 */
    bool was_found; /* an earlier answer had addresses */
    struct {
        struct sockaddr_storage addr; /* the address, with port 0 */
        socklen_t len;
    } at[ADDRS_MAX];
} addrs_t;

typedef struct {
    kvp_names_t *names;
    char host[KVP_HOST_MAX]; /* the host name; "" = unused entry; does not change while is_asked */
    bool is_asked; /* a thread is resolving the name */
    uint64_t until_ns; /* time until which the answer is used */
    addrs_t addrs;
} entry_t;

struct kvp_names {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signals a change of is_asked in some entry */
    uint32_t refs; /* references: one of the owner, one of each thread; lock guards this field and the entries */
    entry_t entries[ENTRIES];
};

/* ---- the resolver */
static void
ask_system(const char *host, int flags, addrs_t *addrs)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
    struct addrinfo *list;

    addrs->n = 0;
    addrs->gai = getaddrinfo(host, NULL, &hints, &list);
    if (addrs->gai != 0) return;
    for (const struct addrinfo *ai = list; ai != NULL && addrs->n < ADDRS_MAX; ai = ai->ai_next) {
        if (ai->ai_addrlen > sizeof addrs->at[0].addr) continue;
        memcpy(&addrs->at[addrs->n].addr, ai->ai_addr, ai->ai_addrlen);
        addrs->at[addrs->n++].len = ai->ai_addrlen;
    }
    freeaddrinfo(list);
}

/* Drops one reference and unlocks names->lock, which the caller holds. The last reference frees names. */
static void
unref_locked(kvp_names_t *names)
{
    bool is_last = --names->refs == 0;

    pthread_mutex_unlock(&names->lock);
    if (!is_last) return;
    pthread_cond_destroy(&names->changed);
    pthread_mutex_destroy(&names->lock);
    free(names);
}

static void *
resolve_in_thread(void *arg)
{
    entry_t *e = arg;
    kvp_names_t *names = e->names;
    addrs_t addrs;

    ask_system(e->host, 0, &addrs);
    pthread_mutex_lock(&names->lock);
    addrs.was_found = e->addrs.was_found || addrs.n > 0;
    e->addrs = addrs;
    e->until_ns = kvp_now_ns() + (addrs.n > 0 ? FOUND_NS : NOT_FOUND_NS);
    e->is_asked = false;
    pthread_cond_broadcast(&names->changed);
    unref_locked(names);
    return NULL;
}

/* ---- entries. The callers of the _locked functions hold names->lock. */
static entry_t *
find_locked(kvp_names_t *names, const char *host)
{
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (strcmp(names->entries[i].host, host) == 0) return &names->entries[i];
    return NULL;
}

/* Returns an unused entry, else the entry whose answer expires first; NULL = all names are being resolved. */
static entry_t *
oldest_locked(kvp_names_t *names)
{
    entry_t *oldest = NULL;

    for (uint32_t i = 0; i < ENTRIES; i++) {
        entry_t *e = &names->entries[i];

        if (!e->is_asked && (oldest == NULL || e->until_ns < oldest->until_ns)) oldest = e;
    }
    return oldest;
}

static kvp_err_t
ask_locked(kvp_names_t *names, entry_t *e, const char *host)
{
    if (strcmp(e->host, host) != 0) {
        *e = (entry_t){.names = names};
        memcpy(e->host, host, strlen(host) + 1);
    }
    if (!kvp_detach(resolve_in_thread, e)) return KVP_SYS;
    names->refs++;
    e->is_asked = true;
    return KVP_OK;
}

/* Looks up a host name in the cache, and starts a thread that resolves it if needed. OK; UNREACHABLE: the name does not
 * exist; EAGAIN: wait for a thread or for a free entry, and call again; SYS: no thread could be started. */
static kvp_err_t
look_locked(kvp_names_t *names, const char *host, addrs_t *addrs)
{
    entry_t *e = find_locked(names, host);
    kvp_err_t err = KVP_OK;

    if (e != NULL && !e->is_asked && kvp_now_ns() < e->until_ns) {
        *addrs = e->addrs;
        return addrs->n == 0 ? KVP_UNREACHABLE : KVP_OK;
    }
    if (e == NULL) e = oldest_locked(names);
    if (e != NULL && !e->is_asked) err = ask_locked(names, e, host);
    return err == KVP_OK ? KVP_EAGAIN : err;
}

/* Finds the addresses of a host. Blocks until deadline_ns at most; deadline_ns 0: EAGAIN instead of waiting. A numeric
 * address needs no look-up. Closing the handle does not wake waiting threads: they poll *c->is_given_up. */
static kvp_err_t
resolve_host(kvp_names_t *names, const char *host, uint64_t deadline_ns, kvp_framed_t *c, addrs_t *addrs)
{
    kvp_err_t err;

    c->is_unknown = false;
    c->why = "not an address";
    if (host[0] == '\0' || strlen(host) >= KVP_HOST_MAX) return KVP_UNREACHABLE;
    ask_system(host, AI_NUMERICHOST, addrs);
    if (addrs->n > 0) return KVP_OK;
    if (names == NULL) return KVP_UNREACHABLE;
    c->why = "the name server does not answer, timed out";
    pthread_mutex_lock(&names->lock);
    while ((err = look_locked(names, host, addrs)) == KVP_EAGAIN && deadline_ns > 0) {
        uint64_t now_ns = kvp_now_ns();

        if (now_ns >= deadline_ns) err = KVP_DEADLINE;
        if (kvp_is_given_up(c->is_given_up)) err = KVP_CLOSED;
        if (err != KVP_EAGAIN) break;
        kvp_cond_wait_until(&names->changed, &names->lock, kvp_min_u64(deadline_ns, now_ns + KVP_POLL_SLICE_NS));
    }
    pthread_mutex_unlock(&names->lock);
    if (err == KVP_UNREACHABLE) {
        c->why = gai_strerror(addrs->gai);
        c->is_unknown = !addrs->was_found;
    }
    return err;
}

/* ---- public functions */
kvp_err_t
kvp_names_create(kvp_names_t **names_out)
{
    kvp_names_t *names = calloc(1, sizeof *names);

    if (names == NULL) return KVP_NOMEM;
    pthread_mutex_init(&names->lock, NULL);
    kvp_cond_init(&names->changed);
    names->refs = 1;
    *names_out = names;
    return KVP_OK;
}

void
kvp_names_destroy(kvp_names_t *names)
{
    if (names == NULL) return;
    pthread_mutex_lock(&names->lock);
    unref_locked(names);
}

static void
set_port(struct sockaddr_storage *addr, uint16_t port)
{
    if (addr->ss_family == AF_INET)
        ((struct sockaddr_in *)addr)->sin_port = htons(port);
    else if (addr->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
}

kvp_err_t
kvp_names_connect(kvp_names_t *names, const char *host, uint16_t port, uint64_t deadline_ns, kvp_framed_t *c)
{
    addrs_t addrs;
    kvp_err_t err = resolve_host(names, host, kvp_max_u64(deadline_ns, 1), c, &addrs);

    if (err != KVP_OK) return err;
    for (size_t i = 0; i < addrs.n; i++) {
        uint64_t now = kvp_now_ns(), left_ns = deadline_ns > now ? deadline_ns - now : 0;

        set_port(&addrs.at[i].addr, port);
        err = kvp_framed_connect_addr(c, (const struct sockaddr *)&addrs.at[i].addr, addrs.at[i].len,
                                      now + left_ns / (addrs.n - i));
        if (err != KVP_UNREACHABLE && err != KVP_DEADLINE && err != KVP_SYS) return err;
    }
    return err;
}

kvp_err_t
kvp_names_connect_begin(kvp_names_t *names, const char *host, uint16_t port, size_t nth, kvp_framed_t *c, size_t *n_out)
{
    addrs_t addrs;
    kvp_err_t err = resolve_host(names, host, 0, c, &addrs);

    if (err != KVP_OK) return err;
    *n_out = addrs.n;
    nth %= addrs.n;
    set_port(&addrs.at[nth].addr, port);
    return kvp_framed_connect_begin(c, (const struct sockaddr *)&addrs.at[nth].addr, addrs.at[nth].len);
}
