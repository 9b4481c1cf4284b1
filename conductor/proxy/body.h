/* SPDX-License-Identifier: Apache-2.0
 * Bodies of requests, as far as a proxy has to know and change them: whether they are JSON, and the
 * fields of the outermost object. All else stays as its sender wrote it, byte by byte. */
#ifndef KVP_CONDUCTOR_PROXY_BODY_H
#define KVP_CONDUCTOR_PROXY_BODY_H

#include "common/buf.h"
#include "conductor/base/jsonscan.h"

#define KVP_BODY_FIELDS_MAX 128u
#define KVP_BODY_DEPTH_MAX KVP_JSONSCAN_DEPTH_MAX

typedef struct {
    size_t name, name_len; /* of the raw text between the quotes */
    size_t value, value_len;
    size_t elements; /* of a value that is an array or an object */
} kvp_body_field_t;

typedef struct {
    const char *text; /* borrowed */
    kvp_body_field_t fields[KVP_BODY_FIELDS_MAX];
    uint32_t n;
} kvp_body_t;

/* kvp_body_read: false: *why_out says why the text is not an object in JSON (RFC 8259, UTF-8, at
 * most KVP_BODY_DEPTH_MAX levels and KVP_BODY_FIELDS_MAX fields). text is borrowed. */
bool kvp_body_read(const char *text, size_t len, kvp_body_t *out, const char **why_out);

/* kvp_body_is_named returns whether the field has the name, an ASCII text, with any escapes of the
 * sender. */
bool kvp_body_is_named(const kvp_body_t *body, uint32_t field, const char *name);

/* kvp_body_find returns the value's bytes, or NULL. Of two equal names the last one counts, as for
 * usual readers. */
const char *kvp_body_find(const kvp_body_t *body, const char *name, size_t *len_out);

/* kvp_body_is_list_of_several returns whether the field is an array of two elements or more that
 * does not begin with a number. */
bool kvp_body_is_list_of_several(const kvp_body_t *body, uint32_t field);

/* kvp_body_copy appends the object to out without the named fields (list ended by NULL), and with
 * `more` (fields, `"a":1,"b":2`; "" = none) after the others. */
void kvp_body_copy(const kvp_body_t *body, const char *const *without, const char *more, kvp_buf_t *out);

#endif
