/* SPDX-License-Identifier: Apache-2.0
 * A daemon's web page, which embed.py makes of one HTML file and compiles into the program. The page has no outside
 * resource. Its script and its style are named to the browser by their hashes, so no other script runs in it. */
#ifndef KVP_COMMON_DAEMON_PAGE_H
#define KVP_COMMON_DAEMON_PAGE_H

#include "common/daemon/http.h"

typedef struct {
    const unsigned char *html;
    size_t len;
    const char *script, *style; /* their hashes, as Content-Security-Policy has them */
} kvp_page_t;

/* The program's page; made by embed.py. */
extern const kvp_page_t kvp_page;

/* kvp_page_answer answers with the page. */
void kvp_page_answer(const kvp_page_t *page, kvp_http_response_t *response);

#endif
