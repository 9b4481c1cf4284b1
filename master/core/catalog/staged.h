/* SPDX-License-Identifier: Apache-2.0
 * Put attempts: objects that are being written. put/ has how an attempt begins and ends. */
#ifndef KVP_MASTER_CORE_CATALOG_STAGED_H
#define KVP_MASTER_CORE_CATALOG_STAGED_H

#include "common/hash.h"
#include "common/list.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "proto/wire.h"

typedef struct kvp_put_req kvp_put_req_t;
typedef struct kvp_session kvp_session_t;

typedef struct kvp_attempt {
    kvp_list_t link; /* session->attempts */
    kvp_list_t in_order; /* catalog->attempts_in_order */
    uint64_t since; /* value of catalog->gen_seq at the begin: the attempt's extents have greater generations */
    kvp_list_t of_req;
    kvp_session_t *session;
    kvp_tenant_t *tenant;
    uint32_t epoch; /* epoch of the namespace when the attempt began */
    uint64_t id;
    uint64_t bytes; /* payload bytes of one copy */
    kvp_digest_t digest;
    uint32_t oid;
    uint32_t over; /* the object that this attempt will replace; KVP_OID_NONE = none */
    bool is_upsert; /* flag: the put is an upsert; stays set if the object to replace was removed since */
    kvp_pin_t pin;
    kvp_wire_group_t group; /* the group that the object joins */
    uint32_t number; /* number of the attempt in catalog->attempts */
    kvp_put_req_t *req; /* the PutBegin request, until it is answered; NULL afterwards */
    uint32_t at; /* index of the key in the PutBegin request */
    kvp_list_t claims; /* kvp_claim_t: one for each copy that still waits for space */
    uint64_t *granted; /* generations of the copies in the order of the client's answer, owned; NULL if one copy */
    uint32_t granted_n;
    uint32_t copies; /* number of copies wanted, each in another segment */
} kvp_attempt_t;

kvp_attempt_t *kvp_attempt_of(const kvp_catalog_t *cat, const kvp_obj_t *o); /* the object must be uncommitted */
/* Returns the tenant that owns an object, whether it is committed or not. */
const kvp_tenant_t *kvp_obj_owner(const kvp_catalog_t *cat, const kvp_obj_t *o);
/* kvp_attempt_stage takes the attempt's object as a staged version, which replaces `over` when it is committed.
 * kvp_attempt_replacement returns the attempt that will replace this object, or NULL. kvp_attempt_promote puts the
 * staged version into the index when the old object is removed. kvp_attempt_part separates the two. */
void kvp_attempt_part(kvp_catalog_t *cat, kvp_attempt_t *a);
void kvp_attempt_stage(kvp_catalog_t *cat, kvp_attempt_t *a, uint32_t over);
kvp_attempt_t *kvp_attempt_replacement(const kvp_catalog_t *cat, const kvp_obj_t *old);
void kvp_attempt_promote(kvp_catalog_t *cat, kvp_attempt_t *a);

#endif
