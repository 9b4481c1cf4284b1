/* SPDX-License-Identifier: Apache-2.0
 * Keepers: messages of which nothing is trusted, the table of what is held, the book that goes with the memory, and
 * memory that is not adopted. */
#include "node/keeper/packet.h"
#include "node/keeper/table.h"
#include "node/memory/book.h"

#include "common/clock.h"
#include "common/rlimits.h"
#include "tests/cases.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB (1u << 20)

static int
some_fd(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

/* ---- messages */
static kvp_err_t
check(const kvp_keeper_msg_t *msg)
{
    kvp_keeper_msg_t out;

    return kvp_keeper_msg_check(msg, sizeof *msg, msg->fds_n, &out);
}

TEST(test_messages_that_nobody_sends_are_refused)
{
    kvp_keeper_msg_t good[] = {
        kvp_keeper_msg_make(KVP_KEEPER_HELLO, 1, "n"),  kvp_keeper_msg_make(KVP_KEEPER_WELCOME, 0, NULL),
        kvp_keeper_msg_make(KVP_KEEPER_FILES, 2, NULL), kvp_keeper_msg_make(KVP_KEEPER_WRITER, 1, NULL),
        kvp_keeper_msg_make(KVP_KEEPER_OVER, 0, NULL),  kvp_keeper_msg_make(KVP_KEEPER_DROP, 0, NULL),
        kvp_keeper_msg_make(KVP_KEEPER_END, 0, "n"),
    };
    kvp_keeper_msg_t out, bad;
    char name[KVP_NAME_MAX + 2];

    good[2].total = 3;
    good[3].process = good[3].incarnation = good[4].process = 1;
    for (size_t i = 0; i < KVP_ARRAY_LEN(good); i++) {
        assert_int_equal(check(&good[i]), KVP_OK);
        assert_int_equal(kvp_keeper_msg_check(&good[i], sizeof good[i], good[i].fds_n + 1u, &out), KVP_PROTO);
        for (size_t len = 0; len < sizeof good[i]; len++)
            assert_int_equal(kvp_keeper_msg_check(&good[i], len, good[i].fds_n, &out), KVP_PROTO);
        bad = good[i];
        bad.magic++;
        assert_int_equal(check(&bad), KVP_PROTO);
        bad = good[i];
        bad.version++;
        assert_int_equal(check(&bad), KVP_VERSION);
        bad = good[i];
        memset(bad.name, 'x', sizeof bad.name); /* no end */
        assert_int_equal(check(&bad), KVP_PROTO);
    }
    memset(name, 'x', sizeof name);
    name[KVP_NAME_MAX] = '\0';
    bad = kvp_keeper_msg_make(KVP_KEEPER_HELLO, 1, name);
    assert_int_equal(check(&bad), KVP_OK);
    bad = kvp_keeper_msg_make(KVP_KEEPER_HELLO, 1, "");
    assert_int_equal(check(&bad), KVP_PROTO);
    bad = good[2];
    bad.first = 2; /* two from there on are more than three */
    assert_int_equal(check(&bad), KVP_PROTO);
    bad.first = UINT32_MAX;
    assert_int_equal(check(&bad), KVP_PROTO);
    bad = good[2];
    bad.total = UINT32_MAX;
    assert_int_equal(check(&bad), KVP_PROTO);
    for (int kind = 0; kind < 256; kind++) {
        bad = kvp_keeper_msg_make((kvp_keeper_kind_t)kind, 200, NULL);
        assert_int_equal(check(&bad), KVP_PROTO);
    }
}

/* Whatever comes: what is accepted is in bounds. */
TEST(test_random_messages)
{
    kvp_keeper_msg_t msg, out;

    for (int i = 0; i < 200000; i++) {
        kvp_random_bytes((uint8_t *)&msg, sizeof msg);
        msg.magic = KVP_KEEPER_MAGIC;
        msg.version = KVP_KEEPER_VERSION;
        msg.kind %= 9;
        msg.fds_n %= 70;
        if (i % 2 == 0) msg.total %= KVP_KEEPER_FILES_MAX + 2;
        if (i % 2 == 0) msg.first %= KVP_KEEPER_FILES_MAX + 2;
        msg.name[i % 4 == 0 ? 0 : sizeof msg.name - 1] = '\0';
        if (kvp_keeper_msg_check(&msg, sizeof msg, msg.fds_n, &out) != KVP_OK) continue;
        assert_true(strlen(out.name) <= KVP_NAME_MAX && out.fds_n <= KVP_KEEPER_FDS_MAX);
        if (out.kind == KVP_KEEPER_FILES) assert_true((uint64_t)out.first + out.fds_n <= out.total);
    }
}

/* ---- packets */
TEST(test_descriptors_of_a_bad_packet_do_not_stay)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_FILES, 3, NULL), out;
    int pair[2], fds[KVP_KEEPER_FDS_MAX], three[3] = {some_fd(), some_fd(), some_fd()};
    uint64_t had;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    had = kvp_limit_files().has;
    msg.total = 3;
    assert_int_equal(kvp_keeper_send(pair[0], &msg, three, 100), KVP_OK);
    assert_int_equal(kvp_keeper_recv(pair[1], &out, fds, 100), KVP_OK);
    assert_int_equal(kvp_limit_files().has, had + 3);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    msg.total = 2; /* of which three are sent */
    assert_int_equal(kvp_keeper_send(pair[0], &msg, three, 100), KVP_OK);
    assert_int_equal(kvp_keeper_recv(pair[1], &out, fds, 100), KVP_PROTO);
    assert_int_equal(send(pair[0], "x", 1, 0), 1);
    assert_int_equal(kvp_keeper_recv(pair[1], &out, fds, 100), KVP_PROTO);
    assert_int_equal(kvp_keeper_recv(pair[1], &out, fds, 20), KVP_DEADLINE);
    assert_int_equal(kvp_limit_files().has, had);
    /* Who does not read is waited for as long as was said. */
    msg = kvp_keeper_msg_make(KVP_KEEPER_DROP, 0, NULL);
    for (int i = 0; i < 100000; i++)
        if (kvp_keeper_send(pair[0], &msg, NULL, 20) == KVP_DEADLINE) break;
    assert_int_equal(kvp_keeper_send(pair[0], &msg, NULL, 20), KVP_DEADLINE);
    close(pair[1]);
    assert_int_equal(kvp_keeper_send(pair[0], &msg, NULL, 20), KVP_DISCONNECTED);
    close(pair[0]);
    for (int i = 0; i < 3; i++)
        close(three[i]);
}

