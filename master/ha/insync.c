/* SPDX-License-Identifier: Apache-2.0
 * The in-sync set of standbys: see insync.h. Acknowledgements wait for a standby from before the set names it until
 * the set no longer names it. So at any time the members of the set in etcd have every acknowledged record. */
#include "master/ha/insync.h"

#include "common/mutate.h"

#include <stdio.h>
#include <string.h>

#define LAG_NS 500000000ull /* a standby without progress for this long leaves the in-sync set */
#define LAG_BYTES (512u << 10) /* a standby joins the in-sync set only with a smaller lag */

static kvp_insync_one_t *
find_standby(kvp_insync_t *in, const char *id)
{
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++)
        if (strcmp(in->ones[i].id, id) == 0) return &in->ones[i];
    return NULL;
}

const kvp_insync_one_t *
kvp_insync_find(const kvp_insync_t *in, const char *id)
{
    return find_standby((kvp_insync_t *)in, id);
}

kvp_insync_one_t *
kvp_insync_add(kvp_insync_t *in, const char *id, uint64_t written, uint64_t now_ns)
{
    kvp_insync_one_t *one = find_standby(in, "");

    if (one == NULL) return NULL;
    *one = (kvp_insync_one_t){.written = written, .moved_ns = now_ns};
    snprintf(one->id, sizeof one->id, "%s", id);
    return one;
}

void
kvp_insync_del(kvp_insync_t *in, const char *id)
{
    kvp_insync_one_t *one = id[0] == '\0' ? NULL : find_standby(in, id);

    if (one != NULL) memset(one, 0, sizeof *one);
}

void
kvp_insync_wrote(kvp_insync_t *in, const char *id, uint64_t written, uint64_t end, uint64_t now_ns)
{
    kvp_insync_one_t *one = find_standby(in, id);

    if (one == NULL || written <= one->written || written > end) return;
    one->written = written;
    one->moved_ns = now_ns;
}

void
kvp_insync_tick(kvp_insync_t *in, uint64_t acked, uint64_t end, uint64_t now_ns)
{
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++) {
        kvp_insync_one_t *one = &in->ones[i];

        if (one->id[0] == '\0') continue;
        if (one->written >= end) one->moved_ns = now_ns;
        if (one->is_joined)
            one->is_joined = now_ns - one->moved_ns <= LAG_NS;
        else
            one->is_joined =
                one->written >= acked && end - one->written < LAG_BYTES && now_ns - one->moved_ns <= LAG_NS;
    }
}

void
kvp_insync_members(const kvp_insync_t *in, const char *self, kvp_election_set_t *set_out)
{
    memset(set_out, 0, sizeof *set_out);
    snprintf(set_out->ids[set_out->n++], sizeof set_out->ids[0], "%s", self);
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++)
        if (in->ones[i].is_joined) memcpy(set_out->ids[set_out->n++], in->ones[i].id, sizeof set_out->ids[0]);
}

uint64_t
kvp_insync_all_have(const kvp_insync_t *in, const kvp_election_set_t *written, const char *self)
{
    uint64_t least = UINT64_MAX;

    if (!KVP_RULE(INSYNC_WAITED)) return least;
    for (uint32_t i = 0; i < written->n; i++) {
        const kvp_insync_one_t *one = kvp_insync_find(in, written->ids[i]);

        if (strcmp(written->ids[i], self) != 0) least = kvp_min_u64(least, one == NULL ? 0 : one->written);
    }
    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++)
        if (in->ones[i].is_joined) least = kvp_min_u64(least, in->ones[i].written);
    return least;
}

uint64_t
kvp_insync_nth_has(const kvp_insync_t *in, uint32_t n)
{
    uint64_t best = 0;

    for (uint32_t i = 0; i < KVP_STANDBYS_MAX; i++) {
        uint32_t above = 0;

        for (uint32_t k = 0; k < KVP_STANDBYS_MAX; k++)
            above += in->ones[k].id[0] != '\0' && in->ones[k].written >= in->ones[i].written;
        if (in->ones[i].id[0] != '\0' && above >= n) best = kvp_max_u64(best, in->ones[i].written);
    }
    return best;
}
