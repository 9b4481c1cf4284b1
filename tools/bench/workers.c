/* SPDX-License-Identifier: Apache-2.0
 * Worker processes of a bench. The parent sends orders over a socket pair to each child: a leg's time in ns, or
 * PREPARE. The children answer with fixed structs, because parent and child are the same program. A child whose
 * socket ends exits; the parent treats a child that does not answer as failed. */
#include "tools/bench/workers.h"

#include "tools/bench/key.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PREPARE 0u /* order to a worker to prepare a leg; any other order is a leg's duration in ns */
#define REMOVE_DEADLINE_MS 600000u /* time limit of the removal, which scans every key of the pool */

typedef struct {
    int code; /* exit code with which the worker answers the order */
    uint64_t fill_ns;
    kvp_bench_leg_t leg;
} answer_t;

struct kvp_bench_workers {
    const kvp_cli_verb_t *verb;
    const kvp_bench_conf_t *conf;
    const kvp_cli_common_t *common;
    kvpool_t *pool; /* handle for removing keys; NULL = not open yet */
    uint64_t fill_ns;
    answer_t answer;
    pid_t pids[KVP_BENCH_PROCESSES_MAX]; /* process ids of the children; 0 = none */
    int fds[KVP_BENCH_PROCESSES_MAX];
};

