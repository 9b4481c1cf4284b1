/* SPDX-License-Identifier: Apache-2.0
 * Each thread polls the connections of its half of the slots. A slot belongs to its thread from kvp_handshakes_add
 * until the handshake has ended; the lock guards only the slots' states. */
#include "common/trust/handshakes.h"

#include "common/clock.h"
#include "common/forkguard.h"
#include "common/log.h"
#include "common/thread.h"
#include "common/waits.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define THREADS 2u
/* nice value of the handshake threads: so handshakes of unknown peers take less processor time from the server */
#define NICE 5
#define LIMIT_NS (5 * KVP_NS_PER_S)
#define RECV_BYTES (16u << 10)
#define BEGIN_BYTES 3 /* the bytes that show whether a peer speaks TLS */

enum { SLOT_FREE, SLOT_SHAKES, SLOT_ENDED }; /* states of a slot: free, in its handshake, waits to be taken */

struct kvp_handshakes {
    kvp_tls_server_t *server;
    void (*wake)(void *arg);
    void *arg;
    _Atomic bool is_over;
    _Atomic uint64_t loads; /* the server's loads that the log has */
    /* Thread i serves the slots i, i + THREADS, ... and sleeps on wakes[i]. */
    pthread_t threads[THREADS];
    int wakes[THREADS];
    unsigned threads_n;
    _Atomic unsigned taken_n; /* numbers that threads have taken */
    pthread_mutex_t lock; /* guards the slots' states */
    kvp_handshake_t slots[KVP_HANDSHAKES_MAX];
};

static void
note_files(kvp_handshakes_t *h, const char *why)
{
    const uint64_t loads = kvp_tls_server_loads(h->server);

    if (atomic_exchange(&h->loads, loads) != loads) kvp_log_info("tls", "the files for TLS were read again");
    if (why[0] != '\0')
        kvp_log_error("tls", "the files for TLS are not valid, those read before stay in force: %s", why);
}

/* Reads the files again if they have changed. Returns the time of the next check. */
static uint64_t
refresh_files(kvp_handshakes_t *h)
{
    char why[KVP_TLS_WHY_MAX];
    const uint64_t again_ns = kvp_tls_server_refresh(h->server, kvp_now_ns(), why);

    note_files(h, why);
    return again_ns;
}

static void
end_slot(kvp_handshakes_t *h, kvp_handshake_t *s, kvp_err_t err, const char *why)
{
    s->err = err;
    snprintf(s->why, sizeof s->why, "%s", why);
    s->who = (kvp_identity_t){.role = KVP_MAY_NOTHING};
    if (err != KVP_OK) {
        if (s->tls != NULL) s->who = *kvp_tls_peer(s->tls);
        kvp_tls_destroy(s->tls);
        s->tls = NULL;
    }
    pthread_mutex_lock(&h->lock);
    s->state = SLOT_ENDED;
    pthread_mutex_unlock(&h->lock);
    h->wake(h->arg);
}

/* Sends the encrypted bytes of the handshake. They always fit into an empty socket buffer, so an incomplete send is an
 * error. */
static bool
send_out(kvp_handshake_t *s)
{
    uint8_t bytes[RECV_BYTES];
    size_t n;

    while ((n = kvp_tls_take(s->tls, bytes, sizeof bytes)) > 0)
        if (send(s->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n) return false;
    return true;
}

/* Sets how many bytes make the socket readable. Without this, poll would return at once for a part of BEGIN_BYTES. */
static void
set_least(int fd, int bytes)
{
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

/* Makes the TLS connection for first bytes (n of them) of TLS. Bytes of another protocol end the handshake. */
static kvp_err_t
begin_tls(kvp_handshakes_t *h, kvp_handshake_t *s, const uint8_t *bytes, size_t n)
{
    char why[KVP_TLS_WHY_MAX];

    set_least(s->fd, 1);
    if (!kvp_tls_is_hello(bytes, n)) return KVP_OK;
    s->tls = kvp_tls_server_accept(h->server, kvp_now_ns(), why);
    note_files(h, why);
    return s->tls == NULL ? KVP_NOMEM : KVP_EAGAIN; /* poll reports the bytes again */
}

static void
go_on(kvp_handshakes_t *h, kvp_handshake_t *s)
{
    kvp_tls_t *tls = s->tls;
    uint8_t bytes[RECV_BYTES];
    const ssize_t n = recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT | (tls == NULL ? MSG_PEEK : 0));
    kvp_err_t err;

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        end_slot(h, s, KVP_DISCONNECTED, "the peer closed the connection in the handshake of TLS");
        return;
    }
    if (tls == NULL) {
        err = begin_tls(h, s, bytes, (size_t)n);
    } else {
        err = kvp_tls_feed(tls, bytes, (size_t)n);
        if (err == KVP_OK) err = kvp_tls_step(tls);
        if (!send_out(s) && err == KVP_EAGAIN) err = KVP_DISCONNECTED;
    }
    if (err != KVP_EAGAIN) end_slot(h, s, err, tls == NULL ? kvp_err_text(err) : kvp_tls_why(tls));
}

