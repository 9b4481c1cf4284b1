/* SPDX-License-Identifier: Apache-2.0
 * See admin.h. */
#include "conductor/proxy/admin.h"

#include "common/log.h"
#include "conductor/base/url.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

static const char *const role_names[KVP_SERVER_ROLES] = {"replica", "prefill", "decode"};

/* Adds a server to the proxy. bootstrap is the address of the server's bootstrap server: HOST:PORT, or only PORT
 * if it is on the host of the url; "" = none. */
static kvp_err_t
add_server(kvp_proxy_t *p, kvp_server_role_t role, const char *url, const char *bootstrap)
{
    char base[KVP_HOSTPORT_TEXT_MAX + 8] = "", text[KVP_HOSTPORT_TEXT_MAX];
    kvp_hostport_t at;
    const char *path;
    uint64_t port;

    if ((bootstrap[0] != '\0' && role != KVP_SERVER_PREFILL) || strncmp(url, "https", 5) == 0 ||
        kvp_url_split(url, &at, &path) != KVP_OK)
        return KVP_INVALID;
    if (bootstrap[0] == '\0') return kvp_proxy_add(p, role, url, "");
    if (kvp_parse_u64(bootstrap, &port) == KVP_OK && port <= UINT16_MAX)
        at.port = (uint16_t)port;
    else if (kvp_parse_hostport(bootstrap, &at) != KVP_OK)
        return KVP_INVALID;
    if (at.port == 0) return KVP_INVALID;
    snprintf(base, sizeof base, "http://%s", kvp_format_hostport(&at, text));
    return kvp_proxy_add(p, role, url, base);
}

kvp_err_t
kvp_proxy_admin_add(kvp_proxy_t *p, kvp_server_role_t role, const char *text)
{
    const char *comma = strchr(text, ',');
    char url[KVP_FLEET_URL_MAX + 1];
    kvp_err_t err = kvp_base_url(text, comma == NULL ? strlen(text) : (size_t)(comma - text), url, sizeof url);

    if (err == KVP_OK && comma != NULL && comma[1] == '\0') err = KVP_INVALID;
    if (err == KVP_OK) err = add_server(p, role, url, comma == NULL ? "" : comma + 1);
    if (err == KVP_LIMIT)
        kvp_log_error("proxy", "too many servers: %s", text);
    else if (err != KVP_OK)
        kvp_log_error("proxy", "%s is not http://HOST:PORT%s", text,
                      role == KVP_SERVER_PREFILL ? ", alone or with ,BOOTSTRAP_PORT or ,BOOTSTRAP_HOST:PORT" : "");
    return err;
}

/* ---- handlers of /servers */
typedef struct {
    kvp_server_role_t role;
    char url[KVP_FLEET_URL_MAX + 1];
    char bootstrap[KVP_HOSTPORT_TEXT_MAX]; /* address of the bootstrap server; "" = none */
} request_t;

/* Reads the field bootstrap_port or bootstrap_server_address. Returns false if both are present, or if one is
 * malformed. */
static bool
take_bootstrap(const json_object *in, request_t *out)
{
    json_object *port = NULL, *address = NULL;
    kvp_hostport_t at;

    (void)json_object_object_get_ex(in, "bootstrap_port", &port);
    (void)json_object_object_get_ex(in, "bootstrap_server_address", &address);
    if (port != NULL && address != NULL) return false;
    if (port != NULL) {
        const uint64_t n = json_object_is_type(port, json_type_int) ? json_object_get_uint64(port) : 0;

        snprintf(out->bootstrap, sizeof out->bootstrap, "%llu", (unsigned long long)n);
        return n > 0 && n <= UINT16_MAX;
    }
    if (address == NULL) return true;
    if (!json_object_is_type(address, json_type_string) ||
        kvp_parse_hostport(json_object_get_string(address), &at) != KVP_OK)
        return false;
    kvp_format_hostport(&at, out->bootstrap);
    return true;
}

