/* SPDX-License-Identifier: Apache-2.0
 * One of several masters: see ha.h.
 *
 * Design notes.
 * - A core cannot undo records. A master that must follow a log that differs from its own, or that has led, gets a
 *   new core, and reads the files again up to the position at which the logs fork. The thread pool reads them in
 *   pieces, so that the loop answers meanwhile.
 * - All decisions belong to the election, the sender and the core. */
#include "master/ha/ha_priv.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 25u
#define ROSTER_NS (200 * KVP_NS_PER_MS) /* interval of updating the list of masters */
#define TWIN_TTLS 5u /* this process ends after this number of TTLs in which another process has our id */

kvp_master_t *
kvp_ha_core_of(const kvp_ha_t *ha)
{
    return ha->core != NULL ? ha->core : kvp_server_core(ha->conf.server);
}

/* ---- cores */
static kvp_master_t *
make_core(kvp_ha_t *ha)
{
    kvp_master_conf_t conf = ha->conf.core;
    kvp_master_t *core;

    conf.term = 1;
    conf.seed = kvp_random_u64();
    conf.secret = kvp_random_u64();
    conf.digest_seed = ha->conf.ident->digest_seed;
    memcpy(conf.pool_id, ha->conf.ident->pool_id, sizeof conf.pool_id);
    conf.had_master = !ha->conf.ident->is_new;
    conf.is_elected = conf.has_journal = conf.saves_ident = true;
    if (conf.log_sync == KVP_LOG_SYNC_NONE)
        /* so that the core's answers wait for the in-sync set's members; the files themselves are not synced */
        conf.log_sync = KVP_LOG_SYNC_INTERVAL;
    if (kvp_master_create(&conf, kvp_boot_ns(), &core) != KVP_OK) kvp_panic("a core of no sense");
    return core;
}

static void
on_core_free(uv_work_t *work)
{
    kvp_master_destroy(work->data);
}

static void
on_core_freed(uv_work_t *work, int status)
{
    (void)status;
    free(work);
}

/* Frees the core in the thread pool, because freeing millions of objects takes long. */
static void
free_core(kvp_ha_t *ha, kvp_master_t *core)
{
    uv_work_t *work = calloc(1, sizeof *work);

    if (work == NULL || ha->uv == NULL) {
        free(work);
        kvp_master_destroy(core);
        return;
    }
    work->data = core;
    (void)uv_queue_work(ha->uv, work, on_core_free, on_core_freed);
}

/* ---- reading this master's own log */
void
kvp_ha_set_state(kvp_ha_t *ha, kvp_ha_state_t state)
{
    ha->state = state;
    if (state == KVP_HA_READS || state == KVP_HA_WAITS) ha->level_ns = 0;
}

void
kvp_ha_terms_of(const kvp_ha_t *ha, kvp_wire_term_t terms[KVP_FOLLOW_TERMS_MAX], uint32_t *n_out)
{
    *n_out = kvp_master_terms(kvp_ha_core_of(ha), terms, KVP_FOLLOW_TERMS_MAX);
    for (uint32_t i = 0; i < *n_out; i++)
        terms[i].position += ha->conf.log->origin;
}

/* Returns the term of the last record of our own log; 0 = there is none. */
uint32_t
kvp_ha_log_term(const kvp_ha_t *ha)
{
    kvp_wire_term_t last;

    return kvp_master_terms(kvp_ha_core_of(ha), &last, 1) == 0 ? 0 : last.term;
}

/* kvp_ha_read_again drops the core, and reads the files again up to the position. With is_empty the files are
 * removed, and the next record begins at the position. */
void
kvp_ha_read_again(kvp_ha_t *ha, uint64_t to, bool is_empty)
{
    kvp_master_t *old = kvp_server_core(ha->conf.server);

    kvp_log_writer_detach(ha->conf.log);
    kvp_server_swap(ha->conf.server, make_core(ha));
    kvp_server_act_until(ha->conf.server, UINT64_MAX);
    ha->act_until_ns = UINT64_MAX;
    free_core(ha, old);
    kvp_follower_rest(ha->follower);
    ha->level_term = 0;
    ha->leader_end = UINT64_MAX;
    ha->missing_n = 0;
    ha->failed_ns = 0;
    ha->read_to = to;
    if (is_empty) ha->read_at = UINT64_MAX;
    kvp_ha_set_state(ha, KVP_HA_WAITS);
}

