/* SPDX-License-Identifier: Apache-2.0
 * Which web pages may use the OpenAI port, by the CORS protocol of the Fetch standard. A browser
 * names the page in Origin. Before a request with JSON it asks for permission with OPTIONS. It
 * shows an answer to the page only if the answer names the page's origin or "*". Requests without
 * Origin are not a page's and always pass. origins is "*" for any origin, "none", or a list of
 * origins with a comma between each two. */
#ifndef KVP_CONDUCTOR_PROXY_CORS_H
#define KVP_CONDUCTOR_PROXY_CORS_H

#include "common/base.h"

#include <microhttpd.h>

/* kvp_cors_is_list returns whether text is a legal value of origins. */
bool kvp_cors_is_list(const char *text);

/* kvp_cors_allows returns whether the request may pass. */
bool kvp_cors_allows(const char *origins, struct MHD_Connection *conn);

/* kvp_cors_add adds the headers that let the page read an answer, if its origin may. */
enum MHD_Result kvp_cors_add(const char *origins, struct MHD_Connection *conn, struct MHD_Response *r) KVP_MUST_USE;

/* kvp_cors_answer_options answers an OPTIONS request that kvp_cors_allows lets pass, with 204. */
enum MHD_Result kvp_cors_answer_options(const char *origins, struct MHD_Connection *conn) KVP_MUST_USE;

#endif
