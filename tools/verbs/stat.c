/* SPDX-License-Identifier: Apache-2.0
 * The verb stat: a screen with the pool's state. --all prints every figure of the library's JSON, and --json
 * prints this JSON itself. The layout of --all follows the shape of the JSON: an object becomes a section, an
 * array of objects becomes a table. */
#include "tools/base/cli.h"

#include "tools/base/http.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"
#include "tools/base/report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CELL_MAX 160
#define COLUMNS_MAX 32

static bool
ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static const char *
cell_text(const char *name, struct json_object *value, char dst[CELL_MAX])
{
    char bytes[KVP_BYTES_TEXT_MAX];
    if (ends_with(name, "_bytes") && json_object_is_type(value, json_type_int))
        snprintf(dst, CELL_MAX, "%s", kvp_format_bytes(json_object_get_uint64(value), bytes));
    else if (value == NULL)
        snprintf(dst, CELL_MAX, "-");
    else /* a text from a node is escaped, so that it cannot move the terminal's cursor */
        kvp_cli_quote(json_object_get_string(value), strlen(json_object_get_string(value)), dst, CELL_MAX);
    return dst;
}

static bool
is_table(struct json_object *value)
{
    return json_object_is_type(value, json_type_array) && json_object_array_length(value) > 0 &&
           json_object_is_type(json_object_array_get_idx(value, 0), json_type_object);
}

/* column_names takes the names of the scalars in the first row, because all rows of an array have the same members. */
static size_t
column_names(struct json_object *first, const char *names[COLUMNS_MAX])
{
    size_t n = 0;
    json_object_object_foreach(first, name, value)
    {
        const bool is_nested =
            json_object_is_type(value, json_type_object) || json_object_is_type(value, json_type_array);
        if (!is_nested && n < COLUMNS_MAX) names[n++] = name;
    }
    return n;
}

/* Prints a title, with an empty line before it unless it is the first one. */
static void
print_title(const char *title, bool *is_first)
{
    printf("%s%s\n", *is_first ? "" : "\n", title);
    *is_first = false;
}

static void
print_table(const char *title, struct json_object *rows, bool *is_first)
{
    const char *names[COLUMNS_MAX];
    size_t width[COLUMNS_MAX];
    char text[CELL_MAX];
    struct json_object *value;
    const size_t n = column_names(json_object_array_get_idx(rows, 0), names), rows_n = json_object_array_length(rows);
    for (size_t c = 0; c < n; c++) {
        width[c] = strlen(names[c]);
        for (size_t r = 0; r < rows_n; r++) {
            value = kvp_json_get(json_object_array_get_idx(rows, r), names[c]);
            width[c] = kvp_max_u64(width[c], strlen(cell_text(names[c], value, text)));
        }
    }
    print_title(title, is_first);
    putchar(' ');
    for (size_t c = 0; c < n; c++)
        printf(" %-*s", (int)width[c], names[c]);
    putchar('\n');
    for (size_t r = 0; r < rows_n; r++) {
        putchar(' ');
        for (size_t c = 0; c < n; c++) {
            value = kvp_json_get(json_object_array_get_idx(rows, r), names[c]);
            printf(" %-*s", (int)width[c], cell_text(names[c], value, text));
        }
        putchar('\n');
    }
}

static void
print_section(const char *title, struct json_object *section, bool *is_first)
{
    char text[CELL_MAX];
    size_t width = 0;
    if (title != NULL) print_title(title, is_first);
    json_object_object_foreach(section, name, value)
    {
        (void)value;
        width = kvp_max_u64(width, strlen(name));
    }
    json_object_object_foreach(section, key, scalar)
    {
        const bool is_nested = json_object_is_type(scalar, json_type_object) || is_table(scalar);
        const bool is_empty = json_object_is_type(scalar, json_type_array) && json_object_array_length(scalar) == 0;
        if (!is_nested && !is_empty) printf("  %-*s  %s\n", (int)width, key, cell_text(key, scalar, text));
    }
    json_object_object_foreach(section, child, nested)
    {
        if (json_object_is_type(nested, json_type_object)) print_section(child, nested, is_first);
        if (is_table(nested)) print_table(child, nested, is_first);
    }
}

