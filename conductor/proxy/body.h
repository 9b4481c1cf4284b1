/* SPDX-License-Identifier: Apache-2.0
 * Bodies of requests, as far as a proxy has to know and change them: whether they are JSON, and the fields of the outermost object. All else stays as its sender wrote it, byte by byte.
 */
#ifndef KVP_CONDUCTOR_PROXY_BODY_H
#define KVP_CONDUCTOR_PROXY_BODY_H

#include "common/buf.h"
#include "conductor/jsonscan.h"

#define KVP_BODY_FIELDS_MAX 128u
#define KVP_BODY_DEPTH_MAX KVP_JSONSCAN_DEPTH_MAX

typedef struct {
    size_t name, name_len; /* of the text between the quotes, as it stands there */
    size_t value, value_len;
    size_t elements; /* of a value that is an array or an object */
} kvp_body_field_t;

typedef struct {
    const char *text; /* borrowed */
    kvp_body_field_t fields[KVP_BODY_FIELDS_MAX];
    uint32_t n;
} kvp_body_t;

/* kvp_body_read: false: *why_out says why it is no object in JSON (RFC 8259, UTF-8, KVP_BODY_DEPTH_MAX levels and KVP_BODY_FIELDS_MAX fields at most). text is borrowed. */
bool kvp_body_read(const char *text, size_t len, kvp_body_t *out, const char **why_out);

/* kvp_body_is_named says whether that field has that name, which is of ASCII, however the sender escaped it. */
bool kvp_body_is_named(const kvp_body_t *body, uint32_t field, const char *name);

/* kvp_body_find: the value's bytes, or NULL. The last one counts, as readers have it. */
const char *kvp_body_find(const kvp_body_t *body, const char *name, size_t *len_out);

/* kvp_body_is_list_of_several says whether that field is an array that has two elements or more and does not begin
 * with a number. */
bool kvp_body_is_list_of_several(const kvp_body_t *body, uint32_t field);

/* kvp_body_copy appends the object to out without fields of those names (ended by NULL), and with `more` (fields, `"a":1,"b":2`; "" = none) behind the others. */
void kvp_body_copy(const kvp_body_t *body, const char *const *without, const char *more, kvp_buf_t *out);

#endif
