/* SPDX-License-Identifier: Apache-2.0
 * See pages.h. Design notes. Two threads share a stock: its owner and the stock's own thread. They communicate by
 * rings with one writer and one reader: a ring of ready pieces for each size, and one ring of freed pieces. So
 * neither thread waits for the other: if no piece is ready, or the ring of freed pieces is full, the owner maps or
 * unmaps memory itself. The owner counts the pieces in use, and sets how many pieces of each size the stock keeps. */
#include "common/pages.h"

#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
#define SIZES_MAX 8u
#define PIECE_BYTES_MAX (1u << 20)
#define TABLE_BYTES_LONG (64u << 10)
#define RING_SLOTS 1024u /* size of a ring: fits the pieces freed in a few steps of the master, if the stock lags */
#define KEPT_LEAST 2u /* number of ready pieces of each size that a stock keeps at least */
#define KEPT_MOST 32u
#define KEPT_SHARE 128u /* one more piece of a size is kept for every KEPT_SHARE pieces in use */

typedef struct {
    void *pages; /* address of the piece of memory; NULL = no piece */
    size_t bytes;
} piece_t;

typedef struct {
    _Atomic uint32_t head, tail; /* positions of the reader and of the writer; they wrap around */
    piece_t slots[RING_SLOTS];
} ring_t;

typedef struct {
    size_t bytes;
    uint32_t in_use; /* number of pieces in use; only the owner accesses it */
    _Atomic uint32_t wanted; /* number of pieces of this size that the stock's thread keeps ready */
    ring_t ready; /* ring of ready pieces, from the stock's thread to the owner */
} kept_t;

typedef struct {
    kept_t kept[SIZES_MAX];
    _Atomic uint32_t sizes_n;
    ring_t freed; /* ring of freed pieces, from the owner to the stock's thread */
    pthread_t thread;
    sem_t news;
    atomic_bool is_over;
    uint64_t ready, missed;
} stock_t;

static _Thread_local stock_t *mine; /* the stock of this thread; NULL = none */

/* ---- mapping and unmapping pieces */
void *
kvp_pages_alloc(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

void
kvp_pages_huge(void *pages, size_t bytes)
{
    (void)madvise(pages, bytes, MADV_HUGEPAGE);
}

static void
unmap_piece(piece_t piece)
{
    if (munmap(piece.pages, piece.bytes) != 0) kvp_panic("munmap of %zu bytes: %m", piece.bytes);
}

/* Maps a piece and touches it page by page. Populating all pages in one call would block mmap calls of other
 * threads for the whole time. */
static void *
alloc_touched(size_t bytes)
{
    volatile char *p = kvp_pages_alloc(bytes);

    for (size_t i = 0; p != NULL && i < bytes; i += PAGE_BYTES)
        p[i] = 0;
    return (void *)p;
}

/* ---- rings of pieces */
static uint32_t
ring_count(const ring_t *ring)
{
    return atomic_load(&ring->tail) - atomic_load(&ring->head);
}

/* Adds a piece to the ring. Returns false if the ring is full. */
static bool
ring_put(ring_t *ring, piece_t piece)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    if (tail - atomic_load_explicit(&ring->head, memory_order_acquire) == RING_SLOTS) return false;
    ring->slots[tail % RING_SLOTS] = piece;
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

/* Takes a piece from the ring; its pages are NULL if the ring is empty. */
static piece_t
ring_get(ring_t *ring)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    piece_t piece;

    if (head == atomic_load_explicit(&ring->tail, memory_order_acquire)) return (piece_t){0};
    piece = ring->slots[head % RING_SLOTS];
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return piece;
}

/* ---- sizes of pieces */
static kept_t *
find_size(stock_t *stock, size_t bytes)
{
    uint32_t n = atomic_load_explicit(&stock->sizes_n, memory_order_acquire);

    for (uint32_t i = 0; i < n; i++)
        if (stock->kept[i].bytes == bytes) return &stock->kept[i];
    return NULL;
}

static bool
is_enough(const kept_t *kept)
{
    return ring_count(&kept->ready) >= atomic_load(&kept->wanted);
}

/* ---- the stock's own thread. A ring of ready pieces is never full, because it has room for all wanted pieces. */
static void
take_back(stock_t *stock)
{
    for (piece_t piece; (piece = ring_get(&stock->freed)).pages != NULL;) {
        kept_t *kept = find_size(stock, piece.bytes);

        if (kept == NULL || is_enough(kept)) {
            unmap_piece(piece);
        } else {
            memset(piece.pages, 0, piece.bytes);
            (void)ring_put(&kept->ready, piece);
        }
    }
}

static void
touch_ahead(stock_t *stock)
{
    uint32_t n = atomic_load_explicit(&stock->sizes_n, memory_order_acquire);

    for (uint32_t i = 0; i < n; i++) {
        kept_t *kept = &stock->kept[i];
        piece_t piece = {.bytes = kept->bytes};

        while (!is_enough(kept) && (piece.pages = alloc_touched(kept->bytes)) != NULL)
            (void)ring_put(&kept->ready, piece);
    }
}

static void *
run_stock(void *arg)
{
    stock_t *stock = arg;

    while (!atomic_load(&stock->is_over)) {
        take_back(stock);
        touch_ahead(stock);
        while (sem_wait(&stock->news) != 0)
            continue; /* continues if a signal interrupted the wait */
    }
    return NULL;
}

