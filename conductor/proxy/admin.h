/* SPDX-License-Identifier: Apache-2.0
 * The administration of a proxy's servers by an operator: through options at the start, and through HTTP
 * (/servers) at run time. */
#ifndef KVP_CONDUCTOR_PROXY_ADMIN_H
#define KVP_CONDUCTOR_PROXY_ADMIN_H

#include "common/daemon/http.h"
#include "conductor/proxy/proxy.h"

/* kvp_proxy_admin_add adds the server in an option's text: URL, or for a prefill server also URL,BOOTSTRAP with the
 * PORT or HOST:PORT of its bootstrap server. INVALID, LIMIT; logged. */
kvp_err_t kvp_proxy_admin_add(kvp_proxy_t *p, kvp_server_role_t role, const char *text) KVP_MUST_USE;

/* kvp_proxy_admin_route binds GET, POST and DELETE of /servers. The proxy must outlive the HTTP server. */
kvp_err_t kvp_proxy_admin_route(kvp_proxy_t *p, kvp_http_t *http) KVP_MUST_USE;

#endif
