/* SPDX-License-Identifier: Apache-2.0
 * Draws the model of the live view into a buffer of columns x rows, and changes the view by keys. Pure: knows no
 * terminal. */
#ifndef KVP_TOOLS_TOP_DRAW_H
#define KVP_TOOLS_TOP_DRAW_H

#include "common/base.h"

#include <json-c/json.h>

typedef enum { KVP_TOP_TABLES, KVP_TOP_FILTER, KVP_TOP_HELP } kvp_top_mode_t;

/* Keys beyond their characters. */
enum { KVP_TOP_KEY_UP = 256, KVP_TOP_KEY_DOWN, KVP_TOP_KEY_PAGE_UP, KVP_TOP_KEY_PAGE_DOWN };

/* What the user has chosen; zeroed memory is the view at the start. */
typedef struct {
    kvp_top_mode_t mode;
    uint32_t table; /* index in kvp_top_tables of the table that is shown first, sorted and filtered */
    uint32_t sort; /* its column */
    uint32_t scroll; /* first row of it that is shown */
    bool is_reversed, is_paused;
    char filter[64]; /* part of a row's texts; "" = all rows */
} kvp_top_view_t;

/* kvp_top_key changes the view. It returns false if the key quits. */
bool kvp_top_key(kvp_top_view_t *view, int key);

/* kvp_top_draw fills rows x columns cells with printable ASCII, and a style for each row: ' ', 'b' (bold) or 'r'
 * (reverse). A byte of a name that is no printable ASCII becomes \xNN. title is the first line's begin. trouble (NULL =
 * none) is why the model is old. model may be NULL. The scroll and the column of the view are corrected to what there
 * is. */
void kvp_top_draw(struct json_object *model, const char *title, const char *trouble, kvp_top_view_t *view,
                  uint32_t columns, uint32_t rows, char *cells, char *styles);

#endif
