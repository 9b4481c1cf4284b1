/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rdma/base/wire.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <string.h>

#define MAGIC 0x5250564Bu /* the bytes "KVPR" */
#define HEAD_BYTES 8u /* the size of a message's head: magic, version, error */
#define ANSWER_BYTES 32u /* the size of an answer without rails: head, nonce, epoch, rail, rails_n, port, MTU */
#define V4_BYTES 4u /* the size of a rail's IPv4 address; each address follows a byte with its size */
/* the size of the second half of an IPv6 address; the first half is then that of the previous rail's address */
#define NEAR_BYTES 8u
#define V6_BYTES 16u /* the size of a whole IPv6 address */
/* the size of a token without keys: epoch, address, length, rails_n, is_writable, 2 zero bytes */
#define TOKEN_HEAD_BYTES 28u

static_assert(KVP_RDMA_ASK_BYTES <= KVP_RDMA_ASK_MAX, "fits beside a request");
static_assert(ANSWER_BYTES <= KVP_RDMA_REFUSAL_MAX, "fits beside a refusal, which tells no rails");
static_assert(ANSWER_BYTES + 1 + V6_BYTES + (KVP_RDMA_RAILS_MAX - 1) * (1 + NEAR_BYTES) <= KVP_RDMA_ANSWER_MAX,
              "as many rails as there may be, of one IPv6 network or with IPv4 addresses, fit beside a consent");
static_assert(TOKEN_HEAD_BYTES + KVP_RDMA_RAILS_MAX * 4 <= KVP_TOKEN_MAX, "fits into a token");

/* ---- numbers: this host is little-endian (meson.build) */
static void
put_uint(uint8_t *dst, uint64_t value, size_t n)
{
    memcpy(dst, &value, n);
}

static uint64_t
take_uint(const uint8_t *src, size_t n)
{
    uint64_t value = 0;

    memcpy(&value, src, n);
    return value;
}

/* ---- heads of messages */
static void
put_head(uint8_t *dst, kvp_err_t err)
{
    put_uint(dst, MAGIC, 4);
    put_uint(dst + 4, KVP_RDMA_VERSION, 2);
    put_uint(dst + 6, (uint64_t) - (int64_t)err, 2);
}

static kvp_err_t
take_head(const uint8_t *src, size_t len)
{
    if (len < HEAD_BYTES || take_uint(src, 4) != MAGIC) return KVP_PROTO;
    return take_uint(src + 4, 2) == KVP_RDMA_VERSION ? KVP_OK : KVP_VERSION;
}

/* ---- requests to connect */
size_t
kvp_rdma_ask_encode(const kvp_rdma_ask_t *ask, uint8_t dst[KVP_RDMA_ASK_MAX])
{
    put_head(dst, KVP_OK);
    put_uint(dst + 8, ask->nonce, 8);
    put_uint(dst + 16, ask->incarnation, 8);
    memcpy(dst + 24, ask->pool_id, sizeof ask->pool_id);
    put_uint(dst + 40, ask->mtu_bytes, 4);
    return KVP_RDMA_ASK_BYTES;
}

kvp_err_t
kvp_rdma_ask_decode(const uint8_t *src, size_t len, kvp_rdma_ask_t *out)
{
    kvp_err_t err = take_head(src, len);

    if (err != KVP_OK) return err;
    if (len < KVP_RDMA_ASK_BYTES) return KVP_PROTO;
    out->nonce = take_uint(src + 8, 8);
    out->incarnation = take_uint(src + 16, 8);
    memcpy(out->pool_id, src + 24, sizeof out->pool_id);
    out->mtu_bytes = (uint32_t)take_uint(src + 40, 4);
    return KVP_OK;
}

/* ---- answers to requests */
static const struct in6_addr *
v6_of(const struct sockaddr_storage *addr)
{
    return &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;
}

/* put_rail encodes a rail's address and returns the bytes written; 0 = no room. `before` is the previous rail's
 * address, or NULL. */
static size_t
put_rail(uint8_t *dst, size_t cap, const struct sockaddr_storage *addr, const struct sockaddr_storage *before)
{
    bool is_v4 = addr->ss_family == AF_INET;
    bool is_near = !is_v4 && before != NULL && before->ss_family == AF_INET6 &&
                   memcmp(v6_of(addr), v6_of(before), NEAR_BYTES) == 0;
    const uint8_t *from =
        is_v4 ? (const uint8_t *)&((const struct sockaddr_in *)(const void *)addr)->sin_addr : v6_of(addr)->s6_addr;
    size_t n = is_v4 ? V4_BYTES : is_near ? NEAR_BYTES : V6_BYTES;

    if (cap < 1 + n) return 0;
    dst[0] = (uint8_t)n;
    memcpy(dst + 1, is_near ? from + NEAR_BYTES : from, n);
    return 1 + n;
}

