/* SPDX-License-Identifier: Apache-2.0
 * What the C API says to arguments that cannot be right, to closed handles and in forked children. */
#include "tests/unit/client/fakehandle.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TEST_WITH(test_open_refuses_bad_configurations, setup, teardown)
{
    kvpool_t *other = (kvpool_t *)1;
    char long_name[200];
    enum { SIZE = sizeof(kvpool_conf_t) };
    kvpool_conf_t bad[] = {
        {.struct_size = 0, .master = master_at},
        {.struct_size = SIZE + 8, .master = master_at},
        {.struct_size = SIZE, .master = "nonsense"},
        {.struct_size = SIZE, .master = "127.0.0.1:1,,"},
        {.struct_size = SIZE, .master = master_at, .transports = "shm,carrier-pigeon"},
        {.struct_size = SIZE, .master = master_at, .verify = KVPOOL_VERIFY_ADAPTERS + 1},
        {.struct_size = SIZE, .master = master_at, .name = long_name},
        {.struct_size = SIZE, .master = master_at, .host_id = long_name},
    };

    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        char detail[160] = "as before";

        bad[i].detail = detail;
        bad[i].detail_cap = sizeof detail;
        assert_int_equal(kvpool_open(&bad[i], &other), KVPOOL_INVALID);
        assert_ptr_equal(other, (kvpool_t *)1);
        if (bad[i].struct_size != SIZE) /* whose size is not known has no place for it */
            assert_string_equal(detail, "as before");
        else
            assert_true(strlen(detail) > 10 && strcmp(detail, "as before") != 0);
    }
    assert_int_equal(kvpool_open(NULL, NULL), KVPOOL_INVALID);
}

TEST_WITH(test_open_without_master_is_unreachable, setup, teardown)
{
    kvpool_conf_t conf = conf_of(5000);
    kvpool_t *other;

    char detail[160] = "";

    conf.master = "127.0.0.1:1";
    conf.deadline_ms = 100;
    conf.detail = detail;
    conf.detail_cap = sizeof detail;
    assert_int_equal(kvpool_open(&conf, &other), KVPOOL_UNREACHABLE);
    assert_non_null(strstr(detail, "127.0.0.1:1"));
}

TEST_WITH(test_open_of_other_version_is_refused_at_once, setup, teardown)
{
    kvpool_conf_t conf = conf_of(5000);
    kvpool_t *other;

    master.hello_err = KVPOOL_VERSION;
    assert_int_equal(kvpool_open(&conf, &other), KVPOOL_VERSION);
}

/* Every call on a handle that cannot be used says the same. */
static bool
do_all_say(kvpool_t *handle, int want)
{
    kvpool_lookup_t lookup = {.ticket = 1};
    kvpool_key_t key = {"k", 1};
    char buf[8];
    size_t len;
    int yes;
    const int said[] = {
        kvpool_close(handle),
        kvpool_register(handle, buf, sizeof buf),
        kvpool_unregister(handle, buf),
        kvpool_put(handle, "k", 1, "v", 1, NULL),
        kvpool_get(handle, "k", 1, buf, sizeof buf, &len, NULL),
        kvpool_exists(handle, "k", 1, &yes, NULL),
        kvpool_batch_is_exist(handle, &key, 1, NULL, &yes),
        kvpool_batch_remove(handle, &key, 1, NULL, &yes),
        kvpool_batch_put(handle, NULL, 0, NULL, NULL),
        kvpool_stat(handle, buf, sizeof buf, &len, NULL),
        kvpool_unmount_ssd(handle, NULL),
        kvpool_lookup_release(handle, &lookup),
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(said); i++)
        if (said[i] != want) {
            print_error("call %zu: %s\n", i, kvpool_errname(said[i]));
            return false;
        }
    return true;
}

/* Fails if an SSD is taken without memory or a name, or nobody is told why not. */
TEST_WITH(test_ssd_of_no_node_is_refused, setup, teardown)
{
    const char *device = "/nonexistent:64MiB";
    char detail[128];
    kvpool_conf_t conf = conf_of(5000);
    kvpool_t *other;

    conf.ssd = &device;
    conf.ssd_n = 1;
    conf.detail = detail;
    conf.detail_cap = sizeof detail;
    conf.name = "node";
    assert_int_equal(kvpool_open(&conf, &other), KVPOOL_INVALID);
    assert_non_null(strstr(detail, "memory"));
    conf.memory_bytes = 1u << 20;
    conf.name = NULL;
    assert_int_equal(kvpool_open(&conf, &other), KVPOOL_INVALID);
    assert_non_null(strstr(detail, "name"));
    assert_int_equal(kvpool_unmount_ssd(pool, NULL), KVPOOL_OK); /* of a handle that has none */
}

