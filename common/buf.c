/* SPDX-License-Identifier: Apache-2.0
 * The growable buffer. Capacity doubles, so n appends copy O(n) bytes in total. The buffer never shrinks before
 * kvp_buf_fini. */
#include "common/buf.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 64u

void
kvp_buf_init(kvp_buf_t *buf, size_t limit)
{
    memset(buf, 0, sizeof(*buf));
    buf->limit = limit;
}

void
kvp_buf_fini(kvp_buf_t *buf)
{
    free(buf->data);
    kvp_buf_init(buf, buf->limit);
}

void
kvp_buf_reset(kvp_buf_t *buf)
{
    buf->len = 0;
    buf->err = KVP_OK;
}

uint8_t *
kvp_buf_reserve(kvp_buf_t *buf, size_t n)
{
    if (buf->err != KVP_OK) return NULL;
    size_t need;
    if (__builtin_add_overflow(buf->len, n, &need) || (buf->limit != 0 && need > buf->limit)) {
        buf->err = KVP_LIMIT;
        return NULL;
    }
    if (need > buf->cap || buf->data == NULL) {
        size_t cap = kvp_max_u64(need, buf->cap > SIZE_MAX / 2 ? SIZE_MAX : buf->cap * 2);
        cap = kvp_max_u64(cap, FIRST_CAP);
        if (buf->limit != 0) cap = kvp_min_u64(cap, buf->limit);
        uint8_t *data = realloc(buf->data, cap);
        if (data == NULL) {
            buf->err = KVP_NOMEM;
            return NULL;
        }
        buf->data = data;
        buf->cap = cap;
    }
    return buf->data + buf->len;
}

uint8_t *
kvp_buf_extend(kvp_buf_t *buf, size_t n)
{
    uint8_t *at = kvp_buf_reserve(buf, n);
    if (at == NULL) return NULL;
    memset(at, 0, n);
    buf->len += n;
    return at;
}

void
kvp_buf_append(kvp_buf_t *buf, const void *src, size_t n)
{
    if (n == 0) return;
    uint8_t *at = kvp_buf_reserve(buf, n);
    if (at == NULL) return;
    memcpy(at, src, n);
    buf->len += n;
}

void
kvp_buf_consume(kvp_buf_t *buf, size_t n)
{
    if (n > buf->len) kvp_panic("buffer: consume of %zu of %zu bytes", n, buf->len);
    if (n == 0) return;
    memmove(buf->data, buf->data + n, buf->len - n);
    buf->len -= n;
}