static void
end_reading(kvp_ha_t *ha, bool is_empty)
{
    kvp_log_file_t *file = &ha->conf.log->file;
    uint64_t kept = 0;
    kvp_err_t err;

    (void)kvp_reader_reset(&ha->reader); /* the files are truncated */
    if (is_empty) kvp_log_file_begin_at(file, ha->read_to);
    err = kvp_master_open_log(kvp_ha_core_of(ha), KVP_OPEN_FOLLOW, &kept);
    if (err == KVP_OK && !is_empty && file->files > 0 && kept < ha->read_at - file->from[0]) {
        kvp_log_warn("master", "the log was torn and is cut, and may lack its end dir=%s/log", ha->conf.ident->dir);
        ha->is_doubted = true;
    }
    if (err == KVP_OK) err = kvp_log_writer_attach(ha->conf.log, kvp_ha_core_of(ha), kept);
    if (err != KVP_OK) {
        kvp_log_error("master", "cannot use the log: %s; remove the directory to begin with an empty log dir=%s/log",
                      err == KVP_INVALID ? "it is of another pool" : kvp_err_text(err), ha->conf.ident->dir);
        exit(1);
    }
    kvp_ha_set_state(ha, KVP_HA_FOLLOWS);
    kvp_log_info("master", "standby: the log is read up to position %llu, term %u",
                 (unsigned long long)kvp_log_writer_end(ha->conf.log), kvp_ha_log_term(ha));
}

/* Reads the next piece of the log into the core. A damaged or incomplete rest is cut off, and comes from the leader
 * instead. After a read error the process ends, so that no readable record is cut off. */
static void
read_on(kvp_ha_t *ha)
{
    const kvp_log_file_t *file = &ha->conf.log->file;
    const bool is_over = file->files == 0 || ha->read_at >= ha->read_to;
    const uint8_t *bytes;
    size_t n = 0;
    kvp_err_t err = KVP_CLOSED;

    if (!is_over) err = kvp_reader_get(&ha->reader, ha->uv, file, ha->read_at, ha->read_to, &bytes, &n);
    if (err != KVP_OK && err != KVP_CLOSED) {
        errno = ha->reader.error;
        kvp_log_error("master", "cannot read the log: %m dir=%s/log", ha->conf.ident->dir);
        exit(1);
    }
    if (n > 0) err = kvp_master_read_log(kvp_ha_core_of(ha), bytes, n);
    ha->read_at += n;
    if (err == KVP_OK) return;
    if (n > 0) {
        kvp_log_warn("master", "the log is damaged at position %llu or before, and cut there: %s dir=%s/log",
                     (unsigned long long)ha->read_at, kvp_err_text(err), ha->conf.ident->dir);
        ha->is_doubted = true;
    }
    end_reading(ha, false);
}

static void
go_on_reading(kvp_ha_t *ha)
{
    const kvp_log_file_t *file = &ha->conf.log->file;

    if (ha->state == KVP_HA_READS) read_on(ha);
    if (ha->state != KVP_HA_WAITS || !kvp_log_writer_is_idle(ha->conf.log) || !kvp_reader_reset(&ha->reader)) return;
    kvp_ha_set_state(ha, KVP_HA_READS);
    if (ha->read_at == UINT64_MAX) {
        ha->read_at = 0;
        end_reading(ha, true);
        return;
    }
    ha->read_at = file->files > 0 ? file->from[0] : 0;
    read_on(ha);
}

/* ---- following the leader */
static void
fill_ask(void *arg, Kvp__Pb__Follow *ask, kvp_wire_term_t terms[KVP_FOLLOW_TERMS_MAX])
{
    kvp_ha_t *ha = arg;
    kvp_ident_t *ident = ha->conf.ident;

    ask->id = ident->id;
    if (kvp_ha_log_term(ha) > 0) ask->pool_id = (ProtobufCBinaryData){sizeof ident->pool_id, ident->pool_id};
    ask->end = kvp_log_writer_end(ha->conf.log);
    kvp_ha_terms_of(ha, terms, &ask->n);
}

