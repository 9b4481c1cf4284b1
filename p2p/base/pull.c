/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - Pulls take turns, one slice each, in the threads of this file and in the owner's thread (kvp_p2p_pull_work).
 * - The pieces of a slice are chosen under the lock. The look-up of their ranges and the copy run without it. A
 *   failed piece is not continued; its slices in other threads end normally.
 * - If a thread cannot be started, fewer threads do the work. */
#include "p2p/base/pull.h"

#include "net/wake.h"
#include "common/clock.h"
#include "common/thread.h"

/* bytes that a thread copies at once (a slice): large compared with a system call, small compared with the work that
 * all threads share at the end of a pull */
#define SLICE_BYTES (256u << 10)
#define SLICE_PIECES 128u

typedef struct {
    kvp_peer_at_t at[SLICE_PIECES];
    uint64_t from[SLICE_PIECES];
    uint32_t piece[SLICE_PIECES]; /* index of the piece in the pull */
    uint32_t n;
    kvp_err_t err[SLICE_PIECES];
} slice_t;

/* ---- functions whose callers hold the pullers' lock */
static void
skip_failed(kvp_p2p_pull_t *pull)
{
    while (pull->at < pull->n && pull->moved[pull->at].err != KVP_OK) {
        pull->at++;
        pull->off = 0;
    }
}

static void
take_slice(kvp_p2p_pull_t *pull, slice_t *slice)
{
    uint64_t left = SLICE_BYTES;

    slice->n = 0;
    for (skip_failed(pull); pull->at < pull->n && left > 0 && slice->n < SLICE_PIECES; skip_failed(pull)) {
        const kvp_peer_piece_t *piece = &pull->pieces[pull->at];
        uint64_t n = kvp_min_u64(left, piece->len - pull->off);

        slice->at[slice->n] = (kvp_peer_at_t){.addr = piece->addr + pull->off, .len = n, .token = piece->token};
        slice->from[slice->n] = piece->from + pull->off;
        slice->err[slice->n] = KVP_OK;
        slice->piece[slice->n++] = pull->at;
        left -= n;
        pull->off += n;
        if (pull->off < piece->len) continue;
        pull->at++;
        pull->off = 0;
    }
}

static void
end_late(kvp_p2p_pull_t *pull)
{
    for (; pull->at < pull->n; pull->at++)
        if (pull->moved[pull->at].err == KVP_OK) pull->moved[pull->at].err = KVP_DEADLINE;
}

static void
put_errors(kvp_p2p_pull_t *pull, const slice_t *slice)
{
    for (uint32_t i = 0; i < slice->n; i++) {
        kvp_peer_moved_t *moved = &pull->moved[slice->piece[i]];

        if (moved->err == KVP_OK) moved->err = slice->err[i];
    }
    skip_failed(pull);
}

static kvp_p2p_pull_state_t
state_of(const kvp_p2p_pull_t *pull)
{
    if (pull->at < pull->n) return KVP_P2P_PULL_MORE;
    return pull->busy_n > 0 ? KVP_P2P_PULL_BUSY : KVP_P2P_PULL_OVER;
}

/* ---- copying, without the lock */
static void
copy_slice(kvp_p2p_ranges_t *ranges, const kvp_cma_proc_t *proc, slice_t *slice)
{
    struct iovec here[SLICE_PIECES], there[SLICE_PIECES];
    kvp_reg_t *held[SLICE_PIECES];
    uint32_t from[SLICE_PIECES]; /* index in the slice */
    uint32_t held_n = 0, n = 0;
    kvp_regs_cursor_t cursor;

    if (ranges != NULL) kvp_p2p_ranges_begin(ranges, &cursor);
    for (uint32_t i = 0; i < slice->n; i++) {
        const kvp_peer_at_t *at = &slice->at[i];
        bool is_new = false;
        kvp_reg_t *reg = ranges != NULL ? kvp_p2p_ranges_hold_next(ranges, &cursor, at, false, &is_new) : NULL;

        if (ranges != NULL && reg == NULL) {
            slice->err[i] = KVP_NOT_REGISTERED;
            continue;
        }
        if (is_new) held[held_n++] = reg;
        here[n] = (struct iovec){.iov_base = (void *)(uintptr_t)at->addr, .iov_len = (size_t)at->len};
        there[n] = (struct iovec){.iov_base = (void *)(uintptr_t)slice->from[i], .iov_len = (size_t)at->len};
        from[n++] = i;
    }
    if (ranges != NULL) kvp_p2p_ranges_end(ranges);
    for (uint32_t i = 0, done_n; i < n; i += done_n + 1) {
        kvp_err_t err = kvp_cma_readv(proc, there + i, here + i, n - i, &done_n);

        if (err == KVP_OK) break;
        if (done_n == n - i) done_n--; /* all pieces were copied, then the process ended: fail only the last piece */
        slice->err[from[i + done_n]] = err;
    }
    for (uint32_t i = 0; i < held_n; i++)
        kvp_p2p_ranges_rele(ranges, held[i]);
}

