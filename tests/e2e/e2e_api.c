/* SPDX-License-Identifier: Apache-2.0
 * e2e_api: functions of the API with arguments that nobody should give it, against a live pool, but for those that
 * tests/unit/client/test_api_args.c gives them. A line "ok NAME" or "not ok NAME got WHAT" for each; what must come
 * back is named at each call. Exit code 1 if any is not ok. The pool is the one of $KVPOOL_MASTER; argument: its chunk
 * size. */
#include "tests/e2e/e2e_util.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_BYTES (1u << 20)
#define END 1 /* behind the errors that are allowed */

#define EXPECT(name, call, ...) expect(name, call, (const int[]){__VA_ARGS__, END})
#define EXPECT_TRUE(name, is_so) expect(name, (is_so) ? 0 : KVPOOL_INTERNAL, (const int[]){0, END})

static unsigned failures;
static kvpool_t *pool;
static uint8_t *arena;
static size_t chunk_bytes;

static void
expect(const char *name, int got, const int *allowed)
{
    bool is_ok = false;

    for (; *allowed != END; allowed++)
        is_ok |= got == *allowed;
    failures += !is_ok;
    if (is_ok)
        printf("ok %s\n", name);
    else
        printf("not ok %s got %s (%d)\n", name, kvpool_errname(got), got);
    fflush(stdout);
}

static char *
long_key(size_t len)
{
    static char key[2 * KVPOOL_KEY_MAX];

    memset(key, 'k', sizeof key);
    key[len] = '\0';
    return key;
}

/* ---- open */
static int
try_open(kvpool_conf_t conf)
{
    kvpool_t *p = NULL;
    int err = kvpool_open(&conf, &p);

    if (err == KVPOOL_OK)
        kvpool_free(p);
    else if (p != NULL)
        return KVPOOL_INTERNAL; /* set only on success */
    return err;
}

static void
check_open(void)
{
    const size_t size = sizeof(kvpool_conf_t);
    uint64_t begun;

    EXPECT("open with struct_size 4", try_open((kvpool_conf_t){.struct_size = 4}), KVPOOL_INVALID);
    EXPECT("open with struct_size SIZE_MAX", try_open((kvpool_conf_t){.struct_size = SIZE_MAX}), KVPOOL_INVALID);
    EXPECT("open with an empty transport", try_open((kvpool_conf_t){size, .transports = "shm,,tcp"}), KVPOOL_INVALID);
    EXPECT("open with a port too high", try_open((kvpool_conf_t){size, .master = "127.0.0.1:65536"}), KVPOOL_INVALID);
    EXPECT("open with a tiny node", try_open((kvpool_conf_t){size, .memory_bytes = 1}), KVPOOL_INVALID);
    EXPECT("open with a node of impossible size", try_open((kvpool_conf_t){size, .memory_bytes = 1ull << 62}),
           KVPOOL_INVALID, KVPOOL_NOMEM, KVPOOL_SYS, KVPOOL_LIMIT);
    EXPECT("open with a node that cannot listen",
           try_open((kvpool_conf_t){size, .memory_bytes = 1 << 20, .listen = "nowhere"}), KVPOOL_INVALID);
    begun = e2e_now_ns();
    EXPECT("open of a pool that is not there",
           try_open((kvpool_conf_t){size, .master = "127.0.0.1:1", .deadline_ms = 300}), KVPOOL_UNREACHABLE);
    EXPECT_TRUE("and within its deadline", e2e_now_ns() - begun < 1500000000u);
}

