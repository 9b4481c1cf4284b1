/* SPDX-License-Identifier: Apache-2.0 */
#include "node/keeper/link.h"

#include "common/waits.h"
#include "common/log.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "kvpool-keeper"
#define AGAIN_MS 5
#define START_NS KVP_NS_PER_S /* the shortest time between two starts of a keeper */
#define BUSY_MS 20

kvp_err_t
kvp_keeper_link_init(kvp_keeper_link_t *l, const char *name, uint64_t hold_ms)
{
    ssize_t n;
    char *slash;

    *l = (kvp_keeper_link_t){.fd = -1, .hold_ms = hold_ms};
    snprintf(l->name, sizeof l->name, "%s", name);
    /* The path of this program is read now, because another file may have the path when a keeper is started. */
    n = readlink("/proc/self/exe", l->program, sizeof l->program - sizeof PROGRAM);
    l->program[n < 0 ? 0 : n] = '\0';
    slash = strrchr(l->program, '/');
    memcpy(slash == NULL ? l->program : slash + 1, PROGRAM, sizeof PROGRAM);
    return kvp_keeper_at(name, &l->at);
}

void
kvp_keeper_link_close(kvp_keeper_link_t *l)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

/* make_environment returns this process's environment without KVPOOL_CONFIG, which names this program's file of
 * options. The caller owns the array but not its texts. NULL = no memory. */
static char **
make_environment(void)
{
    size_t n = 0, kept = 0;
    char **copy;

    while (environ[n] != NULL)
        n++;
    copy = calloc(n + 1, sizeof *copy);
    for (size_t i = 0; copy != NULL && i < n; i++)
        if (strncmp(environ[i], "KVPOOL_CONFIG=", 14) != 0) copy[kept++] = environ[i];
    return copy;
}

/* Starts a keeper. The started process ends once its child, the keeper, listens in the background. */
static kvp_err_t
start_keeper(kvp_keeper_link_t *l)
{
    char *argv[] = {(char *)PROGRAM,
                    (char *)"--name",
                    l->name,
                    (char *)"--detach",
                    (char *)"yes",
                    (char *)"--log-format",
                    (char *)kvp_log_format_name(),
                    NULL};
    char **env = make_environment();
    posix_spawnattr_t attr;
    sigset_t none;
    int rc;

    if (env == NULL) return KVP_NOMEM;
    sigemptyset(&none);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    rc = posix_spawn(&l->starting, l->program, NULL, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    free(env);
    l->started_ns = kvp_now_ns();
    if (rc == 0) return KVP_EAGAIN;
    l->starting = 0;
    errno = rc;
    if (!l->has_complained) kvp_log_error("node", "cannot start %s: %m", l->program);
    l->has_complained = true;
    return KVP_SYS;
}

bool
kvp_keeper_link_reap(kvp_keeper_link_t *l)
{
    if (l->starting > 0 && waitpid(l->starting, NULL, WNOHANG) == 0) return false;
    l->starting = 0;
    return true;
}

/* start_if_due starts a keeper unless a start is under way, or was less than START_NS ago. */
static kvp_err_t
start_if_due(kvp_keeper_link_t *l)
{
    if (!kvp_keeper_link_reap(l)) return KVP_EAGAIN;
    if (l->started_ns != 0 && kvp_now_ns() - l->started_ns < START_NS) return KVP_EAGAIN;
    return start_keeper(l);
}

static kvp_err_t
say_hello(kvp_keeper_link_t *l, bool is_new)
{
    kvp_keeper_msg_t msg = kvp_keeper_msg_make(KVP_KEEPER_HELLO, 1, l->name);
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0u);
    kvp_err_t err;

    if (pidfd < 0) {
        kvp_log_error("node", "no descriptor of this process for the keeper: %m");
        return KVP_SYS;
    }
    msg.is_new = is_new;
    msg.hold_ms = l->hold_ms;
    err = kvp_keeper_send(l->fd, &msg, &pidfd, KVP_KEEPER_SEND_MS);
    close(pidfd);
    return err == KVP_OK ? KVP_OK : KVP_EAGAIN;
}

kvp_err_t
kvp_keeper_link_call(kvp_keeper_link_t *l, bool is_new)
{
    kvp_err_t err = KVP_EAGAIN;

    kvp_keeper_link_close(l);
    l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0) {
        kvp_log_error("node", "no socket to the keeper: %m");
        return KVP_SYS;
    }
    if (connect(l->fd, (const struct sockaddr *)&l->at, sizeof l->at) != 0) {
        if (errno == ENOENT || errno == ECONNREFUSED) err = start_if_due(l);
    } else if (kvp_keeper_is_peer(l->fd)) {
        err = say_hello(l, is_new);
    } else {
        kvp_log_error("node", "the listener at %s belongs to another user", l->at.sun_path);
        err = KVP_SYS;
    }
    if (err != KVP_OK) kvp_keeper_link_close(l);
    return err;
}

static void
pause_ms(uint32_t ms)
{
    struct timespec wait = kvp_timespec(ms * KVP_NS_PER_MS);

    nanosleep(&wait, NULL);
}

static kvp_err_t
meet_once(kvp_keeper_link_t *l, uint64_t answer_ns, kvp_keeper_msg_t *welcome_out)
{
    int none[KVP_KEEPER_FDS_MAX];
    kvp_err_t err = kvp_keeper_link_call(l, false);

    if (err != KVP_OK) return err;
    err = kvp_keeper_recv(l->fd, welcome_out, none, (int)(answer_ns / KVP_NS_PER_MS));
    if (err == KVP_OK && welcome_out->kind != KVP_KEEPER_WELCOME) {
        for (uint32_t i = 0; i < welcome_out->fds_n; i++)
            close(none[i]);
        err = KVP_PROTO;
    }
    if (err == KVP_OK) err = welcome_out->err;
    if (err != KVP_OK) kvp_keeper_link_close(l);
    return err == KVP_DISCONNECTED ? KVP_EAGAIN : err;
}

kvp_err_t
kvp_keeper_link_meet(kvp_keeper_link_t *l, uint64_t answer_ns, uint64_t busy_ns, kvp_keeper_msg_t *welcome_out)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_err_t err;

    for (;;) {
        err = meet_once(l, answer_ns, welcome_out);
        if (err != KVP_EAGAIN && err != KVP_BUSY) break;
        if (kvp_now_ns() - began_ns >= (err == KVP_BUSY ? busy_ns : answer_ns)) break;
        pause_ms(err == KVP_BUSY ? BUSY_MS : AGAIN_MS);
    }
    return err == KVP_EAGAIN ? KVP_DEADLINE : err;
}
