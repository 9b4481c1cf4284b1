/* SPDX-License-Identifier: Apache-2.0
 * Publishes KV events: see publisher.h.
 *
 * Design notes.
 * - Log records and slices of the index go through one queue, in the order in which they were true. So a subscriber
 *   that reads all slices, and all records since the first slice, knows the present state (as with a dump that is
 *   made while a log continues).
 * - A snapshot has the number of the last message before it, and the replay continues with this message itself, so that
 *   the subscriber gets its bytes: other bytes under this number in a later replay mean that another process publishes.
 * - After a pause (another master led, or events were lost) one number is skipped: subscribers see a gap, and ask for
 *   a replay. */
#include "master/events/publisher.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"
#include "master/events/stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define QUEUE_MAX (64u << 20) /* limit of the bytes queued for the publisher's thread; above it, events are dropped */
#define SLICE 512u /* number of index records that the loop examines in one turn */
#define BATCH 64u /* limit of the events in one message */
#define RING_BYTES_MAX (128u << 20)
#define CLIENTS_MAX 16u
#define CLIENT_WAIT_NS (5 * KVP_NS_PER_S) /* a replay ends if its client reads nothing for this long */
#define CLIENT_YIELD_NS KVP_NS_PER_S /* CLIENT_WAIT_NS if another client asks and all places are used */
#define SNAPSHOTS_MAX 3u /* a replay ends if the ring was too short to continue after this many snapshots */
#define IDENTITY_MAX 255u
#define SEQ_BYTES 8u
#define PRIME UINT32_MAX /* item_t.client of the publisher's own walk through the index */
#define POLL_MS 20 /* interval of send attempts while a client does not read */
#define IDLE_MS 1000

typedef enum { Q_BEGIN, Q_END, Q_RECORDS, Q_SLICE } kind_t;

typedef struct {
    uint32_t kind, client;
    uint64_t serial; /* number of the client's walk through the index */
    uint32_t has_more, cursor;
    uint64_t len; /* bytes that follow this header */
} item_t;

typedef enum { C_FREE, C_WAITING, C_WALKING, C_RING } client_state_t;

typedef struct {
    client_state_t state;
    uint8_t identity[IDENTITY_MAX];
    size_t identity_len;
    uint64_t serial; /* number of its walk through the index */
    uint32_t cursor; /* position in the index */
    bool is_waiting; /* flag: the client's next slice of the index was requested from the loop */
    bool is_walked; /* flag: no slice of the index is left for the client */
    uint32_t snapshots;
    uint64_t seq; /* number of the last message before the snapshot; in state C_RING: the next message to send */
    uint64_t moved_ns;
    kvp_event_batch_t batch; /* events of the last slice, to send before the next slice is requested */
} client_t;

struct kvp_eventpub {
    kvp_publisher_conf_t conf;
    void (*wake)(void *arg);
    void *arg;
    pthread_t thread;
    void *zmq, *pub, *router; /* router NULL = no replays */
    int event_fd;

    pthread_mutex_t mutex; /* guards the fields up to stats */
    kvp_buf_t queue;
    bool is_over, is_awake;
    item_t want; /* the slice of the index that the thread wants; serial 0 = none */
    kvp_publisher_stats_t stats;

    /* Fields of the loop's thread. */
    const kvp_master_t *core; /* the core whose state is being published; NULL = none */
    bool is_lost;

    /* Fields of the publisher's thread. */
    kvp_stream_t *stream;
    kvp_event_batch_t live;
    enum {
        PAUSED, /* this master does not lead */
        PRIMING, /* the thread reads the whole index for the first time */
        PRIMED,
    } state;
    client_t prime;
    client_t clients[CLIENTS_MAX];
    uint64_t walks;
    uint32_t turn; /* the client served first is clients[turn % CLIENTS_MAX] */
    kvp_event_batch_t *ring; /* messages kept for replays: message number seq is at seq % ring_cap */
    uint32_t ring_cap, ring_events;
    uint64_t ring_bytes;
    uint64_t first, next; /* the ring has the messages from number first to next - 1 */
};

