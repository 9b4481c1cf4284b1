// SPDX-License-Identifier: Apache-2.0
// What the verbs stack of the guest does in the calls that RDMA needs of it: one process with a requester on rxe0 and a
// responder on rxe1, joined by hand. Not a test of our code: it holds the table in README.md, so that a failure of ours
// can be told from the kernel's. Links and devices are taken away with `ip` and `rdma`: it runs in the guest only.
#include "tests/cases.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    BUF_BYTES = 4 << 20,
    DEPTH = 64,
    PIECES = 16, // scattered requests have so many
    ROUNDS = 20,
    GID_INDEX = 1, // the IPv4-mapped one
    WAIT_S = 30, // an emulated processor is slow
    REMOTE = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
    ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | REMOTE | IBV_ACCESS_MW_BIND,
};

struct end {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *buf;
};

struct pair {
    struct end req; // rxe0
    struct end rsp; // rxe1
};

static uint64_t
now_ms(void)
{
    struct timespec ts;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &ts), 0);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void
end_open(struct end *e, const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    assert_non_null(list);
    for (int i = 0; list[i]; i++)
        if (strcmp(ibv_get_device_name(list[i]), name) == 0) e->ctx = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    assert_non_null(e->ctx);
    e->pd = ibv_alloc_pd(e->ctx);
    assert_non_null(e->pd);
    e->cq = ibv_create_cq(e->ctx, 4 * DEPTH, NULL, NULL, 0);
    assert_non_null(e->cq);
    e->buf = aligned_alloc(4096, BUF_BYTES);
    assert_non_null(e->buf);
    memset(e->buf, 0, BUF_BYTES);
    e->mr = ibv_reg_mr(e->pd, e->buf, BUF_BYTES, ALL_ACCESS);
    assert_non_null(e->mr);
}

static void
end_close(struct end *e)
{
    if (e->qp) assert_int_equal(ibv_destroy_qp(e->qp), 0);
    if (e->mr) assert_int_equal(ibv_dereg_mr(e->mr), 0);
    assert_int_equal(ibv_destroy_cq(e->cq), 0);
    assert_int_equal(ibv_dealloc_pd(e->pd), 0);
    assert_int_equal(ibv_close_device(e->ctx), 0);
    free(e->buf);
}

static void
qp_make(struct end *e)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .cap =
            {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = PIECES, .max_recv_sge = 1, .max_inline_data = 256},
        .qp_type = IBV_QPT_RC,
    };
    e->qp = ibv_create_qp(e->pd, &attr);
    assert_non_null(e->qp);
    assert_true(attr.cap.max_inline_data >= 256);
}

// qp_join brings e's queue pair up against its peer's. timeout and retries: what is lost is sent again after
// 4.096 us * 2^timeout, so many times.
static void
qp_join(struct end *e, const struct end *peer, uint8_t timeout, uint8_t retries)
{
    union ibv_gid gid;
    assert_int_equal(ibv_query_gid(peer->ctx, 1, GID_INDEX, &gid), 0);
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE};
    assert_int_equal(ibv_modify_qp(e->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
                     0);
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = peer->qp->qp_num,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 64}},
    };
    assert_int_equal(ibv_modify_qp(e->qp, &rtr,
                                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                     0);
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = retries, .rnr_retry = 7, .max_rd_atomic = 16};
    assert_int_equal(ibv_modify_qp(e->qp, &rts,
                                   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                       IBV_QP_MAX_QP_RD_ATOMIC),
                     0);
}

static void
pair_open(struct pair *p, uint8_t timeout, uint8_t retries)
{
    *p = (struct pair){0};
    end_open(&p->req, "rxe0");
    end_open(&p->rsp, "rxe1");
    qp_make(&p->req);
    qp_make(&p->rsp);
    qp_join(&p->req, &p->rsp, timeout, retries);
    qp_join(&p->rsp, &p->req, timeout, retries);
}

static void
pair_close(struct pair *p)
{
    end_close(&p->req);
    end_close(&p->rsp);
}

// poll_cq takes one completion, within so many milliseconds.
static bool
poll_cq(struct end *e, uint64_t within_ms, struct ibv_wc *wc_out)
{
    uint64_t until = now_ms() + within_ms;
    int n;
    while ((n = ibv_poll_cq(e->cq, 1, wc_out)) == 0 && now_ms() < until)
        ;
    assert_true(n >= 0);
    return n == 1;
}

static enum ibv_wc_status
take(struct end *e)
{
    struct ibv_wc wc;
    assert_true(poll_cq(e, WAIT_S * 1000, &wc));
    return wc.status;
}

static void
post(struct end *e, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    wr->send_flags |= IBV_SEND_SIGNALED;
    assert_int_equal(ibv_post_send(e->qp, wr, &bad), 0);
}

