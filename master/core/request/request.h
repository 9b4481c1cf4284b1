/* SPDX-License-Identifier: Apache-2.0
 * The core's handlers of messages: one file for each family of messages. remove.h and end.h have larger parts. */
#ifndef KVP_MASTER_CORE_REQUEST_REQUEST_H
#define KVP_MASTER_CORE_REQUEST_REQUEST_H

#include "proto/kvpool.pb-c.h"
#include "common/hash.h"
#include "master/core/session/session.h"
#include "proto/cause.h"

typedef struct kvp_master kvp_master_t;
typedef struct kvp_stage_waiter kvp_stage_waiter_t;

/* Handlers in hello.c. */
void kvp_on_watch(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_hello(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_heartbeat(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* Handlers in mount.c. */
void kvp_on_mount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_unmount(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_segments(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* Handler in drain.c. */
void kvp_on_drain(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
/* kvp_drain_describe fills in the progress of a segment's drain. Without a drain it sets only is_durable and the
 * segment's contents. */
void kvp_drain_describe(const kvp_master_t *m, const kvp_segment_t *g, Kvp__Pb__DrainReply *reply);

/* Handler in task.c. */
void kvp_on_task(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* Handlers in put.c. */
void kvp_on_put_begin(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_put_commit(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_put_abort(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* Handlers in read.c. */
void kvp_on_get(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_used(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_exists(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_lookup(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_release(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_list(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* kvp_get_again answers a GET that has waited for loads; `waited` has the result of each key's load. */
void kvp_get_again(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, const kvp_stage_waiter_t *waited);

/* Functions of stagewait.c. kvp_stagewait_open keeps a GET until the loads of its n keys have ended, or until due_ns.
 * kvp_stagewait_one returns the waiter for the load of key i. kvp_stagewait_drop frees the GET, for example if no
 * load was begun. kvp_stagewaits_go_on handles the GETs whose loads have ended again; kvp_stagewaits_tick the
 * requests whose time is over, or that waited for a node which has reconnected. */
#define KVP_STAGEWAITS_MAX 64u /* limit for one session */
typedef struct kvp_stagewait kvp_stagewait_t;
kvp_stagewait_t *kvp_stagewait_open(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, uint32_t n,
                                    uint64_t due_ns);
kvp_stage_waiter_t *kvp_stagewait_one(kvp_stagewait_t *w, uint32_t i);
void kvp_stagewait_drop(kvp_stagewait_t *w);
void kvp_stagewaits_go_on(kvp_master_t *m);
void kvp_stagewaits_tick(kvp_master_t *m);
void kvp_stagewaits_end(kvp_session_t *s);
/* kvp_await_nodes keeps a request until a node that was mounted according to the log reconnects, or until a second
 * after the take-over, and then handles it again. Returns false if there is no such node: the caller answers the
 * request. kvp_nodes_awaited returns the number of such nodes. */
bool kvp_await_nodes(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
uint32_t kvp_nodes_awaited(const kvp_master_t *m);

/* Functions of explain.c. kvp_explain_missing returns the reason why the pool does not have the tenant's key, or
 * PRESENT; oid is the index's answer for the digest. */
void kvp_on_explain(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
kvp_cause_t kvp_explain_missing(const kvp_master_t *m, const kvp_tenant_t *tenant, kvp_digest_t digest, uint32_t oid);

/* Handlers in tier.c. */
void kvp_on_tier_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_tier_report(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_reclaim(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* Handlers in status.c. */
void kvp_on_status(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* Handler in sessions.c. */
void kvp_on_sessions(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* Handler in snapshot.c. */
void kvp_on_snapshot(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* Handlers in retired.c. */
void kvp_retire_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_check_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_freed(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
