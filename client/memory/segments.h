/* SPDX-License-Identifier: Apache-2.0
 * Asking the master about segments. Blocking, any thread.
 */
#ifndef KVP_CLIENT_MEMORY_SEGMENTS_H
#define KVP_CLIENT_MEMORY_SEGMENTS_H

#include "net/conn.h"

#include "proto/kvpool.pb-c.h"

/* The record is borrowed for the call, and was checked: the uuid has 16 bytes. False ends the walk. */
typedef bool (*kvp_segments_fn)(void *arg, const Kvp__Pb__SegmentInfo *info);

/* kvp_segments_find asks for one segment, and calls fn unless the segment is unknown. */
kvp_err_t kvp_segments_find(kvp_conn_t *conn, uint32_t segment_id, uint64_t deadline_ns, kvp_segments_fn fn, void *arg)
    KVP_MUST_USE;
/* kvp_segments_walk goes through all, by rising id, a message a page. */
kvp_err_t kvp_segments_walk(kvp_conn_t *conn, uint64_t deadline_ns, kvp_segments_fn fn, void *arg) KVP_MUST_USE;

#endif
