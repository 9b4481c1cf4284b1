/* SPDX-License-Identifier: Apache-2.0
 * Drives the transfers on several endpoints together until they are over: submits, polls and sleeps.
 * The caller makes the transfers, chooses their order and interprets their statuses. */
#ifndef KVP_TRANSPORT_DRIVE_H
#define KVP_TRANSPORT_DRIVE_H

#include "transport/transport.h"

#define KVP_DRIVE_QUEUES_MAX 64u

/* The transfers on one endpoint. The zero value is an empty queue. */
typedef struct {
    kvp_ep_t *ep; /* borrowed while the queue is driven */
    kvp_xfer_t **xfers; /* in the order of submission; done is kvp_xferq_done or calls it, arg is the queue */
    size_t n;
    size_t submitted_n;
    size_t done_n;
    uint64_t patience_ns; /* how long no byte may move before the queue is cut; UINT64_MAX = until the deadline */
    uint64_t moved_ns; /* when a byte last moved, or the queue was begun */
    uint64_t seen_bytes; /* that the endpoint had sent and received by the last round */
    bool has_moved; /* in this round a byte moved or a transfer completed */
    /* OK, or why the queue was cut: nothing more is submitted, and the caller closes the endpoint.
     * NODE_LOST: the patience is over. DEADLINE, CLOSED: the drive ended first. DISCONNECTED and
     * the errors of submit: the endpoint is broken. */
    kvp_err_t err;
} kvp_xferq_t;

/* kvp_xferq_begin sets the endpoint, and starts the patience with it. */
void kvp_xferq_begin(kvp_xferq_t *queue, kvp_ep_t *ep, uint64_t patience_ns, uint64_t now_ns);

/* kvp_xferq_done counts a completed transfer of the queue. */
void kvp_xferq_done(kvp_xfer_t *xfer);

typedef struct {
    kvp_xferq_t *queues;
    uint32_t queues_n; /* up to KVP_DRIVE_QUEUES_MAX */
    uint64_t deadline_ns;
    const _Atomic bool *is_given_up; /* the drive ends once the flag is set */
    int stop_fd; /* readable once the flag is set; -1 = none, and the flag is read every KVP_POLL_SLICE_NS */
    uint64_t drain_ns; /* after the deadline: how long the transfers under way are waited for; 0 = not */
    bool may_leave; /* silent queues are cut; false: only once another queue has ended well */
    bool may_spin; /* polls instead of sleeping, for as long as an endpoint asks (kvp_ep_t.spin_ns) */
    uint64_t now_ns; /* of the last look at the clock */
    uint64_t moved_ns; /* of the last round in which a transfer was submitted or completed */
} kvp_drive_t;

/* kvp_drive_run drives the queues until each is done or cut, in the thread that uses the endpoints.
 * The first round is driven also after the deadline. */
void kvp_drive_run(kvp_drive_t *drive);

#endif
