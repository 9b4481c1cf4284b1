/* SPDX-License-Identifier: Apache-2.0
 * The thread that finds the leading master. Attempts have a back-off with jitter, so that the nodes of a restarted
 * master do not all connect at once. With several masters each master has a back-off of its own (net/masters.h), and
 * the attempts follow each other without a pause. */
#include "node/dial.h"

#include "net/wake.h"
#include "common/waits.h"
#include "common/log.h"
#include "proto/wire.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define ATTEMPT_NS KVP_NS_PER_S
#define TEND_NS (250 * KVP_NS_PER_MS) /* the time between checks of whether another master leads */
#define BACKOFF_MIN_NS (50 * KVP_NS_PER_MS)
/* The longest back-off. It is short, because a pool works again only when its nodes have found the master. */
#define BACKOFF_MAX_NS (300 * KVP_NS_PER_MS)

static void
note_local_host(kvp_node_dialed_t *d)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;

    d->local_host[0] = '\0';
    if (getsockname(d->conn.fd, (struct sockaddr *)&at, &len) != 0) return;
    if (getnameinfo((struct sockaddr *)&at, len, d->local_host, sizeof d->local_host, NULL, 0, NI_NUMERICHOST) != 0)
        d->local_host[0] = '\0';
}

/* Returns whether the master of the connection runs on this host: its address is ours or a loopback address. */
static bool
is_to_this_host(const kvp_node_dialed_t *d)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    kvp_hostport_t peer;

    if (getpeername(d->conn.fd, (struct sockaddr *)&at, &len) != 0) return true;
    if (getnameinfo((struct sockaddr *)&at, len, peer.host, sizeof peer.host, NULL, 0, NI_NUMERICHOST) != 0)
        return true;
    return strcmp(peer.host, d->local_host) == 0 || kvp_hostport_is_loopback(&peer);
}

/* change_to_unix replaces a TCP connection by the master's Unix socket if both are on one host. If that fails, the node
 * stays with TCP. is_refused: over TCP the master answered DENIED, but on the socket it learns this process's user. */
static void
change_to_unix(const kvp_hello_ask_t *ask, bool is_refused, kvp_node_dialed_t *dialed)
{
    kvp_hello_reply_t hello = {.incarnation = 0};
    kvp_framed_t conn;
    const char *why;
    kvp_err_t err;

    if (dialed->hello.unix_path[0] == '\0' || strcmp(dialed->hello.host_id, ask->host_id) != 0) return;
    if (dialed->conn.tls != NULL && kvp_creds_are_certificate()) return;
    kvp_framed_init(&conn);
    err = kvp_framed_connect_told(&conn, KVP_SOCKET_MASTER, dialed->hello.unix_path, kvp_now_ns() + ATTEMPT_NS, &why);
    if (err == KVP_OK) err = kvp_hello(&conn, ask, kvp_now_ns() + ATTEMPT_NS, &hello);
    if (hello.detail[0] != '\0') why = hello.detail;
    if (err != KVP_OK && is_refused) { /* the reason from the Unix socket is more useful than that from TCP */
        snprintf(dialed->hello.detail, sizeof dialed->hello.detail, "%s", why);
        kvp_framed_fini(&conn);
        return;
    }
    if (err != KVP_OK || (!is_refused && memcmp(hello.pool_id, dialed->hello.pool_id, sizeof hello.pool_id) != 0)) {
        kvp_log_info("node", "master's unix socket does not serve, staying on tcp path=%s error=%s",
                     dialed->hello.unix_path, why);
        kvp_framed_fini(&conn);
        return;
    }
    kvp_framed_fini(&dialed->conn);
    dialed->conn = conn;
    dialed->hello = hello;
}