TEST_WITH(test_null_handle_is_invalid, setup, teardown)
{
    kvpool_free(NULL);
    assert_true(do_all_say(NULL, KVPOOL_INVALID));
}

TEST_WITH(test_bad_keys, setup, teardown)
{
    static char key[KVPOOL_KEY_MAX + 1];
    char buf[8];
    size_t len;
    int yes;
    const struct {
        const void *data;
        size_t len;
    } bad[] = {{NULL, 3}, {"k", 0}, {key, sizeof key}};

    for (size_t i = 0; i < 3; i++) {
        kvpool_key_t one = {bad[i].data, bad[i].len};
        kvpool_lookup_t lookup;

        assert_int_equal(kvpool_put(pool, one.data, one.len, "v", 1, NULL), KVPOOL_BAD_KEY);
        assert_int_equal(kvpool_get(pool, one.data, one.len, buf, sizeof buf, &len, NULL), KVPOOL_BAD_KEY);
        assert_int_equal(kvpool_exists(pool, one.data, one.len, &yes, NULL), KVPOOL_BAD_KEY);
        assert_int_equal(kvpool_size(pool, one.data, one.len, &len, NULL), KVPOOL_BAD_KEY);
        assert_int_equal(kvpool_remove(pool, one.data, one.len, NULL), KVPOOL_BAD_KEY);
        assert_int_equal(kvpool_lookup(pool, &one, 1, 0, NULL, NULL, &lookup), KVPOOL_BAD_KEY);
        assert_int_equal(kvpool_batch_is_exist(pool, &one, 1, NULL, &yes), KVPOOL_OK);
        assert_int_equal(yes, KVPOOL_BAD_KEY);
        yes = 0;
        assert_int_equal(kvpool_batch_remove(pool, &one, 1, NULL, &yes), KVPOOL_OK);
        assert_int_equal(yes, KVPOOL_BAD_KEY);
    }
    assert_int_equal(kvpool_exists(pool, key, KVPOOL_KEY_MAX, &yes, NULL), KVPOOL_OK);
}

