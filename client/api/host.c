/* SPDX-License-Identifier: Apache-2.0
 * kvpool_host: describes the transports and RDMA ports of this machine as JSON:
 *   {"transports": [{...}], "rdma_ports": [{...}]} */
#include "client/api/pool.h"

#include "transport/all/registry.h"
#include "transport/rdma/verbs/select.h"
#include "common/jsonw.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>

#define TEXT_MAX (64u << 10)
#define WHY_MAX 512u

static void
write_transport(kvp_jsonw_t *w, const char *name)
{
    const kvp_transport_ops_t *one;
    char why[WHY_MAX] = "";
    size_t n;
    bool is_usable = kvp_transports_parse(name, &one, 1, &n, why, sizeof why) == KVP_OK;

    kvp_jsonw_open(w, NULL, '{');
    kvp_jsonw_text(w, "name", name);
    kvp_jsonw_bool(w, "is_usable", is_usable);
    kvp_jsonw_text(w, "why", why);
    kvp_jsonw_close(w, '}');
}

static void
write_port(kvp_jsonw_t *w, const kvp_rdma_info_t *port)
{
    const void *raw = port->addr.ss_family == AF_INET
                          ? (const void *)&((const struct sockaddr_in *)(const void *)&port->addr)->sin_addr
                          : &((const struct sockaddr_in6 *)(const void *)&port->addr)->sin6_addr;
    char addr[INET6_ADDRSTRLEN] = "";

    kvp_jsonw_open(w, NULL, '{');
    kvp_jsonw_text(w, "device", port->name);
    kvp_jsonw_u64(w, "port", port->port);
    kvp_jsonw_text(w, "address", inet_ntop(port->addr.ss_family, raw, addr, sizeof addr) == NULL ? "" : addr);
    kvp_jsonw_u64(w, "mtu_bytes", port->mtu_bytes);
    kvp_jsonw_u64(w, "max_work_requests", port->max_wr);
    kvp_jsonw_u64(w, "max_pieces", port->max_sge);
    kvp_jsonw_u64(w, "max_reads", port->max_reads);
    kvp_jsonw_u64(w, "max_registration_bytes", port->max_reg_bytes);
    kvp_jsonw_u64(w, "max_message_bytes", port->max_msg_bytes);
    kvp_jsonw_close(w, '}');
}

int
kvpool_host(char *buf, size_t cap, size_t *len_out)
{
    static const char *const names[] = {"shm", "rdma", "tcp"};
    kvp_rdma_info_t ports[KVP_RDMA_DEVS_MAX];
    char why[WHY_MAX];
    kvp_buf_t text;
    kvp_jsonw_t w;
    size_t ports_n;
    kvp_err_t err;

    if (len_out == NULL || (buf == NULL && cap > 0)) return KVP_INVALID;
    err = kvp_rdma_select(getenv("KVPOOL_RDMA_DEVICE"), getenv("KVPOOL_RDMA_GID_INDEX"), why, sizeof why);
    if (err != KVP_OK) return err;
    kvp_buf_init(&text, TEXT_MAX);
    kvp_jsonw_init(&w, &text);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_open(&w, "transports", '[');
    for (size_t i = 0; i < KVP_ARRAY_LEN(names); i++)
        write_transport(&w, names[i]);
    kvp_jsonw_close(&w, ']');
    kvp_jsonw_open(&w, "rdma_ports", '[');
    ports_n = kvp_transports_rdma_ports(ports, KVP_ARRAY_LEN(ports));
    for (size_t i = 0; i < ports_n; i++)
        write_port(&w, &ports[i]);
    kvp_jsonw_close(&w, ']');
    kvp_jsonw_close(&w, '}');
    err = kvp_jsonw_give(&text, buf, cap, len_out);
    kvp_buf_fini(&text);
    return err;
}
