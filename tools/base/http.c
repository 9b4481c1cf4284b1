/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/base/http.h"

#include "tools/base/json_out.h"

#include "common/buf.h"
#include "common/hostid.h"
#include "common/parse.h"
#include "common/trust/creds.h"
#include "common/trust/tls.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MAX (64u << 20)
#define PIECE (64u << 10)
#define SILENCE_S 5

/* Returns the text of errno. A socket operation that timed out sets EAGAIN, or EINPROGRESS for a connect. */
static const char *
why_not(void)
{
    return errno == EAGAIN || errno == EINPROGRESS ? "timed out" : strerror(errno);
}

static int
connect_to(const kvp_hostport_t *at, const char **why_out)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const struct timeval silence = {.tv_sec = SILENCE_S};
    struct addrinfo *list;
    char port[16];
    int fd = -1, gai;

    snprintf(port, sizeof port, "%u", at->port);
    gai = getaddrinfo(at->host, port, &hints, &list);
    if (gai != 0) {
        *why_out = gai_strerror(gai);
        return -1;
    }
    for (const struct addrinfo *one = list; one != NULL && fd < 0; one = one->ai_next) {
        fd = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence);
        if (connect(fd, one->ai_addr, one->ai_addrlen) == 0) continue;
        *why_out = why_not();
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

static kvp_err_t
send_all(int fd, const void *bytes, size_t len, const char **why_out)
{
    for (size_t sent = 0; sent < len;) {
        const ssize_t n = send(fd, (const char *)bytes + sent, len - sent, MSG_NOSIGNAL);

        if (n <= 0) {
            *why_out = why_not();
            return KVP_UNREACHABLE;
        }
        sent += (size_t)n;
    }
    return KVP_OK;
}

/* Returns the error as the result of the request, with its reason. */
static kvp_err_t
fail_tls(kvp_err_t err, const kvp_tls_t *tls, const char **why_out)
{
    static char why[KVP_TLS_WHY_MAX];

    snprintf(why, sizeof why, "%s", kvp_tls_why(tls));
    if (why[0] != '\0') *why_out = why;
    return err == KVP_NOMEM ? err : KVP_UNREACHABLE;
}

static kvp_err_t
send_sealed(int fd, kvp_tls_t *tls, const char **why_out)
{
    char piece[KVP_TLS_RECORD_MAX];
    kvp_err_t err = KVP_OK;

    for (size_t n; err == KVP_OK && (n = kvp_tls_take(tls, piece, sizeof piece)) > 0;)
        err = send_all(fd, piece, n, why_out);
    return err;
}

static kvp_err_t
feed_some(int fd, kvp_tls_t *tls, const char **why_out)
{
    char piece[KVP_TLS_RECORD_MAX];
    const ssize_t n = recv(fd, piece, sizeof piece, 0);

    if (n > 0) return kvp_tls_feed(tls, piece, (size_t)n);
    *why_out = n == 0 ? "the connection ended; is this port one with TLS?" : why_not();
    return KVP_UNREACHABLE;
}

/* The same exchange over TLS. The answer ends with the end of TLS, so that a shortened one is found. */
static kvp_err_t
exchange_sealed(int fd, kvp_tls_t *tls, kvp_buf_t *request, kvp_buf_t *answer, const char **why_out)
{
    kvp_err_t err;

    while ((err = kvp_tls_step(tls)) == KVP_EAGAIN) {
        err = send_sealed(fd, tls, why_out);
        if (err == KVP_OK) err = feed_some(fd, tls, why_out);
        if (err != KVP_OK) return err;
    }
    if (err == KVP_OK) err = kvp_tls_seal(tls, request->data, request->len);
    if (err != KVP_OK) {
        kvp_ignore(send_sealed(fd, tls, why_out), "the alert is a courtesy");
        return fail_tls(err, tls, why_out);
    }
    err = send_sealed(fd, tls, why_out);
    while (err == KVP_OK) {
        uint8_t *room = kvp_buf_reserve(answer, PIECE);
        size_t n = 0;

        if (room == NULL) return answer->err;
        err = kvp_tls_open(tls, room, PIECE, &n);
        answer->len += n;
        if (err == KVP_DISCONNECTED) return KVP_OK;
        if (err != KVP_OK && err != KVP_EAGAIN) return fail_tls(err, tls, why_out);
        if (err == KVP_EAGAIN) err = feed_some(fd, tls, why_out);
    }
    return err;
}

static kvp_err_t
exchange_bytes(int fd, kvp_buf_t *request, kvp_buf_t *answer, const char **why_out)
{
    const kvp_err_t err = send_all(fd, request->data, request->len, why_out);

    while (err == KVP_OK) {
        uint8_t *room = kvp_buf_reserve(answer, PIECE);
        const ssize_t n = room == NULL ? 0 : recv(fd, room, PIECE, 0);

        if (room == NULL) return answer->err;
        if (n < 0) {
            *why_out = why_not();
            return KVP_UNREACHABLE;
        }
        if (n == 0) return KVP_OK;
        answer->len += (size_t)n;
    }
    return err;
}

/* Finds the body of a complete answer. The answer to an HTTP/1.0 request ends with the connection and has no chunks. */
static kvp_err_t
find_body(kvp_buf_t *answer, const char **body_out)
{
    const char *end;

    kvp_buf_append(answer, "", 1);
    if (answer->err != KVP_OK) return answer->err;
    end = strstr((const char *)answer->data, "\r\n\r\n");
    if (strncmp((const char *)answer->data, "HTTP/1.", 7) != 0 || end == NULL || answer->len < 13) return KVP_PROTO;
    *body_out = end + 4;
    if (strncmp((const char *)answer->data + 8, " 401", 4) == 0 ||
        strncmp((const char *)answer->data + 8, " 403", 4) == 0)
        return KVP_DENIED;
    return strncmp((const char *)answer->data + 8, " 200", 4) == 0 ? KVP_OK : KVP_INTERNAL;
}