/* ---- single objects */
static void
check_put(void)
{
    const kvpool_opts_t none = {0}, odd_flags = {.struct_size = sizeof odd_flags, .flags = 0x80000000u};
    const uint32_t segments[9] = {1};
    const kvpool_opts_t no_segments = {.struct_size = sizeof no_segments, .prefer_n = 1},
                        nine = {.struct_size = sizeof nine, .prefer_n = 9, .prefer = segments};
    uint8_t *big = e2e_alloc(chunk_bytes + 1);

    EXPECT("put with an endless key", kvpool_put(pool, "k", SIZE_MAX, "v", 1, NULL), KVPOOL_BAD_KEY);
    EXPECT("put with opts of struct_size 0", kvpool_put(pool, "k", 1, "v", 1, &none), KVPOOL_INVALID);
    EXPECT("put with unknown flags", kvpool_put(pool, "k", 1, "v", 1, &odd_flags), KVPOOL_INVALID);
    EXPECT("put with NULL for preferred segments", kvpool_put(pool, "k", 1, "v", 1, &no_segments), KVPOOL_INVALID);
    EXPECT("put with nine preferred segments", kvpool_put(pool, "k", 1, "v", 1, &nine), KVPOOL_INVALID);
    EXPECT("put of a chunk and a byte", kvpool_put(pool, "big", 3, big, chunk_bytes + 1, NULL), KVPOOL_TOO_LARGE);
    EXPECT("put of an endless value", kvpool_put(pool, "big", 3, "v", SIZE_MAX, NULL), KVPOOL_TOO_LARGE,
           KVPOOL_INVALID);
    EXPECT("put of a whole chunk", kvpool_put(pool, "big", 3, big, chunk_bytes, NULL), KVPOOL_OK);
    EXPECT("its remove", kvpool_remove(pool, "big", 3, NULL), KVPOOL_OK);
    EXPECT("put with a key of 1024 bytes", kvpool_put(pool, long_key(1024), 1024, "v", 1, NULL), KVPOOL_OK);
    munmap(big, chunk_bytes + 1);
}

static void
check_get(void)
{
    const kvpool_opts_t none = {0};
    uint8_t buf[8];
    size_t len = 77;

    EXPECT("put for the gets", kvpool_put(pool, "get", 3, "12345678", 8, NULL), KVPOOL_OK);
    EXPECT("get with opts of struct_size 0", kvpool_get(pool, "get", 3, buf, 8, &len, &none), KVPOOL_INVALID);
    len = 77;
    EXPECT("get into a short buffer", kvpool_get(pool, "get", 3, buf, 7, &len, NULL), KVPOOL_BUFFER_SMALL);
    EXPECT_TRUE("tells the length", len == 8);
    EXPECT("get into no buffer", kvpool_get(pool, "get", 3, NULL, 0, &len, NULL), KVPOOL_BUFFER_SMALL, KVPOOL_INVALID);
    EXPECT("get", kvpool_get(pool, "get", 3, buf, 8, &len, NULL), KVPOOL_OK);
    EXPECT_TRUE("gives the bytes", len == 8 && memcmp(buf, "12345678", 8) == 0);
    EXPECT("get of an absent key", kvpool_get(pool, "absent", 6, buf, 8, &len, NULL), KVPOOL_NOT_FOUND);
}

static void
check_probes(void)
{
    size_t len;

    EXPECT("size without pool", kvpool_size(NULL, "get", 3, &len, NULL), KVPOOL_INVALID);
    EXPECT("size of an absent key", kvpool_size(pool, "absent", 6, &len, NULL), KVPOOL_NOT_FOUND);
    EXPECT("remove without pool", kvpool_remove(NULL, "get", 3, NULL), KVPOOL_INVALID);
    EXPECT("remove of an absent key", kvpool_remove(pool, "absent", 6, NULL), KVPOOL_NOT_FOUND);
}