TEST_WITH(test_bad_values_and_outputs, setup, teardown)
{
    kvpool_key_t key = {"k", 1};
    uint64_t cursor = 0;
    char buf[8];
    size_t len;
    int yes;

    assert_int_equal(kvpool_put(pool, "k", 1, "v", 0, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_put(pool, "k", 1, NULL, 1, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_get(pool, "k", 1, NULL, 8, &len, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_get(pool, "k", 1, buf, 8, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_exists(pool, "k", 1, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_size(pool, "k", 1, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_batch_is_exist(pool, NULL, 1, NULL, &yes), KVPOOL_INVALID);
    assert_int_equal(kvpool_batch_is_exist(pool, &key, 1, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_batch_remove(pool, NULL, 1, NULL, &yes), KVPOOL_INVALID);
    assert_int_equal(kvpool_batch_remove(pool, &key, 1, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_batch_put(pool, NULL, 1, NULL, &yes), KVPOOL_INVALID);
    assert_int_equal(kvpool_longest_prefix(pool, &key, 1, 0, NULL, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_lookup_release(pool, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_list(pool, "", 0, 1, &cursor, NULL, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_stat(pool, buf, sizeof buf, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_remove_by_regex(pool, NULL, NULL, NULL, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_remove_by_regex(pool, "", NULL, NULL, NULL), KVPOOL_BAD_PATTERN);
}

TEST_WITH(test_bad_options, setup, teardown)
{
    kvpool_opts_t opts = {.struct_size = sizeof opts - 1};
    int yes;

    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_INVALID);
    opts = (kvpool_opts_t){.struct_size = sizeof opts, .flags = 1u << 31};
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_INVALID);
    opts = (kvpool_opts_t){.struct_size = sizeof opts, .flags = KVPOOL_PIN_SOFT | KVPOOL_PIN_HARD};
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_INVALID);
    opts = (kvpool_opts_t){.struct_size = sizeof opts, .replicas = 9};
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_INVALID);
    /* A caller that was built before there were replicas: what lies behind its struct is not looked at. */
    opts = (kvpool_opts_t){.struct_size = offsetof(kvpool_opts_t, replicas), .replicas = 9};
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_OK);
    opts = (kvpool_opts_t){.struct_size = offsetof(kvpool_opts_t, lineage), .deadline_ms = 1000};
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_OK);
    opts = (kvpool_opts_t){.struct_size = sizeof opts, .deadline_ms = 1000};
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_OK);
}

TEST_WITH(test_detail_is_the_masters_or_empty, setup, teardown)
{
    char detail[8] = "old";
    kvpool_opts_t opts = {
        .struct_size = offsetof(kvpool_opts_t, detail), .detail = detail, .detail_cap = sizeof detail};
    uint64_t removed;
    int yes;

    /* A caller that was built before there was one. */
    assert_int_equal(kvpool_remove_all(pool, &opts, &removed, NULL), KVPOOL_NOTSUP);
    assert_string_equal(detail, "old");
    opts.struct_size = sizeof opts;
    assert_int_equal(kvpool_remove_all(pool, &opts, &removed, NULL), KVPOOL_NOTSUP);
    assert_string_equal(detail, "this on"); /* cut to its room */
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, &opts), KVPOOL_OK);
    assert_string_equal(detail, "");
    opts.detail_cap = 0;
    assert_int_equal(kvpool_remove_all(pool, &opts, &removed, NULL), KVPOOL_NOTSUP);
}

TEST_WITH(test_batches_check_item_by_item, setup, teardown)
{
    static char memory[4096], elsewhere[16];
    kvpool_iov_t good = {memory, 16}, empty = {memory, 0}, null = {NULL, 16}, outside = {elsewhere, 16};
    kvpool_iov_t over_the_end = {memory + 4090, 16};
    kvpool_iov_t many[1025];
    kvpool_item_t items[] = {
        {.key = {"", 0}, .iov = &good, .iov_n = 1},          {.key = {"k", 1}, .iov = NULL, .iov_n = 1},
        {.key = {"k", 1}, .iov = &good, .iov_n = 0},         {.key = {"k", 1}, .iov = &empty, .iov_n = 1},
        {.key = {"k", 1}, .iov = &null, .iov_n = 1},         {.key = {"k", 1}, .iov = &outside, .iov_n = 1},
        {.key = {"k", 1}, .iov = &over_the_end, .iov_n = 1}, {.key = {"k", 1}, .iov = many, .iov_n = 1025},
    };
    static const int want[] = {KVPOOL_BAD_KEY, KVPOOL_INVALID,        KVPOOL_INVALID,        KVPOOL_INVALID,
                               KVPOOL_INVALID, KVPOOL_NOT_REGISTERED, KVPOOL_NOT_REGISTERED, KVPOOL_INVALID};
    int results[8];

    for (size_t i = 0; i < 1025; i++)
        many[i] = good;
    assert_int_equal(kvpool_register(pool, memory, sizeof memory), KVPOOL_OK);
    assert_int_equal(kvpool_register(pool, memory, sizeof memory), KVPOOL_INVALID);
    assert_int_equal(kvpool_batch_put(pool, items, 8, NULL, results), KVPOOL_OK);
    assert_memory_equal(results, want, sizeof want);
    assert_int_equal(kvpool_batch_get(pool, items, 8, NULL, results), KVPOOL_OK);
    assert_memory_equal(results, want, sizeof want);
    assert_int_equal(kvpool_batch_get(pool, items, 0, NULL, results), KVPOOL_OK);
    assert_int_equal(kvpool_batch_get(pool, NULL, 0, NULL, NULL), KVPOOL_OK);
    assert_int_equal(kvpool_unregister(pool, memory + 1), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_unregister(pool, memory), KVPOOL_OK);
    assert_int_equal(kvpool_unregister(pool, memory), KVPOOL_NOT_REGISTERED);
}

/* More pieces than are held at a time, some of them bad. */
TEST_WITH(test_copies_check_piece_by_piece, setup, teardown)
{
    static uint8_t from[200], to[200], elsewhere[16];
    kvpool_copy_t pieces[200];
    int results[200];

    for (size_t i = 0; i < 200; i++) {
        from[i] = (uint8_t)(i + 1);
        pieces[i] = (kvpool_copy_t){to + 199 - i, from + i, 1};
    }
    pieces[3].dst = NULL;
    pieces[4].src = NULL;
    pieces[5].len = 0;
    pieces[70].src = elsewhere;
    pieces[71].dst = elsewhere;
    pieces[72].len = SIZE_MAX;
    assert_int_equal(kvpool_register(pool, from, sizeof from), KVPOOL_OK);
    assert_int_equal(kvpool_register(pool, to, sizeof to), KVPOOL_OK);
    assert_int_equal(kvpool_copy(pool, pieces, 200, results), KVPOOL_OK);
    for (size_t i = 0; i < 200; i++) {
        int want = i >= 3 && i <= 5 ? KVPOOL_INVALID : i >= 70 && i <= 72 ? KVPOOL_NOT_REGISTERED : KVPOOL_OK;

        assert_int_equal(results[i], want);
        assert_int_equal(to[199 - i], want == KVPOOL_OK ? i + 1 : 0);
    }
    assert_int_equal(kvpool_copy(pool, NULL, 1, results), KVPOOL_INVALID);
    assert_int_equal(kvpool_copy(pool, pieces, 1, NULL), KVPOOL_INVALID);
    assert_int_equal(kvpool_copy(pool, NULL, 0, NULL), KVPOOL_OK);
    assert_int_equal(kvpool_copy(NULL, pieces, 1, results), KVPOOL_INVALID);
    assert_int_equal(kvpool_unregister(pool, from), KVPOOL_OK); /* nobody holds it any more */
    assert_int_equal(kvpool_copy(pool, pieces, 1, results), KVPOOL_OK);
    assert_int_equal(results[0], KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_unregister(pool, to), KVPOOL_OK);
    assert_int_equal(kvpool_close(pool), KVPOOL_OK);
    assert_int_equal(kvpool_copy(pool, pieces, 1, results), KVPOOL_CLOSED);
}

TEST_WITH(test_closed_handle_says_so, setup, teardown)
{
    assert_int_equal(kvpool_close(pool), KVPOOL_OK);
    assert_int_equal(master.byes, 1);
    assert_true(do_all_say(pool, KVPOOL_CLOSED));
}

/* Whether fd is open in this process. */
static bool
is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

TEST_WITH(test_forked_child_cannot_use_the_handle, setup, teardown)
{
    int before = dup(0), yes, status = -1;
    pid_t child;

    /* Descriptors that the handle made lie above this one. */
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, NULL), KVPOOL_OK);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool is_right = do_all_say(pool, KVPOOL_FORKED);

        kvpool_free(pool);
        _exit(is_right ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(kvpool_exists(pool, "k", 1, &yes, NULL), KVPOOL_OK);
    assert_true(is_open(before));
    close(before);
}

/* The connection ends when the parent closes it, although a child lives: the child does not keep it. */
TEST_WITH(test_forked_child_keeps_no_descriptor, setup, teardown)
{
    int go[2], count[2];
    char n = 0, still = 0;
    pid_t child;

    assert_int_equal(pipe(go), 0);
    for (int fd = 3; fd < 256; fd++)
        n = (char)(n + is_open(fd));
    assert_int_equal(pipe(count), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int fd = 3; fd < 256; fd++)
            still = (char)(still + is_open(fd));
        (void)!write(count[1], &still, 1);
        (void)!read(go[0], &still, 1);
        _exit(0);
    }
    assert_int_equal(read(count[0], &still, 1), 1);
    /* Two more for the pipe; at least connection, its wake-up and the handle's are gone. */
    assert_true(still <= n + 2 - 3);
    assert_int_equal(write(go[1], "", 1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(go[0]), close(go[1]), close(count[0]), close(count[1]);
    assert_int_equal(kvpool_close(pool), KVPOOL_OK);
}

TEST_WITH(test_texts, setup, teardown)
{
    assert_string_equal(kvpool_errname(KVPOOL_NOT_FOUND), "NOT_FOUND");
    assert_string_equal(kvpool_strerror(KVPOOL_OK), "ok");
    assert_non_null(kvpool_strerror(12345));
    assert_non_null(strchr(kvpool_version(), '.'));
}

TEST_MAIN()
