/* SPDX-License-Identifier: Apache-2.0
 * See registry.h.
 *
 * Design notes.
 * - One thread changes the index. Readers use the roster, and the structures to which it points, inside an epoch.
 * - A publisher that is removed leaves the roster, and its view ends; readers see both changes at once. on_tick frees
 *   the view's entries in slices, and the publisher when no reader can see it any more. */
#include "conductor/events/registry.h"

#include "conductor/events/registry_priv.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define TICK_MS 100u
#define BATCH 256u /* limit of the cost (subscription.c, share_of) of one publisher's messages in one call */
#define SWEEP 20000u /* for one tick: limit of the entries to sweep in each view, and of the namespaces to check */
#define DIGESTS_NS (10 * KVP_NS_PER_S) /* pause between two requests for a pool's digests */
#define DRIFT_MIN_NS (20 * KVP_NS_PER_S)
#define DRIFT_MAX_NS (3600 * KVP_NS_PER_S)
/* pause between two searches for free space: a search is slow and may free little */
#define ROOM_EVERY_NS KVP_NS_PER_S
#define LOST_NS (60 * KVP_NS_PER_S) /* time after which an unreachable publisher may be removed for a new one */
#define KNOWN_MAX (4u << 20) /* limit of the positions that a publisher's view keeps of removed blocks */

/* ---- the roster that readers see */
static int
by_instance_and_rank(const void *a, const void *b)
{
    const kvp_roster_row_t *x = a, *y = b;
    const int order = strcmp(x->instance, y->instance);

    return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

static void
free_it(void *arg, uintptr_t what)
{
    (void)arg;
    free((void *)what);
}

static void
publish_roster(kvp_registry_t *r)
{
    kvp_roster_t *roster = calloc(1, sizeof *roster + r->n * sizeof roster->members[0]), *old;

    if (roster == NULL) kvp_panic("out of memory: the roster of publishers");
    kvp_list_foreach (pos, &r->publishers) {
        const kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);
        kvp_roster_row_t *m = &roster->members[roster->n];

        if (p->reg.is_shared) continue;
        *m = (kvp_roster_row_t){p->reg.instance, p->reg.tenant, p->reg.model, p->reg.block_size, p->reg.rank,
                                p->view,         p->reg.url,    p->reg.role,  p->reg.lora,       0,
                                {NULL}};
        for (; m->pools_n < p->applier.joins_n; m->pools_n++)
            m->pools[m->pools_n] = kvp_join_view(p->applier.joins[m->pools_n]);
        roster->n++;
    }
    qsort(roster->members, roster->n, sizeof roster->members[0], by_instance_and_rank);
    old = atomic_exchange(&r->roster, roster);
    if (old != NULL) kvp_epoch_retire(&r->epoch, free_it, NULL, (uintptr_t)old);
}

/* ---- events of a publisher, and replays that they need */
static void
on_pool_event(void *arg, const kvp_event_t *event)
{
    kvp_publisher_t *p = arg;

    /* A digest during a replay is ignored: the repeated events may be newer than the digest. */
    if (event->kind == KVP_EVENT_DIGEST && p->feed.state != KVP_FEED_LIVE) return;
    kvp_pools_take(p->registry->pools, &p->source, event);
}

static void
on_pool_skip(void *arg, kvp_skip_t why)
{
    kvp_publisher_t *p = arg;

    p->source.skips[why]++;
}

static void
feed_apply(void *arg, const void *payload, size_t len)
{
    kvp_publisher_t *p = arg;
    const kvp_decode_ops_t ops = {on_pool_event, on_pool_skip, p};
    uint32_t rank;

    if (!p->reg.is_shared)
        (void)kvp_events_apply(&p->applier, payload, len);
    else if (!kvp_decode(&p->applier.decoder, payload, len, &ops, &rank))
        p->source.skips[KVP_SKIP_malformed]++;
}

static void
feed_drop(void *arg)
{
    kvp_publisher_t *p = arg;

    if (p->reg.is_shared)
        kvp_pools_drop(p->registry->pools, &p->source);
    else
        kvp_events_drop(&p->applier);
}

/* Requests a replay after a digest showed a difference. The pause doubles with each drift, because a permanent
 * difference (two objects of one part, a publisher with another count) must not cost a snapshot each time. */
