/* SPDX-License-Identifier: Apache-2.0
 * See ha.h.
 *
 * Design notes.
 * - A core's state ends with it. A master that has to follow a log that differs from its own, or
 *   that has led, gets a new core, and reads the files again up to the fork. The thread pool reads
 *   them in pieces, so that the loop answers meanwhile.
 * - All decisions belong to the election, the sender and the core. */
#include "master/ha/ha.h"

#include "master/ha/follower.h"
#include "master/ha/reader.h"
#include "master/ha/roster.h"
#include "master/ha/sender.h"

#include "common/clock.h"
#include "common/log.h"
#include "proto/segfmt.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS 25u
#define ROSTER_NS (200 * KVP_NS_PER_MS) /* between two lists of the masters */
#define BEHIND_MAX (4u << 20) /* bytes that are not written, before no more is read from the leader */
#define FAILED_MAX_NS KVP_NS_PER_S /* a leader's log may fail for this long while other masters could lead */
#define TWIN_TTLS 5u /* a TTL count: after this time with another process of our id, this process ends */
#define SWITCH_WAIT_MAX_MS 60000u /* most that a switch waits for a standby */
#define SWITCH_MAX_NS (KVP_NS_PER_S) /* most that nothing is served before the lead is given up, or kept */

typedef enum {
    HA_WAITS, /* for the files, which an earlier write still uses */
    HA_READS, /* its own log */
    HA_FOLLOWS, /* may follow, and may be elected */
    HA_LEADS,
} state_t;

typedef struct answer {
    kvp_etcd_answer_t answer;
    struct answer *next;
} answer_t;

typedef struct {
    uv_work_t work;
    kvp_master_t *core;
} core_free_t;

struct kvp_ha {
    kvp_ha_conf_t conf;
    kvp_election_t election;
    kvp_sender_t sender;
    kvp_follower_t *follower;
    kvp_follower_ops_t follower_ops;
    kvp_etcd_t *etcd;
    kvp_master_t *core; /* before the start; NULL then */
    state_t state;
    bool is_stopping;
    uint64_t revoke_id; /* the stop waits for that answer of etcd; 0 = not */

    uv_loop_t *uv; /* NULL = not started */
    uv_timer_t timer, soon;
    uv_async_t news; /* of etcd's thread */
    pthread_mutex_t lock;
    answer_t *answers, **answers_end; /* guarded by lock */
    bool is_changed; /* guarded by lock */

    /* reading */
    uint64_t read_at, read_to; /* positions of the files */
    kvp_reader_t reader; /* of our own log, and of what standbys lack */

    /* following */
    uint64_t leader_end; /* position, by the leader's last message; UINT64_MAX = none on this connection */
    uint32_t leader_term; /* of the followed leader */
    uint32_t level_term; /* its log is ours to the end; 0 = it is not known to be */
    bool is_doubted; /* our log may lack its end */
    bool is_spent_told; /* the log has the line about used-up terms */
    uint64_t level_ns; /* when this standby last had the whole log */

    /* leading */
    uint64_t led_ns; /* when the term began */
    uint64_t act_until_ns; /* as passed to the server */
    bool is_fenced;
    uint64_t failed_ns; /* since when the log cannot be written; 0 = it can */
    bool is_short; /* of standbys for --ack-standbys, and that was logged */
    uint64_t *watchers; /* connections that wait for a leader */
    uint32_t watchers_n, watchers_cap;
    uint64_t switch_conn, switch_until_ns, handing_until_ns; /* 0 = none */
    kvp_frame_hdr_t switch_ask;

    kvp_masterlist_t roster;
    uint64_t roster_ns; /* time of its last update */

    _Atomic(const char *) role; /* for any thread */
    _Atomic uint32_t term;
};

static void act_on_election(kvp_ha_t *ha);

static kvp_master_t *
core_of(const kvp_ha_t *ha)
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
        conf.log_sync = KVP_LOG_SYNC_INTERVAL; /* members are waited for; the files sync nothing */
    if (kvp_master_create(&conf, kvp_boot_ns(), &core) != KVP_OK) kvp_panic("a core of no sense");
    return core;
}

static void
on_core_free(uv_work_t *work)
{
    core_free_t *b = work->data;

    kvp_master_destroy(b->core);
}

