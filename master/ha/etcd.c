/* SPDX-License-Identifier: Apache-2.0
 * Design notes. A call is one HTTP request to etcd: an op, a login, or the watch. Calls that need a token wait for
 * the login. The endpoint in use changes when a call fails; the watch moves to the new endpoint, too, since a
 * connection to a hanging member shows no error. libcurl repeats a request if a kept connection turns out to be
 * closed. A transaction must not be repeated, so it uses a new connection. */
#include "master/ha/etcd.h"

#include "common/clock.h"
#include "master/ha/etcd_json.h"
#include "common/list.h"
#include "common/log.h"
#include "common/parse.h"
#include "common/thread.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ENDPOINTS_MAX 16u
#define URL_MAX (KVP_HOSTPORT_TEXT_MAX + 64u)
#define NOISE_LINES 6u /* limit of the logged lines about etcd's state in NOISE_MS */
#define NOISE_MS 60000u /* see NOISE_LINES */
#define REQUEST_NS (500 * KVP_NS_PER_MS)
#define BACKOFF_MIN_NS (100 * KVP_NS_PER_MS)
#define BACKOFF_MAX_NS (1000 * KVP_NS_PER_MS)
#define MESSAGE_MAX (64u << 10) /* limit of a watch message: a longer one is not read, and counts as a change */

typedef enum { CALL_OP, CALL_LOGIN, CALL_WATCH } role_t;

typedef enum {
    WATCH_STARTS,
    WATCH_RUNS,
    WATCH_IS_OVER,
    WATCH_LACKS_TOKEN, /* ended, because etcd refuses its token */
} watch_state_t;

typedef struct {
    kvp_list_t link; /* link in etcd->asked, waiting or busy */
    role_t role;
    CURL *easy; /* libcurl's handle of the HTTP request; NULL = the call is not being sent */
    struct curl_slist *headers;
    kvp_buf_t body, answer; /* request body, and answer; for the watch: the incomplete message */
    char error[CURL_ERROR_SIZE];
    size_t endpoint;
    uint64_t deadline_ns; /* time limit, by kvp_now_ns(); for the watch: until it must be established */
    uint64_t sent_ns;
    uint64_t token_number;
    bool has_retried; /* flag: the call was sent again after another login */
    watch_state_t state; /* used by the watch */
    bool is_cut; /* used by the watch: flag: the message exceeded MESSAGE_MAX */
    kvp_etcd_op_t op;
} call_t;

struct kvp_etcd {
    char *endpoints[ENDPOINTS_MAX];
    size_t endpoints_n;
    kvp_etcd_conf_t conf; /* with copies of the caller's strings */
    bool has_curl, has_thread;
    CURLM *multi;
    pthread_t thread;
    _Atomic uint64_t requests, failures;
    _Atomic uint64_t worked_ns; /* time of the last successful request, or of the start */
    pthread_mutex_t lock;
    char trouble[KVP_ETCD_TROUBLE_MAX]; /* the last failure; guarded by lock */
    kvp_list_t asked; /* guarded by lock */
    bool is_ending; /* guarded by lock */

    /* The fields below are used only by etcd's thread. */
    kvp_list_t waiting, busy;
    size_t current; /* the endpoint in use */
    kvp_log_limit_t noise;
    enum { UNTRIED, WORKS, FAILS } state;
    kvp_err_t told; /* the error of the last logged line */
    char *token; /* token for authentication; "" = not needed, NULL = a login is needed */
    uint64_t token_number;
    call_t *login, *watch; /* the calls of these roles; NULL = none; also in the list waiting or busy */
    uint64_t watch_at_ns, watch_backoff_ns;
    bool has_change;
};

static call_t *
call_create(role_t role, uint64_t timeout_ns)
{
    call_t *call = calloc(1, sizeof *call);

    if (call == NULL) kvp_panic("out of memory: etcd");
    kvp_list_init(&call->link);
    kvp_buf_init(&call->answer, role == CALL_WATCH ? MESSAGE_MAX : KVP_ETCD_ANSWER_BYTES_MAX);
    call->role = role;
    call->deadline_ns = kvp_now_ns() + timeout_ns;
    return call;
}

