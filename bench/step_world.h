/* SPDX-License-Identifier: Apache-2.0
 * A master's core in this process, the peers that step_bench gives it, and how long its steps take: processor time of the
 * thread, so that other programs do not count. A node obeys at once, and is as many lines as that needs.
 */
#ifndef KVP_BENCH_STEP_WORLD_H
#define KVP_BENCH_STEP_WORLD_H

#include "common/hash.h"
#include "common/segfmt.h"
#include "master/core/master.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#define STEP_NS 20000u /* that pass between two inputs */
#define LONG_NS 2000000u /* a step that takes longer is too long */
#define GRACE_NS 1000000000ull
#define SEED 1u

typedef struct {
    uint64_t n, total_ns, most_ns, over;
    uint64_t most_at, most_work, most_faults; /* of the longest: its number, records that it touched, page faults */
} steps_t;

/* Steps of one input after another are the same in every run, so of several runs the least time of each step is what it
 * takes; what a run adds to it is the machine's. Shared by the processes of the runs. */
#define TRACE_STEPS (1u << 23)
typedef struct {
    uint64_t n; /* steps of a run */
    uint32_t least_ns[TRACE_STEPS];
} trace_t;

typedef struct {
    kvp_master_t *core;
    uint64_t now_ns, requests, attempts, conns;
    uint64_t node, client; /* connections */
    uint32_t mounts;
    uint64_t size_bytes, chunk_bytes; /* of the node that start_node mounts */
    uint32_t term;
    bool is_mute; /* the node answers no orders */
    kvp_buf_t out, in;
    kvp_buf_t answer; /* the last that went to a node and was no order */
    steps_t steps;
    trace_t *trace;
    uint64_t step, work; /* steps of this run so far; records touched */
    uint64_t over; /* long steps so far */
    bool is_quiet; /* nothing is printed */
} bench_t;

/* A master of that term; above 1 there was one before it. What counts steps goes on. */
void bench_open(bench_t *b, uint32_t term);
void bench_close(bench_t *b);
uint64_t bench_objects(const bench_t *b);

void print_steps(bench_t *b, const char *what); /* since the last time, which begins anew */
void settle(bench_t *b); /* takes outputs, until the core has nothing to do */
void pass(bench_t *b, uint64_t ns);

void ask(bench_t *b, uint64_t conn, uint8_t op, const void *head, const void *tail, size_t tail_len);
uint64_t greet(bench_t *b, uint32_t role, const char *host_id);
void hang_up(bench_t *b, uint64_t conn);
/* mount: of b->node, which start_node makes first. The memory is new, or of the term before: then the master wants a
 * report of it. */
void mount(bench_t *b, const char *name, bool is_fresh);
void start_node(bench_t *b, const char *name, bool is_fresh);
/* The node tells n objects, of which one in four has a long key: whatever a full pool would hold. */
void report(bench_t *b, uint64_t n);

#define TOLD_BYTES 512u /* of memory, for each of them */

#define LONG_KEY_LEN 180u
uint32_t key_of(uint64_t i, char key[KVP_KEY_MAX]);
kvp_digest_t digest_of(uint64_t i);

#endif
