/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes frames. Every received byte may come from a stranger. */
#include "proto/frame.h"

#include <string.h>

#define TAIL_ALIGN 8u

static size_t
tail_at(uint16_t head_len)
{
    return (size_t)kvp_align_up(head_len, TAIL_ALIGN);
}

kvp_err_t
kvp_frame_hdr_decode(const uint8_t bytes[KVP_FRAME_HDR_BYTES], kvp_frame_hdr_t *hdr_out)
{
    kvp_frame_hdr_t h;

    memcpy(&h.length, bytes, 4);
    h.opcode = bytes[4];
    h.flags = bytes[5];
    memcpy(&h.head_len, bytes + 6, 2);
    memcpy(&h.request_id, bytes + 8, 8);
    if (h.length > KVP_FRAME_MAX || (h.flags & ~KVP_FRAME_FLAGS_KNOWN) != 0) return KVP_PROTO;
    /* The padding of the head is not counted: a frame without a tail may end right after its head, without padding. */
    if (h.head_len > h.length) return KVP_PROTO;
    *hdr_out = h;
    return KVP_OK;
}

kvp_err_t
kvp_frame_parse(const uint8_t *data, size_t len, kvp_frame_t *frame_out, size_t *used_out)
{
    kvp_frame_hdr_t h;
    kvp_err_t err;
    size_t at;

    *used_out = 0;
    if (len < KVP_FRAME_HDR_BYTES) return KVP_OK;
    err = kvp_frame_hdr_decode(data, &h);
    if (err != KVP_OK) return err;
    if (len - KVP_FRAME_HDR_BYTES < h.length) return KVP_OK;

    at = tail_at(h.head_len);
    frame_out->hdr = h;
    frame_out->head = data + KVP_FRAME_HDR_BYTES;
    frame_out->tail_len = h.length > at ? h.length - at : 0;
    frame_out->tail = frame_out->head + (frame_out->tail_len > 0 ? at : h.length);
    *used_out = KVP_FRAME_HDR_BYTES + h.length;
    return KVP_OK;
}

void
kvp_frame_begin(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *head, size_t head_len,
                size_t *at_out)
{
    size_t padded = (size_t)kvp_align_up(head_len, TAIL_ALIGN);
    uint8_t *p;
    uint16_t head_len16 = (uint16_t)head_len;

    *at_out = out->len;
    if (head_len > UINT16_MAX) {
        out->err = KVP_LIMIT;
        return;
    }
    p = kvp_buf_extend(out, KVP_FRAME_HDR_BYTES + padded);
    if (p == NULL) return;
    p[4] = opcode;
    p[5] = flags;
    memcpy(p + 6, &head_len16, 2);
    memcpy(p + 8, &request_id, 8);
    if (head_len > 0) memcpy(p + KVP_FRAME_HDR_BYTES, head, head_len);
}

void
kvp_frame_end(kvp_buf_t *out, size_t at)
{
    uint32_t length;

    if (out->err != KVP_OK) return;
    if (out->len - at - KVP_FRAME_HDR_BYTES > KVP_FRAME_MAX) {
        out->err = KVP_LIMIT;
        return;
    }
    length = (uint32_t)(out->len - at - KVP_FRAME_HDR_BYTES);
    memcpy(out->data + at, &length, 4);
}

void
kvp_rd_init(kvp_rd_t *rd, const void *data, size_t len)
{
    rd->at = data;
    rd->left = len;
    rd->is_bad = false;
}

const void *
kvp_rd_bytes(kvp_rd_t *rd, size_t n)
{
    const void *p = rd->at;

    if (rd->is_bad || n > rd->left) {
        rd->is_bad = true;
        return NULL;
    }
    rd->at += n;
    rd->left -= n;
    return p;
}

const void *
kvp_rd_array(kvp_rd_t *rd, uint64_t n, size_t size)
{
    if (rd->is_bad || n > rd->left / size) {
        rd->is_bad = true;
        return NULL;
    }
    return kvp_rd_bytes(rd, (size_t)n * size);
}
