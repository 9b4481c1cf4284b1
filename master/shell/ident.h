/* SPDX-License-Identifier: Apache-2.0
 * The pool's identity across restarts of its master: the data directory with the pool's id, the seed of its digests
 * and the highest term used. Blocking file access, at the start and when the identity changes. */
#ifndef KVP_MASTER_SHELL_IDENT_H
#define KVP_MASTER_SHELL_IDENT_H

#include "common/base.h"

typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term; /* this start's term; after kvp_ident_look, or with etcd, the last term used with this directory */
    /* flag: the directory already had a pool, so no node may set the identity; false: the id and the seed are new, a
     * node may replace them, and they are not on disk before kvp_ident_save */
    bool had_master;
    bool is_new; /* flag: the id and the seed were made now, so other files in the directory belong to another pool */
    char id[33]; /* id of the directory in its cluster; "" = it never was in a cluster */
    int dir_fd; /* descriptor of the data directory; -1 = nothing is stored */
    int lock_fd; /* descriptor that locks the directory while this master lives; -1 = none */
    char dir[4096]; /* the directory's path for messages; "none" without a directory */
} kvp_ident_t;

/* kvp_ident_open creates the directory if needed, locks it against another master, reads the identity and takes the
 * next term, at least least_term (1 to KVP_TERM_MAX), durably; or makes a new identity. After KVP_TERM_MAX it makes a
 * new pool whose identity no node may set, and saves it at once. dir "none" stores nothing: a new pool. dir NULL is the
 * default, $XDG_STATE_HOME/kvpool or /var/lib/kvpool; if it cannot be used, a warning is logged and nothing is stored.
 * SYS, LIMIT (the path is too long), BUSY (locked by another master), CORRUPT (bad checksum); logged. takes_term false:
 * etcd assigns terms; `term` is then the last one used. */
kvp_err_t kvp_ident_open(const char *dir, uint32_t least_term, bool takes_term, kvp_ident_t *ident_out) KVP_MUST_USE;

/* kvp_ident_look reads the identity of a directory that no master uses, and locks the directory; it creates only the
 * lock file. ident_out->term is the last used term. NOT_FOUND (no pool in the directory), and the errors of
 * kvp_ident_open; logged. */
kvp_err_t kvp_ident_look(const char *dir, kvp_ident_t *ident_out) KVP_MUST_USE;

/* kvp_ident_join assigns the directory to the cluster, with an id. INVALID (of another cluster, or no directory),
 * CORRUPT, SYS. kvp_ident_may_be_alone returns INVALID unless the directory belongs to no cluster. All logged. */
kvp_err_t kvp_ident_join(kvp_ident_t *ident, const char *cluster) KVP_MUST_USE;
kvp_err_t kvp_ident_may_be_alone(const kvp_ident_t *ident) KVP_MUST_USE;

/* kvp_ident_close releases the directory; legal on an identity whose descriptors are -1. */
void kvp_ident_close(kvp_ident_t *ident);

/* kvp_ident_save writes the pool's id and seed, and `term` if it is higher than the saved term. SYS, logged. May
 * block as long as the disk does; only one thread at a time may use *ident. */
kvp_err_t kvp_ident_save(kvp_ident_t *ident, uint32_t term) KVP_MUST_USE;

#endif
