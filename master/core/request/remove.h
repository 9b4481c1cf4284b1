/* SPDX-License-Identifier: Apache-2.0
 * Removals and bumps, and the walks over all objects that removals without keys need. */
#ifndef KVP_MASTER_CORE_REQUEST_REMOVE_H
#define KVP_MASTER_CORE_REQUEST_REMOVE_H

#include "common/list.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/deferred.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

struct kvp_walk {
    kvp_list_t link; /* link in master->jobs */
    kvp_list_t of_session; /* link in session->jobs; unlinked in a sweep, the walk that drops objects after a BUMP */
    kvp_tenant_t *tenant;
    kvp_deferred_t *deferred; /* the answer to a removal; NULL = a sweep after a BUMP */
    void *pattern; /* compiled pattern; NULL = all objects */
    uint32_t cursor; /* oid at which the walk continues */
    uint32_t end; /* the walk ends before this oid: later records were made after the request */
    bool is_forced, heeds_probes;
    bool is_due_again; /* flag of a sweep: another BUMP came, so the sweep starts again at its end */
};

void kvp_on_remove(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_bump(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_remove_many(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_remove_end_all(kvp_master_t *m, kvp_session_t *s); /* ends the session's walks where they are */
void kvp_remove_tick(kvp_master_t *m);
void kvp_bump_sweep(kvp_master_t *m, kvp_tenant_t *t); /* drops the tenant's objects up to min_version */
void kvp_remove_init(kvp_master_t *m);
void kvp_remove_fini(kvp_master_t *m);

#endif
