/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A piece is memory that is registered as a unit. All pieces are in one array, sorted by address. Pieces of different
 *   loans may overlap where the loans' ends differ, but no piece crosses a border of the grid. max_end, the highest end
 *   up to a piece, shows where a backward search may stop.
 * - A piece is in the array from its first loan to its last loan, whatever its state; a look-up finds only pieces with
 *   is_ready. The read-write lock, which transfers take for reading, guards only the array; the mutex guards states and
 *   counts.
 * - If a piece cannot be registered, the waiting pieces right after it are not tried: they would be refused for the
 *   same reason, with one log line for each.
 * - Workers are threads that end when no piece is left to register, and before the cache is destroyed. */
#include "transport/rdma/base/mrcache.h"

#include "transport/rdma/verbs/select.h"

#include "common/list.h"
#include "common/log.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRID_BYTES (64ull << 20)
/* loans up to this size are registered by the calling thread, in some milliseconds; larger loans by workers */
#define AT_ONCE_BYTES (64ull << 20)
#define WORKERS_MAX 4u

typedef struct kvp_mrpiece {
    uintptr_t start;
    uintptr_t end;
    uintptr_t max_end; /* the highest end among this piece and all pieces before it in the array */
    kvp_devmem_t mem; /* the kind and device of the piece's memory; HOST: host memory */
    _Atomic bool is_ready;
    bool is_busy; /* a thread is registering the piece */
    bool has_failed;
    uint32_t loans;
    kvp_list_t link; /* link in `waiting`; empty = the piece's registration has begun, ended or was given up */
    kvp_rdma_reg_t *regs[KVP_RDMA_DEVS_MAX];
} piece_t;

struct kvp_mrcache {
    kvp_mrcache_t *next;
    const kvp_verbs_ops_t *verbs;
    uint32_t holds; /* the number of users of the cache; guarded by caches_lock */
    kvp_rdma_dev_t *devs[KVP_RDMA_DEVS_MAX];
    size_t devs_n;
    /* the size of a piece in the grid: a power of two, at most the largest registration of every device */
    uint64_t grid_bytes;

    pthread_mutex_t lock; /* guards states and counts; taken before array_lock */
    pthread_cond_t idle; /* signalled when a piece's registration has ended, or a worker has ended */
    kvp_list_t waiting; /* pieces to register; guarded by lock */
    uint32_t workers_n; /* the number of running workers; guarded by lock */

    pthread_rwlock_t array_lock;
    piece_t **array; /* the pieces sorted by address; changed only under both locks */
    size_t n;
    size_t cap;
};

struct kvp_loan {
    kvp_mrcache_t *cache;
    size_t n;
    piece_t *pieces[];
};

static pthread_mutex_t caches_lock = PTHREAD_MUTEX_INITIALIZER;
static kvp_mrcache_t *caches; /* the caches of all verbs stacks; guarded by caches_lock */

/* ---- one cache for each verbs stack */
static uint64_t
grid_of(const kvp_mrcache_t *c)
{
    uint64_t grid = GRID_BYTES;

    for (size_t i = 0; i < c->devs_n; i++)
        while (grid > 4096 && grid > c->devs[i]->info.max_reg_bytes)
            grid /= 2;
    return grid;
}

static kvp_err_t
cache_make(const kvp_verbs_ops_t *verbs, kvp_mrcache_t **cache_out)
{
    kvp_mrcache_t *c = calloc(1, sizeof *c);
    kvp_rdma_select_t selected;
    const char *why;
    kvp_err_t err;

    kvp_rdma_select_get(&selected);
    err = c == NULL ? KVP_NOMEM : verbs->devs_open(&selected, c->devs, KVP_RDMA_DEVS_MAX, &c->devs_n, &why);

    if (err != KVP_OK) {
        free(c);
        return err;
    }
    c->verbs = verbs;
    c->grid_bytes = grid_of(c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->idle, NULL);
    pthread_rwlock_init(&c->array_lock, NULL);
    kvp_list_init(&c->waiting);
    *cache_out = c;
    return KVP_OK;
}

static void
cache_destroy(kvp_mrcache_t *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->workers_n > 0) /* no piece is left to register, so the workers end soon */
        pthread_cond_wait(&c->idle, &c->lock);
    pthread_mutex_unlock(&c->lock);
    c->verbs->devs_close();
    pthread_rwlock_destroy(&c->array_lock);
    pthread_cond_destroy(&c->idle);
    pthread_mutex_destroy(&c->lock);
    free(c->array);
    free(c);
}