/* ---- registration */
static void
check_register(void)
{
    uint8_t *a = arena;

    EXPECT("register without memory", kvpool_register(pool, NULL, 4096), KVPOOL_INVALID);
    EXPECT("register of nothing", kvpool_register(pool, a, 0), KVPOOL_INVALID);
    EXPECT("register around the end of memory", kvpool_register(pool, a, SIZE_MAX), KVPOOL_INVALID);
    EXPECT("register", kvpool_register(pool, a + 4096, 8192), KVPOOL_OK);
    EXPECT("register the same again", kvpool_register(pool, a + 4096, 8192), KVPOOL_INVALID);
    EXPECT("register its beginning", kvpool_register(pool, a + 4096, 1), KVPOOL_INVALID);
    EXPECT("register its middle", kvpool_register(pool, a + 5000, 100), KVPOOL_INVALID);
    EXPECT("register over its beginning", kvpool_register(pool, a, 4097), KVPOOL_INVALID);
    EXPECT("register over its end", kvpool_register(pool, a + 12287, 2), KVPOOL_INVALID);
    EXPECT("register all around it", kvpool_register(pool, a, 65536), KVPOOL_INVALID);
    EXPECT("register before it", kvpool_register(pool, a, 4096), KVPOOL_OK);
    EXPECT("register behind it", kvpool_register(pool, a + 12288, 4096), KVPOOL_OK);
    EXPECT("unregister nothing", kvpool_unregister(pool, NULL), KVPOOL_NOT_REGISTERED, KVPOOL_INVALID);
    EXPECT("unregister its middle", kvpool_unregister(pool, a + 5000), KVPOOL_NOT_REGISTERED);
    EXPECT("unregister before", kvpool_unregister(pool, a), KVPOOL_OK);
    EXPECT("unregister behind", kvpool_unregister(pool, a + 12288), KVPOOL_OK);
    EXPECT("unregister", kvpool_unregister(pool, a + 4096), KVPOOL_OK);
    EXPECT("unregister twice", kvpool_unregister(pool, a + 4096), KVPOOL_NOT_REGISTERED);
}

/* ---- batches */
static int
batch_of_one(bool is_put, const char *key, size_t key_len, const kvpool_iov_t *iov, size_t iov_n)
{
    kvpool_item_t item = {.key = {key, key_len}, .iov = iov, .iov_n = iov_n};
    int result = KVPOOL_INTERNAL;
    int err =
        is_put ? kvpool_batch_put(pool, &item, 1, NULL, &result) : kvpool_batch_get(pool, &item, 1, NULL, &result);

    return err != KVPOOL_OK ? err : result;
}

/* Memory that the library may not touch: on a put as on a get. */
static void
check_pieces(bool is_put, const char *key)
{
    static kvpool_iov_t many[1024];
    const kvpool_iov_t good = {arena, 64};
    char name[80];

#define NAMED(text) (snprintf(name, sizeof name, "batch_%s: %s", is_put ? "put" : "get", text), name)
    for (size_t i = 0; i < 1024; i++)
        many[i] = (kvpool_iov_t){arena + i * 64, 64};
    EXPECT(NAMED("around the end of memory"), batch_of_one(is_put, key, 5, &(kvpool_iov_t){arena, SIZE_MAX}, 1),
           KVPOOL_NOT_REGISTERED, KVPOOL_INVALID);
    EXPECT(NAMED("second piece not registered"),
           batch_of_one(is_put, key, 5, (kvpool_iov_t[]){good, {arena + ARENA_BYTES, 64}}, 2), KVPOOL_NOT_REGISTERED);
    EXPECT(NAMED("no key"), batch_of_one(is_put, NULL, 5, &good, 1), KVPOOL_BAD_KEY, KVPOOL_INVALID);
    EXPECT(NAMED("a key of 1025 bytes"), batch_of_one(is_put, long_key(1025), 1025, &good, 1), KVPOOL_BAD_KEY);
    EXPECT(NAMED("1024 pieces"), batch_of_one(is_put, key, 5, many, 1024), KVPOOL_OK);
#undef NAMED
}

