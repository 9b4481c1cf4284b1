/* SPDX-License-Identifier: Apache-2.0
 * The puts in progress. */
#ifndef KVP_MASTER_CORE_PUT_PUTS_H
#define KVP_MASTER_CORE_PUT_PUTS_H

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/catalog.h"
#include "master/core/protect/protection.h"
#include "master/core/session/peers.h"
#include "master/core/space/space.h"

#define KVP_PUT_WHEEL 1024u /* number of lists of PutBegin messages, one for each tick in which their wait ends */

/* The puts in progress, and the queue of those that wait for space. */
typedef struct kvp_puts {
    kvp_ctx_t *ctx; /* borrowed, as the four pointers below */
    kvp_catalog_t *cat;
    kvp_sessions_t *peers;
    kvp_protect_t *prot;
    kvp_space_t *space;

    uint64_t started_ns; /* start time of the master */
    kvp_list_t waiting; /* keys that wait for space and have no window; keys that lost their window come first */
    kvp_list_t reqs[KVP_PUT_WHEEL]; /* unanswered PutBegin messages by the tick of due_ns */
    uint64_t put_tick; /* the last tick whose list was examined */
    uint64_t waiting_attempts; /* number of attempts with at least one copy that waits for space */
    uint64_t claims; /* number of keys that have claimed a window and wait until it is free */
    bool is_leaving; /* flag: windows in segments that accept no puts are still to be given up */
} kvp_puts_t;

#endif
