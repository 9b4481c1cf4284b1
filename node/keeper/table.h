/* SPDX-License-Identifier: Apache-2.0
 * The state of a keeper: the memory files of one segment in their order, and the processes that may store to them. Owns
 * the file descriptors. Not thread-safe. */
#ifndef KVP_NODE_KEEPER_TABLE_H
#define KVP_NODE_KEEPER_TABLE_H

#include "node/keeper/wire.h"

typedef struct {
    uint64_t process;
    uint64_t incarnation;
    int pidfd;
} kvp_keeper_writer_t;

/* The zero value is an empty table. */
typedef struct {
    int *files;
    uint32_t files_n; /* the number of memory files received so far, of `total`; total is 0 if there are none */
    uint32_t total;
    kvp_keeper_writer_t *writers;
    uint32_t writers_n;
    size_t writers_cap;
} kvp_keeper_table_t;

/* kvp_keeper_table_files adds the file descriptors of a FILES message, and owns them in every case. Errors: INVALID
 * (not the next files in order), NOMEM. */
kvp_err_t kvp_keeper_table_files(kvp_keeper_table_t *t, const kvp_keeper_msg_t *msg, const int *fds) KVP_MUST_USE;

/* kvp_keeper_table_writer adds a writer unless it is listed, and owns pidfd in every case. Errors: LIMIT,
 * NOMEM. kvp_keeper_table_over removes one incarnation of the process, or all of them if incarnation is 0. */
kvp_err_t kvp_keeper_table_writer(kvp_keeper_table_t *t, uint64_t process, uint64_t incarnation, int pidfd)
    KVP_MUST_USE;
void kvp_keeper_table_over(kvp_keeper_table_t *t, uint64_t process, uint64_t incarnation);

/* kvp_keeper_table_is_whole returns whether all files of a segment were received. */
bool kvp_keeper_table_is_whole(const kvp_keeper_table_t *t);

/* kvp_keeper_table_bytes returns how much memory the files use; pages that were never touched use none. */
uint64_t kvp_keeper_table_bytes(const kvp_keeper_table_t *t);

/* kvp_keeper_table_clear empties the table. is_last: also frees the pages of the files, even if other processes still
 * map them, which takes long for much memory. */
void kvp_keeper_table_clear(kvp_keeper_table_t *t, bool is_last);

#endif
