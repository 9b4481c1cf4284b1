/* SPDX-License-Identifier: Apache-2.0
 * A scratch keeps its largest block over resets, so after a few calls one block fits the work. A scratch that goes
 * back to its pool frees blocks and buffers over KEEP_BYTES. */
#include "client/data/scratch.h"

#include <stdlib.h>

#define FIRST_BYTES (64u << 10)
#define KEEP_BYTES (4u << 20) /* largest block or buffer that an idle scratch keeps */
#define IDLE_MAX 64u
#define ALIGN 64u

struct kvp_scratch_block {
    kvp_scratch_block_t *next;
    size_t cap; /* bytes after this header */
    size_t used;
    _Alignas(ALIGN) uint8_t bytes[];
};

void
kvp_scratch_pool_init(kvp_scratch_pool_t *pool)
{
    pthread_mutex_init(&pool->lock, NULL);
    kvp_list_init(&pool->idle);
    pool->idle_n = 0;
}

static void
destroy_scratch(kvp_scratch_t *s)
{
    while (s->blocks != NULL) {
        kvp_scratch_block_t *b = s->blocks;

        s->blocks = b->next;
        free(b);
    }
    kvp_buf_fini(&s->out);
    kvp_buf_fini(&s->in);
    if (s->sum != NULL) kvp_sum_destroy(s->sum);
    free(s);
}

void
kvp_scratch_pool_fini(kvp_scratch_pool_t *pool)
{
    kvp_list_foreach_safe (pos, tmp, &pool->idle)
        destroy_scratch(kvp_list_entry(pos, kvp_scratch_t, link));
    pthread_mutex_destroy(&pool->lock);
}

kvp_scratch_t *
kvp_scratch_take(kvp_scratch_pool_t *pool)
{
    kvp_scratch_t *s = NULL;

    pthread_mutex_lock(&pool->lock);
    if (!kvp_list_is_empty(&pool->idle)) {
        s = kvp_list_first(&pool->idle, kvp_scratch_t, link);
        kvp_list_del(&s->link);
        pool->idle_n--;
    }
    pthread_mutex_unlock(&pool->lock);
    if (s != NULL) return s;

    s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    kvp_list_init(&s->link);
    kvp_buf_init(&s->out, 0);
    kvp_buf_init(&s->in, 0);
    return s;
}

static void
trim_buf(kvp_buf_t *buf)
{
    if (buf->cap > KEEP_BYTES) kvp_buf_fini(buf);
    kvp_buf_reset(buf);
}

void
kvp_scratch_rele(kvp_scratch_pool_t *pool, kvp_scratch_t *s)
{
    bool is_kept;

    kvp_scratch_reset(s);
    if (s->blocks != NULL && s->blocks->cap > KEEP_BYTES) {
        free(s->blocks);
        s->blocks = NULL;
    }
    trim_buf(&s->out);
    trim_buf(&s->in);
    pthread_mutex_lock(&pool->lock);
    is_kept = pool->idle_n < IDLE_MAX;
    if (is_kept) {
        kvp_list_add_head(&pool->idle, &s->link); /* the most recently used comes first */
        pool->idle_n++;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!is_kept) destroy_scratch(s);
}

static kvp_scratch_block_t *
add_block(kvp_scratch_t *s, size_t bytes)
{
    size_t cap = s->blocks == NULL ? FIRST_BYTES : s->blocks->cap * 2;
    kvp_scratch_block_t *b;

    if (cap < bytes) cap = bytes;
    b = aligned_alloc(ALIGN, sizeof *b + (size_t)kvp_align_up(cap, ALIGN));
    if (b == NULL) return NULL;
    b->next = s->blocks;
    b->cap = cap;
    b->used = 0;
    s->blocks = b;
    return b;
}

void *
kvp_scratch_alloc(kvp_scratch_t *s, size_t n, size_t size)
{
    kvp_scratch_block_t *b = s->blocks;
    size_t bytes;
    void *p;

    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
    bytes = (size_t)kvp_align_up(bytes, ALIGN);
    if (b == NULL || b->cap - b->used < bytes) b = add_block(s, bytes);
    if (b == NULL) return NULL;
    p = b->bytes + b->used;
    b->used += bytes;
    return p;
}

void
kvp_scratch_reset(kvp_scratch_t *s)
{
    kvp_scratch_block_t *b = s->blocks;

    if (b == NULL) return;
    while (b->next != NULL) {
        kvp_scratch_block_t *next = b->next;

        b->next = next->next;
        free(next);
    }
    b->used = 0;
}

kvp_sum_state_t *
kvp_scratch_sum(kvp_scratch_t *s)
{
    if (s->sum == NULL) s->sum = kvp_sum_create();
    if (s->sum != NULL) kvp_sum_reset(s->sum);
    return s->sum;
}