/* One turn of a thread: waits for its connections, then serves them. */
static void
take_turn(kvp_handshakes_t *h, unsigned number)
{
    struct pollfd p[KVP_HANDSHAKES_MAX / THREADS + 1];
    kvp_handshake_t *polled[KVP_HANDSHAKES_MAX / THREADS + 1];
    uint64_t until_ns = number == 0 ? refresh_files(h) : UINT64_MAX, now_ns, count;
    nfds_t n = 1;

    p[0] = (struct pollfd){.fd = h->wakes[number], .events = POLLIN};
    for (unsigned i = number; i < KVP_HANDSHAKES_MAX; i += THREADS) {
        kvp_handshake_t *s = &h->slots[i];

        if (s->state != SLOT_SHAKES) continue;
        until_ns = kvp_min_u64(until_ns, s->until_ns);
        p[n] = (struct pollfd){.fd = s->fd, .events = POLLIN};
        polled[n++] = s;
    }
    kvp_poll_until(p, n, until_ns);
    if (p[0].revents != 0 && read(h->wakes[number], &count, sizeof count) < 0) return;
    now_ns = kvp_now_ns();
    for (nfds_t i = 1; i < n; i++)
        if (now_ns >= polled[i]->until_ns)
            end_slot(h, polled[i], KVP_DEADLINE, "the handshake of TLS took longer than 5 s");
        else if (p[i].revents != 0)
            go_on(h, polled[i]);
}

static void *
run_worker(void *arg)
{
    kvp_handshakes_t *h = arg;
    const unsigned number = atomic_fetch_add(&h->taken_n, 1);

    /* For setpriority on Linux, 0 is the calling thread, not the process. */
    if (setpriority(PRIO_PROCESS, 0, NICE) != 0) kvp_log_debug("tls", "handshakes at full priority: %m");
    while (!h->is_over)
        take_turn(h, number);
    return NULL;
}

static void
wake_worker(const kvp_handshakes_t *h, size_t number)
{
    const uint64_t one = 1;

    /* the eventfd's counter is full, so the thread wakes up in any case */
    if (write(h->wakes[number], &one, sizeof one) < 0) return;
}

