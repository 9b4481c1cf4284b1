/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A cell holds the token of a range for as long as that is registered. It is cleared before anything is done with the memory, so
 *   whoever finds its token there after a copy knows that it was made in time.
 * - Memory that a peer has the file of may be stored to at any time from then on: the peer may have been stopped within a copy. So
 *   it is parted from the file (part), not waited for.
 */
#include "client/p2p/p2p_own.h"

#include "client/transport/mapping.h"
#include "client/transport/memfile.h"
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
#define PARTS 512u /* at most, of a range that is taken back: each may be a mapping of its own */

struct kvp_p2p_own {
    kvp_list_t link;
    kvp_mem_t mem;
    uint64_t token; /* while it has a cell */
    uint32_t cell; /* NO_CELL = peers are told nothing of it */
    bool is_out; /* a peer was given the file */
    bool is_private; /* it is taken back: never told of again; of that, */
    size_t remapped, parted; /* bytes that are mapped privately, and that have nothing to do with the file any more */
};

void
kvp_p2p_owns_init(kvp_p2p_owns_t *owns, kvp_tp_t *shm, kvp_forkguard_t *guard)
{
    *owns = (kvp_p2p_owns_t){.shm = shm, .guard = guard, .words = {.fd = -1}};
    pthread_mutex_init(&owns->change, NULL);
    pthread_mutex_init(&owns->lock, NULL);
    kvp_list_init(&owns->list);
}

static _Atomic uint64_t *
cell_at(const kvp_p2p_owns_t *owns, uint32_t cell)
{
    return (_Atomic uint64_t *)owns->words.addr + cell;
}

/* Caller holds the lock. */
static void
hide(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own)
{
    if (own->cell == NO_CELL) return;
    atomic_store(cell_at(owns, own->cell), 0);
    own->cell = NO_CELL;
}

void
kvp_p2p_owns_close(kvp_p2p_owns_t *owns)
{
    pthread_mutex_lock(&owns->lock);
    kvp_list_foreach (pos, &owns->list)
        hide(owns, kvp_list_entry(pos, kvp_p2p_own_t, link));
    pthread_mutex_unlock(&owns->lock);
}

static void
punch(const kvp_mem_t *mem, size_t off, size_t len)
{
    off_t bytes = (off_t)kvp_align_up(len, KVP_HUGE_BYTES); /* no page at the end stays */

    if (fallocate(mem->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, bytes) != 0)
        kvp_log_warn("client", "cannot punch out memory that was taken back: %m");
}

void
kvp_p2p_own_destroy(kvp_p2p_owns_t *owns, kvp_p2p_own_t *own)
{
    kvp_forkguard_del(owns->guard, own->mem.fd);
    if (own->is_private) { /* madvise reaches the file through a shared mapping alone */
        punch(&own->mem, 0, own->mem.len);
        munmap(own->mem.addr, own->mem.len);
        own->mem.addr = NULL;
    }
    kvp_memfile_drop(&own->mem);
    free(own);
}

static void
drop_words(kvp_p2p_owns_t *owns)
{
    kvp_token_t token;

    if (owns->words_mr != NULL) {
        kvp_ignore(owns->shm->ops->mr_export(owns->words_mr, KVP_ACCESS_READ, 0, &token), "shm always can");
        kvp_forkguard_del(owns->guard, token.fd);
        kvp_mr_destroy(owns->words_mr);
    }
    owns->words_mr = NULL;
    kvp_forkguard_del(owns->guard, owns->words.fd);
    kvp_memfile_drop(&owns->words);
}

void
kvp_p2p_owns_fini(kvp_p2p_owns_t *owns)
{
    kvp_p2p_owns_close(owns);
    while (!kvp_list_is_empty(&owns->list)) {
        kvp_p2p_own_t *own = kvp_list_first(&owns->list, kvp_p2p_own_t, link);

        kvp_list_del(&own->link);
        kvp_p2p_own_destroy(owns, own);
    }
    drop_words(owns);
    pthread_mutex_destroy(&owns->lock);
    pthread_mutex_destroy(&owns->change);
}

