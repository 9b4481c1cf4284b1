/* SPDX-License-Identifier: Apache-2.0
 * Checks of UTF-8: overlong forms, surrogates and characters above U+10FFFF are refused. Escapes for JSON and logfmt.
 */
#ifndef KVP_COMMON_UTF8_H
#define KVP_COMMON_UTF8_H

#include "common/base.h"

/* kvp_utf8_step returns the length of the first sequence in the len bytes at text; 0 if it is malformed. len > 0. */
size_t kvp_utf8_step(const void *text, size_t len);

bool kvp_is_utf8(const void *text, size_t len);

/* kvp_utf8_escape writes the first character of the len bytes at text, as JSON and logfmt need it between quotation
 * marks. It returns the number of bytes written, without a terminator, and sets *used_out to the number of bytes read.
 * A malformed byte becomes U+FFFD. Control characters are escaped, also U+0080 to U+009F. len > 0. */
#define KVP_ESCAPED_MAX 8u /* most bytes that are written, with room for snprintf's terminator */
size_t kvp_utf8_escape(const char *text, size_t len, char escaped[KVP_ESCAPED_MAX], size_t *used_out);

#endif