static void
check_batch_calls(void)
{
    const kvpool_iov_t iov = {arena, 64};
    const kvpool_opts_t none = {0};
    kvpool_item_t items[3] = {
        {.key = {"one", 3}, .iov = &iov, .iov_n = 1},
        {.key = {"", 0}, .iov = &iov, .iov_n = 1},
        {.key = {"two", 3}, .iov = &iov, .iov_n = 1},
    };
    int results[3];

    EXPECT("batch_put without pool", kvpool_batch_put(NULL, items, 3, NULL, results), KVPOOL_INVALID);
    EXPECT("batch_put without results", kvpool_batch_put(pool, items, 3, NULL, NULL), KVPOOL_INVALID);
    EXPECT("batch_put with opts of struct_size 0", kvpool_batch_put(pool, items, 3, &none, results), KVPOOL_INVALID);
    EXPECT("batch_put of none", kvpool_batch_put(pool, items, 0, NULL, results), KVPOOL_OK);
    EXPECT("batch_put with a bad item in the middle", kvpool_batch_put(pool, items, 3, NULL, results), KVPOOL_OK);
    EXPECT_TRUE("spoils that item alone",
                results[0] == KVPOOL_OK && results[1] == KVPOOL_BAD_KEY && results[2] == KVPOOL_OK);
    EXPECT("batch_get without pool", kvpool_batch_get(NULL, items, 3, NULL, results), KVPOOL_INVALID);
    EXPECT("batch_get without items", kvpool_batch_get(pool, NULL, 3, NULL, results), KVPOOL_INVALID);
    EXPECT("batch_get without results", kvpool_batch_get(pool, items, 3, NULL, NULL), KVPOOL_INVALID);
    EXPECT("batch_get of none", kvpool_batch_get(pool, items, 0, NULL, results), KVPOOL_OK);
    EXPECT("batch_get with a bad item in the middle", kvpool_batch_get(pool, items, 3, NULL, results), KVPOOL_OK);
    EXPECT_TRUE("spoils that get alone",
                results[0] == KVPOOL_OK && results[1] == KVPOOL_BAD_KEY && results[2] == KVPOOL_OK);
    items[1] = items[0];
    EXPECT("batch_get of one key twice", kvpool_batch_get(pool, items, 2, NULL, results), KVPOOL_OK);
    EXPECT_TRUE("gives it twice", results[0] == KVPOOL_OK && results[1] == KVPOOL_OK);
    items[0].key = items[1].key = (kvpool_key_t){"twin", 4};
    EXPECT("batch_put of one key twice", kvpool_batch_put(pool, items, 2, NULL, results), KVPOOL_OK);
    EXPECT_TRUE("puts it once", results[0] == KVPOOL_OK && results[1] == KVPOOL_OK);
}

static void
check_short_scatter(void)
{
    const kvpool_iov_t pieces[2] = {{arena, 30}, {arena + 64, 33}};
    kvpool_item_t item = {.key = {"one", 3}, .iov = pieces, .iov_n = 2};
    int result = 0;

    EXPECT("batch_get into pieces that are short", kvpool_batch_get(pool, &item, 1, NULL, &result), KVPOOL_OK);
    EXPECT_TRUE("says so and how long it is", result == KVPOOL_BUFFER_SMALL && item.len == 64);
}

static void
check_is_exist(void)
{
    kvpool_key_t keys[3] = {{"one", 3}, {"", 0}, {NULL, 4}};
    const size_t many = KVPOOL_BATCH_MAX + 1;
    kvpool_key_t *all = e2e_alloc(many * sizeof *all);
    int *results = e2e_alloc(many * sizeof *results);
    bool is_good = true;

    EXPECT("batch_is_exist of none", kvpool_batch_is_exist(pool, keys, 0, NULL, results), KVPOOL_OK);
    EXPECT("batch_is_exist with bad keys", kvpool_batch_is_exist(pool, keys, 3, NULL, results), KVPOOL_OK);
    EXPECT_TRUE("spoils those alone", results[0] == 1 && results[1] == KVPOOL_BAD_KEY && results[2] < 0);
    for (size_t i = 0; i < many; i++)
        all[i] = keys[0];
    EXPECT("batch_is_exist of more than a message", kvpool_batch_is_exist(pool, all, many, NULL, results), KVPOOL_OK);
    for (size_t i = 0; i < many; i++)
        is_good &= results[i] == 1;
    EXPECT_TRUE("answers all", is_good);
    munmap(all, many * sizeof *all);
    munmap(results, many * sizeof *results);
}

