/* SPDX-License-Identifier: Apache-2.0
 * Assembling frames in place. A frame that does not begin aligned, because the one before it ended anywhere, is moved
 * down over bytes already used: only that frame, so that many small ones in one read do not cost the square.
 */
#include "master/inbuf.h"

#include <stdlib.h>
#include <string.h>

#define OWN_MIN_BYTES 4096u
#define TAIL_ALIGN 8u

void
kvp_inbuf_fini(kvp_inbuf_t *in)
{
    free(in->own);
    memset(in, 0, sizeof(*in));
}

static bool
reserve(kvp_inbuf_t *in, size_t n)
{
    if (n <= in->own_cap) return true;
    uint8_t *own = realloc(in->own, n);
    if (own == NULL) return false;
    in->own = own;
    in->own_cap = n;
    return true;
}

/* grow doubles the own buffer, up to the end of the frame that is in it. */
static bool
grow(kvp_inbuf_t *in)
{
    size_t want = in->own_cap * 2;
    kvp_frame_hdr_t hdr;

    if (in->own_len >= KVP_FRAME_HDR_BYTES && kvp_frame_hdr_decode(in->own, &hdr) == KVP_OK) {
        size_t whole = KVP_FRAME_HDR_BYTES + (size_t)hdr.length;
        if (whole > in->own_len) want = kvp_min_u64(want, whole);
    }
    return reserve(in, want);
}

kvp_err_t
kvp_inbuf_room(kvp_inbuf_t *in, uint8_t *shared, size_t shared_len, uint8_t **at_out, size_t *len_out)
{
    if (in->own_len == 0) {
        in->at = shared;
        *at_out = shared;
        *len_out = shared_len;
        return KVP_OK;
    }
    if (in->own_len == in->own_cap && !grow(in)) return KVP_NOMEM;
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
kvp_inbuf_next(kvp_inbuf_t *in, kvp_frame_t *frame_out, bool *has_out)
{
    size_t used;
    kvp_err_t err = kvp_frame_parse(in->at, in->left, frame_out, &used);

    if (err != KVP_OK) return err;
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
    if (!is_own && !reserve(in, kvp_max_u64(in->left, OWN_MIN_BYTES))) return KVP_NOMEM;
    memmove(in->own, in->at, in->left);
    in->own_len = in->left;
    return KVP_OK;
}
