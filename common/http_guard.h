/* SPDX-License-Identifier: Apache-2.0
 * Protects a control port against web pages. A browser sends a page's requests to any address, including
 * 127.0.0.1. So even a port that other hosts cannot reach is open to every page that an operator visits. The
 * browser names the page in Sec-Fetch-Site and Origin, and a page cannot change these headers. A page whose own
 * name resolves to 127.0.0.1 (DNS rebinding) has its name in Host. Clients other than browsers send neither header
 * and are not affected. A person may follow a link from another site to a daemon's own page: the other site cannot
 * read the page then. Pure functions. */
#ifndef KVP_COMMON_HTTP_GUARD_H
#define KVP_COMMON_HTTP_GUARD_H

#include "common/base.h"

/* The headers of one request that the check needs. The texts are borrowed. */
typedef struct {
    const char *host, *origin; /* values of Host and Origin; NULL = the request has none */
    /* is_cross_site: Sec-Fetch-Site names another site; has_site: Sec-Fetch-Site is present, so a browser sent the
     * request; has_twice: Host or Origin is repeated; is_visit: Sec-Fetch-Dest is "document", so the answer is shown in
     * a window of its own */
    bool is_cross_site, has_site, has_twice, is_visit;
} kvp_http_guard_t;

/* kvp_http_guard_header reads one header of the request; value may be NULL. The caller zeroes the struct before
 * the first header. */
void kvp_http_guard_header(kvp_http_guard_t *guard, const char *name, const char *value);

/* kvp_http_guard_check returns NULL for an accepted request, else the reason for the refusal, a static text.
 * is_page: the request reads the daemon's own page, which a link on another site may open. is_loopback: the server
 * listens at a loopback address, and Host must be an IP address or "localhost". Without a browser's headers a Host of
 * one label is accepted, too, because no page on the internet has a name of one label. */
const char *kvp_http_guard_check(const kvp_http_guard_t *guard, bool is_loopback, bool is_page) KVP_MUST_USE;

#endif
