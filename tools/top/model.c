/* SPDX-License-Identifier: Apache-2.0
 * See model.h. */
#include "tools/top/model.h"

#include "tools/base/json_out.h"
#include "tools/base/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define TAKE_OVER_MS 15000u /* time after a change of the leader in which living clients connect again */
#define NAME_MAX_BYTES 600 /* a name of 128 bytes, each escaped, and its segment's ending */

const char *const kvp_top_tables[] = {"nodes", "masters", "tenants", "calls", "transports", NULL};

/* ---- metrics */
/* Copies the value of the label to dst, without escapes. Returns false if the line has no such label. */
static bool
copy_label(const char *line, const char *label, char dst[NAME_MAX_BYTES])
{
    char wanted[32];
    size_t n = 0;

    snprintf(wanted, sizeof wanted, "%s=\"", label);
    const char *at = strstr(line, wanted);
    if (at == NULL) return false;
    for (at += strlen(wanted); *at != '"'; at++) {
        if (*at == '\\') at++;
        if (*at == '\0' || n + 1 == NAME_MAX_BYTES) return false;
        dst[n++] = at[-1] == '\\' && *at == 'n' ? '\n' : *at;
    }
    dst[n] = '\0';
    return true;
}

/* Returns the member of that name; makes it if it does not exist. */
static struct json_object *
member_of(struct json_object *of, const char *name, struct json_object *(*make)(void))
{
    struct json_object *found = kvp_json_get(of, name);

    if (found == NULL) json_object_object_add(of, name, found = make());
    return found;
}

static void
read_line(const char *line, const char *value, struct json_object *calls, struct json_object *tenants)
{
    static const char *const figures[][2] = {
        {"tenant_objects{", "objects"}, {"tenant_used_bytes{", "used_bytes"}, {"tenant_chunk_bytes{", "chunk_bytes"}};
    char name[NAME_MAX_BYTES], le[NAME_MAX_BYTES];
    const char *kind = line + strlen("kvpool_master_");
    const double number = strtod(value, NULL);

    if (strncmp(kind, "call_seconds_bucket{", 20) == 0 && copy_label(line, "call", name) &&
        copy_label(line, "le", le)) {
        struct json_object *buckets = member_of(calls, name, json_object_new_array);

        json_object_array_add(buckets, json_object_new_double(strtod(le, NULL)));
        json_object_array_add(buckets, json_object_new_double(number));
    }
    if (strncmp(kind, "hit_ratio{", 10) == 0 && copy_label(line, "tenant", name) && name[0] != '\0')
        json_object_object_add(member_of(tenants, name, json_object_new_object),
                               strstr(line, "window=\"1h\"") != NULL ? "hit_ratio_hour" : "hit_ratio_minute",
                               json_object_new_double(number));
    for (size_t i = 0; i < KVP_ARRAY_LEN(figures); i++)
        if (strncmp(kind, figures[i][0], strlen(figures[i][0])) == 0 && copy_label(line, "tenant", name))
            json_object_object_add(member_of(tenants, name, json_object_new_object), figures[i][1],
                                   json_object_new_uint64((uint64_t)fmax(0, fmin(number, 1e18))));
}

struct json_object *
kvp_top_metrics(const char *text)
{
    struct json_object *calls = json_object_new_object(), *tenants = json_object_new_object();
    struct json_object *metrics = json_object_new_object();
    char line[2 * NAME_MAX_BYTES];

    json_object_object_add(metrics, "calls", calls);
    json_object_object_add(metrics, "tenants", tenants);
    for (const char *at = text; *at != '\0';) {
        const size_t len = strcspn(at, "\n");
        const char *space;

        if (len < sizeof line && strncmp(at, "kvpool_master_", 14) == 0) {
            snprintf(line, sizeof line, "%.*s", (int)len, at);
            space = strrchr(line, ' ');
            if (space != NULL) read_line(line, space, calls, tenants);
        }
        at += len + (at[len] == '\n');
    }
    return metrics;
}

/* ---- rates */
static void
add_number(struct json_object *to, const char *name, double value)
{
    char text[32];

    snprintf(text, sizeof text, "%.6g", value);
    json_object_object_add(to, name, isfinite(value) ? json_object_new_double_s(value, text) : NULL);
}

static uint64_t
counter_of(struct json_object *sample, const char *name)
{
    return kvp_json_get_u64(kvp_json_get(kvp_json_get(sample, "pool"), "counters"), name);
}

