/* SPDX-License-Identifier: Apache-2.0
 * Measures the time of the master's loop: turns of the loop, steps of the core, and the waiting
 * time of requests. No clock of its own: the shell passes the time. The loop's thread only;
 * histograms may be read from any.
 *
 * A turn begins with the first callback after the loop has waited for events, and ends before it
 * waits again. The exact time when a request became readable is unknown. A request found without a
 * wait may have been there since the previous turn began, and counts from then, so answers' times
 * are never too short.
 *
 * A long step may just not have been scheduled. So the shell reads the thread's processor time when
 * a turn begins, and at the end of a step if the last reading is old. Time between two readings
 * that the thread did not run counts as waiting. */
#ifndef KVP_MASTER_SHELL_TIMES_H
#define KVP_MASTER_SHELL_TIMES_H

#include "common/daemon/metrics.h"

typedef enum { KVP_STEP_FRAME, KVP_STEP_TICK, KVP_STEP_CLOSE, KVP_STEP_KINDS } kvp_step_kind_t;

typedef struct {
    /* In ns; borrowed, and each may be NULL (not wanted). */
    kvp_histogram_t *turns; /* waiting left out */
    kvp_histogram_t *steps; /* one call of the core, */
    kvp_histogram_t *runs; /* and the time of it that the thread ran */
    kvp_histogram_t *answers; /* one for each write of answers to a new request */

    uint64_t turn_longest_ns, answer_longest_ns;
    uint64_t step_longest_ns[KVP_STEP_KINDS];
    uint64_t run_longest_ns; /* of a step */

    uint64_t begin_ns; /* of this turn; 0 = no event in it yet */
    uint64_t last_begin_ns, last_end_ns; /* of the turn before */
    uint64_t readable_ns; /* earliest time at which this turn's requests may have become readable */
    uint64_t look_ns, look_run_ns; /* the last look, and the thread's processor time then */
} kvp_times_t;

/* kvp_times_begin is called in every callback; the first of a turn begins the turn, and a look must
 * follow (true). */
static inline bool
kvp_times_begin(kvp_times_t *times, uint64_t now)
{
    const uint64_t no_wait_ns = 10000; /* a shorter wait may not have been one */
    if (times->begin_ns != 0) return false;
    times->begin_ns = now;
    times->readable_ns = now - times->last_end_ns < no_wait_ns ? times->last_begin_ns : now;
    return true;
}

/* kvp_times_is_look_due: a look is wanted before kvp_times_step. kvp_times_look returns the time
 * that the thread did not run since the look before. */
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

/* kvp_times_step records each call of the core, and the thread's waiting time since the last look.
 * kvp_times_answer records written answers to a request of asked_ns (readable_ns when the request
 * was read). Both return whether it was the longest so far. */
bool kvp_times_step(kvp_times_t *times, kvp_step_kind_t kind, uint64_t began, uint64_t now, uint64_t waited_ns);
bool kvp_times_answer(kvp_times_t *times, uint64_t asked_ns, uint64_t now);

/* kvp_times_step_longest is the longest step of any kind. */
uint64_t kvp_times_step_longest(const kvp_times_t *times);

#endif
