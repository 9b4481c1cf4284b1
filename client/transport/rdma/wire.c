/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/transport/rdma/wire.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <string.h>

#define MAGIC 0x5250564Bu /* "KVPR" */
#define HEAD_BYTES 8u /* magic, version, error */
#define ANSWER_BYTES 32u /* head, nonce, epoch, rail, rails_n, 2 of nothing, MTU */
#define RAIL_BYTES 18u /* an IPv6 address, IPv4 mapped into it, and a port */
#define TOKEN_HEAD_BYTES 28u /* epoch, address, length, rails_n, whether to write, 2 of nothing */

static_assert(KVP_RDMA_ASK_BYTES <= KVP_RDMA_ASK_MAX, "fits beside a request");
static_assert(ANSWER_BYTES + KVP_RDMA_RAILS_MAX * RAIL_BYTES <= KVP_RDMA_ANSWER_MAX, "fits beside an answer");
static_assert(TOKEN_HEAD_BYTES + KVP_RDMA_RAILS_MAX * 4 <= KVP_TOKEN_MAX, "fits into a token");

/* ---- numbers: this host is little-endian (meson.build) */
static void
put(uint8_t *dst, uint64_t value, size_t n)
{
    memcpy(dst, &value, n);
}

static uint64_t
take(const uint8_t *src, size_t n)
{
    uint64_t value = 0;

    memcpy(&value, src, n);
    return value;
}

/* ---- heads */
static void
put_head(uint8_t *dst, kvp_err_t err)
{
    put(dst, MAGIC, 4);
    put(dst + 4, KVP_RDMA_VERSION, 2);
    put(dst + 6, (uint64_t) - (int64_t)err, 2);
}

static kvp_err_t
take_head(const uint8_t *src, size_t len)
{
    if (len < HEAD_BYTES || take(src, 4) != MAGIC) return KVP_PROTO;
    return take(src + 4, 2) == KVP_RDMA_VERSION ? KVP_OK : KVP_VERSION;
}

/* ---- asking */
size_t
kvp_rdma_ask_encode(const kvp_rdma_ask_t *ask, uint8_t dst[KVP_RDMA_ASK_MAX])
{
    put_head(dst, KVP_OK);
    put(dst + 8, ask->nonce, 8);
    put(dst + 16, ask->incarnation, 8);
    memcpy(dst + 24, ask->pool_id, sizeof ask->pool_id);
    put(dst + 40, ask->mtu_bytes, 4);
    return KVP_RDMA_ASK_BYTES;
}

kvp_err_t
kvp_rdma_ask_decode(const uint8_t *src, size_t len, kvp_rdma_ask_t *out)
{
    kvp_err_t err = take_head(src, len);

    if (err != KVP_OK) return err;
    if (len < KVP_RDMA_ASK_BYTES) return KVP_PROTO;
    out->nonce = take(src + 8, 8);
    out->incarnation = take(src + 16, 8);
    memcpy(out->pool_id, src + 24, sizeof out->pool_id);
    out->mtu_bytes = (uint32_t)take(src + 40, 4);
    return KVP_OK;
}

/* ---- answering */
static void
put_rail(uint8_t *dst, const struct sockaddr_storage *addr)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)addr;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)addr;

    memset(dst, 0, RAIL_BYTES);
    if (addr->ss_family == AF_INET) {
        dst[10] = dst[11] = 0xFF;
        memcpy(dst + 12, &v4->sin_addr, 4);
        put(dst + 16, ntohs(v4->sin_port), 2);
    } else {
        memcpy(dst, &v6->sin6_addr, 16);
        put(dst + 16, ntohs(v6->sin6_port), 2);
    }
}

