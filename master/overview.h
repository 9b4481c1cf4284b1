/* SPDX-License-Identifier: Apache-2.0
 * The document of /overview: the state of the pool and its last hour, as one JSON object of bounded size, for the page
 * at / (master/page.html). */
#ifndef KVP_MASTER_OVERVIEW_H
#define KVP_MASTER_OVERVIEW_H

#include "common/jsonw.h"
#include "master/changes.h"
#include "master/ha/ha.h"
#include "master/history.h"
#include "master/labelled.h"

/* The sources of the document; all borrowed. */
typedef struct {
    const char *role;
    const char *conductor; /* HOST:PORT of the conductor's page; "" = unknown */
    uint64_t term, uptime_ms;
    const kvp_master_ident_t *ident;
    const kvp_ha_status_t *ha; /* NULL = a single master */
    const kvp_labelled_t *labelled;
    const kvp_history_t *history;
    const kvp_changes_t *changes;
    const kvp_sample_t *now;
} kvp_overview_t;

/* kvp_overview_write writes the members of the document, except its status. */
void kvp_overview_write(kvp_jsonw_t *w, const kvp_overview_t *in);

#endif
