/* SPDX-License-Identifier: Apache-2.0
 * What a publisher is registered as, and its JSON. The key is (instance, tenant, rank).
 */
#ifndef KVP_CONDUCTOR_BASE_REGISTRATION_H
#define KVP_CONDUCTOR_BASE_REGISTRATION_H

#include "common/jsonw.h"

#include <json-c/json_types.h>

#define KVP_NAME_TEXT_MAX 255u /* bytes of a name */
#define KVP_URL_TEXT_MAX 511u
#define KVP_TOKENS_MAX (1u << 20) /* of a block */
#define KVP_RANK_MAX 65535u
#define KVP_BACKENDS_MAX 4u
#define KVP_PARTS_MAX 64u

/* Where an engine's connector stores: a pool, under the prefix of keys, each block in this many
 * parts, one a rank. */
typedef struct {
    char backend[KVP_NAME_TEXT_MAX + 1], prefix[KVP_URL_TEXT_MAX + 1];
    uint32_t ranks;
} kvp_backend_name_t;

typedef struct {
    char endpoint[KVP_URL_TEXT_MAX + 1], replay_endpoint[KVP_URL_TEXT_MAX + 1]; /* of ZMQ; replay "" = none */
    char type[KVP_NAME_TEXT_MAX + 1], model[KVP_NAME_TEXT_MAX + 1], lora[KVP_NAME_TEXT_MAX + 1];
    char tenant[KVP_NAME_TEXT_MAX + 1], instance[KVP_NAME_TEXT_MAX + 1], salt[KVP_NAME_TEXT_MAX + 1];
    char url[KVP_URL_TEXT_MAX + 1], role[KVP_NAME_TEXT_MAX + 1]; /* of the server, for routers; "" = unknown */
    uint32_t block_size, rank;
    bool is_shared; /* a publisher of a pool's events, not an instance */
    uint32_t backends_n;
    kvp_backend_name_t backends[KVP_BACKENDS_MAX];
} kvp_registration_t;

/* kvp_json_text, kvp_json_u32: a field of an object. Absent or null means the fallback; with
 * fallback NULL, or above max, the field is required. Names contain no quotes, backslashes and
 * control characters. False: *why_out (160 bytes) has the fault. */
bool kvp_json_text(json_object *in, const char *name, const char *fallback, char *out, size_t max, char why_out[160]);
bool kvp_json_u32(json_object *in, const char *name, uint64_t fallback, uint32_t min, uint32_t max, uint32_t *out,
                  char why_out[160]);
/* kvp_json_lora reads lora_name, or the deprecated lora_id, of which not both may be there; "" = the base model. */
bool kvp_json_lora(json_object *in, char out[KVP_NAME_TEXT_MAX + 1], char why_out[160]);

/* kvp_json_salt reads cache_salt, as an engine or a router has it; "" = none. */
bool kvp_json_salt(json_object *in, char out[KVP_NAME_TEXT_MAX + 1], char why_out[160]);

/* kvp_registration_read: false: *why_out has the fault. key_only: for /unregister, which needs only
 * the key. */
bool kvp_registration_read(json_object *in, bool key_only, kvp_registration_t *out, char why_out[160]);
void kvp_registration_write(const kvp_registration_t *r, kvp_jsonw_t *w);
bool kvp_registration_is_same_key(const kvp_registration_t *a, const kvp_registration_t *b);

#endif