static void
take_rail(const uint8_t *src, struct sockaddr_storage *addr_out)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)take(src + 16, 2))};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = v6.sin6_port};

    memset(addr_out, 0, sizeof *addr_out);
    memcpy(&v6.sin6_addr, src, 16);
    memcpy(&v4.sin_addr, src + 12, 4);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
        memcpy(addr_out, &v4, sizeof v4);
    else
        memcpy(addr_out, &v6, sizeof v6);
}

size_t
kvp_rdma_answer_encode(const kvp_rdma_answer_t *answer, uint8_t dst[KVP_RDMA_ANSWER_MAX])
{
    memset(dst, 0, ANSWER_BYTES);
    put_head(dst, answer->err);
    put(dst + 8, answer->nonce, 8);
    put(dst + 16, answer->epoch, 8);
    dst[24] = (uint8_t)answer->rail;
    dst[25] = (uint8_t)answer->rails_n;
    put(dst + 28, answer->mtu_bytes, 4);
    for (uint32_t i = 0; i < answer->rails_n; i++)
        put_rail(dst + ANSWER_BYTES + i * RAIL_BYTES, &answer->rails[i]);
    return ANSWER_BYTES + answer->rails_n * RAIL_BYTES;
}

kvp_err_t
kvp_rdma_answer_decode(const uint8_t *src, size_t len, kvp_rdma_answer_t *out)
{
    kvp_err_t err = take_head(src, len);

    if (err != KVP_OK) return err;
    if (len < ANSWER_BYTES || src[25] > KVP_RDMA_RAILS_MAX) return KVP_PROTO;
    if (len < ANSWER_BYTES + src[25] * RAIL_BYTES || take(src + 6, 2) > 1000) return KVP_PROTO;
    memset(out, 0, sizeof *out); /* what is between the fields as well: answers are compared as they lie */
    out->err = (kvp_err_t) - (int64_t)take(src + 6, 2);
    out->nonce = take(src + 8, 8);
    out->epoch = take(src + 16, 8);
    out->rail = src[24];
    out->rails_n = src[25];
    out->mtu_bytes = (uint32_t)take(src + 28, 4);
    if (out->err == KVP_OK && out->rail >= out->rails_n) return KVP_PROTO;
    for (uint32_t i = 0; i < out->rails_n; i++)
        take_rail(src + ANSWER_BYTES + i * RAIL_BYTES, &out->rails[i]);
    return KVP_OK;
}

/* ---- tokens */
void
kvp_rdma_token_encode(const kvp_rdma_token_t *keys, kvp_token_t *token_out)
{
    *token_out = (kvp_token_t){.fd = -1, .len = (uint8_t)(TOKEN_HEAD_BYTES + keys->rails_n * 4)};
    put(token_out->bytes, keys->epoch, 8);
    put(token_out->bytes + 8, keys->addr, 8);
    put(token_out->bytes + 16, keys->len, 8);
    token_out->bytes[24] = (uint8_t)keys->rails_n;
    token_out->bytes[25] = keys->is_writable;
    for (uint32_t i = 0; i < keys->rails_n; i++)
        put(token_out->bytes + TOKEN_HEAD_BYTES + i * 4, keys->rkeys[i], 4);
}

kvp_err_t
kvp_rdma_token_decode(const kvp_token_t *token, kvp_rdma_token_t *out)
{
    const uint8_t *src = token->bytes;

    if (token->len < TOKEN_HEAD_BYTES || src[24] == 0 || src[24] > KVP_RDMA_RAILS_MAX) return KVP_INVALID;
    if (token->len != TOKEN_HEAD_BYTES + src[24] * 4u) return KVP_INVALID;
    memset(out, 0, sizeof *out);
    out->epoch = take(src, 8);
    out->addr = take(src + 8, 8);
    out->len = take(src + 16, 8);
    out->rails_n = src[24];
    out->is_writable = src[25] != 0;
    for (uint32_t i = 0; i < out->rails_n; i++)
        out->rkeys[i] = (uint32_t)take(src + TOKEN_HEAD_BYTES + i * 4, 4);
    return KVP_OK;
}
