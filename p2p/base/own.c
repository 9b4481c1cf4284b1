/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A cell, a word that peers map, contains the token of a range while the range is registered. The cell is cleared
 *   before the memory changes, so a peer that finds the token there after a copy knows that the copy was in time.
 * - A peer that has the file may store to the memory at any later time, because it may have been stopped in the middle
 *   of a copy. So unregistering separates the memory from the file (part_memory) instead of waiting for the peer. */
#include "p2p/base/own.h"

#include "transport/shm/mapping.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define NO_CELL UINT32_MAX
/* limit of the parts in which memory is separated from its file; each part may need a kernel mapping of its own */
#define PARTS 512u

struct kvp_p2p_own {
    kvp_list_t link;
    kvp_mem_t mem;
    bool is_in_turn; /* a thread registers, revokes or frees the piece; kvp_p2p_owns_t.lock guards fields to is_out */
    uint64_t token; /* token under which peers map the piece; valid if cell is not NO_CELL */
    uint32_t cell; /* index of the piece's cell; NO_CELL = the piece is hidden from peers */
    bool is_out; /* a peer has a file descriptor of the piece's memory */
    bool is_private; /* the piece is separated from its file, never published again; used only by the thread in turn */
    size_t remapped, parted; /* first `remapped` bytes are mapped privately, first `parted` bytes have left the file */
};

void
kvp_p2p_owns_init(kvp_p2p_owns_t *owns, kvp_tp_t *shm)
{
    *owns = (kvp_p2p_owns_t){.shm = shm, .words = {.fd = -1}};
    pthread_mutex_init(&owns->making, NULL);
    pthread_mutex_init(&owns->lock, NULL);
    pthread_cond_init(&owns->turn_over, NULL);
    kvp_list_init(&owns->list);
}

static _Atomic uint64_t *
cell_at(const kvp_p2p_owns_t *owns, uint32_t cell)
{
    return (_Atomic uint64_t *)owns->words.addr + cell;
}

/* Clears the cell of the memory: peers then see the memory as unregistered. The caller holds the lock. */
static void
hide_cell(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own)
{
    if (own->cell == NO_CELL) return;
    atomic_store(cell_at(owns, own->cell), 0);
    /* This fence orders the clearing of the cell before all later accesses to the memory. With the fence in
     * kvp_p2p_map_is_live, either the peer finds the cell empty, or this process sees the peer's stores. */
    atomic_thread_fence(memory_order_seq_cst);
    own->cell = NO_CELL;
}

void
kvp_p2p_owns_close(kvp_p2p_owns_t *owns)
{
    pthread_mutex_lock(&owns->lock);
    kvp_list_foreach (pos, &owns->list)
        hide_cell(owns, kvp_list_entry(pos, kvp_p2p_own_t, link));
    pthread_mutex_unlock(&owns->lock);
}

static void
punch_hole(const kvp_mem_t *mem, size_t off, size_t len)
{
    off_t bytes = (off_t)kvp_align_up(len, KVP_HUGE_BYTES); /* rounded up, else the file would keep its last page */

    if (fallocate(mem->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, bytes) != 0)
        kvp_log_warn("client", "cannot punch out memory that was taken back: %m");
}

static void
own_destroy(kvp_p2p_own_t *own)
{
    if (own->is_private) { /* kvp_memfile_drop would free the file's pages only through a shared mapping */
        punch_hole(&own->mem, 0, own->mem.len);
        munmap(own->mem.addr, own->mem.len);
        own->mem.addr = NULL;
    }
    kvp_memfile_drop(&own->mem);
    free(own);
}

static void
drop_words(kvp_p2p_owns_t *owns)
{
    if (owns->words_mr != NULL) kvp_mr_destroy(owns->words_mr);
    owns->words_mr = NULL;
    kvp_memfile_drop(&owns->words);
}

