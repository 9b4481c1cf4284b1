/* SPDX-License-Identifier: Apache-2.0
 * See subscription.h.
 *
 * Design notes.
 * - The descriptor of a ZMQ socket only signals that something may have changed (zmq_getsockopt, ZMQ_FD): so all
 *   available messages are read at each signal, and the caller runs all sockets a few times a second besides.
 * - A request during an unfinished replay replaces the socket: else the rest of the old answer would count as new. */
#include "conductor/events/subscription.h"

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define FRAMES_MAX 4u
#define MESSAGE_MAX ((int64_t)4 << 20) /* limit of the length of a message, in bytes; ZMQ refuses longer ones */
#define WAITING_MAX 100 /* most messages that ZMQ queues in this process; above it the publisher drops messages */
#define BATCH 64u /* cost limit of one call of on_readable; a message costs 1 or more, see PART_BYTES */
#define PART_BYTES (16u << 10) /* each part of a payload of this size costs as much as one more message */
#define SEQ_BYTES 8u
#define TOPIC_MAX 128u /* bytes of a message's ZMQ topic that are kept for reports */
#define FDS_MAX (1 << 20)
#define NO_FD (-1)
#define UNBIND_MS 200
/* Without a connection for this time, the sockets are replaced, because libzmq gives a peer up for good after a
 * protocol error. */
#define AGAIN_NS (5 * KVP_NS_PER_S)

typedef struct {
    void *socket; /* the ZMQ socket; NULL = none is open */
    uv_poll_t *poll;
} watched_t;

struct kvp_subscription {
    uv_loop_t *uv;
    void *zmq;
    char replay[512];
    kvp_subscription_ops_t ops;
    char endpoint[512];
    watched_t sub, monitor, dealer;
    bool is_connected;
    bool is_bound;
    kvp_buf_t fds; /* open connections of a bound endpoint: the byte at index fd is 1 if fd is a connection */
    uint32_t fds_n;
    int source; /* connection of the one publisher that a bound endpoint hears; NO_FD = none at present */
    char topic[TOPIC_MAX], refused_topic[TOPIC_MAX];
    uint64_t refused;
    uint64_t since_ns; /* time at which the sockets were opened, or the last connection ended */
    bool is_replaying;
    uint64_t malformed;
};

/* ---- opening and closing sockets */
static void
on_poll_closed(uv_handle_t *handle)
{
    free(handle);
}

static void
on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    kvp_subscription_t *s = poll->data;

    if (kvp_subscription_run(s, BATCH)) s->ops.on_more(s->ops.arg);
}

static void
unwatch_socket(watched_t *w)
{
    if (w->poll != NULL) uv_close((uv_handle_t *)w->poll, on_poll_closed);
    if (w->socket != NULL) zmq_close(w->socket);
    *w = (watched_t){NULL, NULL};
}

static kvp_err_t
watch_socket(kvp_subscription_t *s, watched_t *w)
{
    int fd = -1;
    size_t len = sizeof fd;

    if (zmq_getsockopt(w->socket, ZMQ_FD, &fd, &len) != 0) return KVP_SYS;
    w->poll = calloc(1, sizeof *w->poll);
    if (w->poll == NULL) return KVP_NOMEM;
    if (uv_poll_init(s->uv, w->poll, fd) != 0) {
        free(w->poll);
        w->poll = NULL;
        return KVP_SYS;
    }
    w->poll->data = s;
    return uv_poll_start(w->poll, UV_READABLE, on_readable) == 0 ? KVP_OK : KVP_SYS;
}

static void
set_int(void *socket, int option, int value)
{
    (void)zmq_setsockopt(socket, option, &value, sizeof value);
}