static void
note_drift(kvp_publisher_t *p)
{
    const uint64_t now_ns = kvp_boot_ns();

    if (now_ns < p->drift_next_ns) return;
    if (now_ns > p->drift_next_ns + DRIFT_MAX_NS) p->drift_wait_ns = 0;
    p->drift_wait_ns = kvp_min_u64(DRIFT_MAX_NS, kvp_max_u64(DRIFT_MIN_NS, 2 * p->drift_wait_ns));
    p->drift_next_ns = now_ns + p->drift_wait_ns;
    p->wants_again = true;
    kvp_log_warn("conductor",
                 "the known blocks of a pool have drifted from its own, and a replay is requested instance=%s",
                 p->reg.instance);
}

/* Marks publishers of pools for a new replay, or notes a drift. The replay is requested after the pending events
 * were applied. */
static void
on_wanted(void *arg, const kvp_pool_source_t *source, bool is_drift)
{
    kvp_registry_t *r = arg;

    kvp_list_foreach (pos, &r->publishers) {
        kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);

        if (!p->reg.is_shared || (source != NULL && source != &p->source)) continue;
        if (is_drift)
            note_drift(p);
        else
            p->wants_again = true;
    }
}

static void
feed_ask(void *arg, uint64_t from)
{
    kvp_publisher_t *p = arg;

    kvp_subscription_ask(p->sub, from);
}

static void
on_live(void *arg, uint64_t seq, const void *payload, size_t len)
{
    kvp_publisher_t *p = arg;

    p->event_ns = kvp_boot_ns();
    kvp_feed_live(&p->feed, seq, payload, len, p->event_ns);
}

static void
on_replayed(void *arg, uint64_t seq, const void *payload, size_t len)
{
    kvp_publisher_t *p = arg;

    p->event_ns = kvp_boot_ns();
    kvp_feed_replayed(&p->feed, seq, payload, len, p->event_ns);
}

static void
on_snapshot(void *arg, uint64_t seq, const void *payload, size_t len)
{
    kvp_publisher_t *p = arg;

    p->event_ns = kvp_boot_ns();
    kvp_feed_snapshot(&p->feed, seq, payload, len, p->event_ns);
}

static void
on_digests(void *arg, uint64_t seq, const void *payload, size_t len)
{
    kvp_publisher_t *p = arg;

    p->digests_at = p->feed.stats.applied;
    kvp_feed_digest(&p->feed, seq, payload, len);
}

static void
on_replay_end(void *arg)
{
    kvp_publisher_t *p = arg;

    p->replays_lost = p->feed.stats.failed_replays;
    kvp_feed_replay_end(&p->feed, kvp_boot_ns());
}

static void
on_disconnected(void *arg)
{
    kvp_publisher_t *p = arg;

    kvp_feed_disconnected(&p->feed);
}

static void
on_connected(void *arg)
{
    kvp_publisher_t *p = arg;

    kvp_feed_connected(&p->feed, kvp_boot_ns());
}

/* Frees space in the full index: all views forget the positions of blocks that they do not hold. Returns true if space
 * may have become free; false if the last search was less than ROOM_EVERY_NS ago. */
static bool
make_room(void *arg)
{
    kvp_registry_t *r = arg;
    const uint64_t now_ns = kvp_boot_ns();

    if (r->room_ns != 0 && now_ns - r->room_ns < ROOM_EVERY_NS) return false;
    r->room_ns = now_ns;
    kvp_list_foreach (pos, &r->publishers)
        kvp_view_forget(kvp_list_entry(pos, kvp_publisher_t, link)->view);
    kvp_pools_forget(r->pools);
    return true;
}

static void on_more(uv_idle_t *idle);

static void
on_more_messages(void *arg)
{
    kvp_publisher_t *p = arg;

    uv_idle_start(&p->registry->more, on_more);
}

/* ---- adding and removing publishers */
static void
mark_unseen(void *arg, uintptr_t what)
{
    (void)arg;
    ((kvp_publisher_t *)what)->is_unseen = true;
}