void
kvp_p2p_owns_fini(kvp_p2p_owns_t *owns)
{
    kvp_p2p_owns_close(owns);
    while (!kvp_list_is_empty(&owns->list)) {
        kvp_p2p_own_t *own = kvp_list_first(&owns->list, kvp_p2p_own_t, link);

        kvp_list_del(&own->link);
        own_destroy(own);
    }
    drop_words(owns);
    pthread_cond_destroy(&owns->turn_over);
    pthread_mutex_destroy(&owns->lock);
    pthread_mutex_destroy(&owns->making);
}

/* ---- allocation */
static kvp_err_t
log_failure(const char *what)
{
    kvp_err_t err = errno == ENOMEM || errno == EINVAL || errno == EFBIG ? KVP_NOMEM : KVP_SYS;

    kvp_log_warn("client", "cannot make %s that peers may map: %m", what);
    return err;
}

/* Creates the file of cells (owns->words), if it does not exist. The caller holds owns->making. */
static kvp_err_t
need_words(kvp_p2p_owns_t *owns)
{
    kvp_mem_t words = {.fd = -1};
    kvp_err_t err;

    if (owns->words_mr != NULL) return KVP_OK;
    if (!kvp_memfile_make("kvpool-peer-words", KVP_PEER_CELLS * sizeof(uint64_t), &words)) {
        err = log_failure("words");
        kvp_memfile_drop(&words);
        return err;
    }
    owns->words = words;
    err = kvp_mr_create(owns->shm, &words, &owns->words_mr);
    if (err != KVP_OK) drop_words(owns);
    return err;
}

/* Returns false if len is more than the machine's memory and swap. The kernel counts a file's memory only when it is
 * written, so this limit is checked first. */
static bool
can_hold(size_t len)
{
    struct sysinfo info;

    return sysinfo(&info) != 0 || len / info.mem_unit <= info.totalram + info.totalswap;
}

/* Uses huge pages if memory is plentiful. With small pages a copy takes a tenth longer, and a peer's first touch much
 * longer. */
static void
make_huge(const kvp_mem_t *mem)
{
    struct sysinfo info;
    bool is_hopeless;

    if (sysinfo(&info) != 0 || mem->len / info.mem_unit > info.freeram / 4) return;
    (void)kvp_make_huge(mem->addr, mem->len & ~(size_t)(KVP_HUGE_BYTES - 1), &is_hopeless);
}

kvp_err_t
kvp_p2p_owns_alloc(kvp_p2p_owns_t *owns, size_t len, kvp_p2p_own_t **own_out)
{
    kvp_p2p_own_t *own;
    kvp_err_t err;

    if (len == 0) return KVP_INVALID;
    if (!can_hold(len)) return KVP_NOMEM;
    own = calloc(1, sizeof *own);
    if (own == NULL) return KVP_NOMEM;
    own->cell = NO_CELL;
    own->mem.fd = -1;
    own->is_in_turn = true;
    pthread_mutex_lock(&owns->making);
    err = need_words(owns);
    pthread_mutex_unlock(&owns->making);
    if (err == KVP_OK && !kvp_memfile_make("kvpool-peer", len, &own->mem)) err = log_failure("memory");
    if (err == KVP_OK && fchmod(own->mem.fd, S_IRUSR | S_IWUSR) != 0) err = log_failure("memory");
    if (err != KVP_OK) {
        own_destroy(own);
        return err;
    }
    make_huge(&own->mem);
    pthread_mutex_lock(&owns->lock);
    kvp_list_add_tail(&owns->list, &own->link);
    pthread_mutex_unlock(&owns->lock);
    *own_out = own;
    return KVP_OK;
}

const kvp_mem_t *
kvp_p2p_own_mem(const kvp_p2p_own_t *own)
{
    return &own->mem;
}

/* ---- turns */