static void
on_core_freed(uv_work_t *work, int status)
{
    (void)status;
    free(work->data);
}

/* A core with millions of objects takes long to free. */
static void
free_core(kvp_ha_t *ha, kvp_master_t *core)
{
    core_free_t *b = calloc(1, sizeof *b);

    if (b == NULL || ha->uv == NULL) {
        free(b);
        kvp_master_destroy(core);
        return;
    }
    b->core = core;
    b->work.data = b;
    (void)uv_queue_work(ha->uv, &b->work, on_core_free, on_core_freed);
}

/* ---- reading our own log */
static void
set_state(kvp_ha_t *ha, state_t state)
{
    ha->state = state;
    if (state == HA_READS || state == HA_WAITS) ha->level_ns = 0;
}

static kvp_wire_term_t *
terms_of(const kvp_ha_t *ha, kvp_wire_term_t terms[KVP_FOLLOW_TERMS_MAX], uint32_t *n_out)
{
    *n_out = kvp_master_terms(core_of(ha), terms, KVP_FOLLOW_TERMS_MAX);
    for (uint32_t i = 0; i < *n_out; i++)
        terms[i].position += ha->conf.log->origin;
    return terms;
}

/* read_again drops the core, and reads the files again up to the position; is_empty: the files are
 * dropped, and the next record begins there. */
static void
read_again(kvp_ha_t *ha, uint64_t to, bool is_empty)
{
    kvp_master_t *old = kvp_server_core(ha->conf.server);

    kvp_log_writer_detach(ha->conf.log);
    kvp_server_swap(ha->conf.server, make_core(ha));
    kvp_server_act_until(ha->conf.server, UINT64_MAX);
    ha->act_until_ns = UINT64_MAX;
    ha->is_fenced = false;
    free_core(ha, old);
    kvp_follower_rest(ha->follower);
    ha->level_term = 0;
    ha->leader_end = UINT64_MAX;
    ha->is_short = false;
    ha->failed_ns = 0;
    ha->read_to = to;
    if (is_empty) ha->read_at = UINT64_MAX;
    set_state(ha, HA_WAITS);
}

static void
end_reading(kvp_ha_t *ha, bool is_empty)
{
    kvp_log_file_t *file = &ha->conf.log->file;
    uint64_t kept = 0;
    kvp_err_t err;

    (void)kvp_reader_reset(&ha->reader); /* the files are cut */
    if (is_empty) kvp_log_file_begin_at(file, ha->read_to);
    err = kvp_master_follow_begin(core_of(ha), &kept);
    if (err == KVP_OK && !is_empty && file->files > 0 && kept < ha->read_at - file->from[0]) {
        kvp_log_warn("master", "the log was torn and is cut, and may lack its end dir=%s/log", ha->conf.ident->dir);
        ha->is_doubted = true;
    }
    if (err == KVP_OK) err = kvp_log_writer_attach(ha->conf.log, core_of(ha), kept);
    if (err != KVP_OK) {
        kvp_log_error("master", "cannot use the log: %s; remove the directory to begin anew dir=%s/log",
                      err == KVP_INVALID ? "it is of another pool" : kvp_err_text(err), ha->conf.ident->dir);
        exit(1);
    }
    set_state(ha, HA_FOLLOWS);
    kvp_log_info("master", "standby: the log is read up to position %llu, term %u",
                 (unsigned long long)kvp_log_writer_end(ha->conf.log), kvp_master_log_term(core_of(ha)));
}

/* What is damaged, or not whole, is cut, and comes from the leader. Nothing is cut because it could not be read. */
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
    if (n > 0) err = kvp_master_restore(core_of(ha), bytes, n);
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

    if (ha->state == HA_READS) read_on(ha);
    if (ha->state != HA_WAITS || !kvp_log_writer_is_idle(ha->conf.log) || !kvp_reader_reset(&ha->reader)) return;
    set_state(ha, HA_READS);
    if (ha->read_at == UINT64_MAX) {
        ha->read_at = 0;
        end_reading(ha, true);
        return;
    }
    ha->read_at = file->files > 0 ? file->from[0] : 0;
    read_on(ha);
}

