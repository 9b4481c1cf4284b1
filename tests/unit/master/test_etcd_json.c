/* SPDX-License-Identifier: Apache-2.0
 * What is asked of etcd, byte by byte, and what becomes of its answers: those of etcd 3.4, and malformed ones. */
#include "master/ha/etcd_json.h"
#include "tests/cases.h"

#include <stdio.h>
#include <string.h>

#define HEADER "\"header\":{\"cluster_id\":\"15118495548433857066\",\"revision\":\"7\",\"raft_term\":\"2\"}"

static kvp_buf_t
buf_of(const char *text)
{
    kvp_buf_t buf = {0};

    kvp_buf_append(&buf, text, strlen(text));
    return buf;
}

static kvp_etcd_answer_t
decode(kvp_etcd_kind_t kind, long status, const char *text, kvp_etcd_fault_t *fault_out)
{
    kvp_buf_t body = buf_of(text);
    kvp_etcd_answer_t answer = {.kind = kind};

    kvp_etcd_decode(status, &body, &answer, fault_out);
    kvp_buf_fini(&body);
    return answer;
}

static kvp_err_t
err_of(kvp_etcd_kind_t kind, long status, const char *text)
{
    kvp_etcd_fault_t fault;
    kvp_etcd_answer_t answer = decode(kind, status, text, &fault);

    assert_true(answer.err == KVP_OK || answer.err == KVP_NOT_FOUND || fault.why[0] != '\0');
    if (answer.err != KVP_OK) assert_null(answer.kvs);
    kvp_etcd_answer_fini(&answer);
    return answer.err;
}

static void
assert_encoded(const kvp_etcd_op_t *op, const char *prefix, const char *path, const char *body)
{
    kvp_buf_t out = {0};

    assert_string_equal(kvp_etcd_encode(op, prefix, &out), path);
    kvp_buf_append(&out, "", 1);
    assert_string_equal((const char *)out.data, body);
    kvp_buf_fini(&out);
}

TEST(test_encode_says_what_etcd_reads)
{
    kvp_etcd_op_t op = {.kind = KVP_ETCD_GRANT, .ttl_s = 2, .lease = INT64_MAX};

    assert_encoded(&op, "/a", "/v3/lease/grant", "{\"TTL\":\"2\"}");
    op.kind = KVP_ETCD_KEEP_ALIVE;
    assert_encoded(&op, "/a", "/v3/lease/keepalive", "{\"ID\":\"9223372036854775807\"}");
    op.kind = KVP_ETCD_REVOKE;
    assert_encoded(&op, "/a", "/v3/lease/revoke", "{\"ID\":\"9223372036854775807\"}");
    op.kind = KVP_ETCD_READ;
    assert_encoded(&op, "/a", "/v3/kv/range", "{\"key\":\"L2E=\",\"range_end\":\"L2I=\",\"limit\":\"64\"}");
    op = (kvp_etcd_op_t){.kind = KVP_ETCD_TXN,
                         .compares_n = 2,
                         .writes_n = 2,
                         .compares = {{.key = "/a"}, {.key = "/ab", .is_mod = true, .revision = 7}},
                         .writes = {{.key = "/abc", .value = "v", .lease = 5}, {.key = "/a", .is_removal = true}}};
    assert_encoded(&op, "/a", "/v3/kv/txn",
                   "{\"compare\":["
                   "{\"key\":\"L2E=\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"},"
                   "{\"key\":\"L2Fi\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"7\"}],"
                   "\"success\":[{\"request_put\":{\"key\":\"L2FiYw==\",\"value\":\"dg==\",\"lease\":\"5\"}},"
                   "{\"request_delete_range\":{\"key\":\"L2E=\"}}]}");
}

