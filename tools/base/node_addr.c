/* SPDX-License-Identifier: Apache-2.0
 * Listening addresses of nodes. Without a working RDMA device the loopback address is used: opening the pool then
 * reports that rdma cannot be used. */
#include "tools/base/node_addr.h"

#include "tools/base/json_out.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define LOOPBACK "127.0.0.1"
#define HOST_JSON_BYTES (64u << 10)
#define ADDRESS_MAX 64u

/* Writes the address of the first RDMA device; "" if there is none. */
static void
look_for_device(const void *none, void *address)
{
    (void)none;
    char *text = kvp_cli_alloc(HOST_JSON_BYTES, 1);
    struct json_object *host = NULL, *ports;
    size_t len;
    if (kvpool_host(text, HOST_JSON_BYTES, &len) == KVPOOL_OK) host = json_tokener_parse(text);
    free(text);
    if (kvp_json_get_list(host, "rdma_ports", &ports) > 0)
        snprintf(address, ADDRESS_MAX, "%s", kvp_json_get_text(json_object_array_get_idx(ports, 0), "address"));
    json_object_put(host);
}

static bool
names_rdma(const kvp_cli_common_t *common)
{
    const char *list = common->transports != NULL ? common->transports : getenv("KVPOOL_TRANSPORTS");
    return list != NULL && kvp_is_listed(list, "rdma");
}

/* Returns whether the text contains a port. An IPv6 address also contains colons. */
static bool
has_port(const char *text)
{
    struct in6_addr addr;
    return strchr(text, ':') != NULL && inet_pton(AF_INET6, text, &addr) != 1;
}

int
kvp_cli_node_listen(const kvp_cli_verb_t *verb, const kvp_cli_common_t *common, const char *asked,
                    char listen_out[KVP_HOSTPORT_TEXT_MAX])
{
    char device[ADDRESS_MAX] = "";
    kvp_hostport_t at = {.port = 0}, again;
    const int code = asked == NULL && names_rdma(common)
                         ? kvp_cli_apart(verb, look_for_device, NULL, device, sizeof(device))
                         : KVP_EXIT_DONE;
    if (code != KVP_EXIT_DONE) return code;
    if (asked == NULL) asked = device[0] != '\0' ? device : LOOPBACK;
    const int n = snprintf(at.host, sizeof(at.host), "%s", asked);
    kvp_format_hostport(&at, listen_out);
    if (n < (int)sizeof(at.host) && !has_port(asked) && kvp_parse_hostport(listen_out, &again) == KVP_OK)
        return KVP_EXIT_DONE;
    return kvp_cli_complain(verb, KVP_EXIT_USAGE,
                            "--node-listen does not take \"%s\", but an address of this host without a port", asked);
}