static double
percent_of(uint64_t some, uint64_t all)
{
    return all == 0 ? 0 : 100.0 * (double)some / (double)all;
}

static void
print_ratio(const char *when, struct json_object *ratio)
{
    if (ratio != NULL)
        printf("hit ratio  %.1f %% of what was asked for in the %s\n", 100 * json_object_get_double(ratio), when);
}

static void
print_hits(struct json_object *pool)
{
    struct json_object *counters = kvp_json_get(pool, "counters");
    const uint64_t known = kvp_json_get_u64(counters, "used"), gets = kvp_json_get_u64(counters, "gets") + known;
    const uint64_t got = gets - kvp_min_u64(gets, kvp_json_get_u64(counters, "get_misses"));
    const uint64_t exists = kvp_json_get_u64(counters, "exists"),
                   asked = exists + kvp_json_get_u64(counters, "lookups");
    const uint64_t found = kvp_json_get_u64(counters, "lookup_found") + exists -
                           kvp_min_u64(exists, kvp_json_get_u64(counters, "exists_misses"));
    print_ratio("last minute", kvp_json_get(pool, "hit_ratio_minute"));
    print_ratio("last hour", kvp_json_get(pool, "hit_ratio_hour"));
    printf("hit ratio  ");
    if (gets == 0 && asked == 0) printf("nothing was asked for yet");
    if (gets > 0) printf("gets %.1f %% of %" PRIu64, percent_of(got, gets), gets);
    if (gets > 0 && asked > 0) printf(", ");
    if (asked > 0) printf("look-ups %.1f %% of %" PRIu64, percent_of(found, asked), asked);
    putchar('\n');
}

/* Prints a line about a fault; the first such line begins with "wrong". */
static void __attribute__((format(printf, 2, 3))) print_wrong(size_t *lines, const char *fmt, ...)
{
    va_list args;
    printf("%-11s", *lines == 0 ? "wrong" : "");
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    *lines += 1;
}

/* Prints a node's fault. If the master is a standby, transports are no fault: the client then connects to no node. */
static void
print_wrong_of_node(size_t *lines, struct json_object *segment, bool is_standby)
{
    char name[CELL_MAX];
    const char *state = kvp_json_get_text(segment, "state"), *node = kvp_json_get_text(segment, "node");
    kvp_cli_quote(node, strlen(node), name, sizeof name);
    if (strcmp(state, "lost") == 0) return; /* no line: the master's own list of faults contains lost nodes */
    if (strcmp(state, "up") != 0)
        print_wrong(lines, "node %s is %s: it takes no new objects", name, state);
    else if (!is_standby && strcmp(kvp_json_get_text(segment, "transport"), "none") == 0)
        print_wrong(lines, "no transport leads from here to node %s: kvpool doctor says why", name);
}

/* print_wrong_of_pool prints the causes of a degraded pool that the master reports. */
static void
print_wrong_of_pool(size_t *lines, struct json_object *why)
{
    for (size_t i = 0; i < json_object_array_length(why); i++) {
        char text[512];
        const char *said = kvp_json_get_text(json_object_array_get_idx(why, i), "text");

        kvp_cli_quote(said, strlen(said), text, sizeof text);
        print_wrong(lines, "%s", text);
    }
}

static void
print_tiers(struct json_object *tiers)
{
    char used[KVP_BYTES_TEXT_MAX], size[KVP_BYTES_TEXT_MAX];
    uint64_t used_bytes = 0, size_bytes = 0, objects = 0;
    for (size_t i = 0; i < json_object_array_length(tiers); i++) {
        struct json_object *tier = json_object_array_get_idx(tiers, i);
        used_bytes += kvp_json_get_u64(tier, "used_bytes");
        size_bytes += kvp_json_get_u64(tier, "size_bytes");
        objects += kvp_json_get_u64(tier, "objects");
    }
    if (size_bytes > 0)
        printf("SSD        %s of %s by %" PRIu64 " objects that are not in memory\n",
               kvp_format_bytes(used_bytes, used), kvp_format_bytes(size_bytes, size), objects);
}

