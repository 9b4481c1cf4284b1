/* SPDX-License-Identifier: Apache-2.0
 * The core's handler of each message: a file a family of messages. remove.h and end.h have larger
 * parts. */
#ifndef KVP_MASTER_CORE_REQUEST_REQUEST_H
#define KVP_MASTER_CORE_REQUEST_REQUEST_H

#include "master/core/session/session.h"

typedef struct kvp_master kvp_master_t;
typedef struct kvp_stage_waiter kvp_stage_waiter_t;

/* hello.c */
void kvp_on_watch(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_hello(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_heartbeat(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* mount.c */
void kvp_on_mount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_unmount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_segments(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* put.c */
void kvp_on_put_begin(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_put_commit(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_put_abort(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* read.c */
void kvp_on_get(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_used(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_exists(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_lookup(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_release(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_list(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_status(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* kvp_get_again answers a GET that has waited for loads; waited has the result of each key's load. */
void kvp_get_again(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, const kvp_stage_waiter_t *waited);

/* stagewait.c. kvp_stagewait_open keeps the GET until loads of its n keys are over, or until then.
 * kvp_stagewait_one: the waiter for that key's load. kvp_stagewait_drop: none was begun. go_on:
 * those that are over are asked again; tick: those whose time is over. */
#define KVP_STAGEWAITS_MAX 64u /* of a session */
typedef struct kvp_stagewait kvp_stagewait_t;
kvp_stagewait_t *kvp_stagewait_open(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, uint32_t n,
                                    uint64_t due_ns);
kvp_stage_waiter_t *kvp_stagewait_one(kvp_stagewait_t *w, uint32_t i);
void kvp_stagewait_drop(kvp_stagewait_t *w);
void kvp_stagewaits_go_on(kvp_master_t *m);
void kvp_stagewaits_tick(kvp_master_t *m);
void kvp_stagewaits_end(kvp_session_t *s);
/* kvp_await_nodes keeps the question until a node that the log has as mounted is back, or until a
 * second after the take-over, and then handles it again. False: there is no such node, and the
 * caller answers the question. kvp_nodes_awaited: the number of such nodes. */
bool kvp_await_nodes(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
uint32_t kvp_nodes_awaited(const kvp_master_t *m);

/* tier.c */
void kvp_on_tier_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_tier_report(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_reclaim(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* snapshot.c */
void kvp_on_snapshot(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* retired.c */
void kvp_retire_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_check_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_freed(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
