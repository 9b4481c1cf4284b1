/* SPDX-License-Identifier: Apache-2.0
 * What a client and a node say to each other on the connections that this simulation models without their frames:
 * attaching, opening memory for writing, the word of being drained, and transfers by TCP. */
#ifndef KVP_TESTS_SIM_DATA_H
#define KVP_TESTS_SIM_DATA_H

#include "client/core/op.h"
#include "tests/sim/sim_mem.h"

typedef enum {
    SAY_ATTACH, /* first */
    SAY_OPEN_WRITE, /* shared memory: from here on stores may pass the node */
    SAY_DRAINED,
    SAY_MOVE, /* TCP */
} say_kind_t;

typedef enum { BY_SHM, BY_TCP } by_t;

/* A transfer. The marks of a put need no copy: they follow from its number. */
typedef struct {
    kvp_move_kind_t kind;
    grant_t *grant;
    uint64_t put;
    kvp_desc_t desc;
    char key[KEY_BYTES];
    uint32_t key_len;
} transfer_t;

typedef struct {
    say_kind_t kind;
    uint64_t seq; /* repeated in the answer */
    kvp_err_t err; /* of an answer */
    by_t by;
    uint32_t client, life; /* whose process */
    uint64_t incarnation;
    uint8_t uuid[16];
    transfer_t move;
    uint64_t *units; /* of an answer to a READ */
    kvp_desc_t line;
    uint64_t loaded_ns; /* the last load of that READ */
} say_t;

#endif
