/* SPDX-License-Identifier: Apache-2.0
 * What the core does with each message: a file a family of them. remove.h and end.h have what is more than a message.
 */
#ifndef KVP_MASTER_CORE_REQUEST_REQUEST_H
#define KVP_MASTER_CORE_REQUEST_REQUEST_H

#include "master/core/session/session.h"

/* hello.c */
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

/* snapshot.c */
void kvp_on_snapshot(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

/* retired.c */
void kvp_retire_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_check_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_freed(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

#endif