/* ---- following */
static void
fill_ask(void *arg, kvp_follow_ask_t *ask)
{
    kvp_ha_t *ha = arg;

    ask->id = ha->conf.ident->id;
    ask->end = kvp_log_writer_end(ha->conf.log);
    ask->pool_id = kvp_master_log_term(core_of(ha)) > 0 ? ha->conf.ident->pool_id : NULL;
    (void)terms_of(ha, ask->terms, &ask->terms_n);
}

/* Reading the log again ends the connection: the next question begins at the new position. */
static kvp_err_t
on_follow_reply(void *arg, const kvp_follow_reply_t *reply)
{
    kvp_ha_t *ha = arg;
    uint64_t end = kvp_log_writer_end(ha->conf.log);

    if (ha->state != HA_FOLLOWS) return KVP_CLOSED;
    if (memcmp(reply->pool_id, ha->conf.ident->pool_id, sizeof reply->pool_id) != 0) return KVP_INVALID;
    ha->leader_term = reply->term;
    ha->leader_end = UINT64_MAX;
    ha->level_term = 0;
    if (!reply->is_anew && reply->position == end) return KVP_OK;
    if (end > 0 && kvp_master_log_term(core_of(ha)) > 0)
        kvp_log_warn("master", "standby: the leader's log differs from ours: ours is cut from position %llu to %llu%s",
                     (unsigned long long)end, (unsigned long long)reply->position,
                     reply->is_anew ? ", where it begins anew" : "");
    read_again(ha, reply->position, reply->is_anew);
    return KVP_CLOSED;
}

/* Drops the whole log: the leader decides the beginning. Until then this standby has not
 * acknowledged anything. */
static void
drop_whole_log(kvp_ha_t *ha)
{
    ha->is_doubted = true;
    read_again(ha, 0, false);
}

static kvp_err_t
on_follow_log(void *arg, uint64_t position, const void *bytes, size_t len, uint64_t end, bool is_last)
{
    kvp_ha_t *ha = arg;
    kvp_err_t err;

    if (ha->state != HA_FOLLOWS) return KVP_CLOSED;
    err = kvp_master_follow(core_of(ha), bytes, len);
    if (err == KVP_CORRUPT || err == KVP_VERSION) {
        kvp_log_error("master", "standby: what the leader sends at position %llu is not what follows: %s; begins anew",
                      (unsigned long long)position, kvp_err_text(err));
        drop_whole_log(ha);
        return err;
    }
    ha->leader_end = end;
    ha->level_term = is_last && position + len == end ? ha->leader_term : 0;
    kvp_server_flush(ha->conf.server);
    return KVP_OK;
}

static uint64_t
waiting_bytes(const kvp_ha_t *ha)
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

    if (ha->conf.log->has_sync_failed) { /* records written before that may be lost, in unknown places */
        kvp_log_error("master", "standby: the log could not be synced, and begins anew dir=%s/log",
                      ha->conf.ident->dir);
        drop_whole_log(ha);
        return;
    }
    if (e->has_leader && e->leader.address[0] != '\0' && e->leader_term > 0 &&
        strcmp(e->leader.id, ha->conf.ident->id) != 0)
        kvp_follower_go(ha->follower, e->leader.address, now_ns);
    else
        kvp_follower_rest(ha->follower);
    kvp_follower_ack(ha->follower, end, now_ns);
    kvp_follower_pause(ha->follower, waiting_bytes(ha) > BEHIND_MAX);
    if (!kvp_follower_is_fed(ha->follower) || end < ha->leader_end) return;
    ha->level_ns = now_ns;
    ha->is_doubted = false; /* whatever was lost has come again */
}

/* ---- leading */
static void
say_watched(kvp_ha_t *ha, uint64_t conn)
{
    Kvp__Pb__WatchReply msg = KVP__PB__WATCH_REPLY__INIT;

    msg.term = ha->election.own_term;
    kvp_server_reply(ha->conf.server, conn, KVP_OP_WATCH, 0, &msg);
    kvp_server_give(ha->conf.server, conn);
}

static bool
may_serve(const kvp_ha_t *ha)
{
    return ha->state == HA_LEADS && !ha->is_fenced && ha->handing_until_ns == 0 && kvp_boot_ns() < ha->act_until_ns &&
           !ha->election.is_resigning;
}

static void
answer_watchers(kvp_ha_t *ha)
{
    if (!may_serve(ha)) return;
    while (ha->watchers_n > 0)
        say_watched(ha, ha->watchers[--ha->watchers_n]);
}

