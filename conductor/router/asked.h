/* SPDX-License-Identifier: Apache-2.0
 * The fields of a question to the router, and which instances they leave.
 */
#ifndef KVP_CONDUCTOR_ROUTER_ASKED_H
#define KVP_CONDUCTOR_ROUTER_ASKED_H

#include "conductor/index/match.h"
#include "conductor/base/registration.h"

#define KVP_SESSION_NAME_MAX 1024u

typedef struct {
    char model[KVP_NAME_TEXT_MAX + 1], lora[KVP_NAME_TEXT_MAX + 1], tenant[KVP_NAME_TEXT_MAX + 1],
        instance[KVP_NAME_TEXT_MAX + 1], salt[KVP_NAME_TEXT_MAX + 1], role[KVP_NAME_TEXT_MAX + 1],
        session[KVP_SESSION_NAME_MAX + 1];
    uint32_t block_size; /* 0 = an instance's */
    json_object *exclude; /* borrowed; NULL = none */
    char listed[KVP_NAME_TEXT_MAX + 1]; /* the name that a server has to list to serve it; "" = any server may */
} kvp_asked_t;

/* kvp_asked_read_names reads the fields model, lora_name, tenant_id and instance_id of an object.
 * False: *why_out has the fault. */
bool kvp_asked_read_names(json_object *in, kvp_asked_t *out, char why_out[160]);
/* kvp_asked_read reads the object's fields; *out is zero before. False: *why_out has the fault.
 * `exclude` borrows from in. */
bool kvp_asked_read(json_object *in, kvp_asked_t *out, char why_out[160]);
/* kvp_asked_may_serve: the instance has the role, and is not excluded. */
bool kvp_asked_may_serve(const kvp_asked_t *q, const kvp_roster_row_t *m);

#endif
