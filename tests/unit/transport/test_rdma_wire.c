/* SPDX-License-Identifier: Apache-2.0
 * What RDMA peers tell each other: it comes back as it was said, and what a stranger says is refused. */
#include "transport/rdma/base/wire.h"
#include "tests/cases.h"

#include <netinet/in.h>
#include <string.h>

static const kvp_rdma_ask_t ask = {
    .nonce = 0x1122334455667788, .incarnation = 7, .pool_id = "sixteen bytes..", .mtu_bytes = 4096};

static kvp_rdma_answer_t
answer_of(uint32_t rails)
{
    kvp_rdma_answer_t a;

    memset(&a, 0, sizeof a);
    a.nonce = 5;
    a.epoch = 6;
    a.rail = rails - 1;
    a.rails_n = rails;
    a.mtu_bytes = 1024;
    for (uint32_t i = 0; i < rails && i < KVP_RDMA_RAILS_MAX; i++) {
        struct sockaddr_in v4 = {
            .sin_family = AF_INET, .sin_port = htons(4711), .sin_addr.s_addr = htonl(0x0A630001 + i)};

        memcpy(&a.rails[i], &v4, sizeof v4);
    }
    return a;
}

typedef enum { V4, NEAR, FAR, MIXED } kind_t;

/* NEAR: IPv6 addresses of one network; FAR: of one each. */
static void
make_rails(kvp_rdma_answer_t *a, kind_t kind)
{
    memset(a->rails, 0, sizeof a->rails);
    for (uint32_t i = 0; i < a->rails_n; i++) {
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(4711)};
        struct sockaddr_in v4 = {
            .sin_family = AF_INET, .sin_port = htons(4711), .sin_addr.s_addr = htonl(0x0A630001 + i)};

        memset(&v6.sin6_addr, 0xfd, sizeof v6.sin6_addr);
        v6.sin6_addr.s6_addr[15] = (uint8_t)i;
        if (kind == FAR) v6.sin6_addr.s6_addr[7] = (uint8_t)i;
        if (kind == V4 || (kind == MIXED && i % 3 == 1))
            memcpy(&a->rails[i], &v4, sizeof v4);
        else
            memcpy(&a->rails[i], &v6, sizeof v6);
    }
}

TEST(test_ask_when_whole_and_cut)
{
    uint8_t bytes[KVP_RDMA_ASK_MAX] = {0};
    size_t n = kvp_rdma_ask_encode(&ask, bytes);
    kvp_rdma_ask_t back;

    assert_int_equal(kvp_rdma_ask_decode(bytes, sizeof bytes, &back), KVP_OK); /* padding behind it */
    assert_true(back.nonce == ask.nonce && back.incarnation == 7 && back.mtu_bytes == 4096);
    assert_memory_equal(back.pool_id, ask.pool_id, sizeof ask.pool_id);
    for (size_t len = 0; len < n; len++)
        assert_int_equal(kvp_rdma_ask_decode(bytes, len, &back), KVP_PROTO);
    bytes[4]++;
    assert_int_equal(kvp_rdma_ask_decode(bytes, n, &back), KVP_VERSION);
    bytes[0]++;
    assert_int_equal(kvp_rdma_ask_decode(bytes, n, &back), KVP_PROTO);
}

TEST(test_answer_when_whole_and_cut)
{
    for (uint32_t rails = 1; rails <= KVP_RDMA_RAILS_MAX; rails++) {
        kvp_rdma_answer_t a = answer_of(rails), back;
        uint8_t bytes[KVP_RDMA_ANSWER_MAX] = {0};
        size_t n = kvp_rdma_answer_encode(&a, bytes);

        assert_int_equal(kvp_rdma_answer_decode(bytes, n, &back), KVP_OK);
        assert_memory_equal(&back, &a, sizeof a);
        for (size_t len = 0; len < n; len++)
            assert_int_equal(kvp_rdma_answer_decode(bytes, len, &back), KVP_PROTO);
    }
}

