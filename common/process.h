/* SPDX-License-Identifier: Apache-2.0
 * Metrics that every daemon has: its version, and its memory, processor time and descriptors, under the names of
 * Prometheus's own client libraries. */
#ifndef KVP_COMMON_PROCESS_H
#define KVP_COMMON_PROCESS_H

#include "common/metrics.h"

/* kvp_process_add registers the metrics, whose values are read when they are rendered. Errors as kvp_metrics_gauge_fn.
 */
kvp_err_t kvp_process_add(kvp_metrics_t *metrics) KVP_MUST_USE;

#endif