static void *
make_socket(kvp_subscription_t *s, int type)
{
    void *socket = zmq_socket(s->zmq, type);
    const int64_t most = MESSAGE_MAX;

    if (socket == NULL) return NULL;
    set_int(socket, ZMQ_LINGER, 0);
    set_int(socket, ZMQ_IPV6, 1);
    set_int(socket, ZMQ_RCVHWM, WAITING_MAX);
    set_int(socket, ZMQ_RECONNECT_IVL, 50);
    set_int(socket, ZMQ_RECONNECT_IVL_MAX, 1000);
    set_int(socket, ZMQ_HEARTBEAT_IVL, 2000); /* ZMQ heartbeats, to detect a dead peer */
    set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, 4000);
    (void)zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    return socket;
}

bool
kvp_subscription_is_bound(const char *endpoint)
{
    return strncmp(endpoint, "tcp://*:", 8) == 0 || strncmp(endpoint, "tcp://0.0.0.0:", 14) == 0 ||
           strncmp(endpoint, "tcp://[::]:", 11) == 0;
}

bool
kvp_subscription_is_same_bound(const char *a, const char *b)
{
    return kvp_subscription_is_bound(a) && kvp_subscription_is_bound(b) &&
           strcmp(strrchr(a, ':'), strrchr(b, ':')) == 0;
}

static kvp_err_t
open_monitor(kvp_subscription_t *s)
{
    static _Atomic uint64_t seq;
    char at[64];

    snprintf(at, sizeof at, "inproc://monitor-%llu", (unsigned long long)atomic_fetch_add(&seq, 1));
    if (zmq_socket_monitor(s->sub.socket, at,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                               (s->is_bound ? ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CLOSED : 0)) != 0)
        return KVP_SYS;
    s->monitor.socket = zmq_socket(s->zmq, ZMQ_PAIR);
    if (s->monitor.socket == NULL || zmq_connect(s->monitor.socket, at) != 0) return KVP_SYS;
    return watch_socket(s, &s->monitor);
}

static kvp_err_t
open_sub(kvp_subscription_t *s, const char *endpoint)
{
    int rc;

    s->sub.socket = make_socket(s, ZMQ_SUB);
    if (s->sub.socket == NULL || zmq_setsockopt(s->sub.socket, ZMQ_SUBSCRIBE, "", 0) != 0) return KVP_SYS;
    if (open_monitor(s) != KVP_OK) return KVP_SYS;
    rc = s->is_bound ? zmq_bind(s->sub.socket, endpoint) : zmq_connect(s->sub.socket, endpoint);
    return rc == 0 ? watch_socket(s, &s->sub) : KVP_INVALID;
}

static kvp_err_t
open_dealer(kvp_subscription_t *s)
{
    unwatch_socket(&s->dealer);
    s->dealer.socket = make_socket(s, ZMQ_DEALER);
    if (s->dealer.socket == NULL) return KVP_SYS;
    return zmq_connect(s->dealer.socket, s->replay) == 0 ? watch_socket(s, &s->dealer) : KVP_INVALID;
}

kvp_err_t
kvp_subscription_open(uv_loop_t *uv, void *zmq, const char *endpoint, const char *replay,
                      const kvp_subscription_ops_t *ops, kvp_subscription_t **out, char why[160])
{
    kvp_subscription_t *s = calloc(1, sizeof *s);
    kvp_err_t err;

    if (s == NULL) return KVP_NOMEM;
    kvp_buf_init(&s->fds, FDS_MAX);
    s->source = NO_FD;
    s->is_bound = kvp_subscription_is_bound(endpoint);
    s->uv = uv;
    s->zmq = zmq;
    s->ops = *ops;
    snprintf(s->replay, sizeof s->replay, "%s", replay);
    snprintf(s->endpoint, sizeof s->endpoint, "%s", endpoint);
    s->since_ns = kvp_boot_ns();
    err = open_sub(s, endpoint);
    if (err == KVP_OK && replay[0] != '\0') err = open_dealer(s);
    if (err != KVP_OK) {
        snprintf(why, 160, "ZMQ does not take the endpoint: %s", zmq_strerror(zmq_errno()));
        kvp_log_error("conductor", "cannot subscribe: %s endpoint=%s replay=%s", why, endpoint, replay);
        kvp_subscription_close(s);
        return err;
    }
    *out = s;
    return KVP_OK;
}