static void
print_what_is_wrong(struct json_object *pool, struct json_object *segments)
{
    char bytes[KVP_BYTES_TEXT_MAX];
    size_t lines = 0;
    struct json_object *counters = kvp_json_get(pool, "counters");
    const uint64_t quarantine = kvp_json_get_u64(pool, "quarantine_bytes"),
                   refused = kvp_json_get_u64(counters, "put_no_space"),
                   breaches = kvp_json_get_u64(counters, "protocol_errors");
    print_wrong_of_pool(&lines, kvp_json_get(pool, "why"));
    for (size_t i = 0; i < json_object_array_length(segments); i++)
        print_wrong_of_node(&lines, json_object_array_get_idx(segments, i),
                            json_object_get_boolean(kvp_json_get(pool, "is_standby")));
    if (quarantine > 0)
        print_wrong(&lines, "%s are in quarantine: a client died or stopped during a put, and may still write there",
                    kvp_format_bytes(quarantine, bytes));
    if (refused > 0) print_wrong(&lines, "puts refused for want of space: %" PRIu64, refused);
    if (breaches > 0) print_wrong(&lines, "connections closed for a breach of the protocol: %" PRIu64, breaches);
    if (lines == 0) print_wrong(&lines, "nothing");
}

/* print_some_columns prints the named columns of the rows as a table; nothing if there are no rows. */
static void
print_some_columns(const char *title, struct json_object *from, const char *const *names, size_t n)
{
    bool is_first = false;
    struct json_object *rows = json_object_new_array();
    for (size_t i = 0; i < json_object_array_length(from); i++) {
        struct json_object *row = json_object_new_object();
        for (size_t c = 0; c < n; c++)
            json_object_object_add(row, names[c],
                                   json_object_get(kvp_json_get(json_object_array_get_idx(from, i), names[c])));
        json_object_array_add(rows, row);
    }
    if (is_table(rows)) print_table(title, rows, &is_first);
    json_object_put(rows);
}

/* Returns whether the masters are elected through etcd. A master without etcd is the only one, and has no id. */
static bool
is_elected(struct json_object *masters)
{
    return json_object_array_length(masters) > 0 &&
           kvp_json_get_text(json_object_array_get_idx(masters, 0), "id")[0] != '\0';
}

/* Takes away the transports to lost nodes, which the library would use if the nodes were there: a table shows "-". */
static void
hide_lost_transports(struct json_object *segments)
{
    for (size_t i = 0; i < json_object_array_length(segments); i++) {
        struct json_object *segment = json_object_array_get_idx(segments, i);

        if (strcmp(kvp_json_get_text(segment, "state"), "lost") == 0)
            json_object_object_add(segment, "transport", NULL);
    }
}

static void
print_screen(struct json_object *stat)
{
    char used[KVP_BYTES_TEXT_MAX], size[KVP_BYTES_TEXT_MAX];
    struct json_object *pool = kvp_json_get(stat, "pool"), *segments = kvp_json_get(stat, "segments"),
                       *tiers = kvp_json_get(stat, "tiers"), *masters = kvp_json_get(stat, "masters");
    const uint64_t used_bytes = kvp_json_get_u64(pool, "used_bytes"), size_bytes = kvp_json_get_u64(pool, "size_bytes");
    const size_t nodes = json_object_array_length(segments);
    size_t up = 0;
    for (size_t i = 0; i < nodes; i++)
        up += strcmp(kvp_json_get_text(json_object_array_get_idx(segments, i), "state"), "up") == 0;
    if (json_object_get_boolean(kvp_json_get(pool, "is_standby")) && kvp_json_get_u64(pool, "term") == 0)
        printf("master     a standby, which has heard of no leader yet\n");
    else if (json_object_get_boolean(kvp_json_get(pool, "is_standby")))
        printf("master     a standby, of term %" PRIu64 ": it shows the state by the leader's log\n",
               kvp_json_get_u64(pool, "term"));
    printf("nodes      %zu of %zu up\n", up, nodes);
    printf("memory     %s of %s used (%.1f %%)\n", kvp_format_bytes(used_bytes, used),
           kvp_format_bytes(size_bytes, size), percent_of(used_bytes, size_bytes));
    print_tiers(tiers);
    printf("objects    %" PRIu64 ", and %" PRIu64 " puts under way\n", kvp_json_get_u64(pool, "objects"),
           kvp_json_get_u64(pool, "attempts"));
    print_hits(pool);
    print_what_is_wrong(pool, segments);
    static const char *const of_nodes[] = {"node", "state", "transport", "used_bytes", "size_bytes", "objects", "addr"};
    static const char *const of_masters[] = {"address", "state", "lag_bytes", "id"};
    hide_lost_transports(segments);
    print_some_columns("nodes", segments, of_nodes, KVP_ARRAY_LEN(of_nodes));
    if (is_elected(masters)) print_some_columns("masters", masters, of_masters, KVP_ARRAY_LEN(of_masters));
}

