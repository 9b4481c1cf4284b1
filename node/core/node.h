/* SPDX-License-Identifier: Apache-2.0
 * The node's decisions, as a pure state machine: which orders to obey (terms), which clients may attach (fences), when
 * an extent becomes unreadable and when it is free (retire, quiesce, quarantine), and the report to a master that does
 * not know the memory. No sockets, threads, clocks or files; descriptors are accessed through a table of functions. Not
 * thread-safe: the node's control thread owns the core.
 *
 * Design notes. A retired extent is free when two conditions hold. First, a quiesce (the end of all copies and sends
 * under way in the transports) that began after the extent was marked DEAD is over. Second, no writer with mapped
 * memory can still store to the extent: over shared memory no guard stops a store. The proof about a writer is the end
 * of its process, or the statement of the same process that its incarnation has drained. No timer replaces either
 * proof. Guarded paths (TCP) need only the quiesce. On paths where no guard checks the bytes (rdma), the proof is the
 * end of the writer's connections before the quiesce; a new term's fence has ended the connections of all older
 * writers.
 *
 * A new term voids every grant of older terms. Their clients are refused, and every word that is not SEALED becomes
 * DEAD with a generation of the new term, so that no old writer can begin or finish. An old writer can then only store
 * payload, and words in untouched slots. So the space between SEALED extents is free only once every process that could
 * write before is proved unable to (KVP_OWNER_ANY), and by then those slots are swept again. */
#ifndef KVP_NODE_CORE_NODE_H
#define KVP_NODE_CORE_NODE_H

#include "common/buf.h"
#include "common/idset.h"
#include "common/list.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

#define KVP_NODE_ROUNDS_MAX 8u /* the most rounds of quiesce (waits for running copies) at once */
/* the most incarnations that a live process may have left without stating that they have drained */
#define KVP_NODE_LEFT_MAX 1024u

typedef struct kvp_node_core kvp_node_core_t;

/* The core's access to descriptors (the records of objects); slot is always in range. cas is sequentially consistent;
 * fence is a full fence. limit returns the lowest slot of the chunk from which on no slot was ever written. read copies
 * a descriptor and its key (room for KVP_KEY_MAX); false if kvp_desc_verify refuses the descriptor. */
typedef struct {
    uint64_t (*load)(void *arg, uint32_t chunk, uint32_t slot);
    bool (*cas)(void *arg, uint32_t chunk, uint32_t slot, uint64_t expect, uint64_t next);
    void (*fence)(void *arg);
    uint32_t (*limit)(void *arg, uint32_t chunk);
    bool (*read)(void *arg, uint32_t chunk, uint32_t slot, kvp_desc_t *desc_out, uint8_t *key_out);
} kvp_node_words_ops_t;

/* A process that attached over a Unix socket. The caller embeds this struct in a struct of its own,
 * and frees that only after kvp_node_core_take_idle has returned the process (an attachment: after
 * kvp_node_core_detach). Call the init function first: a zeroed struct is not valid. */
typedef struct {
    kvp_list_t records; /* the records of this process, one for each incarnation */
    kvp_list_t idle; /* link in the core's list of processes to return by take_idle */
    uint32_t left; /* the number of this process's writer records without an attachment */
    bool is_dead;
} kvp_node_proc_t;

typedef struct {
    uint64_t incarnation;
    struct kvp_node_record *record; /* the record of the attached process; NULL: on another host, or not attached */
    struct kvp_node_presence *presence; /* the count of attachments of the incarnation; NULL: not attached */
    kvp_list_t link;
    bool is_closing; /* the attachment waits for kvp_node_core_take_close, or was returned by it */
} kvp_node_att_t;

typedef struct {
    const kvp_node_words_ops_t *words;
    void *words_arg;
    uint32_t max_attachments;
    uint32_t sweep_slots; /* the most slots that one call of kvp_node_core_sweep examines; 0 = 65536 */
    uint64_t secret; /* the hash secret of tables whose keys peers choose; never sent */
} kvp_node_core_conf_t;

