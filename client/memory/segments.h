/* SPDX-License-Identifier: Apache-2.0
 * Questions to the master about segments. The calls block; any thread may make them. */
#ifndef KVP_CLIENT_MEMORY_SEGMENTS_H
#define KVP_CLIENT_MEMORY_SEGMENTS_H

#include "net/conn.h"

#include "proto/kvpool.pb-c.h"

/* kvp_segments_fn gets the record of one segment, borrowed for the call. The record was checked: the uuid has 16
 * bytes. Return false to end the walk. */
typedef bool (*kvp_segments_fn)(void *arg, const Kvp__Pb__SegmentInfo *info);

/* kvp_segments_find asks the master for one segment, and calls fn unless the segment is unknown. */
kvp_err_t kvp_segments_find(kvp_conn_t *conn, uint32_t segment_id, uint64_t deadline_ns, kvp_segments_fn fn, void *arg)
    KVP_MUST_USE;
/* kvp_segments_walk calls fn for all segments, sorted by id. Each page of segments is one question to the master. */
kvp_err_t kvp_segments_walk(kvp_conn_t *conn, uint64_t deadline_ns, kvp_segments_fn fn, void *arg) KVP_MUST_USE;

#endif
