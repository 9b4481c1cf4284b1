/* SPDX-License-Identifier: Apache-2.0
 * What tests of the model NIC stand on: two processes with a connection between them, and single steps of it that assert.
 */
#ifndef KVP_TESTS_TRANSPORT_MODEL_NIC_RIG_H
#define KVP_TESTS_TRANSPORT_MODEL_NIC_RIG_H

#include "tests/transport/model_nic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SEEDS 300u
#define BYTES 4096u
#define LINE 64u

extern const kvp_verbs_ops_t *const V;

/* Two processes, each with a channel and a piece of memory. */
typedef struct {
    kvp_rdma_dev_t *devs[MODEL_NIC_DEVS_MAX];
    size_t devs_n;
    kvp_rdma_cm_t *asking;
    kvp_rdma_cm_t *serving;
    kvp_rdma_id_t *listener;
    struct sockaddr_storage addr; /* of the listener, by the first device */
    uint8_t *local;
    uint8_t *remote;
    kvp_rdma_reg_t *local_reg;
    kvp_rdma_reg_t *remote_reg;
    kvp_rdma_id_t *id; /* the asking side of the first connection */
    kvp_rdma_id_t *peer;
} rig_t;

/* rig_up begins anew under that seed: the local memory is all 1, the remote one all 0. */
void rig_up(rig_t *r, uint64_t seed, const model_nic_conf_t *conf);
void rig_down(rig_t *r);

/* The next event of a channel; false when nothing is under way any more. */
bool next_event(kvp_rdma_cm_t *cm, kvp_rdma_event_t *e);
kvp_rdma_id_t *want_event(kvp_rdma_cm_t *cm, kvp_rdma_event_kind_t kind, kvp_rdma_event_t *e);
/* A connection's steps: ask up to the request, take_request on the other side up to its queue pair, connect_to all. */
kvp_rdma_id_t *ask(rig_t *r, uint32_t sends);
kvp_rdma_id_t *take_request(rig_t *r);
kvp_rdma_id_t *connect_to(rig_t *r, uint32_t sends, kvp_rdma_id_t **peer_out);

/* One request between the same offsets of both memories; its id is the offset. */
void post(rig_t *r, uint32_t flags, size_t at, uint32_t len);
void post_by(rig_t *r, kvp_rdma_id_t *id, uint32_t flags, size_t at, uint32_t len);
/* The next completion; false when nothing is under way any more. */
bool next_wc(kvp_rdma_id_t *id, kvp_rdma_wc_t *wc);
void want_wc(kvp_rdma_id_t *id, uint64_t wr_id, kvp_rdma_wc_status_t status);

bool is_all(const uint8_t *at, size_t n, uint8_t value);

#endif
