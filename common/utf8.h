/* SPDX-License-Identifier: Apache-2.0
 * Checks of UTF-8: overlong forms, surrogates and characters above U+10FFFF are refused. */
#ifndef KVP_COMMON_UTF8_H
#define KVP_COMMON_UTF8_H

#include "common/base.h"

/* kvp_utf8_step returns the length of the first sequence in the len bytes at text; 0 if it is malformed. len > 0. */
size_t kvp_utf8_step(const void *text, size_t len);

bool kvp_is_utf8(const void *text, size_t len);

#endif