/* Returns the piece of memory that begins at addr, or NULL. The caller holds the lock. */
static kvp_p2p_own_t *
find_own(const kvp_p2p_owns_t *owns, const void *addr)
{
    kvp_list_foreach (pos, &owns->list) {
        kvp_p2p_own_t *own = kvp_list_entry(pos, kvp_p2p_own_t, link);

        if (own->mem.addr == addr) return own;
    }
    return NULL;
}

kvp_p2p_own_t *
kvp_p2p_owns_begin(kvp_p2p_owns_t *owns, const void *addr)
{
    kvp_p2p_own_t *own;

    pthread_mutex_lock(&owns->lock);
    while ((own = find_own(owns, addr)) != NULL && own->is_in_turn) /* search again: the piece may be freed */
        pthread_cond_wait(&owns->turn_over, &owns->lock);
    if (own != NULL) own->is_in_turn = true;
    pthread_mutex_unlock(&owns->lock);
    return own;
}

void
kvp_p2p_owns_end(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own)
{
    if (own == NULL) return;
    pthread_mutex_lock(&owns->lock);
    own->is_in_turn = false;
    pthread_cond_broadcast(&owns->turn_over);
    pthread_mutex_unlock(&owns->lock);
}

void
kvp_p2p_owns_free(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own)
{
    pthread_mutex_lock(&owns->lock);
    hide_cell(owns, own);
    kvp_list_del(&own->link);
    pthread_cond_broadcast(&owns->turn_over);
    pthread_mutex_unlock(&owns->lock);
    own_destroy(own);
}

/* ---- publishing to peers */

/* Returns the index of a free cell, or NO_CELL. The caller holds the lock. */
static uint32_t
free_cell(kvp_p2p_owns_t *owns)
{
    for (uint32_t i = 0; i < KVP_PEER_CELLS; i++) {
        uint32_t cell = (owns->next + i) % KVP_PEER_CELLS;

        if (atomic_load_explicit(cell_at(owns, cell), memory_order_relaxed) != 0) continue;
        owns->next = cell + 1;
        return cell;
    }
    return NO_CELL;
}

bool
kvp_p2p_owns_publish(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own, size_t len, uint64_t token)
{
    bool is_told = false;

    if (own == NULL || own->mem.len != len) return false;
    pthread_mutex_lock(&owns->lock);
    if (!own->is_private && own->cell == NO_CELL) {
        own->token = token;
        own->cell = free_cell(owns);
        is_told = own->cell != NO_CELL;
        if (is_told) atomic_store(cell_at(owns, own->cell), token);
    }
    pthread_mutex_unlock(&owns->lock);
    return is_told;
}

void
kvp_p2p_owns_hide(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own)
{
    if (own == NULL) return;
    pthread_mutex_lock(&owns->lock);
    hide_cell(owns, own);
    pthread_mutex_unlock(&owns->lock);
}

/* Duplicates the file descriptors of the memory and of the cells. The caller holds the lock. */
static kvp_err_t
duplicate_fds(const kvp_p2p_owns_t *owns, const kvp_p2p_own_t *own, int fds_out[2])
{
    kvp_token_t words;
    kvp_err_t err = owns->shm->ops->mr_export(owns->words_mr, KVP_ACCESS_READ, 0, &words);

    if (err != KVP_OK) return err;
    fds_out[1] = words.fd;
    fds_out[0] = fcntl(own->mem.fd, F_DUPFD_CLOEXEC, 3);
    if (fds_out[0] >= 0) return KVP_OK;
    close(words.fd);
    return KVP_SYS;
}

kvp_err_t
kvp_p2p_owns_share(kvp_p2p_owns_t *owns, uint64_t token, int fds_out[2], uint64_t *cell_out)
{
    kvp_err_t err = KVP_NOTSUP;

    pthread_mutex_lock(&owns->lock);
    kvp_list_foreach (pos, &owns->list) {
        kvp_p2p_own_t *own = kvp_list_entry(pos, kvp_p2p_own_t, link);

        if (own->cell == NO_CELL || own->token != token) continue;
        err = duplicate_fds(owns, own, fds_out);
        if (err == KVP_OK) {
            own->is_out = true;
            *cell_out = own->cell;
        }
        break;
    }
    pthread_mutex_unlock(&owns->lock);
    return err;
}