/* ---- making */
static kvp_err_t
failed(const char *what)
{
    kvp_err_t err = errno == ENOMEM || errno == EINVAL || errno == EFBIG ? KVP_NOMEM : KVP_SYS;

    kvp_log_warn("client", "cannot make %s that peers may map: %m", what);
    return err;
}

/* Caller holds the change lock. */
static kvp_err_t
need_words(kvp_p2p_owns_t *owns)
{
    kvp_mem_t words = {.fd = -1};
    kvp_token_t token;
    kvp_err_t err;

    if (owns->words_mr != NULL) return KVP_OK;
    if (!kvp_memfile_make("kvpool-peer-words", KVP_PEER_CELLS * sizeof(uint64_t), &words)) {
        err = failed("words");
        kvp_memfile_drop(&words);
        return err;
    }
    kvp_forkguard_add(owns->guard, words.fd);
    owns->words = words;
    err = kvp_mr_create(owns->shm, &words, &owns->words_mr);
    if (err != KVP_OK) {
        drop_words(owns);
        return err;
    }
    kvp_ignore(owns->shm->ops->mr_export(owns->words_mr, KVP_ACCESS_READ, 0, &token), "shm always can");
    kvp_forkguard_add(owns->guard, token.fd);
    return KVP_OK;
}

/* A file is not counted against what the machine can hold until it is written, so this is asked first: nobody means more than all. */
static bool
can_hold(size_t len)
{
    struct sysinfo info;

    return sysinfo(&info) != 0 || len / info.mem_unit <= info.totalram + info.totalswap;
}

/* Huge pages where there is plenty: without them copies take a tenth longer, and a peer's first touch much longer. */
static void
make_huge(const kvp_mem_t *mem)
{
    struct sysinfo info;
    bool is_hopeless;

    if (sysinfo(&info) != 0 || mem->len / info.mem_unit > info.freeram / 4) return;
    (void)kvp_make_huge(mem->addr, mem->len & ~(size_t)(KVP_HUGE_BYTES - 1), &is_hopeless);
}

kvp_err_t
kvp_p2p_owns_alloc(kvp_p2p_owns_t *owns, size_t len, void **addr_out)
{
    kvp_p2p_own_t *own;
    kvp_err_t err;

    if (len == 0) return KVP_INVALID;
    if (!can_hold(len)) return KVP_NOMEM;
    own = calloc(1, sizeof *own);
    if (own == NULL) return KVP_NOMEM;
    own->cell = NO_CELL;
    own->mem.fd = -1;
    pthread_mutex_lock(&owns->change);
    err = need_words(owns);
    pthread_mutex_unlock(&owns->change);
    if (err == KVP_OK && !kvp_memfile_make("kvpool-peer", len, &own->mem)) err = failed("memory");
    if (err == KVP_OK && fchmod(own->mem.fd, S_IRUSR | S_IWUSR) != 0) err = failed("memory");
    if (err != KVP_OK) {
        kvp_p2p_own_destroy(owns, own);
        return err;
    }
    kvp_forkguard_add(owns->guard, own->mem.fd);
    make_huge(&own->mem);
    *addr_out = own->mem.addr;
    pthread_mutex_lock(&owns->lock);
    kvp_list_add_tail(&owns->list, &own->link);
    pthread_mutex_unlock(&owns->lock);
    return KVP_OK;
}

/* ---- what peers are told. Callers hold the lock. */
static kvp_p2p_own_t *
find(const kvp_p2p_owns_t *owns, const void *addr)
{
    kvp_list_foreach (pos, &owns->list) {
        kvp_p2p_own_t *own = kvp_list_entry(pos, kvp_p2p_own_t, link);

        if (own->mem.addr == addr) return own;
    }
    return NULL;
}

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