/* Handles the leader's answer to FOLLOW. If the log must be read again, the connection ends, and the next FOLLOW has
 * the new position. */
static kvp_err_t
on_follow_reply(void *arg, const Kvp__Pb__FollowReply *reply)
{
    kvp_ha_t *ha = arg;
    uint64_t end = kvp_log_writer_end(ha->conf.log);

    if (ha->state != KVP_HA_FOLLOWS) return KVP_CLOSED;
    if (memcmp(reply->pool_id.data, ha->conf.ident->pool_id, sizeof ha->conf.ident->pool_id) != 0) return KVP_INVALID;
    ha->leader_term = reply->term;
    ha->leader_end = UINT64_MAX;
    ha->level_term = 0;
    if (!reply->is_anew && reply->position == end) return KVP_OK;
    if (end > 0 && kvp_ha_log_term(ha) > 0)
        kvp_log_warn("master", "standby: the leader's log differs from ours: ours is cut from position %llu to %llu%s",
                     (unsigned long long)end, (unsigned long long)reply->position,
                     reply->is_anew ? ", and reads the leader's log from the beginning" : "");
    kvp_ha_read_again(ha, reply->position, reply->is_anew);
    return KVP_CLOSED;
}

/* Drops the whole log, because it may lack records or differs from the leader's log: the leader decides where the new
 * log begins. Until then this standby acknowledges nothing. */
static void
drop_whole_log(kvp_ha_t *ha)
{
    ha->is_doubted = true;
    kvp_ha_read_again(ha, 0, false);
}

static kvp_err_t
on_follow_log(void *arg, uint64_t position, const void *bytes, size_t len, uint64_t end, bool is_last)
{
    kvp_ha_t *ha = arg;
    kvp_err_t err;

    if (ha->state != KVP_HA_FOLLOWS) return KVP_CLOSED;
    err = kvp_master_read_log(kvp_ha_core_of(ha), bytes, len);
    if (err == KVP_CORRUPT || err == KVP_VERSION) {
        kvp_log_error(
            "master",
            "standby: the leader's records at position %llu do not continue this log: %s; reads the leader's log again",
            (unsigned long long)position, kvp_err_text(err));
        drop_whole_log(ha);
        return err;
    }
    ha->leader_end = end;
    ha->level_term = is_last && position + len == end ? ha->leader_term : 0;
    kvp_server_flush(ha->conf.server);
    return KVP_OK;
}

uint64_t
kvp_ha_waiting_bytes(const kvp_ha_t *ha)
{
    kvp_log_stats_t stats;

    kvp_log_writer_stats(ha->conf.log, &stats);
    return stats.log_waiting_bytes;
}

static void
follow_on(kvp_ha_t *ha, uint64_t now_ns)
{
    const kvp_election_t *e = &ha->election;
    const uint64_t end = kvp_log_writer_end(ha->conf.log);

    if (ha->conf.log->sync.has_failed) { /* records written before the failed sync may be lost, in unknown places */
        kvp_log_error("master", "standby: the log could not be synced: an empty log begins dir=%s/log",
                      ha->conf.ident->dir);
        drop_whole_log(ha);
        return;
    }
    if (e->leader_revision != 0 && e->leader.address[0] != '\0' && e->leader_term > 0 &&
        strcmp(e->leader.id, ha->conf.ident->id) != 0)
        kvp_follower_go(ha->follower, e->leader.address, now_ns);
    else
        kvp_follower_rest(ha->follower);
    kvp_follower_ack(ha->follower, end, now_ns);
    kvp_follower_pause(ha->follower, kvp_ha_waiting_bytes(ha) > KVP_HA_BEHIND_MAX);
    if (!kvp_follower_is_fed(ha->follower) || end < ha->leader_end) return;
    ha->level_ns = now_ns;
    ha->is_doubted = false; /* all records that may have been missing have arrived again */
}

/* Returns how soon written records must be sent to the standbys. */
static kvp_sender_pace_t
pace_of(const kvp_ha_t *ha)
{
    if (ha->handing_until_ns != 0 && kvp_ha_waiting_bytes(ha) == 0) return KVP_SEND_LAST;
    if (ha->conf.ack_standbys > 0 || ha->switch_until_ns != 0 || (ha->conf.log->wishes & KVP_MASTER_SYNCS) != 0)
        return KVP_SEND_NOW;
    return KVP_SEND_SOON;
}

