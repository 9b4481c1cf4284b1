/* SPDX-License-Identifier: Apache-2.0
 * Keeps web pages away from a control port. A browser sends a page's requests to any address,
 * 127.0.0.1 included, so a port that other hosts cannot reach is still open to every page that an
 * operator visits. The browser names the page in Sec-Fetch-Site and Origin, and a page cannot
 * change these headers. A page whose own name resolves to 127.0.0.1 (DNS rebinding) has its name in
 * Host. Other clients send neither header and are not affected. Pure functions. */
#ifndef KVP_COMMON_DAEMON_HTTP_GUARD_H
#define KVP_COMMON_DAEMON_HTTP_GUARD_H

#include "common/base.h"

/* Headers of one request. The texts are borrowed. */
typedef struct {
    const char *host, *origin; /* NULL = the request has none */
    /* has_site: the request has Sec-Fetch-Site, so a browser sent the request */
    bool is_cross_site, has_site, has_twice;
} kvp_http_guard_t;

/* kvp_http_guard_header reads one header of the request. The caller zeroes the struct before the
 * first header. value may be NULL. */
void kvp_http_guard_header(kvp_http_guard_t *guard, const char *name, const char *value);

/* kvp_http_guard_check returns NULL for an accepted request, else the reason of the refusal in
 * static storage. is_loopback: the server listens at a loopback address, and Host has to be an IP
 * address or "localhost". A Host of one label passes as well without a browser's headers, because
 * no page on the internet has a name of one label. */
const char *kvp_http_guard_check(const kvp_http_guard_t *guard, bool is_loopback) KVP_MUST_USE;

#endif
