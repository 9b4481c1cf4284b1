/* SPDX-License-Identifier: Apache-2.0
 * The leader's part of ha: when it may serve, the positions that wait for standbys, clients that wait for a leader, a
 * switch to another master, and the connections of standbys. */
#include "master/ha/ha_priv.h"

#include <stdlib.h>

/* after the leader's log has failed for this long, the leader resigns if another master can lead */
#define FAILED_MAX_NS KVP_NS_PER_S
#define WATCHERS_A_TURN 32u /* limit of the answers to WATCH in one turn of the loop: each is one write */
#define SWITCH_WAIT_MAX_MS 60000u /* limit of the time that a switch waits for a standby */
#define SWITCH_MAX_NS (KVP_NS_PER_S) /* longest time in which a switch serves nothing, until it succeeds or ends */

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
    return ha->state == KVP_HA_LEADS && ha->handing_until_ns == 0 && kvp_boot_ns() < ha->act_until_ns &&
           ha->election.role != KVP_ELECTION_RESIGNS;
}

bool
kvp_ha_answer_watchers(kvp_ha_t *ha)
{
    if (!may_serve(ha)) return false;
    for (uint32_t left = WATCHERS_A_TURN; left > 0 && ha->watchers_n > 0; left--)
        say_watched(ha, ha->watchers[--ha->watchers_n]);
    return ha->watchers_n > 0;
}

/* Limits the log positions that the core gets as written and synced, so that acknowledgements wait for standbys. */
void
kvp_ha_hold_positions(kvp_ha_t *ha)
{
    const kvp_insync_t *in = &ha->sender.insync;
    const uint32_t wanted_n = ha->conf.ack_standbys;
    const uint32_t missing_n = ha->sender.n < wanted_n ? wanted_n - ha->sender.n : 0;
    kvp_election_set_t members;
    uint64_t written = UINT64_MAX;

    kvp_election_insync(&ha->election, &members);
    if (wanted_n > 0) /* not below the term's first record, without which no client can open a session */
        written = kvp_max_u64(kvp_insync_nth_has(in, wanted_n), ha->conf.log->origin + ha->conf.log->term_end);
    if ((missing_n > 0) != (ha->missing_n > 0)) {
        ha->missing_n = missing_n;
        if (missing_n > 0)
            kvp_log_warn("master", "puts and removals wait: %u standbys follow, and --ack-standbys asks for %u",
                         ha->sender.n, wanted_n);
        else
            kvp_log_info("master", "enough standbys follow for --ack-standbys");
    }
    kvp_log_writer_hold(ha->conf.log, written, kvp_insync_all_have(in, &members, ha->conf.ident->id));
}

void
kvp_ha_begin_lead(kvp_ha_t *ha)
{
    const kvp_election_t *e = &ha->election;
    kvp_master_t *core = kvp_ha_core_of(ha);
    const uint32_t log_term = kvp_ha_log_term(ha);
    const bool is_level = kvp_election_is_level(e, log_term, ha->level_term);

    kvp_follower_rest(ha->follower);
    if (e->is_unsafe)
        kvp_log_warn("master",
                     "no member of the in-sync set came within %u s: this master leads without their records, and asks "
                     "the nodes for their objects: the last removals may be undone",
                     ha->conf.ttl_s);
    if (kvp_master_lead(core, e->own_term, is_level, kvp_boot_ns()) != KVP_OK) {
        kvp_log_error("master", "elected in term %u, which is not above the log's term %u", e->own_term, log_term);
        kvp_election_resign(&ha->election);
        return;
    }
    kvp_ha_set_state(ha, KVP_HA_LEADS);
    ha->led_ns = kvp_boot_ns();
    kvp_log_info("master", "leads in term %u%s", e->own_term,
                 is_level ? "; the log is level with the leader's before" : "");
    ha->act_until_ns = kvp_election_act_until(e);
    kvp_server_act_until(ha->conf.server, ha->act_until_ns);
    kvp_server_flush(ha->conf.server);
}

static void
answer_switch(kvp_ha_t *ha, uint64_t conn, uint64_t request_id, kvp_err_t err, const char *detail)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;

    msg.err = err;
    msg.detail = (char *)detail;
    kvp_server_reply(ha->conf.server, conn, KVP_OP_SWITCH, request_id, &msg);
    kvp_server_end(ha->conf.server, conn);
}

static void
end_switch(kvp_ha_t *ha, kvp_err_t err, const char *detail)
{
    if (ha->switch_conn != 0) answer_switch(ha, ha->switch_conn, ha->switch_request_id, err, detail);
    ha->switch_conn = ha->switch_until_ns = ha->handing_until_ns = 0;
}

static void
step_down(kvp_ha_t *ha, const char *why)
{
    kvp_log_warn("master", "does not lead any more: %s", why);
    end_switch(ha, KVP_NOT_LEADER, "it does not lead any more");
    kvp_sender_close(&ha->sender);
    ha->is_doubted = false; /* our log is valid up to the part that the next leader has, and will be cut there */
    kvp_ha_read_again(ha, UINT64_MAX, false);
}

