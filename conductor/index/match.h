/* SPDX-License-Identifier: Apache-2.0
 * Computes how much of a prompt each publisher holds: its run, the number of the prompt's first blocks that it holds
 * without a gap. Any thread may ask; each thread has its own scratch memory. */
#ifndef KVP_CONDUCTOR_INDEX_MATCH_H
#define KVP_CONDUCTOR_INDEX_MATCH_H

#include "conductor/index/spaces.h"
#include "conductor/index/view.h"

/* The publisher of an engine's events, as readers see it. */
typedef struct {
    const char *instance, *tenant, *model; /* names of the publisher; the roster's creator owns these texts */
    uint32_t block_size, rank;
    const kvp_view_t *view;
    const char *url, *role; /* URL and role of the engine's server; "" = unknown */
    const char *lora; /* LoRA adapter in the registration; "" = none */
    uint32_t pools_n;
    /* views of the shared pools that the publisher uses; a medium without a name counts only for the run over all
     * media */
    const kvp_view_t *pools[KVP_POOLS_MAX];
} kvp_roster_row_t;

/* All publishers of engine events, sorted by instance and rank. A roster is immutable: each change makes a new one. */
typedef struct {
    uint32_t n;
    kvp_roster_row_t members[];
} kvp_roster_t;

typedef struct {
    const char *tenant, *model, *instance; /* names to which the query is limited; instance NULL = all instances */
    uint32_t block_size, space; /* space: number of the namespace; KVP_SPACE_NONE = it has no blocks */
    const uint64_t *hashes; /* hashes of the prompt's blocks, beginning with the first block */
    size_t n;
} kvp_question_t;

/* The answer for one publisher. Runs are counted in blocks. */
typedef struct {
    const kvp_roster_row_t *member;
    uint32_t run; /* number of leading blocks that the publisher holds, on any medium */
    uint32_t media_n;
    struct {
        const char *name;
        uint32_t run;
    } media[KVP_MEDIA_MAX];
} kvp_answer_t;

typedef struct kvp_match_scratch kvp_match_scratch_t;
kvp_match_scratch_t *kvp_scratch_create(void); /* makes scratch memory; NULL = no memory */
void kvp_scratch_destroy(kvp_match_scratch_t *scratch);

/* kvp_match answers a query, inside an epoch. *answers_out has *n_out answers in the roster's order; it lies in
 * the scratch memory, and is valid until the next call or the end of the epoch. False: no memory. */
bool kvp_match(const kvp_index_t *ix, const kvp_roster_t *roster, const kvp_question_t *question,
               kvp_match_scratch_t *scratch, const kvp_answer_t **answers_out, uint32_t *n_out) KVP_MUST_USE;

#endif
