/* SPDX-License-Identifier: Apache-2.0
 * Which transports there are, by name. Any thread.
 */
#ifndef KVP_TRANSPORT_ALL_REGISTRY_H
#define KVP_TRANSPORT_ALL_REGISTRY_H

#include "transport/rdma/verbs/dev.h"
#include "transport/transport.h"

/* kvp_transports_init registers the built-in transports with plain calls and fills unset slots; idempotent. */
void kvp_transports_init(void);
/* kvp_transport_find returns the table of that name, or NULL. */
const kvp_transport_ops_t *kvp_transport_find(const char *name);
/* kvp_transports_parse reads "shm,rdma,tcp" into an ordered list of known names. INVALID: a name is unknown, or there is
 * none; NOTSUP: this build or this machine lacks one. why then says what is wrong and what there is, in a sentence. */
kvp_err_t kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why,
                               size_t why_cap) KVP_MUST_USE;
/* kvp_transports_default is for callers who name none: it lists what this build and this machine have for real data, the best
 * first. why says what is left out because it is lacking (else why is empty). NOTSUP, with a sentence in why: RDMA devices were
 * selected by name (kvp_rdma_select), and rdma cannot be used. */
kvp_err_t kvp_transports_default(const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why, size_t why_cap)
    KVP_MUST_USE;

/* kvp_transports_tend does the process's chores, whether or not the process has an instance: devices that a probe opened, and
 * that were removed, are let go, and used again when they are back. Any thread, every second or so; it waits for nothing. */
void kvp_transports_tend(void);

/* kvp_transports_rdma_ports tells of the ports that rdma uses here, which may be none; of no more than cap. */
size_t kvp_transports_rdma_ports(kvp_rdma_info_t *ports_out, size_t cap);

#endif
