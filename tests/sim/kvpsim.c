/* SPDX-License-Identifier: Apache-2.0
 * kvpsim: runs seeds of the simulator, replays one, shrinks a failing one. */
#include "common/mutate.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_shrink.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define JOBS_MAX 64

typedef struct {
    profile_t profile;
    uint64_t from, to;
    const char *keep; /* choices; NULL = all */
    bool is_traced, is_shrunk, is_twice, is_first;
    int jobs;
} options_t;

#ifdef KVP_MUTATIONS
kvp_rule_t kvp_rule_off;

static const struct {
    const char *name, *text;
} rules[] = {
#define RULE_ROW(name, text) {#name, text},
    KVP_RULES(RULE_ROW)
#undef RULE_ROW
};

static void
list_rules(void)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(rules); i++)
        printf("%s\t%s\n", rules[i].name, rules[i].text);
}

static bool
switch_off(const char *name)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(rules); i++)
        if (strcmp(rules[i].name, name) == 0) kvp_rule_off = (kvp_rule_t)(i + 1);
    return kvp_rule_off != KVP_RULE_NONE;
}
#else
static void
list_rules(void)
{
    puts("kvpsim: rules can be switched off in kvpsim-mutant only");
}

static bool
switch_off(const char *name)
{
    (void)name;
    return false;
}
#endif

/* What the jobs report, in memory that they share. */
typedef struct {
    sim_counts_t counts;
    uint64_t seeds, failed;
    uint64_t seed; /* under way */
    uint64_t histories; /* the sum over seeds of a mix of seed and history: the order of seeds does not matter */
} tally_t;

static void
list_profiles(void)
{
    for (uint32_t i = 0; i < PROFILE_KINDS; i++)
        puts(profile_name((profile_t)i));
}

static void
usage(FILE *to)
{
    fputs("usage: kvpsim [--profile NAME] [--seeds A:B] [--jobs N] [--twice]\n"
          "       kvpsim [--profile NAME] --seed N [--keep LIST] [--trace] [--shrink]\n"
          "  --profile P   what the plans are about; each profile has its own seeds (default mixed);\n"
          "                --profiles lists them\n"
          "  --seeds A:B   run the seeds from A to B-1 (default 0:1000)\n"
          "  --jobs N      in N processes\n"
          "  --twice       run each seed twice; the same must happen\n"
          "  --seed N      run one\n"
          "  --keep LIST   of its choices only these: 3,7,12-15\n"
          "  --trace       say what happens\n"
          "  --shrink      look for the fewest choices with which it still fails\n"
          "  --first       stop at the first seed that fails\n"
          "  --mutate RULE switch a rule off (kvpsim-mutant); --rules lists them\n",
          to);
}

static double
now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void
count_add(tally_t *to, const tally_t *from)
{
    to->seeds += from->seeds;
    to->failed += from->failed;
    to->counts.calls += from->counts.calls;
    to->counts.frames += from->counts.frames;
    to->counts.stores += from->counts.stores;
    to->counts.loads += from->counts.loads;
    to->counts.faults += from->counts.faults;
    to->histories += from->histories;
}

/* ---- one seed */
static bool
run_plan(const options_t *o, const plan_t *plan, tally_t *tally)
{
    char failure[512];
    uint64_t hash, again;
    bool is_ok = sim_run(plan, o->is_traced, &tally->counts, &hash, failure);

    tally->seeds++;
    tally->histories += (hash ^ plan->seed) * 0x9e3779b97f4a7c15ull;
    if (is_ok && o->is_twice) {
        sim_counts_t unused = {0};

        is_ok = sim_run(plan, false, &unused, &again, failure) && hash == again;
        if (hash != again) snprintf(failure, sizeof failure, "DETERMINISM: another run gave another history");
    }
    if (is_ok) return true;
    tally->failed++;
    printf("seed %llu: %s\n", (unsigned long long)plan->seed, failure);
    fflush(stdout);
    return false;
}

static bool
run_seed(const options_t *o, uint64_t seed, tally_t *tally)
{
    plan_t plan;
    bool is_ok;

    tally->seed = seed;
    plan_make(&plan, o->profile, seed);
    if (o->keep != NULL && !plan_keep(&plan, o->keep)) {
        fprintf(stderr, "kvpsim: not a list of choices: %s\n", o->keep);
        exit(2);
    }
    is_ok = run_plan(o, &plan, tally);
    if (!is_ok && o->is_shrunk) shrink(&plan);
    plan_fini(&plan);
    return is_ok;
}

