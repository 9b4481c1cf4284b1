/* SPDX-License-Identifier: Apache-2.0
 * Decides which web pages may use the OpenAI port, by the CORS protocol of the Fetch standard. A browser sends the
 * page's origin in the header Origin. Before a request with JSON it asks for permission with OPTIONS. It shows an
 * answer to the page only if the answer contains the page's origin or "*". Requests without Origin do not come
 * from a page and always pass. origins is "*" for any origin, "none", or a comma-separated list of origins. */
#ifndef KVP_CONDUCTOR_PROXY_CORS_H
#define KVP_CONDUCTOR_PROXY_CORS_H

#include "common/base.h"

#include <microhttpd.h>

/* kvp_cors_is_list returns whether text is a legal list of allowed origins: "*", "none", or origins with commas. */
bool kvp_cors_is_list(const char *text);

/* kvp_cors_allows returns whether the request may pass. */
bool kvp_cors_allows(const char *origins, struct MHD_Connection *conn);

/* kvp_cors_add adds the headers that let the page read the answer, if its origin is allowed. */
enum MHD_Result kvp_cors_add(const char *origins, struct MHD_Connection *conn, struct MHD_Response *r) KVP_MUST_USE;

/* kvp_cors_answer_options answers an OPTIONS request with 204. The request must have passed kvp_cors_allows. */
enum MHD_Result kvp_cors_answer_options(const char *origins, struct MHD_Connection *conn) KVP_MUST_USE;

#endif
