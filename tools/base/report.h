/* SPDX-License-Identifier: Apache-2.0
 * The figures of one run, in order. They are printed as an aligned table or as one JSON object; each figure is
 * added once for both. JSON keys are snake_case with the unit in the name (docs/operations/ lists them). */
#ifndef KVP_TOOLS_BASE_REPORT_H
#define KVP_TOOLS_BASE_REPORT_H

#include "common/hist.h"

#include <json-c/json.h>

#include <stdio.h>

typedef struct kvp_table kvp_table_t;

/* kvp_report_create returns an empty report, or ends the program if there is no memory. Keys and labels are
 * borrowed and must outlive the report. A figure with a NULL label is not shown in the table. */
kvp_table_t *kvp_report_create(void);

/* adds a heading to the report's table, not to the JSON */
void kvp_report_section(kvp_table_t *report, const char *title);
void kvp_report_count(kvp_table_t *report, const char *key, const char *label, uint64_t value);
void kvp_report_bytes(kvp_table_t *report, const char *key, const char *label, uint64_t bytes);
void kvp_report_real(kvp_table_t *report, const char *key, const char *label, double value, int digits);
/* adds a figure that is a text, which is copied */
void kvp_report_text(kvp_table_t *report, const char *key, const char *label, const char *text);
/* kvp_report_latency adds p50, p90, p99, p99.9, max and mean in µs, from a histogram of nanoseconds. The keys are
 * NAME_p50_us, NAME_p99_9_us and so on. */
void kvp_report_latency(kvp_table_t *report, const char *name, const kvp_hist_t *hist);

/* kvp_report_list adds a list of objects, which takes the reference. The table shows it last. */
void kvp_report_list(kvp_table_t *report, const char *key, struct json_object *taken);

/* kvp_report_print prints the report to standard output, as a table or as one line of JSON, and frees it. */
void kvp_report_print(kvp_table_t *taken, bool is_json);

/* kvp_format_bytes writes a size in the form "64 KiB" or "1.50 GiB" and returns dst. */
#define KVP_BYTES_TEXT_MAX 32
const char *kvp_format_bytes(uint64_t bytes, char dst[KVP_BYTES_TEXT_MAX]);

/* kvp_report_cell writes a value as text: a size with its unit if its name ends in _bytes, and texts escaped, because
 * names come from nodes and users. It returns dst. */
#define KVP_CELL_TEXT_MAX 160
const char *kvp_report_cell(const char *name, struct json_object *value, char dst[KVP_CELL_TEXT_MAX]);

/* kvp_report_rows prints a title and a table with a column for each scalar of the first row; all rows have the same
 * members. An empty line comes first, unless *is_first, which becomes false. kvp_report_is_rows returns true if the
 * value is such a list with at least one row. */
bool kvp_report_is_rows(struct json_object *value);
void kvp_report_rows(const char *title, struct json_object *rows, bool *is_first);

#endif