/* ---- the owner of the stock */
static kept_t *
make_size(stock_t *stock, size_t bytes)
{
    uint32_t n = atomic_load_explicit(&stock->sizes_n, memory_order_relaxed);

    if (n == SIZES_MAX || bytes > PIECE_BYTES_MAX) return NULL;
    stock->kept[n].bytes = bytes;
    atomic_store_explicit(&stock->sizes_n, n + 1, memory_order_release);
    return &stock->kept[n];
}

static void
set_in_use(stock_t *stock, kept_t *kept, uint32_t n)
{
    kept->in_use = n;
    atomic_store(&kept->wanted, (uint32_t)kvp_min_u64(KEPT_LEAST + n / KEPT_SHARE, KEPT_MOST));
    sem_post(&stock->news);
}

void *
kvp_pages_take(size_t bytes)
{
    kept_t *kept = mine == NULL ? NULL : find_size(mine, bytes);
    piece_t piece;

    if (mine != NULL && kept == NULL) kept = make_size(mine, bytes);
    if (kept == NULL) return kvp_pages_alloc(bytes);
    piece = ring_get(&kept->ready);
    mine->ready += piece.pages != NULL;
    mine->missed += piece.pages == NULL;
    set_in_use(mine, kept, kept->in_use + 1);
    return piece.pages != NULL ? piece.pages : kvp_pages_alloc(bytes);
}

static void
give_back(stock_t *stock, piece_t piece)
{
    if (!ring_put(&stock->freed, piece)) unmap_piece(piece);
}

/* Reduces the number of kept pieces after a piece was freed: the wanted number falls by at most one, and a surplus
 * piece is given back. */
static void
keep_less(stock_t *stock, kept_t *kept)
{
    piece_t surplus = {0};

    /* in_use may already be 0, because a freed piece may come from kvp_pages_alloc, which does not count pieces */
    set_in_use(stock, kept, kept->in_use - (kept->in_use > 0));
    if (ring_count(&kept->ready) > atomic_load(&kept->wanted)) surplus = ring_get(&kept->ready);
    if (surplus.pages != NULL) give_back(stock, surplus);
}

void
kvp_pages_free(void *pages, size_t bytes)
{
    piece_t piece = {pages, bytes};
    kept_t *kept;

    if (pages == NULL) return;
    if (mine == NULL) {
        unmap_piece(piece);
        return;
    }
    kept = find_size(mine, bytes);
    if (kept != NULL) keep_less(mine, kept);
    give_back(mine, piece);
    sem_post(&mine->news);
}

/* ---- tables */
static bool
is_long(size_t n, size_t entry_bytes)
{
    return n >= TABLE_BYTES_LONG / entry_bytes;
}

void *
kvp_table_alloc(size_t n, size_t entry_bytes)
{
    return is_long(n, entry_bytes) ? kvp_pages_alloc(n * entry_bytes) : calloc(n, entry_bytes);
}

void
kvp_table_free(void *table, size_t n, size_t entry_bytes)
{
    if (is_long(n, entry_bytes))
        kvp_pages_free(table, n * entry_bytes);
    else
        free(table);
}

/* ---- starting and stopping a stock */
kvp_err_t
kvp_pages_stock_start(void)
{
    stock_t *stock = calloc(1, sizeof *stock);

    if (stock == NULL) return KVP_NOMEM;
    if (sem_init(&stock->news, 0, 0) != 0) kvp_panic("sem_init: %m"); /* sem_init cannot fail: 0 is a legal value */
    errno = pthread_create(&stock->thread, NULL, run_stock, stock);
    if (errno != 0) goto fail;
    mine = stock;
    return KVP_OK;
fail:
    kvp_log_error("pages", "no thread to touch memory ahead: %m");
    sem_destroy(&stock->news);
    free(stock);
    return KVP_SYS;
}

static void
drain_ring(ring_t *ring)
{
    for (piece_t piece; (piece = ring_get(ring)).pages != NULL;)
        unmap_piece(piece);
}

void
kvp_pages_stock_stop(void)
{
    stock_t *stock = mine;

    if (stock == NULL) return;
    mine = NULL;
    atomic_store(&stock->is_over, true);
    sem_post(&stock->news);
    pthread_join(stock->thread, NULL);
    for (uint32_t i = 0; i < SIZES_MAX; i++)
        drain_ring(&stock->kept[i].ready);
    drain_ring(&stock->freed);
    sem_destroy(&stock->news);
    free(stock);
}

void *
kvp_pages_stock(void)
{
    return mine;
}

void
kvp_pages_stock_use(void *stock)
{
    mine = stock;
}

void
kvp_pages_stats(kvp_pages_stats_t *stats_out)
{
    *stats_out = (kvp_pages_stats_t){0};
    if (mine == NULL) return;
    stats_out->ready = mine->ready;
    stats_out->missed = mine->missed;
    for (uint32_t i = 0; i < SIZES_MAX; i++)
        stats_out->kept_bytes += ring_count(&mine->kept[i].ready) * mine->kept[i].bytes;
}

/* Returns whether the range is mapped. msync reports gaps, and with MS_ASYNC it has had no other effect since
 * Linux 2.6.19. */
bool
kvp_is_mapped(const void *addr, size_t len)
{
    uintptr_t at = (uintptr_t)addr, start = at & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);

    return msync((void *)start, len + (at - start), MS_ASYNC) == 0 || errno != ENOMEM;
}
