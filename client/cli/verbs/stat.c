/* SPDX-License-Identifier: Apache-2.0
 * stat: the library's JSON as it is, or the same figures laid out for people. The layout follows the JSON's shape, not
 * a list of names: an object is a section, an array of objects a table.
 */
#include "client/cli/base/cli.h"

#include "client/cli/base/opts.h"
#include "client/cli/base/json_out.h"
#include "client/cli/base/report.h"

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
cell(const char *name, struct json_object *value, char dst[CELL_MAX])
{
    char bytes[KVP_BYTES_TEXT_MAX];
    if (ends_with(name, "_bytes") && json_object_is_type(value, json_type_int))
        snprintf(dst, CELL_MAX, "%s", kvp_format_bytes(json_object_get_uint64(value), bytes));
    else if (value == NULL)
        snprintf(dst, CELL_MAX, "-");
    else /* names come from nodes: nothing in them may move the cursor */
        kvp_cli_quote(json_object_get_string(value), strlen(json_object_get_string(value)), dst, CELL_MAX);
    return dst;
}

static bool
is_table(struct json_object *value)
{
    return json_object_is_type(value, json_type_array) && json_object_array_length(value) > 0 &&
           json_object_is_type(json_object_array_get_idx(value, 0), json_type_object);
}

/* columns takes the names of the first row's scalars: the rows of one array are alike. */
static size_t
columns(struct json_object *first, const char *names[COLUMNS_MAX])
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

/* An empty line sets a section apart from the one before. */
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
    const size_t n = columns(json_object_array_get_idx(rows, 0), names), rows_n = json_object_array_length(rows);
    for (size_t c = 0; c < n; c++) {
        width[c] = strlen(names[c]);
        for (size_t r = 0; r < rows_n; r++) {
            if (!json_object_object_get_ex(json_object_array_get_idx(rows, r), names[c], &value)) value = NULL;
            width[c] = kvp_max_u64(width[c], strlen(cell(names[c], value, text)));
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
            if (!json_object_object_get_ex(json_object_array_get_idx(rows, r), names[c], &value)) value = NULL;
            printf(" %-*s", (int)width[c], cell(names[c], value, text));
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
        if (!is_nested) printf("  %-*s  %s\n", (int)width, key, cell(key, scalar, text));
    }
    json_object_object_foreach(section, child, nested)
    {
        if (json_object_is_type(nested, json_type_object)) print_section(child, nested, is_first);
        if (is_table(nested)) print_table(child, nested, is_first);
    }
}

int
kvp_cli_stat(const kvp_cli_verb_t *verb, int argc, char **argv)
{
    kvp_cli_common_t common;
    kvpool_t *pool = NULL;
    struct json_object *stat = NULL;
    int first;
    int code = kvp_cli_parse(verb, NULL, 0, argc, argv, &common, &first);
    if (code == KVP_EXIT_GO_ON && first < argc) code = kvp_cli_complain(verb, KVP_EXIT_USAGE, "takes no operand");
    if (code != KVP_EXIT_GO_ON) return code;
    code = kvp_cli_open(verb, &common, &pool);
    if (code != KVP_EXIT_DONE) return code;
    int err = kvp_json_stat(pool, &stat);
    kvpool_free(pool);
    if (err != KVPOOL_OK) return kvp_cli_fail(verb, "stat", err);
    if (common.is_json) {
        kvp_json_line(stat, stdout);
    } else {
        bool is_first = true;
        print_section(NULL, stat, &is_first);
        json_object_put(stat);
    }
    return kvp_cli_flush(verb, KVP_EXIT_DONE);
}
