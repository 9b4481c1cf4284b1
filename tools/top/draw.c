/* SPDX-License-Identifier: Apache-2.0
 * See draw.h. The end of a figure's name says its unit, and so its form: used_bytes, puts_per_s, hit_ratio. */
#include "tools/top/draw.h"

#include "tools/base/json_out.h"
#include "tools/base/report.h"
#include "tools/top/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL_MAX 160
#define COLUMNS_MAX 16
#define INDENT 11 /* columns of the labels on the left */
#define WRONG_LINES 4

typedef struct {
    char *cells, *styles;
    uint32_t columns, rows, row, at;
} screen_t;

/* ---- text */
static void KVP_PRINTF(2, 3) put_text(screen_t *s, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (const char *c = text; *c != '\0' && s->at < s->columns && s->row < s->rows; c++)
        s->cells[(size_t)s->row * s->columns + s->at++] = *c;
}

static void
end_line(screen_t *s, char style)
{
    if (s->row < s->rows) s->styles[s->row++] = style;
    s->at = 0;
}

/* Adds one of several texts to a line. A text that does not fit begins a new line. */
static void KVP_PRINTF(2, 3) put_field(screen_t *s, const char *fmt, ...)
{
    char text[CELL_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (s->at > INDENT && s->at + strlen(text) > s->columns) end_line(s, ' ');
    put_text(s, "%*s%s   ", s->at < INDENT ? (int)(INDENT - s->at) : 0, "", text);
}

/* Copies the text with \xNN for each byte that is no printable ASCII, cut to cap. */
static const char *
escape_text(const char *text, char *dst, size_t cap)
{
    size_t at = 0;

    for (const unsigned char *c = (const unsigned char *)text; *c != '\0' && at + 5 <= cap; c++)
        at += (size_t)snprintf(dst + at, cap - at, *c < 0x20 || *c > 0x7e ? "\\x%02x" : "%c", *c);
    dst[at] = '\0';
    return dst;
}

static bool
ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

static const char *
format_span(double s, char dst[CELL_MAX])
{
    const unsigned long long whole = (unsigned long long)fmax(0, fmin(s, 9e18));

    if (s < 60)
        snprintf(dst, CELL_MAX, "%.1fs", s);
    else if (whole < 3600)
        snprintf(dst, CELL_MAX, "%llum%02llus", whole / 60, whole % 60);
    else
        snprintf(dst, CELL_MAX, "%lluh%02llum", whole / 3600, whole % 3600 / 60);
    return dst;
}

static const char *
format_value(const char *name, struct json_object *value, char dst[CELL_MAX])
{
    char bytes[KVP_BYTES_TEXT_MAX];
    const double number = json_object_get_double(value);
    const bool is_rate = ends_with(name, "_per_s");

    if (value == NULL) return "-";
    if (json_object_is_type(value, json_type_string)) return escape_text(json_object_get_string(value), dst, CELL_MAX);
    if (ends_with(name, "_bytes") || ends_with(name, "_bytes_per_s"))
        snprintf(dst, CELL_MAX, "%s%s", kvp_format_bytes((uint64_t)fmax(0, fmin(number, 9e18)), bytes),
                 is_rate ? "/s" : "");
    else if (strstr(name, "_ratio") != NULL)
        snprintf(dst, CELL_MAX, "%.1f %%", 100 * number);
    else if (ends_with(name, "_us") || is_rate)
        snprintf(dst, CELL_MAX, number < 100 ? "%.1f%s" : "%.0f%s", number, is_rate ? "/s" : "");
    else if (ends_with(name, "_s") || ends_with(name, "_ms"))
        return format_span(ends_with(name, "_ms") ? number / 1e3 : number, dst);
    else
        snprintf(dst, CELL_MAX, "%.0f", number);
    return dst;
}

/* ---- the head */
static void
put_figure(screen_t *s, struct json_object *head, const char *before, const char *name, const char *behind)
{
    char text[CELL_MAX];

    put_field(s, "%s%s%s", before, format_value(name, kvp_json_get(head, name), text), behind);
}

static void
put_pair(screen_t *s, struct json_object *head, const char *before, const char *first, const char *between,
         const char *second)
{
    char a[CELL_MAX], b[CELL_MAX];

    put_field(s, "%s%s%s%s", before, format_value(first, kvp_json_get(head, first), a), between,
              format_value(second, kvp_json_get(head, second), b));
}

static void
draw_head(screen_t *s, struct json_object *head)
{
    put_text(s, "pool");
    put_pair(s, head, "", "nodes_up", " nodes up of ", "nodes");
    put_figure(s, head, "", "clients", " clients");
    put_pair(s, head, "", "role", " of term ", "term");
    put_figure(s, head, "up ", "uptime_ms", "");
    end_line(s, ' ');
    put_text(s, "memory");
    put_pair(s, head, "", "used_bytes", " used of ", "size_bytes");
    put_figure(s, head, "", "objects", " objects");
    put_figure(s, head, "", "attempts", " puts under way");
    if (kvp_json_get_u64(head, "owners") > 1) {
        put_pair(s, head, "", "owned_free_bytes", " free in chunks of single tenants, of ", "owners");
        put_figure(s, head, "", "unowned_bytes", " free for any");
    }
    if (kvp_json_get_u64(head, "draining_bytes") > 0)
        put_figure(s, head, "", "draining_bytes", " more are being drained");
    end_line(s, ' ');
    put_text(s, "SSD");
    if (kvp_json_get_u64(head, "ssd_size_bytes") == 0) {
        put_field(s, "none");
    } else {
        put_pair(s, head, "", "ssd_used_bytes", " used of ", "ssd_size_bytes");
        put_figure(s, head, "written ", "ssd_written_bytes_per_s", "");
        put_figure(s, head, "loaded ", "ssd_loaded_bytes_per_s", "");
    }
    end_line(s, ' ');
    put_text(s, "rates");
    put_pair(s, head, "puts ", "puts_per_s", " ", "put_bytes_per_s");
    put_pair(s, head, "gets ", "gets_per_s", " ", "get_bytes_per_s");
    put_figure(s, head, "look-ups ", "lookups_per_s", "");
    put_figure(s, head, "removals ", "removals_per_s", "");
    put_figure(s, head, "refused puts ", "refused_puts_per_s", "");
    end_line(s, ' ');
    put_text(s, "hit ratio");
    put_figure(s, head, "now ", "hit_ratio", "");
    put_figure(s, head, "last minute ", "hit_ratio_minute", "");
    put_figure(s, head, "last hour ", "hit_ratio_hour", "");
    end_line(s, ' ');
    put_text(s, "evicted");
    put_pair(s, head, "", "evictions_per_s", " ", "evicted_bytes_per_s");
    put_figure(s, head, "age ", "evicted_age_s", "");
    end_line(s, ' ');
}

/* Adds a label and a text. A text that is too long for the line continues below its own begin, and is divided between
 * two words if possible. */
static void
put_wrapped(screen_t *s, const char *label, uint32_t indent, const char *text, char style)
{
    const size_t width = s->columns > indent + 20 ? s->columns - indent : 20;

    do {
        size_t len = strlen(text);

        for (len = len > width ? width : len; text[len] != '\0' && text[len] != ' ' && len > 0;)
            len--;
        if (len == 0) len = width;
        put_text(s, "%-*s%.*s", (int)indent, label, (int)len, text);
        end_line(s, style);
        text += len + (text[len] == ' ');
        label = "";
    } while (*text != '\0');
}

static void
draw_wrong(screen_t *s, struct json_object *wrong)
{
    const size_t n = wrong == NULL ? 0 : json_object_array_length(wrong);
    const uint32_t end = s->row + WRONG_LINES;
    char text[1024];
    size_t shown;

    for (shown = 0; shown < n && s->row < end; shown++)
        put_wrapped(s, shown == 0 ? "wrong" : "", INDENT,
                    escape_text(json_object_get_string(json_object_array_get_idx(wrong, shown)), text, sizeof text),
                    'b');
    if (n == 0) put_text(s, "%-*snothing", INDENT, "wrong");
    if (n > shown) put_text(s, "%-*sand %zu more: kvpool stat", INDENT, "", n - shown);
    if (n != shown || n == 0) end_line(s, ' ');
}

/* ---- tables */
/* A table that is being drawn: the rows that the filter accepts, and the columns of all rows. */
typedef struct {
    struct json_object **rows; /* borrowed; the array is owned */
    size_t n, all;
    const char *names[COLUMNS_MAX];
    size_t width[COLUMNS_MAX], columns_n;
} table_t;

static bool
is_shown(struct json_object *row, const char *filter)
{
    json_object_object_foreach(row, name, value)
    {
        (void)name;
        if (json_object_is_type(value, json_type_string) && strcasestr(json_object_get_string(value), filter) != NULL)
            return true;
    }
    return filter[0] == '\0';
}

typedef struct {
    const char *column;
    bool is_reversed;
} order_t;

/* Compares two rows: texts in rising order, numbers in falling order; is_reversed reverses both. */
static int
compare_rows(const void *a, const void *b, void *arg)
{
    const order_t *by = arg;
    struct json_object *x = kvp_json_get(*(struct json_object *const *)a, by->column);
    struct json_object *y = kvp_json_get(*(struct json_object *const *)b, by->column);
    const double m = x == NULL ? -1 : json_object_get_double(x), n = y == NULL ? -1 : json_object_get_double(y);
    const bool is_text = json_object_is_type(x, json_type_string) && json_object_is_type(y, json_type_string);
    const int order = is_text ? strcmp(json_object_get_string(x), json_object_get_string(y)) : (m < n) - (m > n);

    return by->is_reversed ? -order : order;
}

/* Returns the heading of a column: its name without the unit that the cells show. */
static const char *
heading_of(const char *name, char dst[CELL_MAX])
{
    static const char *const units[] = {"_bytes", "_ratio_minute", "_ratio_hour", "_ratio", "_per_s"};
    static const char *const shown[] = {"", "-minute", "-hour", "", ""};

    snprintf(dst, CELL_MAX, "%s", name);
    for (size_t i = 0; i < KVP_ARRAY_LEN(units); i++)
        if (ends_with(dst, units[i])) strcpy(dst + strlen(dst) - strlen(units[i]), shown[i]);
    for (char *c = dst; *c != '\0'; c++)
        if (*c == '_') *c = '-';
    return dst;
}

static void
collect_table(table_t *t, struct json_object *list, const kvp_top_view_t *view, uint32_t width_max)
{
    char text[CELL_MAX];

    t->all = list == NULL ? 0 : json_object_array_length(list);
    t->rows = calloc(t->all, sizeof *t->rows);
    if (t->rows == NULL) t->all = 0;
    for (size_t i = 0; i < t->all; i++) {
        struct json_object *row = json_object_array_get_idx(list, i);

        if (view == NULL || is_shown(row, view->filter)) t->rows[t->n++] = row;
    }
    if (t->all == 0) return;
    json_object_object_foreach(json_object_array_get_idx(list, 0), name, first)
    {
        (void)first;
        if (t->columns_n == COLUMNS_MAX) break;
        t->names[t->columns_n] = name;
        t->width[t->columns_n] = strlen(heading_of(name, text)) + 1; /* 1 for the mark of the order */
        for (size_t i = 0; i < t->n; i++)
            t->width[t->columns_n] =
                kvp_max_u64(t->width[t->columns_n], strlen(format_value(name, kvp_json_get(t->rows[i], name), text)));
        t->width[t->columns_n] = kvp_min_u64(t->width[t->columns_n], width_max);
        t->columns_n++;
    }
}

static void
draw_row(screen_t *s, const table_t *t, struct json_object *row)
{
    char text[CELL_MAX];

    for (size_t c = 0; c < t->columns_n; c++) {
        struct json_object *value = kvp_json_get(row, t->names[c]);
        const int width = (int)t->width[c];
        const bool is_text = json_object_is_type(value, json_type_string);

        if (s->at + t->width[c] + 2 > s->columns) break; /* the columns that do not fit are left out */
        put_text(s, is_text ? "  %-*.*s" : "  %*.*s", width, width, format_value(t->names[c], value, text));
    }
    end_line(s, ' ');
}

static void
draw_headings(screen_t *s, const table_t *t, const kvp_top_view_t *view)
{
    char text[CELL_MAX], marked[CELL_MAX + 1];

    for (size_t c = 0; c < t->columns_n; c++) {
        struct json_object *value = t->n == 0 ? NULL : kvp_json_get(t->rows[0], t->names[c]);
        const bool is_text = json_object_is_type(value, json_type_string), is_sorted = view != NULL && c == view->sort;

        if (s->at + t->width[c] + 2 > s->columns) break;
        snprintf(marked, sizeof marked, "%s%s", heading_of(t->names[c], text),
                 !is_sorted                     ? ""
                 : is_text == view->is_reversed ? "v"
                                                : "^");
        put_text(s, is_text ? "  %-*s" : "  %*s", (int)t->width[c], marked);
    }
    end_line(s, 'b');
}

/* Draws a table. view NULL: the table is not the first one, so it is neither sorted nor filtered. The last row of the
 * screen stays free. */
static void
draw_table(screen_t *s, struct json_object *model, const char *title, kvp_top_view_t *view)
{
    table_t t = {0};
    const uint32_t end = s->rows - 1;
    char text[CELL_MAX];

    if (s->row + 3 > end) return;
    collect_table(&t, kvp_json_get(kvp_json_get(model, "tables"), title), view,
                  (uint32_t)kvp_max_u64(12, kvp_min_u64(CELL_MAX - 1, s->columns / 4)));
    if (view != NULL && t.columns_n > 0) {
        view->sort = (uint32_t)kvp_min_u64(view->sort, t.columns_n - 1);
        order_t by = {t.names[view->sort], view->is_reversed};
        qsort_r(t.rows, t.n, sizeof(struct json_object *), compare_rows, &by);
    }
    const uint32_t room = end - s->row - 2;
    const uint32_t last = t.n > room ? (uint32_t)t.n - room : 0, first = view == NULL ? 0 : view->scroll;
    const uint32_t from = first < last ? first : last;
    if (view != NULL) view->scroll = from;
    put_text(s, "%s", title);
    if (t.n != t.all) put_text(s, ": %zu of %zu match", t.n, t.all);
    if (t.n > room) put_text(s, ": %u to %u of %zu", from + 1, from + room, t.n);
    if (t.all == 0) put_text(s, ": none");
    if (view != NULL && view->filter[0] != '\0')
        put_text(s, "   filter: %s", escape_text(view->filter, text, CELL_MAX));
    if (t.all == 0 && strcmp(title, "calls") == 0)
        put_text(s, ". %s", escape_text(kvp_json_get_text(model, "metrics_error"), text, CELL_MAX));
    end_line(s, view == NULL ? 'b' : 'r');
    if (t.n > 0) draw_headings(s, &t, view);
    for (size_t i = from; i < t.n && s->row < end; i++)
        draw_row(s, &t, t.rows[i]);
    free(t.rows);
}

static void
draw_help(screen_t *s)
{
    static const char *const keys[][2] = {
        {"Tab, n m t c b", "the table that is shown first: nodes, masters, tenants, calls, bytes by transport"},
        {"< >", "the column by which it is sorted"},
        {"r", "the other order"},
        {"/", "show only rows with a text; Enter ends, Escape removes it"},
        {"up, down", "scroll, as PgUp and PgDn"},
        {"p, space", "keep the figures as they are, until the next p"},
        {"h, ?", "this text"},
        {"q, Ctrl-C", "quit"},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(keys); i++)
        put_wrapped(s, keys[i][0], 16, keys[i][1], ' ');
    end_line(s, ' ');
    put_wrapped(
        s, "", 0,
        "Rates and \"now\" are of the last interval. Latencies are of the master's work for a message of the last "
        "interval, read at the HTTP port of the master (--http). Bytes by transport: how the memory is reached "
        "from here. Each client counts what it moved itself: kvpool_stat. Reads from known places are counted "
        "when clients report them. A node may evict before it is full: memory in the chunks of a tenant is "
        "free for this tenant alone. Columns that do not fit are left out: a wider terminal has more.",
        ' ');
}

void
kvp_top_draw(struct json_object *model, const char *title, const char *trouble, kvp_top_view_t *view, uint32_t columns,
             uint32_t rows, char *cells, char *styles)
{
    screen_t s = {cells, styles, columns, rows, 0, 0};
    char text[CELL_MAX];

    memset(cells, ' ', (size_t)columns * rows);
    memset(styles, ' ', rows);
    put_text(&s, "%s%s", escape_text(title, text, CELL_MAX), view->is_paused ? "   PAUSED" : "");
    end_line(&s, 'r');
    if (trouble != NULL) {
        put_text(&s, "%-*s%s", INDENT, "no answer", escape_text(trouble, text, CELL_MAX));
        end_line(&s, 'b');
    }
    if (view->mode == KVP_TOP_HELP) {
        draw_help(&s);
    } else if (model != NULL) {
        draw_head(&s, kvp_json_get(model, "head"));
        draw_wrong(&s, kvp_json_get(model, "wrong"));
        draw_table(&s, model, kvp_top_tables[view->table], view);
        for (uint32_t i = 0; kvp_top_tables[i] != NULL; i++)
            if (i != view->table) draw_table(&s, model, kvp_top_tables[i], NULL);
    }
    s.row = rows - 1;
    s.at = 0;
    if (view->mode == KVP_TOP_FILTER)
        put_text(&s, "filter: %s_", escape_text(view->filter, text, CELL_MAX));
    else
        put_text(&s, "q quit  h help  Tab table  < > sort  r reverse  / filter  p pause");
    end_line(&s, 'r');
}

/* ---- keys */
static void
edit_filter(kvp_top_view_t *view, int key)
{
    const size_t n = strlen(view->filter);

    view->scroll = 0;
    if (key == '\r' || key == '\n' || key == 0x1b) view->mode = KVP_TOP_TABLES;
    if (key == 0x1b) view->filter[0] = '\0';
    if ((key == 0x7f || key == '\b') && n > 0) view->filter[n - 1] = '\0';
    if (key < 0x20 || key > 0xff || key == 0x7f || n + 1 == sizeof view->filter) return;
    view->filter[n] = (char)key;
    view->filter[n + 1] = '\0';
}

static void
choose_table(kvp_top_view_t *view, uint32_t table)
{
    view->table = kvp_top_tables[table] == NULL ? 0 : table;
    view->sort = view->scroll = 0;
    view->is_reversed = false;
}

bool
kvp_top_key(kvp_top_view_t *view, int key)
{
    static const char tables[] = "nmtcb";
    const char *table = key > 0 && key < 128 ? strchr(tables, key) : NULL;

    if (view->mode == KVP_TOP_FILTER) {
        edit_filter(view, key);
        return true;
    }
    if (view->mode == KVP_TOP_HELP) {
        view->mode = KVP_TOP_TABLES;
        return key != 'q';
    }
    if (table != NULL) choose_table(view, (uint32_t)(table - tables));
    if (key == '\t') choose_table(view, view->table + 1);
    if (key == '>') view->sort++; /* may pass the last column: draw_table corrects it */
    if (key == '<' && view->sort > 0) view->sort--;
    if (key == 'r') view->is_reversed = !view->is_reversed;
    if (key == '/') view->mode = KVP_TOP_FILTER;
    if (key == 0x1b) view->filter[0] = '\0';
    if (key == 'h' || key == '?') view->mode = KVP_TOP_HELP;
    if (key == 'p' || key == ' ') view->is_paused = !view->is_paused;
    if (key == KVP_TOP_KEY_DOWN) view->scroll++;
    if (key == KVP_TOP_KEY_PAGE_DOWN) view->scroll += 10;
    if (key == KVP_TOP_KEY_UP || key == KVP_TOP_KEY_PAGE_UP)
        view->scroll -= (uint32_t)kvp_min_u64(view->scroll, key == KVP_TOP_KEY_UP ? 1 : 10);
    return key != 'q';
}
