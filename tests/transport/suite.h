/* SPDX-License-Identifier: Apache-2.0
 * The conformance suite of transports, and the bench that it sets up: one instance that serves a piece of memory, one
 * that asks, an endpoint between them. Tests of one transport alone use the same bench. */
#ifndef KVP_TESTS_TRANSPORT_SUITE_H
#define KVP_TESTS_TRANSPORT_SUITE_H

#include "transport/transport.h"
#include "tests/cases.h"

#include <pthread.h>

#define BENCH_LANES 2u
#define BENCH_BYTES ((size_t)20 << 20)
#define BENCH_DATA ((size_t)64 << 10) /* payload begins here; descriptors lie below */
#define BENCH_POOL "pool of the test" /* 16 bytes: no terminator fits */
#define BENCH_CONNS 32u
#define BENCH_CLIENT 1000u /* incarnation of the asking instance */
#define BENCH_WAIT_NS (20ull * 1000 * 1000 * 1000)

typedef struct {
    const kvp_transport_ops_t *ops;
    kvp_tp_t *server;
    kvp_tp_t *client;
    kvp_hostport_t addr;
    bool has_lanes; /* serves by threads */
    bool has_keys; /* checks keys, fences and ranges on the serving side */
    bool has_guards; /* code on the serving side sees to guards and words; a refusal costs no connection there */
    _Atomic bool must_stop;
    uint32_t lanes_n; /* running */
    pthread_t lanes[BENCH_LANES];
    int fd;
    uint8_t *mem; /* as the serving side sees it */
    kvp_mr_t *mr;
    kvp_rseg_t *rd;
    kvp_rseg_t *wr;
    kvp_ep_t *ep;
} bench_t;

/* bench_setup makes everything up to a connected endpoint; *state is the transport's name before, the bench after. */
int bench_setup(void **state);
int bench_teardown(void **state);
/* bench_lanes_start and _stop: stop also joins the threads. */
void bench_lanes_start(bench_t *b);
void bench_lanes_stop(bench_t *b);
/* A second asking instance and its endpoints. */
kvp_tp_t *bench_client(bench_t *b, uint64_t incarnation);
/* What a connection's done was told; arg of bench_on_connect. */
typedef struct {
    bool has_fired;
    kvp_err_t err;
} bench_verdict_t;
void bench_on_connect(void *arg, kvp_err_t err);
/* bench_connect waits for the verdict; the endpoint is NULL where it is not OK. */
kvp_err_t bench_connect(kvp_tp_t *client, const kvp_hostport_t *addr, kvp_ep_t **ep_out);

/* A sealed memfd, mapped; *mem_out is its memory. */
int bench_memfd(size_t bytes, uint8_t **mem_out);

/* bench_run submits all and waits until each has completed, with submissions again under back-pressure; false after
 * BENCH_WAIT_NS or where one completes twice. Usable from any thread. xfers' done and arg are set here. */
bool bench_run(kvp_ep_t *ep, kvp_xfer_t *xfers, size_t n);
/* bench_sleep waits for the endpoint's event fd; not at all where submit is synchronous. */
void bench_sleep(kvp_ep_t *ep, int timeout_ms);
/* bench_wait polls until *count reaches n. */
bool bench_wait(kvp_ep_t *ep, const _Atomic size_t *count, size_t n);
/* bench_xfer: one of all that lies in the list. */
kvp_xfer_t bench_xfer(kvp_xfer_kind_t kind, uint32_t flags, kvp_rseg_t *rseg, uint64_t roffset, const kvp_iov_t *iov,
                      uint32_t iov_n);
/* One transfer of contiguous memory. */
kvp_err_t bench_move(kvp_ep_t *ep, kvp_xfer_kind_t kind, uint32_t flags, kvp_rseg_t *rseg, uint64_t roffset, void *addr,
                     size_t len, uint64_t *sum_out);
kvp_err_t bench_publish(kvp_ep_t *ep, kvp_rseg_t *rseg, uint64_t roffset, uint64_t word);

/* Memory for a test, all 0, which it frees. */
void *bench_new(size_t bytes);
void bench_fill(void *at, size_t len, uint64_t seed);
bool bench_holds(const void *at, size_t len, uint64_t seed);

/* Where instances with lanes listen: loopback, and how much is moved where each byte costs, unless a test says
 * otherwise before it runs the suite. */
extern const char *suite_host;
extern size_t suite_extent_bytes;
extern void (*suite_stall)(bool is_stalled); /* makes a peer that needs no lanes silent; NULL = there is no such */
extern const void *suite_own; /* kvp_tp_conf_t.own */
extern bool suite_lends; /* bench_run lends local memory to the transport as long as it runs */

/* suite_run runs the suite for the transport of that name; returns the number of failed tests. */
int suite_run(const char *transport);
/* SUITE_TEST begins a test of one transport on the bench. */
#define SUITE_TEST(name, transport) TEST_OF(name, bench_setup, bench_teardown, (void *)(transport))

#endif
