/* SPDX-License-Identifier: Apache-2.0
 * Two processes of the model NIC and a connection between them.
 */
#include "tests/transport/model_nic_rig.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

const kvp_verbs_ops_t *const V = &kvp_verbs_model;

bool
next_event(kvp_rdma_cm_t *cm, kvp_rdma_event_t *e)
{
    kvp_err_t err;

    do
        err = V->cm_next(cm, e);
    while ((err == KVP_EAGAIN && model_nic_step()) || (err == KVP_OK && e->kind == KVP_RDMA_ON_ITS_WAY));
    if (err == KVP_EAGAIN) err = V->cm_next(cm, e);
    return err == KVP_OK;
}

kvp_rdma_id_t *
want_event(kvp_rdma_cm_t *cm, kvp_rdma_event_kind_t kind, kvp_rdma_event_t *e)
{
    assert_true(next_event(cm, e));
    assert_int_equal(e->kind, kind);
    return e->id;
}

kvp_rdma_id_t *
ask(rig_t *r, uint32_t sends)
{
    kvp_rdma_event_t e;
    kvp_rdma_id_t *id;

    assert_int_equal(V->connect(r->asking, &r->addr, NULL, &id), KVP_OK);
    assert_ptr_equal(want_event(r->asking, KVP_RDMA_RESOLVED, &e), id);
    assert_int_equal(V->qp_make(id, &(kvp_rdma_caps_t){.sends = sends, .sge = 4, .inline_bytes = 64}), KVP_OK);
    assert_int_equal(V->ask(id, "ask", 3), KVP_OK);
    return id;
}

kvp_rdma_id_t *
take_request(rig_t *r)
{
    kvp_rdma_event_t e;
    kvp_rdma_id_t *id = want_event(r->serving, KVP_RDMA_REQUEST, &e);

    assert_memory_equal(e.data, "ask", 3);
    assert_int_equal(V->qp_make(id, &(kvp_rdma_caps_t){0}), KVP_OK);
    return id;
}

kvp_rdma_id_t *
connect_to(rig_t *r, uint32_t sends, kvp_rdma_id_t **peer_out)
{
    kvp_rdma_id_t *id = ask(r, sends);
    kvp_rdma_event_t e;

    *peer_out = take_request(r);
    assert_int_equal(V->accept(*peer_out, "yes", 3), KVP_OK);
    assert_ptr_equal(want_event(r->asking, KVP_RDMA_ESTABLISHED, &e), id);
    assert_memory_equal(e.data, "yes", 3);
    assert_ptr_equal(want_event(r->serving, KVP_RDMA_ESTABLISHED, &e), *peer_out);
    return id;
}

void
rig_up(rig_t *r, uint64_t seed, const model_nic_conf_t *conf)
{
    const char *why;
    uint16_t port;

    *r = (rig_t){0};
    assert_int_equal(model_nic_reset(seed, conf), 0);
    assert_int_equal(V->devs_open(NULL, r->devs, MODEL_NIC_DEVS_MAX, &r->devs_n, &why), KVP_OK);
    assert_int_equal(V->cm_open(&r->asking), KVP_OK);
    assert_int_equal(V->cm_open(&r->serving), KVP_OK);
    r->addr.ss_family = AF_INET;
    assert_int_equal(V->listen(r->serving, &r->addr, &r->listener, &port), KVP_OK);
    r->addr = r->devs[0]->info.addr;
    ((struct sockaddr_in *)&r->addr)->sin_port = htons(port);
    r->local = aligned_alloc(LINE, BYTES);
    r->remote = aligned_alloc(LINE, BYTES);
    assert_non_null(r->local);
    assert_non_null(r->remote);
    memset(r->local, 1, BYTES);
    memset(r->remote, 0, BYTES);
    assert_int_equal(V->reg(r->devs[0], r->local, BYTES, KVP_RDMA_LOCAL, -1, &r->local_reg), KVP_OK);
    assert_int_equal(V->reg(r->devs[0], r->remote, BYTES, KVP_RDMA_WRITABLE, -1, &r->remote_reg), KVP_OK);
    r->id = connect_to(r, 16, &r->peer);
}

void
rig_down(rig_t *r)
{
    V->cm_close(r->asking);
    V->cm_close(r->serving);
    if (r->local_reg != NULL) V->dereg(r->local_reg);
    if (r->remote_reg != NULL) V->dereg(r->remote_reg);
    V->devs_close();
    free(r->local);
    free(r->remote);
}

void
post_by(rig_t *r, kvp_rdma_id_t *id, uint32_t flags, size_t at, uint32_t len)
{
    kvp_rdma_sge_t sge = {.addr = (uintptr_t)r->local + at, .len = len, .lkey = r->local_reg->lkey};
    kvp_rdma_wr_t wr = {.id = at, .flags = flags, .sge_n = 1, .sge = &sge, .raddr = (uintptr_t)r->remote + at};
    size_t n;

    wr.rkey = r->remote_reg->rkey;
    assert_int_equal(V->post(id, &wr, 1, &n), KVP_OK);
    assert_int_equal(n, 1);
}

void
post(rig_t *r, uint32_t flags, size_t at, uint32_t len)
{
    post_by(r, r->id, flags, at, len);
}

bool
next_wc(kvp_rdma_id_t *id, kvp_rdma_wc_t *wc)
{
    do
        if (V->poll(id, wc, 1) == 1) return true;
    while (model_nic_step());
    return V->poll(id, wc, 1) == 1;
}

void
want_wc(kvp_rdma_id_t *id, uint64_t wr_id, kvp_rdma_wc_status_t status)
{
    kvp_rdma_wc_t wc;

    assert_true(next_wc(id, &wc));
    assert_int_equal(wc.id, wr_id);
    assert_int_equal(wc.status, status);
}

bool
is_all(const uint8_t *at, size_t n, uint8_t value)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != value) return false;
    return true;
}
