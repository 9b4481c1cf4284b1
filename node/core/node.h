/* SPDX-License-Identifier: Apache-2.0
 * The node's decisions, as a pure state machine: which orders to obey (terms), which clients may
 * attach (fences), when an extent becomes unreadable and when free (retire, quiesce, quarantine),
 * and the report to a master that does not know the memory. No sockets, threads, clocks or files;
 * descriptors are reached through a table. Not thread-safe: the node's control thread owns it.
 *
 * Design notes. A retired extent is free when two conditions hold. First, a quiesce that began
 * after its DEAD was stored is over. Second, no writer with mapped memory can still store to it:
 * over shared memory no guard stops a store. The proof for such a writer is the end of its process,
 * or the statement of the same process that its incarnation has drained. No timer replaces either
 * proof. Guarded paths (TCP) need only the quiesce. On paths where no guard checks the bytes
 * (rdma), the proof is the end of the writer's connections before the quiesce; a new term's fence
 * has ended the connections of all older writers.
 *
 * A new term voids every grant of older terms. Their clients are refused, and every word that is
 * not SEALED becomes DEAD with a generation of the new term, so that no old writer can begin or
 * finish. An old writer can then only store payload, and words in untouched slots. So the space
 * between SEALED extents is free only once every process that could write before is proved unable
 * to (KVP_OWNER_ANY), and by then those slots are swept again. */
#ifndef KVP_NODE_CORE_NODE_H
#define KVP_NODE_CORE_NODE_H

#include "common/buf.h"
#include "common/idset.h"
#include "common/list.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

#define KVP_NODE_ROUNDS_MAX 8u /* quiesces under way at once */
#define KVP_NODE_LEFT_MAX 1024u /* incarnations that a live process left without the statement that they have drained */

typedef struct kvp_node_core kvp_node_core_t;

/* The core's access to descriptors. slot is in range. cas is sequentially consistent; fence is a
 * full fence. limit: no slot of the chunk from this one on was ever written. read copies the
 * descriptor and its key (room for KVP_KEY_MAX): false if kvp_desc_verify refuses it. */
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
    kvp_list_t records; /* one record for each incarnation of this process */
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
    uint32_t sweep_slots; /* slots in one slice of a sweep; 0 = 65536 */
    uint64_t secret; /* secret of the tables whose keys peers choose; never sent */
} kvp_node_core_conf_t;

/* Figures; those marked (gauge) can fall. */
typedef struct {
    uint64_t attached; /* gauge */
    uint64_t retires; /* extents asked for */
    uint64_t freed; /* extents reported free, at once or later */
    uint64_t fences;
    uint64_t refused; /* attachments */
    uint64_t quiescing; /* gauge: extents that wait for a quiesce */
    uint64_t quarantined; /* gauge: extents that wait for the proof about a writer */
    uint64_t revoked; /* words of older terms made DEAD when the term rose */
    uint64_t reported; /* extents reported to masters that did not know them */
} kvp_node_core_stats_t;

/* NULL on no memory. conf is copied, what it points to is borrowed. destroy frees a core with everything detached. */
kvp_node_core_t *kvp_node_core_create(const kvp_node_core_conf_t *conf);
void kvp_node_core_destroy(kvp_node_core_t *core);

/* Memory and pool. kvp_node_core_set_segment gives the core chunk_n chunks, with `slots`
 * descriptors each and last_slots in the last: NOMEM. kvp_node_core_set_id gives the id under which
 * the master mounted them. kvp_node_core_drop_segment: the memory is closed; waiting extents are
 * forgotten, and every attachment has to be closed. kvp_node_core_forget_pool also forgets terms
 * and fences, which are valid within one pool only. */
kvp_err_t kvp_node_core_set_segment(kvp_node_core_t *core, uint32_t chunk_n, uint32_t slots, uint32_t last_slots)
    KVP_MUST_USE;
void kvp_node_core_set_id(kvp_node_core_t *core, uint32_t segment_id);
void kvp_node_core_drop_segment(kvp_node_core_t *core);
void kvp_node_core_forget_pool(kvp_node_core_t *core);