/* ---- the table */
static kvp_err_t
add_files(kvp_keeper_table_t *t, uint32_t first, uint32_t n, uint32_t total)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_FILES, n, NULL);
    int fds[KVP_KEEPER_FDS_MAX];

    msg.first = first;
    msg.total = total;
    for (uint32_t i = 0; i < n; i++)
        fds[i] = some_fd();
    return kvp_keeper_table_files(t, &msg, fds);
}

TEST(test_table_takes_files_in_their_order)
{
    uint64_t had = kvp_limit_files().has;
    kvp_keeper_table_t t = {.total = 0};

    assert_int_equal(add_files(&t, 2, 1, 5), KVP_INVALID);
    assert_int_equal(add_files(&t, 0, 2, 5), KVP_OK);
    assert_int_equal(add_files(&t, 0, 2, 5), KVP_INVALID);
    assert_int_equal(add_files(&t, 3, 2, 5), KVP_INVALID);
    assert_int_equal(add_files(&t, 2, 2, 6), KVP_INVALID);
    assert_false(kvp_keeper_table_is_whole(&t));
    assert_int_equal(add_files(&t, 2, 3, 5), KVP_OK);
    assert_true(kvp_keeper_table_is_whole(&t));
    assert_int_equal(add_files(&t, 5, 1, 5), KVP_INVALID);
    assert_int_equal(kvp_keeper_table_writer(&t, 1, 7, some_fd()), KVP_OK);
    assert_int_equal(kvp_keeper_table_writer(&t, 1, 7, some_fd()), KVP_OK);
    assert_int_equal(kvp_keeper_table_writer(&t, 1, 8, some_fd()), KVP_OK);
    assert_int_equal(kvp_keeper_table_writer(&t, 2, 7, some_fd()), KVP_OK);
    assert_int_equal(t.writers_n, 3);
    kvp_keeper_table_over(&t, 1, 7);
    assert_int_equal(t.writers_n, 2);
    kvp_keeper_table_over(&t, 3, 0);
    kvp_keeper_table_over(&t, 1, 0);
    assert_int_equal(t.writers_n, 1);
    assert_int_equal(t.writers[0].process, 2);
    kvp_keeper_table_clear(&t, false);
    assert_int_equal(kvp_limit_files().has, had);
}

