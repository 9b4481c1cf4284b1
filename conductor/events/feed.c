/* SPDX-License-Identifier: Apache-2.0
 * See feed.h.
 *
 * Design notes.
 * - A replay begins with the last known message. If the publisher sends other bytes under its number, or no message,
 *   another process publishes there now.
 * - Live messages wait in a queue during a replay. Above the limit the queue is dropped, and the messages are
 *   requested again. */
#include "conductor/events/feed.h"

#include <string.h>
#include <xxhash.h>

#define S 1000000000ull
#define SILENCE_NS (5 * S) /* after this silence a replay is requested, as a lost last message leaves no sign */
#define REPLAY_MAX_NS (5 * S) /* a replay without progress for this time has failed */
#define TRIES_MAX 3u

static void
ask_replay(kvp_feed_t *f, uint64_t from, uint64_t now_ns)
{
    f->state = KVP_FEED_ASKED;
    f->is_doubted = false;
    f->asked_ns = now_ns;
    f->asked_from = from;
    f->stats.replays++;
    f->ops.ask(f->ops.arg, from);
}

static void
ask_on(kvp_feed_t *f, uint64_t now_ns)
{
    ask_replay(f, f->has_last && !f->is_partial ? f->last : 0, now_ns);
}

static void
drop_applied(kvp_feed_t *f)
{
    f->stats.drops += f->has_last;
    f->has_last = false;
    kvp_buf_reset(&f->digest);
    f->ops.drop(f->ops.arg);
}

static void
apply_message(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len)
{
    f->has_last = true;
    f->last = seq;
    f->last_digest = XXH3_64bits(payload, len);
    f->stats.applied++;
    f->ops.apply(f->ops.arg, payload, len);
    if (f->digest.len == 0 || f->digest_seq > seq) return;
    if (f->digest_seq == seq) f->ops.apply(f->ops.arg, f->digest.data, f->digest.len);
    kvp_buf_reset(&f->digest);
}

static bool
is_last(const kvp_feed_t *f, uint64_t seq, const void *payload, size_t len)
{
    return f->has_last && seq == f->last && XXH3_64bits(payload, len) == f->last_digest;
}

/* ---- the queue of messages that arrive during a replay */
/* Adds a message to the queue. If the queue is full, its buffer has an error, and end_replay requests all messages
 * again. */
static void
enqueue_message(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len)
{
    const uint64_t head[2] = {seq, len};

    kvp_buf_append(&f->queue, head, sizeof head);
    kvp_buf_append(&f->queue, payload, len);
    (void)kvp_buf_extend(&f->queue, -len % 8);
}

static void take_message(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns);

/* Handles the queued messages as if they arrived now. The replay has shown that the publishing process is the
 * same. So a queued message whose number is not above the last number is a duplicate. A gap begins another replay,
 * and the remaining messages stay in the queue. */
static void
run_queue(kvp_feed_t *f, uint64_t now_ns)
{
    kvp_buf_t queue = f->queue;

    kvp_buf_init(&f->queue, KVP_FEED_QUEUE_MAX);
    for (size_t at = 0; at < queue.len;) {
        uint64_t head[2];

        memcpy(head, queue.data + at, sizeof head);
        at += sizeof head;
        const uint64_t seq = head[0], len = head[1];
        if (f->state != KVP_FEED_LIVE)
            enqueue_message(f, seq, queue.data + at, len);
        else if (f->has_last && seq <= f->last)
            f->stats.duplicates++;
        else
            take_message(f, seq, queue.data + at, len, now_ns);
        at += len + -len % 8;
    }
    kvp_buf_fini(&queue);
}

/* ---- handling of live messages */
/* Starts again with the received message as the first one, without a replay. All blocks known before are dropped. */
static void
begin_with(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns)
{
    drop_applied(f);
    f->tries = 0;
    f->is_partial = f->can_replay;
    apply_message(f, seq, payload, len);
    f->sure_ns = now_ns;
}

static void
take_message(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns)
{
    const bool is_begin = !f->has_last && (seq == 0 || !f->can_replay);

    if (is_begin || (f->has_last && seq == f->last + 1)) {
        apply_message(f, seq, payload, len);
        f->sure_ns = now_ns;
        f->tries = 0;
        return;
    }
    if (is_last(f, seq, payload, len)) {
        f->stats.duplicates++;
        return;
    }
    f->stats.gaps += f->has_last && seq > f->last;
    if (!f->can_replay || f->tries == TRIES_MAX) {
        f->stats.incarnations += f->has_last && seq <= f->last;
        begin_with(f, seq, payload, len, now_ns);
        return;
    }
    f->tries++;
    enqueue_message(f, seq, payload, len);
    ask_on(f, now_ns);
}

void
kvp_feed_live(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns)
{
    f->heard_ns = now_ns;
    if (f->state != KVP_FEED_LIVE)
        enqueue_message(f, seq, payload, len);
    else
        take_message(f, seq, payload, len, now_ns);
}

/* ---- handling of a replay's messages */
static void
replayed_first(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len)
{
    f->state = KVP_FEED_REPLAYING;
    if (!f->has_last || f->is_partial) {
        if (f->has_last) drop_applied(f);
        f->is_partial = false;
        apply_message(f, seq, payload, len);
        return;
    }
    if (is_last(f, seq, payload, len)) return;
    if (seq > f->last) { /* a gap: the publisher no longer keeps the messages between `last` and seq */
        f->stats.gaps++;
        drop_applied(f);
        apply_message(f, seq, payload, len);
        return;
    }
    f->stats.incarnations++;
    f->state = KVP_FEED_STALE;
}

