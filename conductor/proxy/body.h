/* SPDX-License-Identifier: Apache-2.0
 * Parses the body of a request as far as the proxy needs: whether it is JSON, and the fields of the root object.
 * The proxy copies all other bytes unchanged. */
#ifndef KVP_CONDUCTOR_PROXY_BODY_H
#define KVP_CONDUCTOR_PROXY_BODY_H

#include "common/buf.h"
#include "conductor/base/jsonscan.h"

#define KVP_BODY_FIELDS_MAX 128u
#define KVP_BODY_DEPTH_MAX KVP_JSONSCAN_DEPTH_MAX

typedef struct {
    size_t name, name_len; /* position and length of the field's name in the text, without the quotes */
    size_t value, value_len;
    size_t elements; /* number of elements in the field's value, if it is an array or an object */
} kvp_body_field_t;

typedef struct {
    const char *text; /* text of the body; borrowed */
    kvp_body_field_t fields[KVP_BODY_FIELDS_MAX];
    uint32_t n;
} kvp_body_t;

/* kvp_body_read parses the text, which is borrowed. If the text is not an object in JSON (RFC 8259, UTF-8, at most
 * KVP_BODY_DEPTH_MAX levels and KVP_BODY_FIELDS_MAX fields), it returns false, and *why_out is the reason. */
bool kvp_body_read(const char *text, size_t len, kvp_body_t *out, const char **why_out);

/* kvp_body_is_named returns whether the field has the given ASCII name. The sender may have written the name with
 * escapes. */
bool kvp_body_is_named(const kvp_body_t *body, uint32_t field, const char *name);

/* kvp_body_find returns the bytes of the field's value, or NULL. Of two fields with equal names the last one
 * counts, as in usual JSON parsers. */
const char *kvp_body_find(const kvp_body_t *body, const char *name, size_t *len_out);

/* kvp_body_is_list_of_several returns whether the field is an array of several prompts: of at least two elements, the
 * first of which is no number (an array of numbers is one prompt of token ids). */
bool kvp_body_is_list_of_several(const kvp_body_t *body, uint32_t field);

/* kvp_body_copy appends the object to out, without the fields named in `without` (a list ended by NULL). Then it
 * adds the fields in `more` (`"a":1,"b":2`; "" = none). */
void kvp_body_copy(const kvp_body_t *body, const char *const *without, const char *more, kvp_buf_t *out);

#endif