/* take_rail decodes a rail's address and returns the bytes used; 0 = malformed. */
static size_t
take_rail(const uint8_t *src, size_t len, uint16_t port, const struct sockaddr_storage *before,
          struct sockaddr_storage *addr_out)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    size_t n = len > 0 ? src[0] : 0;
    bool is_near = n == NEAR_BYTES && before != NULL && before->ss_family == AF_INET6;

    if (len < 1 + n || (n != V4_BYTES && n != V6_BYTES && !is_near)) return 0;
    if (n == V4_BYTES) {
        memcpy(&v4.sin_addr, src + 1, n);
        memcpy(addr_out, &v4, sizeof v4);
        return 1 + n;
    }
    if (is_near) memcpy(&v6.sin6_addr, v6_of(before), NEAR_BYTES);
    memcpy(v6.sin6_addr.s6_addr + V6_BYTES - n, src + 1, n);
    memcpy(addr_out, &v6, sizeof v6);
    return 1 + n;
}

/* Returns the TCP port, which IPv4 and IPv6 addresses have at the same place. */
static uint16_t
port_of(const struct sockaddr_storage *addr)
{
    return ntohs(((const struct sockaddr_in *)(const void *)addr)->sin_port);
}

size_t
kvp_rdma_answer_encode(const kvp_rdma_answer_t *answer, uint8_t dst[KVP_RDMA_ANSWER_MAX])
{
    size_t at = ANSWER_BYTES;

    memset(dst, 0, ANSWER_BYTES);
    put_head(dst, answer->err);
    put_uint(dst + 8, answer->nonce, 8);
    put_uint(dst + 16, answer->epoch, 8);
    dst[24] = (uint8_t)answer->rail;
    dst[25] = (uint8_t)answer->rails_n;
    if (answer->rails_n > 0) put_uint(dst + 26, port_of(&answer->rails[0]), 2);
    put_uint(dst + 28, answer->mtu_bytes, 4);
    for (uint32_t i = 0; i < answer->rails_n; i++) {
        size_t n =
            put_rail(dst + at, KVP_RDMA_ANSWER_MAX - at, &answer->rails[i], i == 0 ? NULL : &answer->rails[i - 1]);

        if (n == 0) return 0;
        at += n;
    }
    return at;
}

kvp_err_t
kvp_rdma_answer_decode(const uint8_t *src, size_t len, kvp_rdma_answer_t *out)
{
    kvp_err_t err = take_head(src, len);
    size_t at = ANSWER_BYTES;

    if (err != KVP_OK) return err;
    if (len > KVP_RDMA_ANSWER_MAX)
        /* RDMA's connection manager carries at most this many bytes of private data, and no answer of ours is longer */
        len = KVP_RDMA_ANSWER_MAX;
    if (len < ANSWER_BYTES || src[25] > KVP_RDMA_RAILS_MAX || take_uint(src + 6, 2) > 1000) return KVP_PROTO;
    /* the padding between the fields is zeroed as well, because answers are compared with memcmp */
    memset(out, 0, sizeof *out);
    out->err = (kvp_err_t) - (int64_t)take_uint(src + 6, 2);
    out->nonce = take_uint(src + 8, 8);
    out->epoch = take_uint(src + 16, 8);
    out->rail = src[24];
    out->rails_n = src[25];
    out->mtu_bytes = (uint32_t)take_uint(src + 28, 4);
    if (out->err == KVP_OK && out->rail >= out->rails_n) return KVP_PROTO;
    for (uint32_t i = 0; i < out->rails_n; i++) {
        size_t n = take_rail(src + at, len - at, (uint16_t)take_uint(src + 26, 2), i == 0 ? NULL : &out->rails[i - 1],
                             &out->rails[i]);

        if (n == 0) return KVP_PROTO;
        at += n;
    }
    return KVP_OK;
}

/* ---- tokens */
void
kvp_rdma_token_encode(const kvp_rdma_token_t *keys, kvp_token_t *token_out)
{
    *token_out = (kvp_token_t){.fd = -1, .len = (uint8_t)(TOKEN_HEAD_BYTES + keys->rails_n * 4)};
    put_uint(token_out->bytes, keys->epoch, 8);
    put_uint(token_out->bytes + 8, keys->addr, 8);
    put_uint(token_out->bytes + 16, keys->len, 8);
    token_out->bytes[24] = (uint8_t)keys->rails_n;
    token_out->bytes[25] = keys->is_writable;
    for (uint32_t i = 0; i < keys->rails_n; i++)
        put_uint(token_out->bytes + TOKEN_HEAD_BYTES + i * 4, keys->rkeys[i], 4);
}

kvp_err_t
kvp_rdma_token_decode(const kvp_token_t *token, kvp_rdma_token_t *out)
{
    const uint8_t *src = token->bytes;

    if (token->len < TOKEN_HEAD_BYTES || src[24] == 0 || src[24] > KVP_RDMA_RAILS_MAX) return KVP_INVALID;
    if (token->len != TOKEN_HEAD_BYTES + src[24] * 4u) return KVP_INVALID;
    memset(out, 0, sizeof *out);
    out->epoch = take_uint(src, 8);
    out->addr = take_uint(src + 8, 8);
    out->len = take_uint(src + 16, 8);
    out->rails_n = src[24];
    out->is_writable = src[25] != 0;
    for (uint32_t i = 0; i < out->rails_n; i++)
        out->rkeys[i] = (uint32_t)take_uint(src + TOKEN_HEAD_BYTES + i * 4, 4);
    return KVP_OK;
}
