/* SPDX-License-Identifier: Apache-2.0
 * A network between two endpoints that may keep what was sent on data connections to itself, for as long as a test
 * wants, also when the sender has long gone. One thread; control connections go through at once. */
#ifndef KVP_TEST_SLOWPROXY_H
#define KVP_TEST_SLOWPROXY_H

#include "common/base.h"

#include <pthread.h>

#define SLOW_PAIRS 16
#define SLOW_BYTES (1u << 20) /* that are kept of one connection */

typedef struct {
    int near, far; /* -1 = gone */
    bool is_data, is_known;
    bool is_held; /* what comes from near is kept from here on, until release */
    uint8_t *kept;
    size_t kept_n, sent_n;
} slow_pair_t;

typedef struct {
    char at[32]; /* where it listens */
    uint16_t to_port;
    int listen_fd;
    pthread_t thread;
    _Atomic bool is_over;
    _Atomic bool must_hold; /* data that comes is kept */
    _Atomic size_t
        drop_at; /* once so much is kept of a connection its near end is closed, and nothing more held; 0 = never */
    _Atomic bool must_release; /* what is kept goes on its way */
    _Atomic size_t kept_bytes; /* of all connections, until now */
    _Atomic uint32_t held_n; /* connections that were held, */
    _Atomic uint32_t ended_n; /* and of these: ended by the far end */
    slow_pair_t pairs[SLOW_PAIRS];
} slow_proxy_t;

void slow_proxy_start(slow_proxy_t *proxy, uint16_t to_port);
void slow_proxy_stop(slow_proxy_t *proxy);

#endif
