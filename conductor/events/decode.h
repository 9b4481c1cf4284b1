/* SPDX-License-Identifier: Apache-2.0
 * Decodes payloads of KV events in msgpack: [timestamp, [event, ...], rank]. The form of an event decides its
 * decoder: maps and arrays of vLLM and SGLang, and the standard's envelope. No part of a payload is trusted. */
#ifndef KVP_CONDUCTOR_EVENTS_DECODE_H
#define KVP_CONDUCTOR_EVENTS_DECODE_H

#include "common/buf.h"
#include "conductor/base/event.h"

#define KVP_PAYLOAD_MAX (64u << 20)

typedef struct {
    void (*on_event)(void *arg, const kvp_event_t *event);
    void (*on_skip)(void *arg, kvp_skip_t why);
    void *arg;
} kvp_decode_ops_t;

/* Buffers of a decoder, which are reused for the next payload. */
typedef struct {
    kvp_buf_t hashes, tokens;
} kvp_decoder_t;

void kvp_decoder_init(kvp_decoder_t *d);
void kvp_decoder_fini(kvp_decoder_t *d);

/* kvp_decode calls back for each event, in order. *rank_out is the payload's data-parallel rank; UINT32_MAX = the
 * payload has none. It returns false, without any callback, if the bytes are not a payload. */
bool kvp_decode(kvp_decoder_t *d, const void *payload, size_t len, const kvp_decode_ops_t *ops, uint32_t *rank_out)
    KVP_MUST_USE;

#endif
