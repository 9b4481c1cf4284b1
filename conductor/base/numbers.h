/* SPDX-License-Identifier: Apache-2.0
 * A fast parser of long arrays of integers in the bodies of queries. A JSON library would use about a hundred
 * bytes of memory for each number. */
#ifndef KVP_CONDUCTOR_BASE_NUMBERS_H
#define KVP_CONDUCTOR_BASE_NUMBERS_H

#include "common/buf.h"

/* kvp_numbers_take looks for an array in the field `name` of the root object of the body. If there is one, its
 * numbers, each at most max, go to numbers_out as uint64_t, and rest_out is the body with an empty array in their
 * place; otherwise rest_out is the whole body. If the array is malformed, the function returns false, and *why_out
 * names the fault. The body is not checked otherwise: if it is not JSON, neither is rest_out. */
bool kvp_numbers_take(const kvp_buf_t *body, const char *name, uint64_t max, kvp_buf_t *rest_out,
                      kvp_buf_t *numbers_out, bool *is_found_out, char why_out[160]);

#endif