/* ---- separating memory from its file */

/* touch_pages makes every page of a private mapping the process's own, while other threads store to the pages: it
 * stores each byte's current value. */
static void
touch_pages(uint8_t *at, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    for (size_t off = 0; off < n; off += page) {
        _Atomic uint8_t *byte = (_Atomic uint8_t *)(at + off);
        uint8_t was = atomic_load(byte);

        while (!atomic_compare_exchange_strong(byte, &was, was))
            continue; /* if the exchange fails, a peer changed the byte meanwhile, and the page may still be shared */
    }
}

static bool
populate_pages(uint8_t *at, size_t n)
{
    if (madvise(at, n, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) return false;
    touch_pages(at, n); /* the kernel is older than Linux 5.14 */
    return true;
}

/* map_aside maps the rest of the file, from offset `from`, a second time: privately, at another address. Here the
 * kernel may refuse to promise the memory (vm.overcommit_memory 2, limits), and then the old mapping is unchanged. It
 * would be wrong to map over the old mapping at once: kernels before 6.12 have removed the old one by the time they
 * refuse. The new mapping becomes writable only after it was unlocked, because after mlockall its pages would be
 * copied at once. */
static uint8_t *
map_aside(const kvp_mem_t *mem, size_t from)
{
    size_t n = mem->len - from;
    void *aside = mmap(NULL, n, PROT_NONE, MAP_PRIVATE, mem->fd, (off_t)from);

    if (aside == MAP_FAILED) return NULL;
    if (munlock(aside, n) == 0 && madvise(aside, n, MADV_DONTFORK) == 0 &&
        mprotect(aside, n, PROT_READ | PROT_WRITE) == 0)
        return aside;
    int saved = errno;

    munmap(aside, n);
    errno = saved;
    return NULL;
}

/* part_memory makes the mapping private, one part at a time. Each page is copied under the kernel's own lock, so
 * concurrent stores of other threads are kept, and the file frees its page. After an error a later call continues at
 * the same place. Called in a turn. */
static kvp_err_t
part_memory(kvp_p2p_own_t *own)
{
    const kvp_mem_t *mem = &own->mem;
    size_t step = kvp_align_up(kvp_max_u64(KVP_HUGE_BYTES, mem->len / PARTS), KVP_HUGE_BYTES);
    size_t began = own->remapped;
    uint8_t *aside = began < mem->len ? map_aside(mem, began) : NULL;

    while (own->parted < mem->len) {
        size_t n = kvp_min_u64(step, mem->len - own->parted);
        uint8_t *at = (uint8_t *)mem->addr + own->parted;

        /* remap each part only once: a second mremap would replace the pages that were copied before */
        if (own->remapped == own->parted) {
            if (aside == NULL) break;
            if (mremap(aside + (own->parted - began), n, n, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) break;
            own->remapped += n;
        }
        if (!populate_pages(at, n)) break;
        punch_hole(mem, own->parted, n);
        own->parted += n;
    }
    if (own->parted == mem->len) return KVP_OK;
    kvp_log_error("client", "cannot take memory back that peers have mapped, free it: %m");
    if (aside != NULL && own->remapped < mem->len) munmap(aside + (own->remapped - began), mem->len - own->remapped);
    return KVP_NOMEM;
}

kvp_err_t
kvp_p2p_owns_revoke(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own)
{
    bool must_part;

    if (own == NULL) return KVP_OK;
    pthread_mutex_lock(&owns->lock);
    hide_cell(owns, own);
    must_part = own->is_out;
    own->is_private |= must_part;
    pthread_mutex_unlock(&owns->lock);
    return must_part ? part_memory(own) : KVP_OK;
}