static uint64_t
unix_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- functions of the loop's thread */
static void
enqueue_item(kvp_eventpub_t *p, const item_t *item, const void *bytes)
{
    const uint64_t one = 1;
    bool has_slept;

    pthread_mutex_lock(&p->mutex);
    kvp_buf_append(&p->queue, item, sizeof *item);
    kvp_buf_append(&p->queue, bytes, item->len);
    if (p->queue.err != KVP_OK) kvp_panic("out of memory: events that wait");
    has_slept = !p->is_awake;
    p->is_awake = true;
    pthread_mutex_unlock(&p->mutex);
    if (has_slept) (void)!write(p->event_fd, &one, sizeof one); /* the counter cannot be full */
}

static size_t
waiting_bytes(kvp_eventpub_t *p)
{
    pthread_mutex_lock(&p->mutex);
    const size_t len = p->queue.len;
    pthread_mutex_unlock(&p->mutex);
    return len;
}

void
kvp_publisher_log(kvp_eventpub_t *p, const void *records, size_t len)
{
    const item_t item = {.kind = Q_RECORDS, .len = len};

    if (p->core == NULL || p->is_lost || len == 0) return;
    if (waiting_bytes(p) + len <= QUEUE_MAX) {
        enqueue_item(p, &item, records);
        return;
    }
    p->is_lost = true;
    kvp_log_warn("events", "events are published too slowly: some are dropped, and subscribers get a snapshot");
    pthread_mutex_lock(&p->mutex);
    p->stats.events_lost++;
    pthread_mutex_unlock(&p->mutex);
}

static void
give_slice(kvp_eventpub_t *p, kvp_master_t *master)
{
    item_t item;
    kvp_buf_t records;

    pthread_mutex_lock(&p->mutex);
    item = p->want;
    p->want.serial = 0;
    pthread_mutex_unlock(&p->mutex);
    if (item.serial == 0) return;
    kvp_buf_init(&records, 0);
    item.kind = Q_SLICE;
    item.has_more = kvp_master_tell(master, &item.cursor, SLICE, &records);
    if (records.err != KVP_OK) kvp_panic("out of memory: a snapshot of the index");
    item.len = records.len;
    enqueue_item(p, &item, records.data);
    kvp_buf_fini(&records);
}

void
kvp_publisher_turn(kvp_eventpub_t *p, kvp_master_t *master)
{
    const bool is_again = p->is_lost && waiting_bytes(p) == 0;

    if (p->core != master || is_again) {
        p->core = master;
        p->is_lost = false;
        enqueue_item(p, &(item_t){.kind = master != NULL ? Q_BEGIN : Q_END}, NULL);
    }
    if (master != NULL && !p->is_lost) give_slice(p, master);
}

/* ---- the ring of published messages */
static kvp_event_batch_t *
message_at(kvp_eventpub_t *p, uint64_t seq)
{
    return &p->ring[seq % p->ring_cap];
}

static void
drop_first(kvp_eventpub_t *p)
{
    kvp_event_batch_t *m = message_at(p, p->first++);

    p->ring_events -= m->n;
    p->ring_bytes -= m->bytes.len;
    kvp_buf_fini(&m->bytes);
}

static void
clear_ring(kvp_eventpub_t *p)
{
    while (p->first < p->next)
        drop_first(p);
}

/* ---- sending */
static void
put_seq(uint64_t seq, uint8_t out[SEQ_BYTES])
{
    for (uint32_t i = 0; i < SEQ_BYTES; i++)
        out[i] = (uint8_t)(seq >> 8 * (SEQ_BYTES - 1 - i));
}

/* Returns true if a client is receiving the index and will then need the messages since its start: the ring may then
 * exceed its limit of events. */
static bool
is_needed(const kvp_eventpub_t *p)
{
    bool is = false;

    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        is |= p->clients[i].state == C_WALKING && p->clients[i].seq <= p->first;
    return is;
}