static void
free_publisher(kvp_publisher_t *p)
{
    kvp_list_del(&p->link);
    for (uint32_t i = 0; i < p->applier.joins_n; i++)
        kvp_join_leave(p->applier.joins[i]);
    kvp_applier_fini(&p->applier);
    kvp_view_destroy(p->view);
    free(p);
}

static void
close_sockets(kvp_publisher_t *p)
{
    kvp_subscription_close(p->sub);
    kvp_reach_close(p->reach);
    kvp_reach_close(p->replay_reach);
    p->sub = NULL;
    p->reach = p->replay_reach = NULL;
}

static void
end_publisher(kvp_registry_t *r, kvp_publisher_t *p)
{
    close_sockets(p);
    kvp_feed_fini(&p->feed);
    if (p->reg.is_shared) kvp_pools_drop(r->pools, &p->source);
    kvp_list_del(&p->link);
    kvp_list_add_tail(&r->ending, &p->link);
    if (p->reg.is_shared) on_wanted(r, NULL, false); /* replays all pool publishers: another may report this pool */
    r->n--;
    publish_roster(r);
    kvp_view_end(p->view);
    kvp_epoch_retire(&r->epoch, mark_unseen, NULL, (uintptr_t)p);
}

/* Takes a reference on the join of each backend in which the publisher's engine stores blocks. Returns false if there
 * are too many joins or namespaces, or no memory for a namespace; joins already taken stay in the applier, and
 * free_publisher releases them. */
static bool
join_pools(kvp_registry_t *r, kvp_publisher_t *p)
{
    for (uint32_t i = 0; i < p->reg.backends_n; i++) {
        const kvp_backend_name_t *b = &p->reg.backends[i];
        kvp_join_t *join = kvp_pools_join(r->pools, b->backend, b->prefix, b->ranks, &p->applier.terms);

        if (join == NULL) return false;
        p->applier.joins[p->applier.joins_n++] = join;
    }
    return true;
}

static kvp_err_t
make_publisher(kvp_registry_t *r, const kvp_registration_t *what, kvp_publisher_t **out, char why[160])
{
    kvp_publisher_t *p = calloc(1, sizeof *p);
    const kvp_subscription_ops_t ops = {on_live,      on_replayed,     on_snapshot,      on_digests, on_replay_end,
                                        on_connected, on_disconnected, on_more_messages, p};
    kvp_err_t err;

    if (p == NULL) return KVP_NOMEM;
    kvp_list_init(&p->link);
    p->registry = r;
    p->reg = *what;
    p->view = kvp_view_create(r->ix, kvp_random_u64(), KNOWN_MAX);
    if (p->view == NULL) {
        free(p);
        return KVP_NOMEM;
    }
    kvp_applier_init(&p->applier, r->ix, r->spaces, p->view,
                     &(kvp_namespace_t){p->reg.model, p->reg.tenant, p->reg.salt, p->reg.lora, p->reg.block_size},
                     p->reg.rank, r->hash_seed);
    p->applier.make_room = make_room;
    p->applier.arg = r;
    if (!join_pools(r, p)) {
        free_publisher(p);
        snprintf(why, 160, "there are too many kinds of engines and backends");
        return KVP_LIMIT;
    }
    err = kvp_subscription_open(r->uv, r->zmq, p->reg.endpoint, p->reg.replay_endpoint, &ops, &p->sub, why);
    if (err != KVP_OK) {
        free_publisher(p);
        return err;
    }
    if (!kvp_subscription_is_bound(p->reg.endpoint)) p->reach = kvp_reach_create(r->uv, p->reg.endpoint, true);
    if (p->reg.replay_endpoint[0] != '\0') p->replay_reach = kvp_reach_create(r->uv, p->reg.replay_endpoint, false);
    p->since_ns = kvp_boot_ns();
    p->is_early = r->is_starting;
    kvp_feed_init(&p->feed, &(kvp_feed_ops_t){feed_apply, feed_drop, feed_ask, p}, p->reg.replay_endpoint[0] != '\0',
                  p->since_ns);
    *out = p;
    return KVP_OK;
}

static kvp_publisher_t *
find_publisher(const kvp_registry_t *r, const kvp_registration_t *key)
{
    kvp_list_foreach (pos, &r->publishers) {
        kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);

        if (kvp_registration_is_same_key(&p->reg, key)) return p;
    }
    return NULL;
}

