/* SPDX-License-Identifier: Apache-2.0
 * Keys in the form of the engines' store connectors, one object for each block and rank (and
 * layer). The pool does not interpret keys; the event streams do.
 *
 *     vLLM          [PREFIX@]MODEL[NAMESPACE]@tp_rank:T@pcpP@dcpD@pp_rank:R[@group:G]@HEX
 *     vllm-ascend   MODEL@pcpP@dcpD@head_or_tp_rank:T[@pp_rank:R]
 *                       [@group:G@cache_role:ROLE@cache_family:FAMILY][@layer_id:L]@HEX
 *                   MODEL@pcpP@dcpD@head_or_tp_rank:T@HEX@L
 *
 * HEX is the block's hash. The engines' events carry its last 64 bits. */
#ifndef KVP_PROTO_CONNKEY_H
#define KVP_PROTO_CONNKEY_H

#include "common/base.h"

/* Numbers of a key. X(field, text in front of the number in the key). */
#define KVP_CONNKEY_NUMBERS(X)                                                                                         \
    X(tp_rank, "tp_rank:")                                                                                             \
    X(head_or_tp_rank, "head_or_tp_rank:")                                                                             \
    X(pcp_rank, "pcp")                                                                                                 \
    X(dcp_rank, "dcp")                                                                                                 \
    X(pp_rank, "pp_rank:")                                                                                             \
    X(layer_id, "layer_id:")

#define KVP_CONNKEY_NONE UINT32_MAX

typedef struct {
    size_t prefix_len; /* bytes in front of the ranks and of the "@" before them */
    size_t model_at; /* where the model's name begins in the prefix */
    /* The part of the block that the object holds: two texts, borrowed from the key, before and
     * after its group. In a vLLM key without a group, `ranks` includes the "@", so that no two keys
     * share a part. */
    const char *ranks, *more;
    size_t ranks_len, more_len;
    uint32_t group; /* 0 = the key names none */
#define KVP_CONNKEY_FIELD(name, text) uint32_t name; /* KVP_CONNKEY_NONE = the key has none */
    KVP_CONNKEY_NUMBERS(KVP_CONNKEY_FIELD)
#undef KVP_CONNKEY_FIELD
    const char *hex; /* in lower case; borrowed */
    size_t hex_len; /* even, 16 or more */
    uint64_t hash; /* its last 16 digits */
} kvp_connkey_t;

/* kvp_connkey_read returns false for a key of another form. */
bool kvp_connkey_read(const char *key, size_t len, kvp_connkey_t *out);

#endif