static bool
is_replaying(const kvp_feed_t *f)
{
    return f->state == KVP_FEED_ASKED || f->state == KVP_FEED_REPLAYING;
}

void
kvp_feed_replayed(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns)
{
    if (!is_replaying(f)) return;
    f->heard_ns = now_ns;
    if (f->state == KVP_FEED_ASKED) {
        replayed_first(f, seq, payload, len);
    } else if (seq == f->last + 1) {
        apply_message(f, seq, payload, len);
    } else if (seq > f->last) { /* a gap in the replay: the publisher itself skipped numbers */
        f->stats.gaps++;
        drop_applied(f);
        apply_message(f, seq, payload, len);
    } else {
        return; /* a repeated message is no progress of the replay */
    }
    f->asked_ns = now_ns;
}

void
kvp_feed_snapshot(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns)
{
    if (!is_replaying(f)) return;
    /* A snapshot with another number is a new attempt of the publisher. The parts of the former attempt are dropped. */
    if (f->state == KVP_FEED_ASKED || !f->has_last || f->last != seq - 1) {
        if (f->has_last) drop_applied(f);
        f->state = KVP_FEED_REPLAYING;
        f->is_partial = false;
        f->has_last = true;
        f->last = seq - 1;
        f->last_digest = 0;
        f->stats.snapshots++;
    }
    f->stats.applied++;
    f->heard_ns = f->asked_ns = now_ns;
    f->ops.apply(f->ops.arg, payload, len);
}

static void
end_replay(kvp_feed_t *f, uint64_t now_ns)
{
    const bool has_lost = f->queue.err != KVP_OK;

    f->state = KVP_FEED_LIVE;
    f->sure_ns = now_ns;
    if (has_lost) kvp_buf_reset(&f->queue);
    if (has_lost || f->is_doubted)
        ask_on(f, now_ns);
    else
        run_queue(f, now_ns);
}

void
kvp_feed_replay_end(kvp_feed_t *f, uint64_t now_ns)
{
    if (f->state == KVP_FEED_LIVE) return;
    f->heard_ns = now_ns;
    /* The replay does not even contain the last message: another process publishes now, with fewer messages so far. */
    if (f->state == KVP_FEED_ASKED && f->has_last) {
        f->stats.incarnations++;
        f->state = KVP_FEED_STALE;
    }
    /* Queued messages may be from the former process, so the queue is dropped. The next replay repeats the
     * messages of the new process. */
    if (f->state == KVP_FEED_STALE) {
        kvp_buf_reset(&f->queue);
        drop_applied(f);
        ask_replay(f, 0, now_ns);
        return;
    }
    end_replay(f, now_ns);
}

void
kvp_feed_digest(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len)
{
    if (f->state != KVP_FEED_LIVE || !f->has_last || seq < f->last) return;
    if (seq == f->last) {
        f->ops.apply(f->ops.arg, payload, len);
        return;
    }
    f->digest_seq = seq;
    kvp_buf_reset(&f->digest);
    kvp_buf_append(&f->digest, payload, len); /* if there is no memory for the digest, it is dropped */
    if (f->digest.err != KVP_OK) kvp_buf_reset(&f->digest);
}

void
kvp_feed_again(kvp_feed_t *f, uint64_t now_ns)
{
    if (!f->can_replay) return;
    drop_applied(f);
    kvp_buf_reset(&f->queue);
    f->is_partial = false;
    f->tries = 0;
    ask_replay(f, 0, now_ns);
}

/* ---- connections and time */
void
kvp_feed_disconnected(kvp_feed_t *f)
{
    if (!f->can_replay && f->has_last) drop_applied(f);
}

void
kvp_feed_connected(kvp_feed_t *f, uint64_t now_ns)
{
    f->heard_ns = now_ns;
    kvp_buf_reset(&f->queue);
    if (f->state != KVP_FEED_LIVE)
        f->is_doubted = true;
    else if (f->can_replay)
        ask_on(f, now_ns);
}

void
kvp_feed_tick(kvp_feed_t *f, uint64_t now_ns)
{
    if (f->state != KVP_FEED_LIVE && now_ns - f->asked_ns > REPLAY_MAX_NS) {
        f->stats.failed_replays++;
        drop_applied(f);
        f->is_partial = true;
        f->tries = TRIES_MAX; /* no replay for a gap: the next live message is applied as if it were the first */
        f->heard_ns = now_ns;
        end_replay(f, now_ns);
    } else if (f->can_replay && f->state == KVP_FEED_LIVE && now_ns - f->heard_ns > SILENCE_NS) {
        ask_on(f, now_ns);
    }
}

void
kvp_feed_init(kvp_feed_t *f, const kvp_feed_ops_t *ops, bool can_replay, uint64_t now_ns)
{
    memset(f, 0, sizeof *f);
    f->ops = *ops;
    f->can_replay = can_replay;
    f->heard_ns = f->sure_ns = now_ns;
    kvp_buf_init(&f->queue, KVP_FEED_QUEUE_MAX);
    kvp_buf_init(&f->digest, KVP_FEED_QUEUE_MAX);
    if (can_replay) ask_replay(f, 0, now_ns);
}

void
kvp_feed_fini(kvp_feed_t *f)
{
    kvp_buf_fini(&f->queue);
    kvp_buf_fini(&f->digest);
}
