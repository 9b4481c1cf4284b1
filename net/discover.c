/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - etcd's answer is not parsed as JSON: the code reads only the text after each "value", which is base64 without
 *   quotes.
 * - libcurl stays loaded, because its resolver may have threads. */
#include "net/discover.h"

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMBERS_MAX 16u
#define CLUSTER_MAX 128u
#define ANSWER_MAX (256u << 10)
#define VALUE_MAX 1024u
#define MEMBER_MS 1000L
#define ROUND_NS KVP_NS_PER_S
#define POLL_NS (5 * KVP_NS_PER_MS)

#define CALLS(X)                                                                                                       \
    X(curl_global_init)                                                                                                \
    X(curl_easy_init)                                                                                                  \
    X(curl_easy_setopt)                                                                                                \
    X(curl_easy_getinfo)                                                                                               \
    X(curl_easy_strerror)                                                                                              \
    X(curl_easy_cleanup)                                                                                               \
    X(curl_multi_init)                                                                                                 \
    X(curl_multi_add_handle)                                                                                           \
    X(curl_multi_remove_handle)                                                                                        \
    X(curl_multi_perform)                                                                                              \
    X(curl_multi_info_read)                                                                                            \
    X(curl_multi_cleanup)

static struct {
#define X(name) __typeof__(name) *name;
    CALLS(X)
#undef X
} libs;
static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const char *why_not; /* why libcurl cannot be used; NULL = it is loaded */
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct kvp_discover {
    char urls[MEMBERS_MAX][KVP_HOSTPORT_TEXT_MAX + 32];
    size_t members_n;
    char body[sizeof "{\"key\":\"\",\"range_end\":\"\"}" + 4 * (CLUSTER_MAX + 32)];
    CURLM *multi;
    CURL *easy; /* the running request; NULL = none */
    size_t member; /* index of the member of etcd that is asked, or that is asked next */
    size_t failed_n; /* number of members that failed in a row in this round of questions */
    size_t unknown_n; /* number of questions so far that failed because a member's name does not resolve */
    bool was_known; /* the name of some member has resolved */
    uint64_t next_ns; /* time before which no new round begins */
    kvp_buf_t answer;
    char why[512];
};

static void
load_libcurl(void)
{
    void *lib = dlopen(KVP_LIBCURL, RTLD_NOW | RTLD_NODELETE);
    bool is_whole = true;

    why_not = KVP_LIBCURL " is not installed (Debian: libcurl4), without which etcd cannot be asked for masters";
    if (lib == NULL) return;
#define X(name) is_whole &= (libs.name = (__typeof__(name) *)dlsym(lib, #name)) != NULL;
    CALLS(X)
#undef X
    why_not = is_whole && libs.curl_global_init(CURL_GLOBAL_ALL) == CURLE_OK ? NULL : KVP_LIBCURL " cannot be used";
}

/* ---- the list of members, and the question to etcd */
static kvp_err_t
read_list(kvp_discover_t *d, const char *list)
{
    const char *at = list + strlen(KVP_ETCD_SCHEME);

    for (;; at++) {
        char text[KVP_HOSTPORT_TEXT_MAX];
        kvp_hostport_t member;
        const char *scheme = "http://";
        size_t len;

        if (strncmp(at, "https://", 8) == 0) scheme = "https://";
        if (strncmp(at, scheme, strlen(scheme)) == 0) at += strlen(scheme);
        len = strcspn(at, ";,");
        if (len >= sizeof text || d->members_n == MEMBERS_MAX) return KVP_INVALID;
        memcpy(text, at, len);
        text[len] = '\0';
        if (kvp_parse_hostport(text, &member) != KVP_OK) return KVP_INVALID;
        snprintf(d->urls[d->members_n], sizeof d->urls[0], "%s%s/v3/kv/range", scheme, text);
        d->members_n++;
        at += len;
        if (*at == '\0') return KVP_OK;
    }
}

