/* SPDX-License-Identifier: Apache-2.0
 * A growable byte buffer with a sticky error: a failed growth makes every later append a no-op, so callers check once.
 */
#ifndef KVP_COMMON_BUF_H
#define KVP_COMMON_BUF_H

#include "common/base.h"

typedef struct {
    uint8_t *data; /* owned; NULL while empty */
    size_t len;
    size_t cap;
    size_t limit; /* 0 = no limit; growth over the limit fails */
    kvp_err_t err; /* sticky: NOMEM or LIMIT */
} kvp_buf_t;

/* The zero value is an empty buffer with no limit. */
void kvp_buf_init(kvp_buf_t *buf, size_t limit);
void kvp_buf_fini(kvp_buf_t *buf);
void kvp_buf_reset(kvp_buf_t *buf); /* len 0, error cleared, memory kept */

/* kvp_buf_reserve returns room for n more bytes at data + len and leaves len as it is. Returns NULL
 * without memory, and the buffer keeps the error. */
uint8_t *kvp_buf_reserve(kvp_buf_t *buf, size_t n);
/* kvp_buf_extend appends n zero bytes and returns where they begin (borrowed until the next growth), or NULL. */
uint8_t *kvp_buf_extend(kvp_buf_t *buf, size_t n);
void kvp_buf_append(kvp_buf_t *buf, const void *src, size_t n);
void kvp_buf_consume(kvp_buf_t *buf, size_t n); /* drops the first n bytes */

#endif