/* Makes one attempt to connect to the leading master and to exchange Hello. */
static kvp_err_t
dial_any(kvp_node_dial_t *d, const kvp_hello_ask_t *ask, kvp_node_dialed_t *dialed)
{
    const kvp_hostport_t *at = NULL;
    char text[KVP_HOSTPORT_TEXT_MAX];
    uint32_t missed;
    kvp_err_t err;

    memset(&dialed->hello, 0, sizeof dialed->hello);
    kvp_framed_init(&dialed->conn);
    err = kvp_masters_find(d->masters, &d->is_stopping, kvp_now_ns() + ATTEMPT_NS, &dialed->conn, &at);
    if (err != KVP_OK) snprintf(dialed->hello.detail, sizeof dialed->hello.detail, "%s", kvp_masters_why(d->masters));
    /* no host name of a master resolves yet: reported as UNREACHABLE, and the node keeps trying */
    if (err == KVP_NOT_FOUND) err = KVP_UNREACHABLE;
    if (err == KVP_OK) {
        note_local_host(dialed);
        if (d->is_loopback && !is_to_this_host(dialed)) {
            pthread_mutex_lock(&d->lock);
            snprintf(d->refusal, sizeof d->refusal,
                     "the master %s is on another host, and other hosts do not reach a node that listens at a loopback "
                     "address: give it this host's, such as --listen %s:PORT (local_hostname of setup())",
                     kvp_format_hostport(at, text), dialed->local_host);
            pthread_mutex_unlock(&d->lock);
            if (kvp_log_limit_ok(&d->noise, &missed)) kvp_log_error("node", "%s", d->refusal);
            kvp_framed_fini(&dialed->conn);
            return KVP_INVALID;
        }
        err = kvp_hello(&dialed->conn, ask, kvp_now_ns() + ATTEMPT_NS, &dialed->hello);
    }
    if (err == KVP_OK || err == KVP_DENIED) change_to_unix(ask, err == KVP_DENIED, dialed);
    if (err == KVP_OK || dialed->hello.incarnation != 0) return KVP_OK;
    kvp_framed_fini(&dialed->conn);
    if (err == KVP_DENIED || err == KVP_EXPIRED) {
        pthread_mutex_lock(&d->lock);
        snprintf(d->refusal, sizeof d->refusal, "the pool refuses this node: %s", dialed->hello.detail);
        pthread_mutex_unlock(&d->lock);
    }
    if (err != KVP_CLOSED && kvp_log_limit_ok(&d->noise, &missed))
        kvp_log_warn("node", "no session with %s%s: %s%s%s", at == NULL ? "any master" : "master ",
                     at == NULL ? "" : kvp_format_hostport(at, text), kvp_err_text(err),
                     dialed->hello.detail[0] == '\0' ? "" : ": ", dialed->hello.detail);
    return err;
}

/* pause_for waits for a random part of the back-off, or until the dial is stopped. Called with the lock held. */
static void
pause_for(kvp_node_dial_t *d, uint64_t backoff_ns)
{
    uint64_t until = kvp_now_ns() + backoff_ns / 2 + kvp_random_u64() % (backoff_ns / 2);

    while (!d->is_stopping && kvp_now_ns() < until)
        kvp_cond_wait_until(&d->changed, &d->lock, until);
}

/* tend_for_a_while checks once whether another master leads, then waits for a change, at most TEND_NS if there are
 * several masters. Called with the lock held, which is released during the wait. */
static void
tend_for_a_while(kvp_node_dial_t *d, uint32_t term)
{
    uint64_t until = kvp_masters_are_several(d->masters) ? kvp_now_ns() + TEND_NS : UINT64_MAX;

    if (term != 0 && d->state != KVP_DIAL_FOUND && kvp_masters_tend(d->masters, term)) {
        d->state = KVP_DIAL_OUTDATED;
        kvp_wake(d->wake_fd);
    }
    kvp_cond_wait_until(&d->changed, &d->lock, until);
}

