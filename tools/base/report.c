/* SPDX-License-Identifier: Apache-2.0
 * A report: a JSON object with one member for each figure, and the same figures as rows of a text table. */
#include "tools/base/report.h"

#include "tools/base/cli.h"
#include "tools/base/json_out.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 96
#define CELL_MAX 96

typedef struct {
    const char *label;
    bool is_section;
    char value[CELL_MAX];
} row_t;

struct kvp_table {
    struct json_object *json;
    row_t rows[ROWS_MAX];
    size_t n;
};

kvp_table_t *
kvp_report_create(void)
{
    kvp_table_t *report = kvp_cli_alloc(1, sizeof(*report));
    report->json = json_object_new_object();
    if (report->json == NULL) kvp_cli_no_memory();
    return report;
}

static char *
add_row(kvp_table_t *report, const char *label)
{
    static char nowhere[CELL_MAX];
    if (label == NULL) return nowhere;
    if (report->n == ROWS_MAX) kvp_panic("a report has more than %d rows", ROWS_MAX);
    row_t *r = &report->rows[report->n++];
    r->label = label;
    return r->value;
}

void
kvp_report_section(kvp_table_t *report, const char *title)
{
    (void)add_row(report, title);
    report->rows[report->n - 1].is_section = true;
}

void
kvp_report_count(kvp_table_t *report, const char *key, const char *label, uint64_t value)
{
    json_object_object_add(report->json, key, json_object_new_uint64(value));
    snprintf(add_row(report, label), CELL_MAX, "%llu", (unsigned long long)value);
}

void
kvp_report_bytes(kvp_table_t *report, const char *key, const char *label, uint64_t bytes)
{
    char text[KVP_BYTES_TEXT_MAX];
    json_object_object_add(report->json, key, json_object_new_uint64(bytes));
    snprintf(add_row(report, label), CELL_MAX, "%s", kvp_format_bytes(bytes, text));
}

/* add_real adds a number with only its significant digits to the JSON; json-c alone would write 17 digits. */
static void
add_real(kvp_table_t *report, const char *key, double value, int digits)
{
    char text[64];
    snprintf(text, sizeof(text), "%.*f", digits, value);
    json_object_object_add(report->json, key, json_object_new_double_s(value, text));
}

void
kvp_report_real(kvp_table_t *report, const char *key, const char *label, double value, int digits)
{
    add_real(report, key, value, digits);
    snprintf(add_row(report, label), CELL_MAX, "%.*f", digits, value);
}

void
kvp_report_text(kvp_table_t *report, const char *key, const char *label, const char *text)
{
    json_object_object_add(report->json, key, json_object_new_string(text));
    snprintf(add_row(report, label), CELL_MAX, "%s", text);
}

void
kvp_report_latency(kvp_table_t *report, const char *name, const kvp_hist_t *hist)
{
    const struct {
        const char *suffix;
        double us;
    } parts[] = {
        {"p50_us", (double)kvp_hist_quantile(hist, 0.5) / 1e3},
        {"p90_us", (double)kvp_hist_quantile(hist, 0.9) / 1e3},
        {"p99_us", (double)kvp_hist_quantile(hist, 0.99) / 1e3},
        {"p99_9_us", (double)kvp_hist_quantile(hist, 0.999) / 1e3},
        {"max_us", hist->count > 0 ? (double)hist->max / 1e3 : 0},
        {"mean_us", kvp_hist_mean(hist) / 1e3},
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(parts); i++) {
        char key[64];
        snprintf(key, sizeof(key), "%s_%s", name, parts[i].suffix);
        add_real(report, key, parts[i].us, 1);
    }
    snprintf(add_row(report, name), CELL_MAX, "p50 %.1f us, p90 %.1f, p99 %.1f, p99.9 %.1f, max %.1f", parts[0].us,
             parts[1].us, parts[2].us, parts[3].us, parts[4].us);
}

static void
print_table(const kvp_table_t *report)
{
    size_t width = 0;
    for (size_t i = 0; i < report->n; i++)
        if (!report->rows[i].is_section) width = kvp_max_u64(width, strlen(report->rows[i].label));
    for (size_t i = 0; i < report->n; i++) {
        const row_t *r = &report->rows[i];
        if (r->is_section)
            printf("%s%s\n", i > 0 ? "\n" : "", r->label);
        else
            printf("  %-*s  %s\n", (int)width, r->label, r->value);
    }
}

void
kvp_report_print(kvp_table_t *taken, bool is_json)
{
    if (!is_json) print_table(taken);
    if (is_json)
        kvp_json_line(taken->json, stdout);
    else
        json_object_put(taken->json);
    free(taken);
}
