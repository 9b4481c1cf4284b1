/* SPDX-License-Identifier: Apache-2.0
 * Reads keys in the form that the engines' store connectors use: one object for each block and rank (and layer). The
 * pool does not interpret keys; the event streams do.
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

/* The numbers in a key, as X(field of kvp_connkey_t, text before the number in the key). */
#define KVP_CONNKEY_NUMBERS(X)                                                                                         \
    X(tp_rank, "tp_rank:")                                                                                             \
    X(head_or_tp_rank, "head_or_tp_rank:")                                                                             \
    X(pcp_rank, "pcp")                                                                                                 \
    X(dcp_rank, "dcp")                                                                                                 \
    X(pp_rank, "pp_rank:")                                                                                             \
    X(layer_id, "layer_id:")

#define KVP_CONNKEY_NONE UINT32_MAX

typedef struct {
    size_t prefix_len; /* length of the prefix, the text before the ranks, without the "@" after it */
    size_t model_at; /* offset of the model's name in the prefix */
    /* The part of its block that the object contains: two texts, borrowed from the key, before and after its group. In
     * a vLLM key without a group, `ranks` includes the last "@", so two different keys never have the same part. */
    const char *ranks, *more;
    size_t ranks_len, more_len;
    uint32_t group; /* number of the group; 0 = the key has no group */
#define KVP_CONNKEY_FIELD(name, text) uint32_t name; /* KVP_CONNKEY_NONE = the key lacks this number */
    KVP_CONNKEY_NUMBERS(KVP_CONNKEY_FIELD)
#undef KVP_CONNKEY_FIELD
    const char *hex; /* the block's hash in lower-case hexadecimal; borrowed */
    size_t hex_len; /* number of digits: even, 16 or more */
    uint64_t hash; /* value of the last 16 hexadecimal digits of `hex` */
} kvp_connkey_t;

/* kvp_connkey_read decodes a key. Returns false for a key of another form. */
bool kvp_connkey_read(const char *key, size_t len, kvp_connkey_t *out);

#endif