/* The callback of this timer only wakes the loop: the work is done at the end of the turn. */
static void
on_soon(uv_timer_t *timer)
{
    (void)timer;
}

static void
on_turn(void *arg)
{
    kvp_ha_t *ha = arg;
    const uint64_t now_ns = kvp_boot_ns();

    go_on_reading(ha);
    if (ha->state == KVP_HA_FOLLOWS) follow_on(ha, now_ns);
    if (ha->state != KVP_HA_LEADS) return;
    kvp_ha_hold_positions(ha);
    if (kvp_sender_pump(&ha->sender, pace_of(ha), now_ns) && !ha->is_stopping &&
        !uv_is_active((uv_handle_t *)&ha->soon))
        uv_timer_start(&ha->soon, on_soon, KVP_SENDER_DELAY_MS, 0);
    if (kvp_ha_answer_watchers(ha) && !ha->is_stopping) uv_timer_start(&ha->soon, on_soon, 0, 0);
}

void
kvp_ha_ops(kvp_ha_t *ha, kvp_server_ops_t *ops_out)
{
    *ops_out = (kvp_server_ops_t){kvp_ha_on_first, kvp_ha_on_frame, kvp_ha_on_gone, on_turn, kvp_ha_on_fenced, ha};
}

/* ---- etcd's answers and changes */
static void
on_answer(void *arg, kvp_etcd_answer_t *answer)
{
    kvp_ha_t *ha = arg;
    kvp_etcd_answer_t *a = malloc(sizeof *a);

    if (a == NULL) kvp_panic("out of memory: an answer of etcd");
    *a = *answer;
    a->next = NULL;
    pthread_mutex_lock(&ha->lock);
    *ha->answers_end = a;
    ha->answers_end = &a->next;
    pthread_mutex_unlock(&ha->lock);
    uv_async_send(&ha->news);
}

static void
on_change(void *arg)
{
    kvp_ha_t *ha = arg;

    pthread_mutex_lock(&ha->lock);
    ha->is_changed = true;
    pthread_mutex_unlock(&ha->lock);
    uv_async_send(&ha->news);
}

/* Checks the pool of the data directory against the cluster's pool. A directory without a pool takes the cluster's
 * identity; with another pool the process ends. */
static void
take_pool(kvp_ha_t *ha)
{
    const kvp_election_pool_t *pool = &ha->election.pool;
    kvp_ident_t *ident = ha->conf.ident;

    if (!pool->is_known ||
        (memcmp(pool->pool_id, ident->pool_id, sizeof pool->pool_id) == 0 && pool->digest_seed == ident->digest_seed)) {
        if (pool->is_known) ident->is_new = false;
        return;
    }
    if (!ident->is_new) {
        kvp_log_error(
            "master",
            "the data directory belongs to another pool than cluster %s; remove it to join the cluster dir=%s",
            ha->conf.cluster, ident->dir);
        exit(1);
    }
    if (ha->state == KVP_HA_LEADS) return;
    memcpy(ident->pool_id, pool->pool_id, sizeof ident->pool_id);
    ident->digest_seed = pool->digest_seed;
    ident->is_new = false;
    if (kvp_ident_save(ident, 0) != KVP_OK) exit(1);
    kvp_ha_read_again(ha, UINT64_MAX, false);
}

static void
note_role(kvp_ha_t *ha)
{
    const kvp_election_t *e = &ha->election;
    const char *role = ha->state == KVP_HA_WAITS || ha->state == KVP_HA_READS ? "starting"
                       : ha->state == KVP_HA_LEADS && ha->act_until_ns == 0   ? "fenced"
                       : ha->state == KVP_HA_LEADS                            ? "leader"
                       : e->role != KVP_ELECTION_FOLLOWS                      ? "candidate"
                                                                              : "standby";

    atomic_store(&ha->role, role);
    atomic_store(&ha->term, ha->state == KVP_HA_LEADS                     ? e->own_term
                            : kvp_election_knows_leader(e, kvp_boot_ns()) ? e->leader_term
                                                                          : 0);
}

