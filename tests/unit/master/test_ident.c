/* SPDX-License-Identifier: Apache-2.0
 * The data directory: identity and term over restarts, damage, two masters at once, and nowhere to write. */
#include "master/shell/ident.h"

#include "common/log.h"
#include "proto/segfmt.h"
#include "tests/cases.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char dir[64]; /* of the test */
    char data[80]; /* the data directory in it, not made yet */
    char file[96];
} place_t;

static int
setup(void **state)
{
    place_t *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    snprintf(p->dir, sizeof(p->dir), "%s/kvp-ident-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->data, sizeof(p->data), "%s/a/b", p->dir);
    snprintf(p->file, sizeof(p->file), "%s/ident", p->data);
    *state = p;
    return 0;
}

static int
teardown(void **state)
{
    place_t *p = *state;
    char path[128];

    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", p->data, (const char *[]){"ident", "ident.new", "lock"}[i]);
        unlink(path);
    }
    rmdir(p->data);
    snprintf(path, sizeof(path), "%s/a", p->dir);
    rmdir(path);
    assert_int_equal(rmdir(p->dir), 0);
    free(p);
    return 0;
}

TEST_WITH(test_identity_stays_and_term_rises, setup, teardown)
{
    place_t *p = *state;
    kvp_ident_t first, second, third;

    assert_int_equal(kvp_ident_open(p->data, 1, true, &first), KVP_OK);
    assert_int_equal(first.term, 1);
    assert_false(first.had_master);
    assert_string_equal(first.dir, p->data);
    assert_int_equal(kvp_ident_save(&first, 1), KVP_OK);
    kvp_ident_close(&first);

    assert_int_equal(kvp_ident_open(p->data, 1, true, &second), KVP_OK);
    assert_int_equal(second.term, 2);
    assert_memory_equal(second.pool_id, first.pool_id, sizeof(first.pool_id));
    assert_int_equal(second.digest_seed, first.digest_seed);
    assert_true(second.had_master);
    assert_int_equal(kvp_ident_save(&second, 40), KVP_OK);
    assert_int_equal(kvp_ident_save(&second, 7), KVP_OK);
    kvp_ident_close(&second);

    assert_int_equal(kvp_ident_open(p->data, 1, true, &third), KVP_OK);
    assert_int_equal(third.term, 41);
    kvp_ident_close(&third);

    assert_int_equal(kvp_ident_open(p->data, 1, false, &third), KVP_OK); /* as one whose terms are given out in etcd */
    assert_int_equal(third.term, 41);
    kvp_ident_close(&third);
}

/* A start of which nothing came leaves nothing behind: the next one is as new as this one was. */
TEST_WITH(test_made_up_identity_is_not_kept, setup, teardown)
{
    place_t *p = *state;
    kvp_ident_t first, second;

    assert_int_equal(kvp_ident_open(p->data, 1, true, &first), KVP_OK);
    kvp_ident_close(&first);
    assert_int_equal(kvp_ident_open(p->data, 1, true, &second), KVP_OK);
    assert_int_equal(second.term, 1);
    assert_false(second.had_master);
    assert_memory_not_equal(second.pool_id, first.pool_id, sizeof first.pool_id);
    kvp_ident_close(&second);
}

TEST_WITH(test_second_master_is_kept_out, setup, teardown)
{
    place_t *p = *state;
    kvp_ident_t first, second;

    assert_int_equal(kvp_ident_open(p->data, 1, true, &first), KVP_OK);
    assert_int_equal(kvp_ident_open(p->data, 1, true, &second), KVP_BUSY);
    kvp_ident_close(&first);
    assert_int_equal(kvp_ident_open(p->data, 1, true, &second), KVP_OK);
    kvp_ident_close(&second);
}

/* Every single-bit change of the file, and every shorter one, is noticed. */
TEST_WITH(test_damage_is_refused, setup, teardown)
{
    place_t *p = *state;
    kvp_ident_t ident;
    char good[512], bad[512];
    size_t len;

    assert_int_equal(kvp_ident_open(p->data, 1, true, &ident), KVP_OK);
    assert_int_equal(kvp_ident_save(&ident, 1), KVP_OK);
    kvp_ident_close(&ident);
    int fd = open(p->file, O_RDWR);
    assert_true(fd >= 0);
    ssize_t n = read(fd, good, sizeof(good));
    assert_true(n > 0 && (size_t)n < sizeof(good));
    len = (size_t)n;
    for (size_t i = 0; i < len * 8; i++) {
        memcpy(bad, good, len);
        bad[i / 8] ^= (char)(1 << i % 8);
        assert_int_equal(pwrite(fd, bad, len, 0), len);
        assert_int_equal(kvp_ident_open(p->data, 1, true, &ident), KVP_CORRUPT);
    }
    for (size_t cut = 0; cut < len; cut++) {
        assert_int_equal(pwrite(fd, good, len, 0), len);
        assert_int_equal(ftruncate(fd, (off_t)cut), 0);
        assert_int_equal(kvp_ident_open(p->data, 1, true, &ident), KVP_CORRUPT);
    }
    assert_int_equal(pwrite(fd, good, len, 0), len);
    assert_int_equal(kvp_ident_open(p->data, 1, true, &ident), KVP_OK);
    assert_int_equal(ident.term, 2);
    kvp_ident_close(&ident);
    close(fd);
}

