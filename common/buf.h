/* SPDX-License-Identifier: Apache-2.0
 * A growable byte buffer with a sticky error: after a failed growth every later append does nothing, so callers
 * check the error only once. */
#ifndef KVP_COMMON_BUF_H
#define KVP_COMMON_BUF_H

#include "common/base.h"

typedef struct {
    uint8_t *data; /* contents of the buffer; owned; NULL while empty */
    size_t len;
    size_t cap;
    size_t limit; /* limit of the length; 0 = no limit; growth above the limit fails */
    kvp_err_t err; /* sticky error of the buffer: NOMEM or LIMIT */
} kvp_buf_t;

/* kvp_buf_init makes an empty buffer with a limit; limit 0 = none. Zeroed memory is also an empty buffer without a
 * limit. */
void kvp_buf_init(kvp_buf_t *buf, size_t limit);
void kvp_buf_fini(kvp_buf_t *buf);
void kvp_buf_reset(kvp_buf_t *buf); /* empties the buffer: sets len to 0 and clears the error, but keeps the memory */

/* kvp_buf_reserve makes room for n more bytes and returns data + len; len does not change. Without memory, or
 * above the limit, it sets the buffer's err and returns NULL. */
uint8_t *kvp_buf_reserve(kvp_buf_t *buf, size_t n);
/* kvp_buf_extend appends n zero bytes and returns their address (borrowed until the next growth), or NULL. */
uint8_t *kvp_buf_extend(kvp_buf_t *buf, size_t n);
void kvp_buf_append(kvp_buf_t *buf, const void *src, size_t n);
void kvp_buf_consume(kvp_buf_t *buf, size_t n); /* removes the first n bytes of the buffer */

static inline void
kvp_buf_swap(kvp_buf_t *a, kvp_buf_t *b)
{
    const kvp_buf_t was = *a;

    *a = *b;
    *b = was;
}

#endif
