/* SPDX-License-Identifier: Apache-2.0
 * Records a base of the log at an operator's request. The request does not wait: the client asks again until its base
 * is complete. Requests name the base by a number that no other master assigns. */
#include "master/core/request/request.h"

#include "master/core/api/master.h"
#include "master/core/base/ctx.h"
#include "master/core/log/journal.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

static const char *
find_refusal(const kvp_journal_t *j, kvp_err_t *err_out)
{
    *err_out = j->state == KVP_JOURNAL_OFF    ? KVP_NOTSUP
               : j->has_failed                ? KVP_SYS
               : j->state != KVP_JOURNAL_OPEN ? KVP_RETRY_AFTER
                                              : KVP_OK;
    if (j->state == KVP_JOURNAL_OFF) return "the master keeps no log: it has no data directory";
    if (j->has_failed) return "the log cannot be written: the master's own log says why";
    return j->state == KVP_JOURNAL_OPEN ? "" : "the log begins with the first node, and none has come yet";
}

void
kvp_on_snapshot(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__SnapshotReply reply = KVP__PB__SNAPSHOT_REPLY__INIT;
    Kvp__Pb__Snapshot *msg;
    kvp_buf_t *out;
    kvp_pb_t pb;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__snapshot__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Snapshot");
        return;
    }
    reply.detail = (char *)find_refusal(&m->log, &reply.err);
    if (reply.err == KVP_OK) {
        reply.number = msg->number;
        if (msg->number >> 32 != m->ctx.term) {
            (void)kvp_master_snapshot(m); /* false: the base (snapshot) in progress is used for this request */
            reply.number = (uint64_t)m->ctx.term << 32 | m->base.bases;
        }
        reply.is_whole = (uint32_t)reply.number <= m->base.taken;
        reply.objects = m->ctx.st.objects;
        reply.log_bytes = m->base.file_bytes;
    }
    kvp_pb_free(&pb, msg);
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
}
