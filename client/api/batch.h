/* SPDX-License-Identifier: Apache-2.0
 * Runs the state machine of a batch (getop or putop) against a session with the master: one window of at most
 * KVP_PLACES_MAX items. The calls block; any thread may make them. */
#ifndef KVP_CLIENT_API_BATCH_H
#define KVP_CLIENT_API_BATCH_H

#include "client/core/getop.h"
#include "client/core/putop.h"
#include "client/data/transfer.h"
#include "client/api/pool.h"

/* Run the gets or puts of one window. Afterwards each item carries its result. spans[i] is the memory of items[i].
 * The calls allocate from the call's scratch memory and free nothing: the caller resets it between windows. */
void kvp_batch_get(kvp_apicall_t *call, kvp_getop_item_t *items, const kvp_span_t *spans, uint32_t n);
void kvp_batch_put(kvp_apicall_t *call, kvp_putop_item_t *items, const kvp_span_t *spans, uint32_t n);

#endif
