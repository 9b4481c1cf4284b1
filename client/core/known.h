/* SPDX-License-Identifier: Apache-2.0
 * Known locations as a batch of gets sees them: client/cache/locations.c for many threads, a lone loccache in the simulator. Any
 * thread may call what any thread may call there.
 */
#ifndef KVP_CLIENT_CORE_KNOWN_H
#define KVP_CLIENT_CORE_KNOWN_H

#include "client/core/loccache.h"

typedef struct {
    /* As the functions of loccache.h with these names. */
    bool (*find)(const kvp_known_t *known, kvp_digest_t digest, kvp_place_t *place_out);
    bool (*has)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version);
    bool (*keep)(const kvp_known_t *known, kvp_digest_t digest, const kvp_place_t *place, uint64_t seq);
    void (*seen)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version, uint64_t told_ns);
    void (*forget)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version_max);
    /* until: when the lease ends, 0 = it does not hold. seq: the last revocation that was applied throughout. */
    uint64_t (*until)(const kvp_known_t *known);
    uint64_t (*seq)(const kvp_known_t *known);
    uint64_t (*lease_ns)(const kvp_known_t *known); /* how long the master lets a lease last that is not renewed */
} kvp_known_ops_t;

/* Comes first in what implements it. */
struct kvp_known {
    const kvp_known_ops_t *ops;
};

#endif
