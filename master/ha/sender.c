/* SPDX-License-Identifier: Apache-2.0
 * The leader's sender of the log: see sender.h.
 *
 * Design notes.
 * - There is no queue: the sender reads the records that a standby lacks from the files when the standby's connection
 *   has room. The newest part of the log is in memory too (kvp_log_writer_recent), so a standby that keeps up gets
 *   everything from a leader whose disk hangs.
 * - A standby's position is trusted: a standby is a master of this pool. A standby that reports a wrong position can
 *   lose acknowledged writes at a fail-over. It cannot make the leader serve wrong data. */
#include "master/ha/sender.h"

#include "common/clock.h"
#include "common/log.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

#include <stdio.h>
#include <string.h>

#define PIECE_BYTES (64u << 10) /* limit of the log's bytes in one message */
#define SOON_BYTES (16u << 10) /* this many bytes are sent without delay */
#define UNSENT_MAX (512u << 10) /* limit of the bytes queued for a standby's connection */
#define ALIVE_NS (500 * KVP_NS_PER_MS)
#define SILENT_NS (5 * KVP_NS_PER_S)

static kvp_standby_t *
find_standby(kvp_sender_t *s, uint64_t conn)
{
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++)
        if (s->standbys[i].conn == conn) return &s->standbys[i];
    return NULL;
}

static kvp_standby_t *
find_id(kvp_sender_t *s, const char *id)
{
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++)
        if (s->standbys[i].conn != 0 && strcmp(s->standbys[i].id, id) == 0) return &s->standbys[i];
    return NULL;
}

/* Returns the standby's address, for the log; "unknown" if it is not registered in etcd. */
static const char *
address_of(const kvp_sender_t *s, const char *id)
{
    for (uint32_t i = 0; i < s->election->masters_n; i++)
        if (strcmp(s->election->masters[i].id, id) == 0) return s->election->masters[i].address;
    return "unknown";
}

static void
forget_standby(kvp_sender_t *s, kvp_standby_t *t)
{
    kvp_log_info("master", "standby %s is gone address=%s", t->id, address_of(s, t->id));
    kvp_insync_del(&s->insync, t->id);
    *t = (kvp_standby_t){.conn = 0};
    s->n--;
}

/* ---- where a standby's log forks from ours */
static uint64_t
end_of(const kvp_wire_term_t *terms, uint32_t n, uint32_t i, uint64_t end)
{
    return i + 1 < n ? terms[i + 1].position : end;
}

/* Finds the position up to which another log, with these terms and this end, equals ours. Our log ends at own_end,
 * and its files begin at own_begin. Returns false if the logs are equal up to no position that our files still have.
 * One master wrote each term, so two logs that both have a part of a term agree on it. */
static bool
find_fork(const kvp_wire_term_t *own, uint32_t own_n, uint64_t own_begin, uint64_t own_end,
          const kvp_wire_term_t *other, uint32_t other_n, uint64_t other_end, uint64_t *position_out)
{
    for (uint32_t i = other_n; i-- > 0;)
        for (uint32_t k = own_n; k-- > 0;) {
            uint64_t to;

            if (own[k].term != other[i].term) continue;
            to = kvp_min_u64(end_of(own, own_n, k, own_end), end_of(other, other_n, i, other_end));
            if (to < own_begin || to < own[k].position || to < other[i].position) return false;
            *position_out = to;
            return true;
        }
    return false;
}

/* ---- standbys that follow */
static bool
is_id(const char *id)
{
    const size_t len = strlen(id);

    return len > 0 && len <= KVP_ELECTION_ID_MAX && strspn(id, "0123456789abcdef") == len;
}

static const char *
find_refusal(const kvp_sender_t *s, const Kvp__Pb__Follow *msg, const kvp_master_ident_t *ident, kvp_err_t *err_out)
{
    const bool is_other = msg->pool_id.len != 0 && (msg->pool_id.len != sizeof ident->pool_id ||
                                                    memcmp(msg->pool_id.data, ident->pool_id, msg->pool_id.len) != 0);

    *err_out = KVP_VERSION;
    if (msg->version < KVP_PROTO_VERSION_MIN) return "the standby is too old for this leader";
    if (msg->version_min > KVP_PROTO_VERSION) return "the standby is too new for this leader";
    *err_out = KVP_INVALID;
    if (!is_id(msg->id)) return "bad id";
    if (strcmp(msg->id, s->self) == 0) return "it has the leader's id";
    if (is_other) return "its log is of another pool";
    *err_out = KVP_BUSY;
    return s->n == KVP_STANDBYS_MAX ? "too many standbys" : NULL;
}