/* Resets the call to its state before sending. */
static void
call_reset(kvp_etcd_t *etcd, call_t *call)
{
    kvp_list_del(&call->link);
    if (call->easy != NULL) {
        curl_multi_remove_handle(etcd->multi, call->easy);
        curl_easy_cleanup(call->easy);
        curl_slist_free_all(call->headers);
    }
    call->easy = NULL;
    call->headers = NULL;
    kvp_buf_reset(&call->body);
    kvp_buf_reset(&call->answer);
}

static void
call_destroy(kvp_etcd_t *etcd, call_t *call)
{
    call_reset(etcd, call);
    kvp_buf_fini(&call->body);
    kvp_buf_fini(&call->answer);
    free(call);
}

static void
end_message(kvp_etcd_t *etcd, call_t *watch)
{
    bool is_created = false, is_change = true;
    kvp_etcd_fault_t fault = {0};
    kvp_err_t err = KVP_OK;

    if (!watch->is_cut) err = kvp_etcd_decode_watch(&watch->answer, &is_created, &is_change, &fault);
    if (err != KVP_OK) {
        kvp_log_debug("etcd", "the watch at %s is over: %s", etcd->endpoints[watch->endpoint], fault.why);
        watch->state = fault.is_token_bad ? WATCH_LACKS_TOKEN : WATCH_IS_OVER;
    }
    if (is_created) {
        if (watch->state == WATCH_STARTS) watch->state = WATCH_RUNS;
        etcd->watch_backoff_ns = 0;
    }
    if (is_change) etcd->has_change = true;
    watch->is_cut = false;
    kvp_buf_reset(&watch->answer);
}

static size_t
on_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    call_t *call = arg;

    (void)one;
    kvp_buf_append(&call->answer, bytes, n);
    return call->answer.err == KVP_OK ? n : CURL_WRITEFUNC_ERROR;
}

static size_t
on_watch_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    kvp_etcd_t *etcd = arg;
    call_t *watch = etcd->watch;

    (void)one;
    for (const char *at = bytes, *end = bytes + n; at < end;) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        const char *until = line != NULL ? line : end;

        kvp_buf_append(&watch->answer, at, (size_t)(until - at));
        if (watch->answer.err != KVP_OK) watch->is_cut = true;
        if (line != NULL && (watch->answer.len > 0 || watch->is_cut)) end_message(etcd, watch);
        at = line != NULL ? line + 1 : end;
    }
    return n;
}

static void
add_header(call_t *call, const char *name, const char *value)
{
    char line[KVP_ETCD_TOKEN_MAX + 32];
    struct curl_slist *more;

    snprintf(line, sizeof line, "%s: %s", name, value);
    more = curl_slist_append(call->headers, line);
    if (more == NULL) kvp_panic("out of memory: etcd");
    call->headers = more;
}

static void
set_text(CURL *easy, CURLoption option, const char *text)
{
    if (text != NULL && curl_easy_setopt(easy, option, text) != CURLE_OK) kvp_panic("etcd: curl option %d", option);
}

static void
set_long(CURL *easy, CURLoption option, long value)
{
    if (curl_easy_setopt(easy, option, value) != CURLE_OK) kvp_panic("etcd: curl option %d", option);
}