static void *
dial_main(void *arg)
{
    kvp_node_dial_t *d = arg;
    uint64_t backoff_ns = 0;
    uint32_t term = 0; /* the term of the master that was found last */
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&d->lock);
    while (!d->is_stopping) {
        const kvp_known_pool_t known = d->known;
        const kvp_hello_ask_t ask = {.name = d->name,
                                     .host_id = d->host_id,
                                     .role = KVP_ROLE_NODE,
                                     .incarnation = d->incarnation,
                                     .known = &known,
                                     .pidfd = -1};
        kvp_node_dialed_t dialed;

        if (d->state != KVP_DIAL_WANTED) {
            tend_for_a_while(d, term);
            continue;
        }
        if (d->is_good || kvp_masters_is_spaced(d->masters, err)) backoff_ns = 0;
        d->is_good = false;
        if (backoff_ns > 0) pause_for(d, backoff_ns);
        if (d->is_stopping) break;
        backoff_ns = kvp_min_u64(kvp_max_u64(2 * backoff_ns, BACKOFF_MIN_NS), BACKOFF_MAX_NS);

        pthread_mutex_unlock(&d->lock);
        err = dial_any(d, &ask, &dialed);
        pthread_mutex_lock(&d->lock);
        d->last_err = err;
        d->attempts++;
        if (err == KVP_OK) {
            d->result = dialed;
            d->state = KVP_DIAL_FOUND;
            term = dialed.hello.term;
        }
        kvp_wake(d->wake_fd);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

kvp_err_t
kvp_node_dial_init(kvp_node_dial_t *d, const char *masters, const char *cluster)
{
    kvp_err_t err = kvp_names_create(&d->names);

    return err == KVP_OK ? kvp_masters_create(masters, cluster, d->names, &d->masters) : err;
}

kvp_err_t
kvp_node_dial_start(kvp_node_dial_t *d)
{
    pthread_mutex_init(&d->lock, NULL);
    kvp_cond_init(&d->changed);
    kvp_framed_init(&d->result.conn);
    d->has_thread = kvp_thread_start(&d->thread, "kvp-dial", dial_main, d) == KVP_OK;
    return d->has_thread ? KVP_OK : KVP_SYS;
}

static void
stop_thread(kvp_node_dial_t *d)
{
    pthread_mutex_lock(&d->lock);
    d->is_stopping = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    if (d->state == KVP_DIAL_FOUND) kvp_framed_fini(&d->result.conn);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    d->has_thread = false;
}

void
kvp_node_dial_stop(kvp_node_dial_t *d)
{
    if (d->has_thread) stop_thread(d);
    kvp_masters_destroy(d->masters);
    kvp_names_destroy(d->names);
    d->masters = NULL;
    d->names = NULL;
}

void
kvp_node_dial_want(kvp_node_dial_t *d, bool is_good, uint64_t incarnation, const kvp_known_pool_t *known)
{
    pthread_mutex_lock(&d->lock);
    d->state = KVP_DIAL_WANTED;
    d->is_good = is_good;
    d->incarnation = incarnation;
    d->known = *known;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void
kvp_node_dial_refusal(kvp_node_dial_t *d, char why_out[KVP_NODE_REFUSAL_MAX])
{
    pthread_mutex_lock(&d->lock);
    memcpy(why_out, d->refusal, sizeof d->refusal);
    pthread_mutex_unlock(&d->lock);
}

bool
kvp_node_dial_take(kvp_node_dial_t *d, kvp_node_dialed_t *dialed_out, kvp_err_t *err_out)
{
    bool has;

    pthread_mutex_lock(&d->lock);
    has = d->state == KVP_DIAL_FOUND;
    if (has) {
        *dialed_out = d->result;
        d->state = KVP_DIAL_IDLE;
    }
    *err_out = d->last_err;
    d->last_err = KVP_OK;
    pthread_mutex_unlock(&d->lock);
    return has;
}

bool
kvp_node_dial_is_outdated(kvp_node_dial_t *d)
{
    bool is_outdated;

    pthread_mutex_lock(&d->lock);
    is_outdated = d->state == KVP_DIAL_OUTDATED;
    if (is_outdated) d->state = KVP_DIAL_IDLE;
    pthread_mutex_unlock(&d->lock);
    return is_outdated;
}