/* Returns the seconds between two samples by the master's clock; NAN if there is no earlier sample, or the samples are
 * of different masters. */
static double
seconds_between(struct json_object *before, struct json_object *now)
{
    struct json_object *a = kvp_json_get(before, "pool"), *b = kvp_json_get(now, "pool");
    const uint64_t from = kvp_json_get_u64(a, "uptime_ms"), to = kvp_json_get_u64(b, "uptime_ms");

    if (a == NULL || to <= from || kvp_json_get_u64(a, "term") != kvp_json_get_u64(b, "term")) return NAN;
    return (double)(to - from) / 1e3;
}

/* Returns the rise of the counter, or of the sum of two counters. */
static double
rise_of(struct json_object *before, struct json_object *now, const char *name, const char *other)
{
    double rise = (double)counter_of(now, name) - (double)counter_of(before, name);

    if (other != NULL) rise += rise_of(before, now, other, NULL);
    return rise < 0 ? NAN : rise;
}

/* Returns the hit ratio between two samples: the share of the requested keys that the pool had; NAN = no key was
 * requested. */
static double
interval_ratio(struct json_object *before, struct json_object *now)
{
    const double asked = rise_of(before, now, "gets", "exists") + rise_of(before, now, "lookups", "used");
    const double missed = rise_of(before, now, "get_misses", "exists_misses") + rise_of(before, now, "lookups", NULL) -
                          rise_of(before, now, "lookup_found", NULL);

    return asked > 0 ? fmax(0, 1 - missed / asked) : NAN;
}

static void
add_rates(struct json_object *head, struct json_object *before, struct json_object *now, double seconds)
{
    static const char *const rates[][3] = {
        {"puts_per_s", "commits", NULL},
        {"put_bytes_per_s", "put_bytes", NULL},
        {"gets_per_s", "gets", "used"},
        {"get_bytes_per_s", "get_bytes", NULL},
        {"lookups_per_s", "lookups", "exists"},
        {"removals_per_s", "removes", "bumped"},
        {"evictions_per_s", "evictions", NULL},
        {"evicted_bytes_per_s", "evicted_bytes", NULL},
        {"ssd_written_bytes_per_s", "demoted_bytes", NULL},
        {"ssd_loaded_bytes_per_s", "staged_bytes", NULL},
        {"refused_puts_per_s", "put_no_space", "put_retry_after"},
    };
    const double evicted = rise_of(before, now, "evictions", NULL);

    for (size_t i = 0; i < KVP_ARRAY_LEN(rates); i++)
        add_number(head, rates[i][0], rise_of(before, now, rates[i][1], rates[i][2]) / seconds);
    add_number(head, "evicted_age_s",
               isnan(seconds) || evicted == 0 ? NAN : rise_of(before, now, "evicted_age_ms", NULL) / evicted / 1e3);
    add_number(head, "hit_ratio", isnan(seconds) ? NAN : interval_ratio(before, now));
}

