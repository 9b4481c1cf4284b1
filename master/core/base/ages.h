/* SPDX-License-Identifier: Apache-2.0
 * The ages of versions. Versions rise, so the times at which some of them were the newest give the age of every other
 * one. Recent times are kept each second, older ones with growing distances: an age is right to about a hundredth. */
#ifndef KVP_MASTER_CORE_BASE_AGES_H
#define KVP_MASTER_CORE_BASE_AGES_H

#include "common/base.h"

#define KVP_AGES_LEVELS 8u
#define KVP_AGES_N 256u /* samples of a level */

typedef struct {
    uint64_t version; /* the newest version at that time */
    uint64_t at_ns;
} kvp_ages_sample_t;

typedef struct {
    /* Level k is a ring with a sample every 4^k seconds. */
    struct {
        kvp_ages_sample_t samples[KVP_AGES_N];
        uint32_t n; /* number of samples in all; sample i is at i % KVP_AGES_N */
    } levels[KVP_AGES_LEVELS];
} kvp_ages_t;

/* kvp_ages_note takes a sample if one is due: `version` is the newest version now. Call it at least once a second.
 * kvp_ages_age returns how long ago the version became the newest; 0 = before the first sample that is left. */
void kvp_ages_note(kvp_ages_t *ages, uint64_t version, uint64_t now_ns);
uint64_t kvp_ages_age(const kvp_ages_t *ages, uint64_t version, uint64_t now_ns);

#endif
