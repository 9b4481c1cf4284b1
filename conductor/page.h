/* SPDX-License-Identifier: Apache-2.0
 * The web page that the conductor serves at /: conductor/page.html, which embed.py compiles into the program. */
#ifndef KVP_CONDUCTOR_PAGE_H
#define KVP_CONDUCTOR_PAGE_H

#include <stddef.h>

extern const unsigned char kvp_page[];
extern const size_t kvp_page_len;

#endif
