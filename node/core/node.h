/* SPDX-License-Identifier: Apache-2.0
 * What a node decides, as a pure state machine: which orders it obeys (terms), who may attach (fences), when an extent is
 * unreadable and when it is free (retire, quiesce, quarantine), what a master that does not know the memory is told about
 * it (report). No sockets, threads, clocks or files; descriptors are
 * reached through a table. Not thread-safe: the node's control thread owns it.
 *
 * Design notes. An extent that is retired is free when two things hold: a quiesce that began after its DEAD was stored
 * is over, and nobody who writes past us (shared memory: no guard stops a store through a mapping) can still be at it.
 * The proof for such a writer is the end of its process, or the word of that same process that nothing of the
 * incarnation is under way. No timer stands in for either. Guarded paths (TCP) need no more than the quiesce. On paths
 * where nobody guards what was sent (rdma), the end of the writer's connections before the quiesce is the proof; a new
 * term's fence has ended those of all older writers.
 *
 * A new term voids every grant of older ones. Their clients are refused, and every word that is not SEALED becomes DEAD
 * with a generation of the new term, so that no old writer can begin or finish. What it could still do is store payload,
 * and words in slots that had never been touched: so the space between what is SEALED is free only once every process
 * that could write before is proved unable (KVP_OWNER_ANY), and by then those slots are gone over again.
 */
#ifndef KVP_NODE_CORE_NODE_H
#define KVP_NODE_CORE_NODE_H

#include "common/buf.h"
#include "common/idset.h"
#include "common/list.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

#define KVP_NODE_ROUNDS_MAX 8u /* quiesces under way at once */
#define KVP_NODE_LEFT_MAX 1024u /* incarnations that a live process left without saying that they are drained */

typedef struct kvp_node_core kvp_node_core_t;

/* How the core reaches descriptors. slot is in range. cas is sequentially consistent; fence is a full fence. limit: no
 * slot of the chunk from that one on was ever written. read copies the descriptor and its key (room for KVP_KEY_MAX):
 * false where kvp_desc_verify refuses it. */
typedef struct {
    uint64_t (*load)(void *arg, uint32_t chunk, uint32_t slot);
    bool (*cas)(void *arg, uint32_t chunk, uint32_t slot, uint64_t expect, uint64_t next);
    void (*fence)(void *arg);
    uint32_t (*limit)(void *arg, uint32_t chunk);
    bool (*read)(void *arg, uint32_t chunk, uint32_t slot, kvp_desc_t *desc_out, uint8_t *key_out);
} kvp_node_words_ops_t;

/* A process that attached over a Unix socket, and an attachment. Embedded in the shell's own structs, which may not go
 * before kvp_node_core_take_idle has named the process, or kvp_node_core_detach the attachment. Zero is not a valid
 * value: init first. */
typedef struct {
    kvp_list_t records; /* an incarnation of this process each */
    kvp_list_t idle; /* in the core's list of those to take */
    uint32_t left; /* records of writers without an attachment */
    bool is_dead;
} kvp_node_proc_t;

typedef struct {
    uint64_t incarnation;
    struct kvp_node_record *record; /* NULL: attached from another host, or not attached */
    struct kvp_node_presence *presence; /* NULL: not attached */
    kvp_list_t link;
    bool is_closing; /* waits to be taken by kvp_node_core_take_close, or was */
} kvp_node_att_t;

typedef struct {
    const kvp_node_words_ops_t *words;
    void *words_arg;
    uint32_t max_attachments;
    uint32_t sweep_slots; /* gone over in one slice of a sweep; 0 = 65536 */
    uint64_t secret; /* of tables whose keys peers choose: nobody is told of it */
} kvp_node_core_conf_t;

/* Figures; those marked (gauge) fall too. */
typedef struct {
    uint64_t attached; /* gauge */
    uint64_t retires; /* extents asked for */
    uint64_t freed; /* extents told free, at once or later */
    uint64_t fences;
    uint64_t refused; /* attachments */
    uint64_t quiescing; /* gauge: extents that wait for a quiesce */
    uint64_t quarantined; /* gauge: extents that wait for the proof about a writer */
    uint64_t revoked; /* words of older terms made DEAD when the term rose */
    uint64_t reported; /* extents told to masters that did not know them */
} kvp_node_core_stats_t;

/* NULL on no memory. conf is copied, what it points to is borrowed. destroy frees a core with everything detached. */
kvp_node_core_t *kvp_node_core_create(const kvp_node_core_conf_t *conf);
void kvp_node_core_destroy(kvp_node_core_t *core);

