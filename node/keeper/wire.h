/* SPDX-License-Identifier: Apache-2.0
 * The messages between a node and its keeper: each message is one packet of fixed form on a Unix socket, some with file
 * descriptors attached. PROTOCOL "Keeper". Pure functions. */
#ifndef KVP_NODE_KEEPER_WIRE_H
#define KVP_NODE_KEEPER_WIRE_H

#include "common/base.h"
#include "proto/wire.h"

#define KVP_KEEPER_MAGIC 0x4b50564bu /* the bytes "KVPK" */
#define KVP_KEEPER_VERSION 1u
#define KVP_KEEPER_FDS_MAX 64u /* the most file descriptors attached to a message */
/* the most memory files: two for each chunk that a node may have, and the book */
#define KVP_KEEPER_FILES_MAX (2u * 65536u + 1u)
#define KVP_KEEPER_WRITERS_MAX 65536u
#define KVP_KEEPER_HOLD_MAX_MS (30ull * 86400u * 1000u)

typedef enum {
    KVP_KEEPER_HELLO = 1, /* HELLO, from a node: its name, and hold_ms; the node's pidfd is attached */
    /* WELCOME, the keeper's answer to HELLO, END and ASK; later its report that it cannot hold the memory. err is the
     * result. pid is the keeper's process; in a refused HELLO, or if err is BUSY, the process of the keeper's node. If
     * HELLO is accepted, `total` memory files follow in FILES messages, and `writers` WRITER messages. */
    KVP_KEEPER_WELCOME = 2,
    KVP_KEEPER_FILES = 3, /* FILES: attached memory files; the first of them has the number `first` of `total` */
    KVP_KEEPER_WRITER = 4, /* WRITER: the process may store as the incarnation from now on; its pidfd is attached */
    KVP_KEEPER_OVER = 5, /* OVER: the process no longer stores as the incarnation; incarnation 0: as any */
    KVP_KEEPER_DROP = 6, /* the node gives up the memory */
    /* END: the node gives up the memory, and the keeper ends. A tool sends END with a name as its first message. */
    KVP_KEEPER_END = 7,
    /* ASK, the first message of another node, which lacks memory. The WELCOME has name, held_bytes and hold_ms. */
    KVP_KEEPER_ASK = 8,
} kvp_keeper_kind_t;

/* A message. The first three fields are the same in every version. */
typedef struct {
    uint32_t magic;
    uint16_t version;
    uint8_t kind;
    uint8_t fds_n; /* the number of file descriptors attached to the message */
    uint32_t first;
    uint32_t total;
    uint32_t writers;
    int32_t err;
    uint32_t pid;
    /* HELLO and DROP: 1 = the node does not use the memory that the keeper holds, and the keeper frees its pages */
    uint32_t is_new;
    /* HELLO: how long to hold the memory without a node. Answer to ASK: how long the memory is still held */
    uint64_t hold_ms;
    uint64_t process; /* the node's number for a writer's process */
    uint64_t incarnation;
    uint64_t held_bytes; /* answer to ASK: the memory that the keeper holds and no node uses; 0 = none */
    char name[136]; /* the node's name, NUL-terminated; the bytes after its end are zero */
} kvp_keeper_msg_t;

_Static_assert(sizeof(kvp_keeper_msg_t) == 200, "a keeper's message is wire format");

/* kvp_keeper_msg_make returns a message with its head, kind, fds_n and name set; name may be NULL. */
kvp_keeper_msg_t kvp_keeper_msg_make(kvp_keeper_kind_t kind, uint32_t fds_n, const char *name);

/* kvp_keeper_msg_check validates a packet of len bytes that came with fds_n descriptors. VERSION: another version
 * (then only the first three fields are read). PROTO: anything else that no node or keeper sends. */
kvp_err_t kvp_keeper_msg_check(const void *bytes, size_t len, size_t fds_n, kvp_keeper_msg_t *msg_out) KVP_MUST_USE;

#endif
