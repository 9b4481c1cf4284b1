/* SPDX-License-Identifier: Apache-2.0
 * Writes JSON into a growing buffer, for kvpool_stat and the daemons' HTTP answers. libkvpool links no JSON
 * library, and json-c needs a check after each call for a lack of memory. Names are constants of this project and
 * are written unescaped. String values may come from peers and are escaped. Errors are stored in the buffer. */
#ifndef KVP_COMMON_JSONW_H
#define KVP_COMMON_JSONW_H

#include "common/buf.h"

/* The state of a writer. Zeroed memory is not valid: begin with kvp_jsonw_init. */
typedef struct {
    kvp_buf_t *out; /* buffer for the JSON text; borrowed */
    bool needs_comma;
} kvp_jsonw_t;

void kvp_jsonw_init(kvp_jsonw_t *w, kvp_buf_t *out);

/* The functions kvp_jsonw_open to kvp_jsonw_hex write a value; name is NULL in an array and for the outermost value. */
/* kvp_jsonw_open begins an object or an array; bracket: '{' or '[' */
void kvp_jsonw_open(kvp_jsonw_t *w, const char *name, char bracket);
void kvp_jsonw_close(kvp_jsonw_t *w, char bracket); /* ends an object or an array; bracket: '}' or ']' */
/* kvp_jsonw_part inserts a JSON value that another writer has written. */
void kvp_jsonw_part(kvp_jsonw_t *w, const char *name, const kvp_buf_t *value);
void kvp_jsonw_u64(kvp_jsonw_t *w, const char *name, uint64_t value);
void kvp_jsonw_ratio(kvp_jsonw_t *w, const char *name, uint64_t some, uint64_t all); /* six places; null if all is 0 */
void kvp_jsonw_bool(kvp_jsonw_t *w, const char *name, bool value);
void kvp_jsonw_text(kvp_jsonw_t *w, const char *name, const char *value);
void kvp_jsonw_hex(kvp_jsonw_t *w, const char *name, const uint8_t *bytes, size_t len);

/* kvp_jsonw_give copies the written text, with a terminator, to buf, and sets *len_out. BUFFER_SMALL, with
 * *len_out set, if cap is too small; otherwise the buffer's error, if any. */
kvp_err_t kvp_jsonw_give(const kvp_buf_t *text, char *buf, size_t cap, size_t *len_out) KVP_MUST_USE;

#endif
