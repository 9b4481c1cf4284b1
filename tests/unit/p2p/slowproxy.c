/* SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/p2p/slowproxy.h"

#include "proto/frame.h"
#include "proto/wire.h"
#include "tests/unit/loopback.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void
end(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void
send_all(int fd, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);

        if (sent <= 0) return; /* whoever reads there has gone, and is seen to be */
        bytes += sent;
        n -= (size_t)sent;
    }
}

static void
add_pair(slow_proxy_t *proxy)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(proxy->to_port)};
    int near = accept(proxy->listen_fd, NULL, NULL);

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; i < SLOW_PAIRS; i++) {
        slow_pair_t *pair = &proxy->pairs[i];

        if (pair->near >= 0 || pair->far >= 0) continue;
        free(pair->kept);
        *pair = (slow_pair_t){.near = near, .far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        if (connect(pair->far, (struct sockaddr *)&to, sizeof to) == 0) return;
        end(&pair->near);
        end(&pair->far);
        return;
    }
    close(near);
}

/* The first frame tells what a connection is, and goes through in any case. False = not all of it is here. */
static bool
pass_hello(slow_pair_t *pair)
{
    uint8_t bytes[512];
    ssize_t n = recv(pair->near, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    kvp_frame_hdr_t hdr;

    if (n < (ssize_t)KVP_FRAME_HDR_BYTES || kvp_frame_hdr_decode(bytes, &hdr) != KVP_OK) {
        if (n == 0) end(&pair->near);
        return false;
    }
    if ((size_t)n < KVP_FRAME_HDR_BYTES + hdr.length) return false;
    n = recv(pair->near, bytes, KVP_FRAME_HDR_BYTES + hdr.length, 0);
    send_all(pair->far, bytes, (size_t)n);
    pair->is_data = hdr.opcode == KVP_OP_DATA_HELLO;
    pair->is_known = true;
    return true;
}

static void
keep(slow_proxy_t *proxy, slow_pair_t *pair, const uint8_t *bytes, size_t n)
{
    size_t drop_at = proxy->drop_at;

    if (pair->kept == NULL) {
        pair->kept = malloc(SLOW_BYTES);
        pair->is_held = true;
        proxy->held_n++;
    }
    assert_true(pair->kept_n + n <= SLOW_BYTES);
    for (size_t i = 0; i < n; i++)
        pair->kept[pair->kept_n++] = bytes[i];
    proxy->kept_bytes += n;
    if (drop_at == 0 || pair->kept_n < drop_at) return;
    proxy->must_hold = false;
    end(&pair->near);
}

static void
from_near(slow_proxy_t *proxy, slow_pair_t *pair)
{
    uint8_t bytes[65536];
    ssize_t n;

    if (!pair->is_known && !pass_hello(pair)) return;
    n = recv(pair->near, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0 && pair->is_data && (proxy->must_hold || pair->is_held)) {
        keep(proxy, pair, bytes, (size_t)n);
    } else if (n > 0) {
        send_all(pair->far, bytes, (size_t)n);
    } else if (n == 0) {
        end(&pair->near);
        if (!pair->is_held) end(&pair->far);
    }
}

static void
from_far(slow_proxy_t *proxy, slow_pair_t *pair)
{
    uint8_t bytes[65536];
    ssize_t n = recv(pair->far, bytes, sizeof bytes, MSG_DONTWAIT);

    if (n > 0) {
        if (pair->near >= 0) send_all(pair->near, bytes, (size_t)n);
        return;
    }
    if (pair->is_held) proxy->ended_n++;
    end(&pair->far);
    end(&pair->near);
}

static void
release(slow_pair_t *pair)
{
    if (!pair->is_held || pair->far < 0 || pair->sent_n == pair->kept_n) return;
    send_all(pair->far, pair->kept + pair->sent_n, pair->kept_n - pair->sent_n);
    pair->sent_n = pair->kept_n;
}

static void *
proxy_main(void *arg)
{
    slow_proxy_t *proxy = arg;

    while (!proxy->is_over) {
        struct pollfd p[1 + 2 * SLOW_PAIRS];

        p[0] = (struct pollfd){.fd = proxy->listen_fd, .events = POLLIN};
        for (size_t i = 0; i < SLOW_PAIRS; i++) {
            p[1 + 2 * i] = (struct pollfd){.fd = proxy->pairs[i].near, .events = POLLIN};
            p[2 + 2 * i] = (struct pollfd){.fd = proxy->pairs[i].far, .events = POLLIN};
        }
        assert_true(poll(p, KVP_ARRAY_LEN(p), 1) >= 0);
        for (size_t i = 0; i < SLOW_PAIRS; i++) {
            slow_pair_t *pair = &proxy->pairs[i];

            if (p[2 + 2 * i].revents != 0) from_far(proxy, pair);
            if (p[1 + 2 * i].revents != 0 && pair->near >= 0) from_near(proxy, pair);
            if (proxy->must_release) release(pair);
        }
        if (p[0].revents != 0) add_pair(proxy);
    }
    return NULL;
}

void
slow_proxy_start(slow_proxy_t *proxy, uint16_t to_port)
{
    *proxy = (slow_proxy_t){.to_port = to_port};
    for (size_t i = 0; i < SLOW_PAIRS; i++)
        proxy->pairs[i].near = proxy->pairs[i].far = -1;
    proxy->listen_fd = listen_local(proxy->at);
    assert_int_equal(pthread_create(&proxy->thread, NULL, proxy_main, proxy), 0);
}

void
slow_proxy_stop(slow_proxy_t *proxy)
{
    proxy->is_over = true;
    pthread_join(proxy->thread, NULL);
    for (size_t i = 0; i < SLOW_PAIRS; i++) {
        end(&proxy->pairs[i].near);
        end(&proxy->pairs[i].far);
        free(proxy->pairs[i].kept);
    }
    close(proxy->listen_fd);
}