TEST(test_decode_takes_what_etcd_says)
{
    kvp_etcd_fault_t fault;

    kvp_etcd_answer_t a =
        decode(KVP_ETCD_GRANT, 200, "{" HEADER ",\"ID\":\"4111120264941781765\",\"TTL\":\"2\"}", &fault);
    assert_int_equal(a.err, KVP_OK);
    assert_int_equal(a.lease, 4111120264941781765);
    assert_int_equal(a.ttl_s, 2);
    assert_int_equal(a.revision, 7);
    a = decode(KVP_ETCD_KEEP_ALIVE, 200, "{\"result\":{" HEADER ",\"ID\":\"4\",\"TTL\":\"5\"}}\n", &fault);
    assert_int_equal(a.err, KVP_OK);
    assert_int_equal(a.ttl_s, 5);
    assert_int_equal(err_of(KVP_ETCD_KEEP_ALIVE, 200, "{\"result\":{" HEADER ",\"ID\":\"4\"}}\n"), KVP_NOT_FOUND);
    assert_int_equal(err_of(KVP_ETCD_KEEP_ALIVE, 200, "{\"result\":{" HEADER ",\"ID\":\"4\",\"TTL\":\"0\"}}"),
                     KVP_NOT_FOUND);
    a = decode(KVP_ETCD_TXN, 200, "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{}}]}", &fault);
    assert_true(a.err == KVP_OK && a.has_succeeded);
    a = decode(KVP_ETCD_TXN, 200, "{" HEADER "}", &fault);
    assert_true(a.err == KVP_OK && !a.has_succeeded);
    a = decode(KVP_ETCD_READ, 200,
               "{" HEADER ",\"kvs\":[{\"key\":\"L2E=\",\"create_revision\":\"3\",\"mod_revision\":\"4\",\"version\":"
               "\"1\",\"value\":\"4oKs\",\"lease\":\"5\"},{\"key\":\"L2Fi\",\"create_revision\":6}],\"count\":\"2\"}",
               &fault);
    assert_int_equal(a.err, KVP_OK);
    assert_int_equal(a.kvs_n, 2);
    assert_string_equal(a.kvs[0].key, "/a");
    assert_string_equal(a.kvs[0].value, "\xe2\x82\xac");
    assert_true(a.kvs[0].create_revision == 3 && a.kvs[0].mod_revision == 4 && a.kvs[0].lease == 5);
    assert_string_equal(a.kvs[1].key, "/ab");
    assert_string_equal(a.kvs[1].value, "");
    assert_true(a.kvs[1].create_revision == 6 && a.kvs[1].lease == 0);
    kvp_etcd_answer_fini(&a);
    /* As a gateway may say it that leaves nothing out. */
    assert_int_equal(err_of(KVP_ETCD_GRANT, 200, "{" HEADER ",\"ID\":\"4\",\"TTL\":\"2\",\"error\":\"\"}"), KVP_OK);
    assert_int_equal(err_of(KVP_ETCD_READ, 200, "{" HEADER ",\"kvs\":[],\"more\":false}"), KVP_OK);
}

TEST(test_decode_tells_errors_apart)
{
    static const struct {
        long status;
        const char *body;
        kvp_err_t err, err_of_revoke;
        bool is_token_bad;
    } rows[] = {
        {404, "{\"error\":\"etcdserver: requested lease not found\",\"code\":5}", KVP_NOT_FOUND, KVP_OK, false},
        {404, "{\"code\":5,\"message\":\"Not Found\"}", KVP_PROTO, KVP_PROTO, false},
        {404, "Not Found\n", KVP_PROTO, KVP_PROTO, false},
        {401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}", KVP_FENCED, KVP_FENCED, true},
        {200, "{\"error\":{\"grpc_code\":16,\"message\":\"x\"}}", KVP_FENCED, KVP_FENCED, true},
        {400, "{\"error\":\"etcdserver: user name is empty\",\"code\":3}", KVP_FENCED, KVP_FENCED, true},
        {400, "{\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}", KVP_FENCED, KVP_FENCED, true},
        {403, "{\"error\":\"etcdserver: permission denied\",\"code\":7}", KVP_FENCED, KVP_FENCED, false},
        {400, "{\"error\":\"etcdserver: duplicate key given in txn request\",\"code\":3}", KVP_PROTO, KVP_PROTO, false},
        {503, "{\"error\":\"etcdserver: no leader\",\"code\":14}", KVP_UNREACHABLE, KVP_UNREACHABLE, false},
        {412, "{\"error\":\"etcdserver: not leader\",\"code\":9}", KVP_UNREACHABLE, KVP_UNREACHABLE, false},
        {200, "{\"error\":{\"grpc_code\":14,\"message\":\"closing\"}}", KVP_UNREACHABLE, KVP_UNREACHABLE, false},
        {504, "{\"error\":\"request timed out\",\"code\":4}", KVP_UNREACHABLE, KVP_UNREACHABLE, false},
        {502, "<html>", KVP_UNREACHABLE, KVP_UNREACHABLE, false},
        {200, "", KVP_PROTO, KVP_PROTO, false},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(rows); i++) {
        kvp_etcd_fault_t fault;

        assert_int_equal(err_of(KVP_ETCD_TXN, rows[i].status, rows[i].body), rows[i].err);
        assert_int_equal(err_of(KVP_ETCD_REVOKE, rows[i].status, rows[i].body), rows[i].err_of_revoke);
        decode(KVP_ETCD_READ, rows[i].status, rows[i].body, &fault);
        assert_int_equal(fault.is_token_bad, rows[i].is_token_bad);
    }
}

