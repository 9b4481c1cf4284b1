/* SPDX-License-Identifier: Apache-2.0
 * See forkguard.h. Design notes. In a forked child, a lock of another thread may stay locked for ever, because the
 * thread does not exist in the child. So the file descriptors are in a bitmap without a lock, and the parent's fork
 * handlers hold the lock of the list of handles during the fork. */
#include "common/forkguard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#define WORD_BITS 64
/* default of fs.nr_open; file descriptors above this number are not tracked, so a child keeps them */
#define FDS_MAX (1 << 20)

/* a bit for each tracked file descriptor; a page of the array needs no memory before its first use */
static _Atomic uint64_t fds[FDS_MAX / WORD_BITS];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static kvp_list_t list = {&list, &list}; /* list of the guards of all open handles; guarded by list_lock */

static void
before_fork(void)
{
    pthread_mutex_lock(&list_lock);
}

static void
after_fork_in_parent(void)
{
    pthread_mutex_unlock(&list_lock);
}

static void
close_word(int first_fd, _Atomic uint64_t *word)
{
    uint64_t bits = atomic_exchange(word, 0);

    for (; bits != 0; bits &= bits - 1)
        close(first_fd + __builtin_ctzll(bits));
}

static void
after_fork_in_child(void)
{
    kvp_list_foreach_safe (pos, tmp, &list) {
        kvp_forkguard_t *guard = kvp_list_entry(pos, kvp_forkguard_t, link);

        atomic_store_explicit(&guard->is_forked, true, memory_order_relaxed);
        kvp_list_del(pos);
    }
    for (int i = 0; i < FDS_MAX / WORD_BITS; i++)
        if (fds[i] != 0) close_word(i * WORD_BITS, &fds[i]);
    pthread_mutex_unlock(&list_lock);
}

static void
install_handlers(void)
{
    /* pthread_atfork fails only for a lack of memory. The child then keeps the descriptors, as with any other
     * library. */
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void
kvp_forkguard_init(kvp_forkguard_t *guard)
{
    pthread_once(&once, install_handlers);
    guard->is_forked = false;
    pthread_mutex_lock(&list_lock);
    kvp_list_add_tail(&list, &guard->link);
    pthread_mutex_unlock(&list_lock);
}

void
kvp_forkguard_fini(kvp_forkguard_t *guard)
{
    pthread_mutex_lock(&list_lock);
    kvp_list_del(&guard->link);
    pthread_mutex_unlock(&list_lock);
}

void
kvp_forkguard_add(int fd)
{
    pthread_once(&once, install_handlers);
    if (fd >= 0 && fd < FDS_MAX) atomic_fetch_or(&fds[fd / WORD_BITS], 1ULL << fd % WORD_BITS);
}

void
kvp_forkguard_del(int fd)
{
    if (fd >= 0 && fd < FDS_MAX) atomic_fetch_and(&fds[fd / WORD_BITS], ~(1ULL << fd % WORD_BITS));
}

void
kvp_forkguard_close(int fd)
{
    if (fd < 0) return;
    kvp_forkguard_del(fd);
    close(fd);
}
