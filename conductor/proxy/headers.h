/* SPDX-License-Identifier: Apache-2.0
 * The headers of a server's answer, and which of them a proxy passes on. A list of headers is a
 * buffer with "Name\0value\0" for each, in the order of the answer. Pure functions. */
#ifndef KVP_CONDUCTOR_PROXY_HEADERS_H
#define KVP_CONDUCTOR_PROXY_HEADERS_H

#include "common/buf.h"

/* kvp_headers_next sets the next header's name and value, borrowed from the list, and advances *at,
 * which begins at 0. False = no more. */
bool kvp_headers_next(const kvp_buf_t *list, size_t *at, const char **name_out, const char **value_out);

/* kvp_headers_find: the value of the first header of that name, in any case; NULL = none. */
const char *kvp_headers_find(const kvp_buf_t *list, const char *name);

/* kvp_headers_passes returns whether the header goes to the client unchanged. These do not:
 * hop-by-hop headers (RFC 9110, 7.6.1), including those named in Connection; the length and the
 * type of the body, which the proxy writes itself; and X-Request-Id and Access-Control-*, of which
 * the proxy has its own. */
bool kvp_headers_passes(const kvp_buf_t *list, const char *name);

#endif