/* Publishes the batch `live` as one message, if it has events; with is_forced also an empty batch. */
static void
publish_batch(kvp_eventpub_t *p, bool is_forced)
{
    uint8_t seq[SEQ_BYTES];
    kvp_event_batch_t *m;

    if (p->live.n == 0 && !is_forced) return;
    while (p->next - p->first >= p->ring_cap ||
           (p->first < p->next &&
            ((p->ring_events > p->conf.ring_events && !is_needed(p)) || p->ring_bytes > RING_BYTES_MAX)))
        drop_first(p);
    put_seq(p->next, seq);
    m = message_at(p, p->next++);
    m->n = p->live.n;
    kvp_buf_init(&m->bytes, 0);
    kvp_event_payload(&p->live, unix_ms(), &m->bytes);
    p->ring_events += m->n;
    p->ring_bytes += m->bytes.len;
    if (zmq_send(p->pub, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) == 0 &&
        zmq_send(p->pub, seq, sizeof seq, ZMQ_SNDMORE | ZMQ_DONTWAIT) == sizeof seq)
        (void)zmq_send(p->pub, m->bytes.data, m->bytes.len, ZMQ_DONTWAIT);
    pthread_mutex_lock(&p->mutex);
    p->stats.events_published += m->n;
    p->stats.events_messages++;
    pthread_mutex_unlock(&p->mutex);
}

/* Sends a message to one client. Returns 1 = sent, 0 = the client does not read now, -1 = it has disconnected. */
static int
send_to(kvp_eventpub_t *p, const client_t *c, const char *topic, uint64_t number, const void *payload, size_t len)
{
    const int flags = ZMQ_SNDMORE | ZMQ_DONTWAIT;
    uint8_t seq[SEQ_BYTES];

    put_seq(number, seq);
    if (zmq_send(p->router, c->identity, c->identity_len, flags) < 0) return errno == EAGAIN ? 0 : -1;
    /* ZMQ accepts the later parts once it has accepted the first. */
    if (zmq_send(p->router, "", 0, flags) < 0 || zmq_send(p->router, topic, strlen(topic), flags) < 0 ||
        zmq_send(p->router, seq, sizeof seq, flags) < 0 || zmq_send(p->router, payload, len, ZMQ_DONTWAIT) < 0)
        return -1;
    return 1;
}

/* ---- clients that ask for a replay */
static void
end_client(client_t *c)
{
    c->state = C_FREE;
    kvp_buf_reset(&c->batch.bytes);
    c->batch.n = 0;
}

static void
begin_walk(kvp_eventpub_t *p, client_t *c)
{
    c->state = C_WALKING;
    c->serial = ++p->walks;
    c->cursor = 0;
    c->is_waiting = c->is_walked = false;
    c->seq = p->next - 1;
    c->snapshots++;
    kvp_buf_reset(&c->batch.bytes);
    c->batch.n = 0;
}

static void
abandon_client(kvp_eventpub_t *p, client_t *c)
{
    pthread_mutex_lock(&p->mutex);
    p->stats.events_abandoned++;
    pthread_mutex_unlock(&p->mutex);
    end_client(c);
}

/* Handles the result of send_to. Returns false if the client has disconnected, or does not read. */
static bool
note_sent(kvp_eventpub_t *p, client_t *c, int rc, uint64_t now_ns)
{
    if (rc > 0)
        c->moved_ns = now_ns;
    else if (rc < 0)
        end_client(c);
    else if (now_ns - c->moved_ns > CLIENT_WAIT_NS)
        abandon_client(p, c);
    return rc > 0;
}

static void
count_snapshot(kvp_eventpub_t *p)
{
    pthread_mutex_lock(&p->mutex);
    p->stats.events_snapshots++;
    pthread_mutex_unlock(&p->mutex);
}

/* Sends the client's next part of a snapshot, or requests a slice of the index for it. Returns false if nothing was
 * sent. After the last part the client continues with the ring (C_RING). */
