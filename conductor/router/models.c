/* SPDX-License-Identifier: Apache-2.0
 * See models.h. */
#include "conductor/router/models.h"

#include <string.h>
#include <xxhash.h>

#define LIFE_MS 15000u
#define EVERY_MS 5000u

/* ---- names of models, by instance */
static kvp_digest_t
key_of(const char *instance, const char *name)
{
    return (kvp_digest_t){.lo = XXH3_64bits(name, strlen(name)), .hi = XXH3_64bits(instance, strlen(instance))};
}

static bool
is_fresh(uint64_t val, uint64_t now_ms)
{
    return now_ms < (val >> 2) + LIFE_MS;
}

/* Removes the records that are older than LIFE_MS: of names no longer listed, and of servers that have left. */
static void
sweep_names(kvp_models_t *m, uint64_t now_ms)
{
    const kvp_digestmap_at_t *at;
    kvp_digestmap_t kept;

    m->swept_ms = now_ms;
    kvp_digestmap_init(&kept, m->map.seed);
    for (uint32_t i = 0; (at = kvp_digestmap_next(&m->map, &i)) != NULL;) {
        uint64_t *val = is_fresh(at->val, now_ms) ? kvp_digestmap_insert(&kept, at->digest) : NULL;

        if (val != NULL) *val = at->val;
    }
    kvp_digestmap_fini(&m->map);
    m->map = kept;
}

void
kvp_models_note(kvp_models_t *m, const char *instance, const char *name, kvp_model_kind_t kind, uint64_t now_ms)
{
    const kvp_digest_t key = key_of(instance, name);
    uint64_t *val = kvp_digestmap_at(&m->map, key);

    if (now_ms >= m->swept_ms + LIFE_MS) {
        sweep_names(m, now_ms);
        val = kvp_digestmap_at(&m->map, key);
    }
    if (val == NULL && m->map.n < KVP_MODELS_MAX) val = kvp_digestmap_insert(&m->map, key);
    if (val != NULL) *val = now_ms << 2 | (uint64_t)kind;
}

kvp_model_kind_t
kvp_models_kind(const kvp_models_t *m, const char *instance, const char *name, uint64_t now_ms)
{
    const uint64_t *val = kvp_digestmap_at(&m->map, key_of(instance, name));

    return val == NULL || !is_fresh(*val, now_ms) ? KVP_MODEL_NONE : (kvp_model_kind_t)(*val & 3);
}

/* Returns whether the instance's list of models shall be requested now. The time of the last request is stored as the
 * record of a model with the name "". */
bool
kvp_models_is_due(kvp_models_t *m, const char *instance, uint64_t now_ms)
{
    const uint64_t *val = kvp_digestmap_at(&m->map, key_of(instance, ""));

    if (val != NULL && now_ms < (*val >> 2) + EVERY_MS) return false;
    kvp_models_note(m, instance, "", KVP_MODEL_BASE, now_ms);
    return true;
}

void
kvp_models_init(kvp_models_t *m, uint64_t seed)
{
    *m = (kvp_models_t){.swept_ms = 0};
    kvp_digestmap_init(&m->map, seed);
}

void
kvp_models_fini(kvp_models_t *m)
{
    kvp_digestmap_fini(&m->map);
}

/* ---- parsing of a list: {"data": [{"id": NAME, "parent": null or NAME, ...}, ...]} */
static bool
on_value(void *arg, const kvp_jsonscan_t *s, kvp_json_event_t event)
{
    static const char *const one[] = {"data", ""}, *const id[] = {"data", "", "id"},
                             *const parent[] = {"data", "", "parent"};
    kvp_models_list_t *list = arg;

    if (event == KVP_JSON_BEGIN && kvp_jsonscan_is_at(s, one, 2)) {
        list->id[0] = '\0';
        list->has_parent = false;
    } else if (event == KVP_JSON_STRING && kvp_jsonscan_is_at(s, id, 3)) {
        /* A name with escapes is skipped: servers escape only quotes, backslashes and control characters, and the
         * router refuses names with them. */
        if (!s->is_cut && !s->has_escape) memcpy(list->id, s->text, s->text_len + 1);
    } else if (event == KVP_JSON_STRING && kvp_jsonscan_is_at(s, parent, 3)) {
        list->has_parent = true;
    } else if (event == KVP_JSON_END && kvp_jsonscan_is_at(s, one, 2) && list->id[0] != '\0') {
        if (list->n++ == KVP_MODELS_OF_SERVER_MAX) return false;
        list->listed(list->arg, list->id, list->has_parent ? KVP_MODEL_ADAPTER : KVP_MODEL_BASE);
    }
    return true;
}

void
kvp_models_list_init(kvp_models_list_t *list, void (*listed)(void *arg, const char *name, kvp_model_kind_t kind),
                     void *arg)
{
    memset(list, 0, sizeof *list);
    list->listed = listed;
    list->arg = arg;
    kvp_jsonscan_init(&list->scan, on_value, list);
}

bool
kvp_models_list_feed(kvp_models_list_t *list, const char *bytes, size_t len)
{
    return kvp_jsonscan_feed(&list->scan, bytes, len);
}
