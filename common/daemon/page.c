/* SPDX-License-Identifier: Apache-2.0 */
#include "common/daemon/page.h"

#include <stdio.h>

void
kvp_page_answer(const kvp_page_t *page, kvp_http_response_t *response)
{
    char policy[512];

    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; img-src data:; base-uri 'none'; "
             "form-action 'none'; frame-ancestors 'none'",
             page->script, page->style);
    const char *const headers[][2] = {{"Content-Security-Policy", policy},
                                      {"X-Content-Type-Options", "nosniff"},
                                      {"Referrer-Policy", "no-referrer"},
                                      {"Cache-Control", "no-cache"}};
    kvp_http_type(response, "text/html; charset=utf-8");
    for (size_t i = 0; i < KVP_ARRAY_LEN(headers); i++)
        if (kvp_http_set_header(response, headers[i][0], headers[i][1]) != KVP_OK) {
            kvp_http_error(response, 503, "%s", kvp_err_text(KVP_NOMEM));
            return;
        }
    kvp_buf_append(kvp_http_out(response), page->html, page->len);
}
