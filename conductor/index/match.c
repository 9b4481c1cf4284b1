/* SPDX-License-Identifier: Apache-2.0
 * See match.h.
 *
 * Design notes.
 * - Sets of neighbouring blocks are mostly one set, which is seen by its number; then nothing is done. Else the set's holders are stamped with the
 *   number of the block, and whoever is not stamped has come to the end of its run. So a block costs no more than its holders and those whose runs go on.
 */
#include "conductor/index/match.h"

#include <stdlib.h>
#include <string.h>

/* A medium of an answer that goes on. */
typedef struct {
    uint32_t answer, medium, holder;
    bool is_over; /* its own run is */
} going_t;

struct kvp_scratch {
    kvp_answer_t *answers;
    going_t *going;
    uint32_t cap; /* answers */
    uint32_t base; /* stamps of this question are above it */
    uint32_t stamps[KVP_HOLDERS_MAX];
};

kvp_scratch_t *
kvp_scratch_create(void)
{
    return calloc(1, sizeof(kvp_scratch_t));
}

void
kvp_scratch_destroy(kvp_scratch_t *s)
{
    if (s == NULL) return;
    free(s->answers);
    free(s->going);
    free(s);
}

static bool
reserve(kvp_scratch_t *s, uint32_t n)
{
    if (n <= s->cap) return true;
    free(s->answers);
    free(s->going);
    s->cap = 0;
    s->answers = calloc(n, sizeof *s->answers);
    s->going = calloc((size_t)n * KVP_MEDIA_MAX, sizeof *s->going);
    if (s->answers == NULL || s->going == NULL) return false;
    s->cap = n;
    return true;
}

static bool
is_asked(const kvp_member_t *m, const kvp_question_t *q)
{
    return m->block_size == q->block_size && strcmp(m->tenant, q->tenant) == 0 && strcmp(m->model, q->model) == 0 &&
           (q->instance == NULL || strcmp(m->instance, q->instance) == 0);
}

/* Returns how many media may have a run. */
static uint32_t
begin(const kvp_roster_t *roster, const kvp_question_t *q, kvp_scratch_t *s, uint32_t *n_out)
{
    uint32_t going = 0;

    *n_out = 0;
    for (uint32_t i = 0; i < roster->n; i++) {
        const kvp_member_t *m = &roster->members[i];
        const kvp_medium_t *media;
        kvp_answer_t *a = &s->answers[*n_out];

        if (!is_asked(m, q)) continue;
        a->member = m;
        a->run = 0;
        a->media_n = kvp_view_media(m->view, &media);
        for (uint32_t k = 0; k < a->media_n; k++) {
            const uint32_t holder = atomic_load_explicit(&media[k].holder, memory_order_acquire);

            a->media[k].name = media[k].name;
            a->media[k].run = 0;
            if (holder != KVP_NO_HOLDER) s->going[going++] = (going_t){*n_out, k, holder, false};
        }
        ++*n_out;
    }
    return going;
}

/* The media of one answer stand together in `going`. One whose own run has ended stays as long as another of its answer goes on: the block may be on any of them. Returns how
 * many are left. */
static uint32_t
step(kvp_scratch_t *s, uint32_t going, const kvp_set_t *set, uint32_t block)
{
    const uint32_t stamp = s->base + block + 1;
    uint32_t kept = 0;

    for (uint32_t i = 0; set != NULL && i < set->n; i++)
        s->stamps[set->holders[i]] = stamp;
    for (uint32_t i = 0, first = 0; i < going; first = i) {
        kvp_answer_t *a = &s->answers[s->going[i].answer];
        bool has_any = false;

        for (; i < going && s->going[i].answer == s->going[first].answer; i++) {
            going_t *g = &s->going[i];
            const bool has = s->stamps[g->holder] == stamp;

            has_any |= has;
            if (has || g->is_over) continue;
            g->is_over = true;
            a->media[g->medium].run = block;
        }
        if (!has_any) {
            a->run = block;
            continue;
        }
        memmove(&s->going[kept], &s->going[first], (i - first) * sizeof *s->going);
        kept += i - first;
    }
    return kept;
}

/* Runs that never ended are as long as the prompt. */
static void
end(kvp_scratch_t *s, uint32_t going, uint32_t n)
{
    for (uint32_t i = 0; i < going; i++) {
        kvp_answer_t *a = &s->answers[s->going[i].answer];

        a->run = n;
        if (!s->going[i].is_over) a->media[s->going[i].medium].run = n;
    }
}

bool
kvp_match(const kvp_index_t *ix, const kvp_roster_t *roster, const kvp_question_t *q, kvp_scratch_t *s,
          const kvp_answer_t **answers_out, uint32_t *n_out)
{
    uint32_t found[KVP_LOOK_AHEAD], before = KVP_SET_NONE, going;

    if (!reserve(s, roster->n)) return false;
    if (s->base > UINT32_MAX - q->n - 1) {
        memset(s->stamps, 0, sizeof s->stamps);
        s->base = 0;
    }
    going = begin(roster, q, s, n_out);
    *answers_out = s->answers;
    for (size_t at = 0; at < q->n && going > 0 && q->space != KVP_SPACE_NONE; at += KVP_LOOK_AHEAD) {
        const size_t n = kvp_min_u64(KVP_LOOK_AHEAD, q->n - at);

        kvp_index_find(ix, q->space, (uint32_t)at, q->hashes + at, n, found);
        for (size_t i = 0; i < n && going > 0; i++) {
            if (at + i > 0 && found[i] == before) continue;
            going = step(s, going, kvp_sets_get(kvp_index_sets(ix), found[i]), (uint32_t)(at + i));
            before = found[i];
        }
    }
    if (q->space != KVP_SPACE_NONE) end(s, going, (uint32_t)q->n);
    s->base += (uint32_t)q->n + 1;
    return true;
}
