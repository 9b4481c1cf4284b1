/* SPDX-License-Identifier: Apache-2.0
 * The files of the master's log: DIR/log/POSITION.log. Each file contains the log's bytes from its position on (16
 * hexadecimal digits), and begins with a base. Blocking calls; log_writer.c states which calls may be parallel. */
#ifndef KVP_MASTER_SHELL_LOG_FILE_H
#define KVP_MASTER_SHELL_LOG_FILE_H

#include "common/base.h"

#define KVP_LOG_FILES_MAX 64u /* limit of the files: at most two are needed, so a directory with more is not ours */

typedef struct {
    const char *dir; /* path of the data directory, for messages; borrowed */
    int dir_fd; /* directory DIR/log; -1 = closed */
    int fd; /* descriptor of the last file */
    uint64_t from[KVP_LOG_FILES_MAX]; /* positions of the files' first bytes, in rising order */
    uint32_t files;
    uint64_t end; /* log position after the last written byte */
    uint64_t found_bytes; /* bytes in all files when they were listed */
    /* flag: the log was written in another boot of the machine, or on another machine, so its end may be missing */
    bool may_lack_end;
    bool is_boot_due; /* flag: the first write must store this boot's id; starts in the same boot then trust the log */
    bool is_never_synced; /* flag: the user chose that the log is never synced */
    bool has_lost; /* flag: the previous file could not be synced when the last file was begun */
} kvp_log_file_t;

/* Files that do not belong to the log any more, by the positions of their first bytes. */
typedef struct {
    uint64_t from[KVP_LOG_FILES_MAX];
    uint32_t n;
} kvp_log_gone_t;

/* kvp_log_file_init makes the empty value. kvp_log_file_fini closes the files; legal on the empty value. */
void kvp_log_file_init(kvp_log_file_t *lf);
void kvp_log_file_fini(kvp_log_file_t *lf);

/* kvp_log_file_open makes DIR/log if it is missing, and lists its files. may_lack_end is set if the log was written
 * in another boot of the machine: a power loss may have taken its end. is_new: the log of an earlier pool is removed.
 * dir_fd and dir belong to the data directory, borrowed. SYS, LIMIT (too many files); logged. */
kvp_err_t kvp_log_file_open(kvp_log_file_t *lf, int dir_fd, const char *dir, bool is_new) KVP_MUST_USE;

/* kvp_log_file_look does the same as kvp_log_file_open without changes; SYS also if DIR/log is missing. */
kvp_err_t kvp_log_file_look(kvp_log_file_t *lf, int dir_fd, const char *dir) KVP_MUST_USE;

/* kvp_log_file_read passes all bytes to fn in order, in pieces, until fn returns an error, or until a file does not
 * continue the previous one. *read_out is the number of bytes. OK for any result of fn. SYS, logged; NOMEM. */
typedef kvp_err_t (*kvp_log_file_fn)(void *arg, const void *bytes, size_t len);
kvp_err_t kvp_log_file_read(const kvp_log_file_t *lf, kvp_log_file_fn fn, void *arg, uint64_t *read_out) KVP_MUST_USE;

/* kvp_log_file_pread reads bytes from the position on, at most to the end of the position's file; *n_out 0: no bytes
 * yet. NOT_FOUND: the position lies before all files. SYS. May run during a write. */
kvp_err_t kvp_log_file_pread(const kvp_log_file_t *lf, uint64_t at, void *bytes, size_t len, size_t *n_out)
    KVP_MUST_USE;

/* kvp_log_file_begin_at removes all files; the next file begins at the position. */
void kvp_log_file_begin_at(kvp_log_file_t *lf, uint64_t position);

/* kvp_log_file_cut truncates the log after `kept` of the bytes that were read, and opens the last file for writing.
 * If the log has no file, kvp_log_file_turn must make the first one. SYS, logged. */
kvp_err_t kvp_log_file_cut(kvp_log_file_t *lf, uint64_t kept) KVP_MUST_USE;

#define KVP_LOG_NAME_BYTES 32u

/* kvp_log_file_find returns the file, and the offset in it, at which the kept part ends. kvp_log_file_set_aside
 * truncates the log there, as kvp_log_file_cut does, and copies the removed part to files POSITION.damaged. name_out is
 * the first of them. The next start then finds may_lack_end. SYS, logged. */
void kvp_log_file_find(const kvp_log_file_t *lf, uint64_t kept, char name_out[KVP_LOG_NAME_BYTES], uint64_t *at_out);
kvp_err_t kvp_log_file_set_aside(kvp_log_file_t *lf, uint64_t kept, char name_out[KVP_LOG_NAME_BYTES]) KVP_MUST_USE;

/* kvp_log_file_write appends to the log. After an error (SYS, see errno) the log is as before, and the same bytes may
 * be written again. kvp_log_file_sync makes written bytes survive a crash of the machine; may run during a write.
 * After an error the bytes written since the last sync may be lost. kvp_log_file_turn continues in a new file; it
 * syncs the previous file first, and sets has_lost if that failed. kvp_log_file_forget removes the files that end at
 * or before the position from the log. kvp_log_file_remove deletes these from the disk, which may take long: the file
 * system frees megabytes. It may run during all other calls. */
kvp_err_t kvp_log_file_write(kvp_log_file_t *lf, const void *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_log_file_sync(const kvp_log_file_t *lf) KVP_MUST_USE;
kvp_err_t kvp_log_file_turn(kvp_log_file_t *lf) KVP_MUST_USE;
void kvp_log_file_forget(kvp_log_file_t *lf, uint64_t before, kvp_log_gone_t *gone_out);
void kvp_log_file_remove(const kvp_log_file_t *lf, const kvp_log_gone_t *gone);
uint64_t kvp_log_file_bytes(const kvp_log_file_t *lf); /* bytes of all files */

#endif