/* kvp_node_core_see_term records a term that a master claims: STALE_TERM after a higher one,
 * INVALID for an impossible one. A higher term fences all clients at once. The node obeys it after
 * sweeping older grants from the memory: EAGAIN until then, also from every other call with a term.
 * kvp_node_core_sweep continues a sweep by one slice, and returns true while slices remain.
 * kvp_node_core_term is the highest term seen. kvp_node_core_mounted_term is the term in which the
 * memory last had an id, 0 = never; from then on clients of the term may have it. If the master
 * asked for a report, its term counts from the report's last page. */
kvp_err_t kvp_node_core_see_term(kvp_node_core_t *core, uint32_t term) KVP_MUST_USE;
bool kvp_node_core_sweep(kvp_node_core_t *core);
bool kvp_node_core_is_sweeping(const kvp_node_core_t *core);
uint32_t kvp_node_core_term(const kvp_node_core_t *core);
uint32_t kvp_node_core_mounted_term(const kvp_node_core_t *core);

/* kvp_node_core_link_lost: the node obeys no order until the segment has an id again. Extents on
 * their way to free stay. The master gets the missed reports later, or asks again; an extent on its
 * way is not entered twice. */
void kvp_node_core_link_lost(kvp_node_core_t *core);

/* RETIRE. kvp_node_core_retire stores DEAD in every word, and fences. It leaves an extent alone
 * whose slot has a newer generation: the extent was freed before. Then the shell cuts the peers
 * that kvp_node_core_take_cut names, runs the quiesce that kvp_node_core_take_quiesce asks for, and
 * gets the answer, n bytes of KVP_RETIRE_*. The answer names the extents that are free by then;
 * kvp_node_core_take_freed returns the rest later. STALE_TERM, NO_SEGMENT, INVALID (out of range),
 * LIMIT, NOMEM: nothing was done, and there is no answer. */
kvp_err_t kvp_node_core_retire(kvp_node_core_t *core, uint32_t term, uint32_t segment_id, const kvp_wire_slot_t *slots,
                               uint32_t n) KVP_MUST_USE;
void kvp_node_core_retire_answer(kvp_node_core_t *core, uint8_t *flags, uint32_t n);

/* CHECK: the state of the descriptors for a reader, n bytes: 0, or KVP_RETIRE_DEAD if no reader
 * would accept it. Stores nothing. Errors as of RETIRE. */
kvp_err_t kvp_node_core_check(kvp_node_core_t *core, uint32_t term, uint32_t segment_id, const kvp_wire_check_t *checks,
                              uint32_t n, uint8_t *flags) KVP_MUST_USE;

/* kvp_node_core_take_cut: true = end the connections over which what that writer has sent may land
 * past the node. kvp_node_core_take_quiesce: true = begin a quiesce of every serving transport now,
 * and call kvp_node_core_quiesced with *round_out when all are done. None begins before all cuts
 * are taken. Rounds may end in any order. */
bool kvp_node_core_take_cut(kvp_node_core_t *core, uint64_t *incarnation_out);
bool kvp_node_core_take_quiesce(kvp_node_core_t *core, uint64_t *round_out);
void kvp_node_core_quiesced(kvp_node_core_t *core, uint64_t round);

/* kvp_node_core_take_freed moves up to max extents that became free after their answer, and returns how many. */
uint32_t kvp_node_core_take_freed(kvp_node_core_t *core, kvp_wire_slot_t *slots, uint32_t max);

/* FENCE: these incarnations and all below live_min are refused from now on; their attachments have
 * to be closed. The shell informs the transports. STALE_TERM: not obeyed. */
kvp_err_t kvp_node_core_fence(kvp_node_core_t *core, uint32_t term, kvp_idrange_t dead, uint64_t live_min) KVP_MUST_USE;
bool kvp_node_core_is_fenced(const kvp_node_core_t *core, uint64_t incarnation);
const kvp_idset_t *kvp_node_core_fenced(const kvp_node_core_t *core); /* borrowed until the next fence */

