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

/* The user's choices; zeroed memory is the view at the start. */
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

/* kvp_top_draw fills rows x columns cells with printable ASCII, and sets a style for each row: ' ', 'b' (bold) or 'r'
 * (reverse). Other bytes of a name become \xNN. title begins the first line. trouble is the reason why the model is
 * old; NULL = it is new. model may be NULL. Positions of the view beyond the model's rows and columns are corrected. */
void kvp_top_draw(struct json_object *model, const char *title, const char *trouble, kvp_top_view_t *view,
                  uint32_t columns, uint32_t rows, char *cells, char *styles);

#endif