void
kvp_ha_on_fenced(void *arg)
{
    kvp_ha_t *ha = arg;

    if (ha->state != KVP_HA_LEADS) return;
    ha->act_until_ns = 0;
    kvp_log_warn("master", "the lead in term %u cannot be proved: etcd does not answer; nothing is served",
                 ha->election.own_term);
    kvp_server_drop(ha->conf.server);
}

/* Returns true if a member of the in-sync set lacks at most at_most bytes of the log. With at_most 0, the member must
 * also know that no more records follow. */
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

/* Continues a switch to another master. First it waits for a standby that is nearly level; then nothing is served
 * until the standby is level; then the lead is given up. The lead is also given up if a standby was told that the
 * records end but did not get level, because it would rely on this later. */
static void
switch_on(kvp_ha_t *ha, uint64_t now_ns)
{
    if (ha->switch_until_ns == 0) return;
    if (ha->handing_until_ns == 0) {
        if (has_level(ha, KVP_HA_BEHIND_MAX / 64)) {
            ha->handing_until_ns = now_ns + SWITCH_MAX_NS;
            kvp_server_drop(ha->conf.server);
        } else if (now_ns >= ha->switch_until_ns) {
            end_switch(ha, KVP_RETRY_AFTER, "no standby is in sync");
        }
        return;
    }
    const bool is_level = has_level(ha, 0) && kvp_ha_waiting_bytes(ha) == 0;

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

/* Gives up the lead if the log cannot be written. Such a leader acknowledges nothing, and a member of the in-sync set
 * can take over, because it has every acknowledged record. */
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

void
kvp_ha_lead_on(kvp_ha_t *ha, uint64_t now_ns)
{
    kvp_election_t *e = &ha->election;
    const kvp_log_writer_t *log = ha->conf.log;
    const uint64_t until_ns = kvp_election_act_until(e);
    kvp_election_set_t wanted;

    if (e->role == KVP_ELECTION_RESIGNS) {
        stop_serving(ha);
        return;
    }
    if (e->role != KVP_ELECTION_LEADS) {
        step_down(ha, e->lease == 0 ? "its lease in etcd is over" : "etcd names another leader, or none");
        return;
    }
    if (until_ns != ha->act_until_ns && until_ns > now_ns) {
        if (ha->act_until_ns == 0)
            kvp_log_warn("master", "leads on in term %u: the lease in etcd has lasted", e->own_term);
        ha->act_until_ns = until_ns;
        kvp_server_act_until(ha->conf.server, until_ns);
    }
    kvp_sender_tick(&ha->sender, now_ns);
    kvp_insync_tick(&ha->sender.insync, log->origin + log->told_synced, kvp_log_writer_end(log), now_ns);
    kvp_insync_members(&ha->sender.insync, ha->conf.ident->id, &wanted);
    kvp_election_want_insync(e, &wanted);
    kvp_ha_hold_positions(ha);
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

    if (ha->state != KVP_HA_LEADS) {
        refuse_follower(ha, conn, frame);
        return;
    }
    kvp_master_ident(kvp_ha_core_of(ha), &ident);
    kvp_ha_terms_of(ha, terms, &n);
    kvp_sender_follow(&ha->sender, conn, frame, terms, n, &ident, kvp_boot_ns());
}

/* Handles a SWITCH request. A switch uses up a term, and any program may ask for a switch, so a new leader refuses it
 * for a while. */
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
        answer_switch(ha, conn, frame->hdr.request_id, KVP_RETRY_AFTER, "a switch is under way");
    } else if (!may_serve(ha)) {
        answer_switch(ha, conn, frame->hdr.request_id, KVP_NOT_LEADER, ha->election.leader.address);
    } else if (now_ns < from_ns) {
        answer_switch(ha, conn, frame->hdr.request_id, KVP_RETRY_AFTER, why);
    } else {
        ha->switch_conn = conn;
        ha->switch_request_id = frame->hdr.request_id;
        ha->switch_until_ns = now_ns + kvp_min_u64(msg->wait_ms, SWITCH_WAIT_MAX_MS) * KVP_NS_PER_MS;
    }
    kvp_pb_free(&pb, msg);
}

bool
kvp_ha_on_first(void *arg, uint64_t conn, const kvp_frame_t *frame)
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
    if (ha->state != KVP_HA_LEADS || may_serve(ha)) return false;
    kvp_server_end(ha->conf.server, conn);
    return true;
}

void
kvp_ha_on_gone(void *arg, uint64_t conn)
{
    kvp_ha_t *ha = arg;

    if (ha->switch_conn == conn) ha->switch_conn = 0; /* the switch continues */
    kvp_sender_on_gone(&ha->sender, conn);
    for (uint32_t i = 0; i < ha->watchers_n; i++)
        if (ha->watchers[i] == conn) {
            ha->watchers[i] = ha->watchers[--ha->watchers_n];
            return;
        }
}

void
kvp_ha_on_frame(void *arg, uint64_t conn, const kvp_frame_t *frame)
{
    kvp_ha_t *ha = arg;

    if (ha->state == KVP_HA_LEADS && frame->hdr.opcode == KVP_OP_FOLLOWED) {
        kvp_sender_on_frame(&ha->sender, conn, frame, kvp_boot_ns());
        kvp_ha_hold_positions(ha);
        return;
    }
    kvp_ha_on_gone(ha, conn); /* a watcher should send nothing */
    kvp_server_end(ha->conf.server, conn);
}