static void
send_call(kvp_etcd_t *etcd, call_t *call, const char *path)
{
    CURL *easy = call->easy = curl_easy_init();
    uint64_t now_ns = kvp_now_ns();
    uint64_t left_ms;
    char url[URL_MAX];

    if (call->role == CALL_WATCH)
        call->deadline_ns = now_ns + etcd->conf.request_ns; /* the wait for a token is not part of the watch's limit */
    left_ms = call->deadline_ns > now_ns ? (call->deadline_ns - now_ns) / KVP_NS_PER_MS + 1 : 1;
    if (easy == NULL || call->body.err != KVP_OK) kvp_panic("out of memory: etcd");
    call->endpoint = etcd->current;
    call->token_number = etcd->token_number;
    call->error[0] = '\0';
    snprintf(url, sizeof url, "%s%s", etcd->endpoints[call->endpoint], path);
    add_header(call, "Content-Type", "application/json");
    if (call->role != CALL_LOGIN && etcd->token != NULL && etcd->token[0] != '\0')
        add_header(call, "Authorization", etcd->token);

    set_text(easy, CURLOPT_URL, url);
    set_text(easy, CURLOPT_PROXY, ""); /* overrides the environment's proxy */
    set_text(easy, CURLOPT_CAINFO, etcd->conf.ca_file);
    set_text(easy, CURLOPT_SSLCERT, etcd->conf.cert_file);
    set_text(easy, CURLOPT_SSLKEY, etcd->conf.key_file);
    set_long(easy, CURLOPT_NOSIGNAL, 1);
    set_long(easy, CURLOPT_QUICK_EXIT, 1); /* do not wait for a hanging resolver */
    set_long(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    set_long(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)left_ms);
    if (call->role != CALL_WATCH) set_long(easy, CURLOPT_TIMEOUT_MS, (long)left_ms);
    set_long(easy, CURLOPT_TCP_KEEPALIVE, 1);
    set_long(easy, CURLOPT_TCP_KEEPIDLE, 10);
    set_long(easy, CURLOPT_TCP_KEEPINTVL, 5);
    set_long(easy, CURLOPT_FRESH_CONNECT, call->role == CALL_OP && call->op.kind == KVP_ETCD_TXN);
    set_long(easy, CURLOPT_POSTFIELDSIZE, (long)call->body.len);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, (const char *)call->body.data);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->error);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, call->role == CALL_WATCH ? on_watch_bytes : on_bytes);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, call->role == CALL_WATCH ? (void *)etcd : (void *)call);

    call->sent_ns = kvp_boot_ns();
    kvp_list_add_tail(&etcd->busy, &call->link);
    if (curl_multi_add_handle(etcd->multi, easy) != CURLM_OK) kvp_panic("out of memory: etcd");
}

/* Sends the call, or begins the login that it needs. */
static void
start_call(kvp_etcd_t *etcd, call_t *call)
{
    if (etcd->conf.user == NULL || etcd->token != NULL) {
        send_call(etcd, call,
                  call->role == CALL_WATCH ? kvp_etcd_encode_watch(etcd->conf.prefix, &call->body)
                                           : kvp_etcd_encode(&call->op, etcd->conf.prefix, &call->body));
        return;
    }
    kvp_list_add_tail(&etcd->waiting, &call->link);
    if (etcd->login != NULL) return;
    etcd->login = call_create(CALL_LOGIN, 0);
    etcd->login->deadline_ns = call->deadline_ns;
    send_call(etcd, etcd->login, kvp_etcd_encode_login(etcd->conf.user, etcd->conf.password, &etcd->login->body));
}

static void
drop_token(kvp_etcd_t *etcd, uint64_t number)
{
    if (number != etcd->token_number) return; /* the refused token is of an older login: keep the present token */
    free(etcd->token);
    etcd->token = NULL;
}

static void
move_on(kvp_etcd_t *etcd, size_t from)
{
    if (from == etcd->current) etcd->current = (from + 1) % etcd->endpoints_n;
}