static void
print_stat(struct json_object *stat, const kvp_cli_common_t *common, bool wants_all)
{
    bool is_first = true;
    if (common->is_json) {
        kvp_json_line(stat, stdout);
        return;
    }
    if (wants_all)
        print_section(NULL, stat, &is_first);
    else
        print_screen(stat);
    json_object_put(stat);
}

/* ---- lists of masters and nodes */
/* Gives each node the state and the bytes of its SSD tier, whose name is that of the node with "/ssd" behind it. */
static void
join_tiers(struct json_object *nodes, struct json_object *tiers)
{
    for (size_t i = 0; i < json_object_array_length(nodes); i++) {
        struct json_object *node = json_object_array_get_idx(nodes, i);
        char name[CELL_MAX];

        snprintf(name, sizeof name, "%s/ssd", kvp_json_get_text(node, "node"));
        for (size_t k = 0; k < json_object_array_length(tiers); k++) {
            struct json_object *tier = json_object_array_get_idx(tiers, k);

            if (strcmp(kvp_json_get_text(tier, "node"), name) != 0) continue;
            json_object_object_add(node, "ssd", json_object_get(kvp_json_get(tier, "state")));
            json_object_object_add(node, "ssd_used_bytes", json_object_get(kvp_json_get(tier, "used_bytes")));
            json_object_object_add(node, "ssd_size_bytes", json_object_get(kvp_json_get(tier, "size_bytes")));
        }
    }
}

int
kvp_cli_list_part(const kvp_cli_verb_t *verb, kvp_cli_common_t *common, const char *part)
{
    static const char *const of_masters[] = {"address", "state", "lag_bytes", "id"};
    static const char *const of_nodes[] = {"node",    "state", "transport",      "used_bytes",     "size_bytes",
                                           "objects", "ssd",   "ssd_used_bytes", "ssd_size_bytes", "addr"};
    const bool is_nodes = strcmp(part, "segments") == 0;
    struct json_object *stat = NULL, *rows;
    kvpool_t *pool = NULL;
    int code, err;

    common->state_only = common->masters_n == 1; /* a single named master is asked even if it does not lead */
    code = kvp_cli_open(verb, common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    err = kvp_json_stat(pool, 0, &stat);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, common, "ls", err);
    rows = kvp_json_get(stat, part);
    if (is_nodes) join_tiers(rows, kvp_json_get(stat, "tiers"));
    if (is_nodes && !common->is_json) hide_lost_transports(rows);
    if (common->is_json)
        kvp_json_line(json_object_get(rows), stdout); /* kvp_json_line releases this reference */
    else if (json_object_array_length(rows) == 0)
        printf("none\n");
    else if (is_nodes)
        print_some_columns("nodes", rows, of_nodes, KVP_ARRAY_LEN(of_nodes));
    else
        print_some_columns("masters", rows, of_masters, KVP_ARRAY_LEN(of_masters));
    json_object_put(stat);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}

