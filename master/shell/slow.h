/* SPDX-License-Identifier: Apache-2.0
 * Finds requests that take longer than a limit, and logs where their time went: in the queue, in the core, waiting for
 * what the answer depends on, and sending. Only the calls of kvp_timed_calls are followed. A request that the core
 * answers at once costs a few comparisons; up to KVP_SLOW_WAITING requests that wait for their answers are kept in a
 * table of fixed size, and further ones are not followed. Used in the loop's thread only. */
#ifndef KVP_MASTER_SHELL_SLOW_H
#define KVP_MASTER_SHELL_SLOW_H

#include "common/buf.h"
#include "common/log.h"
#include "proto/frame.h"

#define KVP_SLOW_WAITING 1024u /* a power of two */

typedef struct {
    uint64_t conn, request_id; /* conn 0 = no request */
    uint64_t asked_ns; /* when the request became readable */
    uint64_t began_ns, ended_ns; /* times at which the core got the request, and returned */
    uint64_t answered_ns; /* when the core gave the answer */
    uint8_t opcode;
} kvp_slow_call_t;

/* The requests that a connection has answered since its output was last sent to the end. */
typedef struct {
    kvp_slow_call_t longest; /* the longest of these requests, even if it was below the limit; conn 0 = none */
    uint32_t n; /* number of these requests that were over the limit */
} kvp_slow_answers_t;

typedef struct {
    uint64_t limit_ns; /* 0 = no request is timed */
    kvp_slow_call_t now; /* the request that the core handles */
    kvp_slow_call_t waiting[KVP_SLOW_WAITING]; /* hash table with one place for each hash */
    uint32_t waiting_n;
    kvp_log_limit_t log_limit;
} kvp_slow_t;

/* kvp_slow_ask is called after the core has handled a request, and kvp_slow_keep after its outputs were passed on. */
void kvp_slow_ask(kvp_slow_t *slow, uint64_t conn, const kvp_frame_hdr_t *request, uint64_t asked_ns, uint64_t began_ns,
                  uint64_t ended_ns);
void kvp_slow_keep(kvp_slow_t *slow);

/* kvp_slow_answer finds answers among the frames that the core made for a connection, and adds their requests to
 * *answers. */
void kvp_slow_answer(kvp_slow_t *slow, uint64_t conn, const kvp_buf_t *frames, kvp_slow_answers_t *answers);

/* kvp_slow_sent is called when all answers of a connection are sent; fd is its socket. It logs the longest request if
 * it took longer than the limit, at a limited rate, empties *answers, and returns the number of slow requests. */
uint32_t kvp_slow_sent(kvp_slow_t *slow, kvp_slow_answers_t *answers, int fd, uint64_t now);

#endif