/* Unbinds the socket and waits at most UNBIND_MS until ZMQ reports the close. Only then can the port be bound
 * again, because ZMQ's thread closes a listening socket some time after the call. */
static void
unbind_socket(kvp_subscription_t *s)
{
    const uint64_t end_ns = kvp_boot_ns() + UNBIND_MS * KVP_NS_PER_MS;
    char at[sizeof s->endpoint];
    size_t len = sizeof at;
    uint16_t event[3] = {0};

    if (!s->is_bound || s->monitor.socket == NULL || zmq_getsockopt(s->sub.socket, ZMQ_LAST_ENDPOINT, at, &len) != 0 ||
        zmq_unbind(s->sub.socket, at) != 0)
        return;
    set_int(s->monitor.socket, ZMQ_RCVTIMEO, UNBIND_MS);
    while (event[0] != ZMQ_EVENT_CLOSED && kvp_boot_ns() < end_ns &&
           zmq_recv(s->monitor.socket, event, sizeof event, 0) >= 0)
        ;
}

static void
close_sub(kvp_subscription_t *s)
{
    unbind_socket(s);
    /* Stops the monitor first. Otherwise ZMQ's thread, which all sockets share, may wait until the end of the
     * connection is read from the monitor. */
    if (s->sub.socket != NULL) (void)zmq_socket_monitor(s->sub.socket, NULL, 0);
    unwatch_socket(&s->sub);
    unwatch_socket(&s->monitor);
}

void
kvp_subscription_close(kvp_subscription_t *s)
{
    if (s == NULL) return;
    close_sub(s);
    unwatch_socket(&s->dealer);
    kvp_buf_fini(&s->fds);
    free(s);
}

void
kvp_subscription_tick(kvp_subscription_t *s, uint64_t now_ns)
{
    if (s->is_connected || s->is_bound || now_ns - s->since_ns < AGAIN_NS) return;
    close_sub(s);
    s->since_ns = now_ns;
    if (open_sub(s, s->endpoint) != KVP_OK) close_sub(s);
}

/* ---- receiving and sharing out messages */
/* Receives the next message. Returns the number of its frames; the first FRAMES_MAX frames are kept. 0 = no message. */
static uint32_t
receive_message(void *socket, zmq_msg_t frames[FRAMES_MAX])
{
    uint32_t n = 0;
    bool has_more = true;

    while (has_more) {
        zmq_msg_t *to = &frames[kvp_min_u64(n, FRAMES_MAX - 1)];

        if (n >= FRAMES_MAX) zmq_msg_close(to);
        zmq_msg_init(to);
        if (zmq_msg_recv(to, socket, ZMQ_DONTWAIT) < 0) { /* can fail only before the first frame */
            zmq_msg_close(to);
            return 0;
        }
        has_more = zmq_msg_more(to) != 0;
        n++;
    }
    return n;
}

static void
close_frames(zmq_msg_t *frames, uint32_t n)
{
    for (uint32_t i = 0; i < n && i < FRAMES_MAX; i++)
        zmq_msg_close(&frames[i]);
}

static bool
read_seq(zmq_msg_t *frame, uint64_t *out)
{
    const uint8_t *at = zmq_msg_data(frame);

    if (zmq_msg_size(frame) != SEQ_BYTES) return false;
    *out = 0;
    for (uint32_t i = 0; i < SEQ_BYTES; i++)
        *out = *out << 8 | at[i];
    return true;
}

/* Returns the cost of the message: 1, and 1 more for each PART_BYTES of its payload, but at most `left`. */
static uint32_t
share_of(zmq_msg_t *payload, uint32_t left)
{
    return (uint32_t)kvp_min_u64(left, 1 + zmq_msg_size(payload) / PART_BYTES);
}

static void
set_connected(kvp_subscription_t *s, bool is_connected)
{
    s->is_connected = is_connected;
    s->since_ns = kvp_boot_ns();
    if (is_connected)
        s->ops.on_connected(s->ops.arg);
    else
        s->ops.on_disconnected(s->ops.arg);
}