/* As many rails as there may be, but of networks that have nothing in common nine. */
TEST(test_rails_of_every_kind)
{
    static const uint32_t most[] = {[V4] = KVP_RDMA_RAILS_MAX, [NEAR] = KVP_RDMA_RAILS_MAX, [FAR] = 9, [MIXED] = 15};

    for (kind_t kind = V4; kind <= MIXED; kind++) {
        for (uint32_t rails = 1; rails <= KVP_RDMA_RAILS_MAX; rails++) {
            kvp_rdma_answer_t a = answer_of(rails), back;
            uint8_t bytes[KVP_RDMA_ANSWER_MAX] = {0};
            size_t n;

            make_rails(&a, kind);
            n = kvp_rdma_answer_encode(&a, bytes);
            assert_int_equal(n > 0, rails <= most[kind]);
            if (n == 0) continue;
            assert_int_equal(kvp_rdma_answer_decode(bytes, n, &back), KVP_OK);
            assert_memory_equal(&back, &a, sizeof a);
            for (size_t len = 0; len < n; len++)
                assert_int_equal(kvp_rdma_answer_decode(bytes, len, &back), KVP_PROTO);
        }
    }
}

TEST(test_answer_when_it_cannot_be)
{
    kvp_rdma_answer_t a = answer_of(2), back;
    uint8_t bytes[KVP_RDMA_ANSWER_MAX] = {0};

    (void)kvp_rdma_answer_encode(&a, bytes);
    bytes[25] = KVP_RDMA_RAILS_MAX + 1;
    assert_int_equal(kvp_rdma_answer_decode(bytes, sizeof bytes, &back), KVP_PROTO);
    bytes[25] = 2;
    bytes[32] = 8; /* the half of an address, and no other one before it */
    assert_int_equal(kvp_rdma_answer_decode(bytes, sizeof bytes, &back), KVP_PROTO);
    bytes[32] = 5; /* no address */
    assert_int_equal(kvp_rdma_answer_decode(bytes, sizeof bytes, &back), KVP_PROTO);
    bytes[32] = 4;
    bytes[37] = 8; /* the half of one behind IPv4 */
    assert_int_equal(kvp_rdma_answer_decode(bytes, sizeof bytes, &back), KVP_PROTO);
    bytes[37] = 4;
    assert_int_equal(kvp_rdma_answer_decode(bytes, sizeof bytes, &back), KVP_OK);
    bytes[24] = 2; /* a rail that is none */
    assert_int_equal(kvp_rdma_answer_decode(bytes, sizeof bytes, &back), KVP_PROTO);
    bytes[7] = 0x80; /* an error that is none */
    assert_int_equal(kvp_rdma_answer_decode(bytes, sizeof bytes, &back), KVP_PROTO);
    a = (kvp_rdma_answer_t){.err = KVP_FENCED, .nonce = 1};
    (void)kvp_rdma_answer_encode(&a, bytes);
    assert_int_equal(kvp_rdma_answer_decode(bytes, sizeof bytes, &back), KVP_OK);
    assert_int_equal(back.err, KVP_FENCED);
}

TEST(test_token_when_whole_and_bent)
{
    kvp_rdma_token_t keys = {.epoch = 1, .addr = 2, .len = 3, .is_writable = true, .rails_n = 2, .rkeys = {4, 5}}, back;
    kvp_token_t token;

    kvp_rdma_token_encode(&keys, &token);
    assert_int_equal(token.fd, -1);
    assert_int_equal(kvp_rdma_token_decode(&token, &back), KVP_OK);
    assert_true(back.epoch == 1 && back.addr == 2 && back.len == 3 && back.is_writable && back.rails_n == 2);
    assert_memory_equal(back.rkeys, keys.rkeys, sizeof keys.rkeys);
    token.len--;
    assert_int_equal(kvp_rdma_token_decode(&token, &back), KVP_INVALID);
    token.len++;
    for (uint32_t rails = 0; rails < 256; rails++) {
        token.bytes[24] = (uint8_t)rails;
        assert_int_equal(kvp_rdma_token_decode(&token, &back), rails == 2 ? KVP_OK : KVP_INVALID);
    }
    token.len = 0;
    assert_int_equal(kvp_rdma_token_decode(&token, &back), KVP_INVALID);
}

TEST_MAIN()