/* Updates the state of the endpoint after a call, logs a change, and moves to the next endpoint after a failure. */
static void
judge_endpoint(kvp_etcd_t *etcd, const call_t *call, kvp_err_t err, const char *why)
{
    const char *endpoint = etcd->endpoints[call->endpoint];
    bool has_worked = err == KVP_OK || err == KVP_NOT_FOUND;
    uint32_t missed;

    /* If some requests fail and others succeed, each change of the state would be logged; the limit prevents this. */
    if ((etcd->state != (has_worked ? WORKS : FAILS) || (!has_worked && err != etcd->told)) &&
        kvp_log_limit_ok(&etcd->noise, &missed)) {
        etcd->told = err;
        if (has_worked)
            kvp_log_info("etcd", "%s answers missed=%u", endpoint, missed);
        else
            kvp_log_warn("etcd", "%s: %s: %s missed=%u", endpoint, kvp_err_name(err), why, missed);
    }
    etcd->state = has_worked ? WORKS : FAILS;
    if (!has_worked) {
        pthread_mutex_lock(&etcd->lock);
        snprintf(etcd->trouble, sizeof etcd->trouble, "%s: %s: %s", endpoint, kvp_err_name(err), why);
        pthread_mutex_unlock(&etcd->lock);
    }
    if (!has_worked) move_on(etcd, call->endpoint);
}

static kvp_err_t
err_of(const call_t *call, CURLcode code, kvp_etcd_fault_t *fault_out)
{
    curl_off_t us = 0;

    *fault_out = (kvp_etcd_fault_t){0};
    snprintf(fault_out->why, sizeof fault_out->why, "%s", call->error[0] ? call->error : curl_easy_strerror(code));
    switch (code) {
    case CURLE_OK:
        return KVP_OK;
    case CURLE_OPERATION_TIMEDOUT:
        curl_easy_getinfo(call->easy, CURLINFO_PRETRANSFER_TIME_T, &us);
        return us > 0 ? KVP_DEADLINE : KVP_UNREACHABLE; /* 0: never connected, so nothing was sent */
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
        return KVP_FENCED;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_RECV_ERROR: /* the server may have refused our certificate */
        return strstr(fault_out->why, "certificate") != NULL ? KVP_FENCED : KVP_UNREACHABLE;
    case CURLE_WRITE_ERROR: /* the answer is too long */
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return KVP_PROTO;
    default:
        return KVP_UNREACHABLE;
    }
}

static void
answer_op(kvp_etcd_t *etcd, call_t *call, kvp_etcd_answer_t *answer)
{
    if (answer->err == KVP_OK || answer->err == KVP_NOT_FOUND)
        etcd->worked_ns = kvp_boot_ns();
    else
        etcd->failures++;
    call_destroy(etcd, call);
    etcd->conf.on_answer(etcd->conf.arg, answer);
}

static kvp_etcd_answer_t
answer_to(const call_t *call, kvp_err_t err)
{
    return (kvp_etcd_answer_t){
        .kind = call->op.kind, .id = call->op.id, .err = err, .sent_ns = call->sent_ns, .lease = call->op.lease};
}

/* Destroys the watch, and sets the time at which the thread makes a new one: now, or after a growing pause if the
 * watch failed. */
static void
end_watch(kvp_etcd_t *etcd, bool has_failed)
{
    call_t *watch = etcd->watch;
    uint64_t backoff_ns = kvp_min_u64(kvp_max_u64(2 * etcd->watch_backoff_ns, BACKOFF_MIN_NS), BACKOFF_MAX_NS);

    if (watch->state == WATCH_LACKS_TOKEN) drop_token(etcd, watch->token_number);
    if (has_failed) etcd->watch_backoff_ns = backoff_ns;
    etcd->watch_at_ns = kvp_now_ns() + (has_failed ? backoff_ns : 0);
    etcd->watch = NULL;
    call_destroy(etcd, watch);
}

static void
on_op_done(kvp_etcd_t *etcd, call_t *call, CURLcode code, long status)
{
    kvp_etcd_fault_t fault;
    kvp_etcd_answer_t answer = answer_to(call, err_of(call, code, &fault));

    if (code == CURLE_OK) kvp_etcd_decode(status, &call->answer, &answer, &fault);
    if (fault.is_token_bad && etcd->conf.user != NULL) {
        drop_token(etcd, call->token_number);
        if (!call->has_retried) {
            call->has_retried = true;
            call_reset(etcd, call);
            start_call(etcd, call);
            return;
        }
    }
    judge_endpoint(etcd, call, answer.err, fault.why);
    answer_op(etcd, call, &answer);
}

