/* SPDX-License-Identifier: Apache-2.0
 * SESSIONS: lists the sessions in pages, or ends one. Pages go by the sessions' numbers, so that no request walks over
 * all sessions. */
#include "master/core/request/request.h"

#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/tenant.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <stdio.h>

#define PAGE_MAX 64u
#define NUMBERS_MAX 4096u /* most numbers looked at in one request */

typedef struct {
    Kvp__Pb__SessionInfo infos[PAGE_MAX], *pointers[PAGE_MAX];
    char rights[PAGE_MAX][KVP_IDENTITY_ID_MAX + 16];
    size_t n;
} page_t;

static void
add_session(const kvp_master_t *m, page_t *page, kvp_session_t *s)
{
    Kvp__Pb__SessionInfo *info = &page->infos[page->n];
    char *rights = page->rights[page->n];

    kvp__pb__session_info__init(info);
    page->pointers[page->n++] = info;
    info->incarnation = s->incarnation;
    info->role = s->role;
    info->name = s->name;
    info->host_id = s->host_id;
    info->silent_ms = (m->ctx.now_ns - s->seen_ns) / KVP_MS(1);
    if (s->tenant != NULL) info->tenant = s->tenant->name;
    if (s->who == NULL) return;
    snprintf(rights, sizeof page->rights[0], "%s %s", kvp_authrole_name(s->who->role), s->who->id);
    info->rights = rights;
}

/* Adds sessions from number *cursor_io on; *cursor_io is then the number for the next page, or 0 at the end. */
static void
list_sessions(const kvp_master_t *m, page_t *page, uint32_t *cursor_io)
{
    const uint32_t limit = m->peers.sessions.limit;
    uint32_t number = *cursor_io, looked = 0;

    for (; number < limit && page->n < PAGE_MAX && looked < NUMBERS_MAX; number++, looked++) {
        kvp_session_t *s = kvp_ptab_get(&m->peers.sessions, number);

        if (s != NULL && s->conn != 0 && s->incarnation != 0 && s->life == KVP_SESSION_OPEN) add_session(m, page, s);
    }
    *cursor_io = number < limit ? number : 0;
}

/* Closes the session's connection after its output is sent, or after a time limit; the session ends with the
 * connection. */
static bool
end_session(kvp_master_t *m, uint64_t incarnation)
{
    kvp_session_t *s = NULL;
    uint32_t number;

    if (kvp_umap_get(&m->peers.by_incarnation, incarnation, &number)) s = kvp_ptab_get(&m->peers.sessions, number);
    if (s == NULL || s->conn == 0 || s->life != KVP_SESSION_OPEN) return false;
    s->is_revoked = true;
    kvp_session_shut(s);
    kvp_session_dirty(&m->peers, s);
    return true;
}

void
kvp_on_sessions(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__SessionsReply reply = KVP__PB__SESSIONS_REPLY__INIT;
    Kvp__Pb__Sessions *msg;
    page_t page = {.n = 0};
    kvp_pb_t pb;
    kvp_buf_t *out;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__sessions__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Sessions");
        return;
    }
    if (msg->end == 0) {
        reply.cursor = msg->cursor;
        list_sessions(m, &page, &reply.cursor);
        reply.sessions = page.pointers;
        reply.n_sessions = page.n;
    } else {
        if (!end_session(m, msg->end)) {
            reply.err = KVP_NOT_FOUND;
            reply.detail = (char *)"no session has this number: it has ended, or it was with another master";
        }
        kvp_session_audit(&m->peers, s, KVP_OP_SESSIONS, reply.err, reply.detail);
        kvp_session_audit_object(&m->peers, "%016llx", (unsigned long long)msg->end);
    }
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}
