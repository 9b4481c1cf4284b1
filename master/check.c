/* SPDX-License-Identifier: Apache-2.0
 * Checks a log. The core reads the log with the code that a start uses, and is then discarded; this file only reports
 * the result.
 *
 * Design notes. A damaged log must not look intact after a repair: the removed part may have recorded removals or
 * commits. So a repair also deletes the file with the boot id, which has the same effect as a power loss: the next
 * start asks the nodes for their objects. */
#include "master/check.h"

#include "common/clock.h"
#include "common/jsonw.h"
#include "common/log.h"
#include "master/core/api/master.h"
#include "master/shell/ident.h"
#include "master/shell/log_file.h"
#include "proto/jrec.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FINE 0
#define FOUND 1
#define FAILED 2

typedef enum { CLEAN, CUT, DAMAGED, OVERLAPPING, ANOTHER_POOL, LATER_VERSION } verdict_t;

#define ASKS "the next start asks the nodes for all their objects, except those that the log records as removed"

static const struct {
    const char *name, *advice;
    bool is_fine, is_set_aside;
} verdicts[] = {
    [CLEAN] = {"clean", "", true, false},
    [CUT] = {"cut",
             "it ends in the middle of a record, as after a kill: the next start cuts the incomplete record off, and "
             "asks the nodes",
             true, false},
    [DAMAGED] = {"damaged", ASKS ", and cuts off the rest of the log; --repair keeps a copy of the rest", false, true},
    [OVERLAPPING] = {"overlapping", "objects lie upon one another: " ASKS, false, false},
    [ANOTHER_POOL] = {"another_pool", "no master starts with it: give its own --data-dir, or begin anew with --repair",
                      false, true},
    [LATER_VERSION] = {"later_version", "a later version of kvpool-master wrote it: start that version", false, false},
};

static const char *const kinds[] = {
    [KVP_JREC_BASE] = "base_records",       [KVP_JREC_WHOLE] = "whole_records",
    [KVP_JREC_TERM] = "term_records",       [KVP_JREC_COMMIT] = "commit_records",
    [KVP_JREC_GONE] = "gone_records",       [KVP_JREC_TENANT] = "tenant_records",
    [KVP_JREC_SEGMENT] = "segment_records", [KVP_JREC_SEGMENT_OVER] = "segment_over_records",
    [KVP_JREC_OLDEST] = "oldest_records",   [KVP_JREC_DRAIN] = "drain_records",
};

typedef struct {
    kvp_ident_t ident;
    kvp_log_file_t file;
    uint32_t files; /* number of files when they were found */
    uint64_t from; /* log position of the first file's first byte */
    kvp_master_log_t log;
    verdict_t verdict;
    char at_file[KVP_LOG_NAME_BYTES]; /* file in which the valid log ends */
    uint64_t at; /* offset in at_file at which the valid log ends */
    char aside[KVP_LOG_NAME_BYTES]; /* file with the removed part; "" = none */
} check_t;

static kvp_err_t
restore_core(void *arg, const void *bytes, size_t len)
{
    return kvp_master_read_log(arg, bytes, len);
}

static verdict_t
judge_log(const check_t *c, uint64_t had)
{
    if (c->log.err == KVP_VERSION) return LATER_VERSION;
    if (c->log.err == KVP_INVALID) return ANOTHER_POOL;
    if (c->log.err != KVP_OK || had != c->file.found_bytes) return DAMAGED;
    if (c->log.is_overlapping) return OVERLAPPING;
    return c->log.end < had ? CUT : CLEAN;
}