/* Sets which standbys need the log before an acknowledgement. */
static void
hold_positions(kvp_ha_t *ha)
{
    const kvp_insync_t *in = &ha->sender.insync;
    kvp_election_set_t members;
    uint64_t written = UINT64_MAX;

    kvp_election_insync(&ha->election, &members);
    if (ha->conf.ack_standbys > 0) /* but without the first record of the term no client could even say Hello */
        written = kvp_max_u64(kvp_insync_nth_has(in, ha->conf.ack_standbys),
                              ha->conf.log->origin + kvp_master_term_end(core_of(ha)));
    if ((ha->sender.n < ha->conf.ack_standbys) != ha->is_short) {
        ha->is_short = !ha->is_short;
        if (ha->is_short)
            kvp_log_warn("master", "puts and removals wait: %u standbys follow, and --ack-standbys asks for %u",
                         ha->sender.n, ha->conf.ack_standbys);
        else
            kvp_log_info("master", "enough standbys follow for --ack-standbys");
    }
    kvp_log_writer_hold(ha->conf.log, written, kvp_insync_all_have(in, &members, ha->conf.ident->id));
}

static void
begin_lead(kvp_ha_t *ha)
{
    const kvp_election_t *e = &ha->election;
    kvp_master_t *core = core_of(ha);
    const uint32_t log_term = kvp_master_log_term(core);
    const bool is_level = kvp_election_is_level(e, log_term, ha->level_term);

    kvp_follower_rest(ha->follower);
    kvp_master_set_leader(core, "");
    if (e->is_unsafe)
        kvp_log_warn(
            "master",
            "no member of the in-sync set came within %u s: this master leads without what only they know, and asks "
            "the nodes: what was removed last may be back",
            ha->conf.ttl_s);
    if (kvp_master_lead(core, e->own_term, is_level, kvp_boot_ns()) != KVP_OK) {
        kvp_log_error("master", "elected in term %u, which is not above that of the log, %u", e->own_term, log_term);
        kvp_election_resign(&ha->election);
        return;
    }
    set_state(ha, HA_LEADS);
    ha->led_ns = kvp_boot_ns();
    kvp_log_info("master", "leads in term %u%s", e->own_term,
                 is_level ? "; the log is level with the leader's before" : "");
    ha->act_until_ns = kvp_election_act_until(e);
    kvp_server_act_until(ha->conf.server, ha->act_until_ns);
    kvp_server_flush(ha->conf.server);
}

static void
end_switch(kvp_ha_t *ha, kvp_err_t err, const char *detail)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;

    if (ha->switch_conn != 0) {
        msg.err = err;
        msg.detail = (char *)detail;
        kvp_server_reply(ha->conf.server, ha->switch_conn, KVP_OP_SWITCH, ha->switch_ask.request_id, &msg);
        kvp_server_end(ha->conf.server, ha->switch_conn);
    }
    ha->switch_conn = ha->switch_until_ns = ha->handing_until_ns = 0;
}

static void
step_down(kvp_ha_t *ha, const char *why)
{
    kvp_log_warn("master", "does not lead any more: %s", why);
    end_switch(ha, KVP_NOT_LEADER, "it does not lead any more");
    kvp_sender_close(&ha->sender);
    ha->is_doubted = false; /* our own end is right as far as the next leader has it, which is where it is cut */
    read_again(ha, UINT64_MAX, false);
}

static void
on_fenced(void *arg)
{
    kvp_ha_t *ha = arg;

    if (ha->state != HA_LEADS) return;
    ha->is_fenced = true;
    kvp_log_warn("master", "the lead in term %u cannot be proved: etcd does not answer; nothing is served",
                 ha->election.own_term);
    kvp_server_drop(ha->conf.server);
}

/* A member of the set that has all, or nearly. */
static bool
has_level(const kvp_ha_t *ha, uint64_t at_most)
{
    const uint64_t end = kvp_log_writer_end(ha->conf.log);

    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++) {
        const kvp_standby_t *t = &ha->sender.standbys[i];
        const kvp_insync_one_t *one = t->conn == 0 ? NULL : kvp_insync_find(&ha->sender.insync, t->id);

        if (one != NULL && one->is_joined && kvp_election_set_has(&ha->election.insync, t->id) &&
            end - one->written <= at_most && (at_most > 0 || t->is_told_last))
            return true;
    }
    return false;
}