static void
begin_standby(kvp_sender_t *s, uint64_t conn, const char *id, uint64_t position, uint64_t now_ns)
{
    kvp_standby_t *old = find_id(s, id), *t;

    if (old != NULL) { /* its old connection is half open */
        kvp_server_end(s->server, old->conn);
        forget_standby(s, old);
    }
    t = find_standby(s, 0);
    *t = (kvp_standby_t){.conn = conn, .sent = position, .heard_ns = now_ns, .said_ns = now_ns};
    snprintf(t->id, sizeof t->id, "%s", id);
    if (kvp_insync_add(&s->insync, id, position, now_ns) == NULL) kvp_panic("too many standbys");
    s->n++;
    kvp_log_info("master", "standby %s follows from position %llu of %llu address=%s", id, (unsigned long long)position,
                 (unsigned long long)kvp_log_writer_end(s->log), address_of(s, id));
}

void
kvp_sender_follow(kvp_sender_t *s, uint64_t conn, const kvp_frame_t *frame, const kvp_wire_term_t *terms,
                  uint32_t terms_n, const kvp_master_ident_t *ident, uint64_t now_ns)
{
    Kvp__Pb__FollowReply msg = KVP__PB__FOLLOW_REPLY__INIT;
    const kvp_wire_term_t *other = NULL;
    const uint64_t begins = s->log->file.from[0];
    kvp_err_t err;
    kvp_pb_t pb;
    kvp_rd_t rd;

    Kvp__Pb__Follow *ask = kvp_pb_unpack(&pb, &kvp__pb__follow__descriptor, frame);
    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    if (ask != NULL) other = kvp_rd_array(&rd, ask->n, sizeof *other);
    if (ask == NULL || rd.is_bad || s->log->file.files == 0) {
        kvp_pb_free(&pb, ask);
        kvp_server_end(s->server, conn);
        return;
    }
    msg.detail = (char *)find_refusal(s, ask, ident, &err);
    if (msg.detail != NULL) {
        msg.err = err;
        kvp_log_warn("master", "a standby is refused: %s", msg.detail);
    } else {
        msg.detail = (char *)"";
        msg.position = begins;
        msg.is_anew =
            /* not anew: the standby's log is empty and begins where the leader's log begins */
            !(ask->n == 0 && ask->end == begins) &&
            !find_fork(terms, terms_n, begins, kvp_log_writer_end(s->log), other, ask->n, ask->end, &msg.position);
    }
    msg.term = ident->term;
    msg.pool_id = (ProtobufCBinaryData){sizeof ident->pool_id, (uint8_t *)ident->pool_id};
    msg.digest_seed = ident->digest_seed;
    kvp_server_reply(s->server, conn, KVP_OP_FOLLOW, frame->hdr.request_id, &msg);
    if (msg.err == KVP_OK)
        begin_standby(s, conn, ask->id, msg.position, now_ns);
    else
        kvp_server_end(s->server, conn);
    kvp_pb_free(&pb, ask);
}

void
kvp_sender_on_frame(kvp_sender_t *s, uint64_t conn, const kvp_frame_t *frame, uint64_t now_ns)
{
    kvp_standby_t *t = find_standby(s, conn);
    Kvp__Pb__Followed *msg;
    kvp_pb_t pb;

    if (t == NULL) {
        kvp_server_end(s->server, conn);
        return;
    }
    msg = kvp_pb_unpack(&pb, &kvp__pb__followed__descriptor, frame);
    t->heard_ns = now_ns;
    if (msg != NULL) kvp_insync_wrote(&s->insync, t->id, msg->position, t->sent, now_ns);
    kvp_pb_free(&pb, msg);
}

void
kvp_sender_on_gone(kvp_sender_t *s, uint64_t conn)
{
    kvp_standby_t *t = find_standby(s, conn);

    if (t != NULL) forget_standby(s, t);
}

void
kvp_sender_close(kvp_sender_t *s)
{
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++)
        if (s->standbys[i].conn != 0) kvp_server_end(s->server, s->standbys[i].conn);
    memset(s->standbys, 0, sizeof s->standbys);
    memset(&s->insync, 0, sizeof s->insync);
    s->n = 0;
}

