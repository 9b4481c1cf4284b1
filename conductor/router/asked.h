/* SPDX-License-Identifier: Apache-2.0
 * The fields of a query to the router (POST /route), and the check whether an instance may serve the query. */
#ifndef KVP_CONDUCTOR_ROUTER_ASKED_H
#define KVP_CONDUCTOR_ROUTER_ASKED_H

#include "conductor/index/match.h"
#include "conductor/base/registration.h"

#define KVP_SESSION_NAME_MAX 1024u

typedef struct {
    char model[KVP_NAME_TEXT_MAX + 1], lora[KVP_NAME_TEXT_MAX + 1], tenant[KVP_NAME_TEXT_MAX + 1],
        instance[KVP_NAME_TEXT_MAX + 1], salt[KVP_NAME_TEXT_MAX + 1], role[KVP_NAME_TEXT_MAX + 1],
        session[KVP_SESSION_NAME_MAX + 1];
    uint32_t block_size; /* tokens in a block; 0 = the instance's block size */
    json_object *exclude; /* array of excluded instances or URLs; borrowed; NULL = none */
    /* model name that a server must list (GET /v1/models) to be able to serve the request; "" = any server is able */
    char listed[KVP_NAME_TEXT_MAX + 1];
} kvp_asked_t;

/* kvp_asked_read_names reads the fields model, lora_name, tenant_id and instance_id of an object. It returns false with
 * the fault in *why_out. */
bool kvp_asked_read_names(json_object *in, kvp_asked_t *out, char why_out[160]);
/* kvp_asked_read reads all fields of the query; *out must be zero before. It returns false with the fault in
 * *why_out. `exclude` borrows from in. */
bool kvp_asked_read(json_object *in, kvp_asked_t *out, char why_out[160]);
/* kvp_asked_may_serve returns whether the instance has the wanted role, and is not excluded. */
bool kvp_asked_may_serve(const kvp_asked_t *q, const kvp_roster_row_t *m);

#endif
