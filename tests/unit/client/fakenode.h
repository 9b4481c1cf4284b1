/* SPDX-License-Identifier: Apache-2.0
 * A node of a few lines, in a thread of the test: one chunk of shared memory, opened to whoever asks. It obeys no
 * master. For tests of the client's side of attachments, and of what it moves. */
#ifndef KVP_TEST_FAKENODE_H
#define KVP_TEST_FAKENODE_H

#include "tests/unit/net/fakeserver.h"

#include "proto/segfmt.h"

#define FAKE_NODE_BYTES (8u << 20)

typedef struct {
    char path[108]; /* of its socket, in this user's directory of sockets */
    uint8_t uuid[16];
    fake_server_t server;
    kvp_chunk_geo_t geo;
    int payload_fd, meta_fd;
    uint8_t *payload, *meta; /* the node's mappings */

    /* Set by the test at any time. */
    _Atomic int hello_err, open_err;
    _Atomic bool is_lazy;
    const char *_Atomic open_err_by; /* the one transport that open_err is for; NULL = all */

    /* Seen by the test. */
    _Atomic uint64_t hellos, opens, refused_opens, drained, last_drained;
} fake_node_t;

/* fake_node_start makes the memory, all zero, and listens; end stops the thread and gives everything back. */
void fake_node_start(fake_node_t *n);
void fake_node_end(fake_node_t *n);

#endif
