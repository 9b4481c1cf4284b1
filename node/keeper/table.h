/* SPDX-License-Identifier: Apache-2.0
 * A keeper's state: the memory files of one segment in their order, and the processes that may
 * store there. Owns the descriptors. Not thread-safe. */
#ifndef KVP_NODE_KEEPER_TABLE_H
#define KVP_NODE_KEEPER_TABLE_H

#include "node/keeper/wire.h"

typedef struct {
    uint64_t process;
    uint64_t incarnation;
    int pidfd;
} kvp_keeper_writer_t;

/* The zero value is empty. */
typedef struct {
    int *files;
    uint32_t files_n; /* of total, which is 0 where there are none */
    uint32_t total;
    kvp_keeper_writer_t *writers;
    uint32_t writers_n;
    size_t writers_cap;
} kvp_keeper_table_t;

/* kvp_keeper_table_files adds descriptors, and takes them in every case: INVALID (not the next ones
 * in order), NOMEM. */
kvp_err_t kvp_keeper_table_files(kvp_keeper_table_t *t, const kvp_keeper_msg_t *msg, const int *fds) KVP_MUST_USE;

/* kvp_keeper_table_writer adds a writer, and takes pidfd in every case; an existing entry stays:
 * LIMIT, NOMEM. kvp_keeper_table_over removes the incarnation of the process, or with 0 the whole
 * process. */
kvp_err_t kvp_keeper_table_writer(kvp_keeper_table_t *t, uint64_t process, uint64_t incarnation, int pidfd)
    KVP_MUST_USE;
void kvp_keeper_table_over(kvp_keeper_table_t *t, uint64_t process, uint64_t incarnation);

/* kvp_keeper_table_is_whole: all files of a segment are there. */
bool kvp_keeper_table_is_whole(const kvp_keeper_table_t *t);

/* kvp_keeper_table_bytes is how much memory the files take: pages that were never touched take none. */
uint64_t kvp_keeper_table_bytes(const kvp_keeper_table_t *t);

/* kvp_keeper_table_clear empties the table. is_last: this process also frees the pages, even if
 * other processes still map them, which takes long for much memory. */
void kvp_keeper_table_clear(kvp_keeper_table_t *t, bool is_last);

#endif
