/* SPDX-License-Identifier: Apache-2.0
 * Parses JSON bodies from untrusted clients. A body is refused if the parser would need too much memory for it, or
 * would read it as another value. */
#include "common/daemon/http.h"

#include "common/utf8.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 32
#define VALUES_MAX 4096u /* most values in a body; the parser needs hundreds of bytes for a value of two characters */
#define UNIT_LEN 6 /* length of an escaped UTF-16 unit, \uXXXX */

static bool
has_too_many_values(const kvp_buf_t *body)
{
    size_t n = 0;
    bool is_text = false;
    for (size_t i = 0; i < body->len && n <= VALUES_MAX; i++) {
        uint8_t c = body->data[i];
        if (c == '"')
            is_text = !is_text;
        else if (is_text)
            i += c == '\\';
        else
            n += c == ',' || c == '[' || c == '{';
    }
    return n > VALUES_MAX;
}

/* Returns the UTF-16 unit of the escape \uXXXX at `at`; 0 if there is none. */
static unsigned
unit_at(const kvp_buf_t *body, size_t at)
{
    if (body->len < UNIT_LEN || at > body->len - UNIT_LEN) return 0;
    const uint8_t *text = body->data + at;
    if (text[0] != '\\' || text[1] != 'u') return 0;
    char hex[UNIT_LEN - 1] = "";
    memcpy(hex, text + 2, UNIT_LEN - 2);
    return strspn(hex, "0123456789abcdefABCDEF") == UNIT_LEN - 2 ? (unsigned)strtoul(hex, NULL, 16) : 0;
}

/* Returns whether a text contains half of a surrogate pair, which the parser would replace by U+FFFD. */
static bool
has_half_pair(const kvp_buf_t *body)
{
    for (size_t i = 0; i < body->len; i++) {
        if (body->data[i] != '\\') continue;
        unsigned unit = unit_at(body, i);
        if (unit >= 0xdc00 && unit <= 0xdfff) return true;
        if (unit >= 0xd800 && unit <= 0xdbff) {
            i += UNIT_LEN;
            unsigned low = unit_at(body, i);
            if (low < 0xdc00 || low > 0xdfff) return true;
            i += UNIT_LEN - 1;
        } else {
            i++; /* skips the escaped character, which may be a backslash */
        }
    }
    return false;
}

/* parse_body returns NULL for valid JSON, else the fault as a text. For the JSON value null, *value_out is NULL. */
static const char *
parse_body(struct json_tokener *tokener, const kvp_buf_t *body, json_object **value_out)
{
    const char *text = body->data != NULL ? (const char *)body->data : "";
    json_object *value = json_tokener_parse_ex(tokener, text, (int)body->len);
    bool is_whole = json_tokener_get_parse_end(tokener) == body->len;
    /* A literal or a number could continue after the buffer, so a NUL marks the end of the value. */
    if (json_tokener_get_error(tokener) == json_tokener_continue) value = json_tokener_parse_ex(tokener, "", 1);
    enum json_tokener_error err = json_tokener_get_error(tokener);
    if (err == json_tokener_success && is_whole) {
        *value_out = value;
        return NULL;
    }
    json_object_put(value);
    if (err == json_tokener_success) return "something follows";
    return err == json_tokener_error_parse_eof ? "it ends too early" : json_tokener_error_desc(err);
}

json_object *
kvp_http_body_json(const kvp_http_request_t *request, kvp_http_response_t *response)
{
    return kvp_http_text_json(kvp_http_body(request), response);
}

json_object *
kvp_http_text_json(const kvp_buf_t *body, kvp_http_response_t *response)
{
    if (has_too_many_values(body)) {
        kvp_http_error(response, 400, "body has more than %u values", VALUES_MAX);
        return NULL;
    }
    if (!kvp_is_utf8(body->data, body->len)) {
        kvp_http_error(response, 400, "body is not UTF-8");
        return NULL;
    }
    if (has_half_pair(body)) {
        kvp_http_error(response, 400, "body has half of a surrogate pair (\\ud800 to \\udfff), which is no character");
        return NULL;
    }
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MAX);
    if (tokener == NULL) {
        kvp_http_error(response, 503, "%s", kvp_err_text(KVP_NOMEM));
        return NULL;
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    json_object *value = NULL;
    const char *why = parse_body(tokener, body, &value);
    if (why != NULL)
        kvp_http_error(response, 400, "body is not JSON: %s", why);
    else if (value == NULL)
        kvp_http_error(response, 400, "body is null");
    json_tokener_free(tokener);
    return value;
}