// post_move posts a transfer between the beginnings of the two buffers.
static void
post_move(struct pair *p, enum ibv_wr_opcode op, uint64_t id, uint32_t len, uint32_t rkey)
{
    struct ibv_sge sge = {.addr = (uintptr_t)p->req.buf, .length = len, .lkey = p->req.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = op};
    wr.wr.rdma.remote_addr = (uintptr_t)p->rsp.buf;
    wr.wr.rdma.rkey = rkey;
    post(&p->req, &wr);
}

static enum ibv_wc_status
move(struct pair *p, enum ibv_wr_opcode op, uint32_t len, uint32_t rkey)
{
    post_move(p, op, 1, len, rkey);
    return take(&p->req);
}

// move_many posts n transfers with ids 0.. and waits until the first has succeeded.
static void
move_many(struct pair *p, enum ibv_wr_opcode op, unsigned n, uint32_t len, uint32_t rkey)
{
    for (unsigned i = 0; i < n; i++)
        post_move(p, op, i, len, rkey);
    struct ibv_wc wc;
    assert_true(poll_cq(&p->req, WAIT_S * 1000, &wc));
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.wr_id, 0);
}

// settle takes what is left of move_many's n transfers, in order and once each. A queue pair that falls silent is put
// into error, which has to flush the rest. Returns what became of the first that failed, or success; silent_out:
// whether that was needed.
static enum ibv_wc_status
settle(struct pair *p, unsigned n, bool *silent_out)
{
    enum ibv_wc_status first = IBV_WC_SUCCESS;
    struct ibv_wc wc;
    *silent_out = false;
    for (unsigned i = 1; i < n; i++) {
        if (!poll_cq(&p->req, *silent_out ? WAIT_S * 1000 : 5000, &wc)) {
            assert_false(*silent_out);
            *silent_out = true;
            struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
            assert_int_equal(ibv_modify_qp(p->req.qp, &attr, IBV_QP_STATE), 0);
            assert_true(poll_cq(&p->req, WAIT_S * 1000, &wc));
        }
        assert_int_equal(wc.wr_id, i);
        if (first != IBV_WC_SUCCESS)
            assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
        else
            first = wc.status;
    }
    assert_int_equal(ibv_poll_cq(p->req.cq, 1, &wc), 0);
    printf("  the first failure: %s%s\n", ibv_wc_status_str(first), *silent_out ? ", after silence" : "");
    return first;
}

static void
shell(const char *command)
{
    int rc = system(command);
    assert_true(WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
}

static size_t
count_other(const uint8_t *buf, uint8_t byte)
{
    size_t n = 0;
    for (size_t i = 0; i < BUF_BYTES; i++)
        n += buf[i] != byte;
    return n;
}

// ---- transfers

TEST(test_read_and_write)
{
    struct pair p;
    pair_open(&p, 14, 7);
    memset(p.rsp.buf, 7, 100000);
    assert_int_equal(move(&p, IBV_WR_RDMA_READ, 100000, p.rsp.mr->rkey), IBV_WC_SUCCESS);
    assert_memory_equal(p.req.buf, p.rsp.buf, 100000);
    memset(p.req.buf, 9, 100000);
    assert_int_equal(move(&p, IBV_WR_RDMA_WRITE, 100000, p.rsp.mr->rkey), IBV_WC_SUCCESS);
    assert_memory_equal(p.req.buf, p.rsp.buf, 100000);
    pair_close(&p);
}

// One chain: a scattered READ, a fenced READ behind it, an inline WRITE; only the last is signalled.
TEST(test_chain)
{
    struct pair p;
    pair_open(&p, 14, 7);
    struct ibv_sge pieces[PIECES];
    for (size_t i = 0; i < PIECES; i++) // every other page
        pieces[i] = (struct ibv_sge){(uintptr_t)p.req.buf + i * 8192, 4096, p.req.mr->lkey};
    struct ibv_sge after = {(uintptr_t)p.req.buf + (1 << 20), 128, p.req.mr->lkey};
    uint8_t word[256];
    memset(word, 3, sizeof word);
    struct ibv_sge in_line = {(uintptr_t)word, sizeof word, 0};
    struct ibv_send_wr wr[] = {
        {.sg_list = pieces, .num_sge = PIECES, .opcode = IBV_WR_RDMA_READ, .next = &wr[1]},
        {.sg_list = &after, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_FENCE, .next = &wr[2]},
        {.wr_id = 5, .sg_list = &in_line, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_INLINE},
    };
    for (size_t i = 0; i < 3; i++) {
        wr[i].wr.rdma.remote_addr = (uintptr_t)p.rsp.buf;
        wr[i].wr.rdma.rkey = p.rsp.mr->rkey;
    }
    wr[2].send_flags |= IBV_SEND_SIGNALED;
    memset(p.rsp.buf, 7, BUF_BYTES);
    struct ibv_send_wr *bad;
    assert_int_equal(ibv_post_send(p.req.qp, wr, &bad), 0);
    memset(word, 4, sizeof word); // inline: taken when it was posted
    struct ibv_wc wc;
    assert_true(poll_cq(&p.req, WAIT_S * 1000, &wc));
    assert_int_equal(wc.status, IBV_WC_SUCCESS);
    assert_int_equal(wc.wr_id, 5);
    assert_int_equal(ibv_poll_cq(p.req.cq, 1, &wc), 0);
    for (size_t i = 0; i < PIECES; i++) {
        assert_int_equal(p.req.buf[i * 8192 + 4095], 7);
        assert_int_equal(p.req.buf[i * 8192 + 4096], 0);
    }
    assert_int_equal(p.req.buf[(1 << 20) + 127], 7);
    assert_int_equal(p.rsp.buf[255], 3);
    pair_close(&p);
}

// ---- keys

static uint32_t
window_bind(struct end *e, struct ibv_mw *mw, unsigned access)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW};
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){e->mr, (uintptr_t)e->buf, BUF_BYTES, access};
    post(e, &wr);
    assert_int_equal(take(e), IBV_WC_SUCCESS);
    return wr.bind_mw.rkey;
}