static bool
walk_on(kvp_eventpub_t *p, client_t *c, uint64_t now_ns)
{
    kvp_event_batch_t batch = c->batch;
    kvp_buf_t payload;
    bool is_sent;

    if (c->is_waiting) return false;
    if (!c->is_walked && c->batch.n == 0) {
        pthread_mutex_lock(&p->mutex);
        if (p->want.serial == 0) {
            p->want = (item_t){.client = (uint32_t)(c - p->clients), .serial = c->serial, .cursor = c->cursor};
            if (c == &p->prime) p->want.client = PRIME;
            c->is_waiting = true;
        }
        pthread_mutex_unlock(&p->mutex);
        if (c->is_waiting) p->wake(p->arg);
        return false;
    }
    /* An empty batch is sent, too: a snapshot of an empty pool is one message. */
    kvp_buf_init(&payload, 0);
    kvp_event_payload(&batch, unix_ms(), &payload);
    is_sent = note_sent(p, c, send_to(p, c, "snapshot", c->seq, payload.data, payload.len), now_ns);
    kvp_buf_fini(&payload);
    if (!is_sent) return false;
    kvp_buf_reset(&c->batch.bytes);
    c->batch.n = 0;
    if (c->is_walked) c->state = C_RING;
    return true;
}

static bool
ring_on(kvp_eventpub_t *p, client_t *c, uint64_t now_ns)
{
    const kvp_event_batch_t *m;

    if (c->seq >= p->next) {
        if (note_sent(p, c, send_to(p, c, "", UINT64_MAX, "", 0), now_ns)) end_client(c);
        return false;
    }
    if (c->seq < p->first) { /* the ring has dropped messages that this client needs */
        if (c->snapshots == SNAPSHOTS_MAX)
            abandon_client(p, c);
        else
            begin_walk(p, c);
        return true;
    }
    m = message_at(p, c->seq);
    if (!note_sent(p, c, send_to(p, c, "", c->seq, m->bytes.data, m->bytes.len), now_ns)) return false;
    c->seq++;
    return true;
}

/* Sends digests (sums over all events up to the last message), with the message's number. A client that does not read
 * now must ask again. */
static void
answer_digests(kvp_eventpub_t *p, const uint8_t *identity, size_t len)
{
    client_t c = {.identity_len = len};
    kvp_event_batch_t batch = {.n = 0};
    kvp_buf_t payload;

    if (p->state != PRIMED) return;
    publish_batch(p, false);
    memcpy(c.identity, identity, len);
    kvp_buf_init(&payload, 0);
    kvp_stream_digests(p->stream, unix_ms(), &batch);
    kvp_event_payload(&batch, unix_ms(), &payload);
    (void)send_to(p, &c, "digests", p->next - 1, payload.data, payload.len);
    kvp_buf_fini(&payload);
    kvp_buf_fini(&batch.bytes);
}

/* Handles a client's request: [identity, empty, number], or "digests" instead of the number. */
static void
take_request(kvp_eventpub_t *p, uint64_t now_ns)
{
    uint8_t parts[4][IDENTITY_MAX + 1];
    size_t lens[4] = {0};
    uint64_t from = 0;
    uint32_t n = 0;
    int more = 1;
    client_t *c = NULL, *spare = NULL;

    while (more != 0) {
        const uint32_t at = (uint32_t)kvp_min_u64(n++, 3);
        const int got = zmq_recv(p->router, parts[at], sizeof parts[at], ZMQ_DONTWAIT);
        size_t len = sizeof more;

        if (got < 0) return;
        lens[at] = (size_t)got;
        if (zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &len) != 0) return;
    }
    if (n != 3 || lens[0] > IDENTITY_MAX || lens[1] != 0) return;
    if (lens[2] == 7 && memcmp(parts[2], "digests", 7) == 0) answer_digests(p, parts[0], lens[0]);
    if (lens[2] != SEQ_BYTES) return;
    for (uint32_t i = 0; i < SEQ_BYTES; i++)
        from = from << 8 | parts[2][i];
    for (uint32_t i = 0; i < CLIENTS_MAX; i++) {
        client_t *one = &p->clients[i];

        if (one->state == C_FREE ||
            (spare == NULL && one->state != C_WAITING && now_ns - one->moved_ns > CLIENT_YIELD_NS))
            spare = one;
        else if (one->identity_len == lens[0] && memcmp(one->identity, parts[0], lens[0]) == 0)
            c = one; /* the client replaces its request */
    }
    if (c == NULL) c = spare;
    if (c == NULL) return; /* all places are used: the client gets no answer and has to ask again */
    end_client(c);
    memcpy(c->identity, parts[0], lens[0]);
    c->identity_len = lens[0];
    c->moved_ns = now_ns;
    c->snapshots = 0;
    c->state = C_WAITING;
    c->seq = from;
    pthread_mutex_lock(&p->mutex);
    p->stats.events_replays++;
    pthread_mutex_unlock(&p->mutex);
}

