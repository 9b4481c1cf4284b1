/* SPDX-License-Identifier: Apache-2.0
 * What RDMA peers say beside the making of a connection, and tokens: the first byte says which. What a decoder takes
 * says the same when it is encoded again. */
#include "transport/rdma/base/wire.h"
#include "tests/fuzz/fuzz_check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
on_ask(const uint8_t *data, size_t size)
{
    uint8_t again[KVP_RDMA_ASK_MAX];
    kvp_rdma_ask_t ask;

    if (kvp_rdma_ask_decode(data, size, &ask) != KVP_OK) return;
    check(size >= KVP_RDMA_ASK_BYTES && kvp_rdma_ask_encode(&ask, again) == KVP_RDMA_ASK_BYTES);
    check(memcmp(again + 8, data + 8, KVP_RDMA_ASK_BYTES - 8) == 0);
}

static void
on_answer(const uint8_t *data, size_t size)
{
    uint8_t bytes[KVP_RDMA_ANSWER_MAX];
    kvp_rdma_answer_t answer, again;

    if (kvp_rdma_answer_decode(data, size, &answer) != KVP_OK) return;
    check(answer.rails_n <= KVP_RDMA_RAILS_MAX && (answer.err != KVP_OK || answer.rail < answer.rails_n));
    check(kvp_rdma_answer_decode(bytes, kvp_rdma_answer_encode(&answer, bytes), &again) == KVP_OK);
    check(memcmp(&answer, &again, sizeof answer) == 0);
}

static void
on_token(const uint8_t *data, size_t size)
{
    kvp_token_t token = {.len = (uint8_t)kvp_min_u64(size, KVP_TOKEN_MAX)}, again;
    kvp_rdma_token_t keys;

    memcpy(token.bytes, data, token.len);
    if (kvp_rdma_token_decode(&token, &keys) != KVP_OK) return;
    check(keys.rails_n > 0 && keys.rails_n <= KVP_RDMA_RAILS_MAX);
    kvp_rdma_token_encode(&keys, &again);
    check(again.len == token.len && memcmp(again.bytes, token.bytes, 24) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const decoders[])(const uint8_t *, size_t) = {on_ask, on_answer, on_token};

    if (size > 0) decoders[data[0] % KVP_ARRAY_LEN(decoders)](data + 1, size - 1);
    return 0;
}
