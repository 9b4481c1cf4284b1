/* SPDX-License-Identifier: Apache-2.0
 * Where sockets of this user lie, which of those that a peer tells are looked for, and who is trusted. Directories in
 * /tmp; where the test is root another user's as well. */
#include "common/hostid.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char home[64], dir[80];

static int
begin(void **state)
{
    (void)state;
    snprintf(home, sizeof home, "/tmp/kvp-hostid-XXXXXX");
    if (mkdtemp(home) == NULL || chmod(home, 0755) != 0) return 1;
    snprintf(dir, sizeof dir, "%s/d", home);
    unsetenv("KVPOOL_TRUST_UID");
    unsetenv("XDG_RUNTIME_DIR");
    return setenv("KVPOOL_RUNTIME_DIR", dir, 1);
}

static int
end(void **state)
{
    char command[96];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", home);
    return system(command) == 0 ? 0 : 1;
}

static int
listen_in(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, name);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

TEST_WITH(test_directory_is_of_its_owner_and_at_most_its_group, begin, end)
{
    static const struct {
        mode_t mode;
        kvp_err_t err;
    } cases[] = {{0700, KVP_OK}, {0750, KVP_OK}, {0770, KVP_SYS}, {0755, KVP_SYS}, {0701, KVP_SYS}, {02750, KVP_OK}};
    char out[108];

    assert_int_equal(kvp_runtime_dir(out, sizeof out), KVP_OK); /* made */
    assert_string_equal(out, dir);
    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        assert_int_equal(chmod(dir, cases[i].mode), 0);
        assert_int_equal(kvp_runtime_dir(out, sizeof out), cases[i].err);
    }
    assert_int_equal(setenv("KVPOOL_RUNTIME_DIR", "relative", 1), 0);
    assert_int_equal(kvp_runtime_dir(out, sizeof out), KVP_SYS);
    assert_int_equal(setenv("KVPOOL_RUNTIME_DIR", "", 1), 0); /* as if not set: no group */
    assert_int_equal(setenv("XDG_RUNTIME_DIR", home, 1), 0);
    assert_int_equal(kvp_runtime_dir(out, sizeof out), KVP_OK);
    assert_int_equal(chmod(out, 0750), 0);
    snprintf(dir, sizeof dir, "%.79s", out);
    assert_int_equal(kvp_runtime_dir(out, sizeof out), KVP_OK);
    assert_string_not_equal(out, dir); /* the next place */
}

TEST_WITH(test_only_our_names_in_our_directory, begin, end)
{
    static const struct {
        kvp_socket_t kind;
        const char *told;
        kvp_err_t err;
    } cases[] = {
        {KVP_SOCKET_MASTER, "/elsewhere/master-50051.sock", KVP_OK},
        {KVP_SOCKET_MASTER, "master-50051.sock", KVP_OK},
        {KVP_SOCKET_MASTER, "/elsewhere/master-50052.sock", KVP_UNREACHABLE},
        {KVP_SOCKET_MASTER, "/d/node-12-0000abcd.sock", KVP_INVALID},
        {KVP_SOCKET_MASTER, "/d/master-123456.sock", KVP_INVALID},
        {KVP_SOCKET_MASTER, "/d/master-.sock", KVP_INVALID},
        {KVP_SOCKET_MASTER, "/d/master-1.sock/", KVP_INVALID},
        {KVP_SOCKET_MASTER, "@master-50051.sock", KVP_INVALID},
        {KVP_SOCKET_MASTER, "/run/docker.sock", KVP_INVALID},
        {KVP_SOCKET_NODE, "/elsewhere/node-12-0000abcd.sock", KVP_OK},
        {KVP_SOCKET_NODE, "/d/node-13-0000abcd.sock", KVP_UNREACHABLE}, /* a file */
        {KVP_SOCKET_NODE, "/d/node-12-0000abcd.sock.x", KVP_INVALID},
        {KVP_SOCKET_NODE, "/d/node-12-0000ABCD.sock", KVP_INVALID},
        {KVP_SOCKET_NODE, "/d/..", KVP_INVALID},
        {KVP_SOCKET_NODE, "", KVP_INVALID},
        {KVP_SOCKET_PEER, "@kvpool-peer-0123456789abcdef", KVP_OK},
        {KVP_SOCKET_PEER, "@kvpool-peer-", KVP_INVALID},
        {KVP_SOCKET_PEER, "@kvpool-peer-0123456789abcdefa", KVP_INVALID},
        {KVP_SOCKET_PEER, "@another", KVP_INVALID},
    };
    char out[108];
    FILE *plain;

    assert_int_equal(kvp_runtime_dir(out, sizeof out), KVP_OK);
    close(listen_in("master-50051.sock"));
    close(listen_in("node-12-0000abcd.sock"));
    snprintf(out, sizeof out, "%s/node-13-0000abcd.sock", dir);
    plain = fopen(out, "we");
    assert_non_null(plain);
    fclose(plain);
    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        kvp_err_t err = kvp_runtime_socket(cases[i].kind, cases[i].told, out, sizeof out);

        if (err != cases[i].err) fail_msg("%s: %s", cases[i].told, kvp_err_name(err));
        if (err == KVP_OK && cases[i].kind != KVP_SOCKET_PEER)
            assert_true(strncmp(out, dir, strlen(dir)) == 0 && strchr(out + strlen(dir) + 1, '/') == NULL);
    }
    assert_int_equal(chmod(dir, 0777), 0); /* anybody could have put it there */
    assert_int_equal(kvp_runtime_socket(KVP_SOCKET_MASTER, "master-50051.sock", out, sizeof out), KVP_UNREACHABLE);
}