kvp_err_t
kvp_mrcache_hold(const kvp_verbs_ops_t *verbs, kvp_mrcache_t **cache_out)
{
    kvp_err_t err = KVP_OK;
    kvp_mrcache_t *c;

    pthread_mutex_lock(&caches_lock);
    for (c = caches; c != NULL && c->verbs != verbs; c = c->next)
        continue;
    if (c == NULL) {
        err = cache_make(verbs, &c);
        if (err == KVP_OK) {
            c->next = caches;
            caches = c;
        }
    }
    if (err == KVP_OK) {
        c->holds++;
        *cache_out = c;
    }
    pthread_mutex_unlock(&caches_lock);
    return err;
}

void
kvp_mrcache_rele(kvp_mrcache_t *cache)
{
    kvp_mrcache_t **at = &caches;

    pthread_mutex_lock(&caches_lock);
    if (--cache->holds == 0) {
        while (*at != cache)
            at = &(*at)->next;
        *at = cache->next;
        cache_destroy(cache);
    }
    pthread_mutex_unlock(&caches_lock);
}

/* ---- the array of pieces. It is changed with the mutex `lock` held. */
static bool
is_behind(const piece_t *p, uintptr_t start, uintptr_t end)
{
    return p->start != start ? p->start > start : p->end > end;
}

