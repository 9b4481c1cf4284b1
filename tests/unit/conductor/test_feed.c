/* SPDX-License-Identifier: Apache-2.0
 * The order of a publisher's messages against a publisher that is played: whatever is lost, comes twice, or is
 * restarted, in the end exactly the messages of the one that publishes now have been applied since the last drop. */
#include "conductor/events/feed.h"
#include "tests/cases.h"

#include <string.h>

#define MS 1000000ull
#define MESSAGES 400u

/* A message is its process and number. */
typedef struct {
    uint32_t process, seq;
} message_t;

typedef struct {
    kvp_feed_t feed;
    uint64_t rng, now;
    message_t kept[MESSAGES]; /* of the process that publishes */
    uint32_t n, process, first; /* first: what was published before is not kept any more */
    message_t applied[16 * MESSAGES];
    uint32_t applied_n;
    bool has_snapshots; /* instead of what is not kept all that was said before is told */
    bool is_asked, is_deaf; /* a replay waits for its answer; none is answered */
    uint64_t from;
} rig_t;

static uint64_t
draw(rig_t *g, uint64_t n)
{
    g->rng = g->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (g->rng >> 33) % n;
}

static void
on_apply(void *arg, const void *payload, size_t len)
{
    rig_t *g = arg;

    assert_int_equal(len, sizeof(message_t));
    memcpy(&g->applied[g->applied_n++], payload, len);
}

static void
on_drop(void *arg)
{
    rig_t *g = arg;

    g->applied_n = 0;
}

static void
on_ask(void *arg, uint64_t from)
{
    rig_t *g = arg;

    g->is_asked = true;
    g->from = from;
}

static void
tell_all(rig_t *g, uint64_t seq, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        kvp_feed_snapshot(&g->feed, seq, &g->kept[i], sizeof g->kept[i], g->now);
}

static void
answer(rig_t *g)
{
    uint64_t from = g->from;

    g->is_asked = false;
    if (g->has_snapshots && g->n > 2 && (from == 0 || from < g->first || from >= g->n)) {
        if (draw(g, 4) == 0) tell_all(g, g->n - 2, g->n / 2); /* the publisher begins it anew */
        tell_all(g, g->n - 1, g->n - 1);
        from = g->n - 1;
    }
    for (uint32_t i = g->first; i < g->n; i++)
        if (i >= from) kvp_feed_replayed(&g->feed, i, &g->kept[i], sizeof g->kept[i], g->now);
    kvp_feed_replay_end(&g->feed, g->now);
}

static void
publish(rig_t *g, bool is_lost)
{
    if (g->n == MESSAGES) return;
    g->kept[g->n] = (message_t){g->process, g->n};
    g->n++;
    if (!is_lost) kvp_feed_live(&g->feed, g->n - 1, &g->kept[g->n - 1], sizeof(message_t), g->now);
}

static void
restart(rig_t *g)
{
    g->process++;
    g->n = g->first = 0;
    for (uint64_t i = draw(g, 30); i > 0; i--)
        publish(g, true);
    kvp_feed_connected(&g->feed, g->now);
}

/* In the end all that the process has kept was applied, once and in order, and nothing of another one. */
static void
check_whole(const rig_t *g)
{
    const uint32_t from = g->n == 0 || g->applied_n == 0 ? 0 : g->applied[0].seq;

    assert_int_equal(g->applied_n, g->n - from);
    assert_true(from <= (g->has_snapshots && g->n > 2 ? 0 : g->first));
    for (uint32_t i = 0; i < g->applied_n; i++) {
        assert_int_equal(g->applied[i].process, g->process);
        assert_int_equal(g->applied[i].seq, from + i);
    }
}

TEST(test_random_faults)
{
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        static rig_t g;

        memset(&g, 0, sizeof g);
        g.rng = seed;
        g.now = 1;
        g.has_snapshots = seed % 2 == 0;
        kvp_feed_init(&g.feed, &(kvp_feed_ops_t){on_apply, on_drop, on_ask, &g}, true, g.now);
        for (uint32_t i = 0; i < 150; i++) {
            g.now += draw(&g, 300) * MS;
            switch (draw(&g, 12)) {
            case 0:
                if (draw(&g, 6) == 0) restart(&g);
                break;
            case 1:
                publish(&g, true);
                break;
            case 2:
                kvp_feed_connected(&g.feed, g.now);
                break;
            case 3: /* what was heard before, again */
                if (g.n > 0) {
                    const uint32_t k = (uint32_t)draw(&g, g.n);

                    kvp_feed_live(&g.feed, k, &g.kept[k], sizeof(message_t), g.now);
                }
                break;
            case 4:
                g.is_deaf = draw(&g, 8) == 0;
                break;
            case 5:
                if (g.n > 40) g.first = g.n - 20;
                break;
            default:
                publish(&g, false);
            }
            if (g.is_asked && !g.is_deaf && draw(&g, 2) == 0) answer(&g);
            kvp_feed_tick(&g.feed, g.now);
        }
        g.is_deaf = false;
        for (uint32_t i = 0; i < 200; i++) { /* nothing more is published, and all is answered */
            g.now += 100 * MS;
            if (g.is_asked) answer(&g);
            kvp_feed_tick(&g.feed, g.now);
        }
        check_whole(&g);
        kvp_feed_fini(&g.feed);
    }
}

