/* SPDX-License-Identifier: Apache-2.0
 * The bench of the transport tests: two instances, memory, lanes, and transfers that are waited for. */
#include "tests/transport/suite.h"

#include "transport/all/registry.h"
#include "transport/inside.h"

#include "common/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *suite_host = "127.0.0.1";
size_t suite_extent_bytes = 1 << 20;
void (*suite_stall)(bool is_stalled);
const void *suite_own;
bool suite_lends;

void *
bench_new(size_t bytes)
{
    void *mem = calloc(1, bytes);

    assert_non_null(mem);
    return mem;
}

void
bench_fill(void *at, size_t len, uint64_t seed)
{
    uint8_t *p = at;

    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)((i * 0x9E3779B97F4A7C15ull + seed * 0xD6E8FEB86659FD93ull) >> 56);
}

bool
bench_holds(const void *at, size_t len, uint64_t seed)
{
    uint8_t *want = malloc(len);
    bool is_equal;

    if (want == NULL) return false;
    bench_fill(want, len, seed);
    is_equal = memcmp(at, want, len) == 0;
    free(want);
    return is_equal;
}

int
bench_memfd(size_t bytes, uint8_t **mem_out)
{
    int fd = memfd_create("kvpool-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    *mem_out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(*mem_out != MAP_FAILED);
    return fd;
}

typedef struct {
    bench_t *bench;
    uint32_t lane;
} lane_arg_t;

static void *
lane_main(void *p)
{
    lane_arg_t a = *(lane_arg_t *)p;

    free(p);
    while (!atomic_load(&a.bench->must_stop))
        if (a.bench->ops->serve(a.bench->server, a.lane, -1) != KVP_OK) abort();
    return NULL;
}

void
bench_lanes_start(bench_t *b)
{
    if (!b->has_lanes) return;
    atomic_store(&b->must_stop, false);
    for (; b->lanes_n < BENCH_LANES; b->lanes_n++) {
        lane_arg_t *a = malloc(sizeof *a);
        assert_non_null(a);
        *a = (lane_arg_t){.bench = b, .lane = b->lanes_n};
        assert_int_equal(pthread_create(&b->lanes[b->lanes_n], NULL, lane_main, a), 0);
    }
}

void
bench_lanes_stop(bench_t *b)
{
    if (b->lanes_n == 0) return;
    atomic_store(&b->must_stop, true);
    b->ops->wake(b->server);
    while (b->lanes_n > 0)
        pthread_join(b->lanes[--b->lanes_n], NULL);
}

void
bench_on_connect(void *arg, kvp_err_t err)
{
    bench_verdict_t *v = arg;

    if (v->has_fired) abort();
    *v = (bench_verdict_t){.has_fired = true, .err = err};
}

void
bench_sleep(kvp_ep_t *ep, int timeout_ms)
{
    struct pollfd pfd = {.fd = ep->tp->ops->ep_event_fd(ep), .events = ep->tp->ops->ep_arm(ep)};

    if (pfd.fd >= 0) poll(&pfd, 1, timeout_ms);
}

kvp_err_t
bench_connect(kvp_tp_t *client, const kvp_hostport_t *addr, kvp_ep_t **ep_out)
{
    uint64_t until_ns = kvp_now_ns() + BENCH_WAIT_NS;
    bench_verdict_t v = {0};
    kvp_ep_t *ep;
    kvp_err_t err = kvp_ep_create(client, addr, bench_on_connect, &v, &ep);

    *ep_out = NULL;
    if (err != KVP_OK) return err;
    while (!v.has_fired && kvp_now_ns() < until_ns) {
        client->ops->ep_poll(ep);
        if (!v.has_fired) bench_sleep(ep, 100);
    }
    if (v.has_fired && v.err == KVP_OK) {
        *ep_out = ep;
        return KVP_OK;
    }
    err = v.has_fired ? v.err : KVP_DEADLINE;
    kvp_ep_destroy(ep);
    return err;
}

kvp_tp_t *
bench_client(bench_t *b, uint64_t incarnation)
{
    kvp_tp_conf_t conf = {.incarnation = incarnation, .pool_id = BENCH_POOL, .own = suite_own};
    kvp_tp_t *tp;

    assert_int_equal(kvp_tp_create(b->ops, &conf, &tp), KVP_OK);
    return tp;
}

static kvp_rseg_t *
open_rseg(bench_t *b, kvp_tp_t *client, kvp_access_t access)
{
    kvp_token_t token;
    kvp_rseg_t *rseg;

    if (access == KVP_ACCESS_WRITE) assert_int_equal(b->ops->mr_grant(b->mr, BENCH_CLIENT), KVP_OK);
    assert_int_equal(b->ops->mr_export(b->mr, access, BENCH_CLIENT, &token), KVP_OK);
    assert_int_equal(kvp_rseg_create(client, &token, BENCH_BYTES, access, &rseg), KVP_OK);
    if (token.fd >= 0) close(token.fd);
    return rseg;
}

int
bench_setup(void **state)
{
    const char *name = *state;
    bench_t *b = calloc(1, sizeof *b);
    kvp_tp_conf_t conf = {.pool_id = BENCH_POOL, .lanes = BENCH_LANES, .max_conns = BENCH_CONNS, .own = suite_own};
    kvp_hostport_t at = {0};

    assert_non_null(b);
    b->ops = kvp_transport_find(name);
    assert_non_null(b->ops);
    b->has_lanes = (b->ops->caps & KVP_TP_SYNC) == 0;
    b->has_guards = (b->ops->caps & KVP_TP_GUARDS) != 0;
    if (b->has_lanes) snprintf(at.host, sizeof at.host, "%s", suite_host);
    assert_int_equal(kvp_tp_create(b->ops, &conf, &b->server), KVP_OK);
    b->has_keys = b->ops->listen(b->server, &at, &b->addr) == KVP_OK;
    b->fd = bench_memfd(BENCH_BYTES, &b->mem);
    assert_int_equal(kvp_mr_create(b->server, &(kvp_mem_t){.addr = b->mem, .len = BENCH_BYTES, .fd = b->fd}, &b->mr),
                     KVP_OK);
    b->client = bench_client(b, BENCH_CLIENT);
    b->rd = open_rseg(b, b->client, KVP_ACCESS_READ);
    b->wr = open_rseg(b, b->client, KVP_ACCESS_WRITE);
    bench_lanes_start(b);
    assert_int_equal(bench_connect(b->client, &b->addr, &b->ep), KVP_OK);
    *state = b;
    return 0;
}

int
bench_teardown(void **state)
{
    bench_t *b = *state;

    kvp_ep_destroy(b->ep);
    kvp_rseg_destroy(b->rd);
    kvp_rseg_destroy(b->wr);
    kvp_tp_destroy(b->client);
    bench_lanes_stop(b);
    kvp_mr_destroy(b->mr);
    kvp_tp_destroy(b->server);
    munmap(b->mem, BENCH_BYTES);
    close(b->fd);
    free(b);
    return 0;
}

static void
count_done(kvp_xfer_t *x)
{
    atomic_fetch_add((_Atomic size_t *)x->arg, 1);
}

bool
bench_wait(kvp_ep_t *ep, const _Atomic size_t *count, size_t n)
{
    uint64_t until_ns = kvp_now_ns() + BENCH_WAIT_NS;

    while (atomic_load(count) < n) {
        if (ep->tp->ops->ep_poll(ep) == 0) bench_sleep(ep, 100);
        if (kvp_now_ns() > until_ns) return false;
    }
    return atomic_load(count) == n;
}

/* The loans of all pieces of the transfers that are well-formed, ended by NULL. */
static kvp_loan_t **
lend_pieces(const kvp_ep_t *ep, kvp_xfer_t *xfers, size_t n)
{
    kvp_loan_t **loans;
    size_t most = 1, at = 0;

    for (size_t i = 0; i < n; i++)
        most += xfers[i].iov_n;
    loans = calloc(most, sizeof *loans);
    for (size_t i = 0; loans != NULL && suite_lends && i < n; i++) {
        if (kvp_xfer_check(&xfers[i]) != KVP_OK) continue;
        for (uint32_t k = 0; k < xfers[i].iov_n; k++) {
            const kvp_iov_t *piece = &xfers[i].iov[k];

            if (piece->len == 0) continue;
            if (ep->tp->ops->lend(suite_own, piece->addr, piece->len, NULL, &loans[at++]) != KVP_OK) abort();
        }
        xfers[i].flags |= KVP_XFER_LENT;
    }
    return loans;
}

static void
unlend_pieces(const kvp_ep_t *ep, kvp_loan_t **loans)
{
    for (size_t i = 0; loans != NULL && loans[i] != NULL; i++)
        ep->tp->ops->unlend(loans[i]);
    free(loans);
}

bool
bench_run(kvp_ep_t *ep, kvp_xfer_t *xfers, size_t n)
{
    _Atomic size_t count = 0;
    kvp_xfer_t **list = calloc(n, sizeof *list);
    kvp_loan_t **loans = lend_pieces(ep, xfers, n);
    bool is_done = list != NULL && loans != NULL;

    for (size_t i = 0; is_done && i < n; i++) {
        list[i] = &xfers[i];
        xfers[i].done = count_done;
        xfers[i].arg = &count;
        xfers[i].status = KVP_INTERNAL;
    }
    for (size_t at = 0; is_done && at < n;) {
        size_t took;
        if (ep->tp->ops->submit(ep, list + at, n - at, &took) != KVP_OK) is_done = false;
        at += took;
        if (at < n && is_done && ep->tp->ops->ep_poll(ep) == 0) bench_sleep(ep, 100);
    }
    is_done = is_done && bench_wait(ep, &count, n);
    unlend_pieces(ep, loans);
    free(list);
    return is_done;
}

kvp_xfer_t
bench_xfer(kvp_xfer_kind_t kind, uint32_t flags, kvp_rseg_t *rseg, uint64_t roffset, const kvp_iov_t *iov,
           uint32_t iov_n)
{
    kvp_xfer_t x = {.kind = kind, .flags = flags, .rseg = rseg, .roffset = roffset, .iov = iov, .iov_n = iov_n};

    for (uint32_t i = 0; i < iov_n; i++)
        x.len += iov[i].len;
    return x;
}

kvp_err_t
bench_move(kvp_ep_t *ep, kvp_xfer_kind_t kind, uint32_t flags, kvp_rseg_t *rseg, uint64_t roffset, void *addr,
           size_t len, uint64_t *sum_out)
{
    kvp_iov_t iov = {.addr = addr, .len = len};
    kvp_xfer_t x = bench_xfer(kind, flags, rseg, roffset, &iov, 1);

    if (sum_out != NULL) x.flags |= KVP_XFER_SUM;
    if (!bench_run(ep, &x, 1)) return KVP_INTERNAL;
    if (sum_out != NULL) *sum_out = x.sum;
    return x.status;
}

kvp_err_t
bench_publish(kvp_ep_t *ep, kvp_rseg_t *rseg, uint64_t roffset, uint64_t word)
{
    kvp_xfer_t x = {.kind = KVP_XFER_PUBLISH, .rseg = rseg, .roffset = roffset, .len = 8, .word = word};

    return bench_run(ep, &x, 1) ? x.status : KVP_INTERNAL;
}
