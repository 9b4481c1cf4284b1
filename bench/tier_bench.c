/* SPDX-License-Identifier: Apache-2.0
 * A node's SSD tier by itself: `tier_bench DIR SIZE` creates a tier, fills it to five eighths with objects of 1 MiB
 * and of 64 KiB, prints "ready", and then for each line of input runs one round and prints "bytes-a-second mean-us":
 *
 *     read BYTES DEPTH MS     whole objects of that length, at random
 *     write DEPTH MS          objects of 1 MiB; the oldest pages are dropped without keeping an object
 *     copy BYTES MS           memcpy of that many bytes out of memory that no cache holds */
#include "node/tier/tier.h"
#include "common/clock.h"
#include "common/parse.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LONG_BYTES (1ull << 20)
#define SHORT_BYTES (64ull << 10)
#define DEPTH_MAX 64u
#define COPY_FROM_BYTES (256ull << 20)

typedef struct {
    kvp_tier_t *tier;
    int wake_fd;
    uint64_t long_n, short_n; /* objects on the SSD */
    kvp_tier_op_t ops[DEPTH_MAX];
    uint64_t begun_ns[DEPTH_MAX];
    uint8_t *room; /* DEPTH_MAX times LONG_BYTES */
    kvp_tier_proposal_t proposal;
    uint8_t keep[KVP_TIER_PROPOSED_MAX]; /* nothing */
} bench_t;

typedef struct {
    uint64_t n, ns; /* operations, and all their times together */
} done_t;

static _Noreturn void
fail(const char *what)
{
    fprintf(stderr, "tier_bench: %s\n", what);
    exit(1);
}

static kvp_tier_op_t *
wait_op(bench_t *b)
{
    kvp_tier_op_t *op;

    while ((op = kvp_tier_take(b->tier)) == NULL) {
        struct pollfd p = {.fd = b->wake_fd, .events = POLLIN};
        uint64_t count;

        if (poll(&p, 1, 10000) == 0) fail("nothing is done in 10 s");
        (void)!read(b->wake_fd, &count, sizeof count);
        if (kvp_tier_propose(b->tier, &b->proposal)) kvp_tier_answer(b->tier, b->keep, b->proposal.n);
    }
    return op;
}

static void
begin(bench_t *b, uint32_t i, kvp_tier_op_kind_t kind, uint64_t bytes, uint64_t number)
{
    kvp_tier_op_t *op = &b->ops[i];

    *op = (kvp_tier_op_t){.kind = kind, .src = b->room + i * LONG_BYTES, .dst = b->room + i * LONG_BYTES, .cap = bytes};
    op->meta = (kvp_tier_meta_t){
        .digest = {number, bytes}, .version = 1, .len = bytes, .sum = 1, .key_len = 64}; /* writers send a sum */
    b->begun_ns[i] = kvp_now_ns();
    if (kvp_tier_submit(b->tier, op) != KVP_OK) fail("an operation is not taken");
}

/* Keeps depth operations under way, until n operations are done or the time is over. */
static done_t
go(bench_t *b, kvp_tier_op_kind_t kind, uint64_t bytes, uint32_t depth, uint64_t n, uint64_t end_ns)
{
    uint64_t *there = bytes == LONG_BYTES ? &b->long_n : &b->short_n;
    uint32_t under_way = 0;
    done_t done = {0};

    for (uint32_t i = 0; i < depth; i++, under_way++)
        begin(b, i, kind, bytes, kind == KVP_TIER_WRITE ? (*there)++ : (uint64_t)random() % *there);
    while (under_way > 0) {
        uint32_t i = (uint32_t)(wait_op(b) - b->ops);

        if (b->ops[i].err == KVP_NO_SPACE && kind == KVP_TIER_WRITE) { /* pages are being given up */
            begin(b, i, kind, bytes, b->ops[i].meta.digest.lo);
            continue;
        }
        if (b->ops[i].err != KVP_OK) fail(kvp_err_text(b->ops[i].err));
        done.n++;
        done.ns += kvp_now_ns() - b->begun_ns[i];
        if (done.n + under_way > n || kvp_now_ns() >= end_ns)
            under_way--;
        else
            begin(b, i, kind, bytes, kind == KVP_TIER_WRITE ? (*there)++ : (uint64_t)random() % *there);
    }
    return done;
}

