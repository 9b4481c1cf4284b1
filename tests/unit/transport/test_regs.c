/* SPDX-License-Identifier: Apache-2.0
 * Registered ranges: what may overlap, what lies inside, and that unregistering waits for users. */
#include "transport/regs.h"
#include "tests/cases.h"

#include <stdatomic.h>
#include <stdlib.h>

#define AT(n) ((void *)(uintptr_t)(n))

static kvp_reg_t *
hold(kvp_regs_t *regs, const void *addr, size_t len)
{
    kvp_regs_cursor_t cursor;
    kvp_reg_t *reg;
    bool is_new;

    kvp_regs_begin(regs, &cursor);
    reg = kvp_regs_hold(&cursor, addr, len, &is_new);
    kvp_regs_end(regs);
    assert_int_equal(is_new, reg != NULL);
    return reg;
}

static bool
is_inside(kvp_regs_t *regs, const void *addr, size_t len)
{
    kvp_reg_t *reg = hold(regs, addr, len);

    if (reg != NULL) kvp_regs_rele(regs, reg);
    return reg != NULL;
}

TEST(test_add_refuses_bad_and_overlapping_ranges)
{
    kvp_regs_t regs;

    kvp_regs_init(&regs, NULL, 0);
    assert_int_equal(kvp_regs_add(&regs, NULL, 10, NULL), KVP_INVALID);
    assert_int_equal(kvp_regs_add(&regs, AT(1000), 0, NULL), KVP_INVALID);
    assert_int_equal(kvp_regs_add(&regs, AT(UINTPTR_MAX - 5), 10, NULL), KVP_INVALID);
    assert_int_equal(kvp_regs_add(&regs, AT(1000), 100, NULL), KVP_OK);
    assert_int_equal(kvp_regs_add(&regs, AT(1000), 100, NULL), KVP_INVALID);
    assert_int_equal(kvp_regs_add(&regs, AT(1099), 1, NULL), KVP_INVALID);
    assert_int_equal(kvp_regs_add(&regs, AT(900), 101, NULL), KVP_INVALID);
    assert_int_equal(kvp_regs_add(&regs, AT(900), 1000, NULL), KVP_INVALID);
    assert_int_equal(kvp_regs_add(&regs, AT(1100), 100, NULL), KVP_OK); /* side by side */
    assert_int_equal(kvp_regs_add(&regs, AT(900), 100, NULL), KVP_OK);
    kvp_regs_fini(&regs);
}

TEST(test_hold_wants_one_whole_range)
{
    kvp_regs_t regs;

    kvp_regs_init(&regs, NULL, 0);
    assert_false(is_inside(&regs, AT(1000), 1));
    assert_int_equal(kvp_regs_add(&regs, AT(1000), 100, NULL), KVP_OK);
    assert_int_equal(kvp_regs_add(&regs, AT(1100), 100, NULL), KVP_OK);
    assert_true(is_inside(&regs, AT(1000), 100));
    assert_true(is_inside(&regs, AT(1199), 1));
    assert_false(is_inside(&regs, AT(999), 1));
    assert_false(is_inside(&regs, AT(999), 10));
    assert_false(is_inside(&regs, AT(1050), 100)); /* over both */
    assert_false(is_inside(&regs, AT(1200), 1));
    assert_false(is_inside(&regs, AT(1050), SIZE_MAX));
    kvp_regs_fini(&regs);
}

TEST(test_cursor_holds_a_range_once_in_a_row)
{
    kvp_regs_t regs;
    kvp_regs_cursor_t cursor;
    kvp_reg_t *reg;
    bool is_new;

    kvp_regs_init(&regs, NULL, 0);
    assert_int_equal(kvp_regs_add(&regs, AT(1000), 100, NULL), KVP_OK);
    kvp_regs_begin(&regs, &cursor);
    reg = kvp_regs_hold(&cursor, AT(1000), 10, &is_new);
    assert_true(is_new);
    assert_ptr_equal(kvp_regs_hold(&cursor, AT(1050), 10, &is_new), reg);
    assert_false(is_new);
    assert_null(kvp_regs_hold(&cursor, AT(2000), 10, &is_new));
    assert_ptr_equal(kvp_regs_hold(&cursor, AT(1010), 10, &is_new), reg);
    assert_false(is_new);
    kvp_regs_end(&regs);
    kvp_regs_rele(&regs, reg);
    assert_int_equal(kvp_regs_del(&regs, AT(1000)), KVP_OK);
    kvp_regs_fini(&regs);
}