static enum ibv_wc_status
invalidate(struct end *e, uint32_t rkey)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey};
    post(e, &wr);
    return take(e);
}

TEST(test_window_is_revoked)
{
    struct pair p;
    pair_open(&p, 14, 7);
    struct ibv_mw *mw = ibv_alloc_mw(p.rsp.pd, IBV_MW_TYPE_2);
    assert_non_null(mw);
    uint32_t rkey = window_bind(&p.rsp, mw, REMOTE);
    memset(p.req.buf, 1, 8192);
    assert_int_equal(move(&p, IBV_WR_RDMA_WRITE, 8192, rkey), IBV_WC_SUCCESS);
    assert_int_equal(p.rsp.buf[8191], 1);
    assert_int_equal(ibv_dereg_mr(p.rsp.mr), EINVAL); // as long as a window is bound to it
    assert_int_equal(invalidate(&p.rsp, rkey), IBV_WC_SUCCESS);
    memset(p.req.buf, 2, 8192);
    assert_int_equal(move(&p, IBV_WR_RDMA_WRITE, 8192, rkey), IBV_WC_REM_ACCESS_ERR);
    assert_int_equal(p.rsp.buf[0], 1);
    assert_int_equal(ibv_dealloc_mw(mw), 0);
    pair_close(&p);
}

TEST(test_window_for_reading)
{
    struct pair p;
    pair_open(&p, 14, 7);
    struct ibv_mw *mw = ibv_alloc_mw(p.rsp.pd, IBV_MW_TYPE_2);
    assert_non_null(mw);
    uint32_t rkey = window_bind(&p.rsp, mw, IBV_ACCESS_REMOTE_READ);
    assert_int_equal(move(&p, IBV_WR_RDMA_READ, 8192, rkey), IBV_WC_SUCCESS);
    memset(p.req.buf, 2, 8192);
    assert_int_equal(move(&p, IBV_WR_RDMA_WRITE, 8192, rkey), IBV_WC_REM_ACCESS_ERR);
    assert_int_equal(p.rsp.buf[0], 0);
    assert_int_equal(ibv_dealloc_mw(mw), 0);
    pair_close(&p);
}

TEST(test_registration_is_not_invalidated)
{
    struct pair p;
    pair_open(&p, 14, 7);
    assert_int_not_equal(invalidate(&p.rsp, p.rsp.mr->rkey), IBV_WC_SUCCESS);
    pair_close(&p);
}

// deregistered_once takes a second registration of the same memory away while transfers by its key are under way.
// Returns what became of the first that failed; success: all of them had ended before it was gone.
static enum ibv_wc_status
deregistered_once(enum ibv_wr_opcode op)
{
    struct pair p;
    bool silent;
    pair_open(&p, 14, 7);
    struct ibv_mr *second = ibv_reg_mr(p.rsp.pd, p.rsp.buf, BUF_BYTES, ALL_ACCESS);
    assert_non_null(second);
    memset(p.req.buf, 5, BUF_BYTES);
    move_many(&p, op, 32, 1 << 20, second->rkey);
    assert_int_equal(ibv_dereg_mr(second), 0);
    memset(p.rsp.buf, 6, BUF_BYTES);
    enum ibv_wc_status first = settle(&p, 32, &silent);
    assert_int_equal(count_other(p.rsp.buf, 6), 0); // nothing landed after it was gone
    pair_close(&p);
    return first;
}