TEST_WITH(test_users_that_are_trusted, begin, end)
{
    uid_t own = geteuid();

    assert_true(kvp_uid_is_trusted(own));
    assert_true(kvp_uid_is_trusted(0));
    assert_false(kvp_uid_is_trusted(own + 7));
    assert_int_equal(kvp_runtime_set(NULL, "4000,12x"), KVP_INVALID);
    assert_int_equal(kvp_runtime_set(NULL, "-1"), KVP_INVALID);
    assert_int_equal(kvp_runtime_set(NULL, "4294967295"), KVP_INVALID); /* which stands for nobody */
    assert_false(kvp_uid_is_trusted(4000));
    assert_int_equal(kvp_runtime_set(dir, "4000,4001"), KVP_OK);
    assert_true(kvp_uid_is_trusted(4000));
    assert_true(kvp_uid_is_trusted(4001));
    assert_false(kvp_uid_is_trusted(400));
    assert_int_equal(chmod(dir, 0777), 0);
    assert_int_equal(kvp_runtime_set(dir, NULL), KVP_INVALID);
    assert_int_equal(
        kvp_runtime_set("/tmp/kvpool-of-a-name-that-leaves-no-room-for-the-names-of-the-sockets-behind-it", NULL),
        KVP_INVALID);
}

/* The process that listens is another user's: it may own the directory once it is trusted, not before. */
TEST_WITH(test_directory_of_another_user, begin, end)
{
    char out[108];
    int fd, to;

    if (geteuid() != 0) {
        print_message("only root can make another user's directory\n");
        skip();
    }
    assert_int_equal(mkdir(dir, 0750), 0);
    close(listen_in("master-1.sock"));
    assert_int_equal(chown(dir, 4000, 4000), 0);
    assert_int_equal(kvp_runtime_dir(out, sizeof out), KVP_SYS);
    assert_int_equal(kvp_runtime_socket(KVP_SOCKET_MASTER, "master-1.sock", out, sizeof out), KVP_UNREACHABLE);
    assert_int_equal(kvp_runtime_set(NULL, "4000"), KVP_OK);
    assert_int_equal(kvp_runtime_socket(KVP_SOCKET_MASTER, "master-1.sock", out, sizeof out), KVP_OK);

    assert_int_equal(seteuid(4000), 0);
    fd = listen_in("master-2.sock");
    assert_int_equal(seteuid(0), 0);
    to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/master-2.sock", dir);
    assert_int_equal(connect(to, (struct sockaddr *)&at, sizeof at), 0);
    assert_true(kvp_peer_is_trusted(to));
    unsetenv("KVPOOL_TRUST_UID");
    assert_false(kvp_peer_is_trusted(to));
    close(to);
    close(fd);
}

TEST_MAIN()
