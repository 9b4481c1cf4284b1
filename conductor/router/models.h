/* SPDX-License-Identifier: Apache-2.0
 * The models that servers list (GET /v1/models). An adapter has its base model as `parent`, and a base model may
 * have several names. A request contains one of these names. */
#ifndef KVP_CONDUCTOR_ROUTER_MODELS_H
#define KVP_CONDUCTOR_ROUTER_MODELS_H

#include "common/digestmap.h"
#include "conductor/base/jsonscan.h"

#define KVP_MODELS_OF_SERVER_MAX 4096u
#define KVP_MODELS_MAX (1u << 20)

typedef enum { KVP_MODEL_NONE, KVP_MODEL_BASE, KVP_MODEL_ADAPTER } kvp_model_kind_t;

typedef struct {
    kvp_digestmap_t map; /* maps (model, instance) to the kind of the model and the time of the list */
    uint64_t swept_ms;
} kvp_models_t;

void kvp_models_init(kvp_models_t *m, uint64_t seed);
void kvp_models_fini(kvp_models_t *m);

/* kvp_models_note records that the instance's server lists the name. The record is valid for 15 s. Names above
 * the limit KVP_MODELS_MAX are ignored. */
void kvp_models_note(kvp_models_t *m, const char *instance, const char *name, kvp_model_kind_t kind, uint64_t now_ms);
kvp_model_kind_t kvp_models_kind(const kvp_models_t *m, const char *instance, const char *name, uint64_t now_ms);

/* kvp_models_is_due returns whether the instance's list of models shall be requested now: at most once every 5 s. */
bool kvp_models_is_due(kvp_models_t *m, const char *instance, uint64_t now_ms);

/* A streaming parser of a list of models. listed(arg, name, kind) is called for each model. */
typedef struct {
    kvp_jsonscan_t scan;
    void (*listed)(void *arg, const char *name, kvp_model_kind_t kind);
    void *arg;
    char id[KVP_JSONSCAN_TEXT_MAX + 1];
    bool has_parent;
    uint32_t n;
} kvp_models_list_t;

void kvp_models_list_init(kvp_models_list_t *list, void (*listed)(void *arg, const char *name, kvp_model_kind_t kind),
                          void *arg);
/* parses the next bytes of the list; false: malformed */
bool kvp_models_list_feed(kvp_models_list_t *list, const char *bytes, size_t len);

#endif