static void
encode_base64(const char *text, char *out)
{
    for (size_t len = strlen(text), i = 0; i < len; i += 3) {
        const uint32_t a = (uint8_t)text[i], b = i + 1 < len ? (uint8_t)text[i + 1] : 0,
                       c = i + 2 < len ? (uint8_t)text[i + 2] : 0;

        *out++ = digits[a >> 2];
        *out++ = digits[(a << 4 | b >> 4) & 63];
        *out++ = i + 1 < len ? digits[(b << 2 | c >> 6) & 63] : '=';
        *out++ = i + 2 < len ? digits[c & 63] : '=';
    }
    *out = '\0';
}

static kvp_err_t
write_question(kvp_discover_t *d, const char *cluster)
{
    static const char *const variables[] = {"KVPOOL_CLUSTER", "MC_STORE_CLUSTER_ID"};
    char key[CLUSTER_MAX + 32], first[sizeof key * 2], last[sizeof key * 2];

    for (size_t i = 0; i < KVP_ARRAY_LEN(variables) && (cluster == NULL || *cluster == '\0'); i++)
        cluster = getenv(variables[i]);
    if (cluster == NULL || *cluster == '\0') cluster = "kvpool";
    if (strlen(cluster) > CLUSTER_MAX || strpbrk(cluster, "/ ") != NULL) return KVP_INVALID;
    snprintf(key, sizeof key, "/kvpool/%s/masters/", cluster);
    encode_base64(key, first);
    key[strlen(key) - 1]++; /* the last byte of the prefix plus 1 gives the end of the range of keys with this prefix */
    encode_base64(key, last);
    snprintf(d->body, sizeof d->body, "{\"key\":\"%s\",\"range_end\":\"%s\"}", first, last);
    snprintf(d->why, sizeof d->why, "etcd was not asked for the masters of cluster %s yet", cluster);
    return KVP_OK;
}

/* ---- the answer of etcd */
/* Decodes base64 up to the first other character, whose address it returns; cuts text over VALUE_MAX. */
static const char *
decode_base64(const char *at, const char *end, char out[VALUE_MAX + 1])
{
    uint32_t bits = 0, n = 0;
    size_t len = 0;

    for (const char *digit; at < end && (digit = memchr(digits, *at, 64)) != NULL; at++, n++) {
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (n % 4 != 0 && len < VALUE_MAX) out[len++] = (char)(bits >> (6 - 2 * (n % 4)));
    }
    out[len] = '\0';
    return at;
}

static size_t
read_masters(const kvp_buf_t *answer, kvp_hostport_t *at_out, size_t max)
{
    static const char mark[] = "\"value\"";
    const char *at = (const char *)answer->data, *end = at + answer->len;
    char value[VALUE_MAX + 1], text[KVP_HOSTPORT_TEXT_MAX], *address;
    size_t n = 0;

    _Static_assert(sizeof text == 264, "what sscanf is told");
    while (n < max && at < end && (at = memmem(at, (size_t)(end - at), mark, sizeof mark - 1)) != NULL) {
        for (at += sizeof mark - 1; at < end && strchr(": \t\n\r\"", *at) != NULL && *at != '\0';)
            at++;
        at = decode_base64(at, end, value); /* the decoded text is "id=... address=HOST:PORT ..." */
        address = strstr(value, " address=");
        if (address == NULL || sscanf(address, " address=%263s", text) != 1) continue;
        n += kvp_parse_hostport(text, &at_out[n]) == KVP_OK;
    }
    return n;
}

/* ---- requests to etcd */
static size_t
on_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    kvp_discover_t *d = arg;

    (void)one;
    kvp_buf_append(&d->answer, bytes, n);
    return d->answer.err == KVP_OK ? n : 0;
}

void
kvp_discover_rest(kvp_discover_t *d)
{
    if (d->easy == NULL) return;
    libs.curl_multi_remove_handle(d->multi, d->easy);
    libs.curl_easy_cleanup(d->easy);
    d->easy = NULL;
}

static void
fail_member(kvp_discover_t *d, const char *why)
{
    snprintf(d->why, sizeof d->why, "etcd at %s: %s", d->urls[d->member], why);
    d->member = (d->member + 1) % d->members_n;
    d->failed_n++;
}

