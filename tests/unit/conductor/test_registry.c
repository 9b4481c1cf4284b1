/* SPDX-License-Identifier: Apache-2.0
 * The registry where too many publishers are registered. Its count and the times are set from here. */
#include "conductor/events/registry_priv.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <stdio.h>
#include <string.h>

static kvp_err_t
add(kvp_registry_t *r, const char *instance)
{
    kvp_registration_t reg = {.block_size = 16};
    char why[160];

    strcpy(reg.endpoint, "tcp://127.0.0.1:1");
    strcpy(reg.model, "m");
    strcpy(reg.tenant, "default");
    snprintf(reg.instance, sizeof reg.instance, "%s", instance);
    return kvp_registry_add(r, &reg, why);
}

static kvp_publisher_t *
publisher(const kvp_registry_t *r, const char *instance)
{
    kvp_list_foreach (pos, &r->publishers) {
        kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);

        if (strcmp(p->reg.instance, instance) == 0) return p;
    }
    return NULL;
}

/* Fails if a full registry refuses a new publisher though one cannot be reached, or gives up one that may come back or
 * is not the longest away. */
TEST(test_a_lost_publisher_makes_room)
{
    const uint64_t now_ns = kvp_boot_ns();
    kvp_registry_t *r;
    uv_loop_t uv;

    assert_int_equal(uv_loop_init(&uv), 0);
    assert_int_equal(kvp_registry_create(&uv, 0, 1000, NULL, &r), KVP_OK);
    assert_int_equal(add(r, "live"), KVP_OK);
    assert_int_equal(add(r, "lost"), KVP_OK);
    assert_int_equal(add(r, "longer"), KVP_OK);
    r->n = KVP_PUBLISHERS_MAX;
    assert_int_equal(add(r, "new"), KVP_LIMIT);
    publisher(r, "lost")->lost_ns = now_ns - 30 * KVP_NS_PER_S;
    assert_int_equal(add(r, "new"), KVP_LIMIT);
    publisher(r, "lost")->lost_ns = now_ns - 61 * KVP_NS_PER_S;
    publisher(r, "longer")->lost_ns = now_ns - 62 * KVP_NS_PER_S;
    assert_int_equal(add(r, "new"), KVP_OK);
    assert_true(publisher(r, "longer") == NULL && publisher(r, "lost") != NULL && publisher(r, "new") != NULL);
    assert_int_equal(add(r, "newer"), KVP_OK);
    assert_true(publisher(r, "lost") == NULL && publisher(r, "live") != NULL);
    assert_int_equal(add(r, "newest"), KVP_LIMIT);
    assert_int_equal(add(r, "newer"), KVP_OK); /* it is there already */
    kvp_registry_stop(r);
    uv_run(&uv, UV_RUN_DEFAULT);
    kvp_registry_destroy(r);
    assert_int_equal(uv_loop_close(&uv), 0);
}

TEST_MAIN()
