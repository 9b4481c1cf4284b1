/* SPDX-License-Identifier: Apache-2.0
 * The SSD tier of a simulated node: what is on its device, the master's orders about it, and the oracle over both. The
 * device outlives the node's process; what was answered is on it, but for what a loss of the machine's power takes. */
#ifndef KVP_TESTS_SIM_TIER_H
#define KVP_TESTS_SIM_TIER_H

#include "proto/frame.h"
#include "proto/wire.h"
#include "tests/sim/sim_mem.h"

struct node;
struct Kvp__Pb__MountReply;

/* A record of a device, also of one that is no more. */
typedef struct tiered {
    kvp_desc_t desc; /* of its object */
    char key[KEY_BYTES];
    uint64_t *units;
    const grant_t *from; /* the extent that was written */
    uint64_t put; /* whose bytes these are; 0 = it was never known */
    uint64_t commit_ns;
    uint64_t written_ns;
    uint64_t heard_ns; /* since when the master that runs knows that it is there; UINT64_MAX = it does not */
    uint32_t over_term; /* in which a master had it go; 0 = not yet */
    bool is_there; /* on the device */
    bool was_reclaimed; /* a master said that it is not worth keeping, whether its node heard that or not */
    bool may_go; /* its removal, or a new put of its key, was heard */
    bool was_lost; /* with the power */
    struct tiered *older; /* of all of the node's */
} tiered_t;

typedef struct tier_order tier_order_t;

typedef enum { TIER_DOWN, TIER_MOUNTING, TIER_REPORTING, TIER_UP } tier_state_t;

typedef struct {
    tiered_t *records; /* also those that are gone */
    tier_order_t *orders, **orders_end; /* DEMOTE and DROP of this life, in the order in which they are answered */
    tier_state_t state;
    uint32_t segment_id;
    uint64_t request; /* MOUNT, TIER_REPORT or RECLAIM that is not answered; 0 = none */
    bool is_whole;
    tiered_t *told[KVP_WHOLE_MAX]; /* the page that is not answered, */
    uint32_t told_n;
    tiered_t *next; /* where the report goes on; NULL: it has come to its end */
    uint64_t heard_conn; /* of the node to the master that has heard the report; 0 = it has not */
} tier_t;

/* ---- the node's */
void tier_poll(sim_t *s, struct node *n); /* its link is up: it mounts, and proposes what may go */
bool tier_on_order(sim_t *s, struct node *n, const kvp_frame_t *f,
                   kvp_err_t *err_out); /* false: it is none about tiers */
bool tier_on_answer(sim_t *s, struct node *n, const kvp_frame_t *f); /* false: it is to no question of the tier's */
void tier_link_lost(struct node *n);
void tier_crash(sim_t *s, struct node *n, rng_t *rng, bool is_process); /* or, perhaps, its machine dies */

/* ---- the oracle's. tier_expects: an answer, of the node or of the master, is about these. tier_is_gone: a STAGE asks
 * for a record that is not there. */
void tier_expects(sim_t *s, const conn_t *conn, uint8_t op, uint64_t request, tiered_t **records, uint32_t n);
void tier_is_gone(sim_t *s, const struct node *n, kvp_digest_t digest, uint64_t version);
void tier_says_stage(sim_t *s, conn_t *conn, const kvp_frame_t *f);
void tier_says_mount(sim_t *s, const conn_t *conn, bool is_whole); /* it knows all that is there */
void tier_says_drop(sim_t *s, conn_t *conn, const kvp_frame_t *f);
void tier_says_answer(sim_t *s, conn_t *conn, const kvp_frame_t *f); /* to TIER_REPORT or RECLAIM */
void tier_hears(sim_t *s, conn_t *conn, const kvp_frame_t *f); /* TIER_REPORT, or an answer */
void tier_heard(sim_t *s); /* the master has taken it */
void tier_conn_over(sim_t *s, const conn_t *conn);
void tier_master_died(sim_t *s);
void tier_let_go(sim_t *s, uint32_t tenant, const kvp_digest_t *digest); /* NULL: all of the tenant's */
void tier_missed(sim_t *s, uint32_t tenant, kvp_digest_t digest, uint64_t asked_ns);
bool tier_has(sim_t *s, kvp_digest_t digest, uint64_t version); /* that one, or a newer one */
void tier_end(sim_t *s); /* nothing is there that the master does not know */

#endif
