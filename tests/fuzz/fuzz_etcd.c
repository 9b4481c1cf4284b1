/* SPDX-License-Identifier: Apache-2.0
 * The decoders of etcd's answers. The first byte says which answer the rest is of, and with which HTTP status. What
 * was taken must hold what etcd.h promises. */
#include "master/ha/etcd_json.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_answer(kvp_etcd_kind_t kind, long status, const kvp_buf_t *body)
{
    kvp_etcd_answer_t answer = {.kind = kind};
    kvp_etcd_fault_t fault;

    kvp_etcd_decode(status, body, &answer, &fault);
    check(memchr(fault.why, '\0', sizeof fault.why) != NULL);
    check(answer.err == KVP_OK || answer.err == KVP_NOT_FOUND || answer.err == KVP_FENCED ||
          answer.err == KVP_UNREACHABLE || answer.err == KVP_PROTO);
    check(answer.kvs_n <= KVP_ETCD_KVS_MAX && (answer.kvs_n == 0 || answer.kvs != NULL));
    check(answer.err == KVP_OK || (answer.kvs_n == 0 && answer.kvs == NULL));
    check(answer.revision >= 0 && answer.lease >= 0);
    for (uint32_t i = 0; i < answer.kvs_n; i++) {
        const kvp_etcd_kv_t *kv = &answer.kvs[i];

        check(kv->key[0] != '\0' && memchr(kv->key, '\0', sizeof kv->key) != NULL);
        check(memchr(kv->value, '\0', sizeof kv->value) != NULL);
        check(kv->create_revision >= 0 && kv->mod_revision >= 0 && kv->lease >= 0);
    }
    kvp_etcd_answer_fini(&answer);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const long statuses[] = {200, 200, 401, 404, 503};
    bool is_created = false, is_change = false;
    kvp_etcd_fault_t fault;
    kvp_buf_t body = {0};
    char *token = NULL;

    if (size == 0) return 0;
    kvp_buf_append(&body, data + 1, size - 1);
    long status = statuses[data[0] / 8 % KVP_ARRAY_LEN(statuses)];
    if (data[0] % 8 <= KVP_ETCD_TXN) {
        check_answer((kvp_etcd_kind_t)(data[0] % 8), status, &body);
    } else if (data[0] % 8 == KVP_ETCD_TXN + 1) {
        if (kvp_etcd_decode_login(status, &body, &token, &fault) == KVP_OK) {
            check(token != NULL && strlen(token) <= KVP_ETCD_TOKEN_MAX && strpbrk(token, "\r\n") == NULL);
            free(token);
        }
    } else if (kvp_etcd_decode_watch(&body, &is_created, &is_change, &fault) == KVP_OK) {
        check(is_change || !is_created);
    }
    kvp_buf_fini(&body);
    return 0;
}
