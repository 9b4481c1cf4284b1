/* SPDX-License-Identifier: Apache-2.0 */
#include "node/keeper/packet.h"

#include "common/waits.h"
#include "common/hash.h"
#include "common/hostid.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The buffer for file descriptors has room for one more than is legal: too many are then detected, not cut off. */
#define ROOM CMSG_SPACE((KVP_KEEPER_FDS_MAX + 1) * sizeof(int))

kvp_err_t
kvp_keeper_at(const char *name, struct sockaddr_un *at_out)
{
    char dir[sizeof at_out->sun_path - 32];

    if (kvp_runtime_dir(dir, sizeof dir) != KVP_OK) return KVP_SYS;
    *at_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(at_out->sun_path, sizeof at_out->sun_path, "%s/keeper-%016llx.sock", dir,
             (unsigned long long)kvp_sum(name, strlen(name)));
    return KVP_OK;
}

bool
kvp_keeper_is_peer(int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && (who.uid == geteuid() || who.uid == 0);
}

static kvp_err_t
wait_for(int fd, short events, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    uint64_t end_ns = kvp_now_ns() + (uint64_t)timeout_ms * KVP_NS_PER_MS;
    int got;

    do
        got = poll(&p, 1, timeout_ms);
    while (got < 0 && errno == EINTR && kvp_now_ns() < end_ns);
    return got > 0 ? KVP_OK : KVP_DEADLINE;
}

kvp_err_t
kvp_keeper_send(int fd, const kvp_keeper_msg_t *msg, const int *fds, int timeout_ms)
{
    struct iovec iov = {.iov_base = (void *)msg, .iov_len = sizeof *msg};
    _Alignas(struct cmsghdr) uint8_t room[ROOM] = {0};
    struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};

    if (msg->fds_n > 0) {
        struct cmsghdr *c;

        hdr.msg_control = room;
        hdr.msg_controllen = CMSG_SPACE(msg->fds_n * sizeof(int));
        c = CMSG_FIRSTHDR(&hdr);
        *c = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(msg->fds_n * sizeof(int))};
        memcpy(CMSG_DATA(c), fds, msg->fds_n * sizeof(int));
    }
    for (;;) {
        kvp_err_t err;

        if (sendmsg(fd, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *msg) return KVP_OK;
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return KVP_DISCONNECTED;
        err = wait_for(fd, POLLOUT, timeout_ms);
        if (err != KVP_OK) return err;
    }
}

static size_t
take_fds(struct msghdr *hdr, int fds[KVP_KEEPER_FDS_MAX + 1])
{
    size_t n = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(hdr); c != NULL; c = CMSG_NXTHDR(hdr, c)) {
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        here = kvp_min_u64(here, KVP_KEEPER_FDS_MAX + 1 - n);
        memcpy(fds + n, CMSG_DATA(c), here * sizeof(int));
        n += here;
    }
    return n;
}

kvp_err_t
kvp_keeper_recv(int fd, kvp_keeper_msg_t *msg_out, int *fds_out, int timeout_ms)
{
    _Alignas(struct cmsghdr) uint8_t room[ROOM];
    uint8_t bytes[sizeof *msg_out];
    struct iovec iov = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int fds[KVP_KEEPER_FDS_MAX + 1];
    kvp_err_t err = wait_for(fd, POLLIN, timeout_ms);
    ssize_t len;
    size_t n;

    if (err != KVP_OK) return err;
    do
        len = recvmsg(fd, &hdr, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (len < 0 && errno == EINTR);
    if (len < 0 && errno == EAGAIN) return KVP_DEADLINE;
    if (len <= 0) return KVP_DISCONNECTED;
    n = take_fds(&hdr, fds);
    if ((hdr.msg_flags & MSG_CTRUNC) != 0)
        err = KVP_LIMIT;
    else
        err = (hdr.msg_flags & MSG_TRUNC) != 0 ? KVP_PROTO : kvp_keeper_msg_check(bytes, (size_t)len, n, msg_out);
    for (size_t i = 0; i < n; i++) {
        if (err == KVP_OK)
            fds_out[i] = fds[i];
        else
            close(fds[i]);
    }
    return err;
}