/* ---- connections to a bound endpoint */
static bool
is_open(const kvp_subscription_t *s, int fd)
{
    return (size_t)fd < s->fds.len && s->fds.data[fd] != 0;
}

static void
note_fd(kvp_subscription_t *s, int fd, bool is)
{
    if (fd < 0 || fd >= FDS_MAX || is_open(s, fd) == is) return;
    if ((size_t)fd >= s->fds.len && kvp_buf_extend(&s->fds, (size_t)fd + 1 - s->fds.len) == NULL) return;
    s->fds.data[fd] = is;
    s->fds_n += is ? 1 : UINT32_MAX;
}

static void
keep_topic(zmq_msg_t *frame, char out[TOPIC_MAX])
{
    const size_t len = kvp_min_u64(zmq_msg_size(frame), TOPIC_MAX - 1);
    const char *at = zmq_msg_data(frame);

    for (size_t i = 0; i < len; i++)
        out[i] = at[i] > 0x20 && at[i] < 0x7f && at[i] != '"' && at[i] != '\\' ? at[i] : '_';
    out[len] = '\0';
}

static void read_monitor(kvp_subscription_t *s);

/* Returns true if the message is from the accepted publisher. The connection decides, because topics of two
 * publishers may be equal. */
static bool
is_from_source(kvp_subscription_t *s, zmq_msg_t *frames, uint32_t n)
{
    const int fd = zmq_msg_get(&frames[kvp_min_u64(n, FRAMES_MAX) - 1], ZMQ_SRCFD);

    if (!s->is_bound || fd < 0 || fd == s->source) return true;
    if (!is_open(s, fd)) read_monitor(s);
    if (!is_open(s, fd)) return false; /* the message's connection has ended meanwhile, so the message is refused */
    if (s->source == NO_FD) {
        s->source = fd;
        keep_topic(&frames[0], s->topic);
        if (!s->is_connected) set_connected(s, true);
        return true;
    }
    keep_topic(&frames[0], s->refused_topic);
    if (s->refused++ == 0)
        kvp_log_warn("conductor",
                     "a second engine publishes at an endpoint in use, and is refused: give each engine its own "
                     "endpoint endpoint=%s topic=%s refused=%s",
                     s->endpoint, s->topic, s->refused_topic);
    return false;
}

static void
take_live(kvp_subscription_t *s, zmq_msg_t *frames, uint32_t n)
{
    uint64_t seq;

    if (!is_from_source(s, frames, n)) return;
    if (n == 3 && read_seq(&frames[1], &seq))
        s->ops.on_live(s->ops.arg, seq, zmq_msg_data(&frames[2]), zmq_msg_size(&frames[2]));
    else
        s->malformed++;
}

static bool
is_topic(zmq_msg_t *frames, uint32_t n, const char *topic)
{
    return n == 4 && zmq_msg_size(&frames[1]) == strlen(topic) &&
           memcmp(zmq_msg_data(&frames[1]), topic, strlen(topic)) == 0;
}

/* Handles a message of a replay: [empty, topic, seq, payload], or without the topic. The last message has seq -1. */
static void
take_replay(kvp_subscription_t *s, zmq_msg_t *frames, uint32_t n)
{
    uint64_t seq;

    if (is_topic(frames, n, "digests") && read_seq(&frames[2], &seq)) {
        s->ops.on_digests(s->ops.arg, seq, zmq_msg_data(&frames[3]), zmq_msg_size(&frames[3]));
        return;
    }
    if (!s->is_replaying) return;
    if ((n != 3 && n != 4) || !read_seq(&frames[n - 2], &seq)) {
        s->malformed++;
        return;
    }
    if (is_topic(frames, n, "snapshot")) {
        s->ops.on_snapshot(s->ops.arg, seq, zmq_msg_data(&frames[3]), zmq_msg_size(&frames[3]));
        return;
    }
    if (seq != UINT64_MAX) {
        s->ops.on_replayed(s->ops.arg, seq, zmq_msg_data(&frames[n - 1]), zmq_msg_size(&frames[n - 1]));
        return;
    }
    s->is_replaying = false;
    s->ops.on_replay_end(s->ops.arg);
}

