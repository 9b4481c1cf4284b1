/* SPDX-License-Identifier: Apache-2.0
 * The messages between a node and its keeper: one fixed form, a packet each on a Unix socket, with
 * descriptors beside them. PROTOCOL "Keeper". Pure. */
#ifndef KVP_NODE_KEEPER_WIRE_H
#define KVP_NODE_KEEPER_WIRE_H

#include "common/base.h"
#include "proto/wire.h"

#define KVP_KEEPER_MAGIC 0x4b50564bu /* "KVPK" */
#define KVP_KEEPER_VERSION 1u
#define KVP_KEEPER_FDS_MAX 64u /* descriptors beside a message */
#define KVP_KEEPER_FILES_MAX (2u * 65536u + 1u) /* two of each chunk that a node may have, and its book */
#define KVP_KEEPER_WRITERS_MAX 65536u
#define KVP_KEEPER_HOLD_MAX_MS (30ull * 86400u * 1000u)

typedef enum {
    KVP_KEEPER_HELLO = 1, /* of a node: its name, how long memory is held without one; its pidfd beside */
    KVP_KEEPER_WELCOME =
        2, /* the answer: err; pid of the keeper, or where BUSY of the node that it has; how many FILES and
                             * WRITERs follow */
    KVP_KEEPER_FILES = 3, /* memory files, from number `first` of `total` on */
    KVP_KEEPER_WRITER = 4, /* a process may store as that incarnation from now on; its pidfd beside */
    KVP_KEEPER_OVER = 5, /* it cannot any more; incarnation 0: as none */
    KVP_KEEPER_DROP = 6, /* the memory is given up */
    KVP_KEEPER_END =
        7, /* the same, and the keeper is not needed any more; with a name, as the first message, by a tool */
    KVP_KEEPER_ASK =
        8, /* as the first message, by another node: answered by a WELCOME with name, held_bytes, hold_ms */
} kvp_keeper_kind_t;

/* The first three fields stay in every version. */
typedef struct {
    uint32_t magic;
    uint16_t version;
    uint8_t kind;
    uint8_t fds_n; /* descriptors beside it */
    uint32_t first;
    uint32_t total;
    uint32_t writers;
    int32_t err;
    uint32_t pid;
    uint32_t
        /* of HELLO and DROP: 1 = the node has other memory than the keeper, which gives back the
         * pages of its own */
        is_new;
    uint64_t hold_ms; /* of HELLO; of the answer to ASK: for how long yet */
    uint64_t process; /* the node's number for a writer's process */
    uint64_t incarnation;
    uint64_t held_bytes; /* of the answer to ASK: memory that no node uses; 0 = none */
    char name[136]; /* NUL-terminated, zeroes after the end */
} kvp_keeper_msg_t;

_Static_assert(sizeof(kvp_keeper_msg_t) == 200, "a keeper's message is wire format");

/* kvp_keeper_msg_make returns one with its head filled in; name may be NULL. */
kvp_keeper_msg_t kvp_keeper_msg_make(kvp_keeper_kind_t kind, uint32_t fds_n, const char *name);

/* kvp_keeper_msg_check accepts a packet of len bytes that came with fds_n descriptors: VERSION for
 * another version (only the three fields are read then), PROTO for anything else that no node or
 * keeper sends. */
kvp_err_t kvp_keeper_msg_check(const void *bytes, size_t len, size_t fds_n, kvp_keeper_msg_t *msg_out) KVP_MUST_USE;

#endif