static void
on_login_done(kvp_etcd_t *etcd, call_t *login, CURLcode code, long status)
{
    kvp_etcd_fault_t fault;
    kvp_err_t err = err_of(login, code, &fault);
    kvp_list_t ready;

    if (code == CURLE_OK) err = kvp_etcd_decode_login(status, &login->answer, &etcd->token, &fault);
    if (err == KVP_OK) etcd->token_number++;
    judge_endpoint(etcd, login, err, fault.why);
    call_destroy(etcd, login);
    etcd->login = NULL;

    kvp_list_init(&ready);
    kvp_list_splice(&etcd->waiting, &ready);
    while (!kvp_list_is_empty(&ready)) {
        call_t *call = kvp_list_first(&ready, call_t, link);

        kvp_list_del(&call->link);
        if (err == KVP_OK) {
            start_call(etcd, call);
        } else if (call->role == CALL_WATCH) {
            end_watch(etcd, true);
        } else {
            kvp_etcd_answer_t answer = answer_to(call, err);

            answer_op(etcd, call, &answer);
        }
    }
}

/* The watch's connection has ended. If the answer was no stream, its rest is a message, too. */
static void
on_watch_done(kvp_etcd_t *etcd, call_t *watch)
{
    if (watch->answer.len > 0) end_message(etcd, watch);
    move_on(etcd, watch->endpoint);
    end_watch(etcd, true);
}

static void
take_done(kvp_etcd_t *etcd)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(etcd->multi, &left)) != NULL) {
        CURLcode code = message->data.result;
        call_t *call = NULL;
        long status = 0;

        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
        curl_easy_getinfo(message->easy_handle, CURLINFO_RESPONSE_CODE, &status);
        if (call->role == CALL_OP)
            on_op_done(etcd, call, code, status);
        else if (call->role == CALL_LOGIN)
            on_login_done(etcd, call, code, status);
        else
            on_watch_done(etcd, call);
    }
}

/* Ends a watch that has failed, and begins a new one when it is due. Returns the time of the next call. */
static uint64_t
turn_watch(kvp_etcd_t *etcd)
{
    uint64_t now_ns = kvp_now_ns();
    call_t *watch = etcd->watch;

    if (watch != NULL && watch->easy != NULL) {
        bool is_late = watch->state == WATCH_STARTS && now_ns >= watch->deadline_ns;

        if (is_late) move_on(etcd, watch->endpoint);
        if (watch->state > WATCH_RUNS || is_late)
            end_watch(etcd, true);
        else if (watch->endpoint != etcd->current)
            end_watch(etcd, false);
    }
    if (etcd->watch == NULL && now_ns >= etcd->watch_at_ns) {
        etcd->watch = call_create(CALL_WATCH, etcd->conf.request_ns);
        start_call(etcd, etcd->watch);
    }
    if (etcd->watch == NULL) return etcd->watch_at_ns;
    return etcd->watch->easy != NULL && etcd->watch->state == WATCH_STARTS ? etcd->watch->deadline_ns : UINT64_MAX;
}

/* Starts the queued requests. Returns false if the thread should end. */
static bool
take_asked(kvp_etcd_t *etcd)
{
    kvp_list_t asked;
    bool is_ending;

    kvp_list_init(&asked);
    pthread_mutex_lock(&etcd->lock);
    is_ending = etcd->is_ending;
    if (!is_ending) kvp_list_splice(&etcd->asked, &asked);
    pthread_mutex_unlock(&etcd->lock);
    while (!kvp_list_is_empty(&asked)) {
        call_t *call = kvp_list_first(&asked, call_t, link);

        kvp_list_del(&call->link);
        start_call(etcd, call);
    }
    return !is_ending;
}

