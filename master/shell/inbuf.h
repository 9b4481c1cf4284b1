/* SPDX-License-Identifier: Apache-2.0
 * Assembles received bytes to whole frames, without a copy if a frame arrives in one piece. Many connections share
 * one receive buffer; the beginning of an incomplete frame moves to the connection's own buffer, which grows to the
 * frame's length when it is full. There are no sockets here.
 *
 * The calls for one read: kvp_inbuf_room, receive there, kvp_inbuf_received; then kvp_inbuf_next until there is no
 * frame, and kvp_inbuf_keep. */
#ifndef KVP_MASTER_SHELL_INBUF_H
#define KVP_MASTER_SHELL_INBUF_H

#include "proto/frame.h"

#define KVP_INBUF_SMALL_BYTES 1024u /* least size of a connection's own buffer */

typedef struct {
    uint8_t *own; /* the connection's own buffer; NULL while own_len is 0 */
    size_t own_len;
    size_t own_cap;
    uint8_t *at; /* the next unhandled byte, in `own` or in the shared buffer */
    size_t left;
} kvp_inbuf_t;

/* The zero value is empty. */
void kvp_inbuf_fini(kvp_inbuf_t *in);

/* kvp_inbuf_room returns where to receive: in `shared` (8-aligned), or in the rest of the own buffer, which may grow
 * by `spare` bytes. EAGAIN if it must grow by more: kvp_inbuf_wanted returns by how many bytes, and
 * kvp_inbuf_make_room makes it grow. NOMEM. */
kvp_err_t kvp_inbuf_room(kvp_inbuf_t *in, uint8_t *shared, size_t shared_len, size_t spare, uint8_t **at_out,
                         size_t *len_out) KVP_MUST_USE;
size_t kvp_inbuf_wanted(const kvp_inbuf_t *in);
kvp_err_t kvp_inbuf_make_room(kvp_inbuf_t *in) KVP_MUST_USE;
void kvp_inbuf_received(kvp_inbuf_t *in, size_t n);

/* kvp_inbuf_again continues with the bytes that were kept, without receiving. */
void kvp_inbuf_again(kvp_inbuf_t *in);

/* kvp_inbuf_next returns the next whole frame (its tail aligned to 8; borrowed until kvp_inbuf_keep), or *has_out
 * false. PROTO if the header is malformed, or the frame is longer than length_max. */
kvp_err_t kvp_inbuf_next(kvp_inbuf_t *in, uint32_t length_max, kvp_frame_t *frame_out, bool *has_out) KVP_MUST_USE;

/* kvp_inbuf_keep keeps the unhandled bytes for the next read. NOMEM. */
kvp_err_t kvp_inbuf_keep(kvp_inbuf_t *in) KVP_MUST_USE;

#endif