static kvp_err_t
read_log(check_t *c)
{
    kvp_master_conf_t conf = {.digest_seed = c->ident.digest_seed,
                              .seed = kvp_random_u64(),
                              .secret = kvp_random_u64(),
                              .term = c->ident.term,
                              .had_master = true,
                              .has_journal = true,
                              .host_id = ""};
    kvp_master_t *core;
    uint64_t had = 0;
    kvp_err_t err;

    memcpy(conf.pool_id, c->ident.pool_id, sizeof conf.pool_id);
    err = kvp_master_create(&conf, kvp_boot_ns(), &core);
    if (err != KVP_OK) return err;
    err = kvp_log_file_read(&c->file, restore_core, core, &had);
    if (err == KVP_OK) {
        kvp_master_check_log(core, &c->log);
        c->verdict = judge_log(c, had);
        c->files = c->file.files;
        c->from = c->files > 0 ? c->file.from[0] : 0;
        kvp_log_file_find(&c->file, c->log.end, c->at_file, &c->at);
    }
    kvp_master_destroy(core);
    return err;
}

/* Writes one value of the result, as JSON or as a line of text. */
static void
say_u64(kvp_jsonw_t *w, const char *name, uint64_t value)
{
    if (w->out != NULL)
        kvp_jsonw_u64(w, name, value);
    else
        printf("%-20s %" PRIu64 "\n", name, value);
}

static void
say_text(kvp_jsonw_t *w, const char *name, const char *value)
{
    if (w->out != NULL)
        kvp_jsonw_text(w, name, value);
    else if (value[0] != '\0')
        printf("%-20s %s\n", name, value);
}

static void
write_result(const check_t *c, kvp_jsonw_t *w)
{
    say_text(w, "data_dir", c->ident.dir);
    say_text(w, "verdict", verdicts[c->verdict].name);
    say_text(w, "advice", verdicts[c->verdict].advice);
    say_u64(w, "files", c->files);
    say_u64(w, "log_bytes", c->file.found_bytes);
    say_u64(w, "from", c->from);
    say_u64(w, "to", c->from + c->log.end);
    say_text(w, "end_file", c->at_file);
    say_u64(w, "end_offset", c->at);
    say_u64(w, "unread_bytes", c->file.found_bytes - c->log.end);
    say_text(w, "set_aside", c->aside);
    say_u64(w, "is_of_another_boot", c->file.may_lack_end);
    say_u64(w, "is_whole", c->log.is_whole);
    say_u64(w, "term", c->log.term);
    say_u64(w, "objects", c->log.objects);
    say_u64(w, "segments", c->log.segments);
    say_u64(w, "tenants", c->log.tenants);
    for (size_t i = 1; i < KVP_ARRAY_LEN(kinds); i++)
        say_u64(w, kinds[i], c->log.records[i]);
}

static bool
report_result(const check_t *c, bool is_json)
{
    kvp_buf_t text;
    kvp_jsonw_t w;

    kvp_buf_init(&text, 0);
    kvp_jsonw_init(&w, is_json ? &text : NULL);
    if (is_json) kvp_jsonw_open(&w, NULL, '{');
    write_result(c, &w);
    if (is_json) kvp_jsonw_close(&w, '}');
    if (text.err != KVP_OK) kvp_panic("out of memory: a report");
    if (is_json) printf("%.*s\n", (int)text.len, (const char *)text.data);
    kvp_buf_fini(&text);
    if (fflush(stdout) == 0) return true;
    kvp_log_error("master", "cannot write to standard output: %m");
    return false;
}

int
kvp_check_run(const char *data_dir, bool is_repairing, bool is_json)
{
    check_t c = {.ident = {.dir_fd = -1, .lock_fd = -1}};
    kvp_err_t err;

    kvp_log_file_init(&c.file);
    err = kvp_ident_look(data_dir, &c.ident);
    if (err == KVP_OK) err = kvp_log_file_look(&c.file, c.ident.dir_fd, c.ident.dir);
    if (err == KVP_OK) err = read_log(&c);
    if (err == KVP_OK && is_repairing && verdicts[c.verdict].is_set_aside)
        err = kvp_log_file_set_aside(&c.file, c.log.end, c.aside);
    if (err == KVP_OK && !report_result(&c, is_json)) err = KVP_SYS;
    kvp_log_file_fini(&c.file);
    kvp_ident_close(&c.ident);
    return err != KVP_OK ? FAILED : verdicts[c.verdict].is_fine ? FINE : FOUND;
}