kvp_err_t
kvp_handshakes_start(const kvp_creds_t *files, kvp_authrole_t role, void (*wake)(void *arg), void *arg,
                     kvp_handshakes_t **out, char *why_out)
{
    kvp_handshakes_t *h = calloc(1, sizeof *h);
    kvp_err_t err;

    snprintf(why_out, KVP_TLS_WHY_MAX, "out of memory");
    if (h == NULL) return KVP_NOMEM;
    h->wake = wake;
    h->arg = arg;
    pthread_mutex_init(&h->lock, NULL);
    for (unsigned i = 0; i < THREADS; i++)
        h->wakes[i] = -1;
    err = kvp_tls_server_create(files, role, &h->server, why_out);
    h->loads = 1;
    for (unsigned i = 0; i < THREADS && err == KVP_OK; i++) {
        h->wakes[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        kvp_forkguard_add(h->wakes[i]);
        if (h->wakes[i] < 0) err = KVP_SYS;
    }
    for (unsigned i = 0; i < THREADS && err == KVP_OK; i++) {
        err = kvp_thread_start(&h->threads[i], "kvp-tls", run_worker, h);
        if (err == KVP_OK) h->threads_n++;
    }
    if (err == KVP_SYS) snprintf(why_out, KVP_TLS_WHY_MAX, "cannot start a thread: %s", strerror(errno));
    if (err == KVP_OK)
        *out = h;
    else
        kvp_handshakes_stop(h);
    return err;
}

void
kvp_handshakes_stop(kvp_handshakes_t *h)
{
    if (h == NULL) return;
    h->is_over = true;
    for (unsigned i = 0; i < h->threads_n; i++)
        wake_worker(h, i);
    for (unsigned i = 0; i < h->threads_n; i++)
        pthread_join(h->threads[i], NULL);
    for (unsigned i = 0; i < THREADS; i++)
        kvp_forkguard_close(h->wakes[i]);
    for (unsigned i = 0; i < KVP_HANDSHAKES_MAX; i++) {
        kvp_handshake_t *s = &h->slots[i];

        if (s->state == SLOT_FREE) continue;
        kvp_tls_destroy(s->tls);
        kvp_forkguard_close(s->fd);
    }
    kvp_tls_server_destroy(h->server);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* Finds the address of a peer, as text with the port, and without the port to compare. */
static bool
find_peer(int fd, struct sockaddr_storage *from, char text[KVP_HANDSHAKES_PEER_MAX])
{
    socklen_t len = sizeof *from;
    char host[64] = "unknown", port[8] = "";

    memset(from, 0, sizeof *from);
    if (getpeername(fd, (struct sockaddr *)from, &len) != 0) return false;
    (void)getnameinfo((struct sockaddr *)from, len, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, KVP_HANDSHAKES_PEER_MAX, from->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    ((struct sockaddr_in *)from)->sin_port = 0; /* at the same place as sin6_port */
    return true;
}

kvp_err_t
kvp_handshakes_add(kvp_handshakes_t *h, int fd)
{
    char peer[KVP_HANDSHAKES_PEER_MAX];
    struct sockaddr_storage from;
    kvp_handshake_t *found = NULL;
    unsigned same = 0;

    if (!find_peer(fd, &from, peer)) return KVP_DISCONNECTED;
    set_least(fd, BEGIN_BYTES);
    pthread_mutex_lock(&h->lock);
    for (unsigned i = 0; i < KVP_HANDSHAKES_MAX; i++) {
        kvp_handshake_t *s = &h->slots[i];

        if (s->state == SLOT_FREE)
            found = found == NULL ? s : found;
        else
            same += memcmp(&s->from, &from, sizeof from) == 0;
    }
    if (same >= KVP_HANDSHAKES_A_HOST) found = NULL;
    if (found != NULL) {
        memset(found, 0, sizeof *found);
        found->from = from;
        found->until_ns = kvp_now_ns() + LIMIT_NS;
        found->fd = fd;
        memcpy(found->peer, peer, sizeof peer);
        found->state = SLOT_SHAKES;
    }
    pthread_mutex_unlock(&h->lock);
    if (found == NULL) return KVP_LIMIT;
    kvp_forkguard_add(fd);
    wake_worker(h, (size_t)(found - h->slots) % THREADS);
    return KVP_OK;
}

bool
kvp_handshakes_take(kvp_handshakes_t *h, kvp_handshake_t *out)
{
    bool has = false;

    pthread_mutex_lock(&h->lock);
    for (unsigned i = 0; i < KVP_HANDSHAKES_MAX && !has; i++) {
        kvp_handshake_t *s = &h->slots[i];

        if (s->state != SLOT_ENDED) continue;
        *out = *s;
        kvp_forkguard_del(out->fd);
        s->state = SLOT_FREE;
        has = true;
    }
    pthread_mutex_unlock(&h->lock);
    return has;
}

const kvp_identity_t *
kvp_handshakes_who(const kvp_handshakes_t *h)
{
    return kvp_tls_server_who(h->server);
}

bool
kvp_handshakes_has_revoked(const kvp_handshakes_t *h, const kvp_identity_t *who)
{
    return h != NULL && kvp_tls_server_has_revoked(h->server, who);
}
