/* SPDX-License-Identifier: Apache-2.0
 * Who the pool is, across restarts of its master: the data directory with the pool's id, the seed
 * of its digests and the highest term used. Blocking file access, at the start and when any of it
 * changes. */
#ifndef KVP_MASTER_SHELL_IDENT_H
#define KVP_MASTER_SHELL_IDENT_H

#include "common/base.h"

typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term; /* of this master: one above the last one used here */
    bool
        /* an earlier master existed, or no node may name the pool; otherwise the id and the seed
         * are new, and not on disk before kvp_ident_save */
        had_master;
    bool is_new; /* the id and the seed are made up now: whatever else is in the directory is of another pool */
    char id[33]; /* id of the directory in its cluster; "" = never in one */
    int dir_fd; /* -1 = nothing is kept */
    int lock_fd; /* held while this master lives; -1 = none */
    char dir[4096]; /* in the form of the ready line: "none" without a directory */
} kvp_ident_t;

/* kvp_ident_open creates the directory if needed, locks it against another master, reads the
 * identity and takes the next term, at least least_term (1 to KVP_TERM_MAX), durably; or makes a
 * new identity. After the last term it makes a pool that no node may name, and saves it at once.
 * dir "none" keeps nothing: a new pool. dir NULL is the default, $XDG_STATE_HOME/kvpool or
 * /var/lib/kvpool; if it cannot be used it warns and keeps nothing. SYS, BUSY (locked by another
 * master), CORRUPT (the file is damaged); logged. takes_term false: etcd assigns terms; term is
 * then the last one used. */
kvp_err_t kvp_ident_open(const char *dir, uint32_t least_term, bool takes_term, kvp_ident_t *ident_out) KVP_MUST_USE;

/* kvp_ident_look reads the identity of a directory that no master uses, and locks it; creates and
 * writes nothing. ident_out->term is the last used term. NOT_FOUND (no pool there), and the errors
 * of kvp_ident_open; logged. */
kvp_err_t kvp_ident_look(const char *dir, kvp_ident_t *ident_out) KVP_MUST_USE;

/* kvp_ident_join: the directory belongs to the cluster from now on, and has an id. INVALID: it
 * belongs to another cluster, or there is no directory. kvp_ident_may_be_alone: INVALID if it
 * belongs to a cluster. SYS; all logged. */
kvp_err_t kvp_ident_join(kvp_ident_t *ident, const char *cluster) KVP_MUST_USE;
kvp_err_t kvp_ident_may_be_alone(const kvp_ident_t *ident) KVP_MUST_USE;

/* kvp_ident_close releases the directory; legal on an identity whose descriptors are -1. */
void kvp_ident_close(kvp_ident_t *ident);

/* kvp_ident_save writes the pool's part of *ident, and `term` if it is higher. SYS, logged. May
 * block as long as the disk does; one thread at a time has *ident. */
kvp_err_t kvp_ident_save(kvp_ident_t *ident, uint32_t term) KVP_MUST_USE;

#endif
