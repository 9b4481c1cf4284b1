/* SPDX-License-Identifier: Apache-2.0
 * A standby's connection to the leader: a FOLLOW request, then the log as it arrives. Used in the loop's thread; it
 * knows no core and no files. */
#ifndef KVP_MASTER_HA_FOLLOWER_H
#define KVP_MASTER_HA_FOLLOWER_H

#include "common/buf.h"
#include "common/parse.h"
#include "proto/kvpool.pb-c.h"
#include "proto/wire.h"

#include <uv.h>

#define KVP_FOLLOW_TERMS_MAX 256u /* limit of the terms of its log that a standby sends: the last ones */

typedef struct kvp_follower kvp_follower_t;

typedef struct {
    /* Called after connecting to the leader: fills in this standby's id, the pool's id of its log (none without a log),
     * the log's end, its terms and their number n. The message borrows the strings. */
    void (*fill)(void *arg, Kvp__Pb__Follow *ask, kvp_wire_term_t terms[KVP_FOLLOW_TERMS_MAX]);
    /* on_reply gets the leader's answer, whose pool id has 16 bytes; on_log gets the leader's log. An error, which
     * the callback has logged, ends the connection. */
    kvp_err_t (*on_reply)(void *arg, const Kvp__Pb__FollowReply *reply);
    kvp_err_t (*on_log)(void *arg, uint64_t position, const void *bytes, size_t len, uint64_t end, bool is_last);
    void *arg;
} kvp_follower_ops_t;

/* kvp_follower_start allocates a follower for the loop; ops is borrowed. kvp_follower_stop stops it, and frees it in
 * a later turn of the loop; NULL is ignored. */
kvp_follower_t *kvp_follower_start(uv_loop_t *uv, const kvp_follower_ops_t *ops);
void kvp_follower_stop(kvp_follower_t *f);

/* kvp_follower_go connects to the leader, and again with back-off until kvp_follower_rest, or another address.
 * kvp_follower_rest closes the connection. kvp_follower_tick advances the clock. kvp_follower_ack reports the written
 * position to the leader, and at least twice a second that this standby is alive. kvp_follower_pause stops reading
 * while is_paused. */
void kvp_follower_go(kvp_follower_t *f, const char *address, uint64_t now_ns);
void kvp_follower_rest(kvp_follower_t *f);
void kvp_follower_tick(kvp_follower_t *f, uint64_t now_ns);
void kvp_follower_ack(kvp_follower_t *f, uint64_t position, uint64_t now_ns);
void kvp_follower_pause(kvp_follower_t *f, bool is_paused);
bool kvp_follower_is_fed(const kvp_follower_t *f); /* true: the leader has answered OK, and the connection is open */

#endif
