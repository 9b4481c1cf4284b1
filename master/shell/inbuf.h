/* SPDX-License-Identifier: Apache-2.0
 * From received bytes to whole frames, without a copy if the frame arrives in one piece. Many
 * connections share one receive buffer; the rest of a frame cut in the middle moves to a buffer of
 * the connection's own. When this buffer is full it grows to the frame's end. Pure: no sockets
 * here.
 *
 * A turn is: room, receive there, received; then next until there is no frame, and keep. */
#ifndef KVP_MASTER_SHELL_INBUF_H
#define KVP_MASTER_SHELL_INBUF_H

#include "proto/frame.h"

#define KVP_INBUF_SMALL_BYTES 1024u /* the own buffer is not shorter */

typedef struct {
    uint8_t *own; /* owned; NULL while own_len is 0 */
    size_t own_len;
    size_t own_cap;
    uint8_t *at; /* in a turn: what is not used yet, in `own` or in the shared buffer */
    size_t left;
} kvp_inbuf_t;

/* The zero value is empty. */
void kvp_inbuf_fini(kvp_inbuf_t *in);

/* kvp_inbuf_room returns where to receive: shared (8-aligned), or the rest of the own buffer, which
 * may grow by `spare` bytes. EAGAIN if it has to grow by more: kvp_inbuf_wanted returns by how
 * much, and kvp_inbuf_make_room does it. NOMEM. */
kvp_err_t kvp_inbuf_room(kvp_inbuf_t *in, uint8_t *shared, size_t shared_len, size_t spare, uint8_t **at_out,
                         size_t *len_out) KVP_MUST_USE;
size_t kvp_inbuf_wanted(const kvp_inbuf_t *in);
kvp_err_t kvp_inbuf_make_room(kvp_inbuf_t *in) KVP_MUST_USE;
void kvp_inbuf_received(kvp_inbuf_t *in, size_t n);

/* kvp_inbuf_again begins a turn with the bytes that the last turn kept, without receiving. */
void kvp_inbuf_again(kvp_inbuf_t *in);

/* kvp_inbuf_next returns the next whole frame (its tail aligned to 8; borrowed until keep), or
 * *has_out false; PROTO where framing is lost, or for a frame longer than length_max. */
kvp_err_t kvp_inbuf_next(kvp_inbuf_t *in, uint32_t length_max, kvp_frame_t *frame_out, bool *has_out) KVP_MUST_USE;

/* kvp_inbuf_keep ends the turn, and keeps unused bytes for the next one. NOMEM. */
kvp_err_t kvp_inbuf_keep(kvp_inbuf_t *in) KVP_MUST_USE;

#endif
