/* SPDX-License-Identifier: Apache-2.0
 * Functions that all verbs share: exit codes, error messages, opening the pool, and allocation that ends the
 * program on failure. */
#include "tools/base/cli.h"

#include "tools/base/json_out.h"

#include "common/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int
kvp_cli_exit_code(int err)
{
    switch (err) {
    case KVPOOL_OK:
        return KVP_EXIT_DONE;
    case KVPOOL_UNREACHABLE:
    case KVPOOL_DISCONNECTED:
    case KVPOOL_VERSION:
    case KVPOOL_BUSY:
        return KVP_EXIT_UNREACHABLE;
    case KVPOOL_INVALID:
    case KVPOOL_BAD_KEY:
    case KVPOOL_BAD_PATTERN:
        return KVP_EXIT_USAGE;
    default:
        return KVP_EXIT_REFUSED;
    }
}

int
kvp_cli_complain(const kvp_cli_verb_t *verb, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "kvpool %s: ", verb->name);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return code;
}

int
kvp_cli_fail(const kvp_cli_verb_t *verb, const char *what, int err)
{
    return kvp_cli_complain(verb, kvp_cli_exit_code(err), "%s: %s (%s)", what, kvpool_strerror(err),
                            kvpool_errname(err));
}

static int
fail_json(const kvp_cli_verb_t *verb, int code, const char *why, int err)
{
    struct json_object *line = json_object_new_object();

    json_object_object_add(line, "error", json_object_new_string(kvpool_errname(err)));
    json_object_object_add(line, "detail", json_object_new_string(why));
    kvp_json_line(line, strcmp(verb->name, "get") == 0 ? stderr : stdout);
    return kvp_cli_flush(verb, code);
}

int
kvp_cli_fail_why(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const char *what, int err)
{
    if (common->is_json)
        return fail_json(verb, kvp_cli_exit_code(err),
                         common->detail[0] != '\0' ? common->detail : kvpool_strerror(err), err);
    if (common->detail[0] == '\0') return kvp_cli_fail(verb, what, err);
    return kvp_cli_complain(verb, kvp_cli_exit_code(err), "%s: %s (%s): %s", what, kvpool_strerror(err),
                            kvpool_errname(err), common->detail);
}

kvpool_opts_t
kvp_cli_call_opts(kvp_cli_common_t *common, uint32_t flags)
{
    return (kvpool_opts_t){
        .struct_size = sizeof(kvpool_opts_t),
        .flags = flags,
        .detail = common->detail,
        .detail_cap = sizeof(common->detail),
    };
}

int
kvp_cli_flush(const kvp_cli_verb_t *verb, int code)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0) return code;
    return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "standard output: %s", strerror(errno));
}

kvpool_conf_t
kvp_cli_conf(const kvp_cli_common_t *common)
{
    return (kvpool_conf_t){
        .struct_size = sizeof(kvpool_conf_t),
        .master = common->master,
        .cluster = common->cluster,
        .host_id = common->host_id,
        .transports = common->transports,
        .deadline_ms = (uint32_t)(common->deadline_ns / KVP_NS_PER_MS),
        .tenant = common->tenant,
        .locations = common->locations,
        .verify = common->verify,
        .state_only = common->state_only,
    };
}

int
kvp_cli_open(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t **pool_out)
{
    char detail[sizeof(common->detail)] = "";
    kvpool_conf_t conf = kvp_cli_conf(common);

    conf.detail = detail;
    conf.detail_cap = sizeof(detail);
    int err = kvpool_open(&conf, pool_out);
    if (err == KVPOOL_OK) return KVP_EXIT_DONE;
    const char *at = common->master != NULL ? common->master : "127.0.0.1:50051";
    /* A deadline that passes during the opening means that the master cannot be reached. */
    bool is_away = err == KVPOOL_DEADLINE || kvp_cli_exit_code(err) == KVP_EXIT_UNREACHABLE;
    const bool is_denied = err == KVPOOL_DENIED || err == KVPOOL_EXPIRED;
    const int code = is_denied           ? KVP_EXIT_REFUSED
                     : is_away           ? KVP_EXIT_UNREACHABLE
                     : detail[0] != '\0' ? KVP_EXIT_USAGE
                                         : kvp_cli_exit_code(err);
    if (common->is_json) return fail_json(verb, code, detail[0] != '\0' ? detail : kvpool_strerror(err), err);
    if (detail[0] == '\0')
        return kvp_cli_complain(verb, code, "%s: %s (%s)", at, kvpool_strerror(err), kvpool_errname(err));
    return is_away || is_denied ? kvp_cli_complain(verb, code, "%s (%s)", detail, kvpool_errname(err))
                                : kvp_cli_complain(verb, code, "%s", detail);
}

int
kvp_cli_apart(const kvp_cli_verb_t *verb, void (*fn)(const void *arg, void *answer), const void *arg, void *answer,
              size_t size)
{
    void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    if (shared == MAP_FAILED) kvp_cli_no_memory();
    memcpy(shared, answer, size);
    const pid_t pid = fork();
    if (pid == 0) {
        fn(arg, shared);
        fflush(stderr);
        _exit(0);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    memcpy(answer, shared, size);
    munmap(shared, size);
    if (pid < 0) return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "fork: %s", strerror(errno));
    if (status == 0) return KVP_EXIT_DONE;
    return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "the process that looked at devices ended by itself");
}

void
kvp_cli_no_memory(void)
{
    fprintf(stderr, "kvpool: out of memory\n");
    exit(KVP_EXIT_REFUSED);
}

void *
kvp_cli_alloc(size_t n, size_t size)
{
    void *p = calloc(n > 0 ? n : 1, size);
    if (p == NULL) kvp_cli_no_memory();
    return p;
}

void *
kvp_cli_realloc(void *p, size_t n, size_t size)
{
    void *grown = reallocarray(p, n, size);
    if (grown == NULL) kvp_cli_no_memory();
    return grown;
}
