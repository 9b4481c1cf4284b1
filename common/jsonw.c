/* SPDX-License-Identifier: Apache-2.0
 * The JSON writer. Its only state is one bit: whether the next value needs a comma before it. */
#include "common/jsonw.h"

#include "common/utf8.h"

#include <stdio.h>
#include <string.h>

void
kvp_jsonw_init(kvp_jsonw_t *w, kvp_buf_t *out)
{
    *w = (kvp_jsonw_t){.out = out};
}

static void
put_text(kvp_jsonw_t *w, const char *text)
{
    kvp_buf_append(w->out, text, strlen(text));
}

static void
put_string(kvp_jsonw_t *w, const char *text)
{
    const char *end = text + strlen(text);

    kvp_buf_append(w->out, "\"", 1);
    while (text < end) {
        char escaped[KVP_ESCAPED_MAX];
        size_t used, n = kvp_utf8_escape(text, (size_t)(end - text), escaped, &used);

        kvp_buf_append(w->out, escaped, n);
        text += used;
    }
    kvp_buf_append(w->out, "\"", 1);
}

static void
begin_value(kvp_jsonw_t *w, const char *name)
{
    if (w->needs_comma) put_text(w, ",");
    w->needs_comma = true;
    if (name == NULL) return;
    put_string(w, name);
    put_text(w, ":");
}

void
kvp_jsonw_open(kvp_jsonw_t *w, const char *name, char bracket)
{
    begin_value(w, name);
    kvp_buf_append(w->out, &bracket, 1);
    w->needs_comma = false;
}

void
kvp_jsonw_close(kvp_jsonw_t *w, char bracket)
{
    kvp_buf_append(w->out, &bracket, 1);
    w->needs_comma = true;
}

void
kvp_jsonw_part(kvp_jsonw_t *w, const char *name, const kvp_buf_t *value)
{
    begin_value(w, name);
    kvp_buf_append(w->out, value->data, value->len);
    if (w->out->err == KVP_OK) w->out->err = value->err;
}

void
kvp_jsonw_u64(kvp_jsonw_t *w, const char *name, uint64_t value)
{
    char text[24];

    begin_value(w, name);
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    put_text(w, text);
}

void
kvp_jsonw_ratio(kvp_jsonw_t *w, const char *name, uint64_t some, uint64_t all)
{
    char text[24];

    begin_value(w, name);
    snprintf(text, sizeof text, "%.6f", all == 0 ? 0 : (double)some / (double)all);
    put_text(w, all == 0 ? "null" : text);
}

void
kvp_jsonw_bool(kvp_jsonw_t *w, const char *name, bool value)
{
    begin_value(w, name);
    put_text(w, value ? "true" : "false");
}

void
kvp_jsonw_text(kvp_jsonw_t *w, const char *name, const char *value)
{
    begin_value(w, name);
    put_string(w, value);
}

void
kvp_jsonw_hex(kvp_jsonw_t *w, const char *name, const uint8_t *bytes, size_t len)
{
    char two[3];

    begin_value(w, name);
    put_text(w, "\"");
    for (size_t i = 0; i < len; i++) {
        snprintf(two, sizeof two, "%02x", bytes[i]);
        put_text(w, two);
    }
    put_text(w, "\"");
}

kvp_err_t
kvp_jsonw_give(const kvp_buf_t *text, char *buf, size_t cap, size_t *len_out)
{
    if (text->err != KVP_OK) return text->err;
    *len_out = text->len;
    if (cap <= text->len) {
        if (cap > 0) buf[0] = '\0';
        return KVP_BUFFER_SMALL;
    }
    memcpy(buf, text->data, text->len);
    buf[text->len] = '\0';
    return KVP_OK;
}
