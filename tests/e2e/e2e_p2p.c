/* SPDX-License-Identifier: Apache-2.0
 * e2e_p2p: an endpoint of peer-to-peer transfers in a process of its own, that does what it is told, a command a
 * line, and answers each with a line of JSON. `err` in an answer is the stable name of what the library returned.
 *   open LISTEN TRANSPORTS HOST_ID   "-" is none; then there is memory of BYTES, registered
 *   fill VALUE | is OFFSET LEN VALUE | register | unregister | stat
 *   move read|write PEER REMOTE LEN PIECES DEADLINE_MS   PIECES of LEN bytes, side by side in both memories
 *   load PEER REMOTE LEN DEADLINE_MS   writes until one fails, and tells how that was */
#include "tests/e2e/e2e_util.h"
#include "tests/e2e/e2e_words.h"

#include "client/kvpool_p2p.h"

#include <string.h>

#define BYTES ((size_t)8 << 20)
#define PIECES_MAX 4096u

static kvpool_p2p_t *p2p;
static uint8_t *mem;

static const char *
word_or_null(size_t i)
{
    return strcmp(e2e_word(i), "-") == 0 ? NULL : e2e_word(i);
}

static void
answer(int err)
{
    printf("{\"err\":\"%s\"}\n", kvpool_errname(err));
}

static void
do_open(void)
{
    char detail[512] = "";
    kvpool_p2p_conf_t conf = {.struct_size = sizeof conf,
                              .listen = e2e_word(1),
                              .transports = word_or_null(2),
                              .host_id = word_or_null(3),
                              .detail = detail,
                              .detail_cap = sizeof detail};
    int err = kvpool_p2p_open(&conf, &p2p);

    if (err == KVPOOL_OK) err = kvpool_p2p_register(p2p, mem, BYTES, NULL);
    printf("{\"err\":\"%s\",\"port\":%u,\"addr\":%llu,\"bytes\":%zu,\"detail\":", kvpool_errname(err),
           kvpool_p2p_port(p2p), (unsigned long long)(uintptr_t)mem, BYTES);
    e2e_json_text(stdout, detail);
    printf("}\n");
}

static void
do_fill(void)
{
    memset(mem, (int)e2e_number(1), BYTES);
    answer(KVPOOL_OK);
}

static void
do_is(void)
{
    size_t at = (size_t)e2e_number(1), end = at + (size_t)e2e_number(2), wrong_n = 0;

    if (end > BYTES || end < at) e2e_die("there is no such memory");
    for (; at < end; at++)
        wrong_n += mem[at] != e2e_number(3);
    printf("{\"err\":\"OK\",\"wrong\":%zu}\n", wrong_n);
}

static void
do_register(void)
{
    answer(kvpool_p2p_register(p2p, mem, BYTES, NULL));
}

static void
do_unregister(void)
{
    answer(kvpool_p2p_unregister(p2p, mem));
}

static void
do_stat(void)
{
    kvpool_p2p_stat_t stat = {.struct_size = sizeof stat};
    int err = kvpool_p2p_stat(p2p, &stat);

    printf("{\"err\":\"%s\",\"rdma\":%llu,\"tcp\":%llu,\"cma\":%llu}\n", kvpool_errname(err),
           (unsigned long long)stat.rdma_bytes, (unsigned long long)stat.tcp_bytes, (unsigned long long)stat.cma_bytes);
}

static void
do_move(void)
{
    static kvpool_p2p_op_t ops[PIECES_MAX];
    int kind = strcmp(e2e_word(1), "read") == 0 ? KVPOOL_P2P_READ : KVPOOL_P2P_WRITE;
    size_t len = (size_t)e2e_number(4), n = (size_t)e2e_number(5);
    uint64_t begun_ns = e2e_now_ns();
    int err;

    if (n > PIECES_MAX || len > BYTES || n * len > BYTES) e2e_die("too much");
    for (size_t i = 0; i < n; i++)
        ops[i] = (kvpool_p2p_op_t){.local = mem + i * len, .remote = e2e_number(3) + i * len, .len = len};
    err = kvpool_p2p_transfer(p2p, e2e_word(2), kind, ops, n, (uint32_t)e2e_number(6));
    printf("{\"err\":\"%s\",\"ms\":%.2f}\n", kvpool_errname(err), (double)(e2e_now_ns() - begun_ns) / 1e6);
}

static void
do_load(void)
{
    kvpool_p2p_op_t op = {.local = mem, .remote = e2e_number(2), .len = (size_t)e2e_number(3)};
    uint64_t begun_ns, n = 0;
    int err;

    printf("{\"err\":\"OK\"}\n"); /* it begins */
    fflush(stdout);
    do {
        begun_ns = e2e_now_ns();
        err = kvpool_p2p_transfer(p2p, e2e_word(1), KVPOOL_P2P_WRITE, &op, 1, (uint32_t)e2e_number(4));
        n++;
    } while (err == KVPOOL_OK);
    printf("{\"err\":\"%s\",\"ms\":%.2f,\"calls\":%llu}\n", kvpool_errname(err),
           (double)(e2e_now_ns() - begun_ns) / 1e6, (unsigned long long)n);
}

static const e2e_command_t commands[] = {
    {"open", do_open},         {"fill", do_fill}, {"is", do_is},
    {"register", do_register}, {"stat", do_stat}, {"unregister", do_unregister},
    {"move", do_move},         {"load", do_load},
};

int
main(void)
{
    mem = e2e_alloc(BYTES);
    e2e_obey(commands, sizeof commands / sizeof commands[0]);
    kvpool_p2p_free(p2p);
    return 0;
}
