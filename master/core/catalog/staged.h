/* SPDX-License-Identifier: Apache-2.0
 * Attempts: objects that are being written. put/ has how they begin and end.
 */
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
    uint64_t since; /* its generations are above this one */
    kvp_list_t of_req;
    kvp_session_t *session;
    kvp_tenant_t *tenant;
    uint32_t epoch; /* of the namespace, at its beginning */
    uint64_t id;
    uint64_t bytes; /* of one copy */
    kvp_digest_t digest;
    uint32_t oid;
    uint32_t over; /* the object to replace; KVP_OID_NONE = none */
    bool is_upsert; /* even if the object to replace has been removed since */
    kvp_pin_t pin;
    kvp_wire_group_t group; /* the group that it joins */
    uint32_t number;
    kvp_put_req_t *req; /* its PutBegin, until that is answered */
    uint32_t at; /* index in this message */
    kvp_list_t claims; /* of copies that still wait for space */
    uint64_t *granted; /* owned: generations of the copies in the client's answer, if there are several */
    uint32_t granted_n;
    uint32_t copies; /* wanted, each in a segment of its own */
} kvp_attempt_t;

kvp_attempt_t *kvp_attempt_of(const kvp_catalog_t *cat, const kvp_obj_t *o); /* of an uncommitted object */
/* the owning tenant, of a committed or uncommitted object */
const kvp_tenant_t *kvp_obj_owner(const kvp_catalog_t *cat, const kvp_obj_t *o);
/* kvp_attempt_stage: its object is not in the index, and replaces `over` when it is committed.
 * kvp_attempt_replacement: the attempt that is to replace this object, or NULL;
 * kvp_attempt_promote: that object is out of the index, and its replacement takes its place.
 * kvp_attempt_part: it replaces nothing any more. */
void kvp_attempt_part(kvp_catalog_t *cat, kvp_attempt_t *a);
void kvp_attempt_stage(kvp_catalog_t *cat, kvp_attempt_t *a, uint32_t over);
kvp_attempt_t *kvp_attempt_replacement(const kvp_catalog_t *cat, const kvp_obj_t *old);
void kvp_attempt_promote(kvp_catalog_t *cat, kvp_attempt_t *a);

#endif
