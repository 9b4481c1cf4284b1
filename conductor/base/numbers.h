/* SPDX-License-Identifier: Apache-2.0
 * The long arrays of whole numbers in the bodies of questions: a JSON library takes a hundred bytes for each of them.
 */
#ifndef KVP_CONDUCTOR_BASE_NUMBERS_H
#define KVP_CONDUCTOR_BASE_NUMBERS_H

#include "common/buf.h"

/* kvp_numbers_take looks for the field `name` of the body's outermost object. If its value is an
 * array, *rest_out is the body with an empty array in its place, and numbers_out has uint64_t, each
 * at most max. False: *why_out (160 bytes) has the fault of the array. The body is not trusted: if
 * it is not JSON, rest_out is not either. */
bool kvp_numbers_take(const kvp_buf_t *body, const char *name, uint64_t max, kvp_buf_t *rest_out,
                      kvp_buf_t *numbers_out, bool *is_found_out, char why_out[160]);

#endif
