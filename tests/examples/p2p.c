/* SPDX-License-Identifier: Apache-2.0
 * p2p.c - moves blocks from one process to another without a pool, as a prefill server hands its blocks to a decode
 * server. The parent registers memory. The child writes into this memory and then leaves a notice. The parent runs no
 * code while the bytes move.
 *
 *   cc p2p.c -o p2p $(pkg-config --cflags --libs kvpool)
 *   ./p2p */
#include <kvpool_p2p.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)4 << 20)

/* What the parent sends to the child through a pipe. A server would put this into its answer to a request. */
typedef struct {
    char peer[64];
    uint64_t addr, token;
} place_t;

static void
check_call(const char *call, int err)
{
    if (err == KVPOOL_OK) return;
    fprintf(stderr, "%s: %s\n", call, kvpool_strerror(err));
    exit(1);
}

/* run_sender is the child: it writes BYTES bytes to the parent and leaves a notice. */
static void
run_sender(int from_parent)
{
    uint8_t *block = malloc(BYTES);
    kvpool_p2p_t *p2p;
    place_t place;

    if (block == NULL || read(from_parent, &place, sizeof place) != sizeof place) exit(1);
    memset(block, 42, BYTES);
    check_call("kvpool_p2p_open", kvpool_p2p_open(NULL, &p2p));

    /* Two pieces, in no order. The call returns when both have arrived. */
    kvpool_p2p_op_t ops[2] = {
        {.local = block, .remote = place.addr, .len = BYTES / 2, .token = place.token},
        {.local = block + BYTES / 2, .remote = place.addr + BYTES / 2, .len = BYTES / 2, .token = place.token},
    };
    check_call("kvpool_p2p_transfer", kvpool_p2p_transfer(p2p, place.peer, KVPOOL_P2P_WRITE, ops, 2, 5000));
    check_call("kvpool_p2p_notify", kvpool_p2p_notify(p2p, place.peer, "request-1", "all blocks are written", 5000));
    kvpool_p2p_free(p2p);
    free(block);
    exit(0);
}

int
main(void)
{
    kvpool_p2p_conf_t conf = {.struct_size = sizeof conf, .flags = KVPOOL_P2P_TOKENS};
    kvpool_p2p_t *p2p;
    place_t place = {0};
    int to_child[2], err = KVPOOL_NOT_FOUND, status;
    char *name = NULL, *message;
    void *memory;

    /* An endpoint does not survive fork, so the child starts first and opens one of its own. */
    if (pipe(to_child) != 0) return 1;
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) run_sender(to_child[0]);

    check_call("kvpool_p2p_open", kvpool_p2p_open(&conf, &p2p));
    check_call("kvpool_p2p_alloc", kvpool_p2p_alloc(p2p, BYTES, &memory, &place.token));
    place.addr = (uintptr_t)memory;
    snprintf(place.peer, sizeof place.peer, "127.0.0.1:%u", (unsigned)kvpool_p2p_port(p2p));
    if (write(to_child[1], &place, sizeof place) != sizeof place) return 1;

    for (int i = 0; i < 1000 && err == KVPOOL_NOT_FOUND; i++) { /* 10 s */
        err = kvpool_p2p_take_notify(p2p, &name, &message);
        if (err == KVPOOL_NOT_FOUND) poll(NULL, 0, 10);
    }
    check_call("kvpool_p2p_take_notify", err);
    const uint8_t *bytes = memory;
    printf("%s: %s; the first byte is %u, the last one %u\n", name, message, bytes[0], bytes[BYTES - 1]);
    int is_right = bytes[0] == 42 && bytes[BYTES - 1] == 42;
    free(name);
    kvpool_p2p_free(p2p);
    return waitpid(child, &status, 0) == child && status == 0 && is_right ? 0 : 1;
}