static void
check_locate(void)
{
    kvpool_key_t keys[3] = {{"one", 3}, {"", 0}, {"absent", 6}};
    const size_t many = KVPOOL_BATCH_MAX + 1;
    kvpool_place_t *places = e2e_alloc(many * sizeof *places);
    kvpool_key_t *all = e2e_alloc(many * sizeof *all);
    int *results = e2e_alloc(many * sizeof *results);
    bool is_good = true;

    EXPECT("batch_locate without pool", kvpool_batch_locate(NULL, keys, 3, NULL, places, results), KVPOOL_INVALID);
    EXPECT("batch_locate without keys", kvpool_batch_locate(pool, NULL, 3, NULL, places, results), KVPOOL_INVALID);
    EXPECT("batch_locate without places", kvpool_batch_locate(pool, keys, 3, NULL, NULL, results), KVPOOL_INVALID);
    EXPECT("batch_locate without results", kvpool_batch_locate(pool, keys, 3, NULL, places, NULL), KVPOOL_INVALID);
    EXPECT("batch_locate of none", kvpool_batch_locate(pool, keys, 0, NULL, places, results), KVPOOL_OK);
    EXPECT("batch_locate", kvpool_batch_locate(pool, keys, 3, NULL, places, results), KVPOOL_OK);
    EXPECT_TRUE("names the copies", results[0] == KVPOOL_OK && places[0].copies == 1 && places[0].segments[0] > 0);
    EXPECT_TRUE("spoils bad ones alone", results[1] == KVPOOL_BAD_KEY && results[2] == KVPOOL_NOT_FOUND);
    EXPECT_TRUE("and tells nothing of them", places[1].copies == 0 && places[2].copies == 0);
    for (size_t i = 0; i < many; i++)
        all[i] = keys[0];
    EXPECT("batch_locate of more than a message", kvpool_batch_locate(pool, all, many, NULL, places, results),
           KVPOOL_OK);
    for (size_t i = 0; i < many; i++)
        is_good &= results[i] == KVPOOL_OK && places[i].len == places[0].len && places[i].copies == 1;
    EXPECT_TRUE("answers all", is_good);
    munmap(places, many * sizeof *places);
    munmap(all, many * sizeof *all);
    munmap(results, many * sizeof *results);
}

/* ---- reservations, lists, removing many */
static void
check_lookups(void)
{
    const kvpool_key_t key = {"one", 3};
    kvpool_lookup_t out = {.ticket = 5};
    uint8_t present[1];

    EXPECT("lookup without pool", kvpool_lookup(NULL, &key, 1, 0, NULL, present, &out), KVPOOL_INVALID);
    EXPECT("lookup without keys", kvpool_lookup(pool, NULL, 1, 0, NULL, present, &out), KVPOOL_INVALID);
    EXPECT("lookup without answer", kvpool_lookup(pool, &key, 1, 0, NULL, present, NULL), KVPOOL_INVALID);
    EXPECT("lookup of too many", kvpool_lookup(pool, &key, KVPOOL_BATCH_MAX + 1, 0, NULL, NULL, &out), KVPOOL_INVALID,
           KVPOOL_LIMIT, KVPOOL_TOO_LARGE);
    EXPECT("lookup of none", kvpool_lookup(pool, &key, 0, 0, NULL, present, &out), KVPOOL_OK);
    EXPECT_TRUE("reserves nothing", out.ticket == 0 && out.found == 0);
    EXPECT("longest_prefix without pool", kvpool_longest_prefix(NULL, &key, 1, 0, NULL, NULL, &out), KVPOOL_INVALID);
    EXPECT("longest_prefix without keys", kvpool_longest_prefix(pool, NULL, 1, 0, NULL, NULL, &out), KVPOOL_INVALID);
    EXPECT("longest_prefix for ever", kvpool_longest_prefix(pool, &key, 1, UINT32_MAX, NULL, NULL, &out), KVPOOL_OK);
    EXPECT_TRUE("is cut to the lease", out.found == 1 && out.granted == 1 && out.ttl_ms <= 3600000);
    EXPECT("release", kvpool_lookup_release(pool, &out), KVPOOL_OK);
    EXPECT("release twice", kvpool_lookup_release(pool, &out), KVPOOL_OK);
    EXPECT("release of a stranger's", kvpool_lookup_release(pool, &(kvpool_lookup_t){.ticket = 0xdeadbeef}), KVPOOL_OK);
}

