/* SPDX-License-Identifier: Apache-2.0
 * A fast parser of long arrays of integers in the bodies of queries. A JSON library would use about a hundred
 * bytes of memory for each number. */
#ifndef KVP_CONDUCTOR_BASE_NUMBERS_H
#define KVP_CONDUCTOR_BASE_NUMBERS_H

#include "common/buf.h"

/* kvp_numbers_take looks for the field `name` in the root object of the body. If the value is an array, its
 * numbers, each at most max, go to numbers_out as uint64_t, and *rest_out is the body with an empty array in place
 * of the numbers. If the array is malformed, the function returns false, and *why_out (160 bytes) names the fault.
 * The body is not checked otherwise: if it is not JSON, neither is rest_out. */
bool kvp_numbers_take(const kvp_buf_t *body, const char *name, uint64_t max, kvp_buf_t *rest_out,
                      kvp_buf_t *numbers_out, bool *is_found_out, char why_out[160]);

#endif
