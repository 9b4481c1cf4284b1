/* SPDX-License-Identifier: Apache-2.0
 * What strangers and files say about identities. The first byte chooses: a token file, the URI of a certificate, or a
 * Hello with a token to a core that knows the session's identity. */
#include "common/trust/tokens.h"
#include "master/core/api/master.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_identity(const kvp_identity_t *who)
{
    check(memchr(who->name, '\0', sizeof who->name) != NULL);
    check(memchr(who->id, '\0', sizeof who->id) != NULL);
    check(memchr(who->cluster, '\0', sizeof who->cluster) != NULL);
    check(memchr(who->node, '\0', sizeof who->node) != NULL);
    check(who->role <= KVP_IS_ENGINE && (who->role != KVP_IS_ENGINE || who->node[0] != '\0'));
}

static void
read_tokens(const char *text, size_t len)
{
    char why[KVP_TOKENS_WHY_MAX] = "";
    kvp_identity_t who;
    kvp_tokenfile_t *t;

    if (kvp_tokenfile_parse(text, len, &t, why) != KVP_OK) {
        check(why[0] != '\0');
        return;
    }
    kvp_tokenfile_find(t, text, len, 1, &who);
    check_identity(&who);
    check(kvp_tokenfile_count(t) <= KVP_TOKENS_MAX);
    kvp_tokenfile_destroy(t);
}

static void
read_uri(const char *text, size_t len)
{
    kvp_identity_t who = {.role = KVP_MAY_NOTHING};
    const char *why = NULL;

    if (kvp_identity_parse_uri(text, len, &who, &why) != KVP_OK) {
        check(why != NULL && who.role == KVP_MAY_NOTHING);
        return;
    }
    check_identity(&who);
    check(who.role != KVP_MAY_NOTHING && who.cluster[0] != '\0');
}

/* Sends frames to a core. The session may read for a tenant: no message makes it do more. */
static void
say_hello(const uint8_t *data, size_t size)
{
    const kvp_master_conf_t conf = {.term = 1, .seed = 1, .secret = 1, .host_id = "host"};
    kvp_identity_t who = {.role = KVP_MAY_READ, .proof = KVP_BY_TOKEN, .name = "acme", .id = "t"};
    kvp_master_ready_t ready = {.conn = 0};
    kvp_master_stats_t stats;
    kvp_master_t *m;
    kvp_frame_t frame;
    size_t used;

    check(kvp_master_create(&conf, 1, &m) == KVP_OK);
    kvp_master_on_connect(m, 1, 1);
    kvp_master_on_identity(m, 1, &who, 1);
    while (size >= KVP_FRAME_HDR_BYTES && kvp_frame_parse(data, size, &frame, &used) == KVP_OK && used > 0) {
        kvp_master_on_frame(m, 1, &frame, 2);
        while (kvp_master_ready(m, &ready)) {
            kvp_buf_reset(&ready.frames);
            kvp_buf_reset(&ready.log);
        }
        data += used;
        size -= used;
    }
    kvp_master_stats(m, &stats);
    check(stats.nodes == 0 && stats.segments == 0 && stats.put_begins == 0 && stats.removes == 0);
    kvp_buf_fini(&ready.frames);
    kvp_buf_fini(&ready.log);
    kvp_master_destroy(m);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _Alignas(8) uint8_t copy[65536];
    const size_t n = size == 0 || size > sizeof copy ? 0 : size - 1;

    if (size == 0) return 0;
    memcpy(copy, data + 1, n);
    switch (data[0] % 3) {
    case 0:
        read_tokens((const char *)copy, n);
        break;
    case 1:
        read_uri((const char *)copy, n);
        break;
    default:
        say_hello(copy, n);
    }
    return 0;
}
