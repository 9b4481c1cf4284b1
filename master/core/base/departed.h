/* SPDX-License-Identifier: Apache-2.0
 * A table of what left the index: for each key the last departure, with its cause. Its size is fixed. It forgets:
 * a bucket of four entries drops its oldest one for a new key. */
#ifndef KVP_MASTER_CORE_BASE_DEPARTED_H
#define KVP_MASTER_CORE_BASE_DEPARTED_H

#include "proto/cause.h"

#define KVP_DEPARTED_READ 0x80u /* flag in `detail`: the object was read since its put */
#define KVP_DEPARTED_NEW 16u /* departures that are put into their buckets together */

/* One departure. All entries of a bucket lie in one cache line. */
typedef struct {
    uint64_t id; /* id of the key in the index: kvp_objindex_id */
    uint32_t at; /* time of the departure: kvp_departed_time */
    uint16_t segment; /* low 16 bits of the number of the segment with the object's first copy */
    uint8_t cause : 5; /* kvp_cause_t; 0 = the entry is empty */
    /* of an eviction from memory: how many eighths of the pool's memory were free in chunks of other tenants, rounded
     * down */
    uint8_t elsewhere : 3;
    /* of an object: its age when it left, as a kvp_age_code, and KVP_DEPARTED_READ; of a refused put: the error with
     * its sign changed */
    uint8_t detail;
} kvp_departure_t;

_Static_assert(sizeof(kvp_departure_t) == 16, "four entries are a cache line");
_Static_assert(KVP_CAUSES_N <= 32, "a cause has 5 bits");

typedef struct {
    kvp_departure_t *entries; /* NULL = the table has no memory, so it knows no departure */
    uint64_t buckets; /* number of buckets, a power of two */
    uint64_t touched; /* buckets whose pages kvp_departed_tick has touched */
    uint32_t since; /* time at which the table was made */
    uint32_t new_n;
    /* the newest departures, oldest first, not yet in their buckets: inserted together, their cache misses overlap */
    kvp_departure_t news[KVP_DEPARTED_NEW];
} kvp_departed_t;

/* kvp_departed_time returns a time of the core's clock in units of 2^26 ns (67 ms), which last for nine years.
 * kvp_departed_ago returns how long before now_ns that time was, in milliseconds. */
static inline uint32_t
kvp_departed_time(uint64_t now_ns)
{
    return (uint32_t)(now_ns >> 26);
}
static inline uint64_t
kvp_departed_ago(uint32_t at, uint64_t now_ns)
{
    return ((uint64_t)(kvp_departed_time(now_ns) - at) << 26) / 1000000u;
}

/* kvp_departed_init makes an empty table of at most `bytes` bytes; 0 = no table. kvp_departed_tick touches 64 of its
 * pages: without it, a step that records a thousand departures would have a thousand page faults. */
void kvp_departed_init(kvp_departed_t *table, uint64_t bytes, uint64_t now_ns);
void kvp_departed_tick(kvp_departed_t *table);
void kvp_departed_fini(kvp_departed_t *table);

/* kvp_departed_note records a departure, in place of an earlier departure of the same key. */
void kvp_departed_note(kvp_departed_t *table, const kvp_departure_t *departure);

/* kvp_departed_find returns the key's last departure; NULL = the table does not know one. Borrowed until the next
 * note. *since_out is then the time since which a departure of this key would be known. */
const kvp_departure_t *kvp_departed_find(const kvp_departed_t *table, uint64_t id, uint32_t *since_out);

/* kvp_age_code writes a time span as a number from 1 to 127, in steps of a quarter of its power of two, from 17 ms
 * up; 0 = unknown.
 * kvp_age_of returns the shortest span with the code; 0 for code 0, which means an unknown age. */
uint8_t kvp_age_code(uint64_t age_ns);
uint64_t kvp_age_of(uint8_t code);

#endif
