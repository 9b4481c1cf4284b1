/* SPDX-License-Identifier: Apache-2.0
 * See match.h.
 *
 * Design notes.
 * - Neighbouring blocks mostly have the same set of holders, and equal sets have equal numbers; then no work is
 *   needed. Otherwise the holders in the set are stamped with the number of the block, and the run of every holder
 *   without the stamp ends. So a block costs at most the number of its holders plus the number of active runs. */
#include "conductor/index/match.h"

#include <stdlib.h>
#include <string.h>

#define NAMELESS KVP_MEDIA_MAX /* number of media without a name, which count only for the run over all media */
#define GOING_MAX ((1 + KVP_POOLS_MAX) * KVP_MEDIA_MAX) /* limit of the number of active runs in one answer */

/* An active run: a medium of an answer, and its holder. It is active while the answer's run over all media lasts. */
typedef struct {
    uint32_t answer, medium, holder;
} going_t;

struct kvp_match_scratch {
    kvp_answer_t *answers;
    uint32_t *over; /* for each answer, a bit for each medium whose own run has ended */
    going_t *going;
    uint32_t cap; /* capacity of the scratch arrays, in answers */
    uint32_t base; /* the current query writes only numbers above this one into `stamps` */
    uint32_t stamps[KVP_HOLDERS_MAX];
};

kvp_match_scratch_t *
kvp_scratch_create(void)
{
    return calloc(1, sizeof(kvp_match_scratch_t));
}

void
kvp_scratch_destroy(kvp_match_scratch_t *s)
{
    if (s == NULL) return;
    free(s->answers);
    free(s->over);
    free(s->going);
    free(s);
}

static bool
reserve_answers(kvp_match_scratch_t *s, uint32_t n)
{
    if (n <= s->cap) return true;
    free(s->answers);
    free(s->over);
    free(s->going);
    s->cap = 0;
    s->answers = calloc(n, sizeof *s->answers);
    s->over = calloc(n, sizeof *s->over);
    s->going = calloc((size_t)n * GOING_MAX, sizeof *s->going);
    if (s->answers == NULL || s->over == NULL || s->going == NULL) return false;
    s->cap = n;
    return true;
}

static bool
is_asked(const kvp_roster_row_t *m, const kvp_question_t *q)
{
    return m->block_size == q->block_size && strcmp(m->tenant, q->tenant) == 0 && strcmp(m->model, q->model) == 0 &&
           (q->instance == NULL || strcmp(m->instance, q->instance) == 0);
}

/* Returns the index of the medium in the answer, and adds the medium if it is new. NAMELESS = the medium has no
 * name, or the answer is full. */
static uint32_t
medium_of(kvp_answer_t *a, const char *name)
{
    uint32_t i = 0;

    if (name[0] == '\0') return NAMELESS;
    while (i < a->media_n && strcmp(a->media[i].name, name) != 0)
        i++;
    if (i == KVP_MEDIA_MAX) return NAMELESS;
    if (i < a->media_n) return i;
    a->media[a->media_n].name = name;
    a->media[a->media_n].run = 0;
    return a->media_n++;
}

/* Starts a run for each medium of each matching publisher. Returns the number of active runs. */
static uint32_t
begin_runs(const kvp_roster_t *roster, const kvp_question_t *q, kvp_match_scratch_t *s, uint32_t *n_out)
{
    uint32_t going = 0;

    *n_out = 0;
    for (uint32_t i = 0; i < roster->n; i++) {
        const kvp_roster_row_t *m = &roster->members[i];
        kvp_answer_t *a = &s->answers[*n_out];

        if (!is_asked(m, q)) continue;
        a->member = m;
        a->run = a->media_n = 0;
        s->over[*n_out] = 0;
        for (uint32_t v = 0; v <= m->pools_n; v++) {
            for (uint32_t k = 0; k < KVP_MEDIA_MAX; k++) {
                const kvp_medium_t *of = kvp_view_medium(v == 0 ? m->view : m->pools[v - 1], k);

                if (of == NULL) continue;
                const uint32_t holder = atomic_load_explicit(&of->holder, memory_order_acquire);
                const uint32_t medium = medium_of(a, of->name);

                if (holder != KVP_NO_HOLDER) s->going[going++] = (going_t){*n_out, medium, holder};
            }
        }
        ++*n_out;
    }
    return going;
}

/* Ends the runs of media that do not have the block. The runs of one answer are adjacent in `going`. They stay there
 * until no medium of the answer has the block, because the answer's run counts blocks on any medium. Returns the number
 * of runs left in `going`. */
static uint32_t
step_runs(kvp_match_scratch_t *s, uint32_t going, const kvp_set_t *set, uint32_t block)
{
    const uint32_t stamp = s->base + block + 1;
    uint32_t kept = 0;

    for (uint32_t i = 0; set != NULL && i < set->n; i++)
        s->stamps[set->holders[i]] = stamp;
    for (uint32_t i = 0, first = 0; i < going; first = i) {
        const uint32_t answer = s->going[i].answer;
        kvp_answer_t *a = &s->answers[answer];
        uint32_t has = 0, lacks;

        for (; i < going && s->going[i].answer == answer; i++)
            if (s->stamps[s->going[i].holder] == stamp) has |= 1u << s->going[i].medium;
        lacks = ~has & ~s->over[answer] & ((1u << a->media_n) - 1);
        s->over[answer] |= lacks;
        for (; lacks != 0; lacks &= lacks - 1)
            a->media[__builtin_ctz(lacks)].run = block;
        if (has == 0) {
            a->run = block;
            continue;
        }
        memmove(&s->going[kept], &s->going[first], (i - first) * sizeof *s->going);
        kept += i - first;
    }
    return kept;
}

/* Sets the runs that no block of the prompt has ended to the prompt's length, n blocks. */
static void
end_runs(kvp_match_scratch_t *s, uint32_t going, uint32_t n)
{
    for (uint32_t i = 0; i < going; i++) {
        const going_t *g = &s->going[i];
        kvp_answer_t *a = &s->answers[g->answer];

        a->run = n;
        if (g->medium != NAMELESS && (s->over[g->answer] & 1u << g->medium) == 0) a->media[g->medium].run = n;
    }
}

bool
kvp_match(const kvp_index_t *ix, const kvp_roster_t *roster, const kvp_question_t *q, kvp_match_scratch_t *s,
          const kvp_answer_t **answers_out, uint32_t *n_out)
{
    uint32_t found[KVP_LOOK_AHEAD], before = KVP_SET_NONE, going;

    if (!reserve_answers(s, roster->n)) return false;
    if (s->base > UINT32_MAX - q->n - 1) {
        memset(s->stamps, 0, sizeof s->stamps);
        s->base = 0;
    }
    going = begin_runs(roster, q, s, n_out);
    *answers_out = s->answers;
    for (size_t at = 0; at < q->n && going > 0 && q->space != KVP_SPACE_NONE; at += KVP_LOOK_AHEAD) {
        const size_t n = kvp_min_u64(KVP_LOOK_AHEAD, q->n - at);

        kvp_index_find(ix, q->space, (uint32_t)at, q->hashes + at, n, found);
        for (size_t i = 0; i < n && going > 0; i++) {
            if (at + i > 0 && found[i] == before) continue;
            going = step_runs(s, going, kvp_sets_get(kvp_index_sets(ix), found[i]), (uint32_t)(at + i));
            before = found[i];
        }
    }
    if (q->space != KVP_SPACE_NONE) end_runs(s, going, (uint32_t)q->n);
    s->base += (uint32_t)q->n + 1;
    return true;
}
