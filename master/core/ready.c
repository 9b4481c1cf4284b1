/* SPDX-License-Identifier: Apache-2.0
 * The outputs of the core: kvp_master_ready.
 *
 * Log records come before frames: a shell that handles each output at once writes a record before it sends the answer
 * that depends on the record. journal and protect/ hold back the outputs that must wait for kvp_master_done. */
#include "common/buf.h"
#include "common/list.h"
#include "master/core/api/master.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/catalog.h"
#include "master/core/log/journal.h"
#include "master/core/protect/group.h"
#include "master/core/protect/pin.h"
#include "master/core/protect/protection.h"
#include "master/core/put/puts.h"
#include "master/core/recovery/durable.h"
#include "master/core/recovery/logbase.h"
#include "master/core/recovery/state.h"
#include "master/core/recovery/term.h"
#include "master/core/session/session.h"
#include "master/core/space/space.h"

#include <string.h>

#define QUIET_TICK_NS KVP_MS(100)

/* ---- the core's state */
/* Returns the time of the next tick, which serves all timers of the core. While only the timers of sessions run, ticks
 * come every QUIET_TICK_NS. */
static uint64_t
due_ns(const kvp_master_t *m)
{
    bool is_quiet = m->ctx.st.pending_puts == 0 && m->prot.deferred.n == 0 && kvp_list_is_empty(&m->prot.leasing) &&
                    m->prot.expiries.n == 0 && kvp_list_is_empty(&m->cat.taking) && m->space.moves.n == 0 &&
                    m->space.drains_n == 0 && m->prot.leavings.n == 0 && kvp_list_is_empty(&m->stagewaits);

    return m->ticked_ns + (is_quiet ? QUIET_TICK_NS : KVP_TICK_NS);
}

static bool
has_work(const kvp_master_t *m)
{
    bool is_searching = m->ctx.has_space_news && !kvp_list_is_empty(&m->puts.waiting);
    bool is_ending = !kvp_list_is_empty(&m->prot.ending) || !kvp_list_is_empty(&m->over) ||
                     !kvp_list_is_empty(&m->space.deferred_frees);
    bool is_answer_on_log = !kvp_list_is_empty(&m->prot.on_log[0]) || !kvp_list_is_empty(&m->prot.on_log[1]);

    if (m->log.is_resting) return is_ending;
    if (m->space.has_evacuation_news || m->space.has_take_news || m->closing > 0 || kvp_logbase_may_run(m)) return true;
    if (is_searching || is_ending || m->ctx.is_behind || m->space.has_orders || m->dropping > 0) return true;
    if (m->puts.is_leaving) return true;
    if (m->ctx.st.log_refuses != 0 && (!kvp_list_is_empty(&m->puts.waiting) || is_answer_on_log)) return true;
    return m->space.has_parked || kvp_pin_is_over(&m->prot) || kvp_groups_have_work(&m->prot) ||
           !kvp_list_is_empty(&m->jobs) || !kvp_list_is_empty(&m->space.staged);
}

static uint32_t
wishes_of(const kvp_master_t *m)
{
    const bool tells = m->log.state == KVP_JOURNAL_OPEN && !m->log.is_resting;

    return (has_work(m) ? KVP_MASTER_WORKS : 0) | (kvp_durable_wants_sync(m) ? KVP_MASTER_SYNCS : 0) |
           (kvp_term_is_mute(m) ? KVP_MASTER_MUTES : 0) | (m->base.is_basing ? KVP_MASTER_BASES : 0) |
           (tells ? KVP_MASTER_TELLS : 0);
}

/* ---- new outputs */
static void
take_note(kvp_master_t *m, kvp_master_ready_t *ready)
{
    ready->note = NULL;
    if (m->ctx.note[0] == '\0') return;
    memcpy(m->note_out, m->ctx.note, sizeof m->note_out);
    m->ctx.note[0] = '\0';
    ready->note = m->note_out;
}

static void
take_audit(kvp_master_t *m, kvp_master_ready_t *ready)
{
    ready->audit = NULL;
    if (m->peers.audit.conn == 0) return;
    m->audit_out = m->peers.audit;
    m->peers.audit.conn = 0;
    ready->audit = &m->audit_out;
}

/* Moves the queued frames of one connection to `ready`. */
static void
take_frames(kvp_master_t *m, kvp_master_ready_t *ready)
{
    kvp_session_t *s;
    kvp_buf_t swap;

    ready->conn = 0;
    if (ready->log.len > 0 || kvp_list_is_empty(&m->peers.dirty) || kvp_term_is_mute(m)) return;
    s = kvp_list_first(&m->peers.dirty, kvp_session_t, dirty);
    kvp_list_del(&s->dirty);
    /* an answer exceeded the frame limit, which the core's own limits should have prevented */
    if (s->out.err != KVP_OK) {
        kvp_ctx_note(&m->ctx, "answer too large for %s", s->name);
        kvp_buf_reset(&s->out);
        kvp_session_shut(s);
    }
    swap = s->out;
    s->out = ready->frames;
    ready->frames = swap;
    ready->conn = s->conn;
    ready->is_last = s->life != KVP_SESSION_OPEN;
}

bool
kvp_master_ready(kvp_master_t *m, kvp_master_ready_t *ready)
{
    (void)kvp_journal_take(&m->log, &ready->log, &ready->log_end, &ready->begins_base);
    ready->forget_below = kvp_logbase_take_from(m);
    ready->ident.term = 0;
    kvp_term_take_ident(m, &ready->ident);
    take_frames(m, ready);
    take_note(m, ready);
    take_audit(m, ready);
    if (ready->log.len > 0 || ready->forget_below != UINT64_MAX || ready->ident.term != 0 || ready->conn != 0 ||
        ready->note != NULL || ready->audit != NULL)
        return true;
    ready->tick_ns = due_ns(m);
    ready->term_end = m->log.term_end;
    ready->wishes = wishes_of(m);
    return false;
}