static bool
send_all(int fd, const void *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        const ssize_t n = send(fd, (const char *)data + at, len - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

static bool
receive_all(int fd, void *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        const ssize_t n = recv(fd, (char *)data + at, len - at, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

/* ---- in a child ---- */

static int
obey_order(kvp_bench_t *bench, const kvp_bench_workers_t *g, uint64_t order, answer_t *answer)
{
    int err = order == PREPARE ? kvp_bench_prepare(bench) : kvp_bench_leg(bench, order, &answer->leg);
    return err == KVPOOL_OK ? KVP_EXIT_DONE : kvp_cli_fail(g->verb, g->conf->op->name, err);
}

static int
child_main(kvp_bench_workers_t *g, uint32_t number, int fd)
{
    kvp_bench_t *bench = NULL;
    answer_t *answer = &g->answer;
    uint64_t order;
    answer->code = kvp_bench_open(g->verb, g->conf, g->common, number, &bench, &answer->fill_ns);
    while (send_all(fd, answer, sizeof(*answer)) && answer->code == KVP_EXIT_DONE &&
           receive_all(fd, &order, sizeof(order)))
        answer->code = obey_order(bench, g, order, answer);
    kvp_bench_close(bench);
    return 0;
}

static bool
start_child(kvp_bench_workers_t *g, uint32_t number)
{
    int ends[2];
    const pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        /* A child closes the sockets of the children before it, which otherwise would not notice the parent's end. */
        for (uint32_t i = 0; i < number; i++)
            close(g->fds[i]);
        close(ends[0]);
        _exit(child_main(g, number, ends[1]));
    }
    close(ends[1]);
    g->pids[number] = pid > 0 ? pid : 0;
    g->fds[number] = ends[0];
    return pid > 0;
}

/* ---- in the parent ---- */

/* take_answer receives the answer of a child into g->answer, and returns its exit code. */
static int
take_answer(kvp_bench_workers_t *g, uint32_t number)
{
    if (receive_all(g->fds[number], &g->answer, sizeof(g->answer))) return g->answer.code;
    return kvp_cli_complain(g->verb, KVP_EXIT_REFUSED, "process %d ended by itself", (int)g->pids[number]);
}

/* order_all sends an order to all children and waits for every answer, also after a failure, so that no child is
 * left in the middle of an order. */
static int
order_all(kvp_bench_workers_t *g, uint64_t order, kvp_bench_leg_t *leg)
{
    int code = KVP_EXIT_DONE;
    for (uint32_t i = 0; i < g->conf->processes; i++)
        (void)send_all(g->fds[i], &order, sizeof(order)); /* a failed send is reported by take_answer */
    for (uint32_t i = 0; i < g->conf->processes; i++) {
        const int got = take_answer(g, i);
        if (got != KVP_EXIT_DONE) {
            code = got;
        } else if (leg != NULL) {
            kvp_bench_leg_add(leg, &g->answer.leg);
            leg->begun_ns = kvp_min_u64(leg->begun_ns, g->answer.leg.begun_ns);
            leg->ended_ns = kvp_max_u64(leg->ended_ns, g->answer.leg.ended_ns);
        }
    }
    return code;
}

/* remove_run removes every key of this run. */
static int
remove_run(kvp_bench_workers_t *g)
{
    const kvpool_opts_t opts = {.struct_size = sizeof(opts), .deadline_ms = REMOVE_DEADLINE_MS, .flags = KVPOOL_FORCE};
    char pattern[KVP_BENCH_RUN_TEXT];
    uint64_t removed;
    int code = g->pool == NULL ? kvp_cli_open(g->verb, g->common, &g->pool) : KVP_EXIT_DONE;
    if (code != KVP_EXIT_DONE) return code;
    int err = kvpool_remove_by_regex(g->pool, kvp_bench_run_text(g->conf->run, pattern), &opts, &removed, NULL);
    return err == KVPOOL_OK ? KVP_EXIT_DONE : kvp_cli_fail(g->verb, "removing what was put", err);
}

/* makes_room returns whether keys are removed between legs, so that puts of new keys find free space; false if
 * puts should evict. */
static bool
makes_room(const kvp_bench_workers_t *g)
{
    return (g->conf->op->flags & KVP_BENCH_PUTS) != 0 && !g->conf->does_evict;
}

static int
run_leg(kvp_bench_workers_t *g, uint64_t budget_ns, kvp_bench_leg_t *leg)
{
    kvp_bench_leg_init(leg);
    leg->begun_ns = UINT64_MAX;
    int code = order_all(g, PREPARE, NULL);
    if (code == KVP_EXIT_DONE) code = order_all(g, budget_ns, leg);
    if (code == KVP_EXIT_DONE && makes_room(g)) code = remove_run(g);
    return code;
}

int
kvp_bench_workers_round(kvp_bench_workers_t *g, uint64_t round_ns, kvp_bench_leg_t *sum_out)
{
    kvp_bench_leg_t *leg = kvp_cli_alloc(1, sizeof(*leg));
    int code;
    kvp_bench_leg_init(sum_out);
    do {
        code = run_leg(g, round_ns - sum_out->ended_ns, leg);
        kvp_bench_leg_add(sum_out, leg);
        if (leg->ended_ns > leg->begun_ns) sum_out->ended_ns += leg->ended_ns - leg->begun_ns;
    } while (code == KVP_EXIT_DONE && sum_out->errors == 0 && kvp_bench_is_one_pass(g->conf) &&
             sum_out->ended_ns < round_ns);
    free(leg);
    return code;
}

int
kvp_bench_workers_open(const kvp_cli_verb_t *verb, const kvp_bench_conf_t *conf, const kvp_cli_common_t *common,
                       kvp_bench_workers_t **workers_out)
{
    kvp_bench_workers_t *g = kvp_cli_alloc(1, sizeof(*g));
    int code = KVP_EXIT_DONE;
    *g = (kvp_bench_workers_t){.verb = verb, .conf = conf, .common = common};
    *workers_out = g;
    fflush(NULL);
    for (uint32_t i = 0; i < conf->processes; i++)
        if (!start_child(g, i))
            return kvp_cli_complain(verb, KVP_EXIT_REFUSED, "starting process %u: %s", i + 1, strerror(errno));
    for (uint32_t i = 0; i < conf->processes; i++) {
        const int got = take_answer(g, i);
        if (got != KVP_EXIT_DONE) code = got;
        g->fill_ns = kvp_max_u64(g->fill_ns, g->answer.fill_ns);
    }
    if (code == KVP_EXIT_DONE && makes_room(g)) code = remove_run(g);
    return code;
}

uint64_t
kvp_bench_workers_fill_ns(const kvp_bench_workers_t *g)
{
    return g->fill_ns;
}

int
kvp_bench_workers_close(kvp_bench_workers_t *g, bool removes_set)
{
    int code = KVP_EXIT_DONE;
    if (g == NULL) return code;
    for (uint32_t i = 0; i < g->conf->processes; i++)
        if (g->pids[i] != 0) close(g->fds[i]);
    for (uint32_t i = 0; i < g->conf->processes; i++)
        while (g->pids[i] != 0 && waitpid(g->pids[i], NULL, 0) < 0 && errno == EINTR)
            continue;
    if (removes_set) code = remove_run(g);
    kvpool_free(g->pool);
    free(g);
    return code;
}
