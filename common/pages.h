/* SPDX-License-Identifier: Apache-2.0
 * Zeroed pages from the system, which return to the system as soon as they are freed. malloc would keep freed memory
 * that lies between live allocations.
 *
 * The kernel does work at the first touch of a page, in a virtual machine sometimes for milliseconds. A thread
 * that must not stop for this work starts a *stock*: another thread then touches pages before they are needed, and
 * unmaps or clears freed pages. A stock serves only the thread that started it. It keeps only pieces of sizes in
 * use, so unused sizes cost nothing. */
#ifndef KVP_COMMON_PAGES_H
#define KVP_COMMON_PAGES_H

#include "common/base.h"

/* kvp_pages_alloc returns untouched pages. kvp_pages_take is for memory that will soon be full: its pages are
 * touched if this thread has a stock with a piece of this size; use it with few different sizes. Both return NULL
 * without memory. kvp_pages_free frees pages of both, with the same size; legal on NULL. */
void *kvp_pages_alloc(size_t bytes);
void *kvp_pages_take(size_t bytes);
void kvp_pages_free(void *pages, size_t bytes);

/* kvp_pages_huge asks the kernel for huge pages: at the first touch, or, for pages that were touched before, in the
 * background within about a minute. Without huge pages small ones stay. Use it for large memory that is accessed at
 * random, because with small pages nearly each access walks the page table. */
void kvp_pages_huge(void *pages, size_t bytes);

/* kvp_table_alloc returns zeroed memory for n entries, or NULL. A long table gets pages of its own, because malloc
 * would write zeroes over memory that it has kept, and would purge such memory in one go. kvp_table_free frees a
 * table, with the same size; legal on NULL. */
void *kvp_table_alloc(size_t n, size_t entry_bytes);
void kvp_table_free(void *table, size_t n, size_t entry_bytes);

/* kvp_is_mapped returns whether the whole address range is mapped, with any access rights. The cost grows with the
 * number of mappings in the range, not of its pages. It returns true if the system gives no answer. */
bool kvp_is_mapped(const void *addr, size_t len);

/* kvp_pages_stock_start starts a stock for the calling thread: SYS (logged), NOMEM. kvp_pages_stock_stop stops it,
 * in the same thread; legal without a stock. */
kvp_err_t kvp_pages_stock_start(void) KVP_MUST_USE;
void kvp_pages_stock_stop(void);

/* kvp_pages_stock returns the calling thread's stock; NULL = none. kvp_pages_stock_use lets a second thread use
 * the stock; the two threads must never run at the same time. */
void *kvp_pages_stock(void);
void kvp_pages_stock_use(void *stock);

typedef struct {
    /* counts of pieces taken from the stock; ready: the piece was touched before; missed: no touched piece was ready */
    uint64_t ready, missed;
    uint64_t kept_bytes; /* bytes of pieces that are touched and not taken yet */
} kvp_pages_stats_t;

void kvp_pages_stats(kvp_pages_stats_t *stats_out); /* figures of the calling thread's stock; all 0 without a stock */

#endif