/* Memory and pool. kvp_node_core_set_segment tells that chunk_n chunks are there, all with slots descriptors but the last
 * with last_slots: NOMEM. kvp_node_core_set_id gives the number under which the master mounted them.
 * kvp_node_core_drop_segment: the memory is gone; whatever waited for it is forgotten and every attachment is to be
 * closed. kvp_node_core_forget_pool also forgets terms and fences, which count within one pool only. */
kvp_err_t kvp_node_core_set_segment(kvp_node_core_t *core, uint32_t chunk_n, uint32_t slots, uint32_t last_slots)
    KVP_MUST_USE;
void kvp_node_core_set_id(kvp_node_core_t *core, uint32_t segment_id);
void kvp_node_core_drop_segment(kvp_node_core_t *core);
void kvp_node_core_forget_pool(kvp_node_core_t *core);

/* kvp_node_core_see_term takes note of a term that a master claims: STALE_TERM when a higher one was seen, INVALID when
 * it is none. One that is higher fences all clients at once, and is obeyed when the memory was swept of what older ones granted:
 * EAGAIN until then; so say all calls that carry a term. kvp_node_core_sweep goes on with a sweep by one slice, and returns true
 * while there is more. kvp_node_core_term is the highest that was seen,
 * and kvp_node_core_mounted_term the one in which the memory had an id last, 0 = in none: from then on it may be in the
 * hands of that term's clients. A term whose master asked for a report counts with the report's last page. */
kvp_err_t kvp_node_core_see_term(kvp_node_core_t *core, uint32_t term) KVP_MUST_USE;
bool kvp_node_core_sweep(kvp_node_core_t *core);
bool kvp_node_core_is_sweeping(const kvp_node_core_t *core);
uint32_t kvp_node_core_term(const kvp_node_core_t *core);
uint32_t kvp_node_core_mounted_term(const kvp_node_core_t *core);

/* kvp_node_core_link_lost: no order is obeyed until the segment has an id again. Extents on their way to free stay; what
 * the master was not told by then it is told later, or asks again: an extent that is on its way is not entered twice. */
void kvp_node_core_link_lost(kvp_node_core_t *core);

/* RETIRE. kvp_node_core_retire stores DEAD in every word (an extent whose slot has a newer generation is left alone: it
 * was gone before), and fences. Then the shell cuts whom kvp_node_core_take_cut names, runs the quiesce that
 * kvp_node_core_take_quiesce asks for, and at last gets the answer, n bytes of KVP_RETIRE_*: what is free by then is said there, the rest later by
 * kvp_node_core_take_freed. STALE_TERM, NO_SEGMENT, INVALID (out of range), LIMIT, NOMEM: nothing was done, and there is
 * no answer to get. */
kvp_err_t kvp_node_core_retire(kvp_node_core_t *core, uint32_t term, uint32_t segment_id, const kvp_wire_slot_t *slots,
                               uint32_t n) KVP_MUST_USE;
void kvp_node_core_retire_answer(kvp_node_core_t *core, uint8_t *flags, uint32_t n);

/* CHECK: what the descriptors say to a reader, n bytes: 0, or KVP_RETIRE_DEAD where none would accept it. Nothing is stored. Errors
 * as of RETIRE. */
kvp_err_t kvp_node_core_check(kvp_node_core_t *core, uint32_t term, uint32_t segment_id, const kvp_wire_check_t *checks,
                              uint32_t n, uint8_t *flags) KVP_MUST_USE;

/* kvp_node_core_take_cut: true = end the connections over which what that writer has sent may land past the node.
 * kvp_node_core_take_quiesce: true = begin a quiesce of every serving transport now, and call kvp_node_core_quiesced with
 * *round_out when all are done. None begins before all cuts are taken. Rounds may end in any order. */
bool kvp_node_core_take_cut(kvp_node_core_t *core, uint64_t *incarnation_out);
bool kvp_node_core_take_quiesce(kvp_node_core_t *core, uint64_t *round_out);
void kvp_node_core_quiesced(kvp_node_core_t *core, uint64_t round);

/* kvp_node_core_take_freed moves up to max extents that became free after their answer, and returns how many. */
uint32_t kvp_node_core_take_freed(kvp_node_core_t *core, kvp_wire_slot_t *slots, uint32_t max);

/* FENCE: these incarnations and all below live_min are refused from now on; their attachments are to be closed.
 * The shell tells the transports. STALE_TERM: not obeyed. */
kvp_err_t kvp_node_core_fence(kvp_node_core_t *core, uint32_t term, kvp_idrange_t dead, uint64_t live_min) KVP_MUST_USE;
bool kvp_node_core_is_fenced(const kvp_node_core_t *core, uint64_t incarnation);
const kvp_idset_t *kvp_node_core_fenced(const kvp_node_core_t *core); /* borrowed until the next fence */

