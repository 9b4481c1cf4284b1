/* SPDX-License-Identifier: Apache-2.0
 * Where the time of the master's loop goes: turns of the loop, steps of the core, and how long requests wait for their
 * answers. No clock of its own: the shell brings the time. The loop's thread only; histograms may be read from any.
 *
 * A turn begins with the first callback after the loop has waited for events, and ends before it waits again. When a
 * request became readable nobody can tell exactly; what is found without waiting may have been there since the turn
 * before began, and is taken to have been. Answers' times are thus never told too short.
 *
 * A step that takes long may just not have run: the shell looks at the thread's processor time when a turn begins, and at
 * the end of a step where the last look is a while ago. What passed between two looks and was not the thread's, it waited.
 */
#ifndef KVP_MASTER_TIMES_H
#define KVP_MASTER_TIMES_H

#include "common/daemon/metrics.h"

typedef enum { KVP_STEP_FRAME, KVP_STEP_TICK, KVP_STEP_CLOSE, KVP_STEP_KINDS } kvp_step_kind_t;

typedef struct {
    /* In ns; borrowed, and each may be NULL (nobody asks). */
    kvp_histogram_t *turns; /* waiting left out */
    kvp_histogram_t *steps; /* one call of the core, */
    kvp_histogram_t *runs; /* and what of that the thread ran */
    kvp_histogram_t *answers; /* one for each write of answers to who has just asked */

    uint64_t turn_longest_ns, answer_longest_ns;
    uint64_t step_longest_ns[KVP_STEP_KINDS];
    uint64_t run_longest_ns; /* of a step */

    uint64_t begin_ns; /* of this turn; 0 = nothing has happened in it yet */
    uint64_t last_begin_ns, last_end_ns; /* of the one before */
    uint64_t readable_ns; /* from when on what is read in this turn may have been readable */
    uint64_t look_ns, look_run_ns; /* the last look, and the thread's processor time then */
} kvp_times_t;

/* kvp_times_begin is told of every callback; the first of a turn begins it, and a look follows (true). */
static inline bool
kvp_times_begin(kvp_times_t *times, uint64_t now)
{
    const uint64_t no_wait_ns = 10000; /* a wait that was shorter may not have been one */
    if (times->begin_ns != 0) return false;
    times->begin_ns = now;
    times->readable_ns = now - times->last_end_ns < no_wait_ns ? times->last_begin_ns : now;
    return true;
}

/* kvp_times_is_look_due: before the end of a step is told, a look is wanted. kvp_times_look returns how long the thread
 * did not run since the look before. */
static inline bool
kvp_times_is_look_due(const kvp_times_t *times, uint64_t now)
{
    const uint64_t look_ns = 50000; /* a look is a system call */
    return now - times->look_ns > look_ns;
}

static inline uint64_t
kvp_times_look(kvp_times_t *times, uint64_t now, uint64_t run_ns)
{
    const uint64_t passed = now - times->look_ns, ran = run_ns - times->look_run_ns;
    times->look_ns = now;
    times->look_run_ns = run_ns;
    return passed - kvp_min_u64(passed, ran);
}

/* kvp_times_end ends the turn; false: nothing happened in it. */
bool kvp_times_end(kvp_times_t *times, uint64_t now);

/* kvp_times_step is told of each call of the core, and how long the thread waited since the last look; kvp_times_answer of answers written to whom asked_ns (readable_ns when
 * its request was read) belongs. Both return whether it was the longest so far. */
bool kvp_times_step(kvp_times_t *times, kvp_step_kind_t kind, uint64_t began, uint64_t now, uint64_t waited_ns);
bool kvp_times_answer(kvp_times_t *times, uint64_t asked_ns, uint64_t now);

/* kvp_times_step_longest is the longest step of any kind. */
uint64_t kvp_times_step_longest(const kvp_times_t *times);

#endif
