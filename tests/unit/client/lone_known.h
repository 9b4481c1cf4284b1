/* SPDX-License-Identifier: Apache-2.0
 * Known locations of one thread: a loccache and a lease as they are, behind the table that batches of gets use. For
 * tests of the cores. Header only.
 */
#ifndef KVP_TEST_LONE_KNOWN_H
#define KVP_TEST_LONE_KNOWN_H

#include "client/core/loccache.h"

typedef struct {
    kvp_known_t known;
    kvp_loccache_t cache;
    kvp_loclease_t lease;
} lone_known_t;

static inline lone_known_t *
lone_of(const kvp_known_t *known)
{
    return kvp_container_of(known, lone_known_t, known);
}

static inline bool
lone_find(const kvp_known_t *known, kvp_digest_t digest, kvp_place_t *place_out)
{
    return kvp_loccache_find(&lone_of(known)->cache, digest, place_out);
}

static inline bool
lone_has(const kvp_known_t *known, kvp_digest_t digest, uint64_t version)
{
    return kvp_loccache_has(&lone_of(known)->cache, digest, version);
}

static inline bool
lone_keep(const kvp_known_t *known, kvp_digest_t digest, const kvp_place_t *place, uint64_t seq)
{
    return kvp_loccache_keep(&lone_of(known)->cache, digest, place, seq);
}

static inline void
lone_seen(const kvp_known_t *known, kvp_digest_t digest, uint64_t version, uint64_t told_ns)
{
    kvp_loccache_seen(&lone_of(known)->cache, digest, version, told_ns);
}

static inline void
lone_forget(const kvp_known_t *known, kvp_digest_t digest, uint64_t version_max)
{
    kvp_loccache_forget(&lone_of(known)->cache, digest, version_max);
}

static inline uint64_t
lone_until(const kvp_known_t *known)
{
    return kvp_loclease_until(&lone_of(known)->lease);
}

static inline uint64_t
lone_seq(const kvp_known_t *known)
{
    return lone_of(known)->cache.seq;
}

static inline uint64_t
lone_lease_ns(const kvp_known_t *known)
{
    return lone_of(known)->lease.lease_ns;
}

static inline void
lone_init(lone_known_t *lone, uint32_t cap)
{
    static const kvp_known_t calls = {
        .find = lone_find,
        .has = lone_has,
        .keep = lone_keep,
        .seen = lone_seen,
        .forget = lone_forget,
        .until = lone_until,
        .seq = lone_seq,
        .lease_ns = lone_lease_ns,
    };

    *lone = (lone_known_t){.known = calls};
    kvp_loccache_init(&lone->cache, cap);
}

#endif