/* Begins the answer to a client. Returns false while the thread does not know the whole index. */
static bool
begin_answer(kvp_eventpub_t *p, client_t *c, uint64_t now_ns)
{
    c->moved_ns = now_ns;
    if (p->state == PRIMING) return false;
    c->state = C_RING;
    if (p->state == PAUSED) {
        c->seq = p->next; /* another master leads: the answer has no messages */
    } else if (c->seq < p->first || c->seq >= p->next) {
        begin_walk(p, c);
        count_snapshot(p);
    }
    return true;
}

static bool
go_on(kvp_eventpub_t *p, client_t *c, uint64_t now_ns)
{
    if (c->state == C_WAITING) return begin_answer(p, c, now_ns);
    return c->state == C_WALKING ? walk_on(p, c, now_ns) : ring_on(p, c, now_ns);
}

/* Sends at most BATCH messages to each client. Returns the time in ms until this function must run again. */
static long
run_clients(kvp_eventpub_t *p, uint64_t now_ns)
{
    long wait_ms = IDLE_MS;

    if (p->prime.state == C_WALKING) (void)walk_on(p, &p->prime, now_ns);
    for (uint32_t i = 0; i < CLIENTS_MAX; i++) {
        client_t *c = &p->clients[(i + p->turn) % CLIENTS_MAX];
        uint32_t left = BATCH;

        while (c->state != C_FREE && left > 0 && go_on(p, c, now_ns))
            left--;
        if (c->state == C_FREE || c->is_waiting) continue;
        wait_ms = left == 0 ? 0 : (long)kvp_min_u64((uint64_t)wait_ms, POLL_MS);
    }
    p->turn++; /* clients take turns at being first */
    return wait_ms;
}

/* ---- input from the loop's thread */
static void
take_records(kvp_eventpub_t *p, const uint8_t *bytes, size_t len, kvp_stream_mode_t mode, kvp_event_batch_t *batch)
{
    kvp_jrec_any_t rec;
    const uint64_t now_ms = unix_ms();

    for (size_t at = 0; at < len; at += rec.head.bytes) {
        memcpy(&rec.head, bytes + at, sizeof rec.head);
        memcpy(&rec, bytes + at, rec.head.bytes);
        /* The index can be newer than the log (for memory that is being dropped): changes that only the slice shows go
         * to all subscribers, not only to the asking client. */
        if (mode == KVP_STREAM_SNAPSHOT) kvp_stream_take(p->stream, &rec, KVP_STREAM_LIVE, now_ms, &p->live);
        kvp_stream_take(p->stream, &rec, mode, now_ms, batch);
        if (batch == &p->live && batch->n >= BATCH) publish_batch(p, false);
    }
}

static void
pause_all(kvp_eventpub_t *p)
{
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        end_client(&p->clients[i]);
    end_client(&p->prime);
    clear_ring(p);
    kvp_buf_reset(&p->live.bytes);
    p->live.n = 0;
    kvp_stream_reset(p->stream);
    p->state = PAUSED;
    pthread_mutex_lock(&p->mutex);
    p->want.serial = 0;
    pthread_mutex_unlock(&p->mutex);
}