int
kvp_cli_node(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    kvp_cli_common_t common;
    int first;
    const int code = kvp_cli_parse(verb, NULL, 0, argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    if (argc - first != 1 || strcmp(argv[first], "ls") != 0)
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "say what: ls");
    return kvp_cli_list_part(verb, &common, "segments");
}

/* ---- the state of a conductor */
/* Returns a table row for a publisher of a conductor, with sums over its joins, which match its blocks with pools. */
static struct json_object *
publisher_row(struct json_object *service)
{
    static const char *const shown[] = {"instance_id", "tenant_id",    "dp_rank", "modelname",
                                        "state",       "staleness_ms", "blocks",  "events"};
    struct json_object *row = json_object_new_object(), *joins = kvp_json_get(service, "joins");
    const size_t joins_n = joins == NULL ? 0 : json_object_array_length(joins);
    uint64_t joined = 0, unjoined = 0;

    for (size_t i = 0; i < KVP_ARRAY_LEN(shown); i++)
        json_object_object_add(row, shown[i], json_object_get(kvp_json_get(service, shown[i])));
    for (size_t i = 0; i < joins_n; i++) {
        joined += kvp_json_get_u64(json_object_array_get_idx(joins, i), "joined");
        unjoined += kvp_json_get_u64(json_object_array_get_idx(joins, i), "unjoined");
    }
    json_object_object_add(row, "of_pools", joins_n == 0 ? NULL : json_object_new_uint64(joined));
    json_object_object_add(row, "unjoined", joins_n == 0 ? NULL : json_object_new_uint64(unjoined));
    return row;
}

static void
print_publishers(struct json_object *services)
{
    struct json_object *rows = json_object_new_array();
    bool is_first = true;

    for (size_t i = 0; i < json_object_array_length(services); i++)
        json_object_array_add(rows, publisher_row(json_object_array_get_idx(services, i)));
    if (is_table(rows))
        print_table("publishers", rows, &is_first);
    else
        printf("publishers  none is registered\n");
    json_object_put(rows);
}

static int
stat_conductor(const kvp_cli_verb_t *verb, const char *at, kvp_cli_common_t *common)
{
    struct json_object *services;
    const char *why = "the server there is no conductor; use the port of its --http";
    const kvp_err_t err = kvp_cli_http(at, "/services", NULL, &services, &why);

    if (err == KVP_INVALID) return kvp_cli_complain(verb, KVP_EXIT_USAGE, "\"%s\" is not HOST:PORT", at);
    if (err != KVP_OK || !json_object_is_type(services, json_type_array)) {
        json_object_put(services);
        snprintf(common->detail, sizeof common->detail, "no conductor answers at %s: %s", at, why);
        if (common->is_json) return kvp_cli_fail_why(verb, common, "", KVP_UNREACHABLE);
        return kvp_cli_complain(verb, KVP_EXIT_UNREACHABLE, "%s (UNREACHABLE)", common->detail);
    }
    if (common->is_json) {
        kvp_json_line(services, stdout); /* kvp_json_line releases the JSON object */
    } else {
        print_publishers(services);
        json_object_put(services);
    }
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}

int
kvp_cli_stat(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    bool wants_all = false, is_conductor = false;
    const char *conductor_http = KVP_CLI_CONDUCTOR;
    const kvp_cli_opt_t opts[] = {
        {"all", KVP_CLI_FLAG, &wants_all, NULL, "every figure of the pool, the tenant and this client", 0, 0},
        {"conductor", KVP_CLI_FLAG, &is_conductor, NULL, "what a conductor knows, instead of the pool", 0, 0},
        {"conductor-http", KVP_CLI_TEXT, &conductor_http, "HOST:PORT",
         "of the conductor (default " KVP_CLI_CONDUCTOR ")", 0, 0}};
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    struct json_object *stat = NULL;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code != KVP_EXIT_GO_ON) return code;
    if (is_conductor) return stat_conductor(verb, conductor_http, &common);
    common.state_only = common.masters_n == 1; /* a single named master is asked even if it does not lead */
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    int err = kvp_json_stat(pool, 0, &stat);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, "stat", err);
    print_stat(stat, &common, wants_all);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
