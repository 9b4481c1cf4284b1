/* SPDX-License-Identifier: Apache-2.0
 * How users name RDMA devices and GIDs: what is taken, and what is said about the rest. */
#include "transport/all/registry.h"
#include "transport/rdma/verbs/select.h"

#include "transport/transport.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

TEST(test_devices_with_and_without_a_port)
{
    kvp_rdma_select_t selected;
    char why[256] = "";

    assert_int_equal(kvp_rdma_select_parse("mlx5_0,mlx5_1:2,mlx5_1:3", "3", &selected, why, sizeof why), KVP_OK);
    assert_int_equal(selected.picks_n, 3);
    assert_int_equal(selected.gid_index, 3);
    assert_true(kvp_rdma_select_takes(&selected, "mlx5_0", 1));
    assert_true(kvp_rdma_select_takes(&selected, "mlx5_0", 2));
    assert_false(kvp_rdma_select_takes(&selected, "mlx5_1", 1));
    assert_true(kvp_rdma_select_takes(&selected, "mlx5_1", 2));
    assert_true(kvp_rdma_select_takes(&selected, "mlx5_1", 3));
    assert_false(kvp_rdma_select_takes(&selected, "mlx5_10", 2));
    assert_false(kvp_rdma_select_is_any(&selected));
}

TEST(test_no_wish_takes_every_device)
{
    const char *const none[] = {NULL, ""};
    char why[256];

    for (size_t i = 0; i < KVP_ARRAY_LEN(none); i++) {
        kvp_rdma_select_t selected;

        assert_int_equal(kvp_rdma_select_parse(none[i], none[i], &selected, why, sizeof why), KVP_OK);
        assert_true(kvp_rdma_select_is_any(&selected));
        assert_true(kvp_rdma_select_takes(&selected, "anything", 7));
    }
}

TEST(test_what_is_no_device_is_said)
{
    static const struct {
        const char *devices, *gid_index, *says;
    } bad[] = {
        {"mlx5_0:0", NULL, "NAME[:PORT]"},
        {"mlx5_0:256", NULL, "NAME[:PORT]"},
        {"mlx5_0:x", NULL, "NAME[:PORT]"},
        {":1", NULL, "NAME[:PORT]"},
        {"a,,b", NULL, "NAME[:PORT]"},
        {"a,", NULL, "NAME[:PORT]"},
        {",", NULL, "NAME[:PORT]"},
        {NULL, "-1", "no GID index"},
        {NULL, "65536", "no GID index"},
        {NULL, "one", "no GID index"},
        {NULL, "99999", "from 0 to 65535"},
        {"rxe0,rxe0", NULL, "\"rxe0\" is named twice"},
        {"rxe0:1,rxe1,rxe0", NULL, "\"rxe0\" is named twice"},
        {"rxe0,rxe0:1", NULL, "\"rxe0:1\" is named twice"},
        {"a234567890123456789012345678901234567890123456789012345678901234", NULL, "NAME[:PORT]"},
        {"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", NULL, "more than 16"},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        kvp_rdma_select_t selected;
        char why[256] = "";

        if (kvp_rdma_select_parse(bad[i].devices, bad[i].gid_index, &selected, why, sizeof why) != KVP_INVALID)
            fail_msg("case %zu was taken", i);
        if (strstr(why, bad[i].says) == NULL) fail_msg("case %zu: %s", i, why);
    }
}

/* A device that was named is not left out silently, as rdma is where nobody asked for it. */
TEST(test_list_of_all_fails_where_a_named_device_is_missing)
{
    const kvp_transport_ops_t *list[4];
    char why[512] = "";
    size_t n = 0;

    assert_int_equal(kvp_rdma_select("no_such_device", NULL, why, sizeof why), KVP_OK);
    assert_int_equal(kvp_transports_default(list, KVP_ARRAY_LEN(list), &n, why, sizeof why), KVP_NOTSUP);
    assert_non_null(strstr(why, "rdma cannot be used here: "));
    assert_int_equal(n, 0);
}

TEST(test_lists_of_transports)
{
    static const struct {
        const char *text;
        kvp_err_t err;
        const char *says;
    } bad[] = {
        {"", KVP_INVALID, "there is no transport \"\", but shm, rdma and tcp"},
        {"shm,pigeon", KVP_INVALID, "\"pigeon\""},
        {"shm,", KVP_INVALID, "\"\""},
        {",tcp", KVP_INVALID, "\"\""},
        {"tcp,shm,tcp", KVP_INVALID, "tcp is named twice"},
    };
    const kvp_transport_ops_t *list[4];
    char why[512];
    size_t n = 0;

    assert_int_equal(kvp_transports_parse("tcp,shm", list, KVP_ARRAY_LEN(list), &n, why, sizeof why), KVP_OK);
    assert_int_equal(n, 2);
    assert_string_equal(list[0]->name, "tcp");
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        assert_int_equal(kvp_transports_parse(bad[i].text, list, KVP_ARRAY_LEN(list), &n, why, sizeof why), bad[i].err);
        if (strstr(why, bad[i].says) == NULL) fail_msg("%s: %s", bad[i].text, why);
    }
}

TEST_MAIN()