static bool
is_told_last(const kvp_ha_t *ha)
{
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++)
        if (ha->sender.standbys[i].is_told_last) return true;
    return false;
}

static void
stop_serving(kvp_ha_t *ha)
{
    if (ha->handing_until_ns == UINT64_MAX) return;
    ha->handing_until_ns = UINT64_MAX;
    kvp_server_drop(ha->conf.server);
}

/* Waits first for a standby that is nearly level, then serves nothing until it is level, then gives
 * up the lead. The same end follows if a standby was promised the end of the records and did not
 * get level: it would rely on the promise later. */
static void
switch_on(kvp_ha_t *ha, uint64_t now_ns)
{
    if (ha->switch_until_ns == 0) return;
    if (ha->handing_until_ns == 0) {
        if (has_level(ha, BEHIND_MAX / 64)) {
            ha->handing_until_ns = now_ns + SWITCH_MAX_NS;
            kvp_server_drop(ha->conf.server);
        } else if (now_ns >= ha->switch_until_ns) {
            end_switch(ha, KVP_RETRY_AFTER, "no standby is in sync");
        }
        return;
    }
    const bool is_level = has_level(ha, 0) && waiting_bytes(ha) == 0;

    if (is_level || (now_ns >= ha->handing_until_ns && is_told_last(ha))) {
        kvp_log_info("master", "the lead is given up: %s",
                     is_level ? "a standby is level" : "no standby got level in time");
        kvp_election_resign(&ha->election);
        end_switch(ha, KVP_OK, "");
        ha->handing_until_ns = UINT64_MAX; /* nothing is served any more */
    } else if (now_ns >= ha->handing_until_ns) {
        end_switch(ha, KVP_RETRY_AFTER, "the standby did not get level");
    }
}

static bool
may_hand_over(const kvp_ha_t *ha)
{
    return ha->election.insync.n > 1 && has_level(ha, UINT64_MAX);
}

/* A leader whose log cannot be written acknowledges nothing. A member of the in-sync set may take
 * over: it has every acknowledged record. */
static void
look_at_log(kvp_ha_t *ha, uint64_t now_ns)
{
    if (ha->conf.log->stats.log_failed == 0) {
        ha->failed_ns = 0;
        return;
    }
    if (ha->failed_ns == 0) ha->failed_ns = now_ns;
    if (now_ns - ha->failed_ns < FAILED_MAX_NS || !may_hand_over(ha)) return;
    kvp_log_error("master", "the lead is given up: the log cannot be written, and a standby is in sync");
    kvp_election_resign(&ha->election);
    stop_serving(ha);
}

static void
lead_on(kvp_ha_t *ha, uint64_t now_ns)
{
    kvp_election_t *e = &ha->election;
    const kvp_log_writer_t *log = ha->conf.log;
    const uint64_t until_ns = kvp_election_act_until(e);
    kvp_election_set_t wanted;

    if (e->role != KVP_ELECTION_LEADS) {
        step_down(ha, e->lease == 0 ? "its lease in etcd is over" : "etcd names another leader, or none");
        return;
    }
    if (e->is_resigning) {
        stop_serving(ha);
        return;
    }
    if (until_ns != ha->act_until_ns && until_ns > now_ns) {
        if (ha->is_fenced) kvp_log_warn("master", "leads on in term %u: the lease in etcd has lasted", e->own_term);
        ha->is_fenced = false;
        ha->act_until_ns = until_ns;
        kvp_server_act_until(ha->conf.server, until_ns);
    }
    kvp_sender_tick(&ha->sender, now_ns);
    kvp_insync_tick(&ha->sender.insync, log->origin + log->told_synced, kvp_log_writer_end(log), now_ns);
    kvp_insync_members(&ha->sender.insync, ha->conf.ident->id, &wanted);
    kvp_election_want_insync(e, &wanted);
    hold_positions(ha);
    ha->conf.log->hands_over = may_hand_over(ha);
    look_at_log(ha, now_ns);
    switch_on(ha, now_ns);
}