static void
look_for_end(kvp_ha_t *ha, uint64_t now_ns)
{
    const kvp_election_t *e = &ha->election;

    if (e->twin_ns != 0 && now_ns - e->twin_ns > TWIN_TTLS * ha->conf.ttl_s * KVP_NS_PER_S) {
        kvp_log_error("master",
                      "another running master has this data directory's id: one of the two directories is a copy; "
                      "remove the copy, and start that master with an empty directory dir=%s",
                      ha->conf.ident->dir);
        exit(1);
    }
    if (!ha->is_spent_told && kvp_election_is_spent(e)) {
        kvp_log_error("master", "terms are used up: no master of cluster %s can be elected", ha->conf.cluster);
        ha->is_spent_told = true;
    }
}

static void
act_on_election(kvp_ha_t *ha)
{
    kvp_election_t *e = &ha->election;
    const uint64_t now_ns = kvp_boot_ns();
    kvp_election_pool_t pool = {.is_known = !ha->conf.ident->is_new, .digest_seed = ha->conf.ident->digest_seed};
    kvp_etcd_op_t *op = malloc(sizeof *op);

    if (op == NULL) kvp_panic("out of memory: a request to etcd");
    memcpy(pool.pool_id, ha->conf.ident->pool_id, sizeof pool.pool_id);
    kvp_election_ready(
        e, (ha->state == KVP_HA_FOLLOWS && ha->conf.log->stats.log_failed == 0) || ha->state == KVP_HA_LEADS,
        ha->is_doubted, kvp_ha_log_term(ha), &pool);
    kvp_election_tick(e, now_ns);
    look_for_end(ha, now_ns);
    if (ha->state == KVP_HA_LEADS) kvp_ha_lead_on(ha, now_ns);
    take_pool(ha);
    if (ha->state == KVP_HA_FOLLOWS && e->role == KVP_ELECTION_LEADS) kvp_ha_begin_lead(ha);
    if (ha->state != KVP_HA_LEADS && e->leader_revision != 0)
        kvp_master_note_masters(kvp_ha_core_of(ha), e->leader.address, NULL, 0);
    kvp_follower_tick(ha->follower, now_ns);
    while (kvp_election_take(e, op))
        kvp_etcd_ask(ha->etcd, op);
    free(op);
    note_role(ha);
}

static void
end_stop(kvp_ha_t *ha)
{
    kvp_etcd_destroy(ha->etcd);
    ha->etcd = NULL;
    if (!uv_is_closing((uv_handle_t *)&ha->news)) uv_close((uv_handle_t *)&ha->news, NULL);
}

static void
on_news(uv_async_t *async)
{
    kvp_ha_t *ha = async->data;
    bool is_changed, is_revoked = false;
    kvp_etcd_answer_t *list;

    pthread_mutex_lock(&ha->lock);
    list = ha->answers;
    ha->answers = NULL;
    ha->answers_end = &ha->answers;
    is_changed = ha->is_changed;
    ha->is_changed = false;
    pthread_mutex_unlock(&ha->lock);
    while (list != NULL) {
        kvp_etcd_answer_t *next = list->next;

        is_revoked |= ha->is_stopping && list->id == ha->revoke_id;
        if (!ha->is_stopping) kvp_election_answer(&ha->election, list, kvp_boot_ns());
        kvp_etcd_answer_fini(list);
        free(list);
        list = next;
    }
    if (ha->is_stopping) {
        if (is_revoked) end_stop(ha);
        return;
    }
    if (is_changed) kvp_election_changed(&ha->election);
    act_on_election(ha);
}

/* Passes the list of masters to the core, which sends it to clients that ask for the pool's status. */
static void
note_masters(kvp_ha_t *ha)
{
    kvp_master_peer_t rows[KVP_MASTERS_MAX];
    const uint64_t now_ns = kvp_boot_ns();
    kvp_ha_status_t status;

    if (now_ns - ha->roster_ns < ROSTER_NS) return;
    ha->roster_ns = now_ns;
    kvp_ha_status(ha, &status);
    const uint32_t n = kvp_roster_update(&ha->roster, &status, now_ns, rows);
    kvp_master_note_masters(kvp_ha_core_of(ha), NULL, rows, n);
    kvp_master_note_etcd(kvp_ha_core_of(ha), status.etcd_silent_ms * KVP_NS_PER_MS, status.etcd_trouble);
}

