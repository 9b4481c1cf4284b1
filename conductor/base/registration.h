/* SPDX-License-Identifier: Apache-2.0
 * The registration of a publisher of KV events, and its JSON form. (instance, tenant, rank) identifies a publisher. */
#ifndef KVP_CONDUCTOR_BASE_REGISTRATION_H
#define KVP_CONDUCTOR_BASE_REGISTRATION_H

#include "common/jsonw.h"

#include <json-c/json_types.h>

#define KVP_NAME_TEXT_MAX 255u /* limit of the length of a name in a registration, in bytes */
#define KVP_URL_TEXT_MAX 511u
#define KVP_TOKENS_MAX (1u << 20) /* limit of the number of tokens in a block */
#define KVP_RANK_MAX 65535u
#define KVP_BACKENDS_MAX 4u
#define KVP_PARTS_MAX 64u

/* A pool in which an engine's connector stores blocks: the name of the backend, the prefix of the keys, and the
 * number of parts of each block, one for each rank. */
typedef struct {
    char backend[KVP_NAME_TEXT_MAX + 1], prefix[KVP_URL_TEXT_MAX + 1];
    uint32_t ranks;
} kvp_backend_name_t;

typedef struct {
    /* ZMQ endpoints for live events and for replays; replay_endpoint "" = no replays */
    char endpoint[KVP_URL_TEXT_MAX + 1], replay_endpoint[KVP_URL_TEXT_MAX + 1];
    char type[KVP_NAME_TEXT_MAX + 1], model[KVP_NAME_TEXT_MAX + 1], lora[KVP_NAME_TEXT_MAX + 1];
    char tenant[KVP_NAME_TEXT_MAX + 1], instance[KVP_NAME_TEXT_MAX + 1], salt[KVP_NAME_TEXT_MAX + 1];
    /* URL and role of the engine's server, for the router; "" = unknown */
    char url[KVP_URL_TEXT_MAX + 1], role[KVP_NAME_TEXT_MAX + 1];
    uint32_t block_size, rank;
    bool is_shared; /* a flag: the publisher reports a shared pool and is not an engine's instance */
    uint32_t backends_n;
    kvp_backend_name_t backends[KVP_BACKENDS_MAX];
} kvp_registration_t;

/* kvp_json_text and kvp_json_u32 read one field of an object. A field that is absent or null has the value
 * `fallback`. A fallback of NULL, or above max, makes the field required. Names must not contain quotes,
 * backslashes or control characters. Both functions return false with the fault in *why_out (160 bytes). */
bool kvp_json_text(json_object *in, const char *name, const char *fallback, char *out, size_t max, char why_out[160]);
bool kvp_json_u32(json_object *in, const char *name, uint64_t fallback, uint32_t min, uint32_t max, uint32_t *out,
                  char why_out[160]);
/* kvp_json_lora reads lora_name, or the deprecated lora_id; an object with both is refused. "" = the base model. */
bool kvp_json_lora(json_object *in, char out[KVP_NAME_TEXT_MAX + 1], char why_out[160]);

/* kvp_json_salt reads cache_salt, and removes the prefix KVP_SALT_TAG if an engine has added it; "" = no salt. */
bool kvp_json_salt(json_object *in, char out[KVP_NAME_TEXT_MAX + 1], char why_out[160]);

/* kvp_registration_read reads a registration. It returns false with the fault in *why_out. key_only: only instance,
 * tenant and rank are read, as for POST /unregister. */
bool kvp_registration_read(json_object *in, bool key_only, kvp_registration_t *out, char why_out[160]);
void kvp_registration_write(const kvp_registration_t *r, kvp_jsonw_t *w);
bool kvp_registration_is_same_key(const kvp_registration_t *a, const kvp_registration_t *b);

#endif
