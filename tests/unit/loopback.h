/* SPDX-License-Identifier: Apache-2.0
 * A socket that listens, for tests that are somebody's other side, or nobody's. Header only. */
#ifndef KVP_TEST_LOOPBACK_H
#define KVP_TEST_LOOPBACK_H

#include "tests/cases.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

/* listen_local listens on a port of its own and writes "127.0.0.1:PORT" to at. Connections are made without anybody's
 * doing; until the test accepts them and says something they are silent. The caller closes it. */
static inline int
listen_local(char at[32])
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    snprintf(at, 32, "127.0.0.1:%u", ntohs(addr.sin_port));
    return fd;
}

#endif
