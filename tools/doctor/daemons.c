/* SPDX-License-Identifier: Apache-2.0
 * Looks at daemons from outside the pool: at the space on the disks of those of this machine, and at the HTTP ports
 * that
 * --http names. */
#include "tools/doctor/pool.h"

#include "tools/base/http.h"
#include "tools/base/json_out.h"

#include <glob.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define DISK_LOW (256ull << 20) /* space that the file system of a log should have left */

static KVP_PRINTF(3, 4) void note_wrong(kvp_doctor_facts_t *facts, const char *code, const char *fmt, ...)
{
    va_list ap;

    if (facts->wrong_n == KVP_DOCTOR_WRONG_MAX) return;
    snprintf(facts->wrong[facts->wrong_n].code, sizeof facts->wrong[0].code, "%s", code);
    va_start(ap, fmt);
    vsnprintf(facts->wrong[facts->wrong_n++].text, sizeof facts->wrong[0].text, fmt, ap);
    va_end(ap);
}

/* Examines an open file of a daemon, and returns whether its file system has too little space. The node allocates the
 * space of a tier file when it starts; of such a file only the part that is not allocated yet must fit. */
static bool
look_at_file(kvp_doctor_facts_t *facts, const char *file, const char *program)
{
    struct stat st;
    struct statvfs fs;
    char name[256] = "", left[KVP_MIB_TEXT_MAX];

    if (stat(file, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink == 0 || statvfs(file, &fs) != 0 ||
        readlink(file, name, sizeof name - 1) < 0)
        return false;
    const uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (strstr(name, "/kvpool.tier") != NULL ? st.st_size <= st.st_blocks * 512 + (off_t)bytes : bytes >= DISK_LOW)
        return false;
    note_wrong(facts, "disk_low", "the file system of %s, which %s writes, has only %s left", name, program,
               kvp_format_mib(bytes, left));
    return true;
}

void
kvp_doctor_look_at_disks(kvp_doctor_facts_t *facts)
{
    char program[256], path[64];
    glob_t processes, files;

    if (glob("/proc/[1-9]*/exe", GLOB_NOSORT, NULL, &processes) != 0) return;
    for (size_t i = 0; i < processes.gl_pathc; i++) {
        const char *exe = processes.gl_pathv[i];
        const ssize_t n = readlink(exe, program, sizeof program - 1);

        program[n < 0 ? 0 : n] = '\0';
        snprintf(path, sizeof path, "%.*s/fd/*", (int)(strlen(exe) - 4), exe);
        if (strstr(program, "/kvpool-") == NULL || glob(path, GLOB_NOSORT, NULL, &files) != 0) continue;
        for (size_t k = 0; k < files.gl_pathc && !look_at_file(facts, files.gl_pathv[k], program); k++)
            continue;
        globfree(&files);
    }
    globfree(&processes);
}

/* Asks a conductor for the engines that it does not reach. Other daemons have no such path. */
static void
ask_engines(kvp_doctor_facts_t *facts, const char *at)
{
    struct json_object *answer, *list;
    const char *why;
    const kvp_err_t err = kvp_cli_http(at, KVP_IS_CONDUCTOR, "/ready", NULL, &answer, &why, NULL);

    for (size_t i = err == KVP_OK ? kvp_json_get_list(answer, "unreachable", &list) : 0; i > 0; i--) {
        struct json_object *it = json_object_array_get_idx(list, i - 1);

        note_wrong(facts, "engine_unreachable", "the conductor at %s does not reach engine %s, %s", at,
                   kvp_json_get_text(it, "instance_id"), kvp_json_get_text(it, "unreachable"));
    }
    json_object_put(answer);
}

static void
ask_daemon(kvp_doctor_facts_t *facts, const char *at, bool is_named)
{
    const time_t before = time(NULL);
    struct json_object *answer;
    const char *why = "";
    time_t date;
    const kvp_err_t err = kvp_cli_http(at, KVP_MAY_NOTHING, "/health", NULL, &answer, &why, &date);
    const char *version = kvp_json_get_text(answer, "version");
    /* the two clocks are in whole seconds, so each of the two times may be up to a second later than it reads */
    const long least_s = date - time(NULL) - 1, most_s = date + 1 - before;

    /* a firewall may block the port, and that is no fault of the pool */
    if (err == KVP_UNREACHABLE && !is_named) return;
    if (err == KVP_UNREACHABLE || err == KVP_INVALID)
        note_wrong(facts, "http_unreachable", "no daemon answers at %s: %s", at,
                   err == KVP_INVALID ? "HOST:PORT is expected" : why);
    else if (kvp_json_get(answer, "status") == NULL)
        note_wrong(facts, "port_taken", "the port %s is in use, and not by a daemon of kvpool", at);
    else
        ask_engines(facts, at);
    if (version[0] != '\0' && strcmp(version, kvpool_version()) != 0)
        note_wrong(facts, "versions", "the daemon at %s is of version %s, this program of %s", at, version,
                   kvpool_version());
    if (date > 0 && (least_s > 0 || most_s < 0))
        note_wrong(facts, "clock",
                   "the clock of %s is between %+ld and %+ld s from this machine's: compare no times of logs", at,
                   least_s, most_s);
    json_object_put(answer);
}

void
kvp_doctor_ask_daemons(kvp_doctor_facts_t *facts, char *list, bool is_named)
{
    for (char *at = strsep(&list, ","); at != NULL; at = strsep(&list, ","))
        ask_daemon(facts, at, is_named);
}
