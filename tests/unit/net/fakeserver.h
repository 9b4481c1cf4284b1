/* SPDX-License-Identifier: Apache-2.0
 * A server of framed messages in a thread of the test: one poll loop. What the fake master and the fake node are made
 * of. */
#ifndef KVP_TEST_FAKESERVER_H
#define KVP_TEST_FAKESERVER_H

#include "net/framed.h"

#include <pthread.h>

#define FAKE_CONNS 16

typedef struct {
    int listener;
    pthread_t thread;
    kvp_framed_t conns[FAKE_CONNS];
    bool is_unix;
    kvp_err_t (*on_frame)(void *arg, kvp_framed_t *c,
                          const kvp_frame_t *f); /* another code than OK ends the connection */
    void (*on_round)(void *arg); /* every few ms; NULL = nothing is done then */
    void *arg;

    /* Set by the test at any time. */
    _Atomic bool is_ending;
    _Atomic bool is_deaf; /* leaves questions unread */
    _Atomic bool is_cutting; /* closes all connections once, and clears this */
} fake_server_t;

/* fake_server_start serves a socket that listens, which it takes; s is all zero but for on_frame, on_round, arg and
 * is_unix. end stops the thread and closes everything. fake_server_answer appends a reply, and gives where it begins.
 */
void fake_server_start(fake_server_t *s, int listener);
void fake_server_end(fake_server_t *s);
size_t fake_server_answer(kvp_framed_t *c, const kvp_frame_t *f, const void *msg, const void *tail, size_t tail_len);

#endif
