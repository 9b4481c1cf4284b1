/* SPDX-License-Identifier: Apache-2.0
 * What the parts of the world call of one another. */
#ifndef KVP_TESTS_WORLD_PRIV_H
#define KVP_TESTS_WORLD_PRIV_H

#include "tests/world/world.h"

/* ---- world.c: to be called before and after each input of the core, and to take what it has to say. */
void input_begins(world_t *w);
void input_done(world_t *w);
bool collect(world_t *w);

/* ---- frames.c */
const kvp_wire_slot_t *retire_read(const kvp_frame_t *f, kvp_pb_t *pb, Kvp__Pb__Retire **head_out);
packet_t *packet_make(const void *bytes, size_t len);
void packet_queue(peer_t *p, kvp_list_t *queue, packet_t *k);
void queue_drop(kvp_list_t *queue);
void answer_back(peer_t *p, const kvp_frame_t *f, kvp_err_t err, const void *tail, size_t tail_len);
void take_bytes(world_t *w, peer_t *p, const kvp_buf_t *bytes);
bool deliver_to_master(peer_t *p);
bool deliver_from_master(peer_t *p);

/* ---- node.c */
void mem_empty(mem_t *mem);
mem_t *mem_find(world_t *w, uint32_t segment_id); /* NULL also where it is wild */
chunk_t *mem_chunk(const mem_t *mem, uint32_t i);
void slot_is_free(chunk_t *c, uint32_t slot); /* nobody writes there any more */
void mem_mark(chunk_t *c, uint32_t slot, bool is_taken);
void node_retire(peer_t *n, const kvp_frame_t *f);
void node_check(peer_t *n, const kvp_frame_t *f);
void node_fence(peer_t *n, const kvp_frame_t *f);
void node_demote(peer_t *n, const kvp_frame_t *f);
void node_copy(peer_t *n, const kvp_frame_t *f);
void node_stage(peer_t *n, const kvp_frame_t *f);
void node_drop(peer_t *n, const kvp_frame_t *f);
void node_owner(peer_t *n, const kvp_frame_t *f);
bool node_free_due(peer_t *n);
void retiring_drop(peer_t *p);

#endif