/* ---- connections that do not belong to the core */
static void
add_watcher(kvp_ha_t *ha, uint64_t conn)
{
    if (ha->watchers_n == ha->watchers_cap) {
        uint32_t cap = ha->watchers_cap == 0 ? 64 : ha->watchers_cap * 2;
        uint64_t *grown = realloc(ha->watchers, cap * sizeof *grown);

        if (grown == NULL) {
            kvp_server_end(ha->conf.server, conn);
            return;
        }
        ha->watchers = grown;
        ha->watchers_cap = cap;
    }
    ha->watchers[ha->watchers_n++] = conn;
}

static void
refuse_follower(kvp_ha_t *ha, uint64_t conn, const kvp_frame_t *frame)
{
    Kvp__Pb__FollowReply msg = KVP__PB__FOLLOW_REPLY__INIT;

    msg.err = KVP_NOT_LEADER;
    kvp_server_reply(ha->conf.server, conn, KVP_OP_FOLLOW, frame->hdr.request_id, &msg);
    kvp_server_end(ha->conf.server, conn);
}

static void
take_follower(kvp_ha_t *ha, uint64_t conn, const kvp_frame_t *frame)
{
    kvp_wire_term_t terms[KVP_FOLLOW_TERMS_MAX];
    kvp_master_ident_t ident;
    uint32_t n;

    if (ha->state != HA_LEADS) {
        refuse_follower(ha, conn, frame);
        return;
    }
    kvp_master_ident(core_of(ha), &ident);
    (void)terms_of(ha, terms, &n);
    kvp_sender_follow(&ha->sender, conn, frame, terms, n, &ident, kvp_boot_ns());
}

static void
refuse_switch(kvp_ha_t *ha, uint64_t conn, const kvp_frame_t *frame, kvp_err_t err, const char *detail)
{
    Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT;

    reply.err = err;
    reply.detail = (char *)detail;
    kvp_server_reply(ha->conf.server, conn, KVP_OP_SWITCH, frame->hdr.request_id, &reply);
    kvp_server_end(ha->conf.server, conn);
}

/* A switch takes a term, and any program may ask for one. */
static void
take_switch(kvp_ha_t *ha, uint64_t conn, const kvp_frame_t *frame)
{
    const uint64_t now_ns = kvp_boot_ns(), from_ns = ha->led_ns + ha->conf.switch_after_ns;
    Kvp__Pb__Switch *msg;
    char why[128];
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__switch__descriptor, frame);
    snprintf(why, sizeof why, "it leads for less than %.0f s: a switch is possible in %.1f s",
             (double)ha->conf.switch_after_ns / 1e9, (double)(kvp_max_u64(from_ns, now_ns) - now_ns) / 1e9);
    if (msg == NULL) {
        kvp_server_end(ha->conf.server, conn);
    } else if (ha->switch_until_ns != 0 || ha->handing_until_ns != 0) {
        refuse_switch(ha, conn, frame, KVP_RETRY_AFTER, "a switch is under way");
    } else if (!may_serve(ha)) {
        refuse_switch(ha, conn, frame, KVP_NOT_LEADER, ha->election.leader.address);
    } else if (now_ns < from_ns) {
        refuse_switch(ha, conn, frame, KVP_RETRY_AFTER, why);
    } else {
        ha->switch_conn = conn;
        ha->switch_ask = frame->hdr;
        ha->switch_until_ns = now_ns + kvp_min_u64(msg->wait_ms, SWITCH_WAIT_MAX_MS) * KVP_NS_PER_MS;
    }
    kvp_pb_free(&pb, msg);
}

static bool
on_first(void *arg, uint64_t conn, const kvp_frame_t *frame)
{
    kvp_ha_t *ha = arg;
    const bool is_question = (frame->hdr.flags & (KVP_FRAME_REPLY | KVP_FRAME_ONEWAY)) == 0;

    if (is_question && frame->hdr.opcode == KVP_OP_WATCH) {
        add_watcher(ha, conn);
        return true;
    }
    if (is_question && frame->hdr.opcode == KVP_OP_FOLLOW) {
        take_follower(ha, conn, frame);
        return true;
    }
    if (is_question && frame->hdr.opcode == KVP_OP_SWITCH) {
        take_switch(ha, conn, frame);
        return true;
    }
    if (ha->state != HA_LEADS || may_serve(ha)) return false;
    kvp_server_end(ha->conf.server, conn);
    return true;
}

