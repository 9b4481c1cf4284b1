/* SPDX-License-Identifier: Apache-2.0
 * Assembles frames in place. kvp_inbuf_next moves an unaligned frame down, over handled bytes. It moves only this
 * frame: to move the rest of the buffer each time would take quadratic time for many small frames. */
#include "master/shell/inbuf.h"

#include <stdlib.h>
#include <string.h>

#define TAIL_ALIGN 8u

void
kvp_inbuf_fini(kvp_inbuf_t *in)
{
    free(in->own);
    memset(in, 0, sizeof(*in));
}

static bool
reserve_own(kvp_inbuf_t *in, size_t n)
{
    if (n <= in->own_cap) return true;
    uint8_t *own = realloc(in->own, n);
    if (own == NULL) return false;
    in->own = own;
    in->own_cap = n;
    return true;
}

/* Returns the whole length of the frame in the connection's own buffer, which always contains the frame's header. */
static size_t
whole_bytes(const kvp_inbuf_t *in)
{
    uint32_t length;

    memcpy(&length, in->own, sizeof(length));
    return KVP_FRAME_HDR_BYTES + (size_t)length;
}

size_t
kvp_inbuf_wanted(const kvp_inbuf_t *in)
{
    return whole_bytes(in) - in->own_cap;
}

kvp_err_t
kvp_inbuf_make_room(kvp_inbuf_t *in)
{
    return reserve_own(in, whole_bytes(in)) ? KVP_OK : KVP_NOMEM;
}

kvp_err_t
kvp_inbuf_room(kvp_inbuf_t *in, uint8_t *shared, size_t shared_len, size_t spare, uint8_t **at_out, size_t *len_out)
{
    if (in->own_len == 0) {
        in->at = shared;
        *at_out = shared;
        *len_out = shared_len;
        return KVP_OK;
    }
    if (in->own_len == in->own_cap) {
        if (kvp_inbuf_wanted(in) > spare) return KVP_EAGAIN;
        if (kvp_inbuf_make_room(in) != KVP_OK) return KVP_NOMEM;
    }
    in->at = in->own;
    *at_out = in->own + in->own_len;
    *len_out = in->own_cap - in->own_len;
    return KVP_OK;
}

void
kvp_inbuf_received(kvp_inbuf_t *in, size_t n)
{
    in->left = in->own_len + n;
}

void
kvp_inbuf_again(kvp_inbuf_t *in)
{
    in->at = in->own;
    in->left = in->own_len;
}

kvp_err_t
kvp_inbuf_next(kvp_inbuf_t *in, uint32_t length_max, kvp_frame_t *frame_out, bool *has_out)
{
    size_t used;
    uint32_t length = 0;
    kvp_err_t err = kvp_frame_parse(in->at, in->left, frame_out, &used);

    if (err != KVP_OK) return err;
    if (in->left >= KVP_FRAME_HDR_BYTES) memcpy(&length, in->at, sizeof(length));
    if (length > length_max) return KVP_PROTO;
    *has_out = used > 0;
    if (used == 0) return KVP_OK;
    size_t off = (uintptr_t)in->at % TAIL_ALIGN;
    if (off != 0 && frame_out->tail_len > 0) {
        memmove(in->at - off, in->at, used);
        frame_out->head -= off;
        frame_out->tail -= off;
    }
    in->at += used;
    in->left -= used;
    return KVP_OK;
}

kvp_err_t
kvp_inbuf_keep(kvp_inbuf_t *in)
{
    bool is_own = in->own_len > 0;

    if (in->left == 0) {
        kvp_inbuf_fini(in);
        return KVP_OK;
    }
    if (!is_own && !reserve_own(in, kvp_max_u64(in->left, KVP_INBUF_SMALL_BYTES))) return KVP_NOMEM;
    if (in->at != in->own) memmove(in->own, in->at, in->left);
    in->own_len = in->left;
    size_t cap = kvp_max_u64(in->left, KVP_INBUF_SMALL_BYTES);
    uint8_t *own = in->at != in->own && cap <= in->own_cap / 4 ? realloc(in->own, cap) : NULL;
    if (own != NULL) { /* a frame for which the buffer had grown was handled: shrink it */
        in->own = own;
        in->own_cap = cap;
    }
    return KVP_OK;
}
