/* SPDX-License-Identifier: Apache-2.0
 * Basics that every file uses: the error type, container_of, alignment, minimum and maximum. Header only. */
#ifndef KVP_COMMON_BASE_H
#define KVP_COMMON_BASE_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* The type of error codes: 0 (KVP_OK), or one of the negative numbers in common/err.h. */
typedef int kvp_err_t;

enum {
#define KVP_ERR_ENUM(num, name, dropin, text) KVP_##name = KVPOOL_##name,
    KVPOOL_ERR_MAP(KVP_ERR_ENUM)
#undef KVP_ERR_ENUM
};

#define KVP_MUST_USE __attribute__((warn_unused_result))
#define KVP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define KVP_API __attribute__((visibility("default")))

#define kvp_container_of(ptr, type, member) ((type *)(((char *)(ptr)) - offsetof(type, member)))
#define KVP_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* kvp_ignore drops an error on purpose. The second argument is a text: the reason why this is right. */
#define kvp_ignore(err, why)                                                                                           \
    do {                                                                                                               \
        kvp_err_t kvp_ignored = (err); /* not a cast to void, which would not silence warn_unused_result */            \
        (void)kvp_ignored;                                                                                             \
        (void)sizeof("" why);                                                                                          \
    } while (0)

static inline uint64_t
kvp_align_up(uint64_t v, uint64_t align)
{
    return (v + align - 1) & ~(align - 1);
}

static inline uint64_t
kvp_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t
kvp_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* kvp_err_name returns the stable name of the error ("NOT_FOUND"), kvp_err_text a sentence. Both accept any
 * number; an unknown number gives "UNKNOWN". Static storage. */
const char *kvp_err_name(kvp_err_t err);
const char *kvp_err_text(kvp_err_t err);

/* kvp_panic logs a bug of this program and aborts. It is never called for input of a peer, for disk errors or for
 * a lack of memory. */
void kvp_panic(const char *fmt, ...) KVP_PRINTF(1, 2) __attribute__((noreturn));

/* kvp_grow makes room for at least n + 1 items in an array with room for *cap_io items. It returns the array, or a
 * new array of twice the size (`first` items for an empty array), and updates *cap_io. Without memory it returns
 * NULL, and the old array is unchanged. */
static inline void *
kvp_grow(void *array, size_t n, size_t *cap_io, size_t first, size_t item_bytes)
{
    size_t cap = *cap_io == 0 ? first : *cap_io * 2;
    void *more;

    if (n < *cap_io) return array;
    more = realloc(array, cap * item_bytes);
    if (more != NULL) *cap_io = cap;
    return more;
}

#endif
