/* SPDX-License-Identifier: Apache-2.0
 * Two threads that run one loop in turn: see relay.h. The thread that changes call_ns from the start time of a call
 * to 0 runs the loop: the calling thread, or the watching one. */
#include "master/shell/relay.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/pages.h"
#include "common/waits.h"

#include <errno.h>
#include <string.h>

/* watch_loop waits until this thread must run the loop. Returns false if the loop has ended. */
static bool
watch_loop(kvp_relay_t *r)
{
    bool has_loop = false;

    pthread_mutex_lock(&r->lock);
    while (!r->is_over && !has_loop) {
        kvp_cond_wait_until(&r->over, &r->lock, kvp_now_ns() + KVP_RELAY_NS / 2);
        uint64_t began_ns = atomic_load(&r->call_ns);
        has_loop = began_ns != 0 && kvp_boot_ns() - began_ns >= KVP_RELAY_NS &&
                   atomic_compare_exchange_strong(&r->call_ns, &began_ns, 0);
    }
    pthread_mutex_unlock(&r->lock);
    return has_loop;
}

static void
run_turns(kvp_relay_t *r)
{
    kvp_turn_t turn = KVP_TURN_NEXT;

    while (turn != KVP_TURN_OVER) {
        turn = r->turn(r->arg);
        if (turn == KVP_TURN_LOST && !watch_loop(r)) return;
    }
    pthread_mutex_lock(&r->lock);
    r->is_over = true;
    pthread_cond_signal(&r->over);
    pthread_mutex_unlock(&r->lock);
}

static void *
run_second(void *arg)
{
    kvp_relay_t *r = arg;

    kvp_pages_stock_use(r->pages);
    if (watch_loop(r)) run_turns(r);
    return NULL;
}

/* Runs the loop in this thread and a second thread. The second thread also takes signals, because a thread in a
 * hanging call cannot. */
kvp_err_t
kvp_relay_run(kvp_relay_t *r, kvp_turn_t (*turn)(void *arg), void *arg)
{
    pthread_t second;

    *r = (kvp_relay_t){.turn = turn, .arg = arg, .pages = kvp_pages_stock()};
    pthread_mutex_init(&r->lock, NULL);
    kvp_cond_init(&r->over);
    errno = pthread_create(&second, NULL, run_second, r);
    if (errno != 0) {
        kvp_log_error("master", "cannot start a thread: %m");
        return KVP_SYS;
    }
    (void)pthread_setname_np(second, "kvp-relay");
    run_turns(r);
    pthread_join(second, NULL);
    return KVP_OK;
}

bool
kvp_relay_call(kvp_relay_t *r, void (*fn)(void *arg), void *arg)
{
    uint64_t began_ns = kvp_boot_ns();

    atomic_store(&r->call_ns, began_ns);
    fn(arg);
    return atomic_compare_exchange_strong(&r->call_ns, &began_ns, 0);
}
