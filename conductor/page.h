/* SPDX-License-Identifier: Apache-2.0
 * The page at /: conductor/page.html, as embed.py makes it part of the program. */
#ifndef KVP_CONDUCTOR_PAGE_H
#define KVP_CONDUCTOR_PAGE_H

#include <stddef.h>

extern const unsigned char kvp_page[];
extern const size_t kvp_page_len;

#endif
