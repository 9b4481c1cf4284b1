/* SPDX-License-Identifier: Apache-2.0
 * Runs a batch core against a session: one window of at most KVP_PLACES_MAX items. Blocks; any thread.
 */
#ifndef KVP_CLIENT_API_BATCH_H
#define KVP_CLIENT_API_BATCH_H

#include "client/core/getop.h"
#include "client/core/putop.h"
#include "client/data/transfer.h"
#include "client/api/pool.h"

/* The items carry their results afterwards. spans[i] is the memory of items[i]. Scratch memory of the call is used up
 * as far as it goes; the caller resets it between windows. */
void kvp_batch_get(kvp_apicall_t *call, kvp_getop_item_t *items, const kvp_span_t *spans, uint32_t n);
void kvp_batch_put(kvp_apicall_t *call, kvp_putop_item_t *items, const kvp_span_t *spans, uint32_t n);

#endif
