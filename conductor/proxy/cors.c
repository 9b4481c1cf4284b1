/* SPDX-License-Identifier: Apache-2.0 */
#include "conductor/proxy/cors.h"

#include "common/parse.h"

#include <string.h>

#define METHODS "GET, POST, OPTIONS"

static const char *
find_header(struct MHD_Connection *conn, const char *name)
{
    return MHD_lookup_connection_value(conn, MHD_HEADER_KIND, name);
}

/* Returns true for an origin as browsers write it: SCHEME://HOST[:PORT] without path and capitals, or "null", the
 * origin of a page from a file. */
static bool
is_origin(const char *text, size_t len)
{
    const char *host = memmem(text, len, "://", 3);

    if (len == 4 && memcmp(text, "null", 4) == 0) return true;
    if (host == NULL || host == text || (size_t)(host - text) + 3 >= len) return false;
    for (const char *c = text; c < text + len; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f || *c == '*' || (*c >= 'A' && *c <= 'Z')) return false;
    return memchr(host + 3, '/', len - (size_t)(host - text) - 3) == NULL;
}

bool
kvp_cors_is_list(const char *text)
{
    if (strcmp(text, "*") == 0 || strcmp(text, "none") == 0) return true;
    for (;;) {
        const size_t len = strcspn(text, ",");

        if (!is_origin(text, len)) return false;
        if (text[len] == '\0') return true;
        text += len + 1;
    }
}

static bool
is_allowed(const char *origins, const char *origin)
{
    return strcmp(origins, "*") == 0 || kvp_is_listed(origins, origin);
}

bool
kvp_cors_allows(const char *origins, struct MHD_Connection *conn)
{
    const char *origin = find_header(conn, MHD_HTTP_HEADER_ORIGIN);

    return origin == NULL || is_allowed(origins, origin);
}

enum MHD_Result
kvp_cors_add(const char *origins, struct MHD_Connection *conn, struct MHD_Response *r)
{
    const char *origin = find_header(conn, MHD_HTTP_HEADER_ORIGIN);
    const bool is_any = strcmp(origins, "*") == 0;
    enum MHD_Result ok = MHD_YES;

    if (origin == NULL || !is_allowed(origins, origin)) return MHD_YES;
    if (!is_any) ok = MHD_add_response_header(r, MHD_HTTP_HEADER_VARY, "Origin");
    if (ok == MHD_YES) ok = MHD_add_response_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    return ok == MHD_YES
               ? MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, is_any ? "*" : origin)
               : ok;
}

enum MHD_Result
kvp_cors_answer_options(const char *origins, struct MHD_Connection *conn)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    const char *wanted = find_header(conn, "Access-Control-Request-Headers");
    enum MHD_Result ok = r == NULL ? MHD_NO : MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, METHODS);

    if (ok == MHD_YES) ok = kvp_cors_add(origins, conn, r);
    if (ok == MHD_YES) ok = MHD_add_response_header(r, "Access-Control-Allow-Methods", METHODS);
    /* Access-Control-Allow-Headers "*" would not allow Authorization, so the headers that the page wants are listed. */
    if (ok == MHD_YES && wanted != NULL && wanted[0] != '\0')
        ok = MHD_add_response_header(r, "Access-Control-Allow-Headers", wanted);
    if (ok == MHD_YES) ok = MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    if (ok == MHD_YES) ok = MHD_queue_response(conn, MHD_HTTP_NO_CONTENT, r);
    if (r != NULL) MHD_destroy_response(r);
    return ok;
}