static void
take_bound(kvp_subscription_t *s, uint16_t event, int fd)
{
    note_fd(s, fd, event == ZMQ_EVENT_ACCEPTED);
    if (event == ZMQ_EVENT_ACCEPTED || (s->source != NO_FD && s->source != fd)) return;
    if (s->source == NO_FD && s->fds_n > 0) return;
    s->source = NO_FD;
    if (s->is_connected) set_connected(s, false);
}

static void
take_monitor(kvp_subscription_t *s, zmq_msg_t *frames)
{
    uint16_t event = 0;
    int32_t value = NO_FD;

    if (zmq_msg_size(&frames[0]) >= sizeof event + sizeof value) {
        memcpy(&event, zmq_msg_data(&frames[0]), sizeof event);
        memcpy(&value, (const char *)zmq_msg_data(&frames[0]) + sizeof event, sizeof value);
    }
    if (s->is_bound && event != ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
        take_bound(s, event, value);
    else if (!s->is_bound || !s->is_connected)
        set_connected(s, event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
}

static void
read_monitor(kvp_subscription_t *s)
{
    zmq_msg_t frames[FRAMES_MAX];
    uint32_t n;

    while (s->monitor.socket != NULL && (n = receive_message(s->monitor.socket, frames)) > 0) {
        take_monitor(s, frames);
        close_frames(frames, n);
    }
}

/* Reads replayed messages before live ones, because live messages wait for the replay. A callback may ask for
 * another replay, so the socket is read from the struct each time. */
bool
kvp_subscription_run(kvp_subscription_t *s, uint32_t most)
{
    zmq_msg_t frames[FRAMES_MAX];
    uint32_t n, left = most;

    read_monitor(s);
    while (left > 0 && s->dealer.socket != NULL && (n = receive_message(s->dealer.socket, frames)) > 0) {
        left -= share_of(&frames[kvp_min_u64(n, FRAMES_MAX) - 1], left);
        take_replay(s, frames, n);
        close_frames(frames, n);
    }
    while (left > 0 && s->sub.socket != NULL && (n = receive_message(s->sub.socket, frames)) > 0) {
        left -= share_of(&frames[kvp_min_u64(n, FRAMES_MAX) - 1], left);
        take_live(s, frames, n);
        close_frames(frames, n);
    }
    return left == 0;
}

void
kvp_subscription_ask(kvp_subscription_t *s, uint64_t from)
{
    uint8_t seq[SEQ_BYTES];

    for (uint32_t i = 0; i < SEQ_BYTES; i++)
        seq[i] = (uint8_t)(from >> 8 * (SEQ_BYTES - 1 - i));
    /* if no new socket can be opened, nothing is sent: kvp_feed_tick ends this replay, and later asks again */
    if (s->is_replaying && open_dealer(s) != KVP_OK) return;
    s->is_replaying = true;
    if (zmq_send(s->dealer.socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) == 0)
        (void)zmq_send(s->dealer.socket, seq, sizeof seq, ZMQ_DONTWAIT);
}

void
kvp_subscription_ask_digests(kvp_subscription_t *s)
{
    if (s->dealer.socket != NULL && !s->is_replaying &&
        zmq_send(s->dealer.socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) == 0)
        (void)zmq_send(s->dealer.socket, "digests", 7, ZMQ_DONTWAIT);
}

bool
kvp_subscription_is_connected(const kvp_subscription_t *s)
{
    return s->is_connected;
}

uint64_t
kvp_subscription_malformed(const kvp_subscription_t *s)
{
    return s->malformed;
}

uint64_t
kvp_subscription_refused(const kvp_subscription_t *s, const char **own_topic_out, const char **topic_out)
{
    *own_topic_out = s->topic;
    *topic_out = s->refused_topic;
    return s->refused;
}