void
kvp_p2p_owns_publish(kvp_p2p_owns_t *owns, const void *addr, size_t len, uint64_t token)
{
    kvp_p2p_own_t *own;

    pthread_mutex_lock(&owns->lock);
    own = find(owns, addr);
    if (own != NULL && own->mem.len == len && !own->is_private && own->cell == NO_CELL) {
        own->token = token;
        own->cell = free_cell(owns);
        if (own->cell != NO_CELL) atomic_store(cell_at(owns, own->cell), token);
    }
    pthread_mutex_unlock(&owns->lock);
}

static kvp_err_t
duplicate(const kvp_p2p_owns_t *owns, const kvp_p2p_own_t *own, int fds_out[2])
{
    kvp_token_t words;
    kvp_err_t err = owns->shm->ops->mr_export(owns->words_mr, KVP_ACCESS_READ, 0, &words);

    if (err != KVP_OK) return err;
    fds_out[0] = fcntl(own->mem.fd, F_DUPFD_CLOEXEC, 3);
    if (fds_out[0] < 0) return KVP_SYS;
    fds_out[1] = fcntl(words.fd, F_DUPFD_CLOEXEC, 3);
    if (fds_out[1] >= 0) return KVP_OK;
    close(fds_out[0]);
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
        err = duplicate(owns, own, fds_out);
        if (err == KVP_OK) {
            own->is_out = true;
            *cell_out = own->cell;
        }
        break;
    }
    pthread_mutex_unlock(&owns->lock);
    return err;
}

/* ---- taking back */

/* part makes the mapping private, a part at a time: each page is copied under the kernel's own lock, so that nothing is lost of what other
 * threads store there meanwhile, and the file gives its own up. After an error it goes on where it was. Caller holds the change lock. */
static kvp_err_t
part(kvp_p2p_own_t *own)
{
    const kvp_mem_t *mem = &own->mem;
    size_t step = kvp_align_up(kvp_max_u64(KVP_HUGE_BYTES, mem->len / PARTS), KVP_HUGE_BYTES);

    while (own->parted < mem->len) {
        size_t n = kvp_min_u64(step, mem->len - own->parted);
        uint8_t *at = (uint8_t *)mem->addr + own->parted;

        /* Once only: a second time would take away what was copied. */
        if (own->remapped == own->parted) {
            if (mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, mem->fd, (off_t)own->parted) == MAP_FAILED)
                break;
            own->remapped += n;
        }
        if (madvise(at, n, MADV_DONTFORK) != 0 || madvise(at, n, MADV_POPULATE_WRITE) != 0) break;
        punch(mem, own->parted, n);
        own->parted += n;
    }
    if (own->parted == mem->len) return KVP_OK;
    kvp_log_error("client", "cannot take memory back that peers have mapped, free it: %m");
    return KVP_NOMEM;
}

kvp_err_t
kvp_p2p_owns_revoke(kvp_p2p_owns_t *owns, const void *addr)
{
    kvp_err_t err = KVP_OK;
    bool must_part = false;
    kvp_p2p_own_t *own;

    pthread_mutex_lock(&owns->change);
    pthread_mutex_lock(&owns->lock);
    own = find(owns, addr);
    if (own != NULL) {
        hide(owns, own);
        must_part = own->is_out;
        own->is_private |= must_part;
    }
    pthread_mutex_unlock(&owns->lock);
    if (must_part) err = part(own); /* it goes nowhere: whoever frees it takes the change lock */
    pthread_mutex_unlock(&owns->change);
    return err;
}

kvp_p2p_own_t *
kvp_p2p_owns_take(kvp_p2p_owns_t *owns, const void *addr)
{
    kvp_p2p_own_t *own;

    pthread_mutex_lock(&owns->change);
    pthread_mutex_lock(&owns->lock);
    own = find(owns, addr);
    if (own != NULL) {
        hide(owns, own);
        kvp_list_del(&own->link);
    }
    pthread_mutex_unlock(&owns->lock);
    pthread_mutex_unlock(&owns->change);
    return own;
}