/* ---- many */
static int
run_job(const options_t *o, int job, tally_t *tally)
{
    for (uint64_t seed = o->from + (uint64_t)job; seed < o->to; seed += (uint64_t)o->jobs) {
        if (!run_seed(o, seed, tally) && o->is_first) break;
    }
    return tally->failed == 0 ? 0 : 1;
}

static int
run_jobs(const options_t *o, tally_t *tallies)
{
    pid_t pids[JOBS_MAX];
    int rc = 0;

    if (o->jobs == 1) return run_job(o, 0, &tallies[0]);
    for (int i = 0; i < o->jobs; i++) {
        pids[i] = fork();
        if (pids[i] == 0) _exit(run_job(o, i, &tallies[i]));
    }
    for (int i = 0; i < o->jobs; i++) {
        int status;

        if (pids[i] < 0 || waitpid(pids[i], &status, 0) < 0 || status != 0) rc = 1;
        if (pids[i] > 0 && WIFSIGNALED(status))
            printf("seed %llu: CRASH by signal %d\n", (unsigned long long)tallies[i].seed, WTERMSIG(status));
    }
    return rc;
}

static int
run_all(const options_t *o)
{
    size_t bytes = (size_t)o->jobs * sizeof(tally_t);
    tally_t *tallies = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tally_t all = {0};
    double began_s = now_s();
    int rc;

    if (tallies == MAP_FAILED) return 1;
    rc = run_jobs(o, tallies);
    for (int i = 0; i < o->jobs; i++)
        count_add(&all, &tallies[i]);
    munmap(tallies, bytes);
    printf("seeds %llu operations %llu (calls' keys %llu, frames %llu, stores %llu, loads %llu) faults %llu "
           "violations %llu histories %016llx wall_s %.1f\n",
           (unsigned long long)all.seeds,
           (unsigned long long)(all.counts.calls + all.counts.frames + all.counts.stores + all.counts.loads),
           (unsigned long long)all.counts.calls, (unsigned long long)all.counts.frames,
           (unsigned long long)all.counts.stores, (unsigned long long)all.counts.loads,
           (unsigned long long)all.counts.faults, (unsigned long long)all.failed, (unsigned long long)all.histories,
           now_s() - began_s);
    return rc;
}

static void
parse_seeds(options_t *o, const char *text)
{
    char *end;

    o->from = strtoull(text, &end, 10);
    o->to = *end == ':' ? strtoull(end + 1, &end, 10) : o->from + 1;
    if (*end == '\0' && o->to > o->from) return;
    fprintf(stderr, "kvpsim: not a range of seeds: %s\n", text);
    exit(2);
}

int
main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"seeds", required_argument, NULL, 's'},   {"seed", required_argument, NULL, 's'},
        {"jobs", required_argument, NULL, 'j'},    {"keep", required_argument, NULL, 'k'},
        {"trace", no_argument, NULL, 't'},         {"shrink", no_argument, NULL, 'x'},
        {"first", no_argument, NULL, '1'},         {"mutate", required_argument, NULL, 'm'},
        {"rules", no_argument, NULL, 'r'},         {"twice", no_argument, NULL, '2'},
        {"profile", required_argument, NULL, 'p'}, {"profiles", no_argument, NULL, 'P'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
    };
    options_t o = {.to = 1000, .jobs = 1};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 's':
            parse_seeds(&o, optarg);
            break;
        case 'j':
            o.jobs = atoi(optarg);
            break;
        case 'k':
            o.keep = optarg;
            break;
        case 't':
            o.is_traced = true;
            break;
        case 'x':
            o.is_shrunk = true;
            break;
        case '2':
            o.is_twice = true;
            break;
        case '1':
            o.is_first = true;
            break;
        case 'm':
            if (switch_off(optarg)) break;
            fprintf(stderr, "kvpsim: no rule %s can be switched off here\n", optarg);
            return 2;
        case 'r':
            list_rules();
            return 0;
        case 'p':
            if (profile_find(optarg, &o.profile)) break;
            fprintf(stderr, "kvpsim: no profile %s\n", optarg);
            return 2;
        case 'P':
            list_profiles();
            return 0;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
    }
    if (o.jobs < 1 || o.jobs > JOBS_MAX || optind != argc) {
        usage(stderr);
        return 2;
    }
    return run_all(&o);
}
