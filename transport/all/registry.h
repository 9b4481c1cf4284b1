/* SPDX-License-Identifier: Apache-2.0
 * The transports of this build, found by name. Any thread. */
#ifndef KVP_TRANSPORT_ALL_REGISTRY_H
#define KVP_TRANSPORT_ALL_REGISTRY_H

#include "transport/rdma/verbs/dev.h"
#include "transport/transport.h"

/* kvp_transports_init registers the built-in transports and fills the empty slots of their tables. Further calls do
 * nothing. */
void kvp_transports_init(void);
/* kvp_transport_find returns the table of the transport with that name, or NULL if this build lacks it. */
const kvp_transport_ops_t *kvp_transport_find(const char *name);
/* kvp_transports_parse reads a list of names such as "shm,rdma,tcp" into an ordered list of transports. INVALID: an
 * unknown or empty name, or a name given twice. NOTSUP: this build or this machine lacks a transport. With both errors
 * why has one sentence about the cause. LIMIT: more than cap names. */
kvp_err_t kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why,
                               size_t why_cap) KVP_MUST_USE;
/* kvp_transports_default lists the transports that this build and machine can use, the best first, for callers that
 * name no transport. why has the reason why the last unusable transport cannot be used, "" = all can. NOTSUP, with a
 * sentence in why: the user selected RDMA devices or a GID (kvp_rdma_select), but rdma cannot be used. */
kvp_err_t kvp_transports_default(const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why, size_t why_cap)
    KVP_MUST_USE;

/* kvp_transports_tend does periodic work of the process, which needs no transport instance: it closes removed RDMA
 * devices that a probe opened, and reopens devices that returned. Called about once a second, by any thread; does not
 * block. */
void kvp_transports_tend(void);

/* kvp_transports_rdma_ports lists the ports of RDMA devices that rdma uses on this host, at most cap. Returns their
 * number, which may be 0. */
size_t kvp_transports_rdma_ports(kvp_rdma_info_t *ports_out, size_t cap);

#endif
