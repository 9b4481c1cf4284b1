/* SPDX-License-Identifier: Apache-2.0
 * A report: a JSON object with one member for each figure, and the same figures as rows of a text table. */
#include "tools/base/report.h"

#include "tools/base/cli.h"
#include "tools/base/json_out.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 96
#define CELL_MAX 96
#define COLUMNS_MAX 32

typedef struct {
    const char *label;
    bool is_section;
    char value[CELL_MAX];
} row_t;

struct kvp_table {
    struct json_object *json;
    row_t rows[ROWS_MAX];
    size_t n;
    const char *list; /* name of a list of objects; NULL = none */
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

void
kvp_report_list(kvp_table_t *report, const char *key, struct json_object *taken)
{
    report->list = key;
    json_object_object_add(report->json, key, taken);
}

/* ---- tables of objects */
static bool
ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

const char *
kvp_report_cell(const char *name, struct json_object *value, char dst[KVP_CELL_TEXT_MAX])
{
    char bytes[KVP_BYTES_TEXT_MAX];
    if (ends_with(name, "_bytes") && json_object_is_type(value, json_type_int))
        snprintf(dst, KVP_CELL_TEXT_MAX, "%s", kvp_format_bytes(json_object_get_uint64(value), bytes));
    else if (value == NULL)
        snprintf(dst, KVP_CELL_TEXT_MAX, "-");
    else /* a text from a node is escaped, so that it cannot move the terminal's cursor */
        kvp_cli_quote(json_object_get_string(value), strlen(json_object_get_string(value)), dst, KVP_CELL_TEXT_MAX);
    return dst;
}

bool
kvp_report_is_rows(struct json_object *value)
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

void
kvp_report_rows(const char *title, struct json_object *rows, bool *is_first)
{
    const char *names[COLUMNS_MAX];
    size_t width[COLUMNS_MAX];
    char text[KVP_CELL_TEXT_MAX];
    struct json_object *value;
    const size_t n = column_names(json_object_array_get_idx(rows, 0), names), rows_n = json_object_array_length(rows);
    for (size_t c = 0; c < n; c++) {
        width[c] = strlen(names[c]);
        for (size_t r = 0; r < rows_n; r++) {
            value = kvp_json_get(json_object_array_get_idx(rows, r), names[c]);
            width[c] = kvp_max_u64(width[c], strlen(kvp_report_cell(names[c], value, text)));
        }
    }
    printf("%s%s\n", *is_first ? "" : "\n", title);
    *is_first = false;
    putchar(' ');
    for (size_t c = 0; c < n; c++)
        printf(" %-*s", (int)width[c], names[c]);
    putchar('\n');
    for (size_t r = 0; r < rows_n; r++) {
        putchar(' ');
        for (size_t c = 0; c < n; c++) {
            value = kvp_json_get(json_object_array_get_idx(rows, r), names[c]);
            printf(" %-*s", (int)width[c], kvp_report_cell(names[c], value, text));
        }
        putchar('\n');
    }
}

/* ---- the whole report */
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
    struct json_object *rows = report->list == NULL ? NULL : kvp_json_get(report->json, report->list);
    if (kvp_report_is_rows(rows)) kvp_report_rows(report->list, rows, &(bool){false});
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