static void
on_gone(void *arg, uint64_t conn)
{
    kvp_ha_t *ha = arg;

    if (ha->switch_conn == conn) ha->switch_conn = 0; /* it goes on */
    kvp_sender_on_gone(&ha->sender, conn);
    for (uint32_t i = 0; i < ha->watchers_n; i++)
        if (ha->watchers[i] == conn) {
            ha->watchers[i] = ha->watchers[--ha->watchers_n];
            return;
        }
}

static void
on_frame(void *arg, uint64_t conn, const kvp_frame_t *frame)
{
    kvp_ha_t *ha = arg;

    if (ha->state == HA_LEADS && frame->hdr.opcode == KVP_OP_FOLLOWED) {
        kvp_sender_on_frame(&ha->sender, conn, frame, kvp_boot_ns());
        hold_positions(ha);
        return;
    }
    on_gone(ha, conn); /* a watcher sends nothing */
    kvp_server_end(ha->conf.server, conn);
}

/* How soon standbys have to hear of what was written. */
static kvp_sender_pace_t
pace_of(const kvp_ha_t *ha)
{
    if (ha->handing_until_ns != 0 && waiting_bytes(ha) == 0) return KVP_SEND_LAST;
    if (ha->conf.ack_standbys > 0 || ha->switch_until_ns != 0 || kvp_master_wants_sync(core_of(ha)))
        return KVP_SEND_NOW;
    return KVP_SEND_SOON;
}

/* The end of the turn does the work. */
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
    if (ha->state == HA_FOLLOWS) follow_on(ha, now_ns);
    if (ha->state != HA_LEADS) return;
    hold_positions(ha);
    if (kvp_sender_pump(&ha->sender, pace_of(ha), now_ns) && !ha->is_stopping &&
        !uv_is_active((uv_handle_t *)&ha->soon))
        uv_timer_start(&ha->soon, on_soon, KVP_SENDER_DELAY_MS, 0);
    answer_watchers(ha);
}

void
kvp_ha_ops(kvp_ha_t *ha, kvp_server_ops_t *ops_out)
{
    *ops_out = (kvp_server_ops_t){on_first, on_frame, on_gone, on_turn, on_fenced, ha};
}

/* ---- etcd */
static void
on_answer(void *arg, kvp_etcd_answer_t *answer)
{
    kvp_ha_t *ha = arg;
    answer_t *a = calloc(1, sizeof *a);

    if (a == NULL) kvp_panic("out of memory: an answer of etcd");
    a->answer = *answer;
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

/* A directory that has no pool yet takes the cluster's. */
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
        kvp_log_error("master", "the data directory is of another pool than cluster %s; remove it to begin anew dir=%s",
                      ha->conf.cluster, ident->dir);
        exit(1);
    }
    if (ha->state == HA_LEADS) return;
    memcpy(ident->pool_id, pool->pool_id, sizeof ident->pool_id);
    ident->digest_seed = pool->digest_seed;
    ident->is_new = false;
    if (kvp_ident_save(ident, 0) != KVP_OK) exit(1);
    read_again(ha, UINT64_MAX, false);
}

static void
note_role(kvp_ha_t *ha)
{
    const kvp_election_t *e = &ha->election;
    const char *role = ha->state == HA_WAITS || ha->state == HA_READS ? "starting"
                       : ha->state == HA_LEADS && ha->is_fenced       ? "fenced"
                       : ha->state == HA_LEADS                        ? "leader"
                       : e->role != KVP_ELECTION_FOLLOWS              ? "candidate"
                                                                      : "standby";

    atomic_store(&ha->role, role);
    atomic_store(&ha->term, ha->state == HA_LEADS                         ? e->own_term
                            : kvp_election_knows_leader(e, kvp_boot_ns()) ? e->leader_term
                                                                          : 0);
}

