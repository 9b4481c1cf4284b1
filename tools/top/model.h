/* SPDX-License-Identifier: Apache-2.0
 * The model of the live view: rates and tables that two samples of a pool give. Pure: no clock, no I/O. A sample is the
 * JSON of kvpool_stat, with the member "metrics" of kvp_top_metrics where the master's metrics are known. */
#ifndef KVP_TOOLS_TOP_MODEL_H
#define KVP_TOOLS_TOP_MODEL_H

#include <json-c/json.h>

/* The tables of a model, in the order of the view; NULL ends the list. The first column of each is the row's name. */
extern const char *const kvp_top_tables[];

/* kvp_top_metrics reads a master's metrics in Prometheus' text format: the buckets of latencies by call, and the
 * figures of tenants. It skips other lines and malformed lines. The caller owns the result. */
struct json_object *kvp_top_metrics(const char *text);

/* kvp_top_model returns the model, which the caller owns. `before` may be NULL. A rate is null without an earlier
 * sample, and between samples of two masters. Times come from the master's uptime. The members are: head     figures
 * for a line of `kvpool stat --watch`, with units in their names; lists have none wrong    a list of texts, as
 * kvp_top_wrong tables   for each of kvp_top_tables a list of rows, which have the columns as members, in their order
 */
struct json_object *kvp_top_model(struct json_object *before, struct json_object *now);

/* kvp_top_wrong returns a list of texts: the faults of the pool, and of the nodes as this client sees them. Names in
 * them may have any bytes. The caller owns the list. */
struct json_object *kvp_top_wrong(struct json_object *stat);

/* kvp_top_mark_away replaces the unknown lag of masters that do not follow the leader by the text "away". */
void kvp_top_mark_away(struct json_object *masters);

/* kvp_top_mark_lost removes the transports of lost nodes: the library reports the transport that it would use if the
 * node were connected. The state of a lost node without an object becomes "away (drained)". */
void kvp_top_mark_lost(struct json_object *nodes);

/* kvp_top_join_tiers adds the state and the bytes of its SSD tier to each node of the list. A tier's name is the node's
 * name with "/ssd" added. */
void kvp_top_join_tiers(struct json_object *nodes, struct json_object *tiers);

#endif
