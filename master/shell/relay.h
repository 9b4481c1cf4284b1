/* SPDX-License-Identifier: Apache-2.0
 * Two threads that run one loop in turn, so that a blocking system call stops the loop only for a moment.
 *
 * A short write to a file takes the loop's own thread a few microseconds; passing it to another thread takes ten
 * times as long. But a disk may hang. So the loop's thread makes the call itself, between two turns of the loop, and
 * the other thread watches. If the call takes longer than KVP_RELAY_NS, the watching thread runs the loop from then
 * on. The thread in the call becomes the watcher when it returns. */
#ifndef KVP_MASTER_SHELL_RELAY_H
#define KVP_MASTER_SHELL_RELAY_H

#include "common/base.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_RELAY_NS (100ull * 1000 * 1000)

typedef enum {
    KVP_TURN_NEXT, /* the loop continues */
    KVP_TURN_LOST, /* the other thread runs the loop now */
    KVP_TURN_OVER, /* the loop has ended */
} kvp_turn_t;

typedef struct {
    kvp_turn_t (*turn)(void *arg);
    void *arg;
    void *pages; /* the stock of pages of the loop's first thread (common/pages.h) */
    _Atomic uint64_t call_ns; /* start of the loop thread's blocking call; 0 = none, or another thread has the loop */
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over; /* guarded by lock */
} kvp_relay_t;

/* kvp_relay_run calls turn(arg) again and again, in this thread or in another one, until turn returns OVER. SYS,
 * logged: no thread can be started, and turn was not called. */
kvp_err_t kvp_relay_run(kvp_relay_t *relay, kvp_turn_t (*turn)(void *arg), void *arg) KVP_MUST_USE;

/* kvp_relay_call makes the blocking call fn(arg); legal only inside of turn. fn must use nothing that turns of the
 * loop use. Returns false if the other thread runs the loop now: the caller must return LOST from its turn. */
bool kvp_relay_call(kvp_relay_t *relay, void (*fn)(void *arg), void *arg);

#endif
