/* SPDX-License-Identifier: Apache-2.0
 * A machine without the libraries of RDMA, or with ones that are too old: this library works there, and says what is
 * missing. */
#include "transport/all/registry.h"
#include "transport/transport.h"
#include "tests/cases.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>

static bool is_installed;

/* The linker puts them in the place of dlopen and dlsym. */
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlsym(void *lib, const char *name);

void *
__wrap_dlopen(const char *name, int flags)
{
    (void)name, (void)flags;
    return is_installed ? (void *)&is_installed : NULL;
}

/* All of it but what came last. */
void *
__wrap_dlsym(void *lib, const char *name)
{
    return strcmp(name, "ibv_reg_dmabuf_mr") == 0 ? NULL : lib;
}

static int
look(const char *part)
{
    const kvp_transport_ops_t *list[8];
    const char *said;
    char why[1024];
    size_t n;

    if (kvp_transport_find("rdma")->probe(&said) != KVP_NOTSUP || strstr(said, part) == NULL) return 1;
    if (kvp_transports_parse("rdma", list, KVP_ARRAY_LEN(list), &n, why, sizeof why) != KVP_NOTSUP) return 2;
    if (strstr(why, part) == NULL) return 3;
    if (kvp_transports_parse("rdma,tcp", list, KVP_ARRAY_LEN(list), &n, why, sizeof why) == KVP_OK) return 4;
    if (kvp_transports_default(list, KVP_ARRAY_LEN(list), &n, why, sizeof why) != KVP_OK) return 5;
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i]->name, "rdma") == 0) return 6;
    return n == 0 ? 7 : 0;
}

/* The libraries are looked for once in a process: so each machine has one of its own. */
static void
check(bool has_libraries, const char *part)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        is_installed = has_libraries;
        _exit(look(part));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(test_without_the_libraries)
{
    check(false, "librdmacm1, ibverbs-providers");
}

TEST(test_with_libraries_that_are_too_old)
{
    check(true, "too old");
}

TEST_MAIN()
