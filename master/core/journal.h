/* SPDX-License-Identifier: Apache-2.0
 * The core's side of the journal: what it has written and how far that is durable, and what waits for it. Only files of
 * master/core include this. journal.c writes, ledger.c reads what a master before has written. ADR 0008.
 *
 * A position is a number of bytes: of all that was believed when the journal was opened, and written since.
 */
#ifndef KVP_MASTER_CORE_JOURNAL_H
#define KVP_MASTER_CORE_JOURNAL_H

#include "common/buf.h"
#include "common/digestmap.h"
#include "common/list.h"
#include "master/core/master.h"
#include "proto/jrec.h"

#define KVP_JOURNAL_BEHIND_MAX (4u << 20) /* bytes that are not durable, before nothing new is begun */

typedef struct {
    bool is_on; /* the shell has one */
    bool is_open;
    uint64_t check; /* of the last record */
    uint64_t end; /* behind the last record */
    uint64_t durable;
    uint64_t term_end; /* behind the record that names our term: nothing is said before that is durable */
    kvp_buf_t fresh; /* records that the shell has not taken */

    /* what waits, each in the order of positions */
    kvp_list_t waiters; /* answers */
    kvp_list_t retires; /* orders about what was superseded */
    kvp_buf_t young; /* kvp_young_t: commits, from young_at on */
    size_t young_at;

    /* a base under way: everything that is there is said once more */
    bool is_relied_on; /* as it is durable, it says all that is committed */
    bool is_basing;
    bool is_based; /* one is complete and durable, and the shell was not told */
    uint64_t base_from, base_end; /* positions; base_end 0 = its last record is not written */
    uint32_t base_cursor, base_to; /* oids */

    /* ledger.c */
    kvp_buf_t rest; /* of what was given: the beginning of a record */
    uint32_t read_term; /* 0 = nothing was read */
    kvp_err_t read_err; /* CORRUPT: nothing more is believed */
    bool is_whole; /* what was read says all that was committed */
    kvp_digestmap_t known; /* keys -> versions that were */
    bool is_judge; /* that decides what becomes of what nodes report */
    bool is_settling; /* nodes have reported: what none of them had is written off */
    uint32_t settled; /* places of the map that were looked at */
} kvp_journal_t;

/* A commit that is not durable. */
typedef struct {
    uint64_t after;
    kvp_digest_t digest;
    uint64_t version;
} kvp_young_t;

#endif
