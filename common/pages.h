/* SPDX-License-Identifier: Apache-2.0
 * Zeroed pages from the system that return to the system as soon as they are freed: malloc would
 * keep freed memory that lies between live allocations.
 *
 * The kernel works on the first touch of a page, sometimes for milliseconds in a guest. A thread
 * that must not stop for this work starts a *stock*: another thread touches pages before they are
 * needed, and unmaps or clears freed pages. A stock serves only the thread that started it. It
 * follows the sizes in use, so unused sizes cost nothing. */
#ifndef KVP_COMMON_PAGES_H
#define KVP_COMMON_PAGES_H

#include "common/base.h"

/* kvp_pages_alloc: untouched. kvp_pages_take: for what will soon be full, touched if this thread
 * has a stock with pages of that size; asked with few different sizes. Both NULL where there is no
 * memory. kvp_pages_free: of either, with the same size; legal on NULL. */
void *kvp_pages_alloc(size_t bytes);
void *kvp_pages_take(size_t bytes);
void kvp_pages_free(void *pages, size_t bytes);

/* kvp_table_alloc: zeroed memory for n entries, NULL where there is none. A long table has pages of
 * its own: malloc would write zeroes over memory that it keeps, and purge it, in one go.
 * kvp_table_free: with the same size; legal on NULL. */
void *kvp_table_alloc(size_t n, size_t entry_bytes);
void kvp_table_free(void *table, size_t n, size_t entry_bytes);

/* kvp_is_mapped returns whether memory is mapped at all of these addresses, whatever the access
 * rights. The cost grows with the mappings in the range, not with its pages. Returns true where the
 * system gives no answer. */
bool kvp_is_mapped(const void *addr, size_t len);

/* kvp_pages_stock_start: SYS (logged), NOMEM. kvp_pages_stock_stop: by the same thread; legal where there is none. */
kvp_err_t kvp_pages_stock_start(void) KVP_MUST_USE;
void kvp_pages_stock_stop(void);

/* kvp_pages_stock returns this thread's stock; NULL = none. kvp_pages_stock_use makes the stock
 * usable by a second thread; the two threads must never run at the same time. */
void *kvp_pages_stock(void);
void kvp_pages_stock_use(void *stock);

typedef struct {
    uint64_t ready, missed; /* pieces that were taken and had been touched, and that had not, for want of time */
    uint64_t kept_bytes; /* touched, and not taken yet */
} kvp_pages_stats_t;

void kvp_pages_stats(kvp_pages_stats_t *stats_out); /* of this thread's stock; zeros without a stock */

#endif
