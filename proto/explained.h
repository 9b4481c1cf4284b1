/* SPDX-License-Identifier: Apache-2.0
 * The answer to EXPLAIN as JSON, with the cause in sentences: for the client and for the master's HTTP port. */
#ifndef KVP_PROTO_EXPLAINED_H
#define KVP_PROTO_EXPLAINED_H

#include "common/jsonw.h"
#include "proto/kvpool.pb-c.h"

/* Returns the name of the transport by which the caller reads this copy; static. */
typedef const char *(*kvp_explained_transport_fn)(void *arg, const Kvp__Pb__ObjectCopy *copy);

/* kvp_segment_state_name returns the name of a kvp_segment_state_t in JSON: "up", "draining", "lost", "connecting";
 * else "unknown".
 */
const char *kvp_segment_state_name(uint32_t state);

/* kvp_explained_write writes the answer for a key of 1 to KVP_KEY_MAX bytes as one object. transport NULL: the copies
 * have no member "transport". */
void kvp_explained_write(kvp_jsonw_t *w, const void *key, size_t key_len, const Kvp__Pb__ExplainReply *msg,
                         kvp_explained_transport_fn transport, void *arg);

/* kvp_drain_why writes the reason why a drain cannot continue, and a remedy; "" = it continues. Returns `why`.
 * kvp_drain_failure returns the reason why the last copy failed; static. */
#define KVP_DRAIN_WHY_MAX 320u
#define KVP_DRAIN_HOLDER_MAX 160 /* bytes of held_by that are shown */
const char *kvp_drain_why(const Kvp__Pb__DrainReply *msg, char why[KVP_DRAIN_WHY_MAX]);
const char *kvp_drain_failure(const Kvp__Pb__DrainReply *msg);

#endif
