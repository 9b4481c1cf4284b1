/* SPDX-License-Identifier: Apache-2.0
 * The hit ratio of the last minute and of the last hour: counts in rings of ten seconds and of minutes. */
#ifndef KVP_MASTER_CORE_BASE_RATIO_H
#define KVP_MASTER_CORE_BASE_RATIO_H

#include "common/base.h"

typedef struct {
    uint64_t asked, found; /* number of keys that clients asked for; number of these keys that the pool had */
} kvp_askcount_t;

typedef struct {
    kvp_askcount_t tens[7], minutes[61]; /* the current entry and the finished ones */
    uint64_t ten; /* number of the current ten seconds: the time divided by ten seconds */
} kvp_ratio_t;

/* kvp_ratio_note counts keys. kvp_ratio_minute and kvp_ratio_hour return the counts of the last minute and hour, which
 * reach back by up to ten seconds or a minute more; asked 0 = there are no data. */
void kvp_ratio_note(kvp_ratio_t *ratio, uint64_t asked, uint64_t found, uint64_t now_ns);
kvp_askcount_t kvp_ratio_minute(const kvp_ratio_t *ratio, uint64_t now_ns);
kvp_askcount_t kvp_ratio_hour(const kvp_ratio_t *ratio, uint64_t now_ns);

#endif