TEST(test_decode_refuses_what_is_malformed)
{
    static const struct {
        kvp_etcd_kind_t kind;
        const char *body;
    } rows[] = {
        {KVP_ETCD_REVOKE, "[]"},
        {KVP_ETCD_REVOKE, "{}"},
        {KVP_ETCD_REVOKE, "{" HEADER},
        {KVP_ETCD_REVOKE, "{" HEADER "} x"},
        {KVP_ETCD_REVOKE, "{\"header\":[]}"},
        {KVP_ETCD_REVOKE, "{\"header\":{\"revision\":\"-1\"}}"},
        {KVP_ETCD_REVOKE, "{\"header\":{\"revision\":-1}}"},
        {KVP_ETCD_REVOKE, "{\"header\":{\"revision\":\"9223372036854775808\"}}"},
        {KVP_ETCD_REVOKE, "{\"header\":{\"revision\":9223372036854775808}}"},
        {KVP_ETCD_REVOKE, "{\"header\":{\"revision\":1.5}}"},
        {KVP_ETCD_REVOKE, "{\"header\":{\"revision\":true}}"},
        {KVP_ETCD_REVOKE, "{\"header\":{\"revision\":\"1\\u0000\"}}"},
        {KVP_ETCD_REVOKE, "{" HEADER ",\"x\":\"\xff\"}"},
        {KVP_ETCD_GRANT, "{" HEADER ",\"TTL\":\"2\"}"},
        {KVP_ETCD_GRANT, "{" HEADER ",\"ID\":\"1\"}"},
        {KVP_ETCD_GRANT, "{" HEADER ",\"ID\":\"1\",\"TTL\":\"4294967296\"}"},
        {KVP_ETCD_GRANT, "{" HEADER ",\"ID\":{},\"TTL\":\"2\"}"},
        {KVP_ETCD_KEEP_ALIVE, "{" HEADER ",\"ID\":\"1\",\"TTL\":\"2\"}"},
        {KVP_ETCD_KEEP_ALIVE, "{\"result\":[]}"},
        {KVP_ETCD_TXN, "{" HEADER ",\"succeeded\":\"true\"}"},
        {KVP_ETCD_READ, "{" HEADER ",\"kvs\":{}}"},
        {KVP_ETCD_READ, "{" HEADER ",\"kvs\":[7]}"},
        {KVP_ETCD_READ, "{" HEADER ",\"kvs\":[{}]}"},
        {KVP_ETCD_READ, "{" HEADER ",\"kvs\":[{\"key\":\"L2E=\"},{\"key\":\"L2E\"}]}"},
        {KVP_ETCD_READ, "{" HEADER ",\"kvs\":[{\"key\":\"====\"}]}"},
        {KVP_ETCD_READ, "{" HEADER ",\"kvs\":[{\"key\":\"L=E=\"}]}"},
        {KVP_ETCD_READ, "{" HEADER ",\"kvs\":[{\"key\":\"L2E=\",\"value\":5}]}"},
        {KVP_ETCD_READ, "{" HEADER ",\"kvs\":[{\"key\":\"L2E=\",\"lease\":\"x\"}]}"},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(rows); i++)
        assert_int_equal(err_of(rows[i].kind, 200, rows[i].body), KVP_PROTO);
}