static void
take_slice(kvp_eventpub_t *p, const item_t *item, const uint8_t *bytes)
{
    const bool is_prime = item->client == PRIME;
    client_t *c = is_prime ? &p->prime : &p->clients[item->client];

    if (c->state != C_WALKING || c->serial != item->serial) return;
    c->is_waiting = false;
    c->cursor = item->cursor;
    c->is_walked = !item->has_more;
    take_records(p, bytes, item->len, is_prime ? KVP_STREAM_PRIME : KVP_STREAM_SNAPSHOT, &c->batch);
    if (!is_prime || !c->is_walked) return;
    end_client(c);
    p->state = PRIMED;
    publish_batch(p, true); /* an empty message, so that the ring is never empty from here on */
    kvp_log_info("events", "publishing objects=%llu", (unsigned long long)kvp_stream_objects(p->stream));
}

static void
take_item(kvp_eventpub_t *p, const item_t *item, const uint8_t *bytes)
{
    switch ((kind_t)item->kind) {
    case Q_BEGIN:
        pause_all(p);
        p->first = ++p->next;
        p->state = PRIMING;
        begin_walk(p, &p->prime);
        break;
    case Q_END:
        pause_all(p);
        break;
    case Q_RECORDS:
        take_records(p, bytes, item->len, p->state == PRIMED ? KVP_STREAM_LIVE : KVP_STREAM_PRIME, &p->live);
        break;
    case Q_SLICE:
        take_slice(p, item, bytes);
        break;
    }
}

/* Handles the queued items. Returns false if there were none: the loop wakes this thread for the next item. */
static bool
take_queue(kvp_eventpub_t *p, kvp_buf_t *taken, bool *is_over_out)
{
    kvp_buf_t swap;
    bool has_any;

    pthread_mutex_lock(&p->mutex);
    swap = p->queue;
    p->queue = *taken;
    *taken = swap;
    *is_over_out = p->is_over;
    has_any = p->is_awake = taken->len > 0;
    p->stats.events_queue_bytes = taken->len;
    p->stats.events_objects = kvp_stream_objects(p->stream);
    p->stats.is_publishing = p->state == PRIMED;
    pthread_mutex_unlock(&p->mutex);
    for (size_t at = 0; at < taken->len && !*is_over_out;) {
        item_t item;

        memcpy(&item, taken->data + at, sizeof item);
        at += sizeof item;
        take_item(p, &item, taken->data + at);
        at += item.len;
    }
    kvp_buf_reset(taken);
    return has_any;
}

static void *
run_publisher(void *arg)
{
    kvp_eventpub_t *p = arg;
    zmq_pollitem_t items[3] = {
        {.fd = p->event_fd, .events = ZMQ_POLLIN},
        {.socket = p->pub, .events = ZMQ_POLLIN}, /* polled so that ZMQ handles subscriptions while nothing is sent */
        {.socket = p->router, .events = ZMQ_POLLIN}};
    const int n = p->router != NULL ? 3 : 2;
    kvp_buf_t taken;
    uint64_t woken;
    bool is_over = false;

    kvp_buf_init(&taken, 0);
    while (!is_over) {
        const bool has_any = take_queue(p, &taken, &is_over);
        const uint64_t now_ns = kvp_boot_ns();
        long wait_ms;

        publish_batch(p, false);
        wait_ms = run_clients(p, now_ns);
        items[0].revents = items[1].revents = items[2].revents = 0;
        (void)zmq_poll(items, n, has_any ? 0 : wait_ms);
        if ((items[0].revents & ZMQ_POLLIN) != 0) (void)!read(p->event_fd, &woken, sizeof woken);
        if ((items[2].revents & ZMQ_POLLIN) != 0) take_request(p, kvp_boot_ns());
    }
    kvp_buf_fini(&taken);
    return NULL;
}

void
kvp_publisher_stats(kvp_eventpub_t *p, kvp_publisher_stats_t *out)
{
    pthread_mutex_lock(&p->mutex);
    *out = p->stats;
    pthread_mutex_unlock(&p->mutex);
}

