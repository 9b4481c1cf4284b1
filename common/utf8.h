/* SPDX-License-Identifier: Apache-2.0
 * What is UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
 */
#ifndef KVP_COMMON_UTF8_H
#define KVP_COMMON_UTF8_H

#include "common/base.h"

/* kvp_utf8_step returns the length of the sequence that the len bytes at text begin with, 0 if it
 * is not well-formed. len > 0. */
size_t kvp_utf8_step(const void *text, size_t len);

bool kvp_is_utf8(const void *text, size_t len);

#endif