/* The core's figures. Figures marked gauge can fall; the others only rise. */
typedef struct {
    uint64_t attached; /* gauge: the number of attachments */
    uint64_t retires; /* the number of extents in RETIRE orders */
    uint64_t freed; /* the number of extents reported free, in the answer to RETIRE or later */
    uint64_t fences;
    uint64_t refused; /* the number of refused attachments */
    uint64_t quiescing; /* gauge: the number of extents that wait for a quiesce */
    uint64_t quarantined; /* gauge: the number of extents that wait for the proof that their writer stores no more */
    uint64_t revoked; /* the number of WRITING slots of older terms that the sweep for a new term made DEAD */
    uint64_t reported; /* the number of extents sent in reports to masters */
} kvp_node_core_stats_t;

/* kvp_node_core_create returns NULL without memory. conf is copied; its pointers are borrowed. kvp_node_core_destroy
 * frees a core, after everything was detached. */
kvp_node_core_t *kvp_node_core_create(const kvp_node_core_conf_t *conf);
void kvp_node_core_destroy(kvp_node_core_t *core);

/* Memory and pool. kvp_node_core_set_segment gives the core its memory: chunk_n chunks with `slots` descriptors each,
 * and last_slots in the last chunk. Error: NOMEM. kvp_node_core_set_id sets the id under which the master mounted the
 * memory. kvp_node_core_drop_segment is called when the memory is closed: waiting extents are forgotten, and every
 * attachment must be closed. kvp_node_core_forget_pool also forgets terms and fences, which are valid within one pool
 * only. */
kvp_err_t kvp_node_core_set_segment(kvp_node_core_t *core, uint32_t chunk_n, uint32_t slots, uint32_t last_slots)
    KVP_MUST_USE;
void kvp_node_core_set_id(kvp_node_core_t *core, uint32_t segment_id);
void kvp_node_core_drop_segment(kvp_node_core_t *core);
void kvp_node_core_forget_pool(kvp_node_core_t *core);

/* kvp_node_core_see_term records a term that a master claims: STALE_TERM if a higher term was seen, INVALID for an
 * impossible term. A higher term fences all clients at once. The node obeys the new term after it has swept older
 * grants from the memory; until then this call and every other call with a term return EAGAIN. kvp_node_core_sweep
 * sweeps the next slice, and returns true while slices remain. kvp_node_core_term returns the highest term seen.
 * kvp_node_core_mounted_term returns the term in which the memory last got an id, 0 = never; from then on clients of
 * that term may have grants. If the master asked for a report, the term counts from the report's last page on. */
kvp_err_t kvp_node_core_see_term(kvp_node_core_t *core, uint32_t term) KVP_MUST_USE;
bool kvp_node_core_sweep(kvp_node_core_t *core);
bool kvp_node_core_is_sweeping(const kvp_node_core_t *core);
uint32_t kvp_node_core_term(const kvp_node_core_t *core);
uint32_t kvp_node_core_mounted_term(const kvp_node_core_t *core);

/* kvp_node_core_link_lost is called when the master's connection is lost: the node obeys no order until the segment has
 * an id again. Retired extents that are not free yet stay in the core. The master gets the missed reports later or
 * sends RETIRE again, which does not add an extent twice. */
void kvp_node_core_link_lost(kvp_node_core_t *core);

/* RETIRE. kvp_node_core_retire stores DEAD in the word of each slot, then a fence. It skips an extent whose slot has
 * a newer generation, because that extent was freed before. Then the shell cuts the peers that kvp_node_core_take_cut
 * returns, runs the quiesce that kvp_node_core_take_quiesce asks for, and gets the answer: n bytes of KVP_RETIRE_*
 * for the master. The answer names the extents that are free by then; kvp_node_core_take_freed returns the others
 * later. STALE_TERM, NO_SEGMENT, INVALID (out of range), LIMIT, NOMEM: nothing was done, and there is no answer. */
kvp_err_t kvp_node_core_retire(kvp_node_core_t *core, uint32_t term, uint32_t segment_id, const kvp_wire_slot_t *slots,
                               uint32_t n) KVP_MUST_USE;