static int
count_keys(void *arg, const void *key, size_t key_len, uint64_t len)
{
    (void)key, (void)key_len, (void)len;
    ++*(unsigned *)arg;
    return 0;
}

static void
check_list(void)
{
    uint64_t cursor = 0;
    unsigned n = 0;

    EXPECT("list without pool", kvpool_list(NULL, "", 0, 10, &cursor, count_keys, &n, NULL), KVPOOL_INVALID);
    EXPECT("list without cursor", kvpool_list(pool, "", 0, 10, NULL, count_keys, &n, NULL), KVPOOL_INVALID);
    EXPECT("list without prefix", kvpool_list(pool, NULL, 3, 10, &cursor, count_keys, &n, NULL), KVPOOL_INVALID);
    EXPECT("list of a prefix longer than keys are",
           kvpool_list(pool, long_key(1025), 1025, 10, &cursor, count_keys, &n, NULL), KVPOOL_INVALID, KVPOOL_BAD_KEY,
           KVPOOL_OK);
    cursor = 0, n = 0;
    EXPECT("list with no limit to speak of", kvpool_list(pool, "", 0, UINT32_MAX, &cursor, count_keys, &n, NULL),
           KVPOOL_OK, KVPOOL_INVALID, KVPOOL_LIMIT);
    cursor = 0xdeadbeefcafeull;
    EXPECT("list from a cursor that nobody gave", kvpool_list(pool, "", 0, 10, &cursor, count_keys, &n, NULL),
           KVPOOL_OK, KVPOOL_INVALID);
}

static void
check_patterns(void)
{
    const kvpool_opts_t short_time = {.struct_size = sizeof short_time, .deadline_ms = 3000};
    uint64_t removed = 0, held = 0, begun;
    char *victim = long_key(1000);

    memset(victim, 'a', 999);
    victim[999] = 'b';
    EXPECT("put of a key for a costly pattern", kvpool_put(pool, victim, 1000, "v", 1, NULL), KVPOOL_OK);
    EXPECT("remove_by_regex without pool", kvpool_remove_by_regex(NULL, "x", NULL, &removed, &held), KVPOOL_INVALID);
    EXPECT("remove_by_regex without answer", kvpool_remove_by_regex(pool, "x^", NULL, NULL, NULL), KVPOOL_INVALID);
    EXPECT("remove_by_regex that is none", kvpool_remove_by_regex(pool, "(", NULL, &removed, &held),
           KVPOOL_BAD_PATTERN);
    EXPECT("remove_by_regex that is too long", kvpool_remove_by_regex(pool, long_key(1025), NULL, &removed, &held),
           KVPOOL_BAD_PATTERN, KVPOOL_INVALID);
    begun = e2e_now_ns();
    EXPECT("remove_by_regex that costs too much", kvpool_remove_by_regex(pool, "^(a+)+$", &short_time, &removed, &held),
           KVPOOL_BAD_PATTERN);
    EXPECT_TRUE("ends soon", e2e_now_ns() - begun < 3000000000u);
    EXPECT("remove_all without pool", kvpool_remove_all(NULL, NULL, &removed, &held), KVPOOL_INVALID);
    EXPECT("remove_all without answer", kvpool_remove_all(pool, NULL, NULL, NULL), KVPOOL_INVALID);
}

