/* SPDX-License-Identifier: Apache-2.0
 * The durability of the log: answers, orders and commits wait until their records are written, or synced. If the
 * shell keeps no log, these functions have no effect.
 *
 * - Every event takes effect in the index at once; only promises wait. An answer "committed" or "removed" waits for
 *   all earlier records: a commit until it is written; a removal, an upsert or a bump until it is synced, because an
 *   SSD may survive a power loss that the log's end does not survive. Readers may see an unwritten commit, and lose
 *   it again with the master, as in a race with its writer.
 * - Extents that a new version replaces are retired when the new version's commit is written: otherwise a crash of
 *   the master in between would leave neither version.
 * - The record of an eviction is written in order, but nothing waits for it: a later put of the key writes its record
 *   after it. */
#include "master/core/recovery/durable.h"

#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/record.h"
#include "master/core/log/journal.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/leaving.h"
#include "master/core/recovery/logbase.h"
#include "master/core/recovery/state.h"
#include "master/core/space/retire.h"

#define OLDEST_NS KVP_MS(100)

/* Continues everything that waited for the written or synced position, in a fixed order. If the step's budget is used
 * up, the next tick continues. */
static void
release_all(kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log;
    const uint64_t commits_to = kvp_journal_syncs(j, false) ? j->synced : j->written;
    const bool is_done = kvp_retire_release(&m->space, j->written) &&
                         kvp_deferred_release(&m->prot, false, j->written) &&
                         kvp_deferred_release(&m->prot, true, j->synced) && kvp_record_durable(&m->cat, commits_to);

    m->ctx.is_behind |= !is_done;
}

void
kvp_durable_written(kvp_master_t *m, uint64_t end)
{
    kvp_journal_t *j = &m->log;

    if (end > j->end || end < j->written)
        kvp_panic("written up to %llu of %llu", (unsigned long long)end, (unsigned long long)j->end);
    j->written = end;
    if (m->ctx.conf.log_sync == KVP_LOG_SYNC_NONE)
        kvp_durable_synced(m, end);
    else
        release_all(m);
}

void
kvp_durable_synced(kvp_master_t *m, uint64_t end)
{
    kvp_logbase_t *base = &m->base;
    kvp_journal_t *j = &m->log;

    if (base->is_sync_broken && (base->end == 0 || end < base->end)) return;
    base->is_sync_broken = false;
    if (end > j->written || end < j->synced)
        kvp_panic("synced up to %llu of %llu", (unsigned long long)end, (unsigned long long)j->written);
    j->synced = end;
    if (base->end > 0 && (j->synced >= base->end || !KVP_RULE(SNAPSHOT_DURABLE))) {
        base->is_based = base->is_relied_on = true;
        base->end = 0;
    }
    release_all(m);
}

/* Records OLDEST from time to time, if the log has grown. While nodes may report objects that this master does not
 * know, the last OLDEST stays valid. */
static void
say_oldest(kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log;

    if (!m->ctx.conf.is_elected || j->state != KVP_JOURNAL_OPEN || j->end == j->told_oldest_end) return;
    if (m->ctx.now_ns - j->told_oldest_ns < OLDEST_NS || m->peers.rebuild_until_ns > m->ctx.now_ns) return;
    kvp_record_oldest(&m->cat);
}

void
kvp_durable_tick(kvp_master_t *m)
{
    if (m->log.state == KVP_JOURNAL_OFF) return;
    say_oldest(m);
    kvp_logbase_run(m);
    release_all(m);
}

/* A sync failed: records all present objects again, after the part of the log that may be lost. */
void
kvp_durable_unsynced(kvp_master_t *m, uint64_t end)
{
    kvp_logbase_t *base = &m->base;
    bool is_said_behind = (base->is_basing || base->end > 0) && base->from >= end;

    if (m->log.state != KVP_JOURNAL_OPEN) return; /* a standby does nothing here: ha.c reads the leader's log again */
    base->is_sync_broken = true;
    if (!is_said_behind) kvp_logbase_begin(m, false);
}

bool
kvp_durable_wants_sync(const kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log;

    if (m->ctx.conf.log_sync == KVP_LOG_SYNC_NONE || j->synced == j->written) return false;
    if (kvp_leaving_wants_sync(&m->prot) || m->space.drain_end > j->synced) return true;
    return !kvp_list_is_empty(&m->prot.on_log[true]) || m->base.end > 0 || j->synced < j->term_end ||
           m->ctx.conf.log_sync == KVP_LOG_SYNC_ALWAYS;
}