/* ---- lifetime */
static kvp_err_t
bind_socket(kvp_eventpub_t *p, int type, const char *endpoint, void **out)
{
    const int yes = 1, none = 0, beat = 2000, beat_max = 6000;
    const int64_t most = 4096;
    /* limit of the messages queued for a replaying client: the next slice is made when the previous one was sent */
    const int ahead = 8;

    *out = zmq_socket(p->zmq, type);
    if (*out == NULL) return KVP_SYS;
    (void)zmq_setsockopt(*out, ZMQ_LINGER, &none, sizeof none);
    (void)zmq_setsockopt(*out, ZMQ_IPV6, &yes, sizeof yes);
    (void)zmq_setsockopt(*out, ZMQ_HEARTBEAT_IVL, &beat, sizeof beat);
    (void)zmq_setsockopt(*out, ZMQ_HEARTBEAT_TIMEOUT, &beat_max, sizeof beat_max);
    (void)zmq_setsockopt(*out, ZMQ_MAXMSGSIZE, &most, sizeof most); /* limit of messages from peers */
    if (type == ZMQ_ROUTER) (void)zmq_setsockopt(*out, ZMQ_ROUTER_MANDATORY, &yes, sizeof yes);
    if (type == ZMQ_ROUTER) (void)zmq_setsockopt(*out, ZMQ_SNDHWM, &ahead, sizeof ahead);
    if (zmq_bind(*out, endpoint) == 0) return KVP_OK;
    kvp_log_error("events", "cannot publish: %s endpoint=%s", zmq_strerror(zmq_errno()), endpoint);
    return KVP_INVALID;
}

static kvp_err_t
build_sockets(kvp_eventpub_t *p)
{
    kvp_err_t err;

    p->zmq = zmq_ctx_new();
    p->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->stream = kvp_stream_create(p->conf.backend, p->conf.is_legacy, kvp_random_u64());
    p->ring_cap = (uint32_t)p->conf.ring_events + 1;
    p->ring = calloc(p->ring_cap, sizeof *p->ring);
    if (p->zmq == NULL || p->event_fd < 0) return KVP_SYS;
    if (p->stream == NULL || p->ring == NULL) return KVP_NOMEM;
    p->first = p->next = 1;
    err = bind_socket(p, ZMQ_PUB, p->conf.endpoint, &p->pub);
    if (err == KVP_OK && p->conf.replay != NULL) err = bind_socket(p, ZMQ_ROUTER, p->conf.replay, &p->router);
    return err == KVP_OK ? kvp_thread_start(&p->thread, "kvp-events", run_publisher, p) : err;
}

static void
free_publisher(kvp_eventpub_t *p)
{
    if (p->stream != NULL && p->ring != NULL) pause_all(p);
    if (p->pub != NULL) zmq_close(p->pub);
    if (p->router != NULL) zmq_close(p->router);
    if (p->zmq != NULL) zmq_ctx_term(p->zmq);
    if (p->event_fd >= 0) close(p->event_fd);
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        kvp_buf_fini(&p->clients[i].batch.bytes);
    kvp_buf_fini(&p->prime.batch.bytes);
    kvp_buf_fini(&p->live.bytes);
    kvp_buf_fini(&p->queue);
    kvp_stream_destroy(p->stream);
    free(p->ring);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

kvp_err_t
kvp_publisher_create(const kvp_publisher_conf_t *conf, void (*wake)(void *arg), void *arg, kvp_eventpub_t **out)
{
    kvp_eventpub_t *p = calloc(1, sizeof *p);
    kvp_err_t err;

    if (p == NULL) return KVP_NOMEM;
    p->conf = *conf;
    p->wake = wake;
    p->arg = arg;
    pthread_mutex_init(&p->mutex, NULL);
    err = build_sockets(p);
    if (err != KVP_OK) {
        free_publisher(p);
        return err;
    }
    *out = p;
    return KVP_OK;
}

void
kvp_publisher_destroy(kvp_eventpub_t *p)
{
    const uint64_t one = 1;

    if (p == NULL) return;
    pthread_mutex_lock(&p->mutex);
    p->is_over = true;
    pthread_mutex_unlock(&p->mutex);
    (void)!write(p->event_fd, &one, sizeof one); /* the counter cannot be full */
    pthread_join(p->thread, NULL);
    free_publisher(p);
}