/* Returns true if `what` has a bound endpoint whose port another publisher has. A bound endpoint serves only one
 * engine, because events do not name their sender. */
static bool
is_endpoint_taken(const kvp_registry_t *r, const kvp_registration_t *what, char why[160])
{
    kvp_list_foreach (pos, &r->publishers) {
        const kvp_registration_t *reg = &kvp_list_entry(pos, kvp_publisher_t, link)->reg;

        if (kvp_registration_is_same_key(reg, what) || !kvp_subscription_is_same_bound(reg->endpoint, what->endpoint))
            continue;
        snprintf(why, 160,
                 "the endpoint is in use by instance %.64s, rank %u: give each engine that connects a port of its own",
                 reg->instance, reg->rank);
        kvp_log_warn("conductor", "a publisher is refused: %s instance=%s endpoint=%s", why, what->instance,
                     what->endpoint);
        return true;
    }
    return false;
}

/* Removes the publisher that has been unreachable for the longest time. Returns false if none has been unreachable
 * for LOST_NS. */
static bool
end_lost(kvp_registry_t *r)
{
    const uint64_t now_ns = kvp_boot_ns();
    kvp_publisher_t *lost = NULL;

    kvp_list_foreach (pos, &r->publishers) {
        kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);

        if (p->lost_ns != 0 && now_ns - p->lost_ns >= LOST_NS && (lost == NULL || p->lost_ns < lost->lost_ns)) lost = p;
    }
    if (lost == NULL) return false;
    kvp_log_warn("conductor", "a publisher that cannot be reached makes room for a new one instance=%s endpoint=%s",
                 lost->reg.instance, lost->reg.endpoint);
    end_publisher(r, lost);
    return true;
}

kvp_err_t
kvp_registry_add(kvp_registry_t *r, const kvp_registration_t *what, char why[160])
{
    kvp_publisher_t *old = find_publisher(r, what), *p;
    kvp_err_t err;

    snprintf(why, 160, "too many publishers are registered");
    if (old != NULL && memcmp(&old->reg, what, sizeof *what) == 0) return KVP_OK;
    if (old == NULL && r->n == KVP_PUBLISHERS_MAX && !end_lost(r)) return KVP_LIMIT;
    if (is_endpoint_taken(r, what, why)) return KVP_HELD;
    /* If the old and the new publisher bind one endpoint, the old one is closed first. Otherwise the old one stays
     * if the new one is refused. */
    if (old != NULL && (strcmp(old->reg.endpoint, what->endpoint) == 0 ||
                        kvp_subscription_is_same_bound(old->reg.endpoint, what->endpoint))) {
        end_publisher(r, old);
        old = NULL;
    }
    err = make_publisher(r, what, &p, why);
    if (err != KVP_OK) return err;
    if (old != NULL) end_publisher(r, old);
    kvp_list_add_tail(&r->publishers, &p->link);
    r->n++;
    publish_roster(r);
    kvp_registry_save(r);
    kvp_log_info("conductor", "registered instance=%s tenant=%s rank=%u model=%s endpoint=%s", p->reg.instance,
                 p->reg.tenant, p->reg.rank, p->reg.model, p->reg.endpoint);
    return KVP_OK;
}

kvp_err_t
kvp_registry_remove(kvp_registry_t *r, const kvp_registration_t *key)
{
    kvp_publisher_t *p = find_publisher(r, key);

    if (p == NULL) return KVP_NOT_FOUND;
    end_publisher(r, p);
    kvp_registry_save(r);
    kvp_log_info("conductor", "unregistered instance=%s tenant=%s rank=%u", key->instance, key->tenant, key->rank);
    return KVP_OK;
}

/* ---- periodic work */
static void
on_more(uv_idle_t *idle)
{
    kvp_registry_t *r = idle->data;
    bool has_more = false;

    kvp_list_foreach (pos, &r->publishers)
        has_more |= kvp_subscription_run(kvp_list_entry(pos, kvp_publisher_t, link)->sub, BATCH);
    kvp_epoch_collect(&r->epoch);
    if (!has_more) uv_idle_stop(idle);
}