void kvp_node_core_retire_answer(kvp_node_core_t *core, uint8_t *flags, uint32_t n);

/* CHECK: returns n bytes in flags, 0 for a descriptor that a reader would accept, else KVP_RETIRE_DEAD. Stores
 * nothing. The errors are those of RETIRE. */
kvp_err_t kvp_node_core_check(kvp_node_core_t *core, uint32_t term, uint32_t segment_id, const kvp_wire_check_t *checks,
                              uint32_t n, uint8_t *flags) KVP_MUST_USE;

/* kvp_node_core_take_cut returns true and the incarnation of a writer whose connections must be ended, because sent
 * bytes may land without the node's control. kvp_node_core_take_quiesce returns true if the shell must begin a
 * quiesce of every serving transport now, and call kvp_node_core_quiesced with *round_out when all are done. No round
 * begins before all cuts are taken. Rounds may end in any order. */
bool kvp_node_core_take_cut(kvp_node_core_t *core, uint64_t *incarnation_out);
bool kvp_node_core_take_quiesce(kvp_node_core_t *core, uint64_t *round_out);
void kvp_node_core_quiesced(kvp_node_core_t *core, uint64_t round);

/* kvp_node_core_take_freed removes up to max extents that became free after their answer, and returns their number. */
uint32_t kvp_node_core_take_freed(kvp_node_core_t *core, kvp_wire_slot_t *slots, uint32_t max);

/* FENCE: kvp_node_core_fence refuses the incarnations in `dead`, and all below live_min, from now
 * on; their attachments must be closed. The shell fences the transports. STALE_TERM: not obeyed. */
kvp_err_t kvp_node_core_fence(kvp_node_core_t *core, uint32_t term, kvp_idrange_t dead, uint64_t live_min) KVP_MUST_USE;
bool kvp_node_core_is_fenced(const kvp_node_core_t *core, uint64_t incarnation);
/* returns the set of fenced incarnations, borrowed until the next fence */
const kvp_idset_t *kvp_node_core_fenced(const kvp_node_core_t *core);

/* kvp_node_core_take_fence returns true once after the term rose: the transports must refuse all incarnations below
 * *live_min_out and end their connections. Until they have done this, the node reports nothing. */
bool kvp_node_core_take_fence(kvp_node_core_t *core, uint64_t *live_min_out);

/* REPORT: the SEALED extents, by chunk and rising offset; broken or overlapping extents become DEAD instead.
 * kvp_node_core_report_begin starts a report, with descriptors and keys for generations from `since` on (0 = all,
 * UINT64_MAX = none). kvp_node_core_report_page appends the next page's records to tail and describes them. Each page
 * needs its answer before the next page: n bytes, KVP_RETIRE_DEAD for an extent that the master does not want. The
 * report ends with the connection, or with the answer to a page with is_last, which has no records. Errors: begin:
 * NO_SEGMENT, NOMEM. page: NOMEM, INVALID (no report, or a page without answer). answer: PROTO (wrong number of
 * bytes). */
typedef struct {
    uint32_t n;
    uint32_t chunk; /* the chunk that contains all extents of this page of the report */
    bool is_last;
} kvp_node_page_t;
kvp_err_t kvp_node_core_report_begin(kvp_node_core_t *core, uint64_t since) KVP_MUST_USE;
kvp_err_t kvp_node_core_report_page(kvp_node_core_t *core, kvp_buf_t *tail, kvp_node_page_t *page_out) KVP_MUST_USE;
kvp_err_t kvp_node_core_report_answer(kvp_node_core_t *core, const uint8_t *flags, uint32_t n) KVP_MUST_USE;

/* Attachments. kvp_node_core_attach adds an attachment; proc is NULL for a peer on another host. INVALID (incarnation
 * 0, dead process), FENCED, BUSY (too many attachments, or the sweep for a new term is under way), NOMEM. After an
 * error the shell frees a new process itself. */
