/* SPDX-License-Identifier: Apache-2.0
 * The master's metrics with labels: nodes, tenants, and miss-ratio curves. */
#ifndef KVP_MASTER_LABELLED_H
#define KVP_MASTER_LABELLED_H

#include "common/buf.h"
#include "master/core/api/master.h"

#define KVP_LABELLED_NODES 512u /* most segments with metrics of their own: 256 nodes with SSDs */

typedef struct {
    kvp_master_node_t nodes[KVP_LABELLED_NODES];
    kvp_master_tenant_t tenants[KVP_MASTER_TENANTS];
    uint32_t nodes_n, tenants_n;
} kvp_labelled_t;

/* kvp_labelled_copy copies the figures, in the core's thread. kvp_labelled_write appends their text for Prometheus. */
void kvp_labelled_copy(kvp_labelled_t *figures, const kvp_master_t *master);
void kvp_labelled_write(const kvp_labelled_t *figures, kvp_buf_t *out);

/* kvp_labelled_head begins the gauge kvpool_master_NAME, or the counter if NAME ends with "_total". kvp_labelled_value
 * appends one value of it; labels is a text such as `node="n1"`, with escaped values, of at most 512 bytes. */
void kvp_labelled_head(kvp_buf_t *out, const char *name, const char *help);
void kvp_labelled_value(kvp_buf_t *out, const char *name, const char *labels, double value);

#endif