/* What comes again, however old, costs nothing that is held. */
TEST(test_old_messages_again)
{
    static rig_t g;

    memset(&g, 0, sizeof g);
    kvp_feed_init(&g.feed, &(kvp_feed_ops_t){on_apply, on_drop, on_ask, &g}, true, 1);
    answer(&g);
    for (uint32_t i = 0; i < 50; i++) {
        publish(&g, false);
        for (uint32_t k = 0; k < 3 && k <= i; k++)
            kvp_feed_live(&g.feed, i - k, &g.kept[i - k], sizeof(message_t), 1);
        if (g.is_asked) answer(&g);
        assert_false(g.is_asked);
        assert_int_equal(g.applied_n, i + 1);
    }
    assert_int_equal(g.feed.stats.drops, 0);
    kvp_feed_fini(&g.feed);
}

/* Without replays what cannot be known to be whole is dropped. */
TEST(test_without_replays)
{
    rig_t g = {.now = 1};

    kvp_feed_init(&g.feed, &(kvp_feed_ops_t){on_apply, on_drop, on_ask, &g}, false, 1);
    for (uint32_t i = 0; i < 5; i++)
        publish(&g, false);
    kvp_feed_live(&g.feed, 4, &g.kept[4], sizeof(message_t), 1);
    assert_int_equal(g.applied_n, 5);
    publish(&g, true);
    publish(&g, false);
    assert_int_equal(g.applied_n, 1);
    assert_int_equal(g.feed.stats.gaps, 1);
    restart(&g);
    g.n = 0;
    publish(&g, false);
    assert_int_equal(g.applied_n, 1);
    assert_int_equal(g.applied[0].process, 1);
    assert_int_equal(g.feed.stats.drops, 2);
    assert_false(g.is_asked);
    kvp_feed_fini(&g.feed);
}

/* Messages that wait for a replay have a bound; what was let go is asked for. */
TEST(test_flood_during_a_replay)
{
    static uint8_t big[1 << 20];
    static rig_t g;

    memset(&g, 0, sizeof g);
    kvp_feed_init(&g.feed, &(kvp_feed_ops_t){on_apply, on_drop, on_ask, &g}, true, 1);
    assert_true(g.is_asked);
    for (uint64_t i = 0; i < 40; i++)
        kvp_feed_live(&g.feed, i, big, sizeof big, 1);
    assert_true(g.feed.queue.len <= KVP_FEED_QUEUE_MAX);
    g.is_asked = false;
    kvp_feed_replay_end(&g.feed, 1);
    assert_true(g.is_asked && g.from == 0);
    kvp_feed_fini(&g.feed);
}

/* A digest counts with the message of its number, whenever it comes, and not during a replay or behind a later message.
 */
TEST(test_digests)
{
    const message_t digest = {99, 0};
    rig_t g = {.now = 1};

    kvp_feed_init(&g.feed, &(kvp_feed_ops_t){on_apply, on_drop, on_ask, &g}, true, 1);
    kvp_feed_digest(&g.feed, 0, &digest, sizeof digest);
    answer(&g);
    publish(&g, false);
    kvp_feed_digest(&g.feed, 0, &digest, sizeof digest);
    kvp_feed_digest(&g.feed, 2, &digest, sizeof digest);
    assert_int_equal(g.applied_n, 2);
    publish(&g, false);
    publish(&g, false);
    assert_int_equal(g.applied_n, 5);
    kvp_feed_digest(&g.feed, 1, &digest, sizeof digest);
    kvp_feed_digest(&g.feed, 3, &digest, sizeof digest);
    kvp_feed_again(&g.feed, 1);
    answer(&g);
    publish(&g, false);
    assert_int_equal(g.applied_n, 4);
    for (uint32_t i = 0; i < g.applied_n; i++)
        assert_int_equal(g.applied[i].process, 0);
    kvp_feed_fini(&g.feed);
}

TEST_MAIN()