static void
look_at_ready(kvp_registry_t *r)
{
    bool is_ready = true;

    kvp_list_foreach (pos, &r->publishers) {
        const kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);

        is_ready &= !p->is_early || p->feed.state == KVP_FEED_LIVE || p->feed.stats.failed_replays > 0;
    }
    if (is_ready && !r->is_starting) r->is_ready = true;
}

/* Requests digests from a pool that has sent events since the last comparison. */
static void
ask_digests(kvp_publisher_t *p, uint64_t now_ns)
{
    if (!p->reg.is_shared || p->feed.state != KVP_FEED_LIVE || p->digests_at == p->feed.stats.applied ||
        now_ns - p->digests_ns < DIGESTS_NS)
        return;
    p->digests_ns = now_ns;
    kvp_subscription_ask_digests(p->sub);
}

/* Empties a view in which kvp_index_rele found a contradiction (is_damaged: a fault of this program), and requests a
 * replay from its publisher. A publisher without replays continues with its next events. */
static void
look_at_view(kvp_publisher_t *p)
{
    kvp_view_stats_t view;

    kvp_view_stats(p->view, &view);
    if (!view.is_damaged) return;
    kvp_log_error("conductor",
                  "a publisher's blocks are dropped and replayed, because one of them was left out instance=%s",
                  p->reg.instance);
    kvp_events_drop(&p->applier);
    kvp_view_repair(p->view);
    p->wants_again = true;
    p->repairs++;
}

/* Logs once that an endpoint cannot be reached, and once that it can be reached again. */
static void
look_at_reach(kvp_publisher_t *p, kvp_reach_t *reach, const char *endpoint, bool is_fine, uint64_t now_ns)
{
    if (reach == NULL || !kvp_reach_tick(reach, is_fine, now_ns)) return;
    if (kvp_reach_why(reach)[0] != '\0')
        kvp_log_warn("conductor", "a publisher cannot be reached: %s endpoint=%s instance=%s", kvp_reach_why(reach),
                     endpoint, p->reg.instance);
    else
        kvp_log_info("conductor", "a publisher is reached again endpoint=%s instance=%s", endpoint, p->reg.instance);
}

static void
on_tick(uv_timer_t *timer)
{
    kvp_registry_t *r = timer->data;
    const uint64_t now_ns = kvp_boot_ns();
    kvp_publisher_t *p, *next;

    kvp_list_foreach (pos, &r->publishers) {
        p = kvp_list_entry(pos, kvp_publisher_t, link);
        look_at_view(p);
        if (p->wants_again) kvp_feed_again(&p->feed, now_ns);
        p->wants_again = false;
        kvp_feed_tick(&p->feed, now_ns);
        ask_digests(p, now_ns);
        kvp_subscription_tick(p->sub, now_ns);
        look_at_reach(p, p->reach, p->reg.endpoint, kvp_subscription_is_connected(p->sub), now_ns);
        p->lost_ns = p->reach == NULL || kvp_reach_why(p->reach)[0] == '\0' ? 0 : p->lost_ns != 0 ? p->lost_ns : now_ns;
        look_at_reach(p, p->replay_reach, p->reg.replay_endpoint,
                      p->feed.state == KVP_FEED_LIVE && p->feed.stats.failed_replays == p->replays_lost, now_ns);
        (void)kvp_view_sweep(p->view, SWEEP);
    }
    kvp_pools_sweep(r->pools, SWEEP);
    kvp_spaces_sweep(r->spaces, SWEEP);
    kvp_pools_flush(r->pools);
    kvp_registry_tick_file(r, now_ns);
    for (kvp_list_t *pos = r->ending.next; pos != &r->ending; pos = &next->link) {
        p = kvp_list_entry(pos, kvp_publisher_t, link);
        next = kvp_list_entry(pos->next, kvp_publisher_t, link);
        if (!kvp_view_sweep(p->view, SWEEP) && p->is_unseen) free_publisher(p);
    }
    look_at_ready(r);
    uv_idle_start(&r->more, on_more);
}

/* ---- calls of readers, inside an epoch */
kvp_epoch_reader_t *
kvp_registry_enter(kvp_registry_t *r)
{
    return kvp_epoch_enter(&r->epoch);
}

const kvp_roster_t *
kvp_registry_roster(const kvp_registry_t *r)
{
    return atomic_load(&r->roster);
}

