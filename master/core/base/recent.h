/* SPDX-License-Identifier: Apache-2.0
 * The outcomes of a client's finished put attempts, so that the master answers a repeated message as it answered the
 * first. The memory is bounded: an attempt is found by the low bits of its id. If a client counts its attempt ids
 * upwards, its last KVP_RECENT_MAX outcomes are known. If not, outcomes with equal low bits displace each other
 * earlier. */
#ifndef KVP_MASTER_CORE_BASE_RECENT_H
#define KVP_MASTER_CORE_BASE_RECENT_H

#include "common/base.h"

#define KVP_RECENT_MAX 16384u

typedef enum {
    KVP_RECENT_UNKNOWN = 0,
    KVP_RECENT_COMMITTED,
    KVP_RECENT_ABORTED, /* the writer aborted the put or was silent, or its commit was refused */
} kvp_recent_end_t;

typedef struct {
    uint64_t *ids; /* attempt ids; 0 = empty entry */
    uint8_t *ends; /* outcomes (kvp_recent_end_t) */
    /* for each attempt, number of the deferred reply that answered its end; 0 = the answer was not deferred */
    uint64_t *answers;
    uint32_t cap; /* length of the arrays ids, ends and answers: a power of two; 0 = no arrays yet */
} kvp_recent_t;

void kvp_recent_fini(kvp_recent_t *recent);
void kvp_recent_add(kvp_recent_t *recent, uint64_t id, kvp_recent_end_t end, uint64_t answer); /* id must not be 0 */
kvp_recent_end_t kvp_recent_find(const kvp_recent_t *recent, uint64_t id);
uint64_t kvp_recent_answer(const kvp_recent_t *recent, uint64_t id); /* 0 also for an unknown attempt */

#endif
