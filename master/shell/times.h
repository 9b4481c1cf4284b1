/* SPDX-License-Identifier: Apache-2.0
 * Measures the times of the master's loop: turns of the loop, steps of the core, and waiting times of requests. It has
 * no clock of its own: the shell passes the time. Used in the loop's thread only; histograms may be read in any thread.
 *
 * A turn begins with the first callback after the loop has waited for events, and ends before it waits again. The exact
 * time when a request became readable is unknown. A request that is found without a wait may have been there since the
 * previous turn began, and is counted from then, so the measured times of answers are never too short.
 *
 * During a long step the thread may just not have been scheduled. So the shell reads the thread's CPU time when a turn
 * begins, and at the end of a step if the last reading is old. Time between two readings in which the thread did not
 * run counts as waiting. */
#ifndef KVP_MASTER_SHELL_TIMES_H
#define KVP_MASTER_SHELL_TIMES_H

#include "common/metrics.h"

typedef enum { KVP_STEP_FRAME, KVP_STEP_TICK, KVP_STEP_CLOSE, KVP_STEP_KINDS } kvp_step_kind_t;

/* The messages whose times are measured apart. */
#define KVP_TIMED_CALLS 8u
extern const struct kvp_timed_call {
    uint8_t opcode; /* kvp_op_t */
    const char *name; /* name of the call in metrics */
    const char *waits_for; /* text for people: what a deferred answer to this request waits for */
} kvp_timed_calls[KVP_TIMED_CALLS];

/* kvp_timed_call_find returns the entry of the opcode; NULL = none. */
const struct kvp_timed_call *kvp_timed_call_find(uint8_t opcode);

typedef struct {
    /* Histograms in ns; borrowed; each may be NULL (not wanted). */
    kvp_histogram_t *turns; /* durations of turns, without the waiting for events */
    kvp_histogram_t *steps; /* durations of single calls of the core */
    kvp_histogram_t *runs; /* times that the thread really ran in a call of the core */
    kvp_histogram_t *calls[KVP_TIMED_CALLS]; /* durations of the core's work for one message, by kvp_timed_calls */
    kvp_histogram_t *answers; /* times that requests waited for answers; one for each write of answers */

    uint64_t turn_longest_ns, answer_longest_ns;
    uint64_t step_longest_ns[KVP_STEP_KINDS];
    uint64_t run_longest_ns; /* longest time that the thread ran in one step */

    uint64_t begin_ns; /* when this turn began; 0 = no callback has run in it yet */
    uint64_t last_begin_ns, last_end_ns; /* when the previous turn began and ended */
    uint64_t readable_ns; /* earliest time at which this turn's requests may have become readable */
    uint64_t look_ns, look_run_ns; /* time of the last reading of the thread's CPU time, and the CPU time read */
} kvp_times_t;

/* kvp_times_begin is called in every callback; the first callback of a turn begins the turn. Returns true then, and
 * kvp_times_look must follow. */
static inline bool
kvp_times_begin(kvp_times_t *times, uint64_t now)
{
    const uint64_t no_wait_ns = 10000; /* in a shorter time between two turns the loop may not have waited */
    if (times->begin_ns != 0) return false;
    times->begin_ns = now;
    times->readable_ns = now - times->last_end_ns < no_wait_ns ? times->last_begin_ns : now;
    return true;
}

/* kvp_times_is_look_due returns true if the last reading of the thread's CPU time is old, so kvp_times_look must come
 * before kvp_times_step. kvp_times_look records a reading, and returns the time since the last reading in which the
 * thread did not run. */
static inline bool
kvp_times_is_look_due(const kvp_times_t *times, uint64_t now)
{
    const uint64_t look_ns = 50000; /* least time between two readings, because a reading costs a system call */
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

/* kvp_times_end ends the turn. Returns false if nothing happened in the turn. */
bool kvp_times_end(kvp_times_t *times, uint64_t now);

/* kvp_times_step records a call of the core: its duration, and the same without waited_ns, in which the thread did not
 * run. kvp_times_answer records written answers to a request of asked_ns (readable_ns when the request was read). Both
 * return true if the time was the longest so far. */
bool kvp_times_step(kvp_times_t *times, kvp_step_kind_t kind, uint64_t began, uint64_t now, uint64_t waited_ns);
bool kvp_times_answer(kvp_times_t *times, uint64_t asked_ns, uint64_t now);

/* kvp_times_call records the duration of the core's work for one message, if its opcode is in kvp_timed_calls. */
void kvp_times_call(kvp_times_t *times, uint8_t opcode, uint64_t took_ns);

/* kvp_times_step_longest returns the duration of the longest call of the core, of any kind. */
uint64_t kvp_times_step_longest(const kvp_times_t *times);

#endif