/* ---- what is wrong */
static void KVP_PRINTF(2, 3) add_text(struct json_object *list, const char *fmt, ...)
{
    char text[2 * NAME_MAX_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    json_object_array_add(list, json_object_new_string(text));
}

/* Adds a line for a node's fault. With a standby as master, a missing transport is no fault, because the client
 * connects to no node. */
static void
add_wrong_of_node(struct json_object *list, struct json_object *segment, bool is_standby)
{
    const char *state = kvp_json_get_text(segment, "state"), *node = kvp_json_get_text(segment, "node");

    if (strcmp(state, "lost") == 0) return; /* the master's own list of problems has the lost nodes */
    if (strcmp(state, "connecting") == 0)
        add_text(list, "node %s is connecting: it takes objects when the master has compared it with its log", node);
    else if (strcmp(state, "up") != 0)
        add_text(list, "node %s is %s: it takes no new objects", node, state);
    else if (!is_standby && strcmp(kvp_json_get_text(segment, "transport"), "none") == 0)
        add_text(list, "no transport leads from here to node %s: kvpool doctor says why", node);
}

struct json_object *
kvp_top_wrong(struct json_object *stat)
{
    struct json_object *pool = kvp_json_get(stat, "pool"), *list = json_object_new_array(), *why, *segments;
    const size_t why_n = kvp_json_get_list(pool, "why", &why),
                 segments_n = kvp_json_get_list(stat, "segments", &segments);
    const uint64_t quarantine = kvp_json_get_u64(pool, "quarantine_bytes"), refused = counter_of(stat, "put_no_space"),
                   breaches = counter_of(stat, "protocol_errors");
    /* After a change of the leader all free memory is in quarantine until the clients have connected again. */
    const bool is_new = kvp_json_get_u64(pool, "term") > 1 && counter_of(stat, "led_ms") < TAKE_OVER_MS;
    char bytes[KVP_BYTES_TEXT_MAX];

    for (size_t i = 0; i < why_n; i++)
        add_text(list, "%s", kvp_json_get_text(json_object_array_get_idx(why, i), "text"));
    for (size_t i = 0; i < segments_n; i++)
        add_wrong_of_node(list, json_object_array_get_idx(segments, i),
                          json_object_get_boolean(kvp_json_get(pool, "is_standby")));
    if (quarantine > 0 && !is_new)
        add_text(list, "%s are in quarantine: a client died or stopped during a put, and may still write there",
                 kvp_format_bytes(quarantine, bytes));
    if (refused > 0) add_text(list, "puts refused for want of space: %" PRIu64, refused);
    if (breaches > 0) add_text(list, "connections closed for a breach of the protocol: %" PRIu64, breaches);
    return list;
}

/* ---- tables */
void
kvp_top_mark_away(struct json_object *masters)
{
    const size_t n = masters == NULL ? 0 : json_object_array_length(masters);

    for (size_t i = 0; i < n; i++) {
        struct json_object *master = json_object_array_get_idx(masters, i);

        if (kvp_json_get(master, "lag_bytes") == NULL)
            json_object_object_add(master, "lag_bytes", json_object_new_string("away"));
    }
}

void
kvp_top_mark_lost(struct json_object *nodes)
{
    const size_t n = nodes == NULL ? 0 : json_object_array_length(nodes);

    for (size_t i = 0; i < n; i++) {
        struct json_object *node = json_object_array_get_idx(nodes, i);

        if (strcmp(kvp_json_get_text(node, "state"), "lost") != 0) continue;
        json_object_object_add(node, "transport", NULL);
        if (strcmp(kvp_json_get_text(node, "drain"), "done") == 0)
            json_object_object_add(node, "state", json_object_new_string("away (drained)"));
    }
}

void
kvp_top_join_tiers(struct json_object *nodes, struct json_object *tiers)
{
    const size_t nodes_n = nodes == NULL ? 0 : json_object_array_length(nodes);
    const size_t tiers_n = tiers == NULL ? 0 : json_object_array_length(tiers);

    for (size_t i = 0; i < nodes_n; i++) {
        struct json_object *node = json_object_array_get_idx(nodes, i);
        char name[NAME_MAX_BYTES];

        snprintf(name, sizeof name, "%s/ssd", kvp_json_get_text(node, "node"));
        for (size_t k = 0; k < tiers_n; k++) {
            struct json_object *tier = json_object_array_get_idx(tiers, k);

            if (strcmp(kvp_json_get_text(tier, "node"), name) != 0) continue;
            json_object_object_add(node, "ssd", json_object_get(kvp_json_get(tier, "state")));
            json_object_object_add(node, "ssd_used_bytes", json_object_get(kvp_json_get(tier, "used_bytes")));
            json_object_object_add(node, "ssd_size_bytes", json_object_get(kvp_json_get(tier, "size_bytes")));
        }
    }
}

/* Adds the rate of evictions since the previous sample. A node that evicts may have free memory, in chunks of tenants
 * that do not put now. */
static void
add_evictions(struct json_object *node, struct json_object *before, double seconds)
{
    struct json_object *past;
    const size_t n = kvp_json_get_list(before, "segments", &past);
    double rise = NAN;

    for (size_t i = 0; i < n && isnan(rise); i++) {
        struct json_object *old = json_object_array_get_idx(past, i);

        if (kvp_json_get_u64(old, "segment_id") == kvp_json_get_u64(node, "segment_id"))
            rise = (double)kvp_json_get_u64(node, "evictions") - (double)kvp_json_get_u64(old, "evictions");
    }
    add_number(node, "evictions_per_s", rise / seconds);
}

static struct json_object *
make_nodes(struct json_object *before, struct json_object *now, double seconds)
{
    static const char *const columns[] = {
        "node",    "state", "transport",      "full_ratio",     "used_bytes", "evictions_per_s", "size_bytes",
        "objects", "ssd",   "ssd_used_bytes", "ssd_size_bytes", "addr",       "host_id"};
    struct json_object *nodes = kvp_json_get(now, "segments");
    const size_t n = nodes == NULL ? 0 : json_object_array_length(nodes);

    kvp_top_join_tiers(nodes, kvp_json_get(now, "tiers"));
    kvp_top_mark_lost(nodes);
    for (size_t i = 0; i < n; i++) {
        struct json_object *node = json_object_array_get_idx(nodes, i);

        add_number(node, "full_ratio",
                   (double)kvp_json_get_u64(node, "used_bytes") / (double)kvp_json_get_u64(node, "size_bytes"));
        add_evictions(node, before, seconds);
    }
    return kvp_json_pick(nodes, columns, KVP_ARRAY_LEN(columns));
}

/* Returns the rows of the tenants in the metrics, or, without metrics, only the row of the session's tenant. */
static struct json_object *
make_tenants(struct json_object *now)
{
    static const char *const columns[] = {"tenant",      "objects",          "used_bytes",
                                          "chunk_bytes", "hit_ratio_minute", "hit_ratio_hour"};
    struct json_object *known = kvp_json_get(kvp_json_get(now, "metrics"), "tenants");
    struct json_object *list, *rows;

    if (known == NULL) return kvp_json_pick(kvp_json_get(now, "tenants"), columns, KVP_ARRAY_LEN(columns));
    list = json_object_new_array();
    json_object_object_foreach(known, name, tenant)
    {
        json_object_object_add(tenant, "tenant", json_object_new_string(name));
        json_object_array_add(list, json_object_get(tenant));
    }
    rows = kvp_json_pick(list, columns, KVP_ARRAY_LEN(columns));
    json_object_put(list);
    return rows;
}

/* Returns element i of a list of numbers; 0 if the list is shorter. */
static double
number_at(struct json_object *list, size_t i)
{
    return list == NULL ? 0 : json_object_get_double(json_object_array_get_idx(list, i));
}

/* Returns the quantile in seconds of the calls between two samples, as Prometheus estimates it: linear within a bucket.
 * The lists alternate between a bucket's upper bound and its count. NAN = no calls. */
static double
quantile_of(struct json_object *before, struct json_object *now, double q)
{
    const size_t n = json_object_array_length(now);
    const double all = n < 2 ? 0 : number_at(now, n - 1) - number_at(before, n - 1);
    double below = 0, lower = 0;

    for (size_t i = 0; i + 1 < n && all > 0; i += 2) {
        const double upper = number_at(now, i), count = number_at(now, i + 1) - number_at(before, i + 1);

        if (count >= q * all)
            return isinf(upper) || count <= below ? lower
                                                  : lower + (upper - lower) * (q * all - below) / (count - below);
        below = count;
        lower = upper;
    }
    return NAN;
}

static struct json_object *
make_calls(struct json_object *before, struct json_object *now, double seconds)
{
    static const struct {
        const char *name;
        double q;
    } columns[] = {{"p50_us", 0.5}, {"p90_us", 0.9}, {"p99_us", 0.99}};
    struct json_object *rows = json_object_new_array(), *calls = kvp_json_get(kvp_json_get(now, "metrics"), "calls"),
                       *old = kvp_json_get(kvp_json_get(before, "metrics"), "calls");

    if (calls == NULL) return rows;
    json_object_object_foreach(calls, name, buckets)
    {
        struct json_object *row = json_object_new_object(), *past = kvp_json_get(old, name);
        const size_t n = json_object_array_length(buckets);

        json_object_object_add(row, "call", json_object_new_string(name));
        add_number(row, "rate_per_s",
                   past == NULL || n < 2 ? NAN : (number_at(buckets, n - 1) - number_at(past, n - 1)) / seconds);
        for (size_t c = 0; c < KVP_ARRAY_LEN(columns); c++)
            add_number(row, columns[c].name,
                       past == NULL || isnan(seconds) ? NAN : quantile_of(past, buckets, columns[c].q) * 1e6);
        json_object_array_add(rows, row);
    }
    return rows;
}

/* Returns the sum of the nodes' memory for each transport by which this client reaches them. */
static struct json_object *
make_transports(struct json_object *nodes)
{
    static const char *const sums[] = {"nodes", "used_bytes", "size_bytes", "objects"};
    struct json_object *rows = json_object_new_array(), *by_name = json_object_new_object();

    for (size_t i = 0; i < json_object_array_length(nodes); i++) {
        struct json_object *node = json_object_array_get_idx(nodes, i);
        const char *name = kvp_json_get_text(node, "transport");
        struct json_object *row;

        if (kvp_json_get(node, "transport") == NULL) continue; /* the node is lost */
        row = member_of(by_name, name, json_object_new_object);
        json_object_object_add(row, "transport", json_object_new_string(name));
        for (size_t s = 0; s < KVP_ARRAY_LEN(sums); s++)
            json_object_object_add(row, sums[s],
                                   json_object_new_uint64(kvp_json_get_u64(row, sums[s]) +
                                                          (s == 0 ? 1 : kvp_json_get_u64(node, sums[s]))));
    }
    json_object_object_foreach(by_name, transport, row)
    {
        (void)transport;
        json_object_array_add(rows, json_object_get(row));
    }
    json_object_put(by_name);
    return rows;
}

/* ---- the model */
static void
add_state(struct json_object *head, struct json_object *now, struct json_object *nodes)
{
    static const char *const figures[] = {"term",           "objects",       "attempts",  "clients",
                                          "used_bytes",     "size_bytes",    "uptime_ms", "hit_ratio_minute",
                                          "hit_ratio_hour", "reserved_bytes"};
    static const char *const counters[] = {"owned_free_bytes", "unowned_bytes", "owners", "draining_bytes"};
    struct json_object *pool = kvp_json_get(now, "pool"), *tiers;
    const size_t tiers_n = kvp_json_get_list(now, "tiers", &tiers), nodes_n = json_object_array_length(nodes);
    uint64_t up = 0, ssd_used = 0, ssd_size = 0;

    for (size_t i = 0; i < nodes_n; i++)
        up += strcmp(kvp_json_get_text(json_object_array_get_idx(nodes, i), "state"), "up") == 0;
    for (size_t i = 0; i < tiers_n; i++) {
        ssd_used += kvp_json_get_u64(json_object_array_get_idx(tiers, i), "used_bytes");
        ssd_size += kvp_json_get_u64(json_object_array_get_idx(tiers, i), "size_bytes");
    }
    json_object_object_add(head, "status", json_object_get(kvp_json_get(pool, "status")));
    json_object_object_add(
        head, "role",
        json_object_new_string(json_object_get_boolean(kvp_json_get(pool, "is_standby")) ? "standby" : "leader"));
    json_object_object_add(head, "nodes_up", json_object_new_uint64(up));
    json_object_object_add(head, "nodes", json_object_new_uint64(nodes_n));
    for (size_t i = 0; i < KVP_ARRAY_LEN(figures); i++)
        json_object_object_add(head, figures[i], json_object_get(kvp_json_get(pool, figures[i])));
    for (size_t i = 0; i < KVP_ARRAY_LEN(counters); i++)
        json_object_object_add(head, counters[i], json_object_new_uint64(counter_of(now, counters[i])));
    json_object_object_add(head, "ssd_used_bytes", json_object_new_uint64(ssd_used));
    json_object_object_add(head, "ssd_size_bytes", json_object_new_uint64(ssd_size));
}

struct json_object *
kvp_top_model(struct json_object *before, struct json_object *now)
{
    static const char *const of_masters[] = {"address", "state", "lag_bytes", "id"};
    struct json_object *model = json_object_new_object(), *head = json_object_new_object(),
                       *tables = json_object_new_object(), *wrong = kvp_top_wrong(now);
    const double seconds = seconds_between(before, now);
    struct json_object *nodes = make_nodes(before, now, seconds);

    add_state(head, now, nodes);
    add_rates(head, before, now, seconds);
    json_object_object_add(head, "wrong", json_object_new_uint64(json_object_array_length(wrong)));
    json_object_object_add(tables, "nodes", nodes);
    kvp_top_mark_away(kvp_json_get(now, "masters"));
    json_object_object_add(tables, "masters",
                           kvp_json_pick(kvp_json_get(now, "masters"), of_masters, KVP_ARRAY_LEN(of_masters)));
    json_object_object_add(tables, "tenants", make_tenants(now));
    json_object_object_add(tables, "calls", make_calls(before, now, seconds));
    json_object_object_add(tables, "transports", make_transports(nodes));
    json_object_object_add(model, "head", head);
    json_object_object_add(model, "wrong", wrong);
    json_object_object_add(model, "tables", tables);
    json_object_object_add(model, "metrics_error", json_object_get(kvp_json_get(now, "metrics_error")));
    return model;
}
