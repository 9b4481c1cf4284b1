/* SPDX-License-Identifier: Apache-2.0
 * The verb curve: the hit ratio that less or more memory would give, as the master estimates it. */
#include "tools/base/cli.h"

#include "tools/base/json_out.h"
#include "tools/base/opts.h"
#include "tools/base/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BAR_COLUMNS 40
#define ASKED_FEW 10000u /* with fewer requested keys than this, the curve is only a guess */

static const double times[] = {0.25, 0.5, 1, 2, 4, 8};

/* Returns the hit ratio of a cache of so many bytes: between two points of the curve, or its first or last point. */
static double
ratio_at(struct json_object *points, double bytes)
{
    double before = 0, before_bytes = 0;

    for (size_t i = 0; i < json_object_array_length(points); i++) {
        struct json_object *point = json_object_array_get_idx(points, i);
        const double at = (double)kvp_json_get_u64(point, "size_bytes");
        const double ratio = json_object_get_double(kvp_json_get(point, "hit_ratio"));

        if (at >= bytes)
            return i == 0 ? ratio : before + (ratio - before) * (bytes - before_bytes) / (at - before_bytes);
        before = ratio;
        before_bytes = at;
    }
    return before;
}

/* Adds the ratios at multiples of the memory, and with an SSD of ssd_bytes (0 = none), as the member "at". */
static void
add_ratios(struct json_object *curve, uint64_t memory, uint64_t ssd_bytes)
{
    struct json_object *at = json_object_new_array(), *points = kvp_json_get(curve, "points");

    for (size_t i = 0; i < KVP_ARRAY_LEN(times) + (ssd_bytes > 0); i++) {
        const bool is_ssd = i == KVP_ARRAY_LEN(times);
        const double bytes = is_ssd ? (double)memory + (double)ssd_bytes : times[i] * (double)memory;
        struct json_object *one = json_object_new_object();

        json_object_object_add(one, "times", is_ssd ? NULL : json_object_new_double(times[i]));
        json_object_object_add(one, "size_bytes", json_object_new_uint64((uint64_t)bytes));
        json_object_object_add(one, "hit_ratio", json_object_new_double(ratio_at(points, bytes)));
        json_object_array_add(at, one);
    }
    json_object_object_add(curve, "at", at);
}

static void
print_bar(const char *label, double bytes, double ratio)
{
    char size[KVP_BYTES_TEXT_MAX];
    const int filled = (int)(ratio * BAR_COLUMNS + 0.5);

    printf("  %-9s %10s  %5.1f %%  ", label, kvp_format_bytes((uint64_t)bytes, size), 100 * ratio);
    for (int i = 0; i < BAR_COLUMNS; i++)
        putchar(i < filled ? '#' : '.');
    putchar('\n');
}

static void
print_curve(struct json_object *curve)
{
    const char *tenant = kvp_json_get_text(curve, "tenant");
    struct json_object *at = kvp_json_get(curve, "at");
    const uint64_t asked = kvp_json_get_u64(curve, "asked");
    char quoted[600];

    printf("%s: %" PRIu64 " keys were asked for\n",
           tenant[0] == '\0' ? "pool" : kvp_cli_quote(tenant, strlen(tenant), quoted, sizeof quoted), asked);
    if (tenant[0] != '\0')
        printf("  if all this memory were the tenant's: it has only its chunks, and tenants share the memory\n");
    for (size_t i = 0; i < json_object_array_length(at); i++) {
        struct json_object *one = json_object_array_get_idx(at, i);
        char label[16] = "with SSD";

        if (kvp_json_get(one, "times") != NULL)
            snprintf(label, sizeof label, times[i] == 1 ? "x %g, now" : "x %g", times[i]);
        print_bar(label, (double)kvp_json_get_u64(one, "size_bytes"),
                  json_object_get_double(kvp_json_get(one, "hit_ratio")));
    }
    if (asked < ASKED_FEW) printf("  few keys were asked for yet: the estimate is rough\n");
}

static void
print_all(struct json_object *pool, struct json_object *curves)
{
    struct json_object *hour = kvp_json_get(pool, "hit_ratio_hour");

    if (json_object_array_length(curves) == 0) printf("no key was asked for yet\n");
    for (size_t i = 0; i < json_object_array_length(curves); i++)
        print_curve(json_object_array_get_idx(curves, i));
    if (hour != NULL) printf("measured in the last hour: %.1f %%\n", 100 * json_object_get_double(hour));
    printf("The curve is that of an LRU cache. With an SSD, memory and SSD count as one cache, and the admission to "
           "the SSD is left "
           "out.\n");
}

int
kvp_cli_curve(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    bool all_tenants = false;
    uint64_t ssd_bytes = 0;
    const kvp_cli_opt_t opts[] = {{"all-tenants", KVP_CLI_FLAG, &all_tenants, NULL,
                                   "show also the curves of the tenants that ask for the most keys", 0, 0},
                                  {"ssd", KVP_CLI_BYTES, &ssd_bytes, "SIZE", "also with an SSD of this size", 0, 0}};
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    struct json_object *stat = NULL, *curves, *out;
    int first, code = kvp_cli_parse(verb, opts, KVP_ARRAY_LEN(opts), argc, argv, &common, &first);

    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    const int err = kvp_json_stat(pool, KVPOOL_CURVES | (all_tenants ? KVPOOL_ALL_TENANTS : 0), &stat);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail_why(verb, &common, "curve", err);
    curves = kvp_json_get(stat, "curves");
    for (size_t i = 0; i < json_object_array_length(curves); i++)
        add_ratios(json_object_array_get_idx(curves, i), kvp_json_get_u64(kvp_json_get(stat, "pool"), "size_bytes"),
                   ssd_bytes);
    if (common.is_json) {
        out = json_object_new_object();
        json_object_object_add(out, "memory_bytes",
                               json_object_get(kvp_json_get(kvp_json_get(stat, "pool"), "size_bytes")));
        json_object_object_add(out, "curves", json_object_get(curves));
        kvp_json_line(out, stdout); /* kvp_json_line releases the JSON object */
    } else {
        print_all(kvp_json_get(stat, "pool"), curves);
    }
    json_object_put(stat);
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
