/* SPDX-License-Identifier: Apache-2.0
 * The outcomes of a client's finished attempts, so that a repeated message gets the first answer
 * again. Bounded: an attempt is found by the low bits of its id. For a client that counts its
 * attempts upwards the last KVP_RECENT_MAX are known; a client that does not forgets its own
 * sooner. */
#ifndef KVP_MASTER_CORE_BASE_RECENT_H
#define KVP_MASTER_CORE_BASE_RECENT_H

#include "common/base.h"

#define KVP_RECENT_MAX 16384u

typedef enum {
    KVP_RECENT_UNKNOWN = 0,
    KVP_RECENT_COMMITTED,
    KVP_RECENT_ABORTED, /* at the writer's wish */
} kvp_recent_end_t;

typedef struct {
    uint64_t *ids; /* 0 = none */
    uint8_t *ends; /* kvp_recent_end_t */
    uint64_t *answers; /* the deferred reply that carries the first answer; 0 = none was deferred */
    uint32_t cap; /* a power of two, or 0 while empty */
} kvp_recent_t;

void kvp_recent_fini(kvp_recent_t *recent);
void kvp_recent_add(kvp_recent_t *recent, uint64_t id, kvp_recent_end_t end, uint64_t answer); /* id is not 0 */
kvp_recent_end_t kvp_recent_find(const kvp_recent_t *recent, uint64_t id);
uint64_t kvp_recent_answer(const kvp_recent_t *recent, uint64_t id); /* 0 also for an unknown attempt */

#endif