static void
on_timer(uv_timer_t *timer)
{
    kvp_ha_t *ha = timer->data;

    if (ha->is_stopping) return;
    act_on_election(ha);
    note_masters(ha);
}

/* ---- lifetime */
kvp_err_t
kvp_ha_create(const kvp_ha_conf_t *conf, kvp_ha_t **ha_out)
{
    kvp_ha_t *ha = calloc(1, sizeof *ha);
    kvp_err_t err;

    if (ha == NULL) return KVP_NOMEM;
    ha->conf = *conf;
    if (kvp_reader_init(&ha->reader) != KVP_OK) {
        free(ha);
        return KVP_NOMEM;
    }
    pthread_mutex_init(&ha->lock, NULL);
    ha->answers_end = &ha->answers;
    ha->sender.server = conf->server;
    ha->sender.log = conf->log;
    ha->sender.reader = &ha->reader;
    conf->log->keeps_recent = true;
    ha->sender.self = conf->ident->id;
    ha->sender.election = &ha->election;
    ha->act_until_ns = UINT64_MAX;
    atomic_store(&ha->role, "starting");
    err = kvp_log_writer_list(conf->log, conf->ident);
    if (err != KVP_OK) {
        kvp_ha_destroy(ha);
        return err;
    }
    ha->is_doubted = conf->log->file.may_lack_end;
    ha->core = make_core(ha);
    *ha_out = ha;
    return KVP_OK;
}

kvp_master_t *
kvp_ha_core(const kvp_ha_t *ha)
{
    return ha->core;
}

kvp_err_t
kvp_ha_start(kvp_ha_t *ha, uv_loop_t *uv, const char *address, const char *http)
{
    kvp_election_master_t self = {.is_reading = false};
    char prefix[KVP_ELECTION_CLUSTER_MAX + 16];
    kvp_err_t err;

    ha->core = NULL; /* the server owns the core from now on */
    ha->uv = ha->sender.uv = uv;
    snprintf(self.id, sizeof self.id, "%s", ha->conf.ident->id);
    snprintf(self.address, sizeof self.address, "%s", address);
    snprintf(self.http, sizeof self.http, "%s", http);
    kvp_election_init(&ha->election, ha->conf.cluster, &self, ha->conf.ttl_s, kvp_random_u64(), kvp_boot_ns());
    kvp_election_above(&ha->election, ha->conf.ident->is_new ? ha->conf.ident->term - 1 : ha->conf.ident->term);
    ha->timer.data = ha->news.data = ha;
    uv_timer_init(uv, &ha->timer);
    uv_timer_init(uv, &ha->soon);
    uv_async_init(uv, &ha->news, on_news);
    uv_timer_start(&ha->timer, on_timer, 0, TICK_MS);
    ha->follower_ops = (kvp_follower_ops_t){fill_ask, on_follow_reply, on_follow_log, ha};
    ha->follower = kvp_follower_start(uv, &ha->follower_ops);
    if (ha->follower == NULL) return KVP_NOMEM;
    ha->read_to = UINT64_MAX;
    kvp_ha_set_state(ha, KVP_HA_WAITS);

    snprintf(prefix, sizeof prefix, "/kvpool/%s/", ha->conf.cluster);
    ha->conf.etcd.prefix = prefix;
    ha->conf.etcd.on_answer = on_answer;
    ha->conf.etcd.on_change = on_change;
    ha->conf.etcd.arg = ha;
    err = kvp_etcd_create(&ha->conf.etcd, &ha->etcd);
    ha->conf.etcd.prefix = NULL;
    return err;
}

