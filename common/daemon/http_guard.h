/* SPDX-License-Identifier: Apache-2.0
 * Keeps web pages away from a control port. A browser sends requests of any page to any address that it reaches, 127.0.0.1
 * included, so a port that is safe from other hosts is not safe from the pages that an operator opens. A browser names the
 * page: Sec-Fetch-Site and Origin say where the request comes from, and a page cannot change them. A page whose own name
 * resolves to 127.0.0.1 (DNS rebinding) has that name in Host. Other clients send neither header and are not concerned.
 * Pure functions.
 */
#ifndef KVP_COMMON_DAEMON_HTTP_GUARD_H
#define KVP_COMMON_DAEMON_HTTP_GUARD_H

#include "common/base.h"

/* The headers of one request. The texts are borrowed. */
typedef struct {
    const char *host, *origin; /* NULL = the request has none */
    bool is_cross_site, has_site, has_twice; /* has_site: Sec-Fetch-Site, so a browser sent the request */
} kvp_http_guard_t;

/* kvp_http_guard_header reads one header of the request. The struct is zero before the first one. value may be NULL. */
void kvp_http_guard_header(kvp_http_guard_t *guard, const char *name, const char *value);

/* kvp_http_guard_check returns NULL for a request that may pass, else the reason for people, in static storage.
 * is_loopback says that the server listens at a loopback address: then Host has to be an IP address or "localhost". A name
 * of one label passes as well if no header is a browser's, because no page on the internet has such a name. */
const char *kvp_http_guard_check(const kvp_http_guard_t *guard, bool is_loopback) KVP_MUST_USE;

#endif