static void
look_for_end(kvp_ha_t *ha, uint64_t now_ns)
{
    const kvp_election_t *e = &ha->election;

    if (e->twin_ns != 0 && now_ns - e->twin_ns > TWIN_TTLS * ha->conf.ttl_s * KVP_NS_PER_S) {
        kvp_log_error("master",
                      "another master is there with this data directory's id: one of the two is a copy; remove it, "
                      "and begin with an empty one dir=%s",
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
    kvp_election_ready(e, (ha->state == HA_FOLLOWS && ha->conf.log->stats.log_failed == 0) || ha->state == HA_LEADS,
                       ha->is_doubted, kvp_master_log_term(core_of(ha)), &pool);
    kvp_election_tick(e, now_ns);
    look_for_end(ha, now_ns);
    if (ha->state == HA_LEADS) lead_on(ha, now_ns);
    take_pool(ha);
    if (ha->state == HA_FOLLOWS && e->role == KVP_ELECTION_LEADS && !e->is_resigning) begin_lead(ha);
    if (ha->state != HA_LEADS && e->has_leader) kvp_master_set_leader(core_of(ha), e->leader.address);
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
    answer_t *list;

    pthread_mutex_lock(&ha->lock);
    list = ha->answers;
    ha->answers = NULL;
    ha->answers_end = &ha->answers;
    is_changed = ha->is_changed;
    ha->is_changed = false;
    pthread_mutex_unlock(&ha->lock);
    while (list != NULL) {
        answer_t *next = list->next;

        is_revoked |= ha->is_stopping && list->answer.id == ha->revoke_id;
        if (!ha->is_stopping) kvp_election_answer(&ha->election, &list->answer, kvp_boot_ns());
        kvp_etcd_answer_fini(&list->answer);
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

/* The core sends the list of masters to clients that ask for the pool's status. */
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
    kvp_master_note_masters(core_of(ha), rows, n);
}

static void
on_timer(uv_timer_t *timer)
{
    kvp_ha_t *ha = timer->data;

    if (ha->is_stopping) return;
    act_on_election(ha);
    note_masters(ha);
}

/* ---- life */
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
    kvp_election_conf_t conf = {.ttl_s = ha->conf.ttl_s, .seed = kvp_random_u64()};
    char prefix[KVP_ELECTION_CLUSTER_MAX + 16];
    kvp_err_t err;

    ha->core = NULL; /* the server owns it */
    ha->uv = ha->sender.uv = uv;
    snprintf(conf.cluster, sizeof conf.cluster, "%s", ha->conf.cluster);
    snprintf(conf.self.id, sizeof conf.self.id, "%s", ha->conf.ident->id);
    snprintf(conf.self.address, sizeof conf.self.address, "%s", address);
    snprintf(conf.self.http, sizeof conf.self.http, "%s", http);
    kvp_election_init(&ha->election, &conf, kvp_boot_ns());
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
    set_state(ha, HA_WAITS);

    snprintf(prefix, sizeof prefix, "/kvpool/%s/", ha->conf.cluster);
    ha->conf.etcd.prefix = prefix;
    ha->conf.etcd.on_answer = on_answer;
    ha->conf.etcd.on_change = on_change;
    ha->conf.etcd.arg = ha;
    err = kvp_etcd_create(&ha->conf.etcd, &ha->etcd);
    ha->conf.etcd.prefix = NULL;
    return err;
}

/* Revokes the lease, so that another master leads at once. */
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

    kvp_master_stats(core_of(ha), &st);
    memset(out, 0, sizeof *out);
    snprintf(out->role, sizeof out->role, "%s", kvp_ha_role(ha, &out->term));
    out->self = e->conf.self;
    if (ha->state == HA_LEADS ? !ha->is_fenced : kvp_election_knows_leader(e, now_ns)) out->leader = e->leader;
    memcpy(out->masters, e->masters, sizeof out->masters);
    out->masters_n = e->masters_n;
    out->insync = e->insync;
    out->elections = e->elections;
    if (ha->state == HA_FOLLOWS || ha->state == HA_LEADS) out->end = kvp_log_writer_end(ha->conf.log);
    if (ha->state == HA_FOLLOWS && ha->leader_end != UINT64_MAX && ha->leader_end > out->end)
        out->lag_bytes = ha->leader_end - out->end;
    out->lag_records = records_of(&st, out->lag_bytes);
    if (ha->state == HA_FOLLOWS && ha->level_ns > 0) out->lag_ms = (now_ns - ha->level_ns) / KVP_NS_PER_MS;
    if (ha->etcd != NULL) kvp_etcd_stats(ha->etcd, &out->etcd_requests, &out->etcd_failures);
    for (uint32_t i = 0; ha->state == HA_LEADS && i < KVP_STANDBYS_MAX; i++) {
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