/* kvp_ha_stop revokes this master's lease in etcd, so that another master can lead at once. */
void
kvp_ha_stop(kvp_ha_t *ha)
{
    if (ha == NULL || ha->uv == NULL || ha->is_stopping) return;
    kvp_etcd_op_t *op = calloc(1, sizeof *op);

    ha->is_stopping = true;
    atomic_store(&ha->role, "stopping");
    if (op != NULL && ha->etcd != NULL && ha->election.lease != 0) {
        op->kind = KVP_ETCD_REVOKE;
        op->id = ha->revoke_id = ++ha->election.next_id;
        op->lease = ha->election.lease;
        kvp_etcd_ask(ha->etcd, op);
    } else {
        end_stop(ha);
    }
    free(op);
    kvp_sender_close(&ha->sender);
    kvp_follower_stop(ha->follower);
    ha->follower = NULL;
    uv_close((uv_handle_t *)&ha->timer, NULL);
    uv_close((uv_handle_t *)&ha->soon, NULL);
}

void
kvp_ha_destroy(kvp_ha_t *ha)
{
    if (ha == NULL) return;
    free(ha->watchers);
    kvp_reader_fini(&ha->reader);
    pthread_mutex_destroy(&ha->lock);
    free(ha);
}

const char *
kvp_ha_role(const kvp_ha_t *ha, uint32_t *term_out)
{
    *term_out = atomic_load(&ha->term);
    return atomic_load(&ha->role);
}

static uint64_t
records_of(const kvp_master_stats_t *st, uint64_t bytes)
{
    if (bytes == 0 || st->log_records == 0) return bytes == 0 ? 0 : 1;
    return (bytes + st->log_record_bytes / st->log_records - 1) / (st->log_record_bytes / st->log_records);
}

void
kvp_ha_status(kvp_ha_t *ha, kvp_ha_status_t *out)
{
    const kvp_election_t *e = &ha->election;
    const uint64_t now_ns = kvp_boot_ns();
    kvp_master_stats_t st;

    kvp_master_stats(kvp_ha_core_of(ha), &st);
    memset(out, 0, sizeof *out);
    snprintf(out->role, sizeof out->role, "%s", kvp_ha_role(ha, &out->term));
    out->self = e->self;
    if (ha->state == KVP_HA_LEADS ? ha->act_until_ns != 0 : kvp_election_knows_leader(e, now_ns))
        out->leader = e->leader;
    memcpy(out->masters, e->masters, sizeof out->masters);
    out->masters_n = e->masters_n;
    out->insync = e->insync;
    out->elections = e->elections;
    if (ha->state == KVP_HA_FOLLOWS || ha->state == KVP_HA_LEADS) out->end = kvp_log_writer_end(ha->conf.log);
    if (ha->state == KVP_HA_FOLLOWS && ha->leader_end != UINT64_MAX && ha->leader_end > out->end)
        out->lag_bytes = ha->leader_end - out->end;
    out->lag_records = records_of(&st, out->lag_bytes);
    if (ha->state == KVP_HA_FOLLOWS && ha->level_ns > 0) out->lag_ms = (now_ns - ha->level_ns) / KVP_NS_PER_MS;
    if (ha->etcd != NULL) {
        const uint64_t silent_ns = kvp_etcd_silence(ha->etcd, out->etcd_trouble);

        kvp_etcd_stats(ha->etcd, &out->etcd_requests, &out->etcd_failures);
        /* only after a TTL and a second, because a master sends several requests in each TTL */
        if (silent_ns > (ha->conf.ttl_s + 1ull) * KVP_NS_PER_S) out->etcd_silent_ms = silent_ns / KVP_NS_PER_MS;
    }
    for (uint32_t i = 0; ha->state == KVP_HA_LEADS && i < KVP_STANDBYS_MAX; i++) {
        const kvp_standby_t *t = &ha->sender.standbys[i];

        const kvp_insync_one_t *one = t->conn == 0 ? NULL : kvp_insync_find(&ha->sender.insync, t->id);

        if (one == NULL) continue;
        memcpy(out->standbys[out->standbys_n].id, t->id, sizeof t->id);
        out->standbys[out->standbys_n].lag_bytes = out->end - one->written;
        out->standbys[out->standbys_n].lag_records = records_of(&st, out->end - one->written);
        out->standbys[out->standbys_n].lag_ms = one->written < out->end ? (now_ns - one->moved_ns) / KVP_NS_PER_MS : 0;
        out->standbys[out->standbys_n++].is_insync = kvp_election_set_has(&e->insync, t->id);
    }
}
