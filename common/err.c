/* SPDX-License-Identifier: Apache-2.0
 * Names and texts of the error table, and kvp_panic, which stops the process after a bug. Any thread. */
#include "common/base.h"
#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    kvp_err_t err;
    const char *name;
    const char *text;
} err_row_t;

static const err_row_t rows[] = {
#define KVP_ERR_ROW(num, name, dropin, text) {num, #name, text},
    KVPOOL_ERR_MAP(KVP_ERR_ROW)
#undef KVP_ERR_ROW
};
static const err_row_t unknown_row = {0, "UNKNOWN", "unknown error"};

static const err_row_t *
row_of(kvp_err_t err)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(rows); i++) {
        if (rows[i].err == err) return &rows[i];
    }
    return &unknown_row;
}

const char *
kvp_err_name(kvp_err_t err)
{
    return row_of(err)->name;
}

const char *
kvp_err_text(kvp_err_t err)
{
    return row_of(err)->text;
}

void
kvp_panic(const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    kvp_log_error("panic", "%s", text);
    abort();
}