/* kvp_node_core_take_fence: the term rose, so the transports are to refuse all incarnations below *live_min_out and end
 * their connections; nothing is reported before they have. */
bool kvp_node_core_take_fence(kvp_node_core_t *core, uint64_t *live_min_out);

/* REPORT: what is SEALED, by chunk and rising offset; what is broken, or overlaps, is made DEAD
 * instead. begin starts anew: descriptors and keys of what has the generation `since` or a higher one, 0 = of all, UINT64_MAX = of none. page appends the next page's tail and says what is in
 * it; it must be answered before the next one: n bytes, KVP_RETIRE_DEAD for an extent that the master does not want. The
 * report is over with the answer to a page that is_last, which has no records, and with the link.
 * begin: NO_SEGMENT. page: NOMEM, INVALID (no report, or a page is not answered). answer: PROTO (another count). */
typedef struct {
    uint32_t n;
    uint32_t chunk; /* that all of them lie in */
    bool is_last;
} kvp_node_page_t;
kvp_err_t kvp_node_core_report_begin(kvp_node_core_t *core, uint64_t since) KVP_MUST_USE;
kvp_err_t kvp_node_core_report_page(kvp_node_core_t *core, kvp_buf_t *tail, kvp_node_page_t *page_out) KVP_MUST_USE;
kvp_err_t kvp_node_core_report_answer(kvp_node_core_t *core, const uint8_t *flags, uint32_t n) KVP_MUST_USE;

/* Attachments. proc is NULL for a peer on another host. INVALID (incarnation 0, dead process), FENCED, BUSY (too many),
 * NOMEM; a process that is new then is the shell's to free. */
void kvp_node_proc_init(kvp_node_proc_t *proc);
void kvp_node_att_init(kvp_node_att_t *att);
kvp_err_t kvp_node_core_attach(kvp_node_core_t *core, kvp_node_att_t *att, uint64_t incarnation, kvp_node_proc_t *proc)
    KVP_MUST_USE;
/* kvp_node_core_open_write notes that this attachment gets memory that it can store to past us. INVALID without a live
 * process or when the attachment is to be closed, LIMIT when that process has left too many incarnations behind, NOMEM. */
kvp_err_t kvp_node_core_open_write(kvp_node_core_t *core, kvp_node_att_t *att) KVP_MUST_USE;
/* kvp_node_core_detach ends an attachment; legal on one that is not attached. A writer's record stays. True: that was the last
 * one of its incarnation. */
bool kvp_node_core_detach(kvp_node_core_t *core, kvp_node_att_t *att);

/* The two proofs. kvp_node_core_drained is the word of the process behind att about one of its incarnations; attachments
 * that it still has under that one are to be closed. INVALID without a process. */
kvp_err_t kvp_node_core_drained(kvp_node_core_t *core, kvp_node_att_t *att, uint64_t incarnation) KVP_MUST_USE;
void kvp_node_core_process_dead(kvp_node_core_t *core, kvp_node_proc_t *proc);

/* kvp_node_core_take_close gives an attachment whose connection is to be closed (the shell detaches it then), and
 * kvp_node_core_take_idle a process of which nothing is remembered; NULL = none. */
kvp_node_att_t *kvp_node_core_take_close(kvp_node_core_t *core);
kvp_node_proc_t *kvp_node_core_take_idle(kvp_node_core_t *core);

/* For the process that comes next and gets this memory (where a keeper has it). kvp_node_core_save appends terms, fences and how far
 * the memory was swept; kvp_node_core_take_changed says whether that is another since it was asked last. The next process has its
 * core restore that after set_segment (PROTO), then each writer that may live, by process, then calls
 * kvp_node_core_restored. restore_writer: NOMEM, INVALID (dead process). kvp_node_core_each_writer names those that there are, who are not to change meanwhile. */
void kvp_node_core_save(const kvp_node_core_t *core, kvp_buf_t *out);
bool kvp_node_core_take_changed(kvp_node_core_t *core);
kvp_err_t kvp_node_core_restore(kvp_node_core_t *core, const uint8_t *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_node_core_restore_writer(kvp_node_core_t *core, kvp_node_proc_t *proc, uint64_t incarnation) KVP_MUST_USE;
void kvp_node_core_restored(kvp_node_core_t *core);
void kvp_node_core_each_writer(kvp_node_core_t *core,
                               void (*fn)(void *arg, kvp_node_proc_t *proc, uint64_t incarnation), void *arg);

/* kvp_node_core_audit looks at every descriptor that is SEALED, makes those that no reader could accept DEAD, and counts both. */
void kvp_node_core_audit(kvp_node_core_t *core, uint64_t *sealed_out, uint64_t *broken_out);

void kvp_node_core_stats(const kvp_node_core_t *core, kvp_node_core_stats_t *stats_out);

#endif