TEST_WITH(test_terms_run_out, setup, teardown)
{
    place_t *p = *state;
    kvp_ident_t old, ident, again;

    assert_int_equal(kvp_ident_open(p->data, 1, true, &old), KVP_OK);
    assert_int_equal(kvp_ident_save(&old, KVP_TERM_MAX), KVP_OK);
    kvp_ident_close(&old);
    assert_int_equal(kvp_ident_open(p->data, 1, true, &ident), KVP_OK);
    assert_int_equal(ident.term, 1);
    assert_true(ident.had_master); /* nodes of the pool before do not name it */
    assert_memory_not_equal(ident.pool_id, old.pool_id, sizeof old.pool_id);
    assert_int_not_equal(ident.digest_seed, old.digest_seed);
    kvp_ident_close(&ident);
    assert_int_equal(kvp_ident_open(p->data, 1, true, &again), KVP_OK); /* it is on disk */
    assert_int_equal(again.term, 2);
    assert_memory_equal(again.pool_id, ident.pool_id, sizeof ident.pool_id);
    kvp_ident_close(&again);
}

TEST_WITH(test_term_that_the_operator_names, setup, teardown)
{
    place_t *p = *state;
    kvp_ident_t ident;

    assert_int_equal(kvp_ident_open(p->data, 40, true, &ident), KVP_OK);
    assert_int_equal(ident.term, 40);
    assert_int_equal(kvp_ident_save(&ident, 40), KVP_OK);
    kvp_ident_close(&ident);
    assert_int_equal(kvp_ident_open(p->data, 7, true, &ident), KVP_OK); /* it is a least one */
    assert_int_equal(ident.term, 41);
    kvp_ident_close(&ident);
    assert_int_equal(kvp_ident_open(p->data, 90, true, &ident), KVP_OK);
    assert_int_equal(ident.term, 90);
    kvp_ident_close(&ident);
}

TEST(test_none_keeps_nothing)
{
    kvp_ident_t a, b;

    assert_int_equal(kvp_ident_open("none", 1, true, &a), KVP_OK);
    assert_int_equal(kvp_ident_open("none", 1, true, &b), KVP_OK);
    assert_string_equal(a.dir, "none");
    assert_int_equal(a.term, 1);
    assert_true(memcmp(a.pool_id, b.pool_id, sizeof(a.pool_id)) != 0);
    assert_int_equal(kvp_ident_save(&a, 9), KVP_OK);
    assert_int_equal(a.term, 9);
    kvp_ident_close(&a);
    kvp_ident_close(&b);
}

/* A file in the way stops an explicit directory; the default one only warns. */
TEST_WITH(test_default_falls_back_and_an_explicit_one_does_not, setup, teardown)
{
    place_t *p = *state;
    kvp_ident_t ident;
    char path[128], default_dir[96];

    snprintf(path, sizeof(path), "%s/kvpool", p->dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(kvp_ident_open(path, 1, true, &ident), KVP_SYS);

    assert_int_equal(setenv("XDG_STATE_HOME", p->dir, 1), 0);
    assert_int_equal(kvp_ident_open(NULL, 1, true, &ident), KVP_OK);
    assert_string_equal(ident.dir, "none");
    kvp_ident_close(&ident);
    assert_int_equal(unlink(path), 0);

    /* With nothing in the way the default is made and used. */
    snprintf(default_dir, sizeof(default_dir), "%s/a", p->dir);
    assert_int_equal(setenv("XDG_STATE_HOME", default_dir, 1), 0);
    assert_int_equal(kvp_ident_open(NULL, 1, true, &ident), KVP_OK);
    assert_string_equal(ident.dir + strlen(default_dir), "/kvpool");
    assert_int_equal(kvp_ident_save(&ident, 1), KVP_OK);
    kvp_ident_close(&ident);
    snprintf(path, sizeof(path), "%s/kvpool/ident", default_dir);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/kvpool/lock", default_dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(ident.dir), 0);
}

/* What these tests provoke is logged as it should be, and not wanted here. */
static void
drop_line(void *arg, kvp_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

int
main(void)
{
    kvp_log_set_sink(drop_line, NULL);
    return run_cases(NULL, NULL);
}
