/* SPDX-License-Identifier: Apache-2.0
 * The log of what is committed and gone (journal.c), what a master before has written, read back (replay.c; recovery/apply.c enters
 * it), and, where there is no log, what other nodes are asked to keep in mind (tombstones.c). ADR 0028, ADR 0012.
 *
 * A position is a number of bytes: of all that was believed when the journal was opened, and written since.
 */
#ifndef KVP_MASTER_CORE_LOG_INTERIM_H
#define KVP_MASTER_CORE_LOG_INTERIM_H

#include "common/buf.h"
#include "common/digestmap.h"
#include "common/list.h"
#include "master/core/master.h"
#include "proto/jrec.h"
#include "proto/wire.h"

typedef struct kvp_obj kvp_obj_t;
typedef struct kvp_retire kvp_retire_t;
typedef struct kvp_segment kvp_segment_t;
typedef struct kvp_session kvp_session_t;
typedef struct kvp_tenant kvp_tenant_t;
typedef struct kvp_deferred kvp_deferred_t;

#define KVP_JOURNAL_BEHIND_MAX (4u << 20) /* bytes that are not durable, before nothing new is begun */

typedef struct {
    bool is_on; /* the shell has one */
    bool is_open;
    bool has_failed; /* the shell cannot write it */
    uint64_t check; /* of the last record */
    uint64_t end; /* behind the last record */
    uint64_t written; /* to the files: it outlives this process, */
    uint64_t synced; /* and the machine; the same where nothing is synced */
    bool is_sync_broken; /* what was written may be lost: nothing more counts as synced before a base that is */
    uint64_t term_end; /* behind the record that names our term: nothing is said before that is synced */
    kvp_buf_t fresh; /* records that the shell has not taken */
    bool has_base; /* one of them begins a base, */
    size_t base_at; /* here */

    /* what waits, each in the order of positions */
    kvp_list_t deferred[2]; /* answers: until what they say is written; until it is synced */
    kvp_list_t retires; /* orders about what was superseded */
    kvp_buf_t fresh_commits; /* kvp_fresh_commit_t: commits, from fresh_commits_at on */
    size_t fresh_commits_at;

    /* a base under way: everything that is there is said once more */
    bool is_relied_on; /* as it is durable, it says all that is committed */
    bool is_basing;
    bool is_based; /* what lies before the last one is not needed, and the shell was not told */
    uint64_t base_from, base_end; /* positions; base_end 0 = its last record is not written */
    uint32_t base_cursor, base_to; /* oids, */
    uint32_t base_retire, base_gone; /* and then records of what is not dead, and places of `gone` */

    /* replay.c */
    kvp_buf_t rest; /* of what was given: the beginning of a record */
    uint64_t given; /* bytes that were to be read */
    uint32_t read_term; /* 0 = nothing was read */
    kvp_err_t read_err; /* CORRUPT: nothing more is believed */
    bool is_whole; /* what was read says all that was committed */
    kvp_segment_t *named; /* by the place that was read last; NULL = none */
    kvp_digestmap_t
        gone; /* keys -> versions up to which all are gone, while nodes may hold some of them that have not reported yet */
} kvp_journal_t;

/* A commit that may be lost. */
typedef struct {
    uint64_t after;
    kvp_digest_t digest;
    uint64_t version;
} kvp_fresh_commit_t;

/* core: these files still know all of it, nobody below does. */
typedef struct {
    kvp_master_t *core; /* borrowed */
    kvp_journal_t journal;

    /* tombstones.c */
    kvp_digestmap_t removed; /* while they may: keys -> versions that went meanwhile, each with a tombstone */
    uint32_t removed_at; /* when they may not any more: how far these are settled */
    bool is_rebuild_over; /* these were too many: nothing that is reported is believed any more */
    /* keys -> versions, and how many retires, and what else, need them; none: learned */
    kvp_digestmap_t tombs, tomb_refs;
    kvp_list_t greeting; /* nodes */
    uint32_t tenants_at; /* where the next look for tenants to forget begins */
    uint32_t
        forgotten_term; /* memory that was mounted last before that term is not believed: bumps were forgotten; 0 = none */
    kvp_digestmap_t evicted; /* keys with a tombstone of extents that were evicted and are not dead */
    uint32_t evicted_at; /* where the next look at them begins */
    uint32_t tombs_touched; /* places of tombs and tomb_refs whose memory is there, */
    bool is_touching; /* and more are to come */
    uint64_t tombs_idle_ns; /* since when there are no tombstones; 0 = there are, or the maps are not there */
    kvp_buf_t tomb_news; /* kvp_wire_tomb_t that nodes are to be told with the end of this step */
} kvp_interim_t;

/* journal.c: see there. Without a journal none of it does anything.
 * What happens is written: kvp_journal_commit, of an object with its version; _again, the same of one whose places changed; _gone, of one
 * that is about to go; _segment, of memory that objects lie in, before they do; _segment_over, nothing does any more; _bumped; _term:
 * ours; _base: all that is there once more, is_anew where nothing that was written before counts any more. */