static void *
run_etcd(void *arg)
{
    kvp_etcd_t *etcd = arg;
    int running;

    while (take_asked(etcd)) {
        uint64_t at_ns = turn_watch(etcd), now_ns = kvp_now_ns();
        uint64_t pause_ms = at_ns <= now_ns ? 0 : kvp_min_u64((at_ns - now_ns) / KVP_NS_PER_MS + 1, 1000);

        curl_multi_poll(etcd->multi, NULL, 0, (int)pause_ms, NULL);
        curl_multi_perform(etcd->multi, &running);
        take_done(etcd);
        if (etcd->has_change) {
            etcd->has_change = false;
            etcd->conf.on_change(etcd->conf.arg);
        }
    }
    return NULL;
}

static kvp_err_t
parse_endpoints(kvp_etcd_t *etcd, const char *list)
{
    for (const char *at = list; at != NULL;) {
        const char *comma = strchrnul(at, ',');
        bool is_https = strncmp(at, "https://", 8) == 0;
        const char *from = at + (is_https ? 8 : strncmp(at, "http://", 7) == 0 ? 7 : 0);
        char text[KVP_HOSTPORT_TEXT_MAX] = "";
        kvp_hostport_t host;

        if (comma > from && (size_t)(comma - from) < sizeof text) memcpy(text, from, (size_t)(comma - from));
        if (etcd->endpoints_n == ENDPOINTS_MAX || kvp_parse_hostport(text, &host) != KVP_OK || host.port == 0) {
            kvp_log_error("etcd",
                          "endpoints \"%s\": 1 to %u of http://HOST:PORT or https://HOST:PORT, with commas between",
                          list, ENDPOINTS_MAX);
            return KVP_INVALID;
        }
        if (asprintf(&etcd->endpoints[etcd->endpoints_n], "http%s://%s", is_https ? "s" : "",
                     kvp_format_hostport(&host, text)) < 0)
            return KVP_NOMEM;
        etcd->endpoints_n++;
        at = *comma != '\0' ? comma + 1 : NULL;
    }
    return KVP_OK;
}

static kvp_err_t
copy_text(const char *text, bool is_file, const char **out)
{
    if (text == NULL) return KVP_OK;
    if (is_file && access(text, R_OK) != 0) {
        kvp_log_error("etcd", "cannot read %s: %m", text);
        return KVP_INVALID;
    }
    *out = strdup(text);
    return *out != NULL ? KVP_OK : KVP_NOMEM;
}

kvp_err_t
kvp_etcd_create(const kvp_etcd_conf_t *conf, kvp_etcd_t **etcd_out)
{
    kvp_etcd_t *etcd = calloc(1, sizeof *etcd);
    size_t prefix_len = strlen(conf->prefix);
    kvp_err_t err;

    if (etcd == NULL) return KVP_NOMEM;
    pthread_mutex_init(&etcd->lock, NULL);
    kvp_list_init(&etcd->asked);
    kvp_list_init(&etcd->waiting);
    kvp_list_init(&etcd->busy);
    etcd->noise.burst = NOISE_LINES;
    etcd->noise.interval_ms = NOISE_MS;
    etcd->conf.request_ns = conf->request_ns != 0 ? conf->request_ns : REQUEST_NS;
    etcd->conf.on_answer = conf->on_answer;
    etcd->conf.on_change = conf->on_change;
    etcd->conf.arg = conf->arg;
    err = prefix_len == 0 || prefix_len > KVP_ETCD_KEY_MAX ? KVP_INVALID : KVP_OK;
    if (err != KVP_OK) kvp_log_error("etcd", "the prefix of the keys must have 1 to %u bytes", KVP_ETCD_KEY_MAX);
    if (err == KVP_OK) err = parse_endpoints(etcd, conf->endpoints);
    if (err == KVP_OK) err = copy_text(conf->prefix, false, &etcd->conf.prefix);
    if (err == KVP_OK) err = copy_text(conf->ca_file, true, &etcd->conf.ca_file);
    if (err == KVP_OK) err = copy_text(conf->cert_file, true, &etcd->conf.cert_file);
    if (err == KVP_OK) err = copy_text(conf->key_file, true, &etcd->conf.key_file);
    if (err == KVP_OK) err = copy_text(conf->user, false, &etcd->conf.user);
    if (err == KVP_OK) err = copy_text(conf->password != NULL ? conf->password : "", false, &etcd->conf.password);
    if (err != KVP_OK) goto fail;

    err = KVP_NOMEM;
    etcd->has_curl = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    if (!etcd->has_curl) goto fail;
    etcd->multi = curl_multi_init();
    if (etcd->multi == NULL) goto fail;
    etcd->worked_ns = kvp_boot_ns();
    err = kvp_thread_start(&etcd->thread, "kvp-etcd", run_etcd, etcd);
    if (err != KVP_OK) goto fail;
    etcd->has_thread = true;
    *etcd_out = etcd;
    return KVP_OK;

fail:
    kvp_etcd_destroy(etcd);
    return err;
}