static done_t
copy(bench_t *b, const uint8_t *from, uint64_t bytes, uint64_t end_ns)
{
    done_t done = {0};

    while (kvp_now_ns() < end_ns) {
        uint64_t begin_ns = kvp_now_ns();

        memcpy(b->room + done.n % DEPTH_MAX * LONG_BYTES, from + done.n * bytes % COPY_FROM_BYTES, bytes);
        done.ns += kvp_now_ns() - begin_ns;
        done.n++;
    }
    return done;
}

static void
run(bench_t *b, const uint8_t *from)
{
    char line[128], what[16];
    unsigned long bytes, depth, ms;

    while (fgets(line, sizeof line, stdin) != NULL) {
        uint64_t begin_ns = kvp_now_ns();
        done_t done = {0};

        if (sscanf(line, "read %lu %lu %lu", &bytes, &depth, &ms) == 3 && depth >= 1 && depth <= DEPTH_MAX &&
            (bytes == LONG_BYTES || bytes == SHORT_BYTES))
            done = go(b, KVP_TIER_READ, bytes, (uint32_t)depth, UINT64_MAX / 2, begin_ns + ms * KVP_NS_PER_MS);
        else if (sscanf(line, "write %lu %lu", &depth, &ms) == 2 && depth >= 1 && depth <= DEPTH_MAX)
            done = go(b, KVP_TIER_WRITE, bytes = LONG_BYTES, (uint32_t)depth, UINT64_MAX / 2,
                      begin_ns + ms * KVP_NS_PER_MS);
        else if (sscanf(line, "copy %lu %lu", &bytes, &ms) == 2 && bytes <= LONG_BYTES)
            done = copy(b, from, bytes, begin_ns + ms * KVP_NS_PER_MS);
        else
            fail(sscanf(line, "%15s", what) == 1 ? what : "an empty line");
        printf("%.0f %.2f\n", (double)(done.n * bytes) * 1e9 / (double)(kvp_now_ns() - begin_ns),
               (double)done.ns / 1e3 / (double)done.n);
        fflush(stdout);
    }
}

int
main(int argc, char **argv)
{
    kvp_tier_conf_t conf = {.devices_n = 1, .name = "bench"};
    uint8_t pool_id[16] = "tier_bench", uuid[16], *from = malloc(COPY_FROM_BYTES);
    bench_t *b = calloc(1, sizeof *b);

    if (argc != 3 || kvp_parse_bytes(argv[2], &conf.devices[0].size_bytes) != KVP_OK) {
        fprintf(stderr, "usage: tier_bench DIR SIZE\n");
        return 2;
    }
    if (b == NULL || from == NULL || (b->room = malloc(DEPTH_MAX * LONG_BYTES)) == NULL) fail("no memory");
    b->wake_fd = conf.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    conf.devices[0].dir = argv[1];
    memset(b->room, 7, DEPTH_MAX * LONG_BYTES);
    memset(from, 7, COPY_FROM_BYTES);
    if (kvp_tier_open(&conf, &b->tier) != KVP_OK) return 1;
    kvp_tier_use(b->tier, pool_id, uuid);
    while (!kvp_tier_is_ready(b->tier))
        usleep(1000);
    go(b, KVP_TIER_WRITE, LONG_BYTES, 32, conf.devices[0].size_bytes / 16 * 5 / LONG_BYTES, UINT64_MAX);
    go(b, KVP_TIER_WRITE, SHORT_BYTES, DEPTH_MAX, conf.devices[0].size_bytes / 16 * 5 / SHORT_BYTES, UINT64_MAX);
    puts("ready");
    fflush(stdout);
    run(b, from);
    kvp_tier_stop(b->tier);
    kvp_tier_close(b->tier);
    free(b->room);
    free(b);
    free(from);
    return 0;
}
