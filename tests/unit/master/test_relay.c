/* SPDX-License-Identifier: Apache-2.0
 * Two threads that run one loop: a call that hangs stops no turns, and the loop comes back to the thread that made the
 * call. */
#include "master/shell/relay.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <semaphore.h>

typedef struct {
    kvp_relay_t relay;
    sem_t hangs; /* each call waits for it */
    uint32_t turns, calls, kept; /* calls after which the thread had the loop still */
    uint32_t others; /* turns of another thread than the one that began */
    atomic_uint returned; /* calls that have come back */
    pthread_t first;
} rig_t;

static void
hang(void *arg)
{
    rig_t *rig = arg;

    while (sem_wait(&rig->hangs) != 0)
        continue;
    atomic_fetch_add(&rig->returned, 1);
}

/* The first call returns at once. The second and the third hang until the loop has had ten turns in the other thread.
 */
static kvp_turn_t
run_turn(void *arg)
{
    rig_t *rig = arg;
    const uint32_t calls = rig->calls, begun = rig->turns++;

    rig->others += !pthread_equal(pthread_self(), rig->first);
    if (begun % 20 == 10) sem_post(&rig->hangs);
    if (calls > 0 && atomic_load(&rig->returned) < calls) {
        const struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
        return KVP_TURN_NEXT;
    }
    if (calls == 3) return KVP_TURN_OVER;
    rig->calls++;
    if (calls == 0) sem_post(&rig->hangs);
    rig->turns = 0;
    if (!kvp_relay_call(&rig->relay, hang, rig)) return KVP_TURN_LOST;
    rig->kept++;
    return KVP_TURN_NEXT;
}

TEST(test_loop_goes_on_in_the_other_thread_while_a_call_hangs)
{
    rig_t rig = {.first = pthread_self()};

    assert_int_equal(sem_init(&rig.hangs, 0, 0), 0);
    assert_int_equal(kvp_relay_run(&rig.relay, run_turn, &rig), KVP_OK);
    assert_int_equal(rig.calls, 3);
    assert_int_equal(rig.kept, 1);
    assert_int_equal(atomic_load(&rig.returned), 3);
    assert_true(rig.others >= 10); /* of the second call; those of the third are the first thread's again */
    sem_destroy(&rig.hangs);
}

TEST_MAIN()
