/* SPDX-License-Identifier: Apache-2.0
 * Endpoints of peer-to-peer transfers with memory, and what tests of every way do with them. Header only. */
#ifndef KVP_TEST_P2PEND_H
#define KVP_TEST_P2PEND_H

#include "client/kvpool_p2p.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define END_BYTES ((size_t)3 << 20)
#define END_DEADLINE_MS 20000u /* of transfers that say nothing */

typedef struct {
    kvpool_p2p_t *p2p;
    char at[32];
    uint8_t *mem; /* registered */
    uint64_t token;
    uint8_t *device; /* of tests/device: as much of a device, registered too */
} end_t;

/* Without memory. Port 0: any. */
static inline int
try_open(end_t *end, const char *transports, uint32_t flags, uint16_t port)
{
    char listen[32];
    kvpool_p2p_conf_t conf = {.struct_size = sizeof conf,
                              .listen = listen,
                              .transports = transports,
                              .flags = flags | KVPOOL_P2P_TRACEABLE,
                              .deadline_ms = END_DEADLINE_MS};
    int err;

    snprintf(listen, sizeof listen, "127.0.0.1:%u", port);
    err = kvpool_p2p_open(&conf, &end->p2p);
    if (err == KVPOOL_OK) snprintf(end->at, sizeof end->at, "127.0.0.1:%u", kvpool_p2p_port(end->p2p));
    return err;
}

/* With so many bytes of the heap, which close_end frees. */
static inline void
open_end_of(end_t *end, size_t len, const char *transports, uint32_t flags, uint16_t port)
{
    assert_int_equal(try_open(end, transports, flags, port), KVPOOL_OK);
    end->mem = calloc(1, len);
    assert_non_null(end->mem);
    assert_int_equal(kvpool_p2p_register(end->p2p, end->mem, len, &end->token), KVPOOL_OK);
    assert_true(end->token != 0);
}

static inline void
open_end(end_t *end, const char *transports, uint32_t flags, uint16_t port)
{
    open_end_of(end, END_BYTES, transports, flags, port);
}

static inline void
close_end(end_t *end)
{
    kvpool_p2p_free(end->p2p);
    free(end->mem);
}

/* Two that are alike. */
static inline void
open_ends(end_t *a, end_t *b, size_t len, const char *transports)
{
    open_end_of(a, len, transports, 0, 0);
    open_end_of(b, len, transports, 0, 0);
}

static inline void
close_ends(end_t *a, end_t *b)
{
    close_end(a);
    close_end(b);
}

static inline kvpool_p2p_stat_t
stat_of(const end_t *end)
{
    kvpool_p2p_stat_t stat = {.struct_size = sizeof stat};

    assert_int_equal(kvpool_p2p_stat(end->p2p, &stat), KVPOOL_OK);
    return stat;
}

static inline void
fill(uint8_t *mem, size_t len, uint32_t seed)
{
    for (size_t i = 0; i < len; i++)
        mem[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
}

static inline void
expect_all(const uint8_t *mem, size_t len, uint8_t value)
{
    for (size_t i = 0; i < len; i++)
        if (mem[i] != value) fail_msg("byte %zu is %02x, not %02x", i, mem[i], value);
}

/* One piece; move: of what both ends have in `mem`, at these offsets. */
static inline int
move_piece(const end_t *from, const char *to, int kind, void *local, uint64_t remote, size_t len)
{
    kvpool_p2p_op_t op = {.local = local, .remote = remote, .len = len};

    return kvpool_p2p_transfer(from->p2p, to, kind, &op, 1, 0);
}

static inline int
move(const end_t *from, const end_t *to, int kind, size_t here, size_t there, size_t len)
{
    return move_piece(from, to->at, kind, from->mem + here, (uintptr_t)to->mem + there, len);
}

static inline void
pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* Until another thread has counted so many more. */
static inline void
wait_for(_Atomic uint32_t *n, uint32_t more)
{
    uint64_t late_ns = kvp_now_ns() + 60 * KVP_NS_PER_S;
    uint32_t want = atomic_load(n) + more;

    while (atomic_load(n) < want) {
        assert_true(kvp_now_ns() < late_ns);
        pause_briefly();
    }
}

#endif