/* kvp_node_core_take_fence: the term rose, so the transports are to refuse all incarnations below *live_min_out and end
 * their connections; nothing is reported before they have. */
bool kvp_node_core_take_fence(kvp_node_core_t *core, uint64_t *live_min_out);

/* REPORT: the SEALED extents, by chunk and rising offset; broken or overlapping ones become DEAD
 * instead. kvp_node_core_report_begin starts from the beginning, with descriptors and keys of
 * generations from `since` on (0 = all, UINT64_MAX = none). kvp_node_core_report_page appends the
 * next page's tail and returns its description. Each page needs its answer before the next: n
 * bytes, KVP_RETIRE_DEAD for an extent that the master does not want. The report ends with the
 * answer to a page with is_last, which has no records, or with the link. begin: NO_SEGMENT. page:
 * NOMEM, INVALID (no report, or a page without answer). answer: PROTO (another count). */
typedef struct {
    uint32_t n;
    uint32_t chunk; /* the chunk of all of them */
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
/* kvp_node_core_open_write records that the attachment gets memory that it can store to without our
 * control. INVALID without a live process or for an attachment to be closed, LIMIT if the process
 * has left too many incarnations behind, NOMEM. */
kvp_err_t kvp_node_core_open_write(kvp_node_core_t *core, kvp_node_att_t *att) KVP_MUST_USE;
/* kvp_node_core_detach ends an attachment; legal on a detached one. A writer's record stays. True:
 * it was the last attachment of its incarnation. */
bool kvp_node_core_detach(kvp_node_core_t *core, kvp_node_att_t *att);

/* The two proofs. kvp_node_core_drained is the statement of att's process about one of its
 * incarnations; its remaining attachments under the incarnation have to be closed. INVALID without
 * a process. */
kvp_err_t kvp_node_core_drained(kvp_node_core_t *core, kvp_node_att_t *att, uint64_t incarnation) KVP_MUST_USE;
void kvp_node_core_process_dead(kvp_node_core_t *core, kvp_node_proc_t *proc);

/* kvp_node_core_take_close gives an attachment whose connection is to be closed (the shell detaches it then), and
 * kvp_node_core_take_idle a process of which nothing is remembered; NULL = none. */
kvp_node_att_t *kvp_node_core_take_close(kvp_node_core_t *core);
kvp_node_proc_t *kvp_node_core_take_idle(kvp_node_core_t *core);

/* State for the next process of this node, which gets the memory from the keeper.
 * kvp_node_core_save appends terms, fences and the progress of the sweep;
 * kvp_node_core_take_changed returns whether this state has changed since its last call. The next
 * process restores the state after set_segment (PROTO), then each writer that may live, by process,
 * then calls kvp_node_core_restored. kvp_node_core_restore_writer: NOMEM, INVALID (dead process).
 * kvp_node_core_each_writer lists the writers, which must not change meanwhile. */
void kvp_node_core_save(const kvp_node_core_t *core, kvp_buf_t *out);
bool kvp_node_core_take_changed(kvp_node_core_t *core);
kvp_err_t kvp_node_core_restore(kvp_node_core_t *core, const uint8_t *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_node_core_restore_writer(kvp_node_core_t *core, kvp_node_proc_t *proc, uint64_t incarnation) KVP_MUST_USE;
void kvp_node_core_restored(kvp_node_core_t *core);
void kvp_node_core_each_writer(kvp_node_core_t *core,
                               void (*fn)(void *arg, kvp_node_proc_t *proc, uint64_t incarnation), void *arg);

/* kvp_node_core_audit checks every SEALED descriptor, makes those DEAD that no reader could accept,
 * and counts both. */
void kvp_node_core_audit(kvp_node_core_t *core, uint64_t *sealed_out, uint64_t *broken_out);

void kvp_node_core_stats(const kvp_node_core_t *core, kvp_node_core_stats_t *stats_out);

#endif
