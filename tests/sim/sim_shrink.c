/* SPDX-License-Identifier: Apache-2.0
 * Delta debugging over the list of choices. Each try runs in a process of its own: a plan may also fail by a crash. */
#include "tests/sim/sim_shrink.h"

#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RULE_BYTES 12u

/* Which rule the plan breaks: its name, "CRASH" where the process died, "" where it holds. */
static void
try_plan(const plan_t *plan, char rule[RULE_BYTES])
{
    int fds[2], status;
    pid_t pid;
    ssize_t n;

    if (pipe(fds) != 0 || (pid = fork()) < 0) abort();
    if (pid == 0) {
        sim_counts_t counts = {0};
        char failure[512];
        uint64_t hash;

        (void)sim_run(plan, false, &counts, &hash, failure);
        failure[strcspn(failure, " ")] = '\0';
        if (write(fds[1], failure, strlen(failure)) < 0) _exit(1);
        _exit(0);
    }
    close(fds[1]);
    n = read(fds[0], rule, RULE_BYTES - 1);
    rule[n > 0 ? n : 0] = '\0';
    close(fds[0]);
    if (waitpid(pid, &status, 0) < 0 || status != 0) memcpy(rule, "CRASH", sizeof "CRASH");
}

static bool
still_fails(const plan_t *plan, const char *rule)
{
    char now[RULE_BYTES];

    try_plan(plan, now);
    return strcmp(now, rule) == 0;
}

/* Without the choices [at, at + n): true, and left out for good, where it still fails. */
static bool
leave_out(plan_t *plan, uint32_t at, uint32_t n, const char *rule)
{
    plan_t less = *plan;

    less.choices = malloc(plan->choices_n * sizeof *less.choices);
    if (less.choices == NULL) abort();
    memcpy(less.choices, plan->choices, at * sizeof *less.choices);
    memcpy(less.choices + at, plan->choices + at + n, (plan->choices_n - at - n) * sizeof *less.choices);
    less.choices_n = plan->choices_n - n;
    if (!still_fails(&less, rule)) {
        free(less.choices);
        return false;
    }
    free(plan->choices);
    *plan = less;
    return true;
}

void
shrink(plan_t *plan)
{
    char rule[RULE_BYTES];

    try_plan(plan, rule);
    for (uint32_t size = plan->choices_n / 2; size > 0; size /= 2) {
        bool has_changed;

        do {
            has_changed = false;
            for (uint32_t at = 0; at + size <= plan->choices_n;) {
                if (leave_out(plan, at, size, rule))
                    has_changed = true;
                else
                    at += size;
            }
        } while (has_changed && size == 1);
    }
    printf("shrunk to %u choices: kvpsim --profile %s --seed %llu --trace --keep ", plan->choices_n,
           profile_name(plan->profile), (unsigned long long)plan->seed);
    for (uint32_t i = 0; i < plan->choices_n; i++)
        printf("%s%u", i == 0 ? "" : ",", plan->choices[i].number);
    puts(plan->choices_n == 0 ? "none" : "");
}