/* ---- memory and its book */
static const kvp_node_mem_conf_t conf = {
    .pool_id = "a pool", .digest_seed = 3, .epoch = 5, .term = 2, .size_bytes = 5 * MIB, .chunk_bytes = 2 * MIB};

static kvp_node_mem_t *
make(void)
{
    kvp_node_mem_t *mem;

    assert_int_equal(kvp_node_mem_create(&conf, &mem), KVP_OK);
    return mem;
}

/* adopt tries to adopt copies of mem's descriptors by other settings. */
static kvp_err_t
adopt(const kvp_node_mem_t *mem, const kvp_node_mem_conf_t *by, const uint8_t uuid[16], const char **why)
{
    kvp_node_mem_t *next;
    int fds[6];
    kvp_err_t err;

    for (uint32_t i = 0; i < 3; i++) {
        fds[i] = fcntl(mem->chunks[i].meta.fd, F_DUPFD_CLOEXEC, 0);
        fds[3 + i] = fcntl(mem->chunks[i].payload.fd, F_DUPFD_CLOEXEC, 0);
    }
    err = kvp_node_mem_adopt(by, uuid, fds, &next, why);
    if (err != KVP_OK) return err;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(next->chunks[i].payload.len, i < 2 ? 2 * MIB : MIB);
    assert_int_equal(((uint8_t *)next->chunks[2].payload.addr)[7], 77);
    next->is_kept = true;
    kvp_node_mem_destroy(next);
    return KVP_OK;
}

/* A try that fails takes the pages, so each is made in memory of its own. */
static void
refuse(void (*spoil)(kvp_node_mem_t *mem, kvp_node_mem_conf_t *by), kvp_err_t err, const char *text)
{
    kvp_node_mem_t *mem = make();
    kvp_node_mem_conf_t by = conf;
    uint8_t uuid[16];
    const char *why;

    memcpy(uuid, mem->uuid, sizeof uuid);
    spoil(mem, &by);
    assert_int_equal(adopt(mem, &by, uuid, &why), err);
    assert_string_equal(why, text);
    kvp_node_mem_destroy(mem);
}

static kvp_superblock_t *
superblock(kvp_node_mem_t *mem)
{
    return mem->chunks[1].meta.addr;
}

static void
spoil_pool(kvp_node_mem_t *mem, kvp_node_mem_conf_t *by)
{
    by->pool_id[0]++;
}

static void
spoil_uuid(kvp_node_mem_t *mem, kvp_node_mem_conf_t *by)
{
    superblock(mem)->segment_uuid[3]++;
    kvp_sb_seal(superblock(mem));
}

static void
spoil_check(kvp_node_mem_t *mem, kvp_node_mem_conf_t *by)
{
    superblock(mem)->check++;
}

static void
spoil_version(kvp_node_mem_t *mem, kvp_node_mem_conf_t *by)
{
    superblock(mem)->version++;
    kvp_sb_seal(superblock(mem));
}

