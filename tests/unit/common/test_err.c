/* SPDX-License-Identifier: Apache-2.0
 * The error table: numbers are unique and inside their group, names and texts are found again. */
#include "common/base.h"
#include "common/log.h"
#include "tests/cases.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int all[] = {
#define NUMBER(num, name, dropin, text) num,
    KVPOOL_ERR_MAP(NUMBER)
#undef NUMBER
};

TEST(test_numbers_are_unique_and_negative)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(all); i++) {
        assert_true(all[i] == 0 ? i == 0 : (all[i] < 0 && all[i] > -90));
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(all[i], all[k]);
            assert_string_not_equal(kvp_err_name(all[i]), kvp_err_name(all[k]));
        }
    }
}

TEST(test_names_and_texts)
{
    assert_string_equal(kvp_err_name(KVP_OK), "OK");
    assert_string_equal(kvp_err_name(KVP_NOT_FOUND), "NOT_FOUND");
    assert_string_equal(kvp_err_text(KVP_NOT_FOUND), "no such object");
    assert_int_equal(KVPOOL_HELD, KVP_HELD);
}

TEST(test_unknown_numbers_are_named_so)
{
    assert_string_equal(kvp_err_name(-12345), "UNKNOWN");
    assert_string_equal(kvp_err_name(1), "UNKNOWN");
    assert_non_null(kvp_err_text(1));
}

TEST(test_panic_writes_its_line_and_aborts)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(fds[1], STDERR_FILENO);
        kvp_panic("slot %d", 17);
    }
    close(fds[1]);
    char line[256] = {0};
    assert_true(read(fds[0], line, sizeof(line) - 1) > 0);
    close(fds[0]);
    assert_non_null(strstr(line, " level=error part=panic msg=\"slot 17\"\n"));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST_MAIN()