TEST(test_del_takes_starts_only)
{
    kvp_regs_t regs;

    kvp_regs_init(&regs, NULL, 0);
    assert_int_equal(kvp_regs_del(&regs, AT(1000)), KVP_NOT_REGISTERED);
    for (uintptr_t i = 1; i <= 100; i++)
        assert_int_equal(kvp_regs_add(&regs, AT(i * 7919 % 101 * 1000), 1000, NULL), KVP_OK);
    assert_int_equal(kvp_regs_del(&regs, AT(1001)), KVP_NOT_REGISTERED);
    for (uintptr_t i = 1; i <= 100; i++) {
        assert_true(is_inside(&regs, AT(i * 1000), 1000));
        assert_int_equal(kvp_regs_del(&regs, AT(i * 1000)), KVP_OK);
        assert_false(is_inside(&regs, AT(i * 1000), 1));
    }
    kvp_regs_fini(&regs);
}

typedef struct {
    kvp_regs_t *regs;
    _Atomic bool is_over;
} deleter_t;

static void *
delete_it(void *arg)
{
    deleter_t *d = arg;

    assert_int_equal(kvp_regs_del(d->regs, AT(1000)), KVP_OK);
    d->is_over = true;
    return NULL;
}

TEST(test_del_waits_for_users)
{
    kvp_regs_t regs;
    deleter_t d = {.regs = &regs};
    const kvp_devmem_t device = {.kind = KVP_MEM_DEVICE};
    kvp_reg_t *one, *two;
    pthread_t thread;

    kvp_regs_init(&regs, NULL, 0);
    assert_int_equal(kvp_regs_add(&regs, AT(1000), 100, &device), KVP_OK);
    one = hold(&regs, AT(1000), 1);
    two = hold(&regs, AT(1001), 1);
    assert_int_equal(pthread_create(&thread, NULL, delete_it, &d), 0);
    while (is_inside(&regs, AT(1000), 1)) /* until it cannot be held anew */
        sched_yield();
    assert_false(d.is_over);
    assert_ptr_equal(kvp_regs_find_mem(&regs, AT(1050)), kvp_reg_mem(one)); /* users go on with what it is */
    assert_int_equal(kvp_regs_del(&regs, AT(1000)), KVP_NOT_REGISTERED);
    kvp_regs_rele(&regs, one);
    assert_false(d.is_over);
    kvp_regs_rele(&regs, two);
    pthread_join(thread, NULL);
    assert_true(d.is_over);
    assert_null(kvp_regs_find_mem(&regs, AT(1050)));
    assert_false(kvp_regs_have_devices(&regs));
    kvp_regs_fini(&regs);
}

#define THREADS 4
#define ROUNDS 2000

static void *
use_and_move(void *arg)
{
    kvp_regs_t *regs = arg;
    static _Atomic uintptr_t next = 1;
    uintptr_t mine = atomic_fetch_add(&next, 1) * 100000;

    for (int i = 0; i < ROUNDS; i++) {
        kvp_reg_t *reg;

        assert_int_equal(kvp_regs_add(regs, AT(mine), 1000, NULL), KVP_OK);
        reg = hold(regs, AT(mine + 10), 100);
        assert_non_null(reg);
        kvp_regs_rele(regs, reg);
        for (uintptr_t other = 1; other <= THREADS; other++)
            (void)is_inside(regs, AT(other * 100000 + 5), 5);
        assert_int_equal(kvp_regs_del(regs, AT(mine)), KVP_OK);
    }
    return NULL;
}

TEST(test_many_threads_register_and_use)
{
    kvp_regs_t regs;
    pthread_t threads[THREADS];

    kvp_regs_init(&regs, NULL, 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_and_move, &regs), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    kvp_regs_fini(&regs);
}

TEST_MAIN()