static void
ask_member(kvp_discover_t *d)
{
    CURL *easy = libs.curl_easy_init();

    kvp_buf_reset(&d->answer);
    if (easy == NULL) {
        fail_member(d, "no memory");
        return;
    }
    libs.curl_easy_setopt(easy, CURLOPT_URL, d->urls[d->member]);
    libs.curl_easy_setopt(easy, CURLOPT_PROXY, ""); /* ignores the proxy settings of the environment */
    libs.curl_easy_setopt(easy, CURLOPT_POSTFIELDS, d->body);
    libs.curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, MEMBER_MS);
    libs.curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
    libs.curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    libs.curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* libcurl shall not wait for a resolver thread that hangs */
    libs.curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
    libs.curl_easy_setopt(easy, CURLOPT_WRITEDATA, d);
    if (libs.curl_multi_add_handle(d->multi, easy) == CURLM_OK) {
        d->easy = easy;
        return;
    }
    libs.curl_easy_cleanup(easy);
    fail_member(d, "no memory");
}

/* Reads the answer of the running request, if it is complete. Returns the number of masters in the answer. */
static size_t
read_answer(kvp_discover_t *d, kvp_hostport_t *at_out, size_t max)
{
    int running, left;
    CURLMsg *msg;
    CURLcode code;
    long status = 0;
    size_t n = 0;

    libs.curl_multi_perform(d->multi, &running);
    msg = libs.curl_multi_info_read(d->multi, &left);
    if (msg == NULL) return 0;
    code = msg->data.result;
    libs.curl_easy_getinfo(d->easy, CURLINFO_RESPONSE_CODE, &status);
    kvp_discover_rest(d);
    d->unknown_n += code == CURLE_COULDNT_RESOLVE_HOST;
    d->was_known |= code != CURLE_COULDNT_RESOLVE_HOST;
    if (d->answer.err != KVP_OK)
        fail_member(d, "its answer is too long");
    else if (code != CURLE_OK)
        fail_member(d, libs.curl_easy_strerror(code));
    else if (status != 200)
        fail_member(d, "its answer is an error");
    else if ((n = read_masters(&d->answer, at_out, max)) == 0)
        fail_member(d, "it knows no master of this cluster");
    else
        d->why[0] = '\0';
    return n;
}

bool
kvp_discover_step(kvp_discover_t *d, kvp_hostport_t *at_out, size_t max, size_t *n_out, uint64_t *again_ns_out)
{
    uint64_t now = kvp_now_ns();
    size_t n = 0;

    if (d->easy == NULL && now >= d->next_ns) {
        d->next_ns = now + ROUND_NS;
        d->failed_n = 0;
        ask_member(d);
    }
    if (d->easy != NULL) {
        n = read_answer(d, at_out, max);
        if (n == 0 && d->easy == NULL && d->failed_n < d->members_n) ask_member(d);
    }
    *again_ns_out = d->easy != NULL ? now + POLL_NS : d->next_ns;
    if (n > 0) *n_out = n;
    return n > 0;
}

bool
kvp_discover_is_unknown(const kvp_discover_t *d)
{
    return !d->was_known && d->unknown_n >= d->members_n;
}

const char *
kvp_discover_why(const kvp_discover_t *d)
{
    return d->why;
}

/* ---- create and destroy */
kvp_err_t
kvp_discover_create(const char *list, const char *cluster, kvp_discover_t **discover_out)
{
    kvp_discover_t *d = calloc(1, sizeof *d);
    kvp_err_t err;

    if (d == NULL) return KVP_NOMEM;
    kvp_buf_init(&d->answer, ANSWER_MAX);
    pthread_once(&once, load_libcurl);
    err = read_list(d, list);
    if (err == KVP_OK) err = write_question(d, cluster);
    if (err == KVP_OK && why_not != NULL) {
        kvp_log_error("client", "%s: %s", list, why_not);
        err = KVP_NOTSUP;
    }
    if (err == KVP_OK && (d->multi = libs.curl_multi_init()) == NULL) err = KVP_NOMEM;
    if (err != KVP_OK) {
        kvp_discover_destroy(d);
        return err;
    }
    d->member = kvp_random_u64() % d->members_n;
    *discover_out = d;
    return KVP_OK;
}

void
kvp_discover_destroy(kvp_discover_t *d)
{
    if (d == NULL) return;
    kvp_discover_rest(d);
    if (d->multi != NULL) libs.curl_multi_cleanup(d->multi);
    kvp_buf_fini(&d->answer);
    free(d);
}
