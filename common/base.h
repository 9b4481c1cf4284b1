/* SPDX-License-Identifier: Apache-2.0
 * What every file uses: the error type, container_of, alignment, saturating arithmetic. Header only.
 */
#ifndef KVP_COMMON_BASE_H
#define KVP_COMMON_BASE_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* kvp_err_t is 0 (KVP_OK) or one of the negative numbers of common/err.h. */
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

/* kvp_ignore drops an error on purpose; the second argument is the reason why dropping is right. */
#define kvp_ignore(err, why)                                                                                           \
    do {                                                                                                               \
        kvp_err_t kvp_ignored = (err); /* a cast to void would not silence warn_unused_result */                       \
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

/* kvp_err_name returns the stable name ("NOT_FOUND"), kvp_err_text one sentence.
 * Both accept any number; an unknown one gives "UNKNOWN". Static storage. */
const char *kvp_err_name(kvp_err_t err);
const char *kvp_err_text(kvp_err_t err);

/* kvp_panic reports a bug of our own and aborts. Never for peer input, disk or memory. */
void kvp_panic(const char *fmt, ...) KVP_PRINTF(1, 2) __attribute__((noreturn));

/* kvp_grow makes room for at least n + 1 items in an array of *cap_io items. Returns the array, or
 * a new one of twice the size (`first` items at the beginning). Returns NULL without memory, and
 * the array stays as before. */
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
