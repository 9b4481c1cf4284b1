/* SPDX-License-Identifier: Apache-2.0
 * The functions of libibverbs and librdmacm, loaded at run time, so that libkvpool works where the libraries are not
 * installed. Functions that verbs.h defines inline (post, poll, arm) need no symbol. */
#ifndef KVP_TRANSPORT_RDMA_VERBS_LIBS_H
#define KVP_TRANSPORT_RDMA_VERBS_LIBS_H

#include "common/base.h"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define KVP_RDMA_IBV_CALLS(X)                                                                                          \
    X(ibv_ack_async_event)                                                                                             \
    X(ibv_ack_cq_events)                                                                                               \
    X(ibv_alloc_pd)                                                                                                    \
    X(ibv_create_comp_channel)                                                                                         \
    X(ibv_create_cq)                                                                                                   \
    X(ibv_dealloc_pd)                                                                                                  \
    X(ibv_dereg_mr)                                                                                                    \
    X(ibv_destroy_comp_channel)                                                                                        \
    X(ibv_destroy_cq)                                                                                                  \
    X(ibv_fork_init)                                                                                                   \
    X(ibv_get_async_event)                                                                                             \
    X(ibv_get_cq_event)                                                                                                \
    X(ibv_query_device)                                                                                                \
    X(ibv_query_gid)                                                                                                   \
    X(ibv_query_port)                                                                                                  \
    X(ibv_reg_dmabuf_mr)                                                                                               \
    X(ibv_reg_mr)
#define KVP_RDMA_CM_CALLS(X)                                                                                           \
    X(rdma_accept)                                                                                                     \
    X(rdma_ack_cm_event)                                                                                               \
    X(rdma_bind_addr)                                                                                                  \
    X(rdma_connect)                                                                                                    \
    X(rdma_create_event_channel)                                                                                       \
    X(rdma_create_id)                                                                                                  \
    X(rdma_create_qp)                                                                                                  \
    X(rdma_destroy_event_channel)                                                                                      \
    X(rdma_destroy_id)                                                                                                 \
    X(rdma_destroy_qp)                                                                                                 \
    X(rdma_disconnect)                                                                                                 \
    X(rdma_free_devices)                                                                                               \
    X(rdma_get_cm_event)                                                                                               \
    X(rdma_get_devices)                                                                                                \
    X(rdma_get_src_port)                                                                                               \
    X(rdma_listen)                                                                                                     \
    X(rdma_migrate_id)                                                                                                 \
    X(rdma_reject)                                                                                                     \
    X(rdma_resolve_addr)                                                                                               \
    X(rdma_resolve_route)                                                                                              \
    X(rdma_set_option)

/* Pointers to the libraries' functions. Call them as (libs->NAME)(...), because verbs.h has macros of some of these
 * names. */
typedef struct {
#define X(name) __typeof__(name) *name;
    KVP_RDMA_IBV_CALLS(X)
    KVP_RDMA_CM_CALLS(X)
#undef X
} kvp_rdma_libs_t;

/* kvp_rdma_libs loads the libraries once and returns their functions. NULL if they cannot be loaded, with the reason
 * in why_out (static text). Any thread. */
const kvp_rdma_libs_t *kvp_rdma_libs(const char **why_out);

#endif