// queue_pair_destroyed_once is the same for the responder's queue pair under writes.
static enum ibv_wc_status
queue_pair_destroyed_once(enum ibv_wr_opcode op)
{
    struct pair p;
    bool silent;
    pair_open(&p, 10, 3);
    memset(p.req.buf, 5, BUF_BYTES);
    move_many(&p, op, 32, 1 << 20, p.rsp.mr->rkey);
    assert_int_equal(ibv_destroy_qp(p.rsp.qp), 0);
    p.rsp.qp = NULL;
    memset(p.rsp.buf, 6, BUF_BYTES);
    enum ibv_wc_status first = settle(&p, 32, &silent);
    assert_int_equal(count_other(p.rsp.buf, 6), 0);
    pair_close(&p);
    return first;
}

// caught_one repeats a race with the transfers until one of these was still under way: where the host gives the test's
// processor no time, all of them end first.
static void
caught_one(enum ibv_wc_status once(enum ibv_wr_opcode op), enum ibv_wr_opcode op)
{
    for (int round = 0; round < ROUNDS; round++)
        if (once(op) != IBV_WC_SUCCESS) return;
    fail_msg("in %d rounds every transfer had ended before", ROUNDS);
}

TEST(test_deregistered_under_reads)
{
    caught_one(deregistered_once, IBV_WR_RDMA_READ);
}

TEST(test_deregistered_under_writes)
{
    caught_one(deregistered_once, IBV_WR_RDMA_WRITE);
}

TEST(test_queue_pair_destroyed_under_writes)
{
    caught_one(queue_pair_destroyed_once, IBV_WR_RDMA_WRITE);
}

// ---- links and devices

// await_event takes the events of an open device until one is of that type.
static void
await_event(struct end *e, enum ibv_event_type type)
{
    struct ibv_async_event event;
    do {
        struct pollfd fd = {.fd = e->ctx->async_fd, .events = POLLIN};
        assert_int_equal(poll(&fd, 1, WAIT_S * 1000), 1);
        assert_int_equal(ibv_get_async_event(e->ctx, &event), 0);
        ibv_ack_async_event(&event);
    } while (event.event_type != type);
}

// link_down takes one end of the cable away for a moment, under reads. What becomes of these depends on the kernel, but
// each ends once, and new queue pairs work once the link is back.
static void
link_down(const char *command, enum ibv_wc_status *status_out)
{
    struct pair p;
    bool silent;
    pair_open(&p, 18, 7); // tries again for up to 7.5 s
    move_many(&p, IBV_WR_RDMA_READ, 60, 1 << 20, p.rsp.mr->rkey);
    shell(command);
    *status_out = settle(&p, 60, &silent);
    await_event(&p.req, IBV_EVENT_PORT_ERR);
    await_event(&p.rsp, IBV_EVENT_PORT_ERR);
    pair_close(&p);
    shell(
        "ip link set eth1 up; ip link set eth2 up;"
        "for d in rxe0 rxe1; do until grep -q ACTIVE /sys/class/infiniband/$d/ports/1/state; do sleep 0.1; done; done");
    pair_open(&p, 18, 7);
    assert_int_equal(move(&p, IBV_WR_RDMA_READ, 1 << 20, p.rsp.mr->rkey), IBV_WC_SUCCESS);
    pair_close(&p);
}

TEST(test_far_link_down_for_a_moment)
{
    enum ibv_wc_status status;
    link_down("ip link set eth2 down; sleep 0.5; ip link set eth2 up", &status);
}

// No route: what is under way at this end fails.
TEST(test_near_link_down)
{
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    for (int round = 0; round < ROUNDS && status == IBV_WC_SUCCESS; round++)
        link_down("ip link set eth1 down", &status);
    assert_int_not_equal(status, IBV_WC_SUCCESS);
}

// A deleted device is in no list any more, but whoever has it open goes on with it, and `rdma link del` waits for them.
TEST(test_device_deleted)
{
    struct pair p;
    bool silent;
    pair_open(&p, 14, 7);
    move_many(&p, IBV_WR_RDMA_READ, 32, 1 << 20, p.rsp.mr->rkey);
    shell("rm -f /tmp/deleted; { rdma link del rxe1; touch /tmp/deleted; } & while rdma link | grep -q rxe1; do sleep "
          "0.1; done");
    assert_int_equal(settle(&p, 32, &silent), IBV_WC_SUCCESS);
    assert_int_equal(move(&p, IBV_WR_RDMA_WRITE, 8192, p.rsp.mr->rkey), IBV_WC_SUCCESS);
    assert_int_not_equal(access("/tmp/deleted", F_OK), 0);
    pair_close(&p);
    shell(
        "timeout 20 sh -c 'until [ -e /tmp/deleted ]; do sleep 0.1; done' && rdma link add rxe1 type rxe netdev eth2");
}

int
main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return run_cases(NULL, NULL);
}