void
kvp_etcd_destroy(kvp_etcd_t *etcd)
{
    if (etcd == NULL) return;
    if (etcd->has_thread) {
        pthread_mutex_lock(&etcd->lock);
        etcd->is_ending = true;
        pthread_mutex_unlock(&etcd->lock);
        curl_multi_wakeup(etcd->multi);
        pthread_join(etcd->thread, NULL);
    }
    kvp_list_splice(&etcd->asked, &etcd->busy);
    kvp_list_splice(&etcd->waiting, &etcd->busy);
    while (!kvp_list_is_empty(&etcd->busy))
        call_destroy(etcd, kvp_list_first(&etcd->busy, call_t, link));
    if (etcd->multi != NULL) curl_multi_cleanup(etcd->multi);
    if (etcd->has_curl) curl_global_cleanup();
    for (size_t i = 0; i < etcd->endpoints_n; i++)
        free(etcd->endpoints[i]);
    free((void *)etcd->conf.prefix);
    free((void *)etcd->conf.ca_file);
    free((void *)etcd->conf.cert_file);
    free((void *)etcd->conf.key_file);
    free((void *)etcd->conf.user);
    free((void *)etcd->conf.password);
    free(etcd->token);
    pthread_mutex_destroy(&etcd->lock);
    free(etcd);
}

void
kvp_etcd_ask(kvp_etcd_t *etcd, const kvp_etcd_op_t *op)
{
    /* A lease is renewed often, so a renewal gets half of the time limit: then etcd's next member can be tried before
     * the lease expires, if a member does not answer. */
    const uint64_t most_ns = etcd->conf.request_ns / (op->kind == KVP_ETCD_KEEP_ALIVE ? 2 : 1);
    call_t *call = call_create(CALL_OP, most_ns);

    if (op->compares_n > KVP_ETCD_COMPARES_MAX || op->writes_n > KVP_ETCD_WRITES_MAX) kvp_panic("etcd: too much asked");
    call->op = *op;
    etcd->requests++;
    pthread_mutex_lock(&etcd->lock);
    kvp_list_add_tail(&etcd->asked, &call->link);
    pthread_mutex_unlock(&etcd->lock);
    curl_multi_wakeup(etcd->multi);
}

void
kvp_etcd_stats(const kvp_etcd_t *etcd, uint64_t *requests_out, uint64_t *failures_out)
{
    *requests_out = etcd->requests;
    *failures_out = etcd->failures;
}

uint64_t
kvp_etcd_silence(kvp_etcd_t *etcd, char trouble_out[KVP_ETCD_TROUBLE_MAX])
{
    pthread_mutex_lock(&etcd->lock);
    memcpy(trouble_out, etcd->trouble, sizeof etcd->trouble);
    pthread_mutex_unlock(&etcd->lock);
    return kvp_boot_ns() - etcd->worked_ns;
}