/* ---- sending the log */
/* Copies the next piece of the log to `room`. *n_out 0: the piece is not read yet. */
static kvp_err_t
take_piece(kvp_sender_t *s, uint64_t at, uint8_t *room, size_t len, size_t *n_out)
{
    const uint64_t end = kvp_log_writer_may_read(s->log) ? kvp_log_writer_end(s->log) : at;
    const uint8_t *bytes = kvp_log_writer_recent(s->log, at, n_out);
    kvp_err_t err = KVP_OK;

    if (bytes == NULL) err = kvp_reader_get(s->reader, s->uv, &s->log->file, at, end, &bytes, n_out);
    if (err != KVP_OK) return err;
    *n_out = kvp_min_u64(*n_out, len);
    if (*n_out > 0) memcpy(room, bytes, *n_out);
    return KVP_OK;
}

static bool
send_piece(kvp_sender_t *s, kvp_standby_t *t, size_t len, bool is_last, uint64_t now_ns)
{
    const uint64_t end = kvp_log_writer_end(s->log);
    Kvp__Pb__Log msg = KVP__PB__LOG__INIT;
    kvp_err_t err = KVP_OK;
    kvp_buf_t out;
    size_t at, n = 0;
    uint8_t *room;

    msg.position = t->sent;
    msg.end = end;
    msg.is_last = is_last;
    kvp_buf_init(&out, 0);
    kvp_pb_frame_begin(&out, KVP_OP_LOG, KVP_FRAME_ONEWAY, 0, &msg.base, &at);
    room = kvp_buf_reserve(&out, len);
    if (len > 0) err = room == NULL ? KVP_NOMEM : take_piece(s, t->sent, room, len, &n);
    if (err == KVP_OK && (n > 0 || len == 0)) {
        out.len += n;
        t->sent += n;
        t->said_ns = now_ns;
        kvp_frame_end(&out, at);
        kvp_server_send(s->server, t->conn, &out);
    }
    kvp_buf_fini(&out);
    if (err != KVP_OK) { /* a base has replaced the records that the standby lacks: it connects again to get the base */
        kvp_log_info("master", "standby %s is too far behind: it reads the log from the beginning address=%s", t->id,
                     address_of(s, t->id));
        kvp_server_end(s->server, t->conn);
        forget_standby(s, t);
    }
    return n > 0;
}

/* Sends the records that the standby lacks. Returns true if some were delayed. */
static bool
pump_one(kvp_sender_t *s, kvp_standby_t *t, kvp_sender_pace_t pace, uint64_t now_ns)
{
    const uint64_t end = kvp_log_writer_end(s->log);
    const bool is_last = pace == KVP_SEND_LAST;

    if (pace == KVP_SEND_SOON && t->sent < end && end - t->sent < SOON_BYTES &&
        now_ns - t->said_ns < KVP_SENDER_DELAY_MS * KVP_NS_PER_MS)
        return true;
    while (t->conn != 0 && t->sent < end && kvp_server_unsent(s->server, t->conn) < UNSENT_MAX &&
           send_piece(s, t, kvp_min_u64(PIECE_BYTES, end - t->sent), false, now_ns))
        continue;
    if (t->conn == 0 || t->sent < end) return false;
    if (is_last && !t->is_told_last) {
        t->is_told_last = true;
        (void)send_piece(s, t, 0, true, now_ns);
    } else if (now_ns - t->said_ns >= ALIVE_NS) {
        (void)send_piece(s, t, 0, is_last, now_ns);
    }
    return false;
}

bool
kvp_sender_pump(kvp_sender_t *s, kvp_sender_pace_t pace, uint64_t now_ns)
{
    bool is_put_off = false;

    for (uint32_t i = 0; s->n > 0 && i < KVP_STANDBYS_MAX; i++)
        if (s->standbys[i].conn != 0) is_put_off |= pump_one(s, &s->standbys[i], pace, now_ns);
    return is_put_off;
}

void
kvp_sender_tick(kvp_sender_t *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++) {
        kvp_standby_t *t = &s->standbys[i];

        if (t->conn == 0 || now_ns - t->heard_ns <= SILENT_NS) continue;
        kvp_log_warn("master", "standby %s is silent address=%s", t->id, address_of(s, t->id));
        kvp_server_end(s->server, t->conn);
        forget_standby(s, t);
    }
}
