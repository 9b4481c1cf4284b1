/* SPDX-License-Identifier: Apache-2.0
 * Histograms and maxima of the loop's times; times.h explains how they are measured. */
#include "master/shell/times.h"

#include "proto/wire.h"

const struct kvp_timed_call kvp_timed_calls[KVP_TIMED_CALLS] = {
    {KVP_OP_PUT_BEGIN, "put_begin", "room"},
    {KVP_OP_PUT_COMMIT, "put_commit", "the log and standbys"},
    {KVP_OP_GET, "get", "nodes"},
    {KVP_OP_EXISTS, "exists", "nodes"},
    {KVP_OP_LOOKUP, "lookup", "nodes"},
    {KVP_OP_REMOVE, "remove", "the log, standbys and nodes"},
    {KVP_OP_USED, "used", ""},
    {KVP_OP_RELEASE, "release", ""},
};

const struct kvp_timed_call *
kvp_timed_call_find(uint8_t opcode)
{
    for (uint32_t i = 0; i < KVP_TIMED_CALLS; i++)
        if (kvp_timed_calls[i].opcode == opcode) return &kvp_timed_calls[i];
    return NULL;
}

static bool
add_time(kvp_histogram_t *histogram, uint64_t *longest, uint64_t ns)
{
    if (histogram != NULL) kvp_histogram_add(histogram, ns);
    if (ns <= *longest) return false;
    *longest = ns;
    return true;
}

bool
kvp_times_end(kvp_times_t *times, uint64_t now)
{
    if (times->begin_ns == 0) return false;
    (void)add_time(times->turns, &times->turn_longest_ns, now - times->begin_ns);
    times->last_begin_ns = times->begin_ns;
    times->last_end_ns = now;
    times->begin_ns = 0;
    return true;
}

bool
kvp_times_step(kvp_times_t *times, kvp_step_kind_t kind, uint64_t began, uint64_t now, uint64_t waited_ns)
{
    const uint64_t longest = kvp_times_step_longest(times), took = now - began;
    (void)add_time(times->runs, &times->run_longest_ns, took - kvp_min_u64(took, waited_ns));
    return add_time(times->steps, &times->step_longest_ns[kind], took) && took > longest;
}

void
kvp_times_call(kvp_times_t *times, uint8_t opcode, uint64_t took_ns)
{
    const struct kvp_timed_call *call = kvp_timed_call_find(opcode);
    kvp_histogram_t *histogram = call != NULL ? times->calls[call - kvp_timed_calls] : NULL;
    if (histogram != NULL) kvp_histogram_add(histogram, took_ns);
}

bool
kvp_times_answer(kvp_times_t *times, uint64_t asked_ns, uint64_t now)
{
    return add_time(times->answers, &times->answer_longest_ns, now - asked_ns);
}

uint64_t
kvp_times_step_longest(const kvp_times_t *times)
{
    uint64_t longest = 0;
    for (int kind = 0; kind < KVP_STEP_KINDS; kind++)
        longest = kvp_max_u64(longest, times->step_longest_ns[kind]);
    return longest;
}