/* Writes the header with this process's token. The header is "" without a token, and for another host without TLS,
 * because the request is then not encrypted. */
static kvp_err_t
write_token(int fd, bool has_tls, char *out, size_t cap, const char **why_out)
{
    static char why[KVP_CREDS_WHY_MAX];
    char token[KVP_CREDS_TOKEN_MAX];
    struct sockaddr_storage to = {0};
    socklen_t to_len = sizeof to;
    size_t len;
    const bool is_protected = has_tls || (getpeername(fd, (struct sockaddr *)&to, &to_len) == 0 &&
                                          kvp_addr_is_loopback((const struct sockaddr *)&to));
    const kvp_err_t err = kvp_creds_token(is_protected, token, &len, why);

    *out = '\0';
    if (err != KVP_OK) *why_out = why;
    if (err == KVP_OK && len > 0) snprintf(out, cap, "Authorization: Bearer %.*s\r\n", (int)len, token);
    return err;
}

/* Sends the request. *body_out is the answer's body in `answer`, which the caller initializes and frees; NULL = there
 * is no body. */
static kvp_err_t
ask_at(const char *at, kvp_authrole_t role, const char *path, const char *body, kvp_buf_t *answer,
       const char **body_out, const char **why_out)
{
    kvp_buf_t request;
    kvp_hostport_t to;
    char host[KVP_HOSTPORT_TEXT_MAX], head[512], token[KVP_CREDS_TOKEN_MAX + 32];
    kvp_err_t err = KVP_UNREACHABLE;
    kvp_tls_t *tls = NULL;
    kvp_creds_t files;
    bool has_tls;
    int fd;

    if (kvp_parse_http(at, &to, &has_tls) != KVP_OK) return KVP_INVALID;
    fd = connect_to(&to, why_out);
    if (fd < 0) return err;
    err = write_token(fd, has_tls, token, sizeof token, why_out);
    if (err == KVP_OK && has_tls) {
        (void)kvp_creds_tls(&files);
        tls = kvp_tls_client(&files, role, NULL);
        if (tls == NULL) err = KVP_NOMEM;
    }
    if (err != KVP_OK) {
        close(fd);
        return err;
    }
    kvp_buf_init(&request, 0);
    const int len = snprintf(head, sizeof head, "%s %s HTTP/1.0\r\nHost: %s\r\n%sContent-Length: %zu\r\n\r\n",
                             body == NULL ? "GET" : "POST", path, kvp_format_hostport(&to, host), token,
                             body == NULL ? 0 : strlen(body));
    kvp_buf_append(&request, head, (size_t)len);
    if (body != NULL) kvp_buf_append(&request, body, strlen(body));
    err = request.err;
    if (err == KVP_OK)
        err = has_tls ? exchange_sealed(fd, tls, &request, answer, why_out)
                      : exchange_bytes(fd, &request, answer, why_out);
    if (err == KVP_OK) err = find_body(answer, body_out);
    close(fd);
    kvp_tls_destroy(tls);
    kvp_buf_fini(&request);
    return err;
}

/* Returns the time in the header Date, in seconds since 1970; 0 = the answer has no such header. */
static time_t
date_of(const char *answer)
{
    const char *date = strcasestr(answer, "\r\nDate: ");
    struct tm tm = {0};

    return date != NULL && strptime(date + 8, "%a, %d %b %Y %H:%M:%S GMT", &tm) != NULL ? timegm(&tm) : 0;
}

kvp_err_t
kvp_cli_http(const char *at, kvp_authrole_t role, const char *path, const char *body, struct json_object **answer_out,
             const char **why_out, time_t *date_out)
{
    const char *found = NULL;
    kvp_buf_t answer;

    kvp_buf_init(&answer, ANSWER_MAX);
    const kvp_err_t err = ask_at(at, role, path, body, &answer, &found, why_out);
    *answer_out = found == NULL ? NULL : json_tokener_parse(found);
    if (date_out != NULL) *date_out = found == NULL ? 0 : date_of((const char *)answer.data);
    kvp_buf_fini(&answer);
    return err;
}

kvp_err_t
kvp_cli_http_text(const char *at, kvp_authrole_t role, const char *path, char **text_out, const char **why_out)
{
    const char *found = NULL;
    kvp_buf_t answer;

    kvp_buf_init(&answer, ANSWER_MAX);
    kvp_err_t err = ask_at(at, role, path, NULL, &answer, &found, why_out);
    *text_out = err == KVP_OK ? strdup(found) : NULL;
    if (err == KVP_OK && *text_out == NULL) err = KVP_NOMEM;
    kvp_buf_fini(&answer);
    return err;
}

bool
kvp_cli_http_of(struct json_object *master, char at[KVP_HTTP_TEXT_MAX])
{
    kvp_hostport_t http, address;
    bool has_tls;

    if (kvp_parse_http(kvp_json_get_text(master, "http"), &http, &has_tls) != KVP_OK ||
        kvp_parse_hostport(kvp_json_get_text(master, "address"), &address) != KVP_OK)
        return false;
    if (strcmp(http.host, "0.0.0.0") == 0 || strcmp(http.host, "::") == 0) strcpy(http.host, address.host);
    kvp_format_http(&http, has_tls, at);
    return !kvp_hostport_is_loopback(&http) || kvp_hostport_is_loopback(&address);
}