static void
spoil_size(kvp_node_mem_t *mem, kvp_node_mem_conf_t *by)
{
    by->size_bytes -= 4096;
}

TEST(test_memory_is_adopted_where_everything_fits)
{
    uint64_t had = kvp_limit_files().has;
    kvp_node_mem_t *mem = make();
    const char *why;

    ((uint8_t *)mem->chunks[2].payload.addr)[7] = 77;
    for (int i = 0; i < 2; i++) /* who kept it has left the pages */
        assert_int_equal(adopt(mem, &conf, mem->uuid, &why), KVP_OK);
    kvp_node_mem_destroy(mem);
    refuse(spoil_pool, KVP_PROTO, "a superblock is of another pool");
    refuse(spoil_uuid, KVP_PROTO, "a superblock is of other memory");
    refuse(spoil_check, KVP_PROTO, "a superblock is broken");
    refuse(spoil_version, KVP_VERSION, "a superblock has another version");
    refuse(spoil_size, KVP_PROTO, "a file has another size or no seals, or cannot be mapped");
    assert_int_equal(kvp_limit_files().has, had);
}

static kvp_err_t
reopen(const kvp_node_book_t *book, kvp_node_book_t *again, kvp_node_mem_conf_t *found, uint8_t uuid[16])
{
    return kvp_node_book_open(again, fcntl(book->mem.fd, F_DUPFD_CLOEXEC, 0), found, uuid);
}

TEST(test_book_has_one_state_or_the_other)
{
    kvp_node_mem_t *mem = make();
    kvp_node_book_t book, again;
    kvp_node_mem_conf_t found;
    const uint8_t *bytes;
    uint8_t uuid[16], *file;
    size_t len;

    assert_true(kvp_node_mem_set_owner(mem, 1, "tenant"));
    assert_int_equal(kvp_node_book_make(&book, mem), KVP_OK);
    assert_int_equal(reopen(&book, &again, &found, uuid), KVP_OK);
    assert_memory_equal(uuid, mem->uuid, sizeof uuid);
    assert_memory_equal(found.pool_id, conf.pool_id, sizeof conf.pool_id);
    assert_int_equal(found.size_bytes, conf.size_bytes);
    assert_false(kvp_node_book_is_whole(&again));
    kvp_node_book_set_whole(&book, true);
    assert_true(kvp_node_book_is_whole(&again));
    assert_false(kvp_node_book_load(&again, &bytes, &len));
    assert_true(kvp_node_book_save(&book, "one", 3));
    assert_true(kvp_node_book_save(&book, "two, longer", 11));
    assert_true(kvp_node_book_load(&again, &bytes, &len));
    assert_int_equal(len, 11);
    assert_memory_equal(bytes, "two, longer", 11);
    /* The node ended in the middle of a save: the one before it counts. */
    file = again.mem.addr;
    file[bytes - file]++;
    assert_true(kvp_node_book_load(&again, &bytes, &len));
    assert_memory_equal(bytes, "one", 3);
    assert_false(kvp_node_book_save(&book, file, KVP_BOOK_REST_BYTES + 3 * KVP_BOOK_CHUNK_BYTES + 4096));
    mem->chunks[1].tenant[0] = '\0';
    kvp_node_book_load_owners(&again, mem);
    assert_string_equal(mem->chunks[1].tenant, "tenant");
    kvp_node_book_close(&again);
    /* Heads that are not ours. */
    file = book.mem.addr;
    file[8]++; /* version */
    assert_int_equal(reopen(&book, &again, &found, uuid), KVP_VERSION);
    file[8]--;
    for (size_t i = 0; i < 88; i++) {
        if (i >= 8 && i < 12) continue;
        file[i]++;
        assert_int_equal(reopen(&book, &again, &found, uuid), KVP_PROTO);
        file[i]--;
    }
    assert_int_equal(kvp_node_book_open(&again, some_fd(), &found, uuid), KVP_PROTO);
    kvp_node_book_close(&book);
    kvp_node_mem_destroy(mem);
}

TEST_MAIN()
