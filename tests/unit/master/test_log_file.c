/* SPDX-License-Identifier: Apache-2.0
 * The files of a log: what was written is read again, over files; what does not belong to it is not. */
#include "master/shell/log_file.h"
#include "tests/cases.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char dir[64];
    int fd;
    kvp_log_file_t lf;
    char got[256]; /* what was read */
    size_t len;
    bool is_new;
    size_t stop_at; /* bytes after which the reader wants no more; 0 = it does */
} place_t;

static int
setup(void **state)
{
    place_t *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    snprintf(p->dir, sizeof(p->dir), "%s/kvp-log-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(p->dir));
    p->fd = open(p->dir, O_RDONLY | O_DIRECTORY);
    assert_true(p->fd >= 0);
    kvp_log_file_init(&p->lf);
    *state = p;
    return 0;
}

static void
path_of(const place_t *p, const char *name, char path[128])
{
    snprintf(path, 128, "%s/log/%s", p->dir, name);
}

static int
teardown(void **state)
{
    place_t *p = *state;
    char path[128];

    kvp_log_file_fini(&p->lf);
    path_of(p, "", path);
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir != NULL) closedir(dir);
    rmdir(path);
    assert_int_equal(rmdir(p->dir), 0);
    close(p->fd);
    free(p);
    return 0;
}

static kvp_err_t
note(void *arg, const void *bytes, size_t len)
{
    place_t *p = arg;

    assert_true(p->len + len < sizeof p->got);
    memcpy(p->got + p->len, bytes, len);
    p->len += len;
    return p->stop_at > 0 && p->len >= p->stop_at ? KVP_CORRUPT : KVP_OK;
}

/* Opens the log anew and returns what it says. */
static const char *
reopen(place_t *p)
{
    kvp_log_file_fini(&p->lf);
    assert_int_equal(kvp_log_file_open(&p->lf, p->fd, p->dir, p->is_new), KVP_OK);
    uint64_t n;
    p->len = 0;
    assert_int_equal(kvp_log_file_read(&p->lf, note, p, &n), KVP_OK);
    assert_int_equal(n, p->len);
    p->got[p->len] = '\0';
    return p->got;
}

static void
write_text(place_t *p, const char *text)
{
    assert_int_equal(kvp_log_file_write(&p->lf, text, strlen(text)), KVP_OK);
}

/* Three files: "first", "second", "third". */
static void
write_three(place_t *p)
{
    assert_string_equal(reopen(p), "");
    assert_int_equal(kvp_log_file_cut(&p->lf, 0), KVP_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvp_log_file_turn(&p->lf), KVP_OK);
        write_text(p, (const char *[]){"first", "second", "third"}[i]);
    }
    assert_int_equal(kvp_log_file_bytes(&p->lf), 16);
}

TEST_WITH(test_written_is_read, setup, teardown)
{
    place_t *p = *state;

    write_three(p);
    assert_string_equal(reopen(p), "firstsecondthird");
    assert_int_equal(kvp_log_file_cut(&p->lf, 16), KVP_OK);
    write_text(p, "more");
    assert_string_equal(reopen(p), "firstsecondthirdmore");
}

static void
forget(place_t *p, uint64_t before)
{
    kvp_log_gone_t gone;

    kvp_log_file_forget(&p->lf, before, &gone);
    kvp_log_file_remove(&p->lf, &gone);
}

TEST_WITH(test_what_is_before_a_position_is_forgotten, setup, teardown)
{
    place_t *p = *state;

    write_three(p);
    forget(p, 10); /* in the middle of the second */
    assert_string_equal(reopen(p), "secondthird");
    forget(p, 1000); /* the last one stays, whatever is said */
    assert_string_equal(reopen(p), "third");
    assert_int_equal(kvp_log_file_cut(&p->lf, 5), KVP_OK);
    assert_int_equal(p->lf.end, 16);
    write_text(p, "!");
    assert_string_equal(reopen(p), "third!");
}

