/* SPDX-License-Identifier: Apache-2.0
 * Zeroed pages straight from the system, that go back to it at once: malloc keeps what lies between things that stay.
 *
 * The first touch of a page is the kernel's work and takes as long as it takes; where the kernel is a guest, now and then
 * milliseconds. A thread that must not stop for it starts a *stock*: another thread then touches pages before they are
 * taken, and gives back, or clears for the next one, what is freed. A stock serves the thread that has started it and no
 * other; it follows what is taken, so that there is none for sizes that nobody takes.
 */
#ifndef KVP_COMMON_PAGES_H
#define KVP_COMMON_PAGES_H

#include "common/base.h"

/* kvp_pages_alloc: untouched. kvp_pages_take: for what will soon be full, touched if this thread has a stock with pages of
 * that size; asked with few different sizes. Both NULL where there is no memory. kvp_pages_free: of either, with the same
 * size; legal on NULL. */
void *kvp_pages_alloc(size_t bytes);
void *kvp_pages_take(size_t bytes);
void kvp_pages_free(void *pages, size_t bytes);

/* kvp_table_alloc: zeroed memory for n entries, NULL where there is none. A long table has pages of its own: malloc would
 * write zeroes over memory that it keeps, and purge it, in one go. kvp_table_free: with the same size; legal on NULL. */
void *kvp_table_alloc(size_t n, size_t entry_bytes);
void kvp_table_free(void *table, size_t n, size_t entry_bytes);

/* kvp_is_mapped: whether there is memory at all of these addresses; who may touch it is not looked at. Takes as long as the range has
 * mappings, not pages. True where the system does not say. */
bool kvp_is_mapped(const void *addr, size_t len);

/* kvp_pages_stock_start: SYS (logged), NOMEM. kvp_pages_stock_stop: by the same thread; legal where there is none. */
kvp_err_t kvp_pages_stock_start(void) KVP_MUST_USE;
void kvp_pages_stock_stop(void);

/* kvp_pages_stock returns this thread's stock; NULL = none. kvp_pages_stock_use makes it another thread's as well, for two threads
 * that never run at the same time. */
void *kvp_pages_stock(void);
void kvp_pages_stock_use(void *stock);

typedef struct {
    uint64_t ready, missed; /* pieces that were taken and had been touched, and that had not, for want of time */
    uint64_t kept_bytes; /* touched, and not taken yet */
} kvp_pages_stats_t;

void kvp_pages_stats(kvp_pages_stats_t *stats_out); /* of this thread's stock; zeros where there is none */

#endif