TEST(test_decode_takes_bounded_memory)
{
    kvp_buf_t body = {0};
    kvp_etcd_answer_t answer = {.kind = KVP_ETCD_READ};
    kvp_etcd_fault_t fault;

    kvp_buf_append(&body, "{" HEADER ",\"kvs\":[", strlen("{" HEADER ",\"kvs\":["));
    for (int i = 0; i < 70; i++)
        kvp_buf_append(&body, &",{\"key\":\"L2E=\"}"[i == 0], i == 0 ? 14 : 15);
    kvp_buf_append(&body, "]}", 2);
    kvp_etcd_decode(200, &body, &answer, &fault);
    assert_int_equal(answer.err, KVP_OK);
    assert_int_equal(answer.kvs_n, KVP_ETCD_KVS_MAX);
    kvp_etcd_answer_fini(&answer);

    /* Values that the parser would take hundreds of bytes for, and an answer that is longer than any. */
    body.len -= 2;
    for (int i = 0; i < 5000; i++)
        kvp_buf_append(&body, ",{}", 3);
    kvp_buf_append(&body, "]}", 2);
    kvp_etcd_decode(200, &body, &answer, &fault);
    assert_int_equal(answer.err, KVP_PROTO);
    kvp_buf_reset(&body);
    kvp_buf_append(&body, "{" HEADER "}", strlen("{" HEADER "}"));
    memset(kvp_buf_reserve(&body, KVP_ETCD_ANSWER_BYTES_MAX), ' ', KVP_ETCD_ANSWER_BYTES_MAX);
    body.len += KVP_ETCD_ANSWER_BYTES_MAX - body.len;
    kvp_etcd_decode(200, &body, &answer, &fault);
    assert_int_equal(answer.err, KVP_OK);
    body.len++;
    kvp_etcd_decode(200, &body, &answer, &fault);
    assert_int_equal(answer.err, KVP_PROTO);
    kvp_buf_fini(&body);
}

TEST(test_login_gives_a_token_that_is_fit_for_a_header)
{
    static const struct {
        long status;
        const char *body;
        kvp_err_t err;
        const char *token;
    } rows[] = {
        {200, "{" HEADER ",\"token\":\"ilOISIVFqDjOZikk.10\"}", KVP_OK, "ilOISIVFqDjOZikk.10"},
        {412, "{\"error\":\"etcdserver: authentication is not enabled\",\"code\":9}", KVP_OK, ""},
        {400, "{\"error\":\"etcdserver: authentication failed, invalid user ID or password\",\"code\":3}", KVP_FENCED,
         NULL},
        {503, "{\"error\":\"etcdserver: no leader\",\"code\":14}", KVP_UNREACHABLE, NULL},
        {200, "{" HEADER "}", KVP_PROTO, NULL},
        {200, "{" HEADER ",\"token\":\"a\\r\\nb: c\"}", KVP_PROTO, NULL},
        {200, "{" HEADER ",\"token\":7}", KVP_PROTO, NULL},
        {200, "", KVP_PROTO, NULL},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(rows); i++) {
        kvp_buf_t body = buf_of(rows[i].body);
        kvp_etcd_fault_t fault;
        char *token = NULL;

        assert_int_equal(kvp_etcd_decode_login(rows[i].status, &body, &token, &fault), rows[i].err);
        if (rows[i].token != NULL)
            assert_string_equal(token, rows[i].token);
        else
            assert_null(token);
        free(token);
        kvp_buf_fini(&body);
    }
}

TEST(test_watch_tells_what_its_messages_mean)
{
    static const struct {
        const char *message;
        kvp_err_t err;
        bool is_created, is_change, is_token_bad;
    } rows[] = {
        {"{\"result\":{" HEADER ",\"created\":true}}", KVP_OK, true, true, false},
        {"{\"result\":{" HEADER ",\"events\":[{\"kv\":{\"key\":\"L2E=\"}}]}}", KVP_OK, false, true, false},
        {"{\"result\":{" HEADER ",\"events\":[]}}", KVP_OK, false, false, false},
        {"{\"result\":{" HEADER "}}", KVP_OK, false, false, false},
        {"{\"result\":{" HEADER ",\"created\":true,\"canceled\":true,\"cancel_reason\":\"rpc error: code = "
         "Unauthenticated desc = etcdserver: invalid auth token\"}}",
         KVP_CANCELLED, false, false, true},
        {"{\"result\":{" HEADER ",\"canceled\":true}}", KVP_CANCELLED, false, false, false},
        {"{\"error\":{\"grpc_code\":14,\"message\":\"transport is closing\"}}", KVP_UNREACHABLE, false, false, false},
        {"{\"result\":7}", KVP_PROTO, false, false, false},
        {"x", KVP_PROTO, false, false, false},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(rows); i++) {
        kvp_buf_t message = buf_of(rows[i].message);
        bool is_created = false, is_change = false;
        kvp_etcd_fault_t fault;

        assert_int_equal(kvp_etcd_decode_watch(&message, &is_created, &is_change, &fault), rows[i].err);
        assert_int_equal(is_created, rows[i].is_created);
        assert_int_equal(is_change, rows[i].is_change);
        assert_int_equal(fault.is_token_bad, rows[i].is_token_bad);
        kvp_buf_fini(&message);
    }
}

TEST_MAIN()
