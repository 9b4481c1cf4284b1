/* SPDX-License-Identifier: Apache-2.0
 * See reach.h. */
#include "conductor/events/reach.h"

#include "common/clock.h"
#include "common/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_NS (500 * KVP_NS_PER_MS) /* time without a connection before the first dial */
#define EVERY_NS (5 * KVP_NS_PER_S)
#define DIAL_NS (2 * KVP_NS_PER_S)
/* after this many accepted dials without a ZMQ connection, the port is reported as one of another protocol */
#define MUTE_DIALS 2u

/* A dial (connection attempt) in progress, which may outlive its kvp_reach. */
typedef struct {
    kvp_reach_t *of; /* the object that began the dial; NULL = closed meanwhile */
    uv_getaddrinfo_t name;
    uv_tcp_t tcp;
    uv_connect_t connect;
    bool is_naming, has_tcp; /* flags: the host name is being resolved; tcp is an open handle */
} dial_t;

struct kvp_reach {
    uv_loop_t *uv;
    char endpoint[512];
    bool speaks;
    bool was_told; /* a flag: the endpoint was unreachable at the last tick, so `why` was not empty */
    char why[160];
    uint32_t accepted; /* number of accepted dials since the endpoint last worked */
    uint64_t since_ns, dialled_ns; /* time at which the endpoint stopped working; time of the last dial; 0 = never */
    dial_t *dial;
};

static void
on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void
end_dial(dial_t *d)
{
    if (d->of != NULL) d->of->dial = NULL;
    d->of = NULL;
    if (d->is_naming)
        (void)uv_cancel((uv_req_t *)&d->name); /* after the cancel libuv calls on_name, which frees the dial */
    else if (!d->has_tcp)
        free(d);
    else if (!uv_is_closing((uv_handle_t *)&d->tcp))
        uv_close((uv_handle_t *)&d->tcp, on_closed);
}

static void
note_result(kvp_reach_t *r, const char *why)
{
    if (why == NULL && r->speaks && ++r->accepted >= MUTE_DIALS) why = "it takes connections, and speaks no ZMQ";
    snprintf(r->why, sizeof r->why, "%s", why == NULL ? "" : why);
}

static void
on_connect(uv_connect_t *connect, int status)
{
    dial_t *d = connect->data;

    if (d->of == NULL) return; /* the dial's handle is already being closed */
    note_result(d->of, status == 0 ? NULL : uv_strerror(status));
    end_dial(d);
}

static void
on_name(uv_getaddrinfo_t *name, int status, struct addrinfo *found)
{
    dial_t *d = name->data;
    kvp_reach_t *r = d->of;

    d->is_naming = false;
    if (r != NULL && status == 0 && uv_tcp_init(r->uv, &d->tcp) == 0) {
        d->has_tcp = true;
        d->tcp.data = d->connect.data = d;
        status = uv_tcp_connect(&d->connect, &d->tcp, found->ai_addr, on_connect);
        if (status == 0) {
            uv_freeaddrinfo(found);
            return;
        }
    }
    uv_freeaddrinfo(found);
    if (r != NULL && status != 0) note_result(r, uv_strerror(status));
    end_dial(d);
}

static void
dial_tcp(kvp_reach_t *r)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    dial_t *d;
    kvp_hostport_t at;
    char port[8];

    if (kvp_parse_hostport(r->endpoint + 6, &at) != KVP_OK) return;
    d = calloc(1, sizeof *d);
    if (d == NULL) return;
    d->of = r;
    d->name.data = d;
    snprintf(port, sizeof port, "%u", at.port);
    r->dial = d;
    d->is_naming = uv_getaddrinfo(r->uv, &d->name, on_name, at.host, port, &hints) == 0;
    if (!d->is_naming) end_dial(d);
}

/* Dials a Unix socket. The connect returns at once. */
static void
dial_unix(kvp_reach_t *r)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *path = r->endpoint + 6;
    const size_t len = strlen(path);
    int fd;

    if (len >= sizeof at.sun_path) return;
    memcpy(at.sun_path, path, len);
    if (path[0] == '@') at.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    const socklen_t at_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (path[0] == '@' ? 0 : 1));
    const int rc = connect(fd, (struct sockaddr *)&at, at_len);
    note_result(r, rc == 0 || errno == EAGAIN ? NULL : strerror(errno));
    close(fd);
}

static void
tick_dial(kvp_reach_t *r, uint64_t now_ns)
{
    if (r->since_ns == 0) r->since_ns = now_ns;
    if (r->dial != NULL && now_ns - r->dialled_ns > DIAL_NS) {
        note_result(r, "no answer within 2 s");
        end_dial(r->dial);
    }
    if (r->dial != NULL || now_ns - r->since_ns < FIRST_NS) return;
    if (r->dialled_ns != 0 && now_ns - r->dialled_ns < EVERY_NS) return;
    r->dialled_ns = now_ns;
    if (strncmp(r->endpoint, "ipc://", 6) == 0)
        dial_unix(r);
    else if (strncmp(r->endpoint, "tcp://", 6) == 0)
        dial_tcp(r);
}

bool
kvp_reach_tick(kvp_reach_t *r, bool is_fine, uint64_t now_ns)
{
    bool is_news;

    if (is_fine) {
        if (r->dial != NULL) end_dial(r->dial);
        r->why[0] = '\0';
        r->since_ns = r->dialled_ns = 0;
        r->accepted = 0;
    } else {
        tick_dial(r, now_ns);
    }
    is_news = r->was_told != (r->why[0] != '\0');
    r->was_told = r->why[0] != '\0';
    return is_news;
}

const char *
kvp_reach_why(const kvp_reach_t *r)
{
    return r->was_told ? r->why : "";
}

kvp_reach_t *
kvp_reach_create(uv_loop_t *uv, const char *endpoint, bool speaks)
{
    kvp_reach_t *r = calloc(1, sizeof *r);

    if (r == NULL) return NULL;
    r->uv = uv;
    r->speaks = speaks;
    snprintf(r->endpoint, sizeof r->endpoint, "%s", endpoint);
    return r;
}

void
kvp_reach_close(kvp_reach_t *r)
{
    if (r == NULL) return;
    if (r->dial != NULL) end_dial(r->dial);
    free(r);
}