/* Wherever it is cut, what is written next follows. */
TEST_WITH(test_cut_anywhere, setup, teardown)
{
    place_t *p = *state;
    char want[32];

    for (size_t kept = 0; kept <= 16; kept++) {
        write_three(p);
        (void)reopen(p);
        assert_int_equal(kvp_log_file_cut(&p->lf, kept), KVP_OK);
        if (kept == 0) assert_int_equal(kvp_log_file_turn(&p->lf), KVP_OK);
        write_text(p, "+");
        snprintf(want, sizeof want, "%.*s+", (int)kept, "firstsecondthird");
        assert_string_equal(reopen(p), want);
        forget(p, 1000);
        assert_int_equal(kvp_log_file_cut(&p->lf, 0), KVP_OK);
    }
}

TEST_WITH(test_reader_that_has_enough, setup, teardown)
{
    place_t *p = *state;

    write_three(p);
    p->stop_at = 7;
    assert_string_equal(reopen(p), "firstsecond");
}

/* A file that is missing, or shorter than it was, ends what is read; the cut takes away what lies behind. */
TEST_WITH(test_file_that_does_not_follow, setup, teardown)
{
    place_t *p = *state;
    char path[128];

    write_three(p);
    path_of(p, "0000000000000005.log", path);
    assert_int_equal(truncate(path, 3), 0);
    assert_string_equal(reopen(p), "firstsec");
    assert_int_equal(p->lf.found_bytes, 13); /* so there is more than what was read */
    assert_int_equal(kvp_log_file_cut(&p->lf, 8), KVP_OK);
    write_text(p, "ndone");
    assert_string_equal(reopen(p), "firstsecndone");
}

/* The end of a log that another boot wrote may be missing. */
TEST_WITH(test_log_of_another_boot, setup, teardown)
{
    place_t *p = *state;
    char path[128];

    write_three(p);
    path_of(p, "boot", path);
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, "another", 7), 7);
    close(fd);
    assert_string_equal(reopen(p), "firstsecondthird");
    assert_true(p->lf.may_lack_end);
    assert_string_equal(reopen(p), "firstsecondthird");
    assert_true(p->lf.may_lack_end);
    assert_int_equal(kvp_log_file_cut(&p->lf, 16), KVP_OK);
    write_text(p, "anew");
    assert_string_equal(reopen(p), "firstsecondthirdanew");
    assert_false(p->lf.may_lack_end); /* it goes on in this boot */
    assert_int_equal(unlink(path), 0);
    assert_string_equal(reopen(p), "firstsecondthirdanew");
    assert_true(p->lf.may_lack_end);
}

TEST_WITH(test_log_of_a_pool_that_is_over, setup, teardown)
{
    place_t *p = *state;

    write_three(p);
    p->is_new = true;
    assert_string_equal(reopen(p), "");
    p->is_new = false;
    assert_int_equal(kvp_log_file_cut(&p->lf, 0), KVP_OK);
    write_three(p);
}

TEST_WITH(test_names_that_are_not_ours, setup, teardown)
{
    place_t *p = *state;
    static const char *const names[] = {"5.log", "0000000000000005.log.bak", "000000000000000G.log",
                                        "0000000000000005.LOG"};
    char path[128];

    write_three(p);
    for (size_t i = 0; i < KVP_ARRAY_LEN(names); i++) {
        path_of(p, names[i], path);
        close(open(path, O_WRONLY | O_CREAT, 0600));
    }
    assert_string_equal(reopen(p), "firstsecondthird");
    for (unsigned i = 0; i <= KVP_LOG_FILES_MAX; i++) {
        char name[32];

        snprintf(name, sizeof name, "%016x.log", 100 + i);
        path_of(p, name, path);
        close(open(path, O_WRONLY | O_CREAT, 0600));
    }
    kvp_log_file_fini(&p->lf);
    assert_int_equal(kvp_log_file_open(&p->lf, p->fd, p->dir, p->is_new), KVP_LIMIT);
}

/* What could not be written may be written again, and nothing of the first try is left. */
TEST_WITH(test_disk_that_is_full, setup, teardown)
{
    place_t *p = *state;

    write_three(p);
    int fd = p->lf.fd;
    p->lf.fd = open("/dev/full", O_WRONLY);
    assert_int_equal(kvp_log_file_write(&p->lf, "lost", 4), KVP_SYS);
    assert_int_equal(errno, ENOSPC);
    close(p->lf.fd);
    p->lf.fd = fd;
    write_text(p, "kept");
    assert_string_equal(reopen(p), "firstsecondthirdkept");
}

TEST_MAIN()
