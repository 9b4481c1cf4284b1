/* SPDX-License-Identifier: Apache-2.0
 * Writes JSON into a growing buffer: just what kvpool_stat and the daemons' HTTP answers need.
 * libkvpool links no JSON library, and json-c's objects want a check after each call where memory
 * may be short. Names are ours and are written as they are; string values may come from peers and
 * are escaped. Errors stay in the buffer. */
#ifndef KVP_COMMON_JSONW_H
#define KVP_COMMON_JSONW_H

#include "common/buf.h"

/* The zero value is not valid: begin with kvp_jsonw_init. */
typedef struct {
    kvp_buf_t *out; /* borrowed */
    bool needs_comma;
} kvp_jsonw_t;

void kvp_jsonw_init(kvp_jsonw_t *w, kvp_buf_t *out);

/* name is NULL inside an array and for the outermost value. */
void kvp_jsonw_open(kvp_jsonw_t *w, const char *name, char bracket); /* '{' or '[' */
void kvp_jsonw_close(kvp_jsonw_t *w, char bracket); /* '}' or ']' */
/* kvp_jsonw_part inserts a value that another writer produced */
void kvp_jsonw_part(kvp_jsonw_t *w, const char *name, const kvp_buf_t *value);
void kvp_jsonw_u64(kvp_jsonw_t *w, const char *name, uint64_t value);
void kvp_jsonw_bool(kvp_jsonw_t *w, const char *name, bool value);
void kvp_jsonw_text(kvp_jsonw_t *w, const char *name, const char *value);
void kvp_jsonw_hex(kvp_jsonw_t *w, const char *name, const uint8_t *bytes, size_t len);

/* kvp_jsonw_give copies the written text with a terminator. BUFFER_SMALL, with *len_out set, if cap
 * is too small; else the first error of writing. */
kvp_err_t kvp_jsonw_give(const kvp_buf_t *text, char *buf, size_t cap, size_t *len_out) KVP_MUST_USE;

#endif