/* do_slice copies one slice of the pull. The caller holds the lock; do_slice releases the lock during the copy. */
static kvp_p2p_pull_state_t
do_slice(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull)
{
    slice_t slice;

    if (pull->at < pull->n && kvp_now_ns() >= pull->deadline_ns) end_late(pull);
    take_slice(pull, &slice);
    if (state_of(pull) != KVP_P2P_PULL_MORE) kvp_list_del(&pull->link);
    if (slice.n == 0) return state_of(pull);
    pull->busy_n++;
    pthread_mutex_unlock(&pullers->lock);
    copy_slice(pull->ranges, pull->proc, &slice);
    pthread_mutex_lock(&pullers->lock);
    pull->busy_n--;
    put_errors(pull, &slice);
    if (state_of(pull) != KVP_P2P_PULL_MORE) kvp_list_del(&pull->link); /* no slice is left to begin */
    return state_of(pull);
}

static void *
puller_main(void *arg)
{
    kvp_p2p_pullers_t *pullers = arg;

    pthread_mutex_lock(&pullers->lock);
    while (!pullers->is_stopping) {
        if (kvp_list_is_empty(&pullers->queue)) {
            pullers->idle_n++;
            pthread_cond_wait(&pullers->work, &pullers->lock);
            pullers->idle_n--;
            continue;
        }
        kvp_p2p_pull_t *pull = kvp_list_first(&pullers->queue, kvp_p2p_pull_t, link);

        kvp_list_del(&pull->link);
        kvp_list_add_tail(&pullers->queue, &pull->link);
        /* the owner may free the pull as soon as the pull is over and the lock is free */
        if (do_slice(pullers, pull) != KVP_P2P_PULL_OVER) continue;
        if (pull->wake_fd >= 0)
            kvp_wake(pull->wake_fd);
        else
            pthread_cond_broadcast(&pullers->over);
    }
    pthread_mutex_unlock(&pullers->lock);
    return NULL;
}

/* ---- the interface: for the endpoint (pullers), and for the owner of a pull */
void
kvp_p2p_pullers_init(kvp_p2p_pullers_t *pullers)
{
    *pullers = (kvp_p2p_pullers_t){.threads_max = kvp_usable_cpus() / 2};
    if (pullers->threads_max == 0) pullers->threads_max = 1;
    if (pullers->threads_max > KVP_P2P_PULLERS_MAX) pullers->threads_max = KVP_P2P_PULLERS_MAX;
    pthread_mutex_init(&pullers->lock, NULL);
    pthread_cond_init(&pullers->work, NULL);
    pthread_cond_init(&pullers->over, NULL);
    kvp_list_init(&pullers->queue);
}

void
kvp_p2p_pullers_stop(kvp_p2p_pullers_t *pullers)
{
    pthread_mutex_lock(&pullers->lock);
    pullers->is_stopping = true;
    pthread_cond_broadcast(&pullers->work);
    pthread_mutex_unlock(&pullers->lock);
    for (uint32_t i = 0; i < pullers->threads_n; i++)
        pthread_join(pullers->threads[i], NULL);
    pullers->threads_n = 0;
}

void
kvp_p2p_pullers_fini(kvp_p2p_pullers_t *pullers)
{
    kvp_p2p_pullers_stop(pullers);
    pthread_cond_destroy(&pullers->work);
    pthread_cond_destroy(&pullers->over);
    pthread_mutex_destroy(&pullers->lock);
}

/* Wakes or starts one thread for each slice of a new pull after the owner's first: first sleeping threads, then new. */
static void
call_threads(kvp_p2p_pullers_t *pullers, uint64_t slices_n)
{
    uint32_t idle_n = pullers->idle_n;

    for (uint64_t i = 1; i < slices_n && idle_n > 0; i++, idle_n--)
        pthread_cond_signal(&pullers->work);
    for (uint64_t i = 1 + pullers->idle_n; i < slices_n && pullers->threads_n < pullers->threads_max; i++) {
        if (kvp_thread_start(&pullers->threads[pullers->threads_n], "kvpool-pull", puller_main, pullers) != KVP_OK)
            pullers->threads_max = pullers->threads_n; /* the failure is logged once */
        else
            pullers->threads_n++;
    }
}

void
kvp_p2p_pull_begin(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull)
{
    uint64_t enough = (uint64_t)SLICE_BYTES * (KVP_P2P_PULLERS_MAX + 1), bytes = 0;

    kvp_list_init(&pull->link);
    for (uint32_t i = 0; i < pull->n && bytes < enough; i++)
        bytes += kvp_min_u64(pull->pieces[i].len, enough);
    pthread_mutex_lock(&pullers->lock);
    kvp_list_add_tail(&pullers->queue, &pull->link);
    call_threads(pullers, (bytes + SLICE_BYTES - 1) / SLICE_BYTES);
    pthread_mutex_unlock(&pullers->lock);
}

kvp_p2p_pull_state_t
kvp_p2p_pull_work(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull)
{
    kvp_p2p_pull_state_t state;

    pthread_mutex_lock(&pullers->lock);
    state = do_slice(pullers, pull);
    pthread_mutex_unlock(&pullers->lock);
    return state;
}

bool
kvp_p2p_pull_drop(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull)
{
    bool is_over;

    pthread_mutex_lock(&pullers->lock);
    if (pull->at < pull->n) kvp_list_del(&pull->link);
    pull->at = pull->n;
    is_over = pull->busy_n == 0;
    pthread_mutex_unlock(&pullers->lock);
    return is_over;
}

void
kvp_p2p_pull_wait(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull)
{
    pthread_mutex_lock(&pullers->lock);
    while (pull->busy_n > 0)
        pthread_cond_wait(&pullers->over, &pullers->lock);
    pthread_mutex_unlock(&pullers->lock);
}