bool
kvp_registry_match(const kvp_registry_t *r, const kvp_namespace_t *space, const char *instance, const uint64_t *hashes,
                   size_t n, kvp_match_scratch_t *scratch, const kvp_answer_t **answers_out, uint32_t *n_out)
{
    const kvp_question_t q = {
        space->tenant, space->model, instance, space->block_size, kvp_spaces_find(r->spaces, space), hashes, n};

    return kvp_match(r->ix, atomic_load(&r->roster), &q, scratch, answers_out, n_out);
}

bool
kvp_registry_has_lora(const kvp_registry_t *r, const char *model, const char *lora)
{
    return kvp_spaces_has_lora(r->spaces, model, lora);
}

uint64_t
kvp_registry_hash_seed(const kvp_registry_t *r)
{
    return r->hash_seed;
}

bool
kvp_registry_is_ready(const kvp_registry_t *r)
{
    return r->is_ready;
}

/* ---- creation and destruction */
kvp_err_t
kvp_registry_create(uv_loop_t *uv, uint64_t hash_seed, uint32_t blocks_max, const char *data_dir, kvp_registry_t **out)
{
    kvp_registry_t *r = calloc(1, sizeof *r);

    if (r == NULL) return KVP_NOMEM;
    r->hash_seed = hash_seed;
    r->data_dir = data_dir;
    r->uv = uv;
    r->lock_fd = -1;
    kvp_list_init(&r->publishers);
    kvp_list_init(&r->ending);
    kvp_registry_init_file(r);
    kvp_epoch_init(&r->epoch);
    r->zmq = zmq_ctx_new();
    if (r->zmq != NULL) (void)zmq_ctx_set(r->zmq, ZMQ_MAX_SOCKETS, 3 * KVP_PUBLISHERS_MAX);
    r->spaces = kvp_spaces_create(&r->epoch);
    r->ix = r->spaces == NULL ? NULL : kvp_index_create(&r->epoch, r->spaces, kvp_random_u64(), blocks_max);
    if (r->zmq == NULL || r->ix == NULL || r->spaces == NULL) kvp_panic("out of memory: the index");
    r->pools = kvp_pools_create(r->ix, r->spaces, on_wanted, r, blocks_max);
    if (r->pools == NULL) kvp_panic("out of memory: the pools");
    publish_roster(r);
    r->tick.data = r->more.data = r;
    (void)uv_timer_init(uv, &r->tick);
    (void)uv_idle_init(uv, &r->more);
    (void)uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    *out = r;
    r->is_starting = true;
    kvp_err_t err = kvp_registry_open_dir(r);
    r->is_starting = false;
    return err;
}

void
kvp_registry_stop(kvp_registry_t *r)
{
    if (r == NULL || uv_is_closing((uv_handle_t *)&r->tick)) return;
    kvp_list_foreach (pos, &r->publishers) {
        kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);

        close_sockets(p);
    }
    if (r->disk != NULL) kvp_disk_notify(r->disk, NULL, NULL);
    uv_close((uv_handle_t *)&r->reap, NULL);
    uv_close((uv_handle_t *)&r->tick, NULL);
    uv_close((uv_handle_t *)&r->more, NULL);
}

void
kvp_registry_destroy(kvp_registry_t *r)
{
    if (r == NULL || !kvp_registry_close_dir(r)) return;
    kvp_epoch_collect(&r->epoch); /* frees all retired objects, as no reader is left */
    while (!kvp_list_is_empty(&r->publishers)) {
        kvp_publisher_t *p = kvp_list_first(&r->publishers, kvp_publisher_t, link);

        kvp_feed_fini(&p->feed);
        free_publisher(p);
    }
    while (!kvp_list_is_empty(&r->ending))
        free_publisher(kvp_list_first(&r->ending, kvp_publisher_t, link));
    zmq_ctx_term(r->zmq);
    kvp_buf_fini(&r->file.text);
    free(atomic_load(&r->roster));
    kvp_pools_destroy(r->pools);
    kvp_disk_destroy(r->disk);
    if (r->lock_fd >= 0) close(r->lock_fd);
    kvp_epoch_fini(&r->epoch);
    kvp_index_destroy(r->ix);
    kvp_spaces_destroy(r->spaces);
    free(r);
}
