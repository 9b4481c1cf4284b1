/* SPDX-License-Identifier: Apache-2.0
 * The intrusive list: order, removal, removal while walking. */
#include "common/list.h"
#include "tests/cases.h"

typedef struct {
    int value;
    kvp_list_t link;
} item_t;

TEST(test_walk_follows_insertion)
{
    kvp_list_t head;
    item_t items[4] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
    kvp_list_init(&head);
    assert_true(kvp_list_is_empty(&head));
    kvp_list_add_tail(&head, &items[2].link);
    kvp_list_add_head(&head, &items[1].link);
    kvp_list_add_tail(&head, &items[3].link);
    kvp_list_add_head(&head, &items[0].link);
    int want = 0;
    kvp_list_foreach (pos, &head)
        assert_int_equal(kvp_list_entry(pos, item_t, link)->value, want++);
    assert_int_equal(want, 4);
    assert_ptr_equal(kvp_list_first(&head, item_t, link), &items[0]);
}

TEST(test_del_when_not_linked_does_nothing)
{
    kvp_list_t node;
    kvp_list_init(&node);
    kvp_list_del(&node);
    kvp_list_del(&node);
    assert_true(kvp_list_is_empty(&node));
}

TEST(test_del_while_walking)
{
    kvp_list_t head;
    item_t items[5];
    kvp_list_init(&head);
    for (int i = 0; i < 5; i++) {
        items[i].value = i;
        kvp_list_add_tail(&head, &items[i].link);
    }
    kvp_list_foreach_safe (pos, tmp, &head) {
        if (kvp_list_entry(pos, item_t, link)->value % 2 == 0) kvp_list_del(pos);
    }
    int sum = 0;
    kvp_list_foreach (pos, &head)
        sum += kvp_list_entry(pos, item_t, link)->value;
    assert_int_equal(sum, 1 + 3);
}

TEST_MAIN()
