/* SPDX-License-Identifier: Apache-2.0
 * The table of waiting requests has one place for each hash of connection and request number. The numbers of one
 * connection's requests rise, so its requests have different places. A request whose place is taken is not followed,
 * unless the request there has waited for a minute: its connection was closed meanwhile, or it is never answered. */
#include "master/shell/slow.h"

#include "common/clock.h"
#include "common/hostid.h"
#include "master/shell/listener.h"
#include "master/shell/times.h"

#define FORGET_NS (60 * KVP_NS_PER_S)

static kvp_slow_call_t *
place_of(kvp_slow_t *slow, uint64_t conn, uint64_t request_id)
{
    return &slow->waiting[(conn * 0x9e3779b97f4a7c15u >> 32 ^ request_id) & (KVP_SLOW_WAITING - 1)];
}

void
kvp_slow_ask(kvp_slow_t *slow, uint64_t conn, const kvp_frame_hdr_t *request, uint64_t asked_ns, uint64_t began_ns,
             uint64_t ended_ns)
{
    slow->now.conn = 0;
    if (slow->limit_ns == 0 || (request->flags & KVP_FRAME_ONEWAY) != 0) return;
    slow->now = (kvp_slow_call_t){.conn = conn,
                                  .request_id = request->request_id,
                                  .asked_ns = asked_ns,
                                  .began_ns = began_ns,
                                  .ended_ns = ended_ns,
                                  .opcode = request->opcode};
}

void
kvp_slow_keep(kvp_slow_t *slow)
{
    if (slow->now.conn == 0 || kvp_timed_call_find(slow->now.opcode) == NULL) return;
    kvp_slow_call_t *at = place_of(slow, slow->now.conn, slow->now.request_id);
    if (at->conn != 0 && slow->now.ended_ns - at->ended_ns < FORGET_NS) return;
    slow->waiting_n += at->conn == 0;
    *at = slow->now;
    slow->now.conn = 0;
}

static void
note_answer(const kvp_slow_t *slow, kvp_slow_answers_t *answers, kvp_slow_call_t *call, uint64_t now)
{
    const kvp_slow_call_t *longest = &answers->longest;

    call->answered_ns = now;
    answers->n += now - call->asked_ns > slow->limit_ns;
    if (longest->conn == 0 || now - call->asked_ns >= longest->answered_ns - longest->asked_ns)
        answers->longest = *call;
    call->conn = 0;
}

void
kvp_slow_answer(kvp_slow_t *slow, uint64_t conn, const kvp_buf_t *frames, kvp_slow_answers_t *answers)
{
    uint64_t now = 0;

    for (size_t at = 0; at + KVP_FRAME_HDR_BYTES <= frames->len && (slow->now.conn == conn || slow->waiting_n > 0);) {
        kvp_frame_hdr_t hdr;
        if (kvp_frame_hdr_decode(frames->data + at, &hdr) != KVP_OK) return;
        at += KVP_FRAME_HDR_BYTES + hdr.length;
        if ((hdr.flags & KVP_FRAME_REPLY) == 0) continue;
        if (slow->now.conn == conn && slow->now.request_id == hdr.request_id) {
            if (kvp_timed_call_find(slow->now.opcode) != NULL)
                note_answer(slow, answers, &slow->now, slow->now.ended_ns);
            slow->now.conn = 0;
            continue;
        }
        kvp_slow_call_t *call = place_of(slow, conn, hdr.request_id);
        if (call->conn != conn || call->request_id != hdr.request_id) continue;
        if (now == 0) now = kvp_boot_ns();
        slow->waiting_n--;
        note_answer(slow, answers, call, now);
    }
}

static unsigned long long
ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (to_ns - from_ns) / KVP_NS_PER_MS : 0;
}

uint32_t
kvp_slow_sent(kvp_slow_t *slow, kvp_slow_answers_t *answers, int fd, uint64_t now)
{
    const kvp_slow_call_t call = answers->longest;
    const uint32_t n = answers->n > 0 ? answers->n : now - call.asked_ns > slow->limit_ns;
    char peer[KVP_PEER_TEXT_MAX] = "none";
    uint32_t missed;

    *answers = (kvp_slow_answers_t){.n = 0};
    if (n == 0 || !kvp_log_limit_ok(&slow->log_limit, &missed)) return n;
    const struct kvp_timed_call *timed = kvp_timed_call_find(call.opcode);
    kvp_peer_text(fd, peer);
    kvp_log_info("master",
                 "slow call call=%s ms=%llu queue_ms=%llu core_ms=%llu wait_ms=%llu send_ms=%llu waits_for=%s calls=%u "
                 "peer=%s missed=%u",
                 timed->name, ms_between(call.asked_ns, now), ms_between(call.asked_ns, call.began_ns),
                 ms_between(call.began_ns, call.ended_ns), ms_between(call.ended_ns, call.answered_ns),
                 ms_between(call.answered_ns, now), timed->waits_for, n, peer, missed);
    return n;
}
