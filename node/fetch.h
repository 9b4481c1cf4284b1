/* SPDX-License-Identifier: Apache-2.0
 * Reading the objects of other nodes for the order COPY. The code that reads is the client library's, which stands on
 * the node. So the program that opens a node gives the node this table of functions. */
#ifndef KVP_NODE_FETCH_H
#define KVP_NODE_FETCH_H

#include "proto/segfmt.h"
#include "proto/wire.h"
#include "transport/transport.h"

typedef struct kvp_fetcher kvp_fetcher_t; /* a session with the pool that only reads */

typedef struct {
    /* the same as in kvp_node_conf_t; all pointers are borrowed during the call of open */
    const char *masters, *cluster;
    const char *name; /* the session's name: the name of the node */
    const char *host_id;
    /* the transports by which the session may read, in order of preference */
    const kvp_transport_ops_t *const *transports;
    size_t transports_n;
} kvp_fetch_conf_t;

/* One object to read. err is OK, STALE (the source has no such place, or damaged bytes), NODE_LOST (the source does not
 * answer), NOTSUP (no transport reaches the source), DEADLINE, UNREACHABLE (no session), CLOSED, NOMEM. After OK the
 * first line of desc was read after the payload, the key and the rest of desc. The caller checks desc. */
typedef struct {
    kvp_wire_copy_t rec;
    kvp_err_t err;
    uint64_t sum; /* the checksum of the payload */
    kvp_desc_t desc;
    uint8_t key[KVP_KEY_MAX];
    _Alignas(64) uint8_t payload[]; /* rec.len bytes */
} kvp_fetch_t;

/* open connects to the pool by deadline_ns: UNREACHABLE, DENIED, VERSION, NOMEM, SYS, logged. read reads n objects
 * together, and returns by about deadline_ns; after it returns, no transfer stores to the objects' memory. stop makes a
 * running read return soon, from any thread; it blocks for about a second at most. close ends the session, and frees
 * the fetcher. Only one thread at a time may call read or close. */
typedef struct {
    kvp_err_t (*open)(const kvp_fetch_conf_t *conf, uint64_t deadline_ns, kvp_fetcher_t **fetcher_out);
    void (*read)(kvp_fetcher_t *fetcher, kvp_fetch_t *const *fetches, uint32_t n, uint64_t deadline_ns);
    void (*stop)(kvp_fetcher_t *fetcher);
    void (*close)(kvp_fetcher_t *fetcher);
} kvp_fetch_ops_t;

#endif