static void
check_stat(void)
{
    kvpool_snapshot_t snapshot;
    char buf[16];
    size_t len = 0;

    EXPECT("snapshot without pool", kvpool_snapshot(NULL, NULL, &snapshot), KVPOOL_INVALID);
    EXPECT("snapshot into nothing", kvpool_snapshot(pool, NULL, NULL), KVPOOL_INVALID);
    EXPECT("snapshot of no log", kvpool_snapshot(pool, NULL, &snapshot), KVPOOL_NOTSUP);
    EXPECT("stat without pool", kvpool_stat(NULL, buf, sizeof buf, &len, NULL), KVPOOL_INVALID);
    EXPECT("stat without buffer", kvpool_stat(pool, NULL, 16, &len, NULL), KVPOOL_INVALID, KVPOOL_BUFFER_SMALL);
    memset(buf, 'x', sizeof buf);
    EXPECT("stat into a short buffer", kvpool_stat(pool, buf, sizeof buf, &len, NULL), KVPOOL_BUFFER_SMALL);
    EXPECT_TRUE("terminates it and tells the length", memchr(buf, 0, sizeof buf) != NULL && len >= sizeof buf);
}

/* ---- after close */
static void
check_closed(void)
{
    const kvpool_iov_t iov = {arena, 64};
    kvpool_item_t item = {.key = {"one", 3}, .iov = &iov, .iov_n = 1};
    kvpool_key_t key = {"one", 3};
    kvpool_lookup_t out;
    uint64_t a, b = 0;
    size_t len;
    unsigned n = 0;
    int one;

    EXPECT("close", kvpool_close(pool), KVPOOL_OK);
    EXPECT("close twice", kvpool_close(pool), KVPOOL_CLOSED);
    EXPECT("size after close", kvpool_size(pool, "k", 1, &len, NULL), KVPOOL_CLOSED);
    EXPECT("remove after close", kvpool_remove(pool, "k", 1, NULL), KVPOOL_CLOSED);
    EXPECT("batch_get after close", kvpool_batch_get(pool, &item, 1, NULL, &one), KVPOOL_CLOSED);
    EXPECT("batch_is_exist after close", kvpool_batch_is_exist(pool, &key, 1, NULL, &one), KVPOOL_CLOSED);
    EXPECT("lookup after close", kvpool_lookup(pool, &key, 1, 0, NULL, NULL, &out), KVPOOL_CLOSED);
    EXPECT("longest_prefix after close", kvpool_longest_prefix(pool, &key, 1, 0, NULL, NULL, &out), KVPOOL_CLOSED);
    EXPECT("remove_by_regex after close", kvpool_remove_by_regex(pool, "x", NULL, &a, NULL), KVPOOL_CLOSED);
    EXPECT("remove_all after close", kvpool_remove_all(pool, NULL, &a, NULL), KVPOOL_CLOSED);
    EXPECT("list after close", kvpool_list(pool, "", 0, 1, &b, count_keys, &n, NULL), KVPOOL_CLOSED);
    EXPECT("unregister after close", kvpool_unregister(pool, arena), KVPOOL_CLOSED, KVPOOL_OK);
    kvpool_free(pool);
    kvpool_free(NULL);
}

static void
check_names(void)
{
    const int odd[] = {INT_MIN, INT_MAX, 1, -1000000};

    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        EXPECT_TRUE("strerror of any number", kvpool_strerror(odd[i]) != NULL);
        EXPECT_TRUE("errname of any number", strcmp(kvpool_errname(odd[i]), "UNKNOWN") == 0);
    }
}

int
main(int argc, char **argv)
{
    int err;

    chunk_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    check_names();
    check_open();
    err = kvpool_open(NULL, &pool);
    if (err != KVPOOL_OK) e2e_die("cannot open the pool: %s", kvpool_errname(err));
    arena = e2e_alloc(3 * ARENA_BYTES); /* the first third is registered */
    check_register();
    EXPECT("register the arena", kvpool_register(pool, arena, ARENA_BYTES), KVPOOL_OK);
    check_put();
    check_get();
    check_probes();
    check_pieces(true, "piece");
    check_pieces(false, "piece");
    check_batch_calls();
    check_short_scatter();
    check_is_exist();
    check_locate();
    check_lookups();
    check_list();
    check_patterns();
    check_stat();
    check_closed();
    return failures == 0 ? 0 : 1;
}