static bool
take_request(const json_object *in, request_t *out)
{
    json_object *role, *url;
    const char *name;

    *out = (request_t){.role = KVP_SERVER_ROLES};
    if (!json_object_is_type(in, json_type_object) || !json_object_object_get_ex(in, "role", &role) ||
        !json_object_is_type(role, json_type_string) || !json_object_object_get_ex(in, "url", &url) ||
        !json_object_is_type(url, json_type_string))
        return false;
    name = json_object_get_string(role);
    for (uint32_t i = 0; i < KVP_SERVER_ROLES; i++)
        if (strcmp(name, role_names[i]) == 0) out->role = (kvp_server_role_t)i;
    return out->role != KVP_SERVER_ROLES &&
           kvp_base_url(json_object_get_string(url), (size_t)json_object_get_string_len(url), out->url,
                        sizeof out->url) == KVP_OK &&
           take_bootstrap(in, out);
}

/* Reads the body of a request to add or remove a server. Returns false after sending an error answer. */
static bool
read_request(const kvp_http_request_t *request, kvp_http_response_t *response, request_t *out)
{
    json_object *in = kvp_http_body_json(request, response);
    const bool is_one = in != NULL && take_request(in, out);

    if (in != NULL && !is_one)
        kvp_http_error(response, 400,
                       "wanted: role (prefill, decode, replica), url (http://HOST:PORT), and for a "
                       "prefill server perhaps bootstrap_port, or bootstrap_server_address (HOST:PORT)");
    json_object_put(in);
    return is_one;
}

static void
write_server(void *arg, const kvp_fleet_server_t *s)
{
    kvp_jsonw_t *w = arg;

    kvp_jsonw_open(w, NULL, '{');
    kvp_jsonw_text(w, "role", role_names[s->role]);
    kvp_jsonw_text(w, "url", s->url);
    if (s->bootstrap[0] != '\0') kvp_jsonw_text(w, "bootstrap", s->bootstrap);
    kvp_jsonw_bool(w, "is_left_out", s->is_down);
    kvp_jsonw_u64(w, "open", s->open);
    kvp_jsonw_u64(w, "requests", s->requests);
    kvp_jsonw_u64(w, "failures", s->failures);
    if (s->latency != NULL) kvp_latency_counts(s->latency, w);
    kvp_jsonw_close(w, '}');
}

static void
write_servers(kvp_proxy_t *p, kvp_http_response_t *response)
{
    kvp_jsonw_t w = kvp_http_json(response, 200);

    kvp_jsonw_open(&w, NULL, '{');
    kvp_latency_bounds(&w);
    kvp_jsonw_open(&w, "servers", '[');
    kvp_proxy_each(p, write_server, &w);
    kvp_jsonw_close(&w, ']');
    kvp_jsonw_close(&w, '}');
}

static void
on_get(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)request;
    write_servers(arg, response);
}

static void
on_post(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    request_t r;

    if (!read_request(request, response, &r)) return;
    const kvp_err_t err = add_server(arg, r.role, r.url, r.bootstrap);
    if (err == KVP_OK)
        write_servers(arg, response);
    else
        kvp_http_error(
            response, err == KVP_LIMIT ? 503 : 400, "%s",
            err == KVP_LIMIT
                ? "too many servers"
                : "only a prefill server has a bootstrap server, which has a port above 0, and https:// is not "
                  "spoken here");
}

static void
on_delete(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    request_t r;

    if (!read_request(request, response, &r)) return;
    if (kvp_proxy_remove(arg, r.role, r.url) == KVP_OK)
        write_servers(arg, response);
    else
        kvp_http_error(response, 404, "unknown server");
}

kvp_err_t
kvp_proxy_admin_route(kvp_proxy_t *p, kvp_http_t *http)
{
    kvp_err_t err = kvp_http_route(http, "GET", "/servers", on_get, p);

    if (err == KVP_OK) err = kvp_http_route(http, "POST", "/servers", on_post, p);
    if (err == KVP_OK) err = kvp_http_route(http, "DELETE", "/servers", on_delete, p);
    return err;
}
