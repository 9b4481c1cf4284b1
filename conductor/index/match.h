/* SPDX-License-Identifier: Apache-2.0
 * How much of a prompt each publisher holds. A run begins at the first block and skips none. Any
 * thread may ask; each has a scratch of its own. */
#ifndef KVP_CONDUCTOR_INDEX_MATCH_H
#define KVP_CONDUCTOR_INDEX_MATCH_H

#include "conductor/index/spaces.h"
#include "conductor/index/view.h"

/* A publisher in the form for readers. */
typedef struct {
    const char *instance, *tenant, *model; /* owned by the roster's maker */
    uint32_t block_size, rank;
    const kvp_view_t *view;
    const char *url, *role; /* of its server; "" = unknown */
    const char *lora; /* of its registration; "" = none */
    uint32_t pools_n;
    const kvp_view_t
        *pools[KVP_POOLS_MAX]; /* of shared pools: a medium without a name counts only for the run on any medium */
} kvp_roster_row_t;

/* All publishers, by instance and rank. Immutable: a change makes another roster. */
typedef struct {
    uint32_t n;
    kvp_roster_row_t members[];
} kvp_roster_t;

typedef struct {
    const char *tenant, *model, *instance; /* instance NULL = all */
    uint32_t block_size, space; /* space KVP_SPACE_NONE = the namespace was never named */
    const uint64_t *hashes; /* of the prompt's blocks, from the first on */
    size_t n;
} kvp_question_t;

/* Of a member that the question is about. Runs are blocks. */
typedef struct {
    const kvp_roster_row_t *member;
    uint32_t run; /* held tokens, on any medium */
    uint32_t media_n;
    struct {
        const char *name;
        uint32_t run;
    } media[KVP_MEDIA_MAX];
} kvp_answer_t;

typedef struct kvp_match_scratch kvp_match_scratch_t;
kvp_match_scratch_t *kvp_scratch_create(void); /* NULL = no memory */
void kvp_scratch_destroy(kvp_match_scratch_t *scratch);

/* kvp_match, inside an epoch: *answers_out, of *n_out members in the roster's order, lies in the
 * scratch until the next call, and is valid inside that epoch. False: no memory. */
bool kvp_match(const kvp_index_t *ix, const kvp_roster_t *roster, const kvp_question_t *question,
               kvp_match_scratch_t *scratch, const kvp_answer_t **answers_out, uint32_t *n_out) KVP_MUST_USE;

#endif