void kvp_journal_init(kvp_interim_t *log);
void kvp_journal_fini(kvp_interim_t *log);
void kvp_journal_commit(kvp_interim_t *log, uint32_t oid, kvp_digest_t digest);
void kvp_journal_again(kvp_interim_t *log, uint32_t oid);
void kvp_journal_gone(kvp_interim_t *log, kvp_digest_t digest, uint64_t version, kvp_gone_t why);
void kvp_journal_segment(kvp_interim_t *log, const kvp_segment_t *g);
void kvp_journal_segment_over(kvp_interim_t *log, const kvp_segment_t *g);
void kvp_journal_bumped(kvp_interim_t *log, const kvp_tenant_t *t);
void kvp_journal_bump_forgotten(kvp_interim_t *log, const kvp_tenant_t *t);
void kvp_journal_term(kvp_interim_t *log);
void kvp_journal_base(kvp_interim_t *log, bool is_anew);
/* kvp_journal_syncs: such a promise waits for the disk; of a commit, or of a removal, upsert or bump. kvp_journal_withholds: some of what was
 * said is not written, or not synced, so that a promise must wait. kvp_journal_is_behind: so much that nothing new is to be begun. */
bool kvp_journal_syncs(const kvp_interim_t *log, bool is_removal);
bool kvp_journal_withholds(const kvp_interim_t *log, bool is_synced);
bool kvp_journal_is_behind(const kvp_interim_t *log);
bool kvp_journal_remembers(const kvp_interim_t *log); /* the next master believes it, whatever nodes report */
void kvp_journal_written(kvp_interim_t *log, uint64_t end);
void kvp_journal_synced(kvp_interim_t *log, uint64_t end);
void kvp_journal_tick(kvp_interim_t *log);
bool kvp_journal_has_work(const kvp_interim_t *log);

/* replay.c, which reads what a master before has written. kvp_replay_named: the pool
 * has its name for good now, so that its journal can begin. _is_gone: what was read says so of that version, whatever nodes report. */
void kvp_replay_named(kvp_interim_t *log);
bool kvp_replay_is_gone(const kvp_interim_t *log, kvp_digest_t digest, uint64_t version);
void kvp_replay_note_gone(kvp_interim_t *log, kvp_digest_t digest, uint64_t version);

/* tombstones.c. kvp_tombs_is_rebuilding: memory of older terms may be reported. kvp_tombs_version: no version of the key up to
 * that one exists, 0 = nothing is known.
 * What goes is held against what nodes report. kvp_tombs_dropped: the object is about to leave the index; returns what is
 * to be told of it, version 0 = nothing. kvp_tombs_lost: it is, because its memory is gone. kvp_tombs_unknown: a key was
 * removed, whatever of it up to that version nodes may report: the answer waits until some node keeps it in mind. kvp_tombs_bumped: a namespace was.
 * kvp_tombs_retire: an extent of it is on its way out; kvp_tombs_tell: nodes are to keep that in mind (false: they are told too
 * much already); kvp_tombs_settled: it is dead, or given up. kvp_tombs_evicted: versions of that key up to that one are gone, and
 * what was evicted of them may not be dead: the answer waits until some node keeps it in mind, where no journal does.
 * kvp_tombs_learn: a node kept that tombstone; kvp_tombs_answer: it says that it keeps what it was told. kvp_tombs_flush tells nodes what is new, kvp_tombs_greet tells one of them all, in as many steps as that
 * takes (kvp_tombs_some). kvp_tombs_remind tells one that reports why some of it is not wanted, before it hears that it is not;
 * empties the buffer. */
bool kvp_tombs_is_rebuilding(const kvp_interim_t *log);
uint64_t kvp_tombs_version(const kvp_interim_t *log, uint32_t tenant, kvp_digest_t digest);
kvp_wire_tomb_t kvp_tombs_tomb(const kvp_interim_t *log, uint32_t tenant, kvp_digest_t digest); /* which says so */
void kvp_tombs_remind(kvp_interim_t *log, kvp_segment_t *g, kvp_session_t *node, kvp_buf_t *tombs);
bool kvp_tombs_bumped(kvp_interim_t *log, const kvp_tenant_t *t); /* false: nodes are told too much already */
void kvp_tombs_bump_forgotten(kvp_interim_t *log, kvp_tenant_t *t); /* nor does the tenant keep it */
kvp_wire_tomb_t kvp_tombs_dropped(kvp_interim_t *log, const kvp_obj_t *o, bool is_promised);
void kvp_tombs_lost(kvp_interim_t *log, const kvp_obj_t *o);
void kvp_tombs_unknown(kvp_interim_t *log, kvp_digest_t digest, uint64_t version, kvp_deferred_t *w);
void kvp_tombs_retire(kvp_interim_t *log, kvp_retire_t *r, const kvp_wire_tomb_t *tomb);
bool kvp_tombs_tell(kvp_interim_t *log, kvp_retire_t *r);
/* kvp_tombs_tell_all: of all that the answer waits for; false where the step's budget does not reach. */
bool kvp_tombs_tell_all(kvp_interim_t *log, kvp_deferred_t *w);
void kvp_tombs_evicted(kvp_interim_t *log, kvp_digest_t digest, uint64_t version, kvp_deferred_t *w);
void kvp_tombs_answer(kvp_interim_t *log, kvp_session_t *s, const kvp_frame_t *f);
void kvp_tombs_settled(kvp_interim_t *log, kvp_retire_t *r);
void kvp_tombs_learn(kvp_interim_t *log, const kvp_wire_tomb_t *tomb);
void kvp_tombs_flush(kvp_interim_t *log);
void kvp_tombs_greet(kvp_interim_t *log, kvp_session_t *node);
void kvp_tombs_expect(kvp_interim_t *log,
                      uint64_t objects); /* tombstones are to be expected for: they lie where nobody answers */
void kvp_tombs_some(kvp_interim_t *log); /* what of this can wait */
void kvp_tombs_tick(kvp_interim_t *log);
uint64_t kvp_tombs_memory_bytes(const kvp_interim_t *log); /* of its maps */
void kvp_tombs_fini(kvp_interim_t *log);

#endif
