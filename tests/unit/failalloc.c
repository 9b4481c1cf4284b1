/* SPDX-License-Identifier: Apache-2.0
 * One counter for all threads: the background thread's allocations fail as well. */
#include "tests/unit/failalloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

static _Atomic uint64_t left; /* allocations until one fails; 0 = none is to */
static _Atomic bool is_for_good;
static _Atomic bool has_failed;
static _Atomic int64_t live;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
char *__real_strdup(const char *text);
void __real_free(void *p);

#pragma GCC visibility push(default) /* under AddressSanitizer shared libraries refer to these, too */
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *p);

void
fail_arm(uint64_t n, bool for_good)
{
    has_failed = false;
    is_for_good = for_good;
    left = n;
}

bool
fail_disarm(void)
{
    left = 0;
    return has_failed;
}

int64_t
fail_live(void)
{
    return live;
}

static bool
fails(void)
{
    uint64_t before = left;

    do {
        if (before == 0) return false;
        if (before == 1 && is_for_good) break;
    } while (!atomic_compare_exchange_weak(&left, &before, before - 1));
    if (before > 1) return false;
    has_failed = true;
    errno = ENOMEM;
    return true;
}

static void *
count(void *p)
{
    live += p != NULL;
    return p;
}

void *
__wrap_malloc(size_t size)
{
    return fails() ? NULL : count(__real_malloc(size));
}

void *
__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : count(__real_calloc(n, size));
}

void *
__wrap_realloc(void *p, size_t size)
{
    if (fails()) return NULL;
    return p == NULL ? count(__real_realloc(p, size)) : __real_realloc(p, size);
}

void *
__wrap_aligned_alloc(size_t align, size_t size)
{
    return fails() ? NULL : count(__real_aligned_alloc(align, size));
}

char *
__wrap_strdup(const char *text)
{
    return fails() ? NULL : count(__real_strdup(text));
}

void
__wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}
