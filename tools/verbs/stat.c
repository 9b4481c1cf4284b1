/* SPDX-License-Identifier: Apache-2.0
 * The verb stat: a screen with the pool's state. --all prints every figure of the library's JSON, and --json
 * prints this JSON itself. The layout of --all follows the shape of the JSON: an object becomes a section, an
 * array of objects becomes a table. */
#include "tools/base/cli.h"

#include "tools/base/http.h"
#include "tools/base/opts.h"
#include "tools/base/json_out.h"
#include "tools/base/report.h"
#include "tools/top/model.h"

#include "common/clock.h"
#include "common/trust/creds.h"
#include "proto/cause.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void
print_section(const char *title, struct json_object *section, bool *is_first)
{
    char text[KVP_CELL_TEXT_MAX];
    size_t width = 0;
    if (title != NULL) printf("%s%s\n", *is_first ? "" : "\n", title);
    *is_first &= title == NULL;
    json_object_object_foreach(section, name, value)
    {
        (void)value;
        width = kvp_max_u64(width, strlen(name));
    }
    json_object_object_foreach(section, key, scalar)
    {
        const bool is_nested = json_object_is_type(scalar, json_type_object) || kvp_report_is_rows(scalar);
        const bool is_empty = json_object_is_type(scalar, json_type_array) && json_object_array_length(scalar) == 0;
        if (!is_nested && !is_empty) printf("  %-*s  %s\n", (int)width, key, kvp_report_cell(key, scalar, text));
    }
    json_object_object_foreach(section, child, nested)
    {
        if (json_object_is_type(nested, json_type_object)) print_section(child, nested, is_first);
        if (kvp_report_is_rows(nested)) kvp_report_rows(child, nested, is_first);
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
    const double percent = 100 * json_object_get_double(ratio);
    if (ratio != NULL)
        printf("hit ratio  %s: %.1f %% (of tenants that look up: look-ups, and gets that missed)\n", when, percent);
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
    printf("hit ratio  since start: ");
    if (gets == 0 && asked == 0) printf("nothing was asked for yet");
    if (gets > 0) printf("gets %.1f %% of %" PRIu64, percent_of(got, gets), gets);
    if (gets > 0 && asked > 0) printf(", ");
    if (asked > 0) printf("look-ups %.1f %% of %" PRIu64, percent_of(found, asked), asked);
    putchar('\n');
}

/* Prints the three causes of most misses since the master began: of look-ups by the first missing key, and of gets. */
static void
print_misses(struct json_object *counters)
{
    static const char *const kinds[] = {"lookup_misses", "get_misses"};
    uint64_t n[KVP_CAUSES_N] = {0}, all = 0;
    char name[64];

    for (uint32_t cause = 0; cause < KVP_CAUSES_N; cause++) {
        for (size_t k = 0; k < KVP_ARRAY_LEN(kinds); k++) {
            snprintf(name, sizeof name, "%s_%s", kinds[k], kvp_cause_name(cause));
            n[cause] += kvp_json_get_u64(counters, name);
        }
        all += n[cause];
    }
    for (int shown = 0; shown < 3 && all > 0; shown++) {
        uint32_t most = 0;

        for (uint32_t cause = 1; cause < KVP_CAUSES_N; cause++)
            if (n[cause] > n[most]) most = cause;
        if (n[most] > 0)
            printf("%s%s %.1f %%", shown == 0 ? "misses     " : ", ", kvp_cause_name(most), percent_of(n[most], all));
        n[most] = 0;
    }
    if (all > 0) printf(" of %" PRIu64 ": kvpool why KEY\n", all);
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
print_what_is_wrong(struct json_object *stat)
{
    struct json_object *wrong = kvp_top_wrong(stat);
    const size_t n = json_object_array_length(wrong);
    char text[512];

    for (size_t i = 0; i < n; i++) {
        const char *said = json_object_get_string(json_object_array_get_idx(wrong, i));

        printf("%-11s%s\n", i == 0 ? "wrong" : "", kvp_cli_quote(said, strlen(said), text, sizeof text));
    }
    if (n == 0) printf("%-11snothing\n", "wrong");
    json_object_put(wrong);
}

/* print_some_columns prints the named columns of the rows as a table; nothing if there are no rows. */
static void
print_some_columns(const char *title, struct json_object *from, const char *const *names, size_t n)
{
    bool is_first = false;
    struct json_object *rows = kvp_json_pick(from, names, n);
    if (kvp_report_is_rows(rows)) kvp_report_rows(title, rows, &is_first);
    json_object_put(rows);
}

/* Returns whether the masters are elected through etcd. A master without etcd is the only one, and has no id. */
static bool
is_elected(struct json_object *masters)
{
    return json_object_array_length(masters) > 0 &&
           kvp_json_get_text(json_object_array_get_idx(masters, 0), "id")[0] != '\0';
}

/* Prints the free bytes that each tenant can use, if there are several tenants: a pool without free chunks is full for
 * all others. */
static void
print_chunks(struct json_object *counters)
{
    char owned[KVP_BYTES_TEXT_MAX], other[KVP_BYTES_TEXT_MAX];
    const uint64_t owners = kvp_json_get_u64(counters, "owners"),
                   draining = kvp_json_get_u64(counters, "draining_bytes");

    if (owners > 1)
        printf("%-11s%s are free in the chunks of %" PRIu64 " tenants, each for its tenant only; %s for any tenant\n",
               "", kvp_format_bytes(kvp_json_get_u64(counters, "owned_free_bytes"), owned), owners,
               kvp_format_bytes(kvp_json_get_u64(counters, "unowned_bytes"), other));
    if (draining > 0)
        printf("%-11s%s more are of nodes that are being drained, and take no new objects\n", "",
               kvp_format_bytes(draining, owned));
}

/* Prints how the ports of the master and of the nodes are protected: one line for all nodes with the same protection.
 */
static void
print_protection(const char *master, struct json_object *segments)
{
    const size_t n = json_object_array_length(segments);
    struct json_object *seen = json_object_new_object();
    char text[2 * KVP_PROTECTION_MAX];

    printf("protection master: %s\n",
           master[0] == '\0' ? "not known" : kvp_cli_quote(master, strlen(master), text, sizeof text));
    for (size_t i = 0; i < n; i++) {
        const char *said = kvp_json_get_text(json_object_array_get_idx(segments, i), "protection");

        json_object_object_add(seen, said, json_object_new_int64(json_object_get_int64(kvp_json_get(seen, said)) + 1));
    }
    json_object_object_foreach(seen, said, count)
    {
        printf("%-11s%" PRId64 " %s: %s\n", "", json_object_get_int64(count),
               json_object_get_int64(count) == 1 ? "node" : "nodes",
               said[0] == '\0' ? "not known" : kvp_cli_quote(said, strlen(said), text, sizeof text));
    }
    json_object_put(seen);
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
    print_chunks(kvp_json_get(pool, "counters"));
    print_tiers(tiers);
    printf("objects    %" PRIu64 ", and %" PRIu64 " puts under way\n", kvp_json_get_u64(pool, "objects"),
           kvp_json_get_u64(pool, "attempts"));
    print_hits(pool);
    print_misses(kvp_json_get(pool, "counters"));
    print_protection(kvp_json_get_text(pool, "protection"), segments);
    print_what_is_wrong(stat);
    static const char *const of_nodes[] = {"node", "state", "transport", "used_bytes", "size_bytes", "objects", "addr"};
    static const char *const of_masters[] = {"address", "state", "lag_bytes", "id"};
    kvp_top_mark_lost(segments);
    kvp_top_mark_away(masters);
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
/* Prints, as sentences, what a finished or running drain has evicted or lost. */
static void
print_drain_cost(struct json_object *row)
{
    const uint64_t evicted = kvp_json_get_u64(row, "evicted_objects"), on_ssd = kvp_json_get_u64(row, "ssd_objects");

    if (evicted > 0) printf("%" PRIu64 " objects of the pool were evicted for it. ", evicted);
    if (on_ssd > 0) printf("%" PRIu64 " objects on its SSD cannot be read now. ", on_ssd);
    if (evicted + on_ssd == 0) printf("No object is lost with it. ");
}

/* Prints the nodes, and after them a line for each node that is being drained. */
static void
print_nodes(struct json_object *rows)
{
    static const char *const shown[] = {"node",           "state",          "transport", "used_bytes",
                                        "size_bytes",     "objects",        "evictions", "ssd",
                                        "ssd_used_bytes", "ssd_size_bytes", "addr"};

    print_some_columns("nodes", rows, shown, KVP_ARRAY_LEN(shown));
    for (size_t i = 0; i < json_object_array_length(rows); i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        const char *why = kvp_json_get_text(row, "waits_for");
        char moved[KVP_BYTES_TEXT_MAX];

        if (strcmp(kvp_json_get_text(row, "drain"), "none") == 0) continue;
        if (strcmp(kvp_json_get_text(row, "state"), "away (drained)") == 0) {
            printf("%s is away. It was drained: its memory had no object any more. ", kvp_json_get_text(row, "node"));
            print_drain_cost(row);
            printf("Start it, then: kvpool node undrain %s\n", kvp_json_get_text(row, "node"));
            continue;
        }
        printf("%s: %s; left %" PRIu64 " objects and %" PRIu64 " on its SSD alone, moved %" PRIu64
               " (%s), evicted %" PRIu64 ", stuck %" PRIu64 "%s%s\n",
               kvp_json_get_text(row, "node"),
               strcmp(kvp_json_get_text(row, "drain"), "done") == 0 ? "drained" : "is being drained",
               kvp_json_get_u64(row, "objects"), kvp_json_get_u64(row, "left_ssd_objects"),
               kvp_json_get_u64(row, "moved_objects"), kvp_format_bytes(kvp_json_get_u64(row, "moved_bytes"), moved),
               kvp_json_get_u64(row, "evicted_objects"), kvp_json_get_u64(row, "stuck_objects"),
               *why != '\0' ? ": " : "", why);
    }
}

int
kvp_cli_list_part(const kvp_cli_verb_t *verb, kvp_cli_common_t *common, const char *part)
{
    static const char *const of_masters[] = {"address", "state", "lag_bytes", "id"};
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
    if (is_nodes) kvp_top_join_tiers(rows, kvp_json_get(stat, "tiers"));
    if (is_nodes && !common->is_json) kvp_top_mark_lost(rows);
    if (!is_nodes && !common->is_json) kvp_top_mark_away(rows);
    if (common->is_json)
        kvp_json_line(json_object_get(rows), stdout); /* kvp_json_line releases this reference */
    else if (json_object_array_length(rows) == 0)
        printf("none\n");
    else if (is_nodes)
        print_nodes(rows);
    else
        print_some_columns("masters", rows, of_masters, KVP_ARRAY_LEN(of_masters));
    json_object_put(stat);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
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
    if (kvp_report_is_rows(rows))
        kvp_report_rows("publishers", rows, &is_first);
    else
        printf("publishers  none is registered\n");
    json_object_put(rows);
}

static int
stat_conductor(const kvp_cli_verb_t *verb, const char *at, kvp_cli_common_t *common)
{
    struct json_object *services;
    const char *why = "the server there is no conductor; use the port of its --http";
    const kvp_err_t err = kvp_cli_http(at, KVP_IS_CONDUCTOR, "/services", NULL, &services, &why, NULL);

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

/* ---- lines for pipes */
/* Prints the figures as one line: pairs of name and value, or JSON. Releases the figures. */
static void
print_watch_line(struct json_object *figures, const kvp_cli_common_t *common)
{
    const char *between = "";
    char text[1024];

    if (common->is_json) {
        kvp_json_line(figures, stdout); /* kvp_json_line releases the JSON object */
        return;
    }
    json_object_object_foreach(figures, name, value)
    {
        const char *said = value == NULL ? "" : json_object_get_string(value);
        const bool is_plain = said[0] != '\0' && said[strcspn(said, " =\"")] == '\0';

        for (const char *c = kvp_cli_quote(said, strlen(said), text, sizeof text); *c != '\0'; c++)
            if (*c == '"') text[c - text] = '\'';
        if (value != NULL) printf("%s%s=%s%s%s", between, name, is_plain ? "" : "\"", text, is_plain ? "" : "\"");
        if (value != NULL) between = " ";
    }
    putchar('\n');
    json_object_put(figures);
}

/* Returns the figures of a line, which begin with the time. */
static struct json_object *
watch_figures(struct json_object *before, struct json_object *now, int err)
{
    struct json_object *figures = json_object_new_object(), *model;
    char at[32];
    struct timespec ts;
    struct tm tm;

    clock_gettime(CLOCK_REALTIME, &ts);
    strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&ts.tv_sec, &tm));
    json_object_object_add(figures, "time", json_object_new_string(at));
    if (err != KVPOOL_OK) {
        json_object_object_add(figures, "error", json_object_new_string(kvpool_errname(err)));
        json_object_object_add(figures, "detail", json_object_new_string(kvpool_strerror(err)));
        return figures;
    }
    model = kvp_top_model(before, now);
    json_object_object_foreach(kvp_json_get(model, "head"), name, value)
        json_object_object_add(figures, name, json_object_get(value));
    if (json_object_array_length(kvp_json_get(model, "wrong")) > 0)
        json_object_object_add(figures, "why",
                               json_object_get(json_object_array_get_idx(kvp_json_get(model, "wrong"), 0)));
    json_object_put(model);
    return figures;
}

/* Prints a line each interval until standard output is closed. If the master does not answer, the next interval asks
 * again. */
static int
watch_pool(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, kvpool_t *pool, uint64_t interval_ns)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    struct json_object *before = NULL, *now = NULL;
    int err = kvp_json_stat(pool, 0, &before);

    for (uint64_t due = kvp_now_ns() + interval_ns;; due = kvp_max_u64(due + interval_ns, kvp_now_ns())) {
        for (uint64_t at; (at = kvp_now_ns()) < due && out.revents == 0;)
            (void)poll(&out, 1, (int)((due - at) / KVP_NS_PER_MS) + 1);
        if ((out.revents & (POLLERR | POLLNVAL)) != 0) break; /* the reader of the pipe has closed its end */
        err = kvp_json_stat(pool, 0, &now);
        print_watch_line(watch_figures(before, now, err), common);
        if (fflush(stdout) != 0 && errno == EPIPE) break;
        if (ferror(stdout)) return kvp_cli_flush(verb, KVP_EXIT_REFUSED);
        if (err != KVPOOL_OK) continue;
        json_object_put(before);
        before = now;
    }
    json_object_put(before);
    return KVP_EXIT_DONE;
}

int
kvp_cli_stat(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    bool wants_all = false, is_conductor = false;
    uint64_t watch_ns = 0;
    const char *conductor_http = KVP_CLI_CONDUCTOR;
    const kvp_cli_opt_t opts[] = {
        {"all", KVP_CLI_FLAG, &wants_all, NULL, "every figure of the pool, the tenant and this client", 0, 0},
        {"watch", KVP_CLI_PERIOD, &watch_ns, "TIME]", "a line of rates each interval (default 1s), until interrupted",
         100000000, 3600 * KVP_NS_PER_S},
        {"conductor", KVP_CLI_FLAG, &is_conductor, NULL, "what a conductor knows, instead of the pool", 0, 0},
        {"conductor-http", KVP_CLI_TEXT, &conductor_http, "[https://]HOST:PORT",
         "of the conductor (default " KVP_CLI_CONDUCTOR ")", 0, 0}};
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    struct json_object *stat = NULL;
    int first;
    int code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);
    if (code != KVP_EXIT_GO_ON) return code;
    if (watch_ns > 0 && (wants_all || is_conductor))
        return kvp_cli_complain(verb, KVP_EXIT_USAGE, "--watch is not for --all and --conductor");
    if (is_conductor) return stat_conductor(verb, conductor_http, &common);
    common.state_only = common.masters_n == 1; /* a single named master is asked even if it does not lead */
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    if (watch_ns > 0) {
        code = watch_pool(verb, &common, pool, watch_ns);
        kvpool_free(pool);
        return code;
    }
    int err = kvp_json_stat(pool, 0, &stat);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, "stat", err);
    print_stat(stat, &common, wants_all);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