/* Returns the number of pieces that sort at or before the range [start, end). */
static size_t
upper_bound(const kvp_mrcache_t *c, uintptr_t start, uintptr_t end)
{
    size_t lo = 0, hi = c->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (is_behind(c->array[mid], start, end))
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static void
set_ends(kvp_mrcache_t *c, size_t from)
{
    for (size_t i = from; i < c->n; i++) {
        uintptr_t before = i == 0 ? 0 : c->array[i - 1]->max_end;

        c->array[i]->max_end = kvp_max_u64(before, c->array[i]->end);
    }
}

static kvp_err_t
insert_piece(kvp_mrcache_t *c, piece_t *p)
{
    size_t at = upper_bound(c, p->start, p->end);

    if (c->n == c->cap) {
        size_t cap = c->cap == 0 ? 16 : c->cap * 2;
        piece_t **more = realloc(c->array, cap * sizeof(piece_t *));

        if (more == NULL) return KVP_NOMEM;
        c->array = more;
        c->cap = cap;
    }
    memmove(c->array + at + 1, c->array + at, (c->n - at) * sizeof(piece_t *));
    c->array[at] = p;
    c->n++;
    set_ends(c, at);
    return KVP_OK;
}

static void
extract_piece(kvp_mrcache_t *c, const piece_t *p)
{
    size_t at = upper_bound(c, p->start, p->end) - 1;

    pthread_rwlock_wrlock(&c->array_lock);
    c->n--;
    memmove(c->array + at, c->array + at + 1, (c->n - at) * sizeof(piece_t *));
    set_ends(c, at);
    pthread_rwlock_unlock(&c->array_lock);
}

/* Counts a loan on the piece of exactly these bytes, and creates the piece if needed. NULL: no memory. */
static piece_t *
borrow_piece(kvp_mrcache_t *c, uintptr_t start, uintptr_t end, const kvp_devmem_t *mem)
{
    size_t at = upper_bound(c, start, end);
    piece_t *p = at > 0 ? c->array[at - 1] : NULL;
    kvp_err_t err;

    if (p == NULL || p->start != start || p->end != end) {
        p = calloc(1, sizeof *p);
        if (p == NULL) return NULL;
        p->start = start;
        p->end = end;
        p->mem = *mem;
        kvp_list_init(&p->link);
        pthread_rwlock_wrlock(&c->array_lock);
        err = insert_piece(c, p);
        pthread_rwlock_unlock(&c->array_lock);
        if (err != KVP_OK) {
            free(p);
            return NULL;
        }
        kvp_list_add_tail(&c->waiting, &p->link);
    }
    p->loans++;
    return p;
}

/* ---- registering */
static void
drop_regs(const kvp_mrcache_t *c, piece_t *p)
{
    for (size_t i = 0; i < c->devs_n; i++) {
        if (p->regs[i] != NULL) c->verbs->dereg(p->regs[i]);
        p->regs[i] = NULL;
    }
}

/* Registers a piece with every device. False: a device refused it, and no registration is left. */
static bool
register_with_all(const kvp_mrcache_t *c, piece_t *p, void *addr, size_t len, int dmabuf_fd)
{
    for (size_t i = 0; i < c->devs_n; i++) {
        kvp_err_t err = c->verbs->reg(c->devs[i], addr, len, KVP_RDMA_LOCAL, dmabuf_fd, &p->regs[i]);

        if (err == KVP_OK) continue;
        p->regs[i] = NULL;
        drop_regs(c, p);
        return false;
    }
    return true;
}

/* Registers a piece of device memory as a dma-buf. The registration reaches to page borders, but look-ups never return
 * the bytes outside of the piece. */
static bool
register_dmabuf(const kvp_mrcache_t *c, piece_t *p)
{
    kvp_dmabuf_t dmabuf;
    bool is_ok;

    if (p->mem.ops->export_dmabuf(&p->mem, (void *)p->start, p->end - p->start, &dmabuf) != KVP_OK) return false;
    is_ok = register_with_all(c, p, dmabuf.addr, dmabuf.len, dmabuf.fd);
    close(dmabuf.fd);
    return is_ok;
}

static bool
register_piece(const kvp_mrcache_t *c, piece_t *p)
{
    if (p->mem.kind == KVP_MEM_DEVICE) {
        if (register_dmabuf(c, p)) return true;
        if (!p->mem.has_peer) return false;
    }
    return register_with_all(c, p, (void *)p->start, p->end - p->start, -1);
}

static void
fail_neighbours(kvp_mrcache_t *c, const piece_t *p)
{
    uintptr_t end = p->end;

    kvp_list_foreach_safe (pos, next, &c->waiting) {
        piece_t *other = kvp_list_entry(pos, piece_t, link);

        if (other->start != end || other->mem.kind != p->mem.kind) continue;
        end = other->end;
        other->has_failed = true;
        kvp_list_del(&other->link);
    }
}

/* Registers the waiting pieces. Called and left with the mutex held, which is released during a registration. */
static void
register_waiting(kvp_mrcache_t *c)
{
    while (!kvp_list_is_empty(&c->waiting)) {
        piece_t *p = kvp_list_first(&c->waiting, piece_t, link);
        bool is_ok;

        kvp_list_del(&p->link);
        p->is_busy = true;
        pthread_mutex_unlock(&c->lock);
        is_ok = register_piece(c, p);
        pthread_mutex_lock(&c->lock);
        p->is_busy = false;
        p->has_failed = !is_ok;
        atomic_store_explicit(&p->is_ready, is_ok, memory_order_release);
        if (!is_ok) {
            fail_neighbours(c, p);
            kvp_log_info("rdma", "memory that is not registered is moved by copies%s address=%p",
                         p->mem.kind == KVP_MEM_DEVICE ? " of the device" : "", (void *)p->start);
        }
        pthread_cond_broadcast(&c->idle);
    }
}

static void *
run_worker(void *arg)
{
    kvp_mrcache_t *c = arg;

    pthread_mutex_lock(&c->lock);
    register_waiting(c);
    c->workers_n--;
    pthread_cond_broadcast(&c->idle);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void
see_to_waiting(kvp_mrcache_t *c, size_t len)
{
    pthread_mutex_lock(&c->lock);
    if (len > AT_ONCE_BYTES) {
        uint64_t pieces = len / c->grid_bytes + 1;

        while (c->workers_n < WORKERS_MAX && c->workers_n < pieces && kvp_detach(run_worker, c))
            c->workers_n++;
    }
    if (c->workers_n == 0) register_waiting(c);
    pthread_mutex_unlock(&c->lock);
}

/* ---- loans */
static void
return_piece(kvp_mrcache_t *c, piece_t *p)
{
    pthread_mutex_lock(&c->lock);
    while (p->is_busy && p->loans == 1)
        pthread_cond_wait(&c->idle, &c->lock);
    if (--p->loans > 0) {
        pthread_mutex_unlock(&c->lock);
        return;
    }
    kvp_list_del(&p->link);
    extract_piece(c, p);
    pthread_mutex_unlock(&c->lock);
    drop_regs(c, p);
    free(p);
}

void
kvp_mrcache_unlend(kvp_loan_t *loan)
{
    for (size_t i = 0; i < loan->n; i++)
        return_piece(loan->cache, loan->pieces[i]);
    kvp_mrcache_rele(loan->cache);
    free(loan);
}

static kvp_err_t
borrow_all(kvp_mrcache_t *c, uintptr_t start, uintptr_t end, const kvp_devmem_t *mem, kvp_loan_t *loan)
{
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&c->lock);
    while (start < end && err == KVP_OK) {
        uintptr_t line = (start / c->grid_bytes + 1) * c->grid_bytes;
        uintptr_t to = line == 0 ? end : kvp_min_u64(line, end);
        piece_t *p = borrow_piece(c, start, to, mem);

        if (p != NULL)
            loan->pieces[loan->n++] = p;
        else
            err = KVP_NOMEM;
        start = to;
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

/* Waits until the registration of every piece of the loan has ended. Returns whether all are registered, as memory of
 * the kind. */
static bool
wait_for_all(const kvp_loan_t *loan, kvp_mem_kind_t kind)
{
    kvp_mrcache_t *c = loan->cache;
    bool is_all = true;

    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < loan->n; i++) {
        const piece_t *p = loan->pieces[i];

        while (!p->has_failed && !p->is_ready)
            pthread_cond_wait(&c->idle, &c->lock);
        is_all &= p->is_ready && p->mem.kind == kind;
    }
    pthread_mutex_unlock(&c->lock);
    return is_all;
}

kvp_err_t
kvp_mrcache_lend(const kvp_verbs_ops_t *verbs, void *addr, size_t len, const kvp_devmem_t *device,
                 kvp_loan_t **loan_out)
{
    static const kvp_devmem_t host = {.kind = KVP_MEM_HOST};
    uintptr_t start = (uintptr_t)addr;
    kvp_mrcache_t *c;
    kvp_loan_t *loan;
    kvp_err_t err = kvp_mrcache_hold(verbs, &c);

    if (err != KVP_OK) return err;
    loan = calloc(1, sizeof *loan + (len / c->grid_bytes + 2) * sizeof(piece_t *));
    if (loan == NULL) {
        kvp_mrcache_rele(c);
        return KVP_NOMEM;
    }
    loan->cache = c;
    err = borrow_all(c, start, start + len, device == NULL ? &host : device, loan);
    if (err == KVP_OK) see_to_waiting(c, len);
    if (err == KVP_OK && device != NULL && !wait_for_all(loan, device->kind)) err = KVP_NOTSUP;
    if (err != KVP_OK) {
        kvp_mrcache_unlend(loan);
        return err;
    }
    *loan_out = loan;
    return KVP_OK;
}

/* ---- looking up */
size_t
kvp_mrcache_dev(const kvp_mrcache_t *cache, const kvp_rdma_dev_t *dev)
{
    size_t i = 0;

    while (i < cache->devs_n && cache->devs[i] != dev)
        i++;
    return i;
}

void
kvp_mrcache_begin(kvp_mrcache_t *cache, kvp_mrcursor_t *cursor)
{
    *cursor = (kvp_mrcursor_t){.cache = cache};
    pthread_rwlock_rdlock(&cache->array_lock);
}

static bool
covers_addr(const piece_t *p, uintptr_t addr)
{
    return p->start <= addr && addr < p->end && atomic_load_explicit(&p->is_ready, memory_order_acquire);
}

static const piece_t *
find_covering(const kvp_mrcache_t *c, uintptr_t addr)
{
    for (size_t at = upper_bound(c, addr, UINTPTR_MAX); at > 0 && c->array[at - 1]->max_end > addr; at--)
        if (covers_addr(c->array[at - 1], addr)) return c->array[at - 1];
    return NULL;
}

size_t
kvp_mrcache_find(kvp_mrcursor_t *cursor, size_t dev, const void *addr, size_t len, uint32_t *lkey_out)
{
    const kvp_mrcache_t *c = cursor->cache;
    uintptr_t at = (uintptr_t)addr;

    if (dev == c->devs_n) return 0;
    if (cursor->last == NULL || !covers_addr(cursor->last, at)) cursor->last = find_covering(c, at);
    if (cursor->last == NULL || cursor->last->regs[dev]->is_lost) return 0;
    *lkey_out = cursor->last->regs[dev]->lkey;
    return kvp_min_u64(len, cursor->last->end - at);
}

void
kvp_mrcache_end(kvp_mrcursor_t *cursor)
{
    pthread_rwlock_unlock(&cursor->cache->array_lock);
}

void
kvp_mrcache_count(kvp_mrcache_t *c, size_t *ready_out, size_t *waiting_out, size_t *failed_out)
{
    *ready_out = *waiting_out = *failed_out = 0;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n; i++) {
        if (atomic_load(&c->array[i]->is_ready))
            ++*ready_out;
        else if (c->array[i]->has_failed)
            ++*failed_out;
        else
            ++*waiting_out;
    }
    pthread_mutex_unlock(&c->lock);
}
