/* SPDX-License-Identifier: Apache-2.0
 * Removals and bumps, and the long walks of those without keys. */
#ifndef KVP_MASTER_CORE_REQUEST_REMOVE_H
#define KVP_MASTER_CORE_REQUEST_REMOVE_H

#include "common/list.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/deferred.h"
#include "master/core/session/session.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

struct kvp_walk {
    kvp_list_t link; /* master->jobs */
    kvp_list_t of_session; /* session->jobs; a sweep is of none */
    kvp_tenant_t *tenant;
    kvp_deferred_t *deferred; /* NULL = the sweep after a bump */
    void *pattern; /* compiled; NULL = all */
    uint32_t cursor; /* oid */
    uint32_t end; /* records from this one on were put after the question */
    bool is_forced, heeds_probes;
    bool is_due_again; /* a sweep: from the start, when it has come to the end */
};

void kvp_on_remove(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_bump(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_on_remove_many(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);
void kvp_remove_end_all(kvp_master_t *m, kvp_session_t *s); /* its walks end where they are */
void kvp_remove_tick(kvp_master_t *m);
void kvp_bump_sweep(kvp_master_t *m, kvp_tenant_t *t); /* gives back the space of what min_version took away */
void kvp_remove_init(kvp_master_t *m);
void kvp_remove_fini(kvp_master_t *m);

#endif
