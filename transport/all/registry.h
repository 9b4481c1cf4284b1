/* SPDX-License-Identifier: Apache-2.0
 * The transports of this build, by name. Any thread. */
#ifndef KVP_TRANSPORT_ALL_REGISTRY_H
#define KVP_TRANSPORT_ALL_REGISTRY_H

#include "transport/rdma/verbs/dev.h"
#include "transport/transport.h"

/* kvp_transports_init registers the built-in transports with plain calls and fills unset slots; idempotent. */
void kvp_transports_init(void);
/* kvp_transport_find returns the table of that name, or NULL. */
const kvp_transport_ops_t *kvp_transport_find(const char *name);
/* kvp_transports_parse reads "shm,rdma,tcp" into an ordered list of transports. INVALID: an unknown
 * name, or no name; NOTSUP: this build or this machine lacks a transport. why then has one sentence
 * with the fault and the available names. */
kvp_err_t kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why,
                               size_t why_cap) KVP_MUST_USE;
/* kvp_transports_default lists the transports for real data that this build and machine have, the
 * best first, for callers that name none. why lists the lacking ones (else it is empty). NOTSUP,
 * with a sentence in why: RDMA devices were selected by name (kvp_rdma_select), and rdma cannot be
 * used. */
kvp_err_t kvp_transports_default(const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why, size_t why_cap)
    KVP_MUST_USE;

/* kvp_transports_tend does periodic work of the process, with or without an instance: it closes
 * removed devices that a probe opened, and reopens devices that returned. Any thread, every second
 * or so; does not block. */
void kvp_transports_tend(void);

/* kvp_transports_rdma_ports returns the ports that rdma uses here, cap at most; possibly none. */
size_t kvp_transports_rdma_ports(kvp_rdma_info_t *ports_out, size_t cap);

#endif
