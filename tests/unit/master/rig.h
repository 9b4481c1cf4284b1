/* SPDX-License-Identifier: Apache-2.0
 * What most tests of the core begin with: a world with nodes and clients. RIG_TEST and RIG_TEST_ON begin a test and
 * name what it begins with; the world is opened before the test and closed after it, with all that world_close
 * expects. Keys are "key/" and a number. */
#ifndef KVP_TESTS_MASTER_RIG_H
#define KVP_TESTS_MASTER_RIG_H

#include "tests/world/world.h"

#include <stdio.h>

typedef struct {
    kvp_master_conf_t conf;
    uint64_t size, chunk; /* of the memory of a; of b: size_b, or the same. chunk: 0 = size; size: 0 = there is none */
    uint64_t size_b;
    uint32_t mems, nodes; /* memories that are made, and of how many a node is there; 0 = one, and all of them */
    bool is_one_tenant_each; /* c is of tenant 1, d of tenant 2 */
    bool has_no_client, has_two; /* neither c nor d is there; or both are */
} rig_conf_t;

typedef struct {
    world_t *w;
    mem_t *a, *b; /* "a" and "b", each on the host of its name */
    peer_t *na, *nb; /* their nodes */
    peer_t *c, *d; /* clients */
} rig_t;

int rig_open(void **state);
int rig_close(void **state);
void rig_restart(rig_t *g); /* another master, which no node has told anything; c is open, d, na and nb are not */
void rig_restart_told(rig_t *g); /* another one, which all nodes have told what they have */

/* The body of a RIG_TEST has its rig as g. */
#define RIG_TEST(name, conf) RIG_TEST_OF(name, (void *)&(conf))
#define RIG_TEST_ON(name, ...)                                                                                         \
    static rig_conf_t name##_conf;                                                                                     \
    RIG_TEST_OF(name, (name##_conf = (rig_conf_t){__VA_ARGS__}, &name##_conf))
#define RIG_TEST_OF(name, conf)                                                                                        \
    static void name##_on(rig_t *g);                                                                                   \
    TEST_OF(name, rig_open, rig_close, conf)                                                                           \
    {                                                                                                                  \
        name##_on(*state);                                                                                             \
    }                                                                                                                  \
    static void name##_on(rig_t *g)

/* Keys [from, to), of len bytes each. */
void fill(peer_t *c, uint32_t from, uint32_t to, uint64_t len);
uint32_t count(peer_t *c, uint32_t from, uint32_t to);
void hold(peer_t *c, uint32_t from, uint32_t to, uint64_t *tickets); /* tickets[i] is of key i */
uint32_t count_of(peer_t *c, const char *prefix, uint32_t from, uint32_t to);

/* attempt_begin begins the put of one key: the error that it is answered with. locs_out, which may be NULL, has room
 * for all copies; n_out, which may be NULL, is how many. */
kvp_err_t attempt_begin(peer_t *c, put_t *what, const Kvp__Pb__PutBegin *like, kvp_wire_loc_t *locs_out,
                        uint32_t *n_out);
/* begin_put begins the put of one key, which may wait for so long, and gives it up where it may go on: how it was
 * answered. */
kvp_err_t begin_put(peer_t *c, const char *key, uint64_t len, uint32_t wait_ms);
/* granted expects that the put of one key is answered by now, with this. */
void granted(peer_t *c, uint64_t id, kvp_err_t err);

/* put_told puts one key with all that a node reports of it. */
kvp_err_t put_told(peer_t *c, const char *key, uint64_t len);
uint64_t bump_begun(peer_t *c, uint32_t wait_ms); /* the request */
uint32_t listed(peer_t *c); /* how many keys LIST tells, which must be one page of them */
kvp_cause_t cause_of(peer_t *c, const char *key); /* what EXPLAIN says of it, for the client's tenant */
void tenant_info(peer_t *c, Kvp__Pb__TenantInfo *out); /* of its tenant; its name until the next */
/* ask_head sends the message, and gives the head of the answer, of that type; its strings are not valid. */
void ask_head(peer_t *who, uint8_t op, const ProtobufCMessage *msg, const ProtobufCMessageDescriptor *type,
              void *head_out);
Kvp__Pb__DrainReply ask_drain(peer_t *who, Kvp__Pb__Drain msg); /* the answer, without its detail */
uint32_t home_of(peer_t *who, const char *key); /* the segment that a GET is sent to */

#endif