void kvp_node_proc_init(kvp_node_proc_t *proc);
void kvp_node_att_init(kvp_node_att_t *att);
kvp_err_t kvp_node_core_attach(kvp_node_core_t *core, kvp_node_att_t *att, uint64_t incarnation, kvp_node_proc_t *proc)
    KVP_MUST_USE;
/* kvp_node_core_open_write records that the attached client gets memory to which it can store without the node's
 * control. INVALID: there is no live process, or the attachment must be closed. LIMIT: the process has left too many
 * incarnations without stating that they have drained. NOMEM. */
kvp_err_t kvp_node_core_open_write(kvp_node_core_t *core, kvp_node_att_t *att) KVP_MUST_USE;
/* kvp_node_core_detach ends an attachment; legal on a detached one. The record of a writer stays. Returns true if it
 * was the last attachment of its incarnation. */
bool kvp_node_core_detach(kvp_node_core_t *core, kvp_node_att_t *att);

/* The two proofs that a writer stores nothing more. kvp_node_core_drained takes the statement of att's process that
 * one of its incarnations has drained; its remaining attachments under this incarnation must be closed. INVALID
 * without a process. kvp_node_core_process_dead takes the end of a process. */
kvp_err_t kvp_node_core_drained(kvp_node_core_t *core, kvp_node_att_t *att, uint64_t incarnation) KVP_MUST_USE;
void kvp_node_core_process_dead(kvp_node_core_t *core, kvp_node_proc_t *proc);

/* kvp_node_core_take_close returns an attachment whose connection must be closed (the shell detaches it then), and
 * kvp_node_core_take_idle a process about which nothing is recorded; NULL = none. */
kvp_node_att_t *kvp_node_core_take_close(kvp_node_core_t *core);
kvp_node_proc_t *kvp_node_core_take_idle(kvp_node_core_t *core);

/* State for the next process of this node, which gets the memory from the keeper. kvp_node_core_save appends terms,
 * fences and the progress of the sweep. kvp_node_core_take_changed returns whether this state has changed since its
 * last call. The next process calls kvp_node_core_restore after set_segment (PROTO), then
 * kvp_node_core_restore_writer for each writer that may live, by process (NOMEM, INVALID: dead process), then
 * kvp_node_core_restored. kvp_node_core_each_writer calls fn for each writer; fn must not change the writers. */
void kvp_node_core_save(const kvp_node_core_t *core, kvp_buf_t *out);
bool kvp_node_core_take_changed(kvp_node_core_t *core);
kvp_err_t kvp_node_core_restore(kvp_node_core_t *core, const uint8_t *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_node_core_restore_writer(kvp_node_core_t *core, kvp_node_proc_t *proc, uint64_t incarnation) KVP_MUST_USE;
void kvp_node_core_restored(kvp_node_core_t *core);
void kvp_node_core_each_writer(kvp_node_core_t *core,
                               void (*fn)(void *arg, kvp_node_proc_t *proc, uint64_t incarnation), void *arg);

/* kvp_node_core_audit checks every SEALED descriptor, makes DEAD those that no reader could accept, and counts all
 * SEALED descriptors and those that it made DEAD. */
void kvp_node_core_audit(kvp_node_core_t *core, uint64_t *sealed_out, uint64_t *broken_out);

void kvp_node_core_stats(const kvp_node_core_t *core, kvp_node_core_stats_t *stats_out);

/* kvp_node_copy_is_good returns true if the bytes that a COPY read are those of the object. It checks the descriptor,
 * the key, and the payload's checksum (if the record has one). The descriptor's first line must have been read after
 * the last byte of payload and key. kvp_node_copy_desc returns the descriptor of the copy, to be stored after the
 * payload and the key. */
bool kvp_node_copy_is_good(const kvp_wire_copy_t *rec, const kvp_desc_t *desc, const void *key, uint64_t sum);
kvp_desc_t kvp_node_copy_desc(const kvp_node_core_t *core, const kvp_wire_copy_t *rec, const kvp_desc_t *from);

#endif
