/* SPDX-License-Identifier: Apache-2.0
 * The files of the master's log: DIR/log/POSITION.log, each with the stream's bytes from its
 * position on, in 16 hexadecimal digits, each beginning with a base. Blocking calls; log_writer.c
 * states which may run at the same time. */
#ifndef KVP_MASTER_SHELL_LOG_FILE_H
#define KVP_MASTER_SHELL_LOG_FILE_H

#include "common/base.h"

#define KVP_LOG_FILES_MAX 64u /* at most two are needed; more are a directory that is not ours */

typedef struct {
    const char *dir; /* the data directory, for messages; borrowed */
    int dir_fd; /* DIR/log; -1 = closed */
    int fd; /* of the last file */
    uint64_t from[KVP_LOG_FILES_MAX]; /* positions of the files' first bytes, rising */
    uint32_t files;
    uint64_t end; /* position after the last written byte */
    uint64_t found_bytes; /* in all files when they were listed */
    bool may_lack_end; /* it was written in another boot of the machine, or on another machine */
    bool is_boot_due; /* the first write has to note the boot, which validates the old bytes */
    bool is_never_synced; /* by the user's option */
    bool has_lost; /* the last file was not synced when another was begun, and could not be */
} kvp_log_file_t;

/* Files that are not of the log any more. */
typedef struct {
    uint64_t from[KVP_LOG_FILES_MAX];
    uint32_t n;
} kvp_log_gone_t;

/* kvp_log_file_init makes the empty value; kvp_log_file_fini closes it, and is legal on an empty
 * value. */
void kvp_log_file_init(kvp_log_file_t *lf);
void kvp_log_file_fini(kvp_log_file_t *lf);

/* kvp_log_file_open makes DIR/log where it is absent and lists its files. Of another boot of the
 * machine, a power loss may have taken the log's end: may_lack_end then. Where the pool is_new its
 * files are removed. dir_fd and dir are the data directory's, borrowed. SYS, LIMIT (too many
 * files), logged. */
kvp_err_t kvp_log_file_open(kvp_log_file_t *lf, int dir_fd, const char *dir, bool is_new) KVP_MUST_USE;

/* kvp_log_file_look is kvp_log_file_open without changes: SYS also without DIR/log. */
kvp_err_t kvp_log_file_look(kvp_log_file_t *lf, int dir_fd, const char *dir) KVP_MUST_USE;

/* kvp_log_file_read gives fn all bytes in order, in pieces, until fn returns an error, or until a
 * file that does not follow the one before. *read_out: their number. OK for any result of fn. SYS,
 * logged. */
typedef kvp_err_t (*kvp_log_file_fn)(void *arg, const void *bytes, size_t len);
kvp_err_t kvp_log_file_read(const kvp_log_file_t *lf, kvp_log_file_fn fn, void *arg, uint64_t *read_out) KVP_MUST_USE;

/* kvp_log_file_pread reads bytes from the position on, at most to the end of its file: *n_out 0, no
 * bytes yet. NOT_FOUND: the position lies before all files. SYS. Legal beside a write. */
kvp_err_t kvp_log_file_pread(const kvp_log_file_t *lf, uint64_t at, void *bytes, size_t len, size_t *n_out)
    KVP_MUST_USE;

/* kvp_log_file_begin_at removes all files: the next one begins at the position. */
void kvp_log_file_begin_at(kvp_log_file_t *lf, uint64_t position);

/* kvp_log_file_cut keeps so many bytes of what was read, and opens the last file for writing;
 * without files there is none before the first kvp_log_file_turn. SYS, logged. */
kvp_err_t kvp_log_file_cut(kvp_log_file_t *lf, uint64_t kept) KVP_MUST_USE;

#define KVP_LOG_NAME_BYTES 32u

/* kvp_log_file_find returns the file and the byte of the kept part's end. kvp_log_file_set_aside
 * cuts the log there, as kvp_log_file_cut does, and keeps the removed part in files of other names,
 * of which the first is name_out; the log then counts as possibly lacking its end. SYS, logged. */
void kvp_log_file_find(const kvp_log_file_t *lf, uint64_t kept, char name_out[KVP_LOG_NAME_BYTES], uint64_t *at_out);
kvp_err_t kvp_log_file_set_aside(kvp_log_file_t *lf, uint64_t kept, char name_out[KVP_LOG_NAME_BYTES]) KVP_MUST_USE;

/* kvp_log_file_write appends. An error (SYS, see errno) leaves the log as it was: the same bytes
 * may be written again. kvp_log_file_sync: written bytes survive a machine failure; legal beside a
 * write. An error: bytes written since the last sync may be lost. kvp_log_file_turn continues in a
 * new file; the previous file is synced first, and has_lost is set if that failed.
 * kvp_log_file_forget: files that end at or before the position leave the log. kvp_log_file_remove
 * deletes them from the disk, which may take long: the file system frees megabytes. Legal beside
 * all other calls. */
kvp_err_t kvp_log_file_write(kvp_log_file_t *lf, const void *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_log_file_sync(const kvp_log_file_t *lf) KVP_MUST_USE;
kvp_err_t kvp_log_file_turn(kvp_log_file_t *lf) KVP_MUST_USE;
void kvp_log_file_forget(kvp_log_file_t *lf, uint64_t before, kvp_log_gone_t *gone_out);
void kvp_log_file_remove(const kvp_log_file_t *lf, const kvp_log_gone_t *gone);
uint64_t kvp_log_file_bytes(const kvp_log_file_t *lf); /* of all files */

#endif
