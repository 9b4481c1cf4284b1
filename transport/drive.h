/* SPDX-License-Identifier: Apache-2.0
 * Drives the transfers of several endpoints together until all have ended: submits, polls and sleeps. The caller
 * makes the transfers, chooses their order and interprets their statuses. */
#ifndef KVP_TRANSPORT_DRIVE_H
#define KVP_TRANSPORT_DRIVE_H

#include "transport/transport.h"

#define KVP_DRIVE_QUEUES_MAX 64u

/* The queue of transfers for one endpoint. The zero value is an empty queue. */
typedef struct {
    kvp_ep_t *ep; /* the endpoint, borrowed while the queue is driven */
    /* the transfers in the order of submission. arg of each is the queue; done is kvp_xferq_done, or a function that
     * calls it */
    kvp_xfer_t **xfers;
    size_t n;
    size_t submitted_n;
    size_t done_n;
    uint64_t patience_ns; /* the queue is cut if no byte moves for this time; UINT64_MAX = only at the deadline */
    uint64_t moved_ns; /* the time when a byte of this queue last moved, at first the time of kvp_xferq_begin */
    uint64_t seen_bytes; /* sent_bytes + received_bytes of the endpoint at the end of the last round */
    bool has_moved; /* in this round a byte moved or a transfer of the queue completed */
    /* OK, or why the queue was cut. Further transfers of a cut queue are not submitted, and the caller closes the
     * endpoint. NODE_LOST: no byte moved for patience_ns. DEADLINE, CLOSED (given up): the drive ended before the
     * queue. DISCONNECTED and the errors of submit: the endpoint is broken. */
    kvp_err_t err;
} kvp_xferq_t;

/* kvp_xferq_begin sets the queue's endpoint; patience_ns counts from now_ns. */
void kvp_xferq_begin(kvp_xferq_t *queue, kvp_ep_t *ep, uint64_t patience_ns, uint64_t now_ns);

/* kvp_xferq_done counts a completed transfer in its queue. It is the done function of the transfers. */
void kvp_xferq_done(kvp_xfer_t *xfer);

typedef struct {
    kvp_xferq_t *queues;
    uint32_t queues_n; /* the number of queues, at most KVP_DRIVE_QUEUES_MAX */
    uint64_t deadline_ns;
    const _Atomic bool *is_given_up; /* a flag of the caller: the drive ends once the flag is true */
    /* a descriptor that is readable once is_given_up is set; -1 = none, and the drive reads the flag every
     * KVP_POLL_SLICE_NS */
    int stop_fd;
    uint64_t drain_ns; /* how long the drive waits for transfers under way after its end; 0 = does not wait */
    /* true: queues silent for patience_ns are cut; false: only after another queue has ended with success */
    bool may_leave;
    bool may_spin; /* the drive polls instead of sleeping for as long as an endpoint asks (kvp_ep_t.spin_ns) */
    uint64_t now_ns; /* the time of the last clock reading */
    uint64_t waited_ns; /* the time in which the drive slept, or polled without a completion */
    uint64_t moved_ns; /* the time of the last round in which a transfer was submitted or completed */
} kvp_drive_t;

/* kvp_drive_run drives the queues until each queue has ended or was cut, in the thread that uses the endpoints. It
 * runs at least one round, even if the deadline has passed. */
void kvp_drive_run(kvp_drive_t *drive);

#endif
