/* SPDX-License-Identifier: Apache-2.0
 * A master of a few lines, in a thread of the test: Hello, heartbeats, and answers that the test chooses. It keeps no
 * objects. For tests of the client's session and of its arguments. */
#ifndef KVP_TEST_FAKEMASTER_H
#define KVP_TEST_FAKEMASTER_H

#include "tests/unit/net/fakeserver.h"

#define FAKE_MASTER_HOST "this host" /* of its segment */
#define FAKE_MASTER_SEGMENT 7u

/* The segment that a master tells of: id FAKE_MASTER_SEGMENT, one chunk, by shared memory where transports is NULL. */
typedef struct {
    const char *unix_path;
    const uint8_t *uuid;
    uint64_t bytes;
    const char *transports; /* NULL = shm */
} fake_segment_t;

typedef struct {
    uint16_t port;
    int listener; /* until it serves */
    fake_server_t server;
    uint64_t watched[FAKE_CONNS]; /* the WATCH that is not answered yet, of each connection; 0 = none. The server's */

    /* Set by the test at any time. */
    _Atomic bool is_mute; /* takes questions and does not answer them */
    _Atomic bool is_fencing; /* heartbeats are answered FENCED */
    _Atomic bool
        is_standby; /* answers WATCH when it is none any more, and all that a standby does not serve NOT_LEADER */
    _Atomic bool is_losing_watches; /* as if the connection ended without its other side being told */
    _Atomic uint32_t term;
    _Atomic bool is_dropping; /* ends every connection at the first question behind Hello */
    _Atomic int hello_err;
    _Atomic int remove_err; /* of every key of the next REMOVE, which clears it */
    _Atomic int present_err; /* that every record of a PRESENT is answered; a ticket 1000 with OK */
    _Atomic uint8_t found_byte; /* of each key in the answer to LOOKUP; 0 = 1 */
    _Atomic int delay_ms; /* before each answer to EXISTS and GET */
    _Atomic uint32_t heartbeat_ms, ttl_ms;
    _Atomic uint32_t lease_ms; /* of locations; 0 = it gives none */
    const fake_segment_t *_Atomic segment; /* NULL = there is none */

    /* Seen by the test. */
    _Atomic uint64_t hellos, watches, heartbeats, byes, exists, gets, removes, lookups, presents, honoured, releases,
        segments;
    /* honoured: of presents, answered OK. */
    _Atomic uint64_t last_released; /* the first ticket of the last RELEASE */
    _Atomic uint64_t last_before; /* the incarnation of the session before, in the last Hello */
} fake_master_t;

/* fake_master_start listens on a port of its own; end stops the thread and closes everything. EXISTS is answered with 1
 * for every digest whose lowest bit is set, REMOVE with OK for those and NOT_FOUND else, GET of one key with a miss and
 * a ticket, LOOKUP with all found under tickets 1, 2, ... */
void fake_master_start(fake_master_t *m);

/* The same in two steps: one that has its port and refuses connections, and one that serves. */
void fake_master_bind(fake_master_t *m);
void fake_master_serve(fake_master_t *m);
void fake_master_end(fake_master_t *m);

#endif
