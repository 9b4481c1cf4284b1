/* SPDX-License-Identifier: Apache-2.0
 * The masters of a pool as etcd lists them: "etcd://HOST:PORT;HOST:PORT" names members of etcd. Each live master
 * keeps its address under the key prefix /kvpool/CLUSTER/masters/. Members are asked by HTTP with libcurl, which is
 * loaded when the first such list is used. No call blocks. One thread at a time. */
#ifndef KVP_NET_DISCOVER_H
#define KVP_NET_DISCOVER_H

#include "common/parse.h"

typedef struct kvp_discover kvp_discover_t;

/* kvp_discover_create reads the list. Members are separated by ; or , and may begin with http:// or https://. cluster
 * NULL or empty = $KVPOOL_CLUSTER, else $MC_STORE_CLUSTER_ID, else "kvpool". Errors: INVALID, NOMEM, NOTSUP (logged):
 * libcurl is not installed. kvp_discover_destroy ignores NULL. */
kvp_err_t kvp_discover_create(const char *list, const char *cluster, kvp_discover_t **discover_out) KVP_MUST_USE;
void kvp_discover_destroy(kvp_discover_t *d);

/* kvp_discover_step sends a question to one member of etcd, or to the next member after a failure, at most one round of
 * members each second. Returns true if at_out has the masters that etcd lists now, at least 1 and at most max.
 * *again_ns_out is the time of the next call. kvp_discover_rest cancels the running question. */
bool kvp_discover_step(kvp_discover_t *d, kvp_hostport_t *at_out, size_t max, size_t *n_out, uint64_t *again_ns_out);
void kvp_discover_rest(kvp_discover_t *d);

/* kvp_discover_is_unknown returns true if no host name of a member resolves, or has ever resolved. */
bool kvp_discover_is_unknown(const kvp_discover_t *d);

/* kvp_discover_why returns the reason why no masters are known, or "" if masters are known. Valid until the next step.
 */
const char *kvp_discover_why(const kvp_discover_t *d);

#endif
