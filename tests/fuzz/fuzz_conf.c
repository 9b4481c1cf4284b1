/* SPDX-License-Identifier: Apache-2.0
 * The decoder of config files, with an option of each type, and the readers of sizes, times and addresses. Settings
 * that were taken must hold what their table promises. */
#include "common/daemon/conf.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const char *name;
    bool is_fast;
    uint64_t count;
    uint64_t memory_bytes;
    uint64_t lease_ttl_ns;
    kvp_hostport_t listen;
    int policy;
    kvp_strings_t ssd;
} settings_t;

static const kvp_opt_t opts[] = {
    {KVP_OPT(STRING, "name", settings_t, name), .help = ""},
    {KVP_OPT(BOOL, "fast", settings_t, is_fast), .help = ""},
    {KVP_OPT(U64, "count", settings_t, count), .max = 10, .help = ""},
    {KVP_OPT(BYTES, "memory", settings_t, memory_bytes), .help = ""},
    {KVP_OPT(DURATION_NS, "lease-ttl", settings_t, lease_ttl_ns), .help = ""},
    {KVP_OPT(HOSTPORT, "listen", settings_t, listen), .help = ""},
    {KVP_OPT(ENUM, "policy", settings_t, policy), .choices = "a|b", .help = ""},
    {KVP_OPT(STRINGS, "ssd", settings_t, ssd), .help = ""},
};
static const kvp_conf_spec_t spec = {.program = "fuzz", .summary = "", .opts = opts, .opt_count = KVP_ARRAY_LEN(opts)};

static void
check_settings(const settings_t *got)
{
    check(got->name == NULL || strlen(got->name) <= KVP_CONF_LINE_MAX);
    check(got->count <= 10);
    check(got->policy == 0 || got->policy == 1);
    check(memchr(got->listen.host, '\0', sizeof(got->listen.host)) != NULL);
    for (size_t i = 0; i < got->ssd.count; i++)
        check(strlen(got->ssd.items[i]) <= KVP_CONF_LINE_MAX);
}

/* An address that was taken is read back from what it is printed as. */
static void
check_hostport(const char *text)
{
    kvp_hostport_t at, again;
    char printed[KVP_HOSTPORT_TEXT_MAX];
    if (kvp_parse_hostport(text, &at) != KVP_OK) return;
    check(kvp_parse_hostport(kvp_format_hostport(&at, printed), &again) == KVP_OK);
    check(strcmp(at.host, again.host) == 0 && at.port == again.port);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *sink;
    if (sink == NULL) sink = fopen("/dev/null", "w");
    check(sink != NULL);

    kvp_conf_t conf;
    settings_t settings = {0};
    kvp_conf_init(&conf, &spec);
    conf.err = sink;
    if (kvp_conf_parse_text(&conf, (const char *)data, size, "input", &settings) == KVP_OK) check_settings(&settings);
    kvp_conf_fini(&conf);

    char *text = malloc(size + 1);
    check(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    uint64_t number;
    kvp_hostport_t list[4];
    size_t n;
    kvp_ignore(kvp_parse_bytes(text, &number), "any answer will do");
    kvp_ignore(kvp_parse_duration_ns(text, &number), "any answer will do");
    kvp_ignore(kvp_parse_hostports(text, list, KVP_ARRAY_LEN(list), &n), "any answer will do");
    check_hostport(text);
    free(text);
    return 0;
}
