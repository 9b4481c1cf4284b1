/* SPDX-License-Identifier: Apache-2.0
 * Puts under way.
 */
#ifndef KVP_MASTER_CORE_PUT_PUTS_H
#define KVP_MASTER_CORE_PUT_PUTS_H

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/catalog.h"
#include "master/core/protect/protection.h"
#include "master/core/session/peers.h"
#include "master/core/space/space.h"

#define KVP_PUT_WHEEL 1024u /* a list for each tick in which a waiting put may be due */

/* Puts under way, and those of them that wait for space. */
typedef struct kvp_puts {
    kvp_ctx_t *ctx; /* borrowed, */
    kvp_catalog_t *cat;
    kvp_sessions_t *peers;
    kvp_protect_t *prot;
    kvp_space_t *space;

    uint64_t started_ns; /* the master */
    kvp_list_t waiting; /* keys without a window, in the order of arrival */
    kvp_list_t reqs[KVP_PUT_WHEEL]; /* messages by the tick of their due_ns */
    uint64_t put_tick; /* the last examined one */
    uint64_t waiting_attempts; /* of which some copy has no place yet */
    uint64_t claims; /* keys that wait for a window of theirs */
    bool is_leaving; /* some windows are still to be given up, in segments that take no puts */
} kvp_puts_t;

#endif
